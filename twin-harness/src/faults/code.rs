//! Damage to the twin's code, after it was rewritten: with the verifier, and sometimes without, to show what it is for.

use super::{Injection, UNVERIFIED};
use crate::mutate;
use crate::rig::make;
use twin_abi::Image;
use twin_verify::verify;

/// Of so many runs, one is repeated without the verifier.
const UNVERIFIED_ONE_IN: u64 = 64;

impl Injection<'_> {
    /// Injects `count` faults, one a run.
    pub(super) fn code(&mut self, count: u64) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        let made = make(&self.hot.module, &self.options)?;
        let original = made.output.image.clone();
        let code = Image::parse(&original).map_err(|e| format!("{e:?}"))?.code_range();
        let mut bytes = original.clone();
        for run in self.order.first..self.order.first + count {
            let mut r = self.dice(2, run);
            // Nine in ten in the code, the rest anywhere: headers, labels, states, tables.
            let range = if r.one_in(10) { 0..original.len() } else { code.clone() };
            mutate::image(&mut bytes[range.clone()], &mut r);
            let tally = self.count("code", 1);
            match verify(&bytes, &made.policy) {
                Err(_) => {
                    tally.refused_verifier += 1;
                    tally.runs += 1;
                }
                Ok(verified) => self.run("code", verified, &mut r, run)?,
            }
            if run % UNVERIFIED_ONE_IN == 0 && bytes[code.clone()] != original[code.clone()] {
                let result = self.interpreted.run_unverified(made.verified()?, &bytes[code.clone()], &mut r)?;
                let tally = self.totals.entry(UNVERIFIED.into()).or_default();
                tally.faults += 1;
                tally.note(result, false, run);
            }
            bytes[range.clone()].copy_from_slice(&original[range]);
        }
        Ok(())
    }
}
