//! Pins, roots, page operations and the flushes of `mmuext_op`.

use super::{Deferred, Mmu, MmuEnv, MmuError};
use crate::frame::FrameType;
use x86::{Level, Mfn, VirtAddr};
use xen_abi::layout::DomId;
use xen_abi::mmu::{
    MAX_LDT_ENTRIES, MMUEXT_INVLPG_ALL, MMUEXT_INVLPG_LOCAL, MMUEXT_INVLPG_MULTI, MMUEXT_TLB_FLUSH_ALL,
    MMUEXT_TLB_FLUSH_LOCAL, MMUEXT_TLB_FLUSH_MULTI, UVMF_ALL, UVMF_FLUSHTYPE_MASK, UVMF_INVLPG, UVMF_LOCAL, UVMF_NONE,
    UVMF_TLB_FLUSH,
};

/// A vCPU's reference to its L4 table. Not `Clone`: it goes back through [`Mmu::release_root`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a root holds references"]
pub struct RootRef(Mfn);

impl RootRef {
    /// The L4 table, for CR3.
    #[inline]
    pub const fn mfn(&self) -> Mfn {
        self.0
    }
    /// Gives up the value and keeps the count.
    #[inline]
    pub const fn keep(self) -> Mfn {
        self.0
    }
    /// Takes back what was kept. The count must really be held.
    #[inline]
    pub const fn from_kept(mfn: Mfn) -> Self {
        Self(mfn)
    }
}

/// What to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushWhat {
    /// The whole TLB.
    All,
    /// One page.
    Page(VirtAddr),
}

/// Where to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushWhere {
    /// This CPU.
    Local,
    /// Every CPU that may have translations of the domain.
    All,
    /// The CPUs of the vCPUs in a bitmap at this guest address.
    VcpuMask(u64),
}

/// A TLB flush that the guest asks for; the shell does it after the MMU lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What.
    pub what: FlushWhat,
    /// Where.
    pub whom: FlushWhere,
}

impl Flush {
    /// The flush that `update_va_mapping` was asked for.
    #[inline]
    pub fn from_uvmf(flags: u64, va: VirtAddr) -> Result<Option<Self>, MmuError> {
        let what = match flags & UVMF_FLUSHTYPE_MASK {
            UVMF_NONE => return Ok(None),
            UVMF_TLB_FLUSH => FlushWhat::All,
            UVMF_INVLPG => FlushWhat::Page(va),
            _ => return Err(MmuError::BadArgument),
        };
        let whom = match flags & !UVMF_FLUSHTYPE_MASK {
            UVMF_LOCAL => FlushWhere::Local,
            UVMF_ALL => FlushWhere::All,
            mask => FlushWhere::VcpuMask(mask),
        };
        Ok(Some(Self { what, whom }))
    }

    /// The flush that a `mmuext_op` command means; `None` if it is no flush, or one of an address that no guest can
    /// map.
    pub fn from_mmuext(cmd: u32, arg1: u64, arg2: u64) -> Option<Self> {
        let page = || VirtAddr::new(arg1).map(FlushWhat::Page);
        let (what, whom) = match cmd {
            MMUEXT_TLB_FLUSH_LOCAL => (FlushWhat::All, FlushWhere::Local),
            MMUEXT_TLB_FLUSH_MULTI => (FlushWhat::All, FlushWhere::VcpuMask(arg2)),
            MMUEXT_TLB_FLUSH_ALL => (FlushWhat::All, FlushWhere::All),
            MMUEXT_INVLPG_LOCAL => (page()?, FlushWhere::Local),
            MMUEXT_INVLPG_MULTI => (page()?, FlushWhere::VcpuMask(arg2)),
            MMUEXT_INVLPG_ALL => (page()?, FlushWhere::All),
            _ => return None,
        };
        Some(Self { what, whom })
    }
}

