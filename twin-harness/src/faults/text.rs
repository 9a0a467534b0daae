//! Faults in the driver's text, before it is rewritten.

use super::{Injection, AT_ONCE};
use crate::mutate::{self, TEXT_FAULTS};
use crate::random::Random;
use std::ops::Range;
use twin_kernel::image::policy;
use twin_rewrite::module::Module;
use twin_rewrite::variant::Base;
use twin_verify::verify;

/// The longest instruction.
const LONGEST: u64 = 15;

/// Bytes of the module's text that were changed, to be put back.
type Changed = Vec<(Range<u64>, Vec<u8>)>;

impl Injection<'_> {
    /// Injects `count` faults. Each variant goes the whole way: rewriting (of the functions that were hit) and verification of
    /// the whole image.
    pub(super) fn text(&mut self, count: u64) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        let mut module = self.hot.module.clone();
        let mut base = Base::new(&module, &self.options)?;
        let policy = policy(&self.options);
        let candidates = candidates(&mut module, &self.hot.executed);
        let (mut done, mut run) = (0, self.order.first);
        while done < count {
            let mut r = self.dice(0, run);
            let k = r.below(TEXT_FAULTS.len() as u64) as usize;
            run += 1;
            if candidates[k].is_empty() {
                continue;
            }
            let changed = inject(&mut module, &candidates[k], k, &mut r);
            let class = format!("text {:?}", TEXT_FAULTS[k]);
            let faults = changed.len() as u64;
            done += faults;
            let tally = self.count(&class, faults);
            let ranges: Vec<Range<u64>> = changed.iter().map(|c| c.0.clone()).collect();
            match base.variant(&module, &ranges) {
                Err(_) => {
                    tally.runs += 1;
                    tally.refused_rewriter += 1;
                }
                Ok(image) => match verify(&image, &policy) {
                    Err(_) => {
                        tally.runs += 1;
                        tally.refused_verifier += 1;
                    }
                    Ok(verified) => self.run(&class, verified, &mut r, run - 1)?,
                },
            }
            for (range, bytes) in changed.iter().rev() {
                put(&mut module, range.start, bytes);
            }
        }
        Ok(())
    }
}

/// For each class the executed instructions that can have such a fault.
fn candidates(module: &mut Module, executed: &[u64]) -> Vec<Vec<u64>> {
    let mut out = Vec::new();
    for fault in TEXT_FAULTS {
        let mut possible = Vec::new();
        for address in executed {
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

/// Injects one to four faults of a class into one function.
fn inject(module: &mut Module, candidates: &[u64], k: usize, r: &mut Random) -> Changed {
    let first = candidates[r.below(candidates.len() as u64) as usize];
    let function = module.functions.partition_point(|f| f.address <= first).saturating_sub(1);
    let (start, len) = (module.functions[function].address, module.functions[function].len);
    let near: Vec<u64> = candidates.iter().copied().filter(|a| a.wrapping_sub(start) < len).collect();
    let wanted = 1 + r.below(AT_ONCE);
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
