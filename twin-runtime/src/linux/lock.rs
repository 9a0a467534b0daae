//! Spinlocks of the driver domain (`qspinlock`: byte 0 locked, byte 1 pending, two bytes of queue tail).
//!
//! The twin takes one only if nobody holds or awaits it and never joins the queue, so that a descheduled vCPU cannot make it
//! spin; the host says how long to go on trying, and whether the invocation then ends or waits. A release that finds the paravirtual "slow"
//! mark is the domain's to do, at once or later.

use super::{bad, Done, Foreign, Host, Stop, Support};
use crate::abort::Reason;

const LOCKED: u32 = 1;
const LOCKED_BYTE: u32 = 0xff;

/// `_raw_spin_lock*(lock)`; as the irqsave form it returns saved flags, which the release ignores.
pub fn lock<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let mut tries = 0;
    while try_lock(s, host, args)? == 0 {
        tries += 1;
        if !host.lock_is_busy(args[0], tries) {
            return Err(if host.may_wait() { Stop::Upcall } else { Stop::Abort(Reason::Lock(args[0])) });
        }
    }
    Ok(0)
}

/// `_raw_spin_trylock(lock)`.
pub fn try_lock<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    Ok(u64::from(host.exchange_u32(args[0], 0, LOCKED)? == 0))
}

/// `_raw_spin_unlock*(lock)`.
pub fn unlock<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let release = |word: u32| (word & LOCKED_BYTE == LOCKED).then_some(word & !LOCKED_BYTE);
    match host.update_u32(args[0], release)? {
        (_, true) => Ok(0),
        (word, false) if word & LOCKED_BYTE == 0 => Err(bad("unlock of a lock that is not taken", args[0])),
        _ if host.may_wait() => {
            host.free_in_domain(Foreign::Lock(args[0]));
            Ok(0)
        }
        _ => Err(Stop::Upcall),
    }
}
