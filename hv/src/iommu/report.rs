//! What an IOMMU stopped is said on the console, and a device that goes on trying is switched off.

use super::active;
use super::hardware::{Reporter, Strange};
use crate::arch::pci::{self, Sbdf};
use crate::arch::tsc;
use crate::domain::{passthrough, watch};
use crate::sync::{Mutex, Once};
use crate::warn;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use hv_core::iommu::brake::{Action, Brake, Judgement};
use hv_core::iommu::{Fault, Stopped};
use hv_core::passthrough::Owner;

static BRAKE: Once<Mutex<Brake>> = Once::new();
/// Processors that are at telling what was stopped.
static TELLERS: AtomicU32 = AtomicU32::new(0);

/// Counts the faults of the functions that were found.
pub fn init() {
    BRAKE.call_once(|| Mutex::new(Brake::new(pci::functions().iter().map(|f| f.at))));
}

/// Counts those of one more.
pub fn add(at: Sbdf) {
    if let Some(brake) = BRAKE.get() {
        brake.lock().add(at);
    }
}

/// A unit interrupted.
pub fn handle_faults() {
    let Some(iommu) = active() else { return };
    TELLERS.fetch_add(1, Ordering::SeqCst);
    iommu.hardware.take_faults(&mut |by, event| match event {
        Ok(fault) => report(by, fault),
        Err(Strange { code, words: [low, high] }) => {
            if judge(|brake, now| brake.event(now)).is_some_and(|j| j.is_said) {
                warn!("IOMMU: a unit of segment {} reports event {code}: {low:#x} {high:#x}", by.segment);
            }
        }
    });
    TELLERS.fetch_sub(1, Ordering::SeqCst);
}

/// Whether an access may have been stopped of which who is concerned was not told yet ([`watch::tell_of_dma_fault`]).
/// It costs a register's read of each unit.
pub fn has_news() -> bool {
    // In this order: whoever takes it is a teller before.
    active().is_some_and(|iommu| iommu.hardware.has_faults() || TELLERS.load(Ordering::SeqCst) != 0)
}

fn judge(ask: impl FnOnce(&mut Brake, u64) -> Judgement) -> Option<Judgement> {
    let judgement = ask(&mut BRAKE.get()?.lock(), tsc::now_ns());
    if judgement.unsaid != 0 {
        warn!("IOMMU: {} more accesses were stopped", judgement.unsaid);
    }
    Some(judgement)
}

fn report(by: Reporter, fault: Fault) {
    let [devfn, bus] = fault.source_id.to_le_bytes();
    let source = Sbdf::new(by.segment, bus, devfn);
    // A device may name a function that there is not.
    let at = BRAKE.get().map_or(source, |brake| brake.lock().function_of(source));
    if let (Stopped::Read | Stopped::Write, Some(Owner::Domain(id))) = (fault.stopped, passthrough::owner(at)) {
        // First: what the device says next may be wrong.
        watch::tell_of_dma_fault(id);
    }
    let Some(judgement) = judge(|brake, now| brake.fault(at, now)) else { return };
    if judgement.is_said {
        let whose = Whose(passthrough::owner(at));
        let Fault { addr, why, .. } = fault;
        match fault.stopped {
            Stopped::Read => warn!("IOMMU: {whose} device {source} was stopped reading address {addr:#x}: {why}"),
            Stopped::Write => warn!("IOMMU: {whose} device {source} was stopped writing address {addr:#x}: {why}"),
            Stopped::Interrupt(Some(n)) => {
                warn!("IOMMU: {whose} device {source} was stopped raising interrupt {n}: {why}")
            }
            Stopped::Interrupt(None) => warn!("IOMMU: {whose} device {source} was stopped raising an interrupt: {why}"),
        }
    }
    if judgement.action >= Action::Stop && passthrough::stop_master(at) {
        let whose = Whose(passthrough::owner(at));
        warn!("IOMMU: {whose} device {at} does not stop: it is no longer bus master");
    }
    if let (Action::Silence, Some(iommu)) = (judgement.action, active()) {
        iommu.hardware.silence(by, source);
    }
}

/// An owner, in words.
struct Whose(Option<Owner>);

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Owner::Hardware) => f.write_str("domain 0's"),
            Some(Owner::Domain(id)) => write!(f, "d{id}'s"),
            Some(Owner::Quarantine) | None => f.write_str("nobody's"),
        }
    }
}
