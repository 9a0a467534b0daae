//! Holding vCPUs still, for whoever must own the state of one that it does not run.
//!
//! That a vCPU is down, or its domain paused, is no reason to touch its state: others may bring it up at any time. Who
//! holds it has a stop bit of its own, which nobody else clears; and there is one such bit, so there is one owner.
//!
//! A vCPU that is asked to stand still may be waiting for the one that asks, to hold that one. So nobody waits for
//! long: the call is given up and executed again, and between the two the caller may be held itself.

use super::{halt_again, is_asleep, is_current, start, this_cpu, tsc};
use crate::cpu::requests;
use crate::domain::vcpu::{stop, OwnedVcpu, Vcpu};
use crate::domain::Domain;
use alloc::boxed::Box;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use hv_core::allowance::TURN;
use hv_core::vtlb::Vtlb;
use xen_abi::errno::Errno;

/// For how long a vCPU is waited for: long enough for a CPU in its guest to answer an interrupt.
const PATIENCE_NS: u64 = 100_000;
/// The same for each vCPU of a domain that is stopped already, and so can only be leaving its CPUs.
const STOPPED_PATIENCE_NS: u64 = 5_000_000;

/// A vCPU that runs nowhere until this is dropped, and whose state is the holder's.
#[must_use = "it runs on when this is dropped"]
pub struct Held<'a>(&'a Vcpu);

impl Deref for Held<'_> {
    type Target = OwnedVcpu;
    fn deref(&self) -> &OwnedVcpu {
        // SAFETY: the vCPU is on no CPU, and its stop bit, which is the holder's, keeps it so until this is dropped.
        unsafe { self.0.owned() }
    }
}

impl Held<'_> {
    /// Gives it another cache of its page tables, or none.
    pub fn set_vtlb(&self, cache: Option<Box<Vtlb>>) -> Option<Box<Vtlb>> {
        // SAFETY: it is held. A CPU that left it has forgotten its cache.
        unsafe { (**self).set_vtlb(cache) }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        start(self.0, stop::HELD);
    }
}

/// Holds `v`, which is not the caller's own vCPU. The caller has no lock that a guest may wait for. Errors: ERESTART if
/// somebody else holds it or it does not leave its CPU soon.
pub fn hold(v: &Vcpu) -> Result<Held<'_>, Errno> {
    // A list of requests may wait for each of its vCPUs.
    hold_for(v, PATIENCE_NS, TURN)
}

/// Each turn of the wait takes `turn` from the caller's allowance.
fn hold_for(v: &Vcpu, patience_ns: u64, turn: u32) -> Result<Held<'_>, Errno> {
    debug_assert!(!is_current(v), "{v} holds itself");
    if halt_again(v, stop::HELD) & stop::HELD != 0 {
        return Err(Errno::ERESTART);
    }
    let held = Held(v);
    let until = tsc::now_ns().saturating_add(patience_ns);
    while !is_asleep(v) {
        if tsc::now_ns() > until {
            return Err(Errno::ERESTART);
        }
        requests::answer();
        core::hint::spin_loop();
        this_cpu().allowance.spend(turn);
    }
    Ok(held)
}

/// All vCPUs of a domain, held.
#[must_use = "they run on when this is dropped"]
pub struct AllHeld<'a> {
    domain: &'a Domain,
    /// Those below this number that exist.
    below: u32,
}

impl Drop for AllHeld<'_> {
    fn drop(&mut self) {
        self.domain.vcpus().filter(|v| v.id < self.below).for_each(|v| start(v, stop::HELD));
    }
}

impl AllHeld<'_> {
    /// Are they all that the domain has now? Others may have been made since they were held.
    pub fn are_all(&self) -> bool {
        self.domain.vcpus().all(|v| v.id < self.below)
    }

    /// Does `f` with each of them.
    pub fn each(&self, mut f: impl FnMut(&Held<'_>)) {
        self.domain.vcpus().filter(|v| v.id < self.below).for_each(|v| f(&ManuallyDrop::new(Held(v))));
    }

    /// Does `f` with each of them, up to the first failure.
    pub fn try_each(&self, mut f: impl FnMut(&Held<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        self.domain.vcpus().filter(|v| v.id < self.below).try_for_each(|v| f(&ManuallyDrop::new(Held(v))))
    }
}

/// Holds all vCPUs of `d`, which is not the caller's own domain, and which something stops. Errors: as for [`hold`].
pub fn hold_all(d: &Domain) -> Result<AllHeld<'_>, Errno> {
    let mut held = AllHeld { domain: d, below: 0 };
    for v in d.vcpus() {
        // An execution waits for all of them once. What it then goes on with asks for an allowance that is left: on a
        // slow machine it would never come to that.
        core::mem::forget(hold_for(v, STOPPED_PATIENCE_NS, 0)?);
        held.below = v.id + 1;
    }
    Ok(held)
}
