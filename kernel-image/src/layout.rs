//! Where everything in a new PV domain goes: a pure function from the kernel and the sizes to addresses.
//!
//! The initial mapping starts at the kernel's VIRT_BASE and holds, each on pages of its own: the kernel at its physical
//! address; the initrd, unless the kernel takes it by frame number; the P2M list, unless the kernel wants it elsewhere;
//! start_info; the page tables of the mapping itself; the boot stack; padding. It is backed by one contiguous chunk of
//! machine memory, so that frame k of the domain is frame k of the chunk. Behind the chunk come the initrd's own
//! frames, then the P2M list with its page tables, then whatever memory is left.
//!
//! Source: what Xen's builder for domain 0 prints and what public/xen.h says about the start of day.

use crate::error::Error;
use crate::kernel::{is_guest_range, Kernel};
use core::fmt::Arguments;
use core::ops::Range;
use x86::VirtAddr;
use xen_abi::start_info::MAX_CMD_LINE;

const PAGE: u64 = x86::PAGE_SIZE as u64;
/// The initial mapping ends on such a boundary,
const END_ALIGN: u64 = 4 << 20;
/// with at least this much unused memory mapped behind the stack.
const MIN_PADDING: u64 = 512 << 10;
/// The largest domain: 16 TiB. Keeps all sums below in range.
const MAX_PAGES: u64 = 1 << 32;
/// The largest initial mapping: one that Linux's 2 GiB of kernel addresses can hold.
const MAX_MAPPING: u64 = 2 << 30;

/// What the administrator gives the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// All of the domain's memory, in pages.
    pub nr_pages: u64,
    /// Length of the initrd; 0 for none.
    pub initrd_bytes: u64,
    /// The kernel's command line.
    pub cmd_line: &'a [u8],
}

/// The plan. Virtual ranges are page-aligned; "pfn" counts the domain's frames from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// All of the domain's memory, in pages.
    pub nr_pages: u64,
    /// The initial mapping.
    pub virt: Range<u64>,
    /// The kernel.
    pub kernel: Range<u64>,
    /// The initrd inside the initial mapping, if the kernel does not take it by frame number.
    pub initrd_virt: Option<Range<u64>>,
    /// The P2M list; inside the initial mapping or elsewhere.
    pub p2m: Range<u64>,
    /// The page with start_info.
    pub start_info: u64,
    /// Page tables of the initial mapping, the root first.
    pub page_tables: Range<u64>,
    /// The page with the boot stack.
    pub stack: u64,
    /// First instruction.
    pub entry: u64,
    /// log2 of the pages of the contiguous chunk that must be found.
    pub chunk_order: u32,
    /// How many pages of the chunk the domain keeps, from the chunk's start; the rest is to be given back.
    pub chunk_pages: u64,
    /// Length of the initrd in bytes, and the frames it lies in if it is given by frame number.
    pub initrd_bytes: u64,
    /// See there; empty if the initrd is mapped, or absent.
    pub initrd_pfns: Range<u64>,
    /// Frames of the P2M list and, behind them, of its page tables; empty if the list is in the initial mapping.
    pub p2m_pfns: Range<u64>,
}

impl Layout {
    /// Plans the domain.
    pub fn plan(kernel: &Kernel, request: &Request<'_>) -> Result<Self, Error> {
        let &Request { nr_pages, initrd_bytes, cmd_line } = request;
        if cmd_line.len() > MAX_CMD_LINE {
            return Err(Error::CommandLineTooLong { len: cmd_line.len() });
        }
        if nr_pages == 0 || nr_pages > MAX_PAGES {
            return Err(Error::TooLittleMemory { needed: 1, granted: nr_pages.min(MAX_PAGES) });
        }
        let initrd_pages = initrd_bytes.div_ceil(PAGE);
        if initrd_pages >= nr_pages {
            return Err(Error::InitrdTooLarge { pages: initrd_pages, room: nr_pages });
        }
        let p2m_bytes = (nr_pages * 8).next_multiple_of(PAGE);

        let mut place = Cursor(kernel.virt.end);
        let initrd_virt =
            (initrd_pages != 0 && !kernel.notes.has_mod_start_pfn).then(|| place.take(initrd_pages * PAGE));
        let p2m = match kernel.notes.init_p2m {
            None => place.take(p2m_bytes),
            Some(at) => separate_p2m(at, p2m_bytes, kernel)?,
        };
        let start_info = place.take(PAGE).start;
        let (page_tables, stack, virt) = tables_and_stack(kernel.virt_base, place)?;

        let needed = (virt.end - virt.start) / PAGE;
        let own_initrd_pages = if initrd_virt.is_some() { 0 } else { initrd_pages };
        let own_p2m_pages = match kernel.notes.init_p2m {
            None => 0,
            Some(_) => p2m_bytes / PAGE + nr_tables(&p2m) - 1,
        };
        let chunk_order = u64::BITS - (needed - 1).leading_zeros();
        let room = nr_pages.saturating_sub(own_p2m_pages);
        if room < needed {
            return Err(Error::TooLittleMemory { needed: needed + own_p2m_pages, granted: nr_pages });
        }
        if room - needed < own_initrd_pages {
            return Err(Error::InitrdTooLarge { pages: own_initrd_pages, room: room - needed });
        }
        let chunk_pages = (1 << chunk_order).min(room - own_initrd_pages);
        let initrd_pfns = chunk_pages..chunk_pages + own_initrd_pages;
        let p2m_pfns = initrd_pfns.end..initrd_pfns.end + own_p2m_pages;
        Ok(Self {
            nr_pages,
            virt,
            kernel: kernel.virt.clone(),
            initrd_virt,
            p2m,
            start_info,
            page_tables,
            stack,
            entry: kernel.entry,
            chunk_order,
            chunk_pages,
            initrd_bytes,
            initrd_pfns,
            p2m_pfns,
        })
    }

