//! Flushing translations, here and on other CPUs, and the clock that says which CPUs need it.
//!
//! Guest mappings are never global, so loading CR3 drops all of a guest's translations and paging-structure cache
//! entries. The hypervisor's own mappings are global; who changes one of those invalidates that page.
//!
//! [`clock`] orders flushes and uses: a frame that loses its last use remembers the clock; a CPU whose last complete
//! flush has a later clock value cannot hold a translation from that use. A flush reads (or advances) the clock
//! *before* it begins. The clock only advances if somebody remembered its present value, so it is slow.
//!
//! A CPU without a vCPU is on the hypervisor's own root, where it has no translation of a guest and cannot get one: it is
//! not asked to flush, and an idle CPU sleeps on.

use crate::arch::ipi;
use crate::cpu;
use crate::cpu::percpu::{self, this_cpu, MAX_CPUS};
use crate::mem;
use crate::mem::guest_tables::Tables;
use core::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use x86::VirtAddr;

static CLOCK: AtomicU32 = AtomicU32::new(1);
/// Has the present value of the clock been remembered by anybody?
static CLOCK_USED: AtomicBool = AtomicBool::new(false);
/// Clock value of each CPU's last complete flush.
static LAST_FLUSH: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// CPUs that are on the hypervisor's own root.
static OFF_GUESTS: AtomicU64 = AtomicU64::new(0);

/// Argument of [`flush_here`]: everything.
const EVERYTHING: u64 = 1;

/// What to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// All guest translations.
    All,
    /// One page.
    Page(u64),
}

/// The clock, to be remembered as the end of a use.
#[inline]
pub fn clock() -> u32 {
    // What ended the use may be a plain store, which others do not see yet: a CPU that flushes now, later than the clock
    // that we would read, could still find the entry as it was.
    fence(Ordering::SeqCst);
    let now = CLOCK.load(Ordering::SeqCst);
    // Only after reading it: then either the clock has moved on already, or the next flush moves it.
    if !CLOCK_USED.load(Ordering::SeqCst) {
        CLOCK_USED.store(true, Ordering::SeqCst);
    }
    now
}

/// The clock value for a flush that begins now.
#[inline]
fn flush_time() -> u32 {
    if CLOCK_USED.load(Ordering::SeqCst) {
        // A use that is remembered in between has the old value, or sets the mark again.
        CLOCK_USED.store(false, Ordering::SeqCst);
        CLOCK.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    } else {
        CLOCK.load(Ordering::SeqCst)
    }
}

/// Loads `root` into CR3 and remembers that this was a complete flush.
///
/// # Safety
/// 1. `root` is the machine address of an L4 table that has the hypervisor's slots, and stays one while it is loaded.
#[inline]
pub unsafe fn load_root(root: u64) {
    let time = flush_time();
    // SAFETY: (1).
    unsafe { cpu::write_cr3(root) };
    LAST_FLUSH[this_cpu().cpu as usize & (MAX_CPUS - 1)].store(time, Ordering::Release);
}

/// Loads the hypervisor's own root: from now on this CPU knows nothing of guests.
pub fn leave_guests() {
    // SAFETY: the idle root has the hypervisor's slots and is never freed.
    unsafe { load_root(mem::idle_root().addr().raw()) };
    OFF_GUESTS.fetch_or(1 << this_cpu().cpu, Ordering::SeqCst);
}

/// To be called before this CPU loads a guest's root. Whoever removed a translation before it saw the bit cleared has
/// this CPU flush; whoever did so earlier removed it before this CPU's first walk.
pub fn enter_guests() {
    let cpu = this_cpu().cpu;
    LAST_FLUSH[cpu as usize & (MAX_CPUS - 1)].store(flush_time(), Ordering::SeqCst);
    OFF_GUESTS.fetch_and(!(1 << cpu), Ordering::SeqCst);
}

/// The CPUs of `mask` that may have translations of guests which were removed before this call.
fn on_guests(mask: u64) -> u64 {
    // The removal must be seen by others before we look who they are: see `enter_guests`.
    fence(Ordering::SeqCst);
    mask & !OFF_GUESTS.load(Ordering::SeqCst)
}

/// Flushes this CPU.
#[inline]
pub fn flush_local(what: What) {
    match what {
        What::All => {
            if let Some(cache) = this_cpu().cache() {
                cache.wipe(&Tables);
            }
            // SAFETY: the root that is loaded.
            unsafe { load_root(cpu::read_cr3()) }
        }
        What::Page(va) => {
            if let (Some(cache), Some(page)) = (this_cpu().cache(), VirtAddr::new(va)) {
                cache.forget(&Tables, page);
            }
            cpu::invlpg(va);
        }
    }
}

/// Flushes the CPUs of `mask`; returns when all have done it.
#[inline]
pub fn flush(mask: u64, what: What) {
    let argument = match what {
        What::All => EVERYTHING,
        What::Page(va) => va & !0xfff,
    };
    ipi::call(on_guests(mask), flush_here, argument);
}

/// Flushes every CPU, those too that know nothing of guests: for mappings of the hypervisor's that are not global.
pub fn flush_every_cpu() {
    ipi::call(percpu::online_mask(), flush_here, EVERYTHING);
}

/// The CPUs that are on a mirror of some domain's kernel half, where its pages appear at other addresses.
static ON_MIRRORS: AtomicU64 = AtomicU64::new(0);

/// As [`load_root`], for a mirror: until [`leave_mirror`], whoever has this CPU flush a page has it flush all.
///
/// # Safety
/// 1. As for [`load_root`].
pub unsafe fn enter_mirror(root: u64) {
    ON_MIRRORS.fetch_or(1 << this_cpu().cpu, Ordering::SeqCst);
    // SAFETY: (1).
    unsafe { load_root(root) };
}

/// As [`load_root`], with the root of the vCPU that runs here.
///
/// # Safety
/// 1. As for [`load_root`].
pub unsafe fn leave_mirror(root: u64) {
    // SAFETY: (1).
    unsafe { load_root(root) };
    ON_MIRRORS.fetch_and(!(1 << this_cpu().cpu), Ordering::SeqCst);
}

fn flush_here(argument: u64) {
    let is_on_mirror = ON_MIRRORS.load(Ordering::SeqCst) >> this_cpu().cpu & 1 != 0;
    flush_local(if argument == EVERYTHING || is_on_mirror { What::All } else { What::Page(argument) });
}

/// Makes sure that every CPU of those that `knowers` names has flushed completely since the clock read `stamp`, and that the
/// clock does not read it any more.
pub fn flush_since(stamp: u32, knowers: impl FnOnce() -> u64) {
    let online = percpu::online_mask();
    let mut mask = 0;
    for (cpu, last) in LAST_FLUSH.iter().enumerate() {
        if online >> cpu == 0 {
            break;
        }
        // Wraps: a CPU is never half a turn behind, for it flushes at least whenever it changes address spaces.
        if stamp.wrapping_sub(last.load(Ordering::Acquire)) < 1 << 31 {
            mask |= 1 << cpu;
        }
    }
    mask &= online;
    if mask == 0 {
        return;
    }
    let mask = mask & knowers();
    flush(mask, What::All);
    // Whoever ends a use from now on remembers another time, though no CPU may have had to flush.
    let _ = CLOCK.compare_exchange(stamp, stamp.wrapping_add(1), Ordering::SeqCst, Ordering::SeqCst);
}
