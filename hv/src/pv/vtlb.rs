//! vCPUs of a logged domain run on a cache of their page tables: see `hv_core::vtlb`.

use crate::arch::tlb;
use crate::cpu::{self, percpu::this_cpu};
use crate::domain::memory::log_dirty::Writes;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::vcpu::OwnedVcpu;
use crate::mem::guest_tables::Tables;
use crate::mem::{self, frames};
use crate::pv::mode;
use crate::sched::Held;
use alloc::boxed::Box;
use alloc::vec::Vec;
use hv_core::allowance::PAGE;
use hv_core::mmu::MmuEnv;
use hv_core::vtlb::{Access, Fill, Space, Stale, Vtlb};
use x86::error_code::PageFaultError;
use x86::{Mfn, VirtAddr};
use xen_abi::errno::Errno;

/// Frames of a vCPU's cache: 256 tables reach 400 MiB of scattered memory, or more that lies together.
const POOL: usize = 256;

fn give_back(frames: impl IntoIterator<Item = Mfn>) {
    frames.into_iter().for_each(frames::free_table);
}

/// Makes a cache for `v`, unless it has one. Errors: ENOMEM; ERESTART: to be called again.
pub fn enable(v: &Held<'_>) -> Result<(), Errno> {
    if v.vtlb().is_some() {
        return Ok(());
    }
    if this_cpu().allowance.is_used_up() {
        return Err(Errno::ERESTART);
    }
    this_cpu().allowance.spend_each(POOL as u64 + 2, PAGE);
    let mut pool = Vec::new();
    pool.try_reserve_exact(POOL + 2).map_err(|_| Errno::ENOMEM)?;
    while pool.len() < POOL + 2 {
        // Not down to the last frame: what follows cannot fail.
        let Some(mfn) = frames::has_headroom().then(frames::alloc_table).flatten() else {
            give_back(pool);
            return Err(Errno::ENOMEM);
        };
        pool.push(mfn);
    }
    let roots = [pool[0], pool[1]];
    pool.drain(..2);
    roots.into_iter().for_each(|root| mmu().env.fill_hypervisor_slots(root));
    v.set_vtlb(Some(Box::new(Vtlb::new(roots, pool))));
    Ok(())
}

/// Takes the cache of `v` away: it runs on its own tables again.
pub fn disable(v: &Held<'_>) {
    if let Some(cache) = v.set_vtlb(None) {
        // No CPU runs on them: one that stops running a vCPU leaves its root at once.
        give_back(cache.into_frames());
    }
}

#[inline(always)]
fn space(v: &OwnedVcpu) -> Space {
    if v.kernel_mode.get() {
        Space::Kernel
    } else {
        Space::User
    }
}

/// The root for the current mode of `v` that the CPU is to load.
#[inline(always)]
pub fn hardware_root(v: &OwnedVcpu) -> Mfn {
    hardware_root_or(v, v.current_root())
}

/// The same for a caller who knows that `own` is the guest's root for that mode.
#[inline(always)]
pub fn hardware_root_or(v: &OwnedVcpu, own: Mfn) -> Mfn {
    match v.vtlb() {
        None => own,
        Some(cache) => cache.root(space(v)),
    }
}

/// Loads the root of `v`, which is about to run here, for its mode, with an empty cache: what CPUs were asked to forget
/// while it did not run is not in it any more.
#[inline(always)]
pub fn load_empty(v: &OwnedVcpu) {
    let load_cr3 = || mode::load_root(hardware_root(v));
    match v.vtlb() {
        Some(cache) => cache.wipe(&Tables, load_cr3),
        None => load_cr3(),
    }
}

/// Another table is the user root of `v`, which runs here: what its cache has of the old one is forgotten.
#[inline]
pub fn forget_user_root(v: &OwnedVcpu) {
    if v.vtlb().is_some() {
        tlb::flush_local(tlb::What::All);
    }
}

/// A page fault of `v`, or of the hypervisor in its memory. `None`: the access is to be tried again. Else the error
/// code that the guest's own tables would have led to.
#[inline]
pub fn fault(v: &OwnedVcpu, address: u64, code: u32) -> Option<u32> {
    match v.vtlb() {
        None => Some(code),
        Some(cache) => fill(v, cache, address, code),
    }
}

#[cold]
fn fill(v: &OwnedVcpu, cache: &Vtlb, address: u64, code: u32) -> Option<u32> {
    let Some(va) = VirtAddr::new(address).filter(|_| code & PageFaultError::RSVD.bits() == 0) else {
        return Some(code);
    };
    if mem::copy::is_hypervisor(address) {
        return Some(code);
    }
    let access = Access { write: code & PageFaultError::W.bits() != 0, fetch: code & PageFaultError::I.bits() != 0 };
    let domain = v.domain();
    match cache.fill(
        mmu().env,
        &Writes { domain: domain.mm.id, log: &domain.mm.log },
        (space(v), v.current_root()),
        va,
        access,
    ) {
        Fill::Done(stale) => {
            domain.mm.log.get().count_fault();
            match stale {
                Stale::Nothing => {}
                Stale::Page => cpu::invlpg(address),
                // The cache is that of the vCPU which runs here, so it goes with the TLB.
                Stale::All => tlb::flush_local(tlb::What::All),
            }
            None
        }
        Fill::Refused { present: true } => Some(code | PageFaultError::P.bits()),
        Fill::Refused { present: false } => Some(code & !PageFaultError::P.bits()),
    }
}
