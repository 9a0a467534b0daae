//! Another kernel or image for a driver domain, which has to prove that it is of use before the old one goes.
//!
//! One of the new image is created beside the old one, without devices, and has to boot. Then it takes the place as one
//! that waits does; where that is not possible, of disks whose driver domains get their devices at their start, it goes
//! again, and the old one is replaced by one of the new image. It has proven itself
//! when its recovery is complete, for which something has to come by it if something did by the old one while the new
//! one booted, and each guest's disk that the old one served has to be served, and each network whose way out it was
//! has to have one. What fails before is refused, and the old image is what counts.

use super::super::boot::Seen;
use super::super::cause::Cause;
use super::super::look::{Act, Domain, Errand, Look};
use super::super::record::{Stage, Upgrade};
use super::super::standby::is_usable;
use super::{Machine, Phase};
use control::Image;
use std::time::Duration;

/// So often the toolstack is asked to destroy one that is of no use.
const AGAIN: Duration = Duration::from_secs(5);
/// So long is waited for one that goes first. xl gives up on a device after ten seconds, and on a script never.
const GOES_WITHIN: Duration = Duration::from_secs(60);

/// Why an upgrade is called off.
pub const BY_OPERATOR: &str = "the operator wants something else";

/// The name of one of the new image while it is tried.
pub fn name_of(driver: &str) -> String {
    format!("{driver}-upgrade")
}

/// How it goes with the one that is tried.
#[derive(Debug, Default)]
pub struct Candidate {
    /// The toolstack makes it.
    is_at_work: bool,
    /// Since when somebody else is to go first.
    waits_since: Option<Duration>,
    /// It was asked for by this daemon.
    is_made: bool,
    /// It was noted by this daemon, if that was possible.
    is_noted: bool,
    seen: Option<Seen>,
    /// The toolstack is not asked again before to destroy one.
    from: Duration,
}

/// What is next for one that is tried.
enum Next {
    Act(Act),
    Wait,
    Booted(u16),
    Refused(String),
}

impl Candidate {
    /// What the toolstack said, if it was asked here. Told once.
    pub fn take_result(&mut self, look: &Look) -> Option<Result<(), String>> {
        let Errand::Done(result) = &look.side else { return None };
        std::mem::take(&mut self.is_at_work).then(|| result.clone())
    }

    /// The toolstack makes it.
    pub fn is_at_work(&self) -> bool {
        self.is_at_work
    }

    /// Whether somebody who is to go first has not gone for so long.
    fn waits_for_long(&mut self, now: Duration) -> bool {
        now >= *self.waits_since.get_or_insert(now) + GOES_WITHIN
    }

    fn dismiss(&mut self, there: &Domain, look: &Look) -> Option<Act> {
        if there.is_dying || look.now < self.from || look.dismissing.contains(&there.id) {
            return None;
        }
        self.from = look.now + AGAIN;
        Some(Act::Dismiss(there.id))
    }

    /// No toolstack is at work.
    fn next(&mut self, look: &Look, limit: Duration) -> Next {
        let Some(there) = &look.candidate else {
            if std::mem::replace(&mut self.is_made, true) {
                return Next::Refused("the new one has gone while it booted".into());
            }
            (self.seen, self.waits_since, self.is_at_work) = (None, None, true);
            return Next::Act(Act::CreateCandidate);
        };
        // Also one that an earlier daemon has asked for.
        self.is_made = true;
        if there.is_dying {
            return Next::Wait;
        }
        if there.end.is_some() {
            return Next::Refused("the new one has ended while it booted: see its console".into());
        }
        let seen = self.seen.get_or_insert(Seen::new(there, look.now));
        if seen.look(there, look.now) || seen.has_booted() {
            return Next::Booted(there.id);
        }
        if seen.age(look.now) >= limit {
            return Next::Refused(format!("the new one has not booted within {} s", limit.as_secs()));
        }
        Next::Wait
    }
}

