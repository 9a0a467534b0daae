//! Passes over many frames: what they do for each counts, until it is worth a step.

use super::{MmuEnv, MmuError};
use crate::allowance::STEP;
use crate::snapshot::Stop;

/// There are no steps left.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutOfSteps;

impl From<OutOfSteps> for MmuError {
    fn from(_: OutOfSteps) -> Self {
        Self::Preempted
    }
}

impl From<OutOfSteps> for Stop {
    fn from(_: OutOfSteps) -> Self {
        Self::Preempted
    }
}

/// Work since the last step.
pub(super) struct Work(u32);

impl Work {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self(0)
    }

    /// Adds what was done; a frame that was only looked at is 1.
    #[inline]
    pub(super) fn add(&mut self, work: u32, env: &impl MmuEnv) -> Result<(), OutOfSteps> {
        self.0 += work;
        while self.0 >= STEP {
            self.0 -= STEP;
            env.step();
            if env.is_out_of_steps() {
                return Err(OutOfSteps);
            }
        }
        Ok(())
    }
}
