//! Polling: the ownership protocol on `napi_struct.state`, which the domain's softirq follows as well.

use super::{Done, Host, Stop, Support};
use crate::abort::Reason;

/// The owner may poll.
pub const SCHED: u64 = 1 << 0;
const MISSED: u64 = 1 << 1;
const DISABLE: u64 = 1 << 2;
const NPSVC: u64 = 1 << 3;
const IN_BUSY_POLL: u64 = 1 << 6;
const PREFER_BUSY_POLL: u64 = 1 << 7;
const SCHED_THREADED: u64 = 1 << 9;

/// `napi_schedule_prep(napi)`: takes the poll, or notes that it was missed.
pub fn schedule_prep<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let at = args[0].wrapping_add(s.offsets.napi_state);
    let take = |state: u64| match state {
        _ if state & DISABLE != 0 => None,
        _ if state & SCHED != 0 => Some(state | MISSED),
        _ => Some(state | SCHED),
    };
    let (old, taken) = host.update_u64(at, take)?;
    let is_own = taken && old & SCHED == 0;
    if is_own {
        host.has_taken_poll(args[0]);
    }
    Ok(u64::from(is_own))
}

/// `__napi_schedule(napi)`: the caller owns the poll; it is to run.
pub fn schedule<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    host.schedules_poll(args[0]);
    if !host.runs_poll(args[0]) {
        return Err(Stop::Upcall);
    }
    host.schedule_poll(args[0]);
    Ok(0)
}

/// `napi_complete_done(napi, work)`: gives the poll back, unless it was missed meanwhile and has to run again.
pub fn complete_done<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.runs_poll(args[0]) {
        return Err(Stop::Upcall);
    }
    let at = args[0].wrapping_add(s.offsets.napi_state);
    let give = |state: u64| {
        let kept = state & !(MISSED | SCHED | SCHED_THREADED | PREFER_BUSY_POLL);
        let again = if state & MISSED != 0 { SCHED } else { 0 };
        (state & (NPSVC | IN_BUSY_POLL) == 0).then_some(kept | again)
    };
    let (old, given) = host.update_u64(at, give)?;
    if given {
        host.has_completed_poll(args[0]);
    }
    if given && old & MISSED != 0 {
        host.schedule_poll(args[0]);
    }
    Ok(u64::from(given && old & MISSED == 0))
}

impl Support {
    /// A poll that the host runs has returned. Is it to run again? It is if the driver has not given it up: for it has
    /// used up its weight, or was refused ([`complete_done`]), as while another polls too (`NPSVC`); then it is still
    /// the host's, and nobody else would run it. Whoever stops a poll waits for its owner to let go of it: that ends
    /// such a one.
    ///
    /// # Errors
    /// If it is not there.
    pub fn after_poll<H: Host>(&self, host: &mut H, napi: u64, was_given_up: bool) -> Result<bool, Reason> {
        if was_given_up {
            return Ok(false);
        }
        let end = |state: u64| (state & DISABLE != 0).then_some(state & !(SCHED | MISSED));
        let (old, is_ended) = host.update_u64(napi.wrapping_add(self.offsets.napi_state), end)?;
        Ok(!is_ended && old & SCHED != 0)
    }

    /// A poll that the host owns is nobody's any more.
    ///
    /// # Errors
    /// If it is not there.
    pub fn give_poll_back<H: Host>(&self, host: &mut H, napi: u64) -> Result<(), Reason> {
        let give = |state: u64| (state & SCHED != 0).then_some(state & !(SCHED | MISSED));
        host.update_u64(napi.wrapping_add(self.offsets.napi_state), give)?;
        Ok(())
    }
}
