//! A card's invocations that wait for functions of the domain: the domain fetches what they wait for, and goes on with
//! them.

use super::lane::wanted;
use super::place::{want, PLACES};
use super::turn::{Stop, Turn};
use crate::cpu::Interruptible;
use crate::domain::Domain;
use crate::twin::instance::Waiting;
use crate::twin::table::{self, Loaded};
use twin_abi::op::{self, reason, TwinCall};
use xen_abi::errno::Errno;

/// Says in `call` what the card of `d`'s twin `call.twin` waits for; with [`op::NEXT_ATOMIC`], if it may be served with
/// interrupts off. Each is told once. Errors: ENOENT; EIO if it is disabled.
pub fn next(d: &Domain, call: &mut TwinCall) -> Result<(), Errno> {
    let twin = table::place(call.twin)?.read();
    let loaded = table::ready(&twin, d)?.usable()?;
    let is_atomic = core::mem::take(&mut call.flags) & op::NEXT_ATOMIC != 0;
    let found = loaded.instances.iter().enumerate().find_map(|(number, instance)| {
        let mut slot = instance.lock_waiting()?;
        let waiting = slot.waiting.as_mut().filter(|waiting| waiting.is_atomic || !is_atomic)?;
        let to_call = waiting.fetch()?;
        Some((number, to_call))
    });
    let (number, to_call) = found.ok_or(Errno::ENOENT)?;
    to_call.tell(number, call);
    Ok(())
}

/// Goes on with what waits in `call.instance`, if that is the card's. `false`: it is not. Errors: EBUSY if it waits for
/// something else by now; ENOENT for a domain that is gone; ERESTART while the lane is run.
pub fn resume(loaded: &Loaded, call: &mut TwinCall, interruptible: Interruptible<'_>) -> Result<bool, Errno> {
    let (number, instance) = (call.twin as usize, call.instance as usize);
    let place = &PLACES[number];
    let lane = loaded.instances[instance].lock_waiting().and_then(|slot| slot.waiting.as_ref()?.lane);
    let Some(lane) = lane else { return Ok(false) };
    // Nobody waits for who runs it, as he runs a twin.
    let mut drive = place.lanes[lane].drive.try_lock().ok_or(Errno::ERESTART)?;
    let Some(drive) = drive.as_deref_mut() else { return Ok(false) };
    let progress = &mut drive.progress;
    let Some(waits) = progress.waits.take_if(|waits| waits.instance == instance) else { return Ok(false) };
    let slot = loaded.instances[instance].slot.lock();
    let is_fetched = slot.waiting.as_ref().is_some_and(|waiting| waiting.to_fetch.is_none());
    if waits.lock().is_some() || !is_fetched {
        progress.waits = Some(waits);
        return Err(Errno::EBUSY);
    }
    let turn = Turn::begin((number, place, &place.lanes[lane]), loaded, drive, (instance, slot), interruptible);
    let ended = turn.ok_or(Errno::ENOENT)?.resume(call.result);
    (call.result, call.detail, call.original, call.offset, call.steps) = (0, 0, 0, 0, 0);
    call.reason = reason::RETURNED;
    if let Err(Stop::Waits) = ended {
        let next = loaded.instances[instance].slot.lock().waiting.as_mut().and_then(Waiting::fetch);
        if let Some(to_call) = next {
            to_call.tell(instance, call);
        }
    }
    // The rest, and an abort, on the way out.
    want(number, lane, wanted::LOOK);
    Ok(true)
}
