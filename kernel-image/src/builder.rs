//! Writes a planned domain into memory: kernel, page tables, P2M list, start_info.
//!
//! It writes plain entries only. Types and reference counts of the frames are the business of whoever owns the frame
//! table: the tree is such that validating the root as an L4 table gives every frame its right type.

use crate::error::Error;
use crate::hypercall_page;
use crate::kernel::Kernel;
use crate::layout::Layout;
use alloc::vec::Vec;
use core::ops::Range;
use x86::{Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::dom0::{self, VgaConsoleInfo};
use xen_abi::start_info::{self, StartInfo};

const PAGE: u64 = x86::PAGE_SIZE as u64;
const TABLE: PteFlags = PteFlags::P.union(PteFlags::RW).union(PteFlags::US).union(PteFlags::A).union(PteFlags::D);
/// A guest kernel's page: ring 3 as far as the CPU knows, marked as the kernel's.
const KERNEL_PAGE: PteFlags = TABLE.union(PteFlags::GUEST_KERNEL);

/// Machine memory of the new domain.
pub trait Memory {
    /// `len` bytes from the start of `first` on, over contiguous frames of the domain.
    fn bytes(&mut self, first: Mfn, len: usize) -> &mut [u8];
}

/// Contiguous frames of the domain that are contiguous in the machine too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The machine frame of the first.
    pub mfn: Mfn,
    /// How many.
    pub nr: u64,
}

/// All frames of the domain, in the order of their pfns from 0 on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameMap {
    extents: Vec<(u64, Extent)>,
    nr_pages: u64,
}

impl FrameMap {
    /// Appends an extent behind the last pfn.
    pub fn push(&mut self, extent: Extent) {
        self.extents.push((self.nr_pages, extent));
        self.nr_pages += extent.nr;
    }

    /// Number of frames so far.
    pub fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// The machine frame of `pfn`.
    pub fn mfn(&self, pfn: u64) -> Option<Mfn> {
        let i = self.extents.partition_point(|&(first, _)| first <= pfn).checked_sub(1)?;
        let (first, extent) = self.extents.get(i)?;
        let offset = pfn - first;
        (offset < extent.nr).then(|| extent.mfn.add(offset))
    }

    /// All extents with their first pfn.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.extents.iter().copied()
    }
}

/// What start_info tells, beyond the layout.
#[derive(Clone, Copy, Debug)]
pub struct StartOfDay<'a> {
    /// The shared-info frame.
    pub shared_info: Mfn,
    /// The kernel's command line.
    pub cmd_line: &'a [u8],
    /// The screen, if there is one.
    pub console: Option<VgaConsoleInfo>,
    /// The initrd's contents; looked at only if the kernel wants it mapped.
    pub initrd: &'a [u8],
}

/// The first vCPU's state that depends on the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The page-table root.
    pub root: Mfn,
    /// First instruction.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Address of start_info.
    pub rsi: u64,
}

/// Copies the kernel's segments from its ELF `file` into `memory`, the domain's memory from its first frame on.
pub fn load_segments(kernel: &Kernel, file: &[u8], memory: &mut [u8]) -> Result<(), Error> {
    for segment in &kernel.segments {
        let target = target(kernel, segment, memory.len())?;
        let (data, zeros) = memory[target].split_at_mut(segment.file_bytes);
        data.copy_from_slice(segment.data(file));
        zeros.fill(0);
    }
    Ok(())
}

/// Moves the kernel's segments to their places when the ELF file itself lies in the domain's memory, at `file`. Returns
/// false, and changes nothing, if a segment would overwrite another one that is still to be moved.
pub fn move_segments(kernel: &Kernel, file: Range<usize>, memory: &mut [u8]) -> Result<bool, Error> {
    for (i, segment) in kernel.segments.iter().enumerate() {
        let target = target(kernel, segment, memory.len())?;
        let is_in_the_way = kernel.segments[i + 1..].iter().any(|later| {
            let source = file.start + later.file_offset;
            target.start < source + later.file_bytes && source < target.end
        });
        if is_in_the_way || file.start + segment.file_offset + segment.file_bytes > file.end.min(memory.len()) {
            return Ok(false);
        }
    }
    for segment in &kernel.segments {
        let target = target(kernel, segment, memory.len())?;
        let source = file.start + segment.file_offset;
        memory.copy_within(source..source + segment.file_bytes, target.start);
        memory[target.start + segment.file_bytes..target.end].fill(0);
    }
    Ok(true)
}

