//! Calls of a twin's functions on behalf of its domain, and what they come to.

use super::counts::Ending;
use super::instance::{Instance, Slot};
use super::net;
use super::run::Early;
use super::session::{end_waiting, Session};
use super::table::{place, ready, Loaded};
use crate::arch::tsc;
use crate::cpu::{requests, Interruptible};
use crate::domain::vcpu::OwnedVcpu;
use crate::guest_warn;
use crate::sync::MutexGuard;
use core::sync::atomic::Ordering;
use twin_abi::op::{self, reason, TwinCall};
use xen_abi::errno::Errno;

/// Runs a function of a twin of `v`'s domain here, where `v` runs; says in `call` how it ended. Errors: ENOENT; ESRCH
/// if the twin has no such function; EBUSY while it is loaded or unloaded, has a card, or all its instances are in use;
/// EIO if it is disabled.
pub fn call(v: &OwnedVcpu, call: &mut TwinCall, interruptible: Interruptible<'_>) -> Result<(), Errno> {
    let place = place(call.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = ready(&place, v.domain())?.usable()?;
    let Some((number, mut slot)) = loaded.free_instance() else {
        check_upcalls(loaded, call.twin);
        return Err(Errno::EBUSY);
    };
    // Only now: who gives it a card looks for those who run it afterwards.
    if net::is_attached(call.twin as usize) {
        return Err(Errno::EBUSY);
    }
    let args = call.args;
    let function = slot.twin.function(call.function).ok_or(Errno::ESRCH)?;
    let mut session = Session::enter(loaded, number, None).ok_or(Errno::ENOENT)?;
    let returned = session.call(&mut slot, function, &args, interruptible);
    finish(loaded, (number, slot), session, returned, call)?;
    loaded.counts.calls.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Goes on with the invocation that waits in instance `call.instance`. Errors as [`call`]; ENOENT also if none waits
/// there; EBUSY also if it waits for what the domain has not fetched.
pub fn resume(v: &OwnedVcpu, call: &mut TwinCall, mut interruptible: Interruptible<'_>) -> Result<(), Errno> {
    // Whoever has it locked is soon done; and who is turned away here would not come again.
    let place = place(call.twin)?.read();
    let loaded = ready(&place, v.domain())?.usable()?;
    let number = call.instance as usize;
    let instance = loaded.instances.get(number).ok_or(Errno::ENOENT)?;
    if net::is_attached(call.twin as usize) && net::resume(loaded, call, interruptible.again())? {
        return Ok(());
    }
    let mut slot = instance.slot.try_lock().ok_or(Errno::EBUSY)?;
    // A card's may have begun to wait here meanwhile: it goes on in its lane.
    if slot.waiting.as_ref().is_some_and(|waiting| waiting.lane.is_some()) {
        return Err(Errno::EBUSY);
    }
    let mut session = Session::enter(loaded, number, None).ok_or(Errno::ENOENT)?;
    let returned = session.resume(&mut slot, call.result, interruptible);
    finish(loaded, (number, slot), session, returned, call)
}

/// Ends an invocation that waits: the domain gets back what that has taken. Those of a card end with their lanes. An
/// instance that somebody has is passed over: if the twin is disabled, he comes here himself when he is done. `false`:
/// none waits.
pub fn end_one_waiting(loaded: &Loaded) -> bool {
    loaded.instances.iter().enumerate().any(|(number, instance)| {
        let Some(mut slot) = instance.try_lock_waiting() else { return false };
        let is_called = slot.waiting.as_ref().is_some_and(|waiting| waiting.lane.is_none());
        if is_called {
            end_waiting(loaded, number, &mut slot);
        }
        is_called
    })
}

/// The twin is disabled: what waits never goes on.
fn end_all_waiting(loaded: &Loaded) {
    for _ in &loaded.instances {
        if !end_one_waiting(loaded) {
            return;
        }
        requests::answer();
    }
}

/// Disables the twin if an upcall is overdue.
fn check_upcalls(loaded: &Loaded, number: u32) {
    let now = tsc::now_ns();
    let is_overdue = |instance: &Instance| {
        let since = instance.slot.try_lock().and_then(|slot| slot.waiting.as_ref().map(|waiting| waiting.since_ns));
        since.is_some_and(|since| now.saturating_sub(since) > op::UPCALL_LIMIT_NS)
    };
    if loaded.instances.iter().any(is_overdue) && loaded.disable(Ending::nowhere(reason::UPCALL, 0)) {
        guest_warn!("d{}: twin {number} is disabled: an upcall does not return", loaded.owner);
        end_all_waiting(loaded);
    }
}

/// Ends a session, and says in `call` how its invocation ended. Errors: those of one that has not begun, of which
/// nothing is said.
fn finish(
    loaded: &Loaded,
    (instance, slot): (usize, MutexGuard<'_, Slot>),
    mut session: Session<'_>,
    returned: Option<u64>,
    call: &mut TwinCall,
) -> Result<(), Errno> {
    if let Some(Early::NotBegun(why)) = session.early {
        return Err(why);
    }
    call.steps = u32::try_from(session.steps()).unwrap_or(u32::MAX);
    (call.reason, call.result) = (reason::RETURNED, returned.unwrap_or(0));
    (call.detail, call.original, call.offset) = (0, 0, 0);
    let early = session.early.take();
    drop(session);
    drop(slot);
    match early {
        None | Some(Early::NotBegun(_)) => {}
        Some(Early::Waits(upcall)) => {
            loaded.counts.upcalls.fetch_add(1, Ordering::Relaxed);
            upcall.tell(instance, call);
        }
        Some(Early::Aborted(abort)) => {
            let ending = Ending::from(&abort);
            loaded.disable(ending);
            guest_warn!("d{}: twin {} is disabled: {abort}", loaded.owner, call.twin);
            (call.reason, call.detail) = (ending.reason, ending.detail);
            (call.offset, call.original) = (ending.offset, ending.original);
        }
    }
    if loaded.disabled.load(Ordering::SeqCst) {
        end_all_waiting(loaded);
    }
    Ok(())
}
