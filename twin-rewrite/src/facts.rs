//! What the emitter knows at a point of the new code: which registers hold translated copies of what, and what is
//! saved.

use crate::regs::{RegSet, RSP};
use std::collections::BTreeSet;

/// Whose translation a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The value of this register of the original program, minus an offset.
    Register(u8, i64),
    /// This address of the driver domain.
    Address(u64),
    /// Not a translation: the distance from the stack to its unsafe twin.
    Delta,
    /// Not a translation: the address of the translation table.
    Table,
}

/// Register `holder` holds the translation of `source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    /// The register of the new code.
    pub holder: u8,
    /// What it holds.
    pub source: Source,
}

/// Everything known at a point.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Translated copies.
    pub copies: BTreeSet<Fact>,
    /// Original registers whose value is below 2^32.
    pub narrow: RegSet,
    /// Callee-saved registers that the function has pushed.
    pub saved: RegSet,
}

impl Facts {
    /// What holds on both of two ways.
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            copies: self.copies.intersection(&other.copies).copied().collect(),
            narrow: self.narrow & other.narrow,
            saved: self.saved & other.saved,
        }
    }

    /// Whether everything claimed here is known there.
    pub fn implied_by(&self, other: &Self) -> bool {
        self.copies.is_subset(&other.copies)
            && (self.narrow & !other.narrow).is_empty()
            && (self.saved & !other.saved).is_empty()
    }

    /// Registers that hold something.
    pub fn holders(&self) -> RegSet {
        self.copies.iter().fold(RegSet::NONE, |set, f| set | RegSet::one(f.holder))
    }

    /// The holder of a translation of register `base`, nearest in offset, within `reach` of `displacement`.
    pub fn find(&self, base: u8, reach: impl Fn(i64) -> bool) -> Option<(u8, i64)> {
        self.copies
            .iter()
            .filter_map(|f| match f.source {
                Source::Register(b, offset) if b == base && reach(offset) => Some((f.holder, offset)),
                _ => None,
            })
            .min_by_key(|(holder, offset)| (offset.abs(), *holder))
    }

    /// The holder of a translation of an address near `address`.
    pub fn find_address(&self, address: u64, reach: impl Fn(i64) -> bool) -> Option<(u8, i64)> {
        self.copies.iter().find_map(|f| match f.source {
            Source::Address(a) if reach(address.wrapping_sub(a) as i64) => {
                Some((f.holder, address.wrapping_sub(a) as i64))
            }
            _ => None,
        })
    }

    /// The holder of a constant.
    pub fn find_constant(&self, source: Source) -> Option<u8> {
        self.copies.iter().find(|f| f.source == source).map(|f| f.holder)
    }

    /// Forgets what register `r` holds.
    pub fn drop_holder(&mut self, r: u8) {
        self.copies.retain(|f| f.holder != r);
    }

    /// Notes that registers were written in a way that leaves nothing known.
    pub fn forget(&mut self, written: RegSet) {
        self.copies.retain(|f| {
            let source = matches!(f.source, Source::Register(b, _) if written.has(b));
            !written.has(f.holder) && !source
        });
        self.narrow = self.narrow & !written;
    }

    /// Notes `to = from + by` on original registers: translations of `from` are translations of `to`.
    pub fn derive(&mut self, to: u8, from: u8, by: i64, narrow: bool) {
        let mut moved: Vec<Fact> = Vec::new();
        for f in &self.copies {
            if let Source::Register(b, offset) = f.source {
                if b == from && f.holder != to {
                    let offset = offset.wrapping_add(by);
                    if i32::try_from(offset).is_ok() {
                        moved.push(Fact { holder: f.holder, source: Source::Register(to, offset) });
                    }
                }
            }
        }
        self.forget(RegSet::one(to));
        self.copies.extend(moved);
        if narrow {
            self.narrow |= RegSet::one(to);
        }
    }

    /// Drops what is not of use where only `live` original registers matter, and holders that are live themselves.
    pub fn prune(&mut self, live: RegSet) {
        self.copies.retain(|f| {
            let of_use = match f.source {
                Source::Register(b, _) => live.has(b) && b != RSP,
                Source::Address(_) | Source::Delta | Source::Table => true,
            };
            of_use && !live.has(f.holder)
        });
    }

    /// Keeps what survives a call.
    pub fn after_call(&mut self) {
        self.forget(RegSet::CALLER_SAVED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(holder: u8, base: u8, offset: i64) -> Fact {
        Fact { holder, source: Source::Register(base, offset) }
    }

    #[test]
    fn a_copy_of_a_base_carries_its_translation_with_the_offset() {
        let mut f = Facts::default();
        f.copies.insert(fact(11, 3, 0));
        f.derive(5, 3, 16, false);
        assert_eq!(f.find(5, |_| true), Some((11, 16)));
        f.forget(RegSet::one(3));
        assert_eq!(f.find(3, |_| true), None);
        assert_eq!(f.find(5, |_| true), Some((11, 16)));
        f.forget(RegSet::one(11));
        assert_eq!(f.find(5, |_| true), None);
    }

    #[test]
    fn adding_to_a_base_in_place_keeps_its_translation() {
        let mut f = Facts::default();
        f.copies.insert(fact(11, 3, 0));
        f.derive(3, 3, 8, false);
        assert_eq!(f.find(3, |_| true), Some((11, 8)));
    }

    #[test]
    fn a_call_leaves_only_what_callee_saved_registers_hold() {
        let mut f = Facts::default();
        f.copies.extend([fact(11, 3, 0), fact(12, 3, 0), fact(13, 0, 0)]);
        f.after_call();
        assert_eq!(f.copies.into_iter().collect::<Vec<_>>(), [fact(12, 3, 0)]);
    }
}
