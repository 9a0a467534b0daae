//! An instance that has to go: why, how it goes, and what comes then.

use super::drain::Draining;
use super::planned::Planned;
use super::twin::Twins;
use super::{Machine, Phase, BY_OPERATOR};
use crate::supervisor::cause::Cause;
use crate::supervisor::look::{Act, Errand, Look};
use crate::supervisor::record::{ms, Mode, TimeLine};
use std::time::Duration;

/// So long is waited before the toolstack is asked again to destroy it, and so often it is asked.
pub const AGAIN: Duration = Duration::from_secs(1);
pub const TRIES: u32 = 10;
/// So long another toolstack that destroys it is let alone.
const BY_OTHERS: Duration = Duration::from_secs(15);
/// The longest wait between two starts.
const LONGEST: Duration = Duration::from_secs(60);

/// An instance that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Going {
    pub domain: u16,
    /// It reaches no memory any more.
    pub is_quarantined: bool,
    /// It was tried to take its devices without the toolstack.
    pub is_taken: bool,
    /// It sends what it has taken.
    pub draining: Option<Draining>,
    /// When the toolstack is asked to destroy it, and how often it was.
    pub next: Duration,
    pub tries: u32,
    pub then: Then,
}

/// What comes when the old instance is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    Start(Duration),
    Rest,
}

impl Machine {
    /// An instance has to go, if it is there still.
    pub(super) fn fail(&mut self, cause: Cause, domain: Option<u16>, look: &Look) -> Option<Act> {
        let told = cause.describe(&self.settings, self.words);
        let is_trial = self.call_off(&cause, &told);
        self.forget_attempts(&cause, domain);
        self.lacks_room &= self.has_remains(look);
        self.beside = None;
        let began = cause.began(look);
        match &mut self.record.under_way {
            Some(line) => line.again(cause.name(), self.words.came, began.unwrap_or(look.now), look.now),
            None => {
                let mut line = TimeLine::new(cause.name(), began.unwrap_or(look.now));
                if began.is_some() {
                    line.mark("noticed", look.now);
                }
                self.record.under_way = Some(line);
            }
        }
        (self.record.promoted, self.record.is_believed) = (None, *cause.itself() == Cause::FailedRequest);
        if let Cause::Unanswered { .. } = cause.itself() {
            self.record.slow.insert(cause.service().into());
        }
        (self.record.in_place, self.planned) = (None, Planned::default());
        (self.record.twin_given_up, self.twins) = (None, Twins::default());
        self.record.count(cause.name());
        // What is held against the new image is no failure of the one that comes back.
        let then = if is_trial { Then::Start(look.now) } else { self.decide(&cause, look.now) };
        match &then {
            Then::Start(at) if *at > look.now => {
                self.say(format!("{told}; it is started again in {} ms", ms(*at - look.now)));
            }
            Then::Start(_) => self.say(told),
            Then::Rest if self.record.mode == Mode::Parked => {
                let why = self.record.why.clone();
                self.say(format!("{told}; parked: {why}"));
            }
            Then::Rest => self.say(told),
        }
        let Some(domain) = look.domain.as_ref().filter(|d| Some(d.id) == domain) else {
            return self.rest_or_start(then, look);
        };
        self.record.going = Some(domain.id);
        let id = domain.id;
        // Of disks nothing is lost: what is not answered is asked again.
        let is_way_out = self.words.out.is_some() && look.way.is_some() || Self::is_way_out_of(look).next().is_some();
        let sends = is_way_out && domain.end.is_none() && !domain.is_paused;
        let is_followed = then != Then::Rest && self.is_followed(id, look);
        let next = if domain.is_destroyed() && !is_followed { look.now + BY_OTHERS } else { look.now };
        if domain.is_destroyed() {
            self.clear_from = look.now + BY_OTHERS;
        }
        let act = match domain.is_dying {
            true => None,
            false if cause.is_order() && sends => Some(Act::Drain(id)),
            false => Some(Act::Quarantine(id)),
        };
        let draining = matches!(act, Some(Act::Drain(_))).then(|| Draining::new(look.now));
        let is_quarantined = act == Some(Act::Quarantine(id));
        // Who destroys it may be at that.
        let is_taken = domain.is_dying;
        self.phase = Phase::Going(Going { domain: id, is_quarantined, is_taken, draining, next, tries: 0, then });
        act
    }

