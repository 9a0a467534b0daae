//! The twin image: one byte string, little-endian, a header and eight sections.
//!
//! Only the section `Code` becomes executable; everything else is read by verifier and runtime. All tables are arrays
//! of fixed-size records. The reader checks that sections lie inside the bytes and hold whole records; what the records
//! say is checked by the verifier.
//!
//! Header, 192 bytes:
//!
//! | offset | size | field |
//! |--------|------|-------|
//! | 0      | 8    | magic [`MAGIC`] |
//! | 8      | 4    | version [`VERSION`] |
//! | 12     | 4    | mode: 0 stlb, 1 mirror |
//! | 16     | 4    | flags ([`flags`]) |
//! | 20     | 4    | mask_bits (mirror; 0 for stlb) |
//! | 24     | 8    | domain address of the original text |
//! | 32     | 8    | bytes of the original text |
//! | 40     | 8    | FNV-1a 64 hash of the original text |
//! | 48     | 4    | stack arguments that every indirect call provides |
//! | 52     | 12   | zero |
//! | 64     | 64   | eight sections: offset u32, bytes u32, in the order of [`Section`] |
//! | 128    | 64   | [`Stats`], sixteen u32 |

mod builder;
mod records;

use crate::kind::State;
pub use builder::ImageBuilder;
use records::{u32_at, u64_at};
pub use records::{Address, Function, Import, Label, Origin, Record, Records, LABEL_CHARGE};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"TANDTWIN";
/// The version of this format and contract.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 192;

/// Header flags.
pub mod flags {
    /// The code uses BMI1/BMI2 instructions; the loader refuses it on a CPU without them.
    pub const BMI: u32 = 1;
    /// Loops and non-leaf functions are charged to the budget in code (rules B1, B2).
    pub const COUNTED: u32 = 2;
    /// All flags known to this version.
    pub const ALL: u32 = BMI | COUNTED;
}

/// How driver-domain addresses are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the software table, as in the paper.
    Stlb,
    /// By masking.
    Mirror,
}

/// The sections in the order of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Machine code.
    Code = 0,
    /// [`Function`] records, sorted by `start`, covering the code without overlap.
    Functions = 1,
    /// [`Label`] records, sorted by `offset`, no duplicates. Every jump target inside a function and every function
    /// start is a label.
    Labels = 2,
    /// [`State`] records.
    States = 3,
    /// [`Address`] records, sorted by `domain`, no duplicates: what indirect calls and the runtime can enter.
    Addresses = 4,
    /// [`Import`] records; import `n` uses slot `n`.
    Imports = 5,
    /// Names, in printable ASCII.
    Strings = 6,
    /// [`Origin`] records, sorted by `offset`.
    Origins = 7,
}

/// Number of sections.
pub const SECTIONS: usize = 8;

/// Counts of the rewriter, for reports. Nothing is derived from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation; see docs/twin.md for the report")]
pub struct Stats {
    pub insns_in: u32,
    pub insns_out: u32,
    pub memory_operands: u32,
    pub stack_operands: u32,
    pub translated_operands: u32,
    pub masks_emitted: u32,
    pub masks_elided: u32,
    pub spills: u32,
    pub flag_saves: u32,
    pub percpu_sites: u32,
    pub string_sites: u32,
    pub locked_sites: u32,
    pub indirect_sites: u32,
    pub bug_sites: u32,
    pub warn_sites: u32,
    pub unsafe_slots: u32,
}

impl Stats {
    fn words(&self) -> [u32; 16] {
        [
            self.insns_in,
            self.insns_out,
            self.memory_operands,
            self.stack_operands,
            self.translated_operands,
            self.masks_emitted,
            self.masks_elided,
            self.spills,
            self.flag_saves,
            self.percpu_sites,
            self.string_sites,
            self.locked_sites,
            self.indirect_sites,
            self.bug_sites,
            self.warn_sites,
            self.unsafe_slots,
        ]
    }

