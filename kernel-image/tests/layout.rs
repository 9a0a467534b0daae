//! Domain 0's memory: planned as Xen plans it, and written so that its page tables lead to the right frames.

#![allow(clippy::cast_possible_truncation, reason = "small test data")]

mod common;

use common::*;
use kernel_image::builder::{build, load_segments, move_segments, Extent, FrameMap, Memory, StartOfDay};
use kernel_image::{Error, Kernel, Layout, Request};
use x86::{Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::dom0::VgaConsoleInfo;

const PAGE: u64 = 4096;
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// A kernel of the size of Debian 12's.
fn debian() -> Kernel {
    let mut notes = without(linux_notes(), 1);
    notes.push(Note::number(1, 0xffff_ffff_8307_91c0));
    let segments = [
        Segment::bss(0x100_0000, 0x18e_a9f0),
        Segment::bss(0x2a0_0000, 0x64_4000),
        Segment::bss(0x304_4000, 0x3_5000),
        Segment::bss(0x307_9000, 0x198_7000),
        Segment::notes(&notes),
    ];
    Kernel::parse(&elf(&segments)).unwrap()
}

fn request(nr_pages: u64, initrd_bytes: u64) -> Request<'static> {
    Request { nr_pages, initrd_bytes, cmd_line: b"root=/dev/xvda1" }
}

#[test]
fn debian_is_laid_out_as_xen_does() {
    let layout = Layout::plan(&debian(), &request(262_144, 30_000_001)).unwrap();
    assert_eq!(layout.kernel, 0xffff_ffff_8100_0000..0xffff_ffff_84a0_0000);
    assert_eq!(layout.p2m, 0x80_0000_0000..0x80_0020_0000);
    assert_eq!(layout.start_info, 0xffff_ffff_84a0_0000);
    assert_eq!(layout.page_tables, 0xffff_ffff_84a0_1000..0xffff_ffff_84a2_a000);
    assert_eq!(layout.nr_page_tables(), 41);
    assert_eq!(layout.stack, 0xffff_ffff_84a2_a000);
    assert_eq!(layout.virt, KERNEL_BASE..0xffff_ffff_84c0_0000);
    assert_eq!(layout.entry, 0xffff_ffff_8307_91c0);
    assert_eq!(layout.chunk_order, 15);
    assert_eq!(layout.chunk_pages, 1 << 15);
    assert_eq!(layout.initrd_pfns, 0x8000..0x8000 + 7325);
    // 512 pages of list, one L1, one L2, one L3.
    assert_eq!(layout.p2m_pfns.end - layout.p2m_pfns.start, 515);
    assert_eq!(layout.p2m_pfns.start, layout.initrd_pfns.end);

    let mut lines = Vec::new();
    layout.describe(0x7000_0000, |line| lines.push(line.to_string()));
    assert_eq!(lines[0], " Dom0 alloc.:   0000000070000000->0000000078000000 (229376 pages to be allocated)");
    assert_eq!(lines[4], " Page tables:   ffffffff84a01000->ffffffff84a2a000");
    assert_eq!(lines[6], " TOTAL:         ffffffff80000000->ffffffff84c00000");
}

#[test]
fn too_little_memory_is_refused_in_one_line() {
    let kernel = debian();
    let plan = |nr_pages, initrd| Layout::plan(&kernel, &request(nr_pages, initrd)).unwrap_err();
    assert_eq!(
        plan(10_000, 0).to_string(),
        "too little memory: domain 0 starts with 19479 pages, but gets only 10000 (see dom0_mem=)"
    );
    assert!(matches!(plan(0, 0), Error::TooLittleMemory { .. }));
    assert_eq!(
        plan(20_000, 600 << 12).to_string(),
        "the initrd takes 600 pages, but domain 0 has only 501 left for it (see dom0_mem=)"
    );
    assert!(matches!(plan(20_000, 1 << 40), Error::InitrdTooLarge { .. }));
}

#[test]
fn a_small_domain_keeps_only_part_of_the_chunk() {
    let layout = Layout::plan(&debian(), &request(20_000, 100 << 12)).unwrap();
    assert_eq!(layout.chunk_order, 15);
    assert_eq!(layout.p2m_pfns.end, 20_000);
    assert_eq!(layout.chunk_pages + 100 + (layout.p2m_pfns.end - layout.p2m_pfns.start), 20_000);
}

