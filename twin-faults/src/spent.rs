//! Where the time of runs goes.

use std::fmt;
use std::time::{Duration, Instant};

/// What a run does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Spoil the text and write it again, or the image.
    Make,
    /// Have the hypervisor verify it, and lend it buffers.
    Load,
    /// Give it the card.
    Attach,
    /// Wait for the first packet.
    Wait,
    /// Watch packets go by.
    Watch,
    /// Take the card and the twin away; after an abort the interface goes down and up.
    Leave,
    /// Wait for the link and find the driver again.
    Settle,
}

const STEPS: [(Step, &str); 7] = [
    (Step::Make, "make"),
    (Step::Load, "load"),
    (Step::Attach, "attach"),
    (Step::Wait, "wait"),
    (Step::Watch, "watch"),
    (Step::Leave, "leave"),
    (Step::Settle, "settle"),
];

/// The sum for each step.
#[derive(Debug)]
pub struct Spent {
    sums: [Duration; STEPS.len()],
    since: Instant,
}

impl Default for Spent {
    fn default() -> Self {
        Self { sums: Default::default(), since: Instant::now() }
    }
}

impl Spent {
    /// What follows is no step, or the first.
    pub fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// All since the last step was this one.
    pub fn on(&mut self, step: Step) {
        let now = Instant::now();
        self.sums[step as usize] += now - self.since;
        self.since = now;
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = STEPS.iter().map(|(step, name)| format!("{name} {}", self.sums[*step as usize].as_millis()));
        write!(f, "{}", parts.by_ref().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_the_time_that_passed_before_it_was_told() {
        let mut spent = Spent::default();
        std::thread::sleep(Duration::from_millis(4));
        spent.on(Step::Wait);
        spent.on(Step::Leave);
        std::thread::sleep(Duration::from_millis(9));
        spent.begin();
        spent.on(Step::Settle);
        assert!(spent.sums[Step::Wait as usize] >= Duration::from_millis(4));
        assert!(spent.sums[Step::Settle as usize] < Duration::from_millis(9));
        assert!(STEPS.iter().enumerate().all(|(n, (step, _))| *step as usize == n));
        assert!(spent.to_string().starts_with("make 0, load 0, attach 0, wait "));
    }
}
