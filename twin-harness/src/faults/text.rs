//! Faults in the driver's text, before it is rewritten.

use super::Injection;
use crate::mutate::TEXT_FAULTS;
use std::ops::Range;
use twin_faults::text::{candidates, inject, undo, AT_ONCE};
use twin_kernel::image::policy;
use twin_rewrite::variant::Base;
use twin_verify::verify;

impl Injection<'_> {
    /// Injects `count` faults. Each variant goes the whole way: rewriting (of the functions that were hit) and
    /// verification of the whole image.
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
            let changed = inject(&mut module, &candidates[k], k, AT_ONCE, &mut r);
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
            undo(&mut module, &changed);
        }
        Ok(())
    }
}
