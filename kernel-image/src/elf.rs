//! A 64-bit ELF executable: the segments to load, and where to look for notes (ELF-64 Object File Format, version 1.5).
//!
//! Every number read from the file is checked before use; a segment's data is a slice of the file.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::error::Error;
use alloc::vec::Vec;
use core::ops::Range;

const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const MACHINE_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHT_NOTE: u32 = 7;
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
/// Kernels have about five; this bounds the work.
const MAX_PROGRAM_HEADERS: u16 = 64;

/// One loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Physical address, the one that counts: the virtual address of a per-CPU segment is meaningless.
    pub paddr: u64,
    /// Where its contents start in the file.
    pub file_offset: usize,
    /// Length of the contents.
    pub file_bytes: usize,
    /// Length in memory; what exceeds `file_bytes` is zero.
    pub memory_bytes: u64,
}

impl Segment {
    /// Its contents.
    pub fn data<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        // `Elf::parse` has checked the range, unless this is another file.
        file.get(self.file_offset..).and_then(|rest| rest.get(..self.file_bytes)).unwrap_or_default()
    }

    /// One past its last byte in memory.
    pub fn paddr_end(&self) -> u64 {
        self.paddr + self.memory_bytes
    }
}

/// The parts of an ELF file that loading needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// `e_entry`.
    pub entry: u64,
    /// The loadable segments that are not empty, by rising physical address; they do not overlap.
    pub segments: Vec<Segment>,
    /// File ranges that hold notes: segments first, then sections.
    pub notes: Vec<Range<usize>>,
}

impl Elf {
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        check_header(file)?;
        let entry = u64_at(file, 24).ok_or(Error::Truncated("the ELF header's end"))?;
        let mut elf = Self { entry, segments: Vec::new(), notes: Vec::new() };
        elf.read_program_headers(file)?;
        elf.read_section_headers(file);
        if elf.segments.is_empty() {
            return Err(Error::BadElf("nothing to load"));
        }
        elf.segments.sort_by_key(|segment| segment.paddr);
        if elf.segments.windows(2).any(|pair| pair[0].paddr_end() > pair[1].paddr) {
            return Err(Error::BadElf("segments overlap"));
        }
        Ok(elf)
    }

    fn read_program_headers(&mut self, file: &[u8]) -> Result<(), Error> {
        const TRUNCATED: Error = Error::Truncated("the program headers' end");
        let table = usize_at(file, 32).ok_or(TRUNCATED)?;
        let nr = u16_at(file, 56).ok_or(TRUNCATED)?;
        if u16_at(file, 54).map(usize::from) != Some(PROGRAM_HEADER_BYTES) || nr > MAX_PROGRAM_HEADERS {
            return Err(Error::BadElf("unexpected size or number of program headers"));
        }
        for i in 0..usize::from(nr) {
            let header = table
                .checked_add(i * PROGRAM_HEADER_BYTES)
                .and_then(|at| file.get(at..)?.get(..PROGRAM_HEADER_BYTES))
                .ok_or(TRUNCATED)?;
            match u32_at(header, 0) {
                Some(PT_LOAD) => self.segments.extend(load_segment(header, file.len())?),
                Some(PT_NOTE) => {
                    let range = file_range(header, 8, 32, file.len()).ok_or(Error::Truncated("the notes' end"))?;
                    self.notes.push(range);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sections are optional in an executable, so a damaged table is as good as none.
    fn read_section_headers(&mut self, file: &[u8]) {
        let (Some(table), Some(nr)) = (usize_at(file, 40), u16_at(file, 60)) else {
            return;
        };
        if table == 0 || u16_at(file, 58).map(usize::from) != Some(SECTION_HEADER_BYTES) {
            return;
        }
        for i in 0..usize::from(nr) {
            let header =
                table.checked_add(i * SECTION_HEADER_BYTES).and_then(|at| file.get(at..)?.get(..SECTION_HEADER_BYTES));
            let Some(header) = header else {
                return;
            };
            if u32_at(header, 4) == Some(SHT_NOTE) {
                self.notes.extend(file_range(header, 24, 32, file.len()));
            }
        }
    }
}

fn check_header(file: &[u8]) -> Result<(), Error> {
    let header = file.get(..64).ok_or(Error::Truncated("the ELF header's end"))?;
    if header[4] != CLASS_64 {
        return Err(Error::Elf32);
    }
    if header[5] != LITTLE_ENDIAN {
        return Err(Error::BadElf("not little-endian"));
    }
    if u16_at(header, 18) != Some(MACHINE_X86_64) {
        return Err(Error::BadElf("not for x86-64"));
    }
    Ok(())
}

/// The segment that a PT_LOAD header describes; none if it is empty.
fn load_segment(header: &[u8], file_len: usize) -> Result<Option<Segment>, Error> {
    const TRUNCATED: Error = Error::Truncated("a segment's end");
    let range = file_range(header, 8, 32, file_len).ok_or(TRUNCATED)?;
    let paddr = u64_at(header, 24).ok_or(TRUNCATED)?;
    let memory_bytes = u64_at(header, 40).ok_or(TRUNCATED)?;
    let segment = Segment { paddr, file_offset: range.start, file_bytes: range.len(), memory_bytes };
    if memory_bytes < range.len() as u64 || paddr.checked_add(memory_bytes).is_none() {
        return Err(Error::BadElf("a segment has an impossible size"));
    }
    Ok((memory_bytes != 0).then_some(segment))
}

/// The file range whose offset and length stand at two places of a header, if the file contains it.
fn file_range(header: &[u8], offset_at: usize, len_at: usize, file_len: usize) -> Option<Range<usize>> {
    let start = usize_at(header, offset_at)?;
    let end = start.checked_add(usize_at(header, len_at)?)?;
    (end <= file_len).then_some(start..end)
}

fn usize_at(data: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64_at(data, at)?).ok()
}
