//! Faults in a driver's data: which of its words are worth spoiling, and what becomes of them.

use crate::mutate::DataFault;
use crate::random::Random;

/// Indices into rings are below this.
const MOST_INDEX: u64 = 4096;
/// No data lies below.
const PAGE: u64 = 4096;

/// Words worth spoiling, by what they look like.
#[derive(Debug, Default)]
pub struct Places {
    words: Vec<u64>,
    pointers: Vec<u64>,
    functions: Vec<u64>,
    /// Physical addresses, as descriptors hold them.
    dma: Vec<u64>,
    /// Small numbers of four bytes: ring indices, counts, lengths.
    indices: Vec<u64>,
}

impl Places {
    /// The word of eight bytes at `place` is `value`. The driver's text is where `is_text` says, and no device reaches
    /// memory from `memory` on.
    pub fn note(&mut self, place: u64, value: u64, is_text: impl FnOnce(u64) -> bool, memory: u64) {
        self.words.push(place);
        match value {
            v if is_text(v) => self.functions.push(place),
            v if v >> 47 == 0x1_ffff => self.pointers.push(place),
            PAGE.. if value < memory => self.dma.push(place),
            _ => {}
        }
        let halves = [(place, value & 0xffff_ffff), (place + 4, value >> 32)];
        self.indices.extend(halves.iter().filter(|half| half.1 < MOST_INDEX).map(|half| half.0));
    }

    /// One where there may be such a fault. `None`: there is none.
    pub fn choose(&self, fault: DataFault, r: &mut Random) -> Option<u64> {
        let from = match fault {
            DataFault::BitFlip => &self.words,
            DataFault::DmaAddress => &self.dma,
            DataFault::NullPointer | DataFault::WildPointer => &self.pointers,
            DataFault::FunctionPointer => &self.functions,
            DataFault::RingIndex => &self.indices,
        };
        if from.is_empty() {
            return None;
        }
        from.get(r.below(from.len() as u64) as usize).copied()
    }
}

/// What becomes of a word that was `old`, and how many of its bytes are written.
pub fn spoilt(fault: DataFault, old: u64, r: &mut Random) -> (u64, usize) {
    let wild = match r.below(4) {
        0 => r.draw(),
        1 => r.draw() | 0xffff_8000_0000_0000,
        2 => old ^ 1 << r.below(48),
        _ => r.below(1 << 47),
    };
    match fault {
        DataFault::BitFlip => (old ^ 1 << r.below(64), 8),
        DataFault::NullPointer => (0, 8),
        DataFault::WildPointer | DataFault::FunctionPointer | DataFault::DmaAddress => (wild, 8),
        DataFault::RingIndex if r.one_in(4) => (r.draw(), 4),
        DataFault::RingIndex => (r.below(1 << 16), 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart_by_what_they_look_like() {
        let mut places = Places::default();
        let text = 0xffff_ffff_c000_1000;
        for (place, value) in [(0, text), (8, 0xffff_8880_0000_0000), (16, 0x7000), (24, 3), (32, 1 << 40)] {
            places.note(place, value, |v| v == text, 1 << 32);
        }
        let r = &mut Random::new(1);
        let mut seen = |fault| {
            let mut all: Vec<u64> = (0..100).filter_map(|_| places.choose(fault, r)).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        assert_eq!(seen(DataFault::FunctionPointer), [0]);
        assert_eq!(seen(DataFault::WildPointer), [8]);
        assert_eq!(seen(DataFault::DmaAddress), [16]);
        assert_eq!(seen(DataFault::RingIndex), [8, 20, 24, 28, 32, 36]);
        assert_eq!(seen(DataFault::BitFlip), [0, 8, 16, 24, 32]);
        assert_eq!(Places::default().choose(DataFault::BitFlip, r), None);
    }

    #[test]
    fn a_fault_is_what_its_class_says() {
        let r = &mut Random::new(2);
        for _ in 0..100 {
            assert_eq!(spoilt(DataFault::NullPointer, 7, r), (0, 8));
            assert_eq!((spoilt(DataFault::BitFlip, 7, r).0 ^ 7).count_ones(), 1);
            assert_eq!(spoilt(DataFault::RingIndex, 7, r).1, 4);
        }
    }
}
