//! Flushing translations, here and on other CPUs, and the clock that says which CPUs need it.
//!
//! Guest mappings are never global, so loading CR3 drops all of a guest's translations and paging-structure cache
//! entries. The hypervisor's own mappings are global; who changes one of those invalidates that page.
//!
//! [`TlbClock`] orders flushes and uses, so who changes the use of a frame knows whom to ask.
//!
//! A CPU without a vCPU is on the hypervisor's own root, where it has no translation of a guest and cannot get one: it
//! is not asked to flush, and an idle CPU sleeps on.

use crate::arch::ipi;
use crate::cpu;
use crate::cpu::percpu::{self, this_cpu, MAX_CPUS};
use crate::mem;
use crate::mem::guest_tables::Tables;
use core::sync::atomic::{fence, AtomicU64, Ordering};
use hv_core::tlb_clock::TlbClock;
use x86::VirtAddr;

static CLOCK: TlbClock = TlbClock::at(1);
/// Clock value of each CPU's last complete flush.
static LAST_FLUSH: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

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
    CLOCK.stamp()
}

/// Loads `root` into CR3 and remembers that this was a complete flush: so what a logged vCPU has beside the TLB goes,
/// too.
///
/// # Safety
/// 1. `root` is the machine address of an L4 table that has the hypervisor's slots, and stays one while it is loaded.
#[inline(always)]
pub unsafe fn load_root(root: u64) {
    let time = CLOCK.flush_begins();
    // SAFETY: (1).
    let load_cr3 = || unsafe { cpu::write_cr3(root) };
    match this_cpu().cache() {
        Some(cache) => cache.wipe(&Tables, load_cr3),
        None => load_cr3(),
    }
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
    LAST_FLUSH[cpu as usize & (MAX_CPUS - 1)].store(CLOCK.flush_begins(), Ordering::SeqCst);
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
        // SAFETY: the root that is loaded.
        What::All => unsafe { load_root(cpu::read_cr3()) },
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

/// Makes sure that every CPU of those that `knowers` names has flushed completely since the clock read `stamp`, and
/// that the clock did not read it any more when the first of them did.
pub fn flush_since(stamp: u32, knowers: impl FnOnce() -> u64) {
    let (online, end) = (percpu::online_mask(), CLOCK.pass(stamp));
    let mut mask = 0;
    for (cpu, last) in LAST_FLUSH.iter().enumerate() {
        if online >> cpu == 0 {
            break;
        }
        if end >= last.load(Ordering::Acquire) {
            mask |= 1 << cpu;
        }
    }
    mask &= online;
    if mask == 0 {
        return;
    }
    flush(mask & knowers(), What::All);
}
