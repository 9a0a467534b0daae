//! Numbers that no domain can guess.
//!
//! They are RDRAND's where the processor has that. What else goes in is the time-stamp counter, at each call, whose low
//! bits differ with all that happened before; a processor without RDRAND has nothing better, so what a guess would gain
//! must be little.

use crate::cpu::{self, rdtsc};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};
use x86::cpuid::feature;

/// All that has gone in so far.
static POOL: AtomicU64 = AtomicU64::new(0);

/// How often RDRAND is asked: it may have nothing for a moment.
const TRIES: u32 = 10;

/// A number that was not given before.
pub fn number() -> u64 {
    let news = rdtsc() ^ rdrand().unwrap_or(0);
    let before = POOL.load(Ordering::Relaxed);
    let pool = POOL.fetch_add(mixed(before ^ news) | 1, Ordering::Relaxed);
    mixed(pool ^ news.rotate_left(32))
}

fn rdrand() -> Option<u64> {
    if cpu::cpuid(1, 0).ecx & feature::RDRAND.mask() == 0 {
        return None;
    }
    (0..TRIES).find_map(|_| {
        let (number, has_one): (u64, u8);
        // SAFETY: the processor has RDRAND, which changes nothing but its operand and the flags.
        unsafe { asm!("rdrand {}", "setc {}", out(reg) number, out(reg_byte) has_one, options(nomem, nostack)) };
        (has_one != 0).then_some(number)
    })
}

/// Each bit of the result depends on each bit of `x`: a multiplication carries them up, a shift down.
fn mixed(mut x: u64) -> u64 {
    for _ in 0..2 {
        x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    x ^ x >> 29
}
