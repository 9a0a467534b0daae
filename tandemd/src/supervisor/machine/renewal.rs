//! What is left of the last one becomes the one that waits.
//!
//! With `standby = 1` and `snapshot = true` the one that waits is noted when it has booted, as the first one was. When
//! that one fails the other takes the place at once; and when guests go on, what is left of it is rolled back beside,
//! and waits. So two take turns, and nothing boots. What cannot be rolled back is cleared away, and another one boots
//! to wait.

use super::super::look::{Act, Domain, Look};
use super::super::standby::{is_usable, Wish};
use super::Machine;

/// What this daemon has tried. What an earlier one has begun is done again.
#[derive(Debug, Default)]
pub struct Renewal {
    noted: Option<u16>,
    rolled_back: Option<u16>,
}

impl Machine {
    /// One waits, and each can be rolled back.
    pub(super) fn takes_turns(&self) -> bool {
        self.settings.standby > 0 && self.settings.snapshot
    }

    /// What there is to do with what is left of the last one. The driver domain is up, and all goes on.
    pub(super) fn renew(&mut self, look: &Look) -> Option<Act> {
        if let Some(id) = self.record.rolling {
            return self.renewed(id, look);
        }
        if look.standby.is_some() || look.now < self.clear_from {
            return None;
        }
        let id = look.remains.iter().copied().find(|id| self.can_go_back(*id, look))?;
        (self.record.rolling, self.renewal.rolled_back) = (Some(id), Some(id));
        Some(Act::RollBackBeside(id))
    }

    /// The one that waits is paused, by somebody, or since it was rolled back by half. It does not take the place, and
    /// has the name that another one needs.
    pub(super) fn is_in_the_way(&self, look: &Look) -> bool {
        let begun = [self.record.noting, self.who_goes_back(look), look.noting, look.going_back];
        let is_idle = |d: &Domain| d.is_paused && d.end.is_none() && !begun.contains(&Some(d.id));
        self.settings.snapshot && self.who_waits(look).is_none() && look.standby.as_ref().is_some_and(is_idle)
    }

    /// The one that an earlier daemon was noting is paused. That is done again, so that it can take the place.
    pub(super) fn note_again(&mut self, look: &Look) -> Option<Act> {
        let there =
            look.standby.as_ref().filter(|d| !d.is_dying && d.end.is_none() && self.record.noting == Some(d.id));
        let is_free = self.takes_turns() && Self::is_idle(look) && look.noting.is_none();
        let there = there.filter(|d| !look.dismissing.contains(&d.id));
        there.filter(|_| is_free).and_then(|there| self.note_who_waits(there, look))
    }

    /// It was tried to roll it back, unless an earlier daemon was killed before.
    fn renewed(&mut self, id: u16, look: &Look) -> Option<Act> {
        let there = look.standby.as_ref().filter(|d| d.id == id);
        if let Some(there) = there.filter(|d| is_usable(d)) {
            self.standby.has_gone_back(there, look.now);
            self.record.rolling = None;
            self.record.count("rolled-back");
            self.say(format!("domain {id} is what it was when it waited"));
            return None;
        }
        if self.renewal.rolled_back != Some(id) && self.can_go_back(id, look) {
            self.renewal.rolled_back = Some(id);
            return Some(Act::RollBackBeside(id));
        }
        self.record.snapshots.remove(&id);
        if there.is_some() {
            return self.standby.next(Wish::Gone, look, &mut self.said);
        }
        self.record.rolling = None;
        self.say(format!("what is left of domain {id} is of no use, and another one boots to wait"));
        None
    }

    /// One that waits and has booted is noted before it gets to know anybody: what it has of others' cannot be noted.
    pub(super) fn note_who_waits(&mut self, there: &Domain, look: &Look) -> Option<Act> {
        let id = there.id;
        if self.record.noting == Some(id) && self.renewal.noted == Some(id) {
            self.record.noting = None;
        }
        let is_to_be = is_usable(there) && self.standby.has_booted(id) && !self.record.snapshots.contains(&id);
        if !is_to_be && self.record.noting != Some(id) {
            return None;
        }
        self.renewal.noted = Some(id);
        self.forget_snapshots(look);
        self.record.snapshots.insert(id);
        self.record.noting = Some(id);
        Some(Act::Note(id))
    }
}