/// Where a segment goes, in bytes of the domain's memory.
fn target(kernel: &Kernel, segment: &crate::Segment, memory_len: usize) -> Result<Range<usize>, Error> {
    const OUTSIDE: Error = Error::BadLayout("a segment lies outside the initial mapping");
    let start = kernel.memory_offset(segment);
    let end = start.checked_add(segment.memory_bytes).ok_or(OUTSIDE)?;
    let (start, end) = usize::try_from(start).ok().zip(usize::try_from(end).ok()).ok_or(OUTSIDE)?;
    if end > memory_len || end - start < segment.file_bytes {
        return Err(OUTSIDE);
    }
    Ok(start..end)
}

/// Writes everything but the kernel's segments. `frames` must have `layout.nr_pages` frames, the first
/// `layout.chunk_pages` of them contiguous.
pub fn build<M: Memory>(
    kernel: &Kernel,
    layout: &Layout,
    frames: &FrameMap,
    start: &StartOfDay<'_>,
    memory: &mut M,
) -> Result<Start, Error> {
    const INCOMPLETE: Error = Error::BadLayout("the domain's frames are incomplete");
    if frames.nr_pages() != layout.nr_pages || frames.extents.first().is_none_or(|(_, e)| e.nr < layout.chunk_pages) {
        return Err(INCOMPLETE);
    }
    let chunk = frames.mfn(0).ok_or(INCOMPLETE)?;
    if let Some(initrd) = &layout.initrd_virt {
        let room = usize::try_from(initrd.end - initrd.start).unwrap_or(usize::MAX);
        let bytes = start.initrd.len().min(room);
        memory.bytes(chunk.add(layout.pfn(initrd.start)), bytes).copy_from_slice(&start.initrd[..bytes]);
    }
    let table_pfns = layout.pfn(layout.page_tables.start)..layout.pfn(layout.page_tables.end);
    let root = chunk.add(table_pfns.start);
    page(memory, root).fill(0);
    let mut tables = Tables { memory, root, free: table_pfns.start + 1..table_pfns.end, frames };
    map_initial(&mut tables, layout, chunk)?;
    if !layout.p2m_pfns.is_empty() {
        map_p2m(&mut tables, layout, frames)?;
    }
    write_p2m(layout, frames, memory)?;
    if let Some(virt) = kernel.notes.hypercall_page {
        hypercall_page::fill(page(memory, chunk.add(layout.pfn(virt))));
    }
    page(memory, chunk.add(layout.pfn(layout.stack))).fill(0);
    write_start_info(layout, start, page(memory, chunk.add(layout.pfn(layout.start_info))));
    Ok(Start { root, rip: layout.entry, rsp: layout.stack + PAGE, rsi: layout.start_info })
}

/// The bytes of one frame.
fn page<M: Memory>(memory: &mut M, mfn: Mfn) -> &mut [u8] {
    memory.bytes(mfn, x86::PAGE_SIZE)
}

/// The entries of a table, as bytes.
fn entries(table: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    table.chunks_exact_mut(8)
}

/// Page tables under construction.
struct Tables<'a, M> {
    memory: &'a mut M,
    root: Mfn,
    /// The pfns that may become tables.
    free: Range<u64>,
    frames: &'a FrameMap,
}

impl<M: Memory> Tables<'_, M> {
    /// The L1 table for `virt`, made with the tables above it if it is not there. Tables are taken lowest level first.
    fn l1_table(&mut self, virt: VirtAddr) -> Result<Mfn, Error> {
        let mut fresh = [None; 3];
        // Find how far down the path exists, from the root.
        let mut table = self.root;
        let mut level = 4;
        while level > 1 {
            let entry = page(self.memory, table)[virt.table_index(level) * 8..].first_chunk();
            let entry = Pte(entry.copied().map_or(0, u64::from_le_bytes));
            if !entry.is_present() {
                break;
            }
            table = entry.mfn();
            level -= 1;
        }
        for slot in fresh.iter_mut().take(level as usize - 1) {
            *slot = Some(self.take()?);
        }
        for new in fresh.into_iter().take(level as usize - 1).rev().flatten() {
            let entry = &mut page(self.memory, table)[virt.table_index(level) * 8..][..8];
            entry.copy_from_slice(&Pte::new(new, TABLE).0.to_le_bytes());
            table = new;
            level -= 1;
        }
        Ok(table)
    }

    fn take(&mut self) -> Result<Mfn, Error> {
        let mfn =
            self.free.next().and_then(|pfn| self.frames.mfn(pfn)).ok_or(Error::BadLayout("too few page tables"))?;
        page(self.memory, mfn).fill(0);
        Ok(mfn)
    }

    /// Maps the pages of `virt` to what `entry` says for each address.
    fn map(&mut self, virt: &Range<u64>, mut entry: impl FnMut(u64) -> Option<Pte>) -> Result<(), Error> {
        const HOLE: Error = Error::BadLayout("a mapped page has no frame");
        let mut at = virt.start;
        while at < virt.end {
            let addr = VirtAddr::new(at).ok_or(Error::BadLayout("an address is not canonical"))?;
            let table = self.l1_table(addr)?;
            for slot in entries(page(self.memory, table)).skip(addr.table_index(1)) {
                if at == virt.end {
                    break;
                }
                slot.copy_from_slice(&entry(at).ok_or(HOLE)?.0.to_le_bytes());
                at += PAGE;
            }
        }
        Ok(())
    }
}

