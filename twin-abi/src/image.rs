//! The twin image: one byte string, little-endian, a header and eight sections.
//!
//! Only the section `Code` becomes executable; everything else is read by verifier and runtime. All tables are arrays of
//! fixed-size records. The reader checks that sections lie inside the bytes and hold whole records; what the records say
//! is checked by the verifier.
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

use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use crate::kind::{Frame, State};

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
    /// [`Label`] records, sorted by `offset`, no duplicates. Every jump target inside a function and every function start is a label.
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

/// One function: a contiguous range of the code, entered only at `start`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Code offset of the entry. There is a label here; its declared frame is empty.
    pub start: u32,
    /// Code offset after the last byte.
    pub end: u32,
    /// Name: offset into the strings.
    pub name: u32,
    /// Name: bytes.
    pub name_len: u32,
    /// Address of the original function.
    pub domain: u64,
    /// Deepest frame in bytes.
    pub frame: u32,
    /// Eight-byte words of stack arguments above the return address that the function may read and write.
    pub stack_args: u32,
}

/// Bit of [`Label::state`]: the label is a charge point (rule B1).
pub const LABEL_CHARGE: u32 = 1 << 31;

/// A place that can be jumped to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Code offset.
    pub offset: u32,
    /// Index of the declared state, with [`LABEL_CHARGE`] in bit 31.
    pub state: u32,
}

/// A function that may be entered by its domain address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Domain address.
    pub domain: u64,
    /// Index of the function.
    pub function: u32,
}

/// A function outside the module that the code calls by `call [rip+slot]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// Name: offset into the strings.
    pub name: u32,
    /// Name: bytes.
    pub name_len: u32,
    /// Domain address, the target of an upcall.
    pub domain: u64,
}

/// Where code comes from, for reports of aborts: the instructions from `offset` on stem from the original at `text + original`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Code offset.
    pub offset: u32,
    /// Offset in the original text.
    pub original: u32,
}

/// A fixed-size record of a section.
pub trait Record: Copy {
    /// Bytes of one record.
    const BYTES: usize;
    /// Reads a record from exactly [`Self::BYTES`] bytes.
    fn read(bytes: &[u8]) -> Self;
    /// Appends the record.
    fn write(&self, out: &mut Vec<u8>);
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    match b.get(at..at + 2) {
        Some(&[a, b]) => u16::from_le_bytes([a, b]),
        _ => 0,
    }
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Record for Function {
    const BYTES: usize = 32;
    fn read(b: &[u8]) -> Self {
        Self {
            start: u32_at(b, 0),
            end: u32_at(b, 4),
            name: u32_at(b, 8),
            name_len: u32::from(u16_at(b, 12)),
            stack_args: u32::from(u16_at(b, 14)),
            domain: u64_at(b, 16),
            frame: u32_at(b, 24),
        }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.start.to_le_bytes());
        out.extend(self.end.to_le_bytes());
        out.extend(self.name.to_le_bytes());
        out.extend(u16::try_from(self.name_len).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(u16::try_from(self.stack_args).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(self.domain.to_le_bytes());
        out.extend(self.frame.to_le_bytes());
        out.extend([0; 4]);
    }
}

impl Record for Label {
    const BYTES: usize = 8;
    fn read(b: &[u8]) -> Self {
        Self { offset: u32_at(b, 0), state: u32_at(b, 4) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.state.to_le_bytes());
    }
}

impl Record for State {
    const BYTES: usize = 16;
    fn read(b: &[u8]) -> Self {
        let mut saved = [0; 6];
        if let Some(s) = b.get(10..16) {
            saved.copy_from_slice(s);
        }
        Self { regs: u64_at(b, 0), frame: Frame { depth: u16_at(b, 8), saved } }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.regs.to_le_bytes());
        out.extend(self.frame.depth.to_le_bytes());
        out.extend(self.frame.saved);
    }
}

impl Record for Address {
    const BYTES: usize = 16;
    fn read(b: &[u8]) -> Self {
        Self { domain: u64_at(b, 0), function: u32_at(b, 8) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.domain.to_le_bytes());
        out.extend(self.function.to_le_bytes());
        out.extend([0; 4]);
    }
}

impl Record for Import {
    const BYTES: usize = 16;
    fn read(b: &[u8]) -> Self {
        Self { name: u32_at(b, 0), name_len: u32_at(b, 4), domain: u64_at(b, 8) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.name.to_le_bytes());
        out.extend(self.name_len.to_le_bytes());
        out.extend(self.domain.to_le_bytes());
    }
}

impl Record for Origin {
    const BYTES: usize = 8;
    fn read(b: &[u8]) -> Self {
        Self { offset: u32_at(b, 0), original: u32_at(b, 4) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.original.to_le_bytes());
    }
}

/// A section as an array of records, read where they are.
#[derive(Debug)]
pub struct Records<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<T>,
}