#[test]
fn long_command_lines_and_odd_notes_are_refused() {
    let long = vec![b'x'; 1024];
    let request = Request { nr_pages: 30_000, initrd_bytes: 0, cmd_line: &long };
    assert_eq!(Layout::plan(&debian(), &request), Err(Error::CommandLineTooLong { len: 1024 }));
    for bad in [0x80_0000_0001, 0xffff_8000_0000_0000, 0x7fff_ffff_f000, 0xffff_ffff_f000_0000, 0x1000_0000_0000_0000] {
        let mut notes = without(linux_notes(), 15);
        notes.push(Note::number(15, bad));
        let kernel = Kernel::parse(&small_kernel(&notes)).unwrap();
        let planned = Layout::plan(&kernel, &self::request(30_000, 0));
        assert_eq!(planned, Err(Error::BadNote { note: "INIT_P2M", value: bad }), "{bad:#x}");
    }
}

/// A machine with RAM from frame `FIRST` on.
struct Machine(Vec<u8>);
const FIRST: u64 = 0x40000;

impl Machine {
    /// Full of rubbish, so that what is not written is noticed.
    fn new(nr_pages: u64) -> Self {
        Self(vec![0xa5; (nr_pages * PAGE) as usize])
    }
    fn page(&self, mfn: Mfn) -> &[u8] {
        &self.0[((mfn.raw() - FIRST) * PAGE) as usize..][..PAGE as usize]
    }
    fn word(&self, mfn: Mfn, index: usize) -> u64 {
        u64::from_le_bytes(*self.page(mfn)[index * 8..].first_chunk().unwrap())
    }
    /// The L1 entry for `virt`, and the tables on the way.
    fn walk(&self, root: Mfn, virt: u64) -> Option<(Pte, [Mfn; 4])> {
        let virt = VirtAddr::new(virt).unwrap();
        let mut tables = [root; 4];
        for level in [4, 3, 2] {
            let entry = Pte(self.word(tables[4 - level as usize], virt.table_index(level)));
            if !entry.is_present() {
                return None;
            }
            assert_eq!(entry.flags().bits(), 0x67, "level {level}");
            tables[5 - level as usize] = entry.mfn();
        }
        Some((Pte(self.word(tables[3], virt.table_index(1))), tables))
    }
}

impl Memory for Machine {
    fn bytes(&mut self, first: Mfn, len: usize) -> &mut [u8] {
        &mut self.0[((first.raw() - FIRST) * PAGE) as usize..][..len]
    }
}

/// Builds a domain in scattered memory; everything that its kernel will see is checked.
fn build_and_check(file: &[u8], initrd: &[u8], nr_pages: u64) -> (Layout, Machine, FrameMap) {
    let kernel = Kernel::parse(file).unwrap();
    let cmd_line = b"console=hvc0 earlyprintk=xen";
    let request = Request { nr_pages, initrd_bytes: initrd.len() as u64, cmd_line };
    let layout = Layout::plan(&kernel, &request).unwrap();
    let mut frames = FrameMap::default();
    let chunk = Mfn::new(FIRST + 100);
    frames.push(Extent { mfn: chunk, nr: layout.chunk_pages });
    // The rest comes from above, in pieces that run downwards.
    let mut top = FIRST + 100 + nr_pages + 50;
    while frames.nr_pages() < nr_pages {
        let nr = 7.min(nr_pages - frames.nr_pages());
        top -= nr;
        frames.push(Extent { mfn: Mfn::new(top), nr });
    }
    let mut machine = Machine::new(nr_pages + 200);
    let shared_info = Mfn::new(FIRST + 3);
    let start = StartOfDay { shared_info, cmd_line, console: Some(VgaConsoleInfo::TEXT_80X25), initrd };
    load_segments(&kernel, file, machine.bytes(chunk, (layout.chunk_pages * PAGE) as usize)).unwrap();
    let started = build(&kernel, &layout, &frames, &start, &mut machine).unwrap();

    assert_eq!(started.rip, layout.entry);
    assert_eq!(started.rsp, layout.stack + PAGE);
    assert_eq!(started.rsi, layout.start_info);
    assert_eq!(started.root, chunk.add(layout.pfn(layout.page_tables.start)));
    check_initial_mapping(&layout, &machine, chunk, started.root);
    check_p2m(&layout, &machine, &frames, started.root);
    check_start_info(&layout, &machine, chunk, shared_info, cmd_line);
    (layout, machine, frames)
}