/// Checks the arguments of `MMUEXT_SET_LDT`: says base and number of entries (0: no LDT).
pub fn check_ldt(base: u64, entries: u64) -> Result<(u64, u32), MmuError> {
    let usable = VirtAddr::new(base).is_some_and(|va| {
        va.page_offset() == 0
            && !(xen_abi::layout::HYPERVISOR_VIRT_START..xen_abi::layout::HYPERVISOR_VIRT_END).contains(&base)
    });
    match u32::try_from(entries) {
        Ok(0) => Ok((0, 0)),
        Ok(n) if usable && entries <= MAX_LDT_ENTRIES => Ok((base, n)),
        _ => Err(MmuError::BadArgument),
    }
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Pins `mfn` as an L`level` page table of `dom`: it stays one while nothing refers to it.
    pub fn pin(&self, dom: DomId, mfn: Mfn, level: Level, lock: &mut Deferred) -> Result<(), MmuError> {
        self.drain(lock)?;
        self.take_table(mfn, level, dom, lock)?;
        let frame = self.ram(mfn)?;
        loop {
            let usage = frame.usage();
            if usage.is_pinned() {
                self.drop_table(mfn, lock);
                return Err(MmuError::Pinning);
            }
            if frame.change_usage(usage, usage.pinned()) {
                self.env.use_changed(mfn);
                return Ok(());
            }
        }
    }

    /// Unpins a page table of `dom`; if nothing else refers to it, it is one no more when this returns, or, if that was
    /// preempted, when the next operation on page tables of this domain gets to work.
    pub fn unpin(&self, dom: DomId, mfn: Mfn, lock: &mut Deferred) -> Result<(), MmuError> {
        self.drain(lock)?;
        let frame = self.ram(mfn)?;
        if frame.owner() != dom {
            return Err(MmuError::NotOwned);
        }
        if !self.clear_pin(mfn) {
            return Err(MmuError::Pinning);
        }
        self.drop_table(mfn, lock);
        Ok(())
    }

    /// Clears the mark; says whether it was set, which means that the reference is now the caller's.
    pub(super) fn clear_pin(&self, mfn: Mfn) -> bool {
        let Some(frame) = self.frame(mfn) else { return false };
        loop {
            let usage = frame.usage();
            if !usage.is_pinned() {
                return false;
            }
            if frame.change_usage(usage, usage.unpinned()) {
                self.env.use_changed(mfn);
                return true;
            }
        }
    }

    /// Takes a reference to the L4 table `mfn` of `dom` for loading it into CR3. The shell loads the new root before it
    /// releases the old one.
    #[inline]
    pub fn acquire_root(&self, dom: DomId, mfn: Mfn, lock: &mut Deferred) -> Result<RootRef, MmuError> {
        self.drain(lock)?;
        self.take_table(mfn, Level::L4, dom, lock)?;
        Ok(RootRef(mfn))
    }

    /// Gives back a root that is no longer loaded anywhere on behalf of its vCPU. The lock was drained by
    /// [`Self::acquire_root`] or [`Self::drain`] in the same critical section.
    #[inline]
    pub fn release_root(&self, root: RootRef, lock: &mut Deferred) -> Result<(), MmuError> {
        self.drain(lock)?;
        self.drop_table(root.0, lock);
        Ok(())
    }

    /// `MMUEXT_CLEAR_PAGE`.
    pub fn clear_page(&self, dom: DomId, mfn: Mfn) -> Result<(), MmuError> {
        let page = self.get_writable(mfn, dom)?;
        self.env.clear_page(page.mfn());
        Ok(())
    }

    /// `MMUEXT_COPY_PAGE`.
    pub fn copy_page(&self, dom: DomId, to: Mfn, from: Mfn) -> Result<(), MmuError> {
        let from = self.get_page(from, dom)?;
        let to = self.get_writable(to, dom)?;
        self.env.copy_page(to.mfn(), from.mfn());
        Ok(())
    }

    /// Is `mfn` a validated and pinned table? For the tools' page listings.
    pub fn is_pinned(&self, mfn: Mfn) -> bool {
        self.frame(mfn).is_some_and(|f| f.usage().is_pinned() && f.usage().ty() != FrameType::None)
    }
}
