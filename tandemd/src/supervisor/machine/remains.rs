//! What is left of instances whose place was taken: when it is cleared away.
//!
//! Each is tried by itself: one that the toolstack does not destroy keeps no other one. That may be for a reason that
//! passes, as that there is no room for another process, so it is tried on and on, seldom in the end.
//!
//! Where the machine has memory for another instance that is made at once, beside them.

use super::super::look::{Act, Look};
use super::going::{AGAIN, TRIES};
use super::{Machine, Phase};
use std::time::Duration;

/// So long after a recovery what is left of the old instance is not cleared away: guests have waited, and do first what
/// they want to.
const CALM: Duration = Duration::from_secs(1);
/// So often one is tried that could not be cleared away for long.
const SELDOM: Duration = Duration::from_secs(60);

/// How it went so far with one of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    times: u32,
    /// It is not tried again before.
    next: Duration,
}

impl Tried {
    /// Nobody waits for its memory any more.
    fn is_given_up(self) -> bool {
        self.times > TRIES
    }
}

impl Machine {
    /// What is left of those whose place was taken, when nobody waits for packets any more.
    pub(super) fn clear_away(&mut self, look: &Look) -> Option<Act> {
        let is_urgent = match self.phase {
            Phase::HandingOver { .. } | Phase::Coming(_) => true,
            Phase::Starting => !self.lacks_room,
            Phase::Up { .. } => self.record.under_way.is_some(),
            _ => false,
        };
        if is_urgent && !look.remains.is_empty() {
            self.clear_from = self.clear_from.max(look.now + CALM);
        }
        self.cleared.retain(|id, _| look.remains.contains(id) || look.clearing.contains(id));
        if look.now < self.clear_from {
            return None;
        }
        // What is to be rolled back is no remains.
        let remains = look.remains.iter().copied().filter(|id| !self.is_kept(*id, look));
        let due = remains.filter(|id| self.tried(*id).next <= look.now);
        let domain = due.min_by_key(|id| self.tried(*id).times)?;
        self.clear_from = look.now + AGAIN;
        let mut tried = self.tried(domain);
        let was_given_up = tried.is_given_up();
        tried.times = tried.times.saturating_add(1);
        tried.next = look.now + if tried.is_given_up() { SELDOM } else { AGAIN };
        if tried.is_given_up() && !was_given_up {
            self.say(format!("what is left of domain {domain} cannot be destroyed; that is tried each minute"));
        }
        self.cleared.insert(domain, tried);
        Some(Act::ClearAway(domain))
    }

    fn tried(&self, domain: u16) -> Tried {
        self.cleared.get(&domain).copied().unwrap_or_default()
    }

    /// Another one can be made while the last instance has its memory still. Not while one before that has: whatever
    /// keeps it, and whatever failed again so soon, the toolstack clears all of it away first.
    pub(super) fn has_room(&self, look: &Look) -> bool {
        let is_alone = look.remains.iter().chain(&look.clearing).all(|id| self.beside == Some(*id));
        look.has_room && is_alone && !self.lacks_room && self.settings.standby == 0 && !self.settings.snapshot
    }

    /// The toolstack could not make another one beside what is left of others, which may be why: it is tried once more
    /// without them. `false`: there was nothing left.
    pub(super) fn was_in_want(&mut self, why: &str, look: &Look) -> bool {
        if self.lacks_room || !self.has_remains(look) {
            return false;
        }
        self.say(format!("it cannot be made beside what is left of another one, and is made again without: {why}"));
        (self.lacks_room, self.clear_from) = (true, look.now);
        self.phase = Phase::Down { from: look.now };
        true
    }

    /// Whether earlier instances have memory that will be free soon.
    pub(super) fn has_remains(&self, look: &Look) -> bool {
        look.clearing.iter().chain(&look.remains).any(|id| !self.tried(*id).is_given_up())
    }
}