    /// Number of page tables of the initial mapping.
    pub fn nr_page_tables(&self) -> u64 {
        (self.page_tables.end - self.page_tables.start) / PAGE
    }

    /// The frame behind a virtual address of the initial mapping.
    pub fn pfn(&self, virt: u64) -> u64 {
        virt.wrapping_sub(self.virt.start) / PAGE
    }

    /// Says the plan in lines like those that Xen prints. `chunk` is the machine address of the contiguous chunk.
    pub fn describe(&self, chunk: u64, mut line: impl FnMut(Arguments<'_>)) {
        let chunk_end = chunk + self.chunk_pages * PAGE;
        let left = self.nr_pages - self.chunk_pages;
        line(format_args!(" Dom0 alloc.:   {chunk:016x}->{chunk_end:016x} ({left} pages to be allocated)"));
        let mut range = |name: &str, range: &Range<u64>| {
            line(format_args!(" {name:<14} {:016x}->{:016x}", range.start, range.end));
        };
        range("Loaded kernel:", &self.kernel);
        if let Some(initrd) = &self.initrd_virt {
            range("Init. ramdisk:", initrd);
        }
        range("Phys-Mach map:", &self.p2m);
        range("Start info:", &(self.start_info..self.start_info + PAGE));
        range("Page tables:", &self.page_tables);
        range("Boot stack:", &(self.stack..self.stack + PAGE));
        range("TOTAL:", &self.virt);
        line(format_args!(" {:<14} {:016x}", "ENTRY ADDRESS:", self.entry));
    }
}

/// The next free virtual address.
#[derive(Clone, Copy)]
struct Cursor(u64);

impl Cursor {
    /// Takes `bytes`, a multiple of the page size. Wraps silently; the result as a whole is checked afterwards.
    fn take(&mut self, bytes: u64) -> Range<u64> {
        let start = self.0;
        self.0 = start.wrapping_add(bytes);
        start..self.0
    }
}

/// The P2M list at a place of the kernel's choice, in L4 slots of its own.
fn separate_p2m(at: u64, bytes: u64, kernel: &Kernel) -> Result<Range<u64>, Error> {
    let bad = Error::BadNote { note: "INIT_P2M", value: at };
    let end = at.checked_add(bytes).ok_or(bad)?;
    let slot = |addr: u64| VirtAddr::new(addr).map(|addr| addr.table_index(4));
    // The initial mapping may end anywhere in the gigabyte and a bit that the kernel may span.
    let kernel_slots = slot(kernel.virt_base)..=slot(kernel.virt_base.saturating_add(2 << 30));
    if !at.is_multiple_of(PAGE) || !is_guest_range(at, end) {
        return Err(bad);
    }
    if kernel_slots.contains(&slot(at)) || kernel_slots.contains(&slot(end - 1)) {
        return Err(bad);
    }
    Ok(at..end)
}

/// Places the page tables and the stack; the third range is the whole initial mapping. The number of tables depends on
/// the mapping's end, which depends on the number of tables: the smallest number that suffices is taken.
fn tables_and_stack(base: u64, place: Cursor) -> Result<(Range<u64>, u64, Range<u64>), Error> {
    let mut nr = 1;
    loop {
        let mut place = place;
        let tables = place.take(nr * PAGE);
        let stack = place.take(PAGE);
        let mut end = place.0.wrapping_add(END_ALIGN - 1) / END_ALIGN * END_ALIGN;
        if end.wrapping_sub(place.0) < MIN_PADDING {
            end = end.wrapping_add(END_ALIGN);
        }
        if !is_guest_range(base, end) || end - base > MAX_MAPPING {
            return Err(Error::BadLayout("the initial mapping leaves the kernel's address range"));
        }
        let needed = nr_tables(&(base..end));
        if needed <= nr {
            return Ok((tables, stack.start, base..end));
        }
        nr = needed;
    }
}

/// Number of tables of all levels, with one root, that map `range`, which is not empty.
pub(crate) fn nr_tables(range: &Range<u64>) -> u64 {
    let at_level = |shift: u32| ((range.end - 1) >> shift) - (range.start >> shift) + 1;
    1 + at_level(39) + at_level(30) + at_level(21)
}
