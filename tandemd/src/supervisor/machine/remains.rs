//! What is left of instances whose place was taken: when it is cleared away.

use super::super::look::{Act, Look};
use super::{Machine, Phase, AGAIN, TRIES};
use std::time::Duration;

/// So long after a recovery what is left of the old instance is not cleared away: guests have waited, and do first what they want to.
const CALM: Duration = Duration::from_secs(1);

impl Machine {
    /// What is left of those whose place was taken, when nobody waits for packets any more.
    pub(super) fn clear_away(&mut self, look: &Look) -> Option<Act> {
        let is_urgent = match self.phase {
            Phase::HandingOver { .. } | Phase::Coming(_) => true,
            Phase::Up { .. } => self.record.under_way.is_some(),
            _ => false,
        };
        if is_urgent && !look.remains.is_empty() {
            self.clear_from = self.clear_from.max(look.now + CALM);
        }
        // What is to be rolled back is no remains.
        let remains: Vec<u16> = look.remains.iter().copied().filter(|id| !self.is_kept(*id, look)).collect();
        if remains.is_empty() {
            self.nr_cleared = if look.is_clearing { self.nr_cleared } else { 0 };
            return None;
        }
        if look.now < self.clear_from || self.nr_cleared > TRIES {
            return None;
        }
        self.clear_from = look.now + AGAIN;
        self.nr_cleared += 1;
        let place = usize::try_from(self.nr_cleared).unwrap_or(0) % remains.len();
        let next = remains.get(place).copied();
        if self.nr_cleared > TRIES {
            self.say("what is left of earlier ones cannot be destroyed");
            return None;
        }
        next.map(Act::ClearAway)
    }

    /// Whether earlier instances have memory that will be free soon.
    pub(super) fn has_remains(&self, look: &Look) -> bool {
        look.is_clearing || !look.remains.is_empty() && self.nr_cleared <= TRIES
    }
}