fn check_initial_mapping(layout: &Layout, machine: &Machine, chunk: Mfn, root: Mfn) {
    let mut tables_seen = std::collections::BTreeSet::new();
    for virt in layout.virt.clone().step_by(PAGE as usize) {
        let (entry, tables) = machine.walk(root, virt).unwrap();
        assert_eq!(entry.mfn(), chunk.add(layout.pfn(virt)));
        assert_eq!(entry.is_writable(), !layout.page_tables.contains(&virt), "{virt:#x}");
        assert!(entry.contains(PteFlags::P | PteFlags::US | PteFlags::A | PteFlags::D | PteFlags::GUEST_KERNEL));
        tables_seen.extend(tables);
    }
    // Exactly the announced tables are used, the root first.
    let announced: std::collections::BTreeSet<Mfn> =
        (0..layout.nr_page_tables()).map(|i| chunk.add(layout.pfn(layout.page_tables.start) + i)).collect();
    assert!(tables_seen.is_subset(&announced));
    assert_eq!(tables_seen.len(), announced.len());
    // Nothing is mapped behind the end.
    if layout.virt.end.is_multiple_of(2 << 20) {
        assert!(machine.walk(root, layout.virt.end).is_none_or(|(entry, _)| !entry.is_present()));
    }
    assert!(machine.page(chunk.add(layout.pfn(layout.stack))).iter().all(|&b| b == 0));
}

fn check_p2m(layout: &Layout, machine: &Machine, frames: &FrameMap, root: Mfn) {
    let list = |pfn: u64| {
        let (entry, tables) = machine.walk(root, layout.p2m.start + pfn * 8 / PAGE * PAGE).unwrap();
        assert!(entry.is_present() && entry.is_writable());
        if !layout.p2m_pfns.is_empty() {
            let own: Vec<Mfn> = layout.p2m_pfns.clone().map(|pfn| frames.mfn(pfn).unwrap()).collect();
            assert!(own.contains(&entry.mfn()));
            assert!(tables[1..].iter().all(|table| own.contains(table)));
        }
        machine.word(entry.mfn(), (pfn * 8 % PAGE / 8) as usize)
    };
    for pfn in 0..layout.nr_pages {
        assert_eq!(list(pfn), frames.mfn(pfn).unwrap().raw(), "pfn {pfn:#x}");
    }
    // The last page is filled up with invalid entries.
    for pfn in layout.nr_pages..layout.nr_pages.next_multiple_of(512) {
        assert_eq!(list(pfn), !0);
    }
    assert_eq!(frames.mfn(layout.nr_pages), None);
}

fn check_start_info(layout: &Layout, machine: &Machine, chunk: Mfn, shared_info: Mfn, cmd_line: &[u8]) {
    let page = machine.page(chunk.add(layout.pfn(layout.start_info)));
    let word = |at: usize| u64::from_le_bytes(*page[at..].first_chunk().unwrap());
    assert_eq!(&page[..16], b"xen-3.0-x86_64p\0");
    assert_eq!(word(32), layout.nr_pages);
    assert_eq!(word(40), shared_info.raw() * PAGE);
    assert_eq!(word(56), 0, "store_mfn: Linux then makes its own xenstore page");
    assert_eq!(word(64), 0);
    assert_eq!(word(72), 1168 | 40 << 32);
    assert_eq!(word(88), layout.page_tables.start);
    assert_eq!(word(96), layout.nr_page_tables());
    assert_eq!(word(104), layout.p2m.start);
    assert_eq!(word(120), layout.initrd_bytes);
    let flags = page[48];
    if layout.initrd_bytes == 0 {
        assert_eq!((flags, word(112)), (3, 0));
    } else if let Some(virt) = &layout.initrd_virt {
        assert_eq!((flags, word(112)), (3, virt.start));
    } else {
        assert_eq!((flags, word(112)), (0xb, layout.initrd_pfns.start));
    }
    assert_eq!(&page[128..128 + cmd_line.len()], cmd_line);
    assert_eq!(page[128 + cmd_line.len()], 0);
    assert_eq!(word(1152), layout.p2m_pfns.start * u64::from(!layout.p2m_pfns.is_empty()));
    assert_eq!(word(1160), layout.p2m_pfns.end - layout.p2m_pfns.start);
    assert_eq!(page[1168], 3);
    assert!(page[1208..].iter().all(|&b| b == 0));
}

