//! Restarts that nobody has ordered and that no failure asks for: of one that is old, has little memory left, or whose
//! twind is silent.
//!
//! It goes as one that the operator has ordered: it sends what it has, and that is held against nobody. It waits until
//! all else is over, and where another one is to wait for its place, until that has booted, but not for ever. Who is
//! short of memory again and again, or has a twind that is silent, is replaced more and more rarely: a configuration
//! with too little memory is no better after that.

use super::super::cause::Cause;
use super::super::look::Look;
use super::super::record::{ms, Hasty, InPlace};
use super::Machine;
use std::time::Duration;

/// So long one that is due stays for want of one that waits.
const UNTIL_ONE_WAITS: Duration = Duration::from_secs(600);
/// The same of one that is short of memory: it may die soon.
const UNTIL_ONE_WAITS_SOON: Duration = Duration::from_secs(60);
/// The longest time between two restarts that may be in vain.
const LONGEST_PAUSE_S: u64 = 6 * 3600;

/// What was seen of the instance that is there.
#[derive(Debug, Default)]
pub struct Planned {
    /// Since when it was looked at without a break.
    from: Option<Duration>,
    /// Since when it has told of too little memory without a break.
    short_since: Option<Duration>,
    /// It was said that it stays nevertheless.
    is_said: bool,
    /// It was said that no other one could be created.
    is_hindered: bool,
}

impl Machine {
    /// It is up and does what it should. Whether it is to be replaced all the same.
    pub(super) fn is_due(&mut self, domain: u16, look: &Look) -> Option<Cause> {
        let age = self.age_of(domain, look.now);
        let from = *self.planned.from.get_or_insert(look.now);
        let (short_for, silent_for) = (self.short_for(look), self.silent_for(look, from));
        if !self.is_calm(look) {
            return None;
        }
        let limit = Duration::from_secs(self.settings.renew_s);
        let is_old = !limit.is_zero() && age >= limit;
        if short_for.is_some() || silent_for.is_some() || is_old {
            let hindrance = self.hindrance(domain, look);
            if let Some(why) = &hindrance {
                if !std::mem::replace(&mut self.planned.is_hindered, true) {
                    self.say(format!("it should be replaced, and stays, since no other one could be created: {why}"));
                }
                return None;
            }
            self.planned.is_hindered = false;
        }
        if let Some(past) = short_for {
            if self.may_be_replaced(past, UNTIL_ONE_WAITS_SOON) && self.is_worth_it("it is short of memory", look) {
                let available_kib = look.available_kib.unwrap_or(0);
                return Some(Cause::ShortOfMemory { available_kib });
            }
        }
        if let Some(silent_for) = silent_for {
            let limit = Duration::from_secs(self.settings.silent_twind_s());
            let past = silent_for.saturating_sub(limit);
            if self.may_be_replaced(past, UNTIL_ONE_WAITS) && self.is_worth_it("its twind does not answer", look) {
                return Some(Cause::TwindSilent);
            }
        }
        (is_old && self.may_be_replaced(age.saturating_sub(limit), UNTIL_ONE_WAITS)).then_some(Cause::Aged { age })
    }

    /// Why there would be nobody in the place of this one, which does what it should, if it were ended now.
    pub(super) fn hindrance(&self, domain: u16, look: &Look) -> Option<String> {
        let is_made = look.noting.is_some() || self.who_waits(look).is_some() || self.can_go_back(domain, look);
        look.missing.why().filter(|_| !is_made).map(Into::into)
    }

    /// Says at once, and once, that nobody could follow the one that is up, which does what it should: its file may be
    /// found while there is time.
    pub(super) fn tell_of_hindrance(&mut self, domain: u16, look: &Look) {
        // Without an image that an upgrade has brought one is created as it is configured.
        let is_alone = self.settings.restart && self.hindrance(domain, look).is_some();
        self.hindrance = look.missing.config.clone().filter(|_| is_alone);
        match &self.hindrance {
            Some(why) if self.said_hindrance.as_ref() != Some(why) => {
                let line = format!("no other one could be created if it failed now: {why}");
                self.said_hindrance = Some(why.clone());
                self.say(line);
            }
            None if look.missing.config.is_none() && self.said_hindrance.take().is_some() => {
                self.say("another one could be created again");
            }
            _ => {}
        }
    }

    /// For how long it has been of use. One that an earlier daemon has seen is as old as that has noted.
    fn age_of(&mut self, domain: u16, now: Duration) -> Duration {
        let known = self.record.in_place.filter(|known| known.domain == domain && known.since <= ms(now));
        let known = known.unwrap_or(InPlace { domain, since: ms(now) });
        self.record.in_place = Some(known);
        Duration::from_millis(ms(now) - known.since)
    }

    /// How long ago it should have been replaced for want of memory, if it should.
    fn short_for(&mut self, look: &Look) -> Option<Duration> {
        let is_short = look.available_kib.is_some_and(|kib| kib < self.settings.least_free_kib);
        if !is_short {
            self.planned.short_since = None;
            return None;
        }
        let since = *self.planned.short_since.get_or_insert(look.now);
        let limit = Duration::from_secs(self.settings.least_free_s);
        look.now.saturating_sub(since).checked_sub(limit)
    }

    /// For how long its twind has not answered, if that is too long. One that was paused has its time.
    fn silent_for(&self, look: &Look, from: Duration) -> Option<Duration> {
        let limit = Duration::from_secs(self.settings.silent_twind_s());
        let silent_for = look.twind?.silent_for.min(look.now.saturating_sub(from));
        (!limit.is_zero() && silent_for >= limit).then_some(silent_for)
    }

    /// Nothing else is under way with any of them.
    fn is_calm(&self, look: &Look) -> bool {
        let is_over = self.record.under_way.is_none() && self.record.upgrade.is_none() && Self::is_idle(look);
        is_over && look.going_back.is_none() && look.noting.is_none() && !self.has_remains(look)
    }

    /// One that is to wait does, or has been waited for in vain for so long.
    fn may_be_replaced(&self, past: Duration, patience: Duration) -> bool {
        self.standby() != Some(false) || past >= patience
    }

    /// It was not replaced a short time ago for want of memory, or since its twind was silent. If it is now, that is
    /// noted.
    fn is_worth_it(&mut self, what: &str, look: &Look) -> bool {
        let now = ms(look.now);
        let pause_ms = |count: u32| {
            let doubled = self.settings.renew_pause_s.saturating_mul(1_u64.checked_shl(count - 1).unwrap_or(u64::MAX));
            doubled.min(LONGEST_PAUSE_S.max(self.settings.renew_pause_s)).saturating_mul(1000)
        };
        let last = self.record.hasty.filter(|last| last.count > 0 && last.at <= now);
        let last = last.map(|last| (last.count, now - last.at, pause_ms(last.count)));
        let count = match last {
            Some((count, past, pause)) if past < pause => {
                if !std::mem::replace(&mut self.planned.is_said, true) {
                    let left_s = (pause - past).div_ceil(1000);
                    self.say(format!(
                        "{what} again, and the one before was replaced {} s ago ({count} times in a row): it stays for {left_s} s more; what is wrong with its configuration?",
                        past / 1000
                    ));
                }
                return false;
            }
            // It takes long: that may go on for ever.
            Some((_, past, pause)) if past >= pause.saturating_mul(2) => 1,
            Some((count, ..)) => count.saturating_add(1).min(32),
            None => 1,
        };
        self.record.hasty = Some(Hasty { count, at: now });
        true
    }
}
