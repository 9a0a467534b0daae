//! One that gets the place and the devices, or was started: until it is of use.

use super::super::cause::Cause;
use super::super::health::Health;
use super::super::look::{Act, Errand, Look};
use super::super::standby::is_usable;
use super::{Machine, Phase};
use std::time::Duration;

/// A domain that nobody runs, and that never ran, is one that a toolstack has left half built, when it stays so for
/// this long.
const HALF_BUILT: Duration = Duration::from_secs(30);
/// A driver domain has no more devices than its back end has slots; another try of theirs is one of a hand-over.
const MOST_DEVICES: u32 = 33;

/// An instance that comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coming {
    /// Which.
    pub domain: u16,
    /// Its interface is there by then.
    pub until: Duration,
    /// It had booted before it got its devices.
    pub was_ready: bool,
    /// Its driver has not turned them on yet: it does by then.
    pub probe_by: Option<Duration>,
    /// It has said that its link is up, and is the way out by then.
    pub connect_by: Option<Duration>,
    /// It has not run.
    pub half_built_since: Option<Duration>,
    /// When it was looked at last.
    pub seen: Duration,
}

impl Coming {
    /// It could not do anything until now, and has so much more time.
    fn put_off(&mut self, now: Duration) {
        let more = now.saturating_sub(self.seen);
        for limit in [Some(&mut self.until), self.probe_by.as_mut(), self.connect_by.as_mut()].into_iter().flatten() {
            *limit += more;
        }
    }
}

impl Machine {
    /// An instance that is there, whoever has started it.
    pub(super) fn adopt(&mut self, domain: u16, look: &Look) {
        self.forget_attempts_of(Some(domain));
        self.health = Health::default();
        let until = look.now + Duration::from_secs(self.settings.ready_s);
        self.phase = Phase::Coming(Coming {
            domain,
            until,
            was_ready: false,
            probe_by: None,
            connect_by: None,
            half_built_since: None,
            seen: look.now,
        });
    }

    /// It comes; is it there?
    pub(super) fn wait_for(&mut self, mut coming: Coming, look: &Look) -> Option<Act> {
        let domain = coming.domain;
        if let Some(other) = look.domain.as_ref().filter(|d| d.id != domain && !d.is_dying) {
            self.adopt(other.id, look);
            return None;
        }
        if let Some(cause) = self.trouble(domain, look) {
            return self.fail(cause, Some(domain), look);
        }
        let seen = look.domain.as_ref()?;
        let has_run = !seen.is_paused || seen.beats.iter().any(|beat| !beat.run.is_zero());
        if seen.is_paused && has_run || look.is_cut_off {
            // By the operator: it does nothing until it runs again. Or it waits for its network, as others do that wait
            // for it.
            coming.put_off(look.now);
        }
        coming.seen = look.now;
        if seen.beats.iter().any(|beat| beat.upcalls > 0) {
            self.mark_if("created", "first event", look.now);
        }
        if look.is_probed {
            self.mark_if("start", "probed", look.now);
        }
        if look.has_link {
            self.mark_if("start", "link", look.now);
        }
        let probe_by = coming.probe_by.filter(|_| !look.is_probed);
        if look.way.is_some() {
            self.mark(self.words.up, look.now);
            // Its interface may be there before its driver has begun.
            if probe_by.is_none() || !self.is_to_be_probed() {
                self.say(format!("{}, domain {domain}", self.words.is_up));
                self.phase = Phase::Up { domain };
                return self.note_progress(domain, look);
            }
        }
        let half_built_since = (!has_run).then(|| coming.half_built_since.unwrap_or(look.now));
        let connects = coming.was_ready && look.has_link && look.way.is_none();
        let connect_by = coming.connect_by.unwrap_or(look.now + Duration::from_secs(self.settings.connect_s));
        let connect_by = connects.then_some(connect_by);
        self.phase = Phase::Coming(Coming { probe_by, connect_by, half_built_since, ..coming });
        if half_built_since.is_some_and(|since| look.now >= since + HALF_BUILT) {
            return self.fail(Cause::NotStarted("somebody has left it half built".into()), Some(domain), look);
        }
        if probe_by.is_some_and(|by| look.now >= by) {
            return self.fail(Cause::NotProbed, Some(domain), look);
        }
        if connect_by.is_some_and(|by| look.now >= by) {
            return self.fail(Cause::NotConnected, Some(domain), look);
        }
        let is_late = look.way.is_none() && look.now >= coming.until;
        is_late.then(|| self.fail(Cause::NotReady, Some(domain), look))?
    }

    /// Whether it is known that the one that gets the devices had booted. Where none has, one that still boots takes
    /// the place: it needs as long as any that is started.
    fn had_booted(&self, domain: u16) -> bool {
        let is_new = self.record.upgrade.as_ref().is_some_and(|upgrade| upgrade.domain == Some(domain));
        is_new || self.was_noted(domain) || self.standby.has_booted(domain)
    }

    /// The one that waited gets the name, if an earlier daemon has not come to that, and then one device after the
    /// other.
    pub(super) fn hand_over(&mut self, domain: u16, tries: u32, is_tried: bool, look: &Look) -> Option<Act> {
        if look.errand == Errand::Runs {
            return None;
        }
        if let Some(why) = &look.not_promoted {
            return self.fail(Cause::NotStarted(why.clone()), Some(domain), look);
        }
        let mut others = look.standby.iter().chain(&look.candidate);
        if look.domain.is_none() && tries == 0 && others.any(|d| d.id == domain && is_usable(d)) {
            self.phase = Phase::HandingOver { domain, tries: 1, is_tried };
            return Some(Act::Promote(domain));
        }
        if look.domain.as_ref().is_none_or(|d| d.id != domain) {
            // It has died before anybody knew it by that name, or somebody was faster.
            self.record.promoted = None;
            self.phase = Phase::Down { from: look.now };
            return None;
        }
        if let Some(cause) = self.trouble(domain, look) {
            return self.fail(cause, Some(domain), look);
        }
        let why = match &look.errand {
            Errand::Done(Err(why)) => Some(format!("xl pci-attach: {why}")),
            _ if look.has_all => None,
            _ if tries > MOST_DEVICES => Some("it does not get its devices".into()),
            _ => None,
        };
        if let Some(why) = why {
            return self.fail(Cause::NotStarted(why), Some(domain), look);
        }
        if look.has_all {
            self.mark("handed over", look.now);
            self.record.promoted = None;
            let was_ready = self.had_booted(domain);
            self.adopt(domain, look);
            if let (Phase::Coming(coming), true) = (&mut self.phase, was_ready) {
                coming.was_ready = true;
                coming.probe_by = Some(look.now + Duration::from_secs(self.settings.probe_s));
            }
            return None;
        }
        if look.is_meeting && !is_tried {
            return None;
        }
        self.phase = Phase::HandingOver { domain, tries: tries + 1, is_tried: true };
        Some(if is_tried { Act::Attach(domain) } else { Act::HandOver(domain) })
    }
}
