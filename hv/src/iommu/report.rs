//! What an IOMMU stopped is said on the console, and a device that goes on trying is switched off.

use super::active;
use crate::arch::pci::{self, Sbdf};
use crate::arch::tsc;
use crate::domain::passthrough;
use crate::sync::Mutex;
use crate::warn;
use core::fmt;
use hv_core::iommu::{Fault, Stopped};
use hv_core::passthrough::Owner;

/// Length of the window in which faults are counted.
const WINDOW_NS: u64 = 1_000_000_000;
/// Lines on the console per window.
const LINES: u32 = 10;
/// More faults in a window are no accident: the device that is caught then loses its access to memory.
const TOO_MANY: u32 = 1000;

struct Window {
    start_ns: u64,
    faults: u32,
}

static WINDOW: Mutex<Window> = Mutex::new(Window { start_ns: 0, faults: 0 });

/// A unit interrupted.
pub fn handle_faults() {
    let Some(iommu) = active() else { return };
    iommu.hardware.take_faults(&mut report);
}

fn report(segment: u16, fault: Fault) {
    let count = {
        let mut window = WINDOW.lock();
        let now = tsc::now_ns();
        if now.saturating_sub(window.start_ns) > WINDOW_NS {
            if window.faults > LINES {
                warn!("IOMMU: {} more accesses were stopped", window.faults - LINES);
            }
            *window = Window { start_ns: now, faults: 0 };
        }
        window.faults = window.faults.saturating_add(1);
        window.faults
    };
    let [devfn, bus] = fault.source_id.to_le_bytes();
    let at = Sbdf::new(segment, bus, devfn);
    let whose = Whose(passthrough::owner(at));
    if count <= LINES {
        let Fault { addr, why, .. } = fault;
        match fault.stopped {
            Stopped::Read => warn!("IOMMU: {whose} device {at} was stopped reading address {addr:#x}: {why}"),
            Stopped::Write => warn!("IOMMU: {whose} device {at} was stopped writing address {addr:#x}: {why}"),
            Stopped::Interrupt(Some(n)) => warn!("IOMMU: {whose} device {at} was stopped raising interrupt {n}: {why}"),
            Stopped::Interrupt(None) => warn!("IOMMU: {whose} device {at} was stopped raising an interrupt: {why}"),
        }
    }
    if count == TOO_MANY && pci::function(at).is_some() {
        warn!("IOMMU: {whose} device {at} does not stop: it is no longer bus master");
        passthrough::stop_master(at);
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