    fn from_words(w: [u32; 16]) -> Self {
        Self {
            insns_in: w[0],
            insns_out: w[1],
            memory_operands: w[2],
            stack_operands: w[3],
            translated_operands: w[4],
            masks_emitted: w[5],
            masks_elided: w[6],
            spills: w[7],
            flag_saves: w[8],
            percpu_sites: w[9],
            string_sites: w[10],
            locked_sites: w[11],
            indirect_sites: w[12],
            bug_sites: w[13],
            warn_sites: w[14],
            unsafe_slots: w[15],
        }
    }
}

/// Why bytes are not an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// Shorter than a header.
    TooShort,
    /// The magic number is missing.
    Magic,
    /// Another version.
    Version(u32),
    /// Neither stlb nor mirror.
    Mode(u32),
    /// A flag of a later version.
    Flags(u32),
    /// Reserved header bytes are not zero.
    Reserved,
    /// The section (by number) is not inside the bytes, or does not hold whole records.
    Section(usize),
}

/// An image in memory whose sections are known to lie inside it.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    bytes: &'a [u8],
    /// Translation mode.
    pub mode: Mode,
    /// See [`flags`].
    pub flags: u32,
    /// Low bits that are kept of an address in mirror mode.
    pub mask_bits: u32,
    /// Domain address of the original text.
    pub text: u64,
    /// Bytes of the original text.
    pub text_bytes: u64,
    /// FNV-1a 64 hash of the original text.
    pub text_hash: u64,
    /// Words of stack arguments that every indirect call provides.
    pub indirect_args: u32,
    /// Counts for reports.
    pub stats: Stats,
}

impl<'a> Image<'a> {
    /// Reads the header and checks the section bounds.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let header = bytes.get(..HEADER_BYTES).ok_or(FormatError::TooShort)?;
        if header.get(..8) != Some(&MAGIC[..]) {
            return Err(FormatError::Magic);
        }
        let version = u32_at(header, 8);
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let mode = match u32_at(header, 12) {
            0 => Mode::Stlb,
            1 => Mode::Mirror,
            other => return Err(FormatError::Mode(other)),
        };
        let flags = u32_at(header, 16);
        if flags & !flags::ALL != 0 {
            return Err(FormatError::Flags(flags));
        }
        if header.get(52..64) != Some(&[0; 12][..]) {
            return Err(FormatError::Reserved);
        }
        let mut stats = [0; 16];
        for (n, word) in stats.iter_mut().enumerate() {
            *word = u32_at(header, 128 + 4 * n);
        }
        let image = Self {
            bytes,
            mode,
            flags,
            mask_bits: u32_at(header, 20),
            text: u64_at(header, 24),
            text_bytes: u64_at(header, 32),
            text_hash: u64_at(header, 40),
            indirect_args: u32_at(header, 48),
            stats: Stats::from_words(stats),
        };
        let record = [1, Function::BYTES, Label::BYTES, State::BYTES, Address::BYTES, Import::BYTES, 1, Origin::BYTES];
        for (n, size) in record.into_iter().enumerate() {
            let (offset, len) = image.bounds(n);
            let inside = offset >= HEADER_BYTES && offset.checked_add(len).is_some_and(|end| end <= bytes.len());
            if !inside || len % size != 0 {
                return Err(FormatError::Section(n));
            }
        }
        Ok(image)
    }

    fn bounds(&self, section: usize) -> (usize, usize) {
        let at = 64 + 8 * section;
        (u32_at(self.bytes, at) as usize, u32_at(self.bytes, at + 4) as usize)
    }

    fn section(&self, section: Section) -> &'a [u8] {
        let (offset, len) = self.bounds(section as usize);
        offset.checked_add(len).and_then(|end| self.bytes.get(offset..end)).unwrap_or(&[])
    }

    /// The machine code.
    #[must_use]
    pub fn code(&self) -> &'a [u8] {
        self.section(Section::Code)
    }

    /// Where the machine code lies in the file.
    #[must_use]
    pub fn code_range(&self) -> core::ops::Range<usize> {
        let (offset, len) = self.bounds(Section::Code as usize);
        offset..offset.saturating_add(len)
    }

    /// The functions.
    #[must_use]
    pub fn functions(&self) -> Records<'a, Function> {
        Records::new(self.section(Section::Functions))
    }

    /// The labels.
    #[must_use]
    pub fn labels(&self) -> Records<'a, Label> {
        Records::new(self.section(Section::Labels))
    }

    /// The declared states.
    #[must_use]
    pub fn states(&self) -> Records<'a, State> {
        Records::new(self.section(Section::States))
    }

    /// The address table.
    #[must_use]
    pub fn addresses(&self) -> Records<'a, Address> {
        Records::new(self.section(Section::Addresses))
    }

    /// The imports.
    #[must_use]
    pub fn imports(&self) -> Records<'a, Import> {
        Records::new(self.section(Section::Imports))
    }

    /// The origins.
    #[must_use]
    pub fn origins(&self) -> Records<'a, Origin> {
        Records::new(self.section(Section::Origins))
    }

    /// The strings.
    #[must_use]
    pub fn strings(&self) -> &'a [u8] {
        self.section(Section::Strings)
    }

    /// The name of `len` bytes at `offset` of the strings; `"?"` if there is none.
    #[must_use]
    pub fn name(&self, offset: u32, len: u32) -> &'a str {
        let (offset, len) = (offset as usize, len as usize);
        offset
            .checked_add(len)
            .and_then(|end| self.section(Section::Strings).get(offset..end))
            .and_then(|bytes| core::str::from_utf8(bytes).ok())
            .unwrap_or("?")
    }

    /// The function that contains a code offset.
    #[must_use]
    pub fn function_at(&self, offset: u32) -> Option<Function> {
        let functions = self.functions();
        let function = functions.get(functions.last_not_above(offset, |f| f.start)?)?;
        (offset < function.end).then_some(function)
    }

    /// The original (offset in the original text) of the instruction at a code offset.
    #[must_use]
    pub fn origin_of(&self, offset: u32) -> Option<u32> {
        let origins = self.origins();
        Some(origins.get(origins.last_not_above(offset, |o| o.offset)?)?.original)
    }
}

