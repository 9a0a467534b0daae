//! Spinlocks of the driver domain (`qspinlock`: byte 0 locked, byte 1 pending, two bytes of queue tail).
//!
//! The twin takes one only if nobody holds or awaits it and never joins the queue, so that a descheduled vCPU cannot
//! make it spin; the host says how long to go on trying, and whether the invocation then ends or waits.
//!
//! A vCPU of the domain's that has waited for long puts itself down in a table of its kernel's ([`Sleepers`]), writes
//! the "slow" mark into the lock and sleeps. Whoever releases the lock strikes it out there and wakes it. The twin does
//! that as the kernel would, and at once: the domain may have no other vCPU that could.

use super::{bad, Done, Foreign, Host, Stop, Support};
use crate::abort::Reason;
use crate::memory::Fault;

const LOCKED: u32 = 1;
const LOCKED_BYTE: u32 = 0xff;
/// Locked, and a vCPU sleeps until it is not.
const SLOW: u32 = 3;

/// The table of vCPUs that sleep: `pv_lock_hash`, an array whose elements begin with a lock's address, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sleepers {
    /// Where it is; 0: not known.
    pub table: u64,
    /// Elements.
    pub count: u32,
    /// Bytes of one.
    pub stride: u32,
}

impl Sleepers {
    /// Most elements, which one release looks at: Linux has four for each processor that it may have.
    pub const MOST: u32 = 1 << 10;

    /// So many are looked at between two times that others on the machine can have something of this CPU.
    const PIECE: u32 = 64;

    /// Strikes out who sleeps until `lock`, which is taken, is released. `false`: nobody was found. A lock is released
    /// also where no time is left, so that is not asked.
    fn strike_out<H: Host>(&self, host: &mut H, lock: u64) -> Result<bool, Fault> {
        if self.table == 0 {
            return Ok(false);
        }
        for n in 0..self.count.min(Self::MOST) {
            if n != 0 && n.is_multiple_of(Self::PIECE) {
                let _ = host.goes_on();
            }
            let at = self.table.wrapping_add(u64::from(n) * u64::from(self.stride));
            if host.u64(at)? == lock {
                return Ok(host.exchange_u64(at, lock, 0)? == lock);
            }
        }
        Ok(false)
    }
}

/// `_raw_spin_lock*(lock)`; as the irqsave form it returns saved flags, which the release ignores.
#[inline(always)]
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
    let is_taken = take(host, args[0])?;
    if is_taken {
        host.has_taken(args[0]);
    }
    Ok(u64::from(is_taken))
}

/// `_raw_spin_unlock*(lock)`.
#[inline(always)]
pub fn unlock<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    release(s, host, args[0])?;
    host.has_released(args[0]);
    Ok(0)
}

/// Tries once to take a lock.
///
/// # Errors
/// If it is not there.
pub fn take<H: Host>(host: &mut H, lock: u64) -> Result<bool, Fault> {
    Ok(host.exchange_u32(lock, 0, LOCKED)? == 0)
}

/// Releases a lock that is taken.
///
/// # Errors
/// If it is not there or not taken; an upcall, if only the domain can release it and the invocation cannot wait.
pub fn release<H: Host>(s: &Support, host: &mut H, lock: u64) -> Result<(), Stop> {
    let release = |word: u32| (word & LOCKED_BYTE == LOCKED).then_some(word & !LOCKED_BYTE);
    match host.update_u32(lock, release)? {
        (_, true) => Ok(()),
        (word, false) if word & LOCKED_BYTE == 0 => Err(bad("unlock of a lock that is not taken", lock)),
        (word, false) if word & LOCKED_BYTE == SLOW && s.kernel.sleepers.strike_out(host, lock)? => {
            host.update_u32(lock, |word| Some(word & !LOCKED_BYTE))?;
            host.wake_sleepers();
            Ok(())
        }
        _ if host.may_wait() => {
            host.free_in_domain(Foreign::Lock(lock));
            Ok(())
        }
        _ => Err(Stop::Upcall),
    }
}