#[test]
fn linux_with_an_initrd_by_frame_number() {
    let file = small_kernel(&linux_notes());
    let (layout, machine, frames) = build_and_check(&file, &[7; 10_000], 9000);
    assert_eq!(layout.initrd_pfns.end - layout.initrd_pfns.start, 3);
    // The kernel is where its physical addresses say, and its bss is clear.
    let text = machine.page(frames.mfn(0x1000).unwrap());
    assert_eq!(text[1], (2_654_435_761u32 >> 27) as u8);
    assert_eq!(machine.page(frames.mfn(0x1200).unwrap())[..4096], [0x5a; 4096]);
    let last = machine.page(frames.mfn(0x1201).unwrap());
    assert_eq!(last[..904], [0x5a; 904]);
    assert!(last[904..].iter().all(|&b| b == 0));
}

#[test]
fn a_kernel_that_wants_everything_mapped() {
    let mut notes = without(without(linux_notes(), 15), 16);
    notes.push(Note::number(2, 0xffff_ffff_8100_2000));
    let initrd: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    let (layout, machine, frames) = build_and_check(&small_kernel(&notes), &initrd, 9000);
    let virt = layout.initrd_virt.clone().unwrap();
    assert_eq!(virt.start, layout.kernel.end);
    assert_eq!(layout.p2m.start, virt.end);
    assert!(layout.p2m_pfns.is_empty());
    let got: Vec<u8> =
        (0..3).flat_map(|i| machine.page(frames.mfn(layout.pfn(virt.start) + i).unwrap()).to_vec()).collect();
    assert_eq!(got[..10_000], initrd);
    // Hypercall 1 and the special one, iret.
    let page = machine.page(frames.mfn(0x1002).unwrap());
    assert_eq!(page[32..46], [0x51, 0x41, 0x53, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x41, 0x5b, 0x59, 0xc3]);
    assert_eq!(page[23 * 32..23 * 32 + 12], [0x51, 0x41, 0x53, 0x50, 0xb8, 23, 0, 0, 0, 0x0f, 0x05, 0xcc]);
}

#[test]
fn no_initrd_and_exactly_enough_memory() {
    let file = small_kernel(&linux_notes());
    let kernel = Kernel::parse(&file).unwrap();
    let needed = match Layout::plan(&kernel, &request(100, 0)) {
        Err(Error::TooLittleMemory { needed, .. }) => needed,
        other => panic!("{other:?}"),
    };
    // More memory needs a longer list; the fixed point is near.
    let enough = (needed..).find(|&nr| Layout::plan(&kernel, &request(nr, 0)).is_ok()).unwrap();
    let (layout, ..) = build_and_check(&file, &[], enough);
    assert_eq!(layout.chunk_pages, (layout.virt.end - layout.virt.start) / PAGE);
}

#[test]
fn segments_move_inside_the_chunk_as_they_are_copied() {
    let file = small_kernel(&linux_notes());
    let kernel = Kernel::parse(&file).unwrap();
    let size = 32 << 20;
    let mut copied = vec![0x11; size];
    load_segments(&kernel, &file, &mut copied).unwrap();
    let text = 0x1000000..0x1000000 + 20_000;
    let data = 0x1200000..0x1200000 + 9_000;
    for at in [size - file.len(), 0x1000000 - 40, 0x11ff000] {
        let mut moved = vec![0x11; size];
        moved[at..at + file.len()].copy_from_slice(&file);
        let is_moved = move_segments(&kernel, at..at + file.len(), &mut moved).unwrap();
        assert!(is_moved, "file at {at:#x}");
        assert!(moved[text.clone()] == copied[text.clone()], "file at {at:#x}");
        assert!(moved[data.clone()] == copied[data.clone()], "file at {at:#x}");
    }
    // Here moving the text would overwrite the data.
    let at = 0x1000000 - 20_500;
    let mut moved = vec![0x11; size];
    moved[at..at + file.len()].copy_from_slice(&file);
    let before = moved.clone();
    assert_eq!(move_segments(&kernel, at..at + file.len(), &mut moved), Ok(false));
    assert!(moved == before);
}
