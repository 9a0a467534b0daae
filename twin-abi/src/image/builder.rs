//! Writing an image. Rewriters and tests do; verifier and runtime only read.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Address, Function, Import, Label, Origin, Record, Stats, HEADER_BYTES, MAGIC, SECTIONS, VERSION};
use crate::kind::State;

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
