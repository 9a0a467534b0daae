//! The domain that has booted and waits to take the place of the one that is the way out: when it is made, and when it goes.
//!
//! It is made from the same configuration, with another name and without devices. What it is can be seen, so nothing is written down.

use super::boot::Seen;
use super::look::{Act, Domain, Errand, Look};
use std::time::Duration;

/// So long is waited after one that could not be made, has not booted, or has ended, before another one is made.
const AGAIN: Duration = Duration::from_secs(60);
/// So often the toolstack is asked to destroy one.
const AGAIN_DISMISS: Duration = Duration::from_secs(5);

/// Its name.
pub fn name_of(driver: &str) -> String {
    format!("{driver}-standby")
}

/// The name of one that has died, and whose place and devices another one has: it is to be destroyed.
pub fn remains_of(driver: &str) -> String {
    format!("{driver}-remains")
}

/// What is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// There is to be one.
    There,
    /// If there is one it is to stay.
    Kept,
    /// There is to be none.
    Gone,
}

/// Whether it can take the place.
pub fn is_usable(domain: &Domain) -> bool {
    domain.end.is_none() && !domain.is_dying && !domain.is_paused
}

/// How it goes with it.
#[derive(Debug)]
pub struct Standby {
    /// It has booted within this time.
    limit: Duration,
    /// The toolstack works on it.
    is_at_work: bool,
    /// The next thing is not done before.
    from: Duration,
    seen: Option<Seen>,
    /// The one that knows the PCI back end.
    introduced: Option<u16>,
}

impl Standby {
    /// There is none.
    pub fn new(limit: Duration) -> Self {
        Self { limit, is_at_work: false, from: Duration::ZERO, seen: None, introduced: None }
    }

    /// What the toolstack said, if it was asked here. Told once.
    pub fn take_result(&mut self, look: &Look) -> Option<Result<(), String>> {
        let Errand::Done(result) = &look.errand else { return None };
        if !std::mem::take(&mut self.is_at_work) {
            return None;
        }
        Some(result.clone().map_err(|why| {
            self.from = look.now + AGAIN;
            format!("the one that is to wait: {why}")
        }))
    }

    /// The next thing to do with it. No toolstack is at work.
    pub fn next(&mut self, wish: Wish, look: &Look, said: &mut Vec<String>) -> Option<Act> {
        let Some(there) = &look.standby else {
            (self.seen, self.introduced) = (None, None);
            let is_due = wish == Wish::There && look.has_devices && look.is_served && look.now >= self.from;
            return is_due.then(|| self.ask(Act::CreateStandby));
        };
        if there.is_dying {
            return None;
        }
        let has_ended = there.end.is_some();
        if wish == Wish::Gone || has_ended {
            if look.now < self.from {
                return None;
            }
            if has_ended {
                said.push(format!("domain {}, which waited, has ended", there.id));
            } else {
                said.push(format!("domain {} is not to wait any more, and goes", there.id));
            }
            self.from = look.now + if has_ended { AGAIN } else { AGAIN_DISMISS };
            return Some(self.ask(Act::Dismiss(there.id)));
        }
        let act = self.watch(there, look, said);
        // Elsewhere it is being waited for by others, who know how long.
        act.or_else(|| if wish == Wish::There { self.give_up(there, look, said) } else { None })
    }

    /// One that has booted is introduced to the PCI back end, once.
    pub fn introduce(&mut self, domain: u16) -> Option<Act> {
        if !self.has_booted(domain) || self.introduced == Some(domain) {
            return None;
        }
        self.introduced = Some(domain);
        Some(Act::Introduce(domain))
    }

    /// The one that has booted, and waits.
    pub fn ready(&self) -> Option<u16> {
        self.seen.filter(Seen::has_booted).map(|seen| seen.id())
    }

    /// The same, of this domain.
    pub fn has_booted(&self, domain: u16) -> bool {
        self.seen.is_some_and(|seen| seen.is_of(domain) && seen.has_booted())
    }

    /// This one has been rolled back, and waits.
    pub fn has_gone_back(&mut self, there: &Domain, now: Duration) {
        (self.seen, self.introduced) = (Some(Seen::has_gone_back(there, now)), None);
    }

    fn ask(&mut self, act: Act) -> Act {
        self.is_at_work = true;
        act
    }

    /// It boots, or waits.
    fn watch(&mut self, there: &Domain, look: &Look, said: &mut Vec<String>) -> Option<Act> {
        let seen = self.seen.get_or_insert(Seen::new(there, look.now));
        if seen.look(there, look.now) {
            said.push(format!("domain {} waits to take its place", there.id));
        }
        seen.is_half_built(there, look.now).then(|| self.ask(Act::Dismiss(there.id)))
    }

    /// One that does not boot is of no use, and would get the place before whoever else could.
    fn give_up(&mut self, there: &Domain, look: &Look, said: &mut Vec<String>) -> Option<Act> {
        let is_late = self.seen.is_some_and(|seen| !seen.has_booted() && seen.age(look.now) >= self.limit);
        if !is_late || look.now < self.from {
            return None;
        }
        said.push(format!("domain {} has not booted within {} s, and goes", there.id, self.limit.as_secs()));
        self.from = look.now + AGAIN;
        Some(self.ask(Act::Dismiss(there.id)))
    }
}
