//! What must hold for any input, however damaged: for the fuzz targets, and for a second as unit tests.

use crate::builder::{build, load_segments, Extent, FrameMap, Memory, StartOfDay};
use crate::{Compression, Image, Kernel, Layout, Request};
use alloc::vec;
use alloc::vec::Vec;
use x86::{Mfn, Pte, PteFlags, VirtAddr, PAGE_SIZE};

/// Any file: it is recognised and unpacked, or refused with one line.
pub fn check_image(file: &[u8]) {
    match Image::parse(file) {
        Ok(Image::Packed(payload)) => {
            // Large enough for what a small input can mean, small enough to try many.
            let mut out = vec![0; payload.unpacked_len.min(1 << 18)];
            if let Err(error) = payload.unpack(&mut out) {
                check_line(&error);
            }
        }
        Ok(Image::Elf(elf)) => check_elf(elf),
        Err(error) => check_line(&error),
    }
}

/// Any compressed stream; the first byte says which compression to take it for.
pub fn check_stream(input: &[u8]) {
    const ALL: [Compression; 4] = [Compression::Gzip, Compression::Xz, Compression::Zstd, Compression::Lz4];
    let Some((&which, data)) = input.split_first() else { return };
    let compression = ALL[usize::from(which) % ALL.len()];
    let mut out = vec![0; 1 << 16];
    match compression.unpack(data, &mut out) {
        Ok(written) => assert!(written <= out.len()),
        Err(error) => check_line(&error),
    }
}

/// Any ELF file: it is refused with one line, or the domain built from it has a consistent memory.
pub fn check_elf(file: &[u8]) {
    let kernel = match Kernel::parse(file) {
        Ok(kernel) => kernel,
        Err(error) => return check_line(&error),
    };
    // Sizes from far too little to enough for a small kernel, so that `Machine` stays small.
    for nr_pages in [0, 1, 600, 4096, 1 << 40] {
        let request = Request { nr_pages, initrd_bytes: nr_pages * 30, cmd_line: b"a command line" };
        match Layout::plan(&kernel, &request) {
            Ok(layout) if nr_pages <= 4096 => check_domain(&kernel, &layout, file),
            Ok(_) => {}
            Err(error) => check_line(&error),
        }
    }
}

fn check_line(error: &crate::Error) {
    let line = alloc::format!("{error}");
    assert!(!line.is_empty() && !line.contains('\n'));
}

/// Memory from frame 0 on.
struct Machine(Vec<u8>);

impl Memory for Machine {
    fn bytes(&mut self, first: Mfn, len: usize) -> &mut [u8] {
        &mut self.0[first.index() * PAGE_SIZE..][..len]
    }
}

fn check_domain(kernel: &Kernel, layout: &Layout, file: &[u8]) {
    let pages = Mfn::new(layout.nr_pages).index();
    assert!(layout.chunk_pages <= layout.nr_pages && layout.chunk_pages <= 1 << layout.chunk_order);
    assert!(layout.p2m_pfns.end <= layout.nr_pages && layout.initrd_pfns.end <= layout.nr_pages);
    let mut machine = Machine(vec![0xa5; pages * PAGE_SIZE]);
    let mut frames = FrameMap::default();
    frames.push(Extent { mfn: Mfn::new(0), nr: layout.chunk_pages });
    frames.push(Extent { mfn: Mfn::new(layout.chunk_pages), nr: layout.nr_pages - layout.chunk_pages });
    let len = Mfn::new(layout.chunk_pages).index() * PAGE_SIZE;
    load_segments(kernel, file, machine.bytes(Mfn::new(0), len)).expect("the plan has room for the segments");
    let start = StartOfDay { shared_info: Mfn::new(7), cmd_line: b"", console: None, initrd: &[1; 100] };
    let started = build(kernel, layout, &frames, &start, &mut machine).expect("the plan can be carried out");
    for virt in [started.rip, started.rsp - 8, started.rsi, layout.virt.start, layout.virt.end - 1, layout.p2m.start] {
        let entry = walk(&machine, started.root, virt);
        assert!(entry.contains(PteFlags::P | PteFlags::US), "{virt:#x} is not mapped");
    }
    for table in layout.page_tables.clone().step_by(PAGE_SIZE) {
        assert!(!walk(&machine, started.root, table).is_writable(), "a page table is writable");
    }
}

fn walk(machine: &Machine, root: Mfn, virt: u64) -> Pte {
    let virt = VirtAddr::new(virt).expect("plans are canonical");
    let mut entry = Pte::new(root, PteFlags::P);
    for level in [4, 3, 2, 1] {
        assert!(entry.is_present());
        let at = entry.mfn().index() * PAGE_SIZE + virt.table_index(level) * 8;
        entry = Pte(machine.0[at..].first_chunk().copied().map_or(0, u64::from_le_bytes));
    }
    entry
}
