//! A PV kernel, parsed and checked: what to load where, and where it wants to start.

use crate::elf::{Elf, Segment};
use crate::error::Error;
use crate::notes::Notes;
use alloc::vec::Vec;
use core::ops::Range;
use x86::addr::is_canonical;
use xen_abi::features;
use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};

/// No kernel takes more than this, from its base to its end; it bounds the page tables of the initial mapping.
const MAX_SPAN: u64 = 1 << 30;
const PAGE: u64 = x86::PAGE_SIZE as u64;

/// A kernel image that can run as a 64-bit PV domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its notes.
    pub notes: Notes,
    /// Its segments, by rising physical address.
    pub segments: Vec<Segment>,
    /// Virtual address of the domain's first frame.
    pub virt_base: u64,
    /// The kernel's virtual addresses, page-aligned, all segments together.
    pub virt: Range<u64>,
    /// First instruction.
    pub entry: u64,
    /// What turns a segment's physical address into its virtual one, wrapping.
    virt_offset: u64,
}

impl Kernel {
    /// Reads an ELF file.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let elf = Elf::parse(file)?;
        let notes = Notes::read(&elf, file)?;
        let virt_base = notes.virt_base.unwrap_or(0);
        // Kernels from before that note give virtual addresses as physical ones.
        let virt_offset = virt_base.wrapping_sub(notes.paddr_offset.unwrap_or(virt_base));
        let (first, last) = (elf.segments.first(), elf.segments.last());
        let (first, last) = first.zip(last).ok_or(Error::BadElf("nothing to load"))?;
        let start = first.paddr.wrapping_add(virt_offset);
        let end = last.paddr_end().wrapping_add(virt_offset);
        let kernel = Self {
            entry: notes.entry.unwrap_or(elf.entry),
            virt: start / PAGE * PAGE..end.checked_next_multiple_of(PAGE).ok_or(Error::BadElf(WRAPS))?,
            segments: elf.segments,
            notes,
            virt_base,
            virt_offset,
        };
        kernel.check_addresses()?;
        Ok(kernel)
    }

    /// Refuses a kernel that cannot be domain 0.
    pub fn check_dom0(&self) -> Result<(), Error> {
        let can = |feature: u8| self.notes.supported & 1 << feature != 0;
        if self.notes.has_feature_mask && !can(features::DOM0) {
            return Err(Error::NotForDom0);
        }
        Ok(())
    }

    /// Offset of `segment` in the domain's memory, in bytes from its first frame.
    pub fn memory_offset(&self, segment: &Segment) -> u64 {
        // `check_addresses` has seen that no segment starts below the base.
        segment.paddr.wrapping_add(self.virt_offset).wrapping_sub(self.virt_base)
    }

    fn check_addresses(&self) -> Result<(), Error> {
        let Range { start, end } = self.virt;
        let base = self.virt_base;
        if !base.is_multiple_of(PAGE) || !is_canonical(base) {
            return Err(Error::BadNote { note: "VIRT_BASE", value: base });
        }
        if start < base || end <= start || end - base > MAX_SPAN {
            return Err(Error::BadElf("segments outside the gigabyte that starts at VIRT_BASE"));
        }
        if !is_guest_range(base, end) {
            return Err(Error::BadElf("segments in the hypervisor's address range"));
        }
        if !self.virt.contains(&self.entry) {
            return Err(Error::BadNote { note: "ENTRY", value: self.entry });
        }
        if let Some(page) = self.notes.hypercall_page {
            if page % PAGE != 0 || !self.virt.contains(&page) {
                return Err(Error::BadNote { note: "HYPERCALL_PAGE", value: page });
            }
        }
        Ok(())
    }
}

const WRAPS: &str = "addresses wrap around";

/// Whether a guest may map `start..end`: canonical, in one half, and none of the hypervisor's.
pub(crate) fn is_guest_range(start: u64, end: u64) -> bool {
    let Some(last) = end.checked_sub(1) else {
        return false;
    };
    let is_in_one_half = is_canonical(start) && is_canonical(last) && (start >> 63) == (last >> 63);
    is_in_one_half && start <= last && (last < HYPERVISOR_VIRT_START || start >= HYPERVISOR_VIRT_END)
}
