//! The domain that has booted and waits to take the place of the one that is the way out: when it is made, and when it
//! goes.
//!
//! It is made from the same configuration, with another name and without devices. What it is can be seen, so nothing is
//! written down.

use super::boot::Seen;
use super::look::{Act, Domain, Errand, Look};
use std::time::Duration;

/// So long is waited after one that could not be made, has not booted, or has ended, before another one is made.
const AGAIN: Duration = Duration::from_secs(60);
/// The same after one that could not be made again and again: twice as long each time, so long at most.
const LONGEST: Duration = Duration::from_secs(900);
/// How toolstacks say that there is no memory for a domain.
const NO_MEMORY: [&str; 4] = ["free memory", "enough memory", "allocate memory", "out of memory"];
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

/// Whether a toolstack that says this had no memory for a domain.
fn lacks_memory(why: &str) -> bool {
    let why = why.to_lowercase();
    NO_MEMORY.iter().any(|words| why.contains(words))
}

/// How it goes with it.
#[derive(Debug)]
pub struct Standby {
    /// It has booted within this time.
    limit: Duration,
    /// The toolstack makes it.
    is_at_work: bool,
    /// So many times in a row none could be made.
    in_vain: u32,
    /// The next thing is not done before.
    from: Duration,
    seen: Option<Seen>,
    /// The one that knows the PCI back end.
    introduced: Option<u16>,
    /// The one that was begun to be destroyed: what is wanted later does not make it whole again.
    leaving: Option<u16>,
}

impl Standby {
    /// There is none.
    pub fn new(limit: Duration) -> Self {
        Self { limit, is_at_work: false, in_vain: 0, from: Duration::ZERO, seen: None, introduced: None, leaving: None }
    }

    /// What the toolstack said of one that it was to make, if it was asked here. Told once.
    pub fn take_result(&mut self, look: &Look) -> Option<Result<(), String>> {
        let Errand::Done(result) = &look.side else { return None };
        if !std::mem::take(&mut self.is_at_work) {
            return None;
        }
        Some(result.clone().map_err(|why| {
            let wait = AGAIN.saturating_mul(1 << self.in_vain.min(8)).min(LONGEST);
            self.in_vain = self.in_vain.saturating_add(1);
            self.from = look.now + wait;
            let again = format!("that is tried again after {} s", wait.as_secs());
            match lacks_memory(&why) {
                true => format!(
                    "there is too little memory for one that waits, and it goes on without; {again}, and `xl info` says what is free: {why}"
                ),
                false => format!("the one that is to wait cannot be made, and it goes on without; {again}: {why}"),
            }
        }))
    }

    /// The next thing to do with it. No toolstack is at work.
    pub fn next(&mut self, wish: Wish, look: &Look, said: &mut Vec<String>) -> Option<Act> {
        let Some(there) = &look.standby else {
            (self.seen, self.introduced, self.leaving) = (None, None, None);
            let is_due = wish == Wish::There && look.has_devices && look.is_served && look.now >= self.from;
            self.is_at_work |= is_due;
            return is_due.then_some(Act::CreateStandby);
        };
        if there.is_dying || look.dismissing.contains(&there.id) {
            return None;
        }
        let has_ended = there.end.is_some();
        if wish == Wish::Gone || has_ended || self.leaving == Some(there.id) {
            if look.now < self.from {
                return None;
            }
            if has_ended {
                said.push(format!("domain {}, which waited, has ended", there.id));
            } else {
                said.push(format!("domain {} is not to wait any more, and goes", there.id));
            }
            self.from = look.now + if has_ended { AGAIN } else { AGAIN_DISMISS };
            return Some(self.dismiss(there.id));
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
        (self.seen, self.introduced, self.leaving) = (Some(Seen::has_gone_back(there, now)), None, None);
    }

    fn dismiss(&mut self, domain: u16) -> Act {
        self.leaving = Some(domain);
        Act::Dismiss(domain)
    }

    /// It boots, or waits.
    fn watch(&mut self, there: &Domain, look: &Look, said: &mut Vec<String>) -> Option<Act> {
        let seen = self.seen.get_or_insert(Seen::new(there, look.now));
        if seen.look(there, look.now) {
            self.in_vain = 0;
            said.push(format!("domain {} waits to take its place", there.id));
        }
        seen.is_half_built(there, look.now).then(|| self.dismiss(there.id))
    }

    /// One that does not boot is of no use, and would get the place before whoever else could.
    fn give_up(&mut self, there: &Domain, look: &Look, said: &mut Vec<String>) -> Option<Act> {
        let is_late = self.seen.is_some_and(|seen| !seen.has_booted() && seen.age(look.now) >= self.limit);
        if !is_late || look.now < self.from {
            return None;
        }
        said.push(format!("domain {} has not booted within {} s, and goes", there.id, self.limit.as_secs()));
        self.from = look.now + AGAIN;
        Some(self.dismiss(there.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(standby: &mut Standby, now: Duration, result: Result<(), &str>) -> Option<String> {
        let look = Look { now, has_devices: true, is_served: true, ..Look::default() };
        assert_eq!(standby.next(Wish::There, &look, &mut Vec::new()), Some(Act::CreateStandby), "{now:?}");
        let done = Look { side: Errand::Done(result.map_err(Into::into)), ..look.clone() };
        let said = standby.take_result(&done).unwrap().err();
        assert_eq!(standby.next(Wish::There, &look, &mut Vec::new()), None, "not at once");
        said
    }

    #[test]
    fn one_for_which_there_is_no_memory_is_tried_more_and_more_rarely_and_that_is_said() {
        let mut standby = Standby::new(Duration::from_secs(20));
        let (mut now, mut waits) = (Duration::from_secs(100), Vec::new());
        for why in ["failed to free memory for the domain", "xc: error: Cannot allocate memory"].iter().cycle().take(7)
        {
            let said = made(&mut standby, now, Err(why)).unwrap();
            assert!(said.starts_with("there is too little memory for one that waits") && said.ends_with(why), "{said}");
            waits.push((standby.from - now).as_secs());
            assert!(said.contains(&format!("again after {} s", waits.last().unwrap())), "{said}");
            now = standby.from;
        }
        assert_eq!(waits, [60, 120, 240, 480, 900, 900, 900]);
        let said = made(&mut standby, now, Err("no such kernel")).unwrap();
        assert!(said.starts_with("the one that is to wait cannot be made"), "{said}");
        // One that has booted shows that there is enough.
        now = standby.from;
        standby.is_at_work = false;
        let mut look = Look { now, has_devices: true, is_served: true, ..Look::default() };
        look.standby = Some(Domain { id: 7, beats: vec![super::super::health::Beat::default()], ..Domain::default() });
        for n in 0..100 {
            look.now = now + Duration::from_millis(n * 100);
            let beat = &mut look.standby.as_mut().unwrap().beats[0];
            (beat.upcalls, beat.run) = (u32::try_from(n).unwrap().min(9), Duration::from_millis((n * 90).min(900)));
            assert_eq!(standby.next(Wish::There, &look, &mut Vec::new()), None);
        }
        assert!(standby.has_booted(7));
        look.standby = None;
        assert!(made(&mut standby, look.now, Err("Not enough memory")).is_some());
        assert_eq!(standby.from - look.now, AGAIN);
    }
}
