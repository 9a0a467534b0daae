//! Faults in a driver's text, before it is rewritten: where each class of them can be, and putting some there.

use crate::mutate::{self, TEXT_FAULTS};
use crate::random::Random;
use std::ops::Range;
use twin_rewrite::module::Module;

/// Most faults of one run, unless something else is asked for.
pub const AT_ONCE: u64 = 4;
/// The longest instruction.
const LONGEST: u64 = 15;

/// Bytes of the module's text that were changed, to be put back.
pub type Changed = Vec<(Range<u64>, Vec<u8>)>;

/// For each class those of the instructions at `addresses` that can have such a fault.
pub fn candidates(module: &mut Module, addresses: &[u64]) -> Vec<Vec<u64>> {
    let mut out = Vec::new();
    for fault in TEXT_FAULTS {
        let mut possible = Vec::new();
        for address in addresses {
            let old = get(module, *address);
            // Some choices come to nothing; of a few, one does not.
            if (0..8).any(|n| mutate::text(module, *address, fault, &mut Random::new(n))) {
                possible.push(*address);
            }
            put(module, *address, &old);
        }
        out.push(possible);
    }
    out
}

/// Injects one to `most` faults of class `k` into one function.
pub fn inject(module: &mut Module, candidates: &[u64], k: usize, most: u64, r: &mut Random) -> Changed {
    let first = candidates[r.below(candidates.len() as u64) as usize];
    let function = module.functions.partition_point(|f| f.address <= first).saturating_sub(1);
    let (start, len) = (module.functions[function].address, module.functions[function].len);
    let near: Vec<u64> = candidates.iter().copied().filter(|a| a.wrapping_sub(start) < len).collect();
    let wanted = 1 + r.below(most);
    let mut changed = Changed::new();
    let mut address = first;
    for _ in 0..8 * wanted {
        let old = get(module, address);
        if mutate::text(module, address, TEXT_FAULTS[k], r) {
            changed.push((address..address + LONGEST.min(old.len() as u64), old));
            if changed.len() as u64 == wanted {
                break;
            }
        }
        address = near.get(r.below(near.len() as u64) as usize).copied().unwrap_or(first);
    }
    changed
}

/// Puts back what was changed.
pub fn undo(module: &mut Module, changed: &Changed) {
    for (range, bytes) in changed.iter().rev() {
        put(module, range.start, bytes);
    }
}

fn get(module: &Module, address: u64) -> Vec<u8> {
    let Some(s) = module.section(address) else { return Vec::new() };
    let at = (address - s.address) as usize;
    s.bytes[at..(at + LONGEST as usize).min(s.bytes.len())].to_vec()
}

fn put(module: &mut Module, address: u64, bytes: &[u8]) {
    if let Some(s) = module.sections.iter_mut().find(|s| s.contains(address)) {
        let at = (address - s.address) as usize;
        s.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