/// The FNV-1a 64 hash of `bytes`.
#[must_use]
pub fn text_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Frame;
    use alloc::vec;
    use alloc::vec::Vec;

    fn sample() -> Vec<u8> {
        let mut b = ImageBuilder { mirror: true, mask_bits: 46, code: vec![0xc3; 5], ..Default::default() };
        let (name, name_len) = b.name("first");
        b.functions.push(Function {
            start: 0,
            end: 5,
            name,
            name_len,
            domain: 0xffff_ffff_c020_1000,
            frame: 8,
            stack_args: 1,
        });
        let state = b.state(State { regs: 0x21, frame: Frame { depth: 3, saved: [1, 2, 0, 0, 0, 3] } });
        b.labels.push(Label { offset: 0, state });
        b.addresses.push(Address { domain: 0xffff_ffff_c020_1000, function: 0 });
        b.origins.push(Origin { offset: 0, original: 16 });
        b.origins.push(Origin { offset: 3, original: 20 });
        b.build()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = sample();
        let image = Image::parse(&bytes).expect("parses");
        assert_eq!((image.mode, image.mask_bits), (Mode::Mirror, 46));
        assert_eq!(image.code(), [0xc3; 5]);
        let function = image.function_at(4).expect("inside");
        assert_eq!(image.name(function.name, function.name_len), "first");
        assert_eq!(image.function_at(5), None);
        assert_eq!(image.states().get(0).expect("one").frame.saved, [1, 2, 0, 0, 0, 3]);
        assert_eq!((image.origin_of(2), image.origin_of(4)), (Some(16), Some(20)));
    }

    #[test]
    fn cut_short_it_is_refused() {
        let bytes = sample();
        for len in 0..bytes.len() - 16 {
            assert!(Image::parse(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_section_outside_the_bytes_is_refused() {
        for n in 0..SECTIONS {
            let mut bytes = sample();
            bytes[64 + 8 * n + 4..64 + 8 * n + 8].copy_from_slice(&0x7fff_ffe0u32.to_le_bytes());
            assert_eq!(Image::parse(&bytes).err(), Some(FormatError::Section(n)));
        }
    }
}