impl Machine {
    /// Begins. The error says why it cannot.
    pub fn upgrade(&mut self, image: Image, as_configured: bool, look: &Look) -> Result<(), String> {
        if self.record.upgrade.is_some() {
            return Err("an upgrade is under way".into());
        }
        if as_configured && matches!(self.phase, Phase::Resting | Phase::Down { .. }) {
            // There is none with which another one could be compared, and this one may be why.
            self.record.image = image;
            self.record.end_upgrade("");
            self.say("what earlier upgrades have brought is forgotten");
            return Ok(());
        }
        if !matches!(self.phase, Phase::Up { .. }) || self.record.under_way.is_some() {
            return Err(format!(
                "it can be upgraded when it is up and carries packets: it is {}; what earlier upgrades have brought can be forgotten while there is none (`--as-configured`)",
                self.state()
            ));
        }
        if look.candidate.is_some() {
            return Err("what was tried by the last upgrade still goes; ask again".into());
        }
        let to = if as_configured { image } else { image.or(&self.record.image) };
        self.candidate = Candidate::default();
        let came = look.way.map_or(0, |way| way.came);
        self.record.upgrade = Some(Upgrade { to, came, ..Upgrade::default() });
        self.say("one of another image is tried");
        Ok(())
    }

    /// For people: what the upgrade does that is under way.
    pub fn upgrading(&self) -> Option<&'static str> {
        self.record.upgrade.as_ref().map(|upgrade| match upgrade.stage {
            Stage::Boots => "the new one boots beside the old one",
            Stage::Takes => "the new one takes the place",
        })
    }

    /// What there is to do for an upgrade, or for what one has left. No toolstack is at work, and nothing else is to be
    /// done.
    pub(super) fn upgrade_on(&mut self, look: &Look) -> Option<Act> {
        let Some(upgrade) = &self.record.upgrade else {
            return look.candidate.as_ref().and_then(|there| self.candidate.dismiss(there, look));
        };
        if !matches!(self.phase, Phase::Up { .. }) {
            return None;
        }
        match upgrade.stage {
            // It goes first: the new one takes its memory.
            Stage::Boots if look.standby.is_some() => {
                if self.candidate.waits_for_long(look.now) {
                    self.refuse_for_want("the one that waits");
                }
                None
            }
            // The same of what is left of earlier ones.
            Stage::Boots if look.candidate.is_none() && self.has_remains(look) => None,
            Stage::Boots => match self.candidate.next(look, Duration::from_secs(self.settings.ready_s)) {
                Next::Act(act) => Some(act),
                Next::Wait => None,
                Next::Refused(why) => {
                    self.refuse(&why);
                    None
                }
                Next::Booted(domain) if self.settings.snapshot && !self.candidate.is_noted => {
                    self.candidate.is_noted = true;
                    self.record.noting = Some(domain);
                    Some(Act::Note(domain))
                }
                Next::Booted(domain) => {
                    self.record.noting = None;
                    self.say(format!("domain {domain} of the new image has booted"));
                    self.take_place(domain, look)
                }
            },
            Stage::Takes if self.record.under_way.is_none() => self.take_place_of_disks(look),
            Stage::Takes => None,
        }
    }

    /// The toolstack has said something about the one that is tried.
    pub(super) fn hear_of_candidate(&mut self, result: Result<(), String>) {
        let Err(why) = result else { return };
        match &self.record.upgrade {
            Some(upgrade) if upgrade.stage == Stage::Boots => self.refuse(&format!("the new one: {why}")),
            _ => self.say(format!("what was tried: {why}")),
        }
    }

    /// One that has booted without the devices takes the place.
    fn hands_over(&self) -> bool {
        self.words.hands_over || self.settings.standby > 0 || self.settings.snapshot
    }

    fn take_place(&mut self, domain: u16, look: &Look) -> Option<Act> {
        let hands_over = self.hands_over();
        let upgrade = self.record.upgrade.as_mut()?;
        upgrade.stage = Stage::Takes;
        if !hands_over {
            return self.take_place_of_disks(look);
        }
        upgrade.domain = Some(domain);
        self.replace(look)
    }

    /// The one that was tried has to be gone: one of disks has the devices from its start.
    fn take_place_of_disks(&mut self, look: &Look) -> Option<Act> {
        match &look.candidate {
            Some(_) if !self.hands_over() && self.candidate.waits_for_long(look.now) => {
                self.refuse_for_want("the one that was tried");
                None
            }
            Some(there) if !self.hands_over() => self.candidate.dismiss(there, look),
            _ => self.replace(look),
        }
    }

    fn replace(&mut self, look: &Look) -> Option<Act> {
        let Phase::Up { domain } = self.phase else { return None };
        if let Some(upgrade) = &mut self.record.upgrade {
            // It may be another one by now, of which less came.
            upgrade.had_come = look.way.is_some_and(|way| way.came > 0 && way.came != upgrade.came);
            upgrade.was_probed = look.is_probed;
            upgrade.disks.clone_from(&look.disks);
            upgrade.ways = Self::is_way_out_of(look).cloned().collect();
        }
        self.fail(Cause::Upgrade, Some(domain), look)
    }

    /// The one of the new image that takes the place; `None`: there is no such one.
    pub(super) fn who_is_new(&self, look: &Look) -> Option<u16> {
        let upgrade = self.taking()?;
        look.candidate.as_ref().filter(|d| Some(d.id) == upgrade.domain && is_usable(d)).map(|d| d.id)
    }

    /// The upgrade in which one of the new image has the place, or is about to.
    pub(super) fn taking(&self) -> Option<&Upgrade> {
        self.record.upgrade.as_ref().filter(|upgrade| upgrade.stage == Stage::Takes)
    }

    /// Something should come by one of the new image: it did by the old one a moment ago, or somebody waits for what he
    /// has asked his disk for.
    pub(super) fn is_missed(&self) -> bool {
        let asks = self.words.out.is_none();
        self.taking().is_some_and(|upgrade| asks || upgrade.had_come)
    }

    /// One of the new image is of use only when its drivers have turned its devices on, as those of the old one had:
    /// not everybody has a driver for each.
    pub(super) fn is_to_be_probed(&self) -> bool {
        self.taking().is_some_and(|upgrade| upgrade.was_probed)
    }

    /// One that was to take the place is not there any more: the old image is what is started.
    pub(super) fn miss_new(&mut self, look: &Look) {
        let waits = self.record.upgrade.as_ref().is_some_and(|u| u.stage == Stage::Takes && u.domain.is_some());
        if waits && self.who_is_new(look).is_none() {
            self.refuse("the new one has ended before it took the place");
        }
    }

    /// An instance has to go for this reason. Whether it was one that was tried.
    pub(super) fn call_off(&mut self, cause: &Cause, told: &str) -> bool {
        let Some(upgrade) = self.record.upgrade.as_ref().filter(|_| *cause != Cause::Upgrade) else { return false };
        let is_new = upgrade.stage == Stage::Takes && self.record.under_way.is_some();
        match cause {
            Cause::Park | Cause::Restart => self.refuse(BY_OPERATOR),
            _ if is_new => self.refuse(&format!("of the new one: {told}")),
            _ => self.refuse(&format!("of the old one, meanwhile: {told}")),
        }
        is_new && cause.is_failure()
    }

    /// The recovery is complete, and this domain is up.
    pub(super) fn settle_upgrade(&mut self, domain: u16) {
        let Some(upgrade) = self.record.upgrade.take_if(|upgrade| upgrade.stage == Stage::Takes) else { return };
        if upgrade.domain.is_some_and(|new| new != domain) {
            return self.refuse("somebody else has started another one meanwhile");
        }
        self.record.image = upgrade.to;
        self.record.snapshots = self.settings.snapshot.then_some(domain).into_iter().collect();
        self.record.end_upgrade("");
        self.say("upgraded");
    }

    /// Who is to go first stays.
    fn refuse_for_want(&mut self, who: &str) {
        self.refuse(&format!("{who} has to go first, and is not gone after {} s", GOES_WITHIN.as_secs()));
    }

    pub(super) fn refuse(&mut self, why: &str) {
        self.record.end_upgrade(why);
        self.say(format!("the upgrade is refused: {why}"));
    }
}