/// Maps the whole initial mapping: writable, but for the page tables.
fn map_initial<M: Memory>(tables: &mut Tables<'_, M>, layout: &Layout, chunk: Mfn) -> Result<(), Error> {
    let writable = |virt: u64| Some(Pte::new(chunk.add(layout.pfn(virt)), KERNEL_PAGE));
    let read_only = |virt: u64| Some(Pte::new(chunk.add(layout.pfn(virt)), KERNEL_PAGE.difference(PteFlags::RW)));
    tables.map(&(layout.virt.start..layout.page_tables.start), writable)?;
    tables.map(&layout.page_tables, read_only)?;
    tables.map(&(layout.page_tables.end..layout.virt.end), writable)
}

/// Maps the P2M list at its own place. Its data frames come first, then its tables.
fn map_p2m<M: Memory>(tables: &mut Tables<'_, M>, layout: &Layout, frames: &FrameMap) -> Result<(), Error> {
    let nr_data = (layout.p2m.end - layout.p2m.start) / PAGE;
    tables.free = layout.p2m_pfns.start + nr_data..layout.p2m_pfns.end;
    tables.map(&layout.p2m, |virt| {
        let pfn = layout.p2m_pfns.start + (virt - layout.p2m.start) / PAGE;
        Some(Pte::new(frames.mfn(pfn)?, KERNEL_PAGE))
    })
}

/// Writes the list of machine frames. Entries beyond the last frame are all ones.
fn write_p2m<M: Memory>(layout: &Layout, frames: &FrameMap, memory: &mut M) -> Result<(), Error> {
    let first_pfn = if layout.p2m_pfns.is_empty() { layout.pfn(layout.p2m.start) } else { layout.p2m_pfns.start };
    let nr_data = (layout.p2m.end - layout.p2m.start) / PAGE;
    let mut mfns = frames.iter().flat_map(|(_, extent)| (0..extent.nr).map(move |i| extent.mfn.add(i).raw()));
    for pfn in first_pfn..first_pfn + nr_data {
        let mfn = frames.mfn(pfn).ok_or(Error::BadLayout("the P2M list has no frame"))?;
        for entry in entries(page(memory, mfn)) {
            entry.copy_from_slice(&mfns.next().unwrap_or(!0).to_le_bytes());
        }
    }
    Ok(())
}

/// Fills the start_info page, with the console's description behind start_info.
fn write_start_info(layout: &Layout, start: &StartOfDay<'_>, page: &mut [u8]) {
    let mut info = StartInfo::ZERO;
    info.magic[..start_info::MAGIC_DOM0.len()].copy_from_slice(start_info::MAGIC_DOM0);
    info.nr_pages = layout.nr_pages;
    info.shared_info = start.shared_info.addr().raw();
    info.flags = start_info::SIF_PRIVILEGED | start_info::SIF_INITDOMAIN;
    info.pt_base = layout.page_tables.start;
    info.nr_pt_frames = layout.nr_page_tables();
    info.mfn_list = layout.p2m.start;
    if layout.initrd_bytes != 0 {
        info.mod_len = layout.initrd_bytes;
        info.mod_start = match &layout.initrd_virt {
            Some(virt) => virt.start,
            None => {
                info.flags |= start_info::SIF_MOD_START_PFN;
                layout.initrd_pfns.start
            }
        };
    }
    // `Layout::plan` has refused a longer one.
    let len = start.cmd_line.len().min(start_info::MAX_CMD_LINE);
    info.cmd_line[..len].copy_from_slice(&start.cmd_line[..len]);
    if !layout.p2m_pfns.is_empty() {
        info.first_p2m_pfn = layout.p2m_pfns.start;
        info.nr_p2m_frames = layout.p2m_pfns.end - layout.p2m_pfns.start;
    }
    page.fill(0);
    if let Some(console) = &start.console {
        info.console_mfn = u64::from(dom0::INFO_OFFSET) | u64::from(dom0::INFO_SIZE) << 32;
        let at = dom0::INFO_OFFSET as usize;
        page[at..at + dom0::INFO_SIZE as usize].copy_from_slice(&console.to_bytes());
    }
    let bytes = info.to_bytes();
    page[..bytes.len()].copy_from_slice(&bytes);
}