impl<T> Clone for Records<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Records<'_, T> {}

impl<'a, T: Record + 'a> Records<'a, T> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, of: PhantomData }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / T::BYTES
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Record `index`, if there is one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<T> {
        let at = index.checked_mul(T::BYTES)?;
        self.bytes.get(at..at.checked_add(T::BYTES)?).map(T::read)
    }

    /// All records in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + 'a {
        self.bytes.chunks_exact(T::BYTES).map(T::read)
    }

    /// Index of the last record whose `key` is not above `value`, in a section sorted by `key`.
    pub fn last_not_above<K: Ord>(&self, value: K, key: impl Fn(&T) -> K) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if key(&self.get(middle)?) <= value {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
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

/// Collects what goes into an image and writes it.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of the image")]
pub struct ImageBuilder {
    pub mirror: bool,
    pub flags: u32,
    pub mask_bits: u32,
    pub text: u64,
    pub text_bytes: u64,
    pub text_hash: u64,
    pub indirect_args: u32,
    pub stats: Stats,
    pub code: Vec<u8>,
    pub functions: Vec<Function>,
    pub labels: Vec<Label>,
    pub states: Vec<State>,
    pub addresses: Vec<Address>,
    pub imports: Vec<Import>,
    pub strings: String,
    pub origins: Vec<Origin>,
}

impl ImageBuilder {
    /// Adds a name to the strings; returns its offset and length.
    pub fn name(&mut self, name: &str) -> (u32, u32) {
        let at = u32::try_from(self.strings.len()).unwrap_or(u32::MAX);
        self.strings.push_str(name);
        (at, u32::try_from(name.len()).unwrap_or(u32::MAX))
    }

    /// The index of `state`, which is added if it is new.
    pub fn state(&mut self, state: State) -> u32 {
        let at = self.states.iter().position(|s| *s == state).unwrap_or_else(|| {
            self.states.push(state);
            self.states.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Sorts the tables and writes the image.
    #[must_use]
    pub fn build(mut self) -> Vec<u8> {
        self.labels.sort_by_key(|l| l.offset);
        self.addresses.sort_by_key(|a| a.domain);
        self.origins.sort_by_key(|o| o.offset);
        let sections: [Vec<u8>; SECTIONS] = [
            self.code,
            records(&self.functions),
            records(&self.labels),
            records(&self.states),
            records(&self.addresses),
            records(&self.imports),
            self.strings.into_bytes(),
            records(&self.origins),
        ];
        let mut out = Vec::new();
        out.extend(MAGIC);
        for word in [VERSION, u32::from(self.mirror), self.flags, self.mask_bits] {
            out.extend(word.to_le_bytes());
        }
        for word in [self.text, self.text_bytes, self.text_hash] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.indirect_args.to_le_bytes());
        out.extend([0; 12]);
        let mut at = HEADER_BYTES;
        for section in &sections {
            out.extend(u32::try_from(at).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(u32::try_from(section.len()).unwrap_or(u32::MAX).to_le_bytes());
            at += section.len().next_multiple_of(16);
        }
        for word in self.stats.words() {
            out.extend(word.to_le_bytes());
        }
        for section in &sections {
            out.extend(section);
            out.resize(out.len().next_multiple_of(16), 0);
        }
        out
    }
}

fn records<T: Record>(all: &[T]) -> Vec<u8> {
    let mut out = Vec::new();
    for record in all {
        record.write(&mut out);
    }
    out
}

/// The FNV-1a 64 hash of `bytes`.
#[must_use]
pub fn text_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

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