    /// Whether it is started again, and when.
    pub(super) fn decide(&mut self, cause: &Cause, now: Duration) -> Then {
        match cause.itself() {
            Cause::PoweredOff { with_all } => {
                (self.record.mode, self.record.with_all) = (Mode::Off, *with_all);
                self.record.under_way = None;
                return Then::Rest;
            }
            Cause::Park => return self.park(BY_OPERATOR.into(), now),
            Cause::Restart | Cause::Upgrade => return Then::Start(now),
            _ if cause.is_planned() => return Then::Start(now),
            _ if !self.settings.restart => return self.park("`restart = false`".into(), now),
            // The next one is believed. Guests can bring that about, who then would have everybody's disks parked.
            Cause::FailedRequest | Cause::Unanswered { .. } => return Then::Start(now),
            _ => {}
        }
        debug_assert!(cause.is_failure(), "the others were decided above");
        let within = ms(Duration::from_secs(self.settings.within_s));
        // Those since which it was of no use count whatever time they took: most of it may be that in which it had to
        // become ready.
        let from = self.record.under_way.as_ref().map_or(u64::MAX, |line| line.from);
        self.record.failures.retain(|at| *at >= from || ms(now).saturating_sub(*at) < within);
        self.record.failures.push(ms(now));
        let count = u32::try_from(self.record.failures.len()).unwrap_or(u32::MAX);
        if count > self.settings.crashes {
            let first = self.record.failures.first().copied().unwrap_or_default();
            let within = ms(now).saturating_sub(first).div_ceil(1000).max(self.settings.within_s);
            return self.park(format!("it failed {count} times within {within} s"), now);
        }
        let Some(doublings) = count.checked_sub(2) else { return Then::Start(now) };
        let wait = self.settings.back_off_ms.saturating_mul(1_u64.checked_shl(doublings).unwrap_or(u64::MAX));
        Then::Start(now + Duration::from_millis(wait).min(LONGEST))
    }

    pub(super) fn park(&mut self, why: String, now: Duration) -> Then {
        (self.record.mode, self.record.why, self.record.with_all) = (Mode::Parked, why, false);
        if let Some(line) = self.record.give_up(now) {
            self.say(format!("given up, {line}"));
        }
        Then::Rest
    }

    /// It is gone.
    pub(super) fn rest_or_start(&mut self, then: Then, look: &Look) -> Option<Act> {
        self.record.going = None;
        self.waits_for.clear();
        let Then::Start(from) = then else {
            self.phase = Phase::Resting;
            return None;
        };
        self.phase = Phase::Down { from };
        // At once: each look costs time in which guests wait.
        self.start(from, look)
    }

    /// It goes.
    pub(super) fn let_go(&mut self, mut going: Going, look: &Look) -> Option<Act> {
        if look.errand == Errand::Runs {
            return None;
        }
        if look.errand == Errand::ClearsAway {
            return self.follow(going, look);
        }
        let domain = going.domain;
        if look.domain.as_ref().is_none_or(|d| d.id != domain) {
            self.mark(if look.remains.contains(&domain) { "released" } else { "destroyed" }, look.now);
            return self.rest_or_start(going.then, look);
        }
        if let Errand::Done(result) = &look.errand {
            if let Err(why) = result {
                self.say(format!("xl destroy: {why}"));
            }
            self.phase = Phase::Going(Going { next: look.now + AGAIN, ..going });
            return None;
        }
        if going.tries >= TRIES {
            self.say("it cannot be destroyed");
            let then = self.park(format!("domain {domain} cannot be destroyed"), look.now);
            let act = self.rest_or_start(then, look);
            // Who lets the driver domain run again means another one.
            self.record.going = Some(domain);
            return act;
        }
        if look.now < going.next {
            return None;
        }
        if let (Some(mut draining), Some(seen)) = (going.draining.take(), &look.domain) {
            if !draining.is_over(seen, look.now) {
                self.phase = Phase::Going(Going { draining: Some(draining), ..going });
                return None;
            }
        }
        if !going.is_quarantined {
            self.phase = Phase::Going(Going { is_quarantined: true, ..going });
            return Some(Act::Quarantine(domain));
        }
        self.mark("quarantined", look.now);
        if !going.is_taken && matches!(going.then, Then::Start(_)) && self.is_followed(domain, look) {
            self.phase = Phase::Going(Going { is_taken: true, ..going });
            self.beside = Some(domain);
            return Some(Act::Take(domain));
        }
        self.phase = Phase::Going(Going { tries: going.tries + 1, ..going });
        Some(Act::Destroy(domain))
    }

    /// What is left of it is memory. One that waits needs none of that; one that is to be made may, so that is made
    /// later.
    pub(super) fn follow(&mut self, going: Going, look: &Look) -> Option<Act> {
        self.mark("released", look.now);
        let Then::Start(from) = going.then else { return None };
        if look.domain.is_some() || look.now < from || self.who_waits(look).is_none() {
            return None;
        }
        self.rest_or_start(going.then, look)
    }
}
