//! Instances that are noted when they have booted, and rolled back when they fail.
//!
//! With `snapshot = true` an instance is created as one that waits, without devices. When it has booted it is noted,
//! and then it takes the place and gets the devices as one that waits does. When it fails it loses them, and what is
//! left of it becomes what it was: one that waits. So each is the one that waits for itself. What cannot be rolled back
//! is destroyed, and another one boots.

use super::super::cause::Cause;
use super::super::look::{Act, Errand, Look};
use super::super::record::TimeLine;
use super::super::standby::is_usable;
use super::{Machine, Phase};
use std::collections::BTreeSet;
use std::time::Duration;

/// An instance that boots without devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booting {
    /// It has to have booted by then.
    until: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is created, or boots.
    Boots,
    /// It is noted.
    IsNoted,
    /// It has not booted, and goes.
    IsDismissed,
}

impl Machine {
    /// Whether the instance that is there can be rolled back; nothing if that is not wanted.
    pub fn snapshot(&self) -> Option<bool> {
        self.settings.snapshot.then_some(self.is_noted)
    }

    /// The hypervisor can roll it back, and it is of the right image.
    pub(super) fn can_go_back(&self, domain: u16, look: &Look) -> bool {
        self.settings.snapshot && self.record.snapshots.contains(&domain) && look.snapshots.contains(&domain)
    }

    /// Who is not there any more has no snapshot.
    pub(super) fn forget_snapshots(&mut self, look: &Look) {
        let known = [&look.domain, &look.standby, &look.candidate].into_iter().flatten().map(|d| d.id);
        let known: BTreeSet<u16> = known.chain(look.remains.iter().copied()).collect();
        self.record.snapshots.retain(|id| known.contains(id));
    }

    /// One that waits is paused, since it was being noted or rolled back when the configuration became one in which
    /// nobody is.
    pub(super) fn is_left_half(&self, look: &Look) -> bool {
        let is_begun = |id| [self.record.noting, self.record.rolling].contains(&Some(id));
        !self.settings.snapshot && look.standby.as_ref().is_some_and(|d| d.is_paused && is_begun(d.id))
    }

    /// What was begun with one that is not there any more is over.
    pub(super) fn forget_stale_attempts(&mut self, look: &Look) {
        let is_there = |id: &u16| {
            look.remains.contains(id) || [&look.standby, &look.candidate].into_iter().flatten().any(|d| d.id == *id)
        };
        self.record.noting = self.record.noting.filter(is_there);
        self.record.rolling = self.record.rolling.filter(is_there);
    }

    /// It was tried to note this one, and has come to an end.
    pub(super) fn was_noted(&self, domain: u16) -> bool {
        self.settings.snapshot && self.record.snapshots.contains(&domain) && self.record.noting != Some(domain)
    }

    /// The one whose remains, without name and devices, can be rolled back now.
    pub(super) fn who_goes_back(&self, look: &Look) -> Option<u16> {
        if look.going_back.is_some() {
            return look.going_back;
        }
        let who = match &look.standby {
            None => look.remains.iter().copied().find(|id| self.can_go_back(*id, look)),
            // An earlier daemon was killed while it was on its way. Nobody else can have its name.
            Some(there) => Some(there.id).filter(|id| there.is_paused && self.record.rolling == Some(*id)),
        };
        who.filter(|id| self.can_go_back(*id, look) && !look.dismissing.contains(id))
    }

    /// Whether somebody can take the place of this one, or be made for it, as soon as it has lost its devices and its
    /// name.
    pub(super) fn is_followed(&self, domain: u16, look: &Look) -> bool {
        let is_there = look.noting.is_some() || self.who_waits(look).is_some() || self.who_goes_back(look).is_some();
        is_there || self.can_go_back(domain, look) || self.has_room(look)
    }

    /// Remains that are not to be cleared away, since they may be rolled back.
    pub(super) fn is_kept(&self, domain: u16, look: &Look) -> bool {
        let is_wanted = match self.phase {
            Phase::Inherited | Phase::Going(_) | Phase::Down { .. } | Phase::RollingBack { .. } => true,
            Phase::HandingOver { .. } | Phase::Coming(_) => self.takes_turns(),
            Phase::Up { .. } => self.takes_turns() && self.record.upgrade.is_none() && look.standby.is_none(),
            _ => false,
        };
        look.going_back == Some(domain) || is_wanted && self.can_go_back(domain, look)
    }

    /// One that is to be noted is made, or is there already.
    pub(super) fn boot(&mut self, look: &Look) -> Option<Act> {
        if look.standby.as_ref().is_some_and(|d| d.is_dying || d.end.is_some()) {
            // It has the name still.
            return None;
        }
        self.record.rolling = None;
        let until = look.now + Duration::from_secs(self.settings.ready_s);
        self.phase = Phase::Booting(Booting { until, stage: Stage::Boots });
        if look.standby.is_some() {
            return None;
        }
        self.record.noting = None;
        self.forget_snapshots(look);
        Some(Act::CreateStandby)
    }

    /// It is created, boots, and is noted.
    pub(super) fn wait_until_noted(&mut self, booting: &Booting, look: &Look) -> Option<Act> {
        let is_leaving = look.standby.as_ref().is_some_and(|d| look.dismissing.contains(&d.id));
        if look.side == Errand::Runs || is_leaving {
            // As long as that takes: the toolstack has limits of its own. From then on it may boot for so long.
            let until = look.now + Duration::from_secs(self.settings.ready_s);
            self.phase = Phase::Booting(Booting { until, ..booting.clone() });
            return None;
        }
        if look.noting.is_some() {
            return None;
        }
        if let Some(domain) = &look.domain {
            // Somebody was faster.
            self.mark("created", look.now);
            self.adopt(domain.id, look);
            return None;
        }
        let failed = match (&look.standby, &look.side) {
            (_, Errand::Done(Err(why))) if booting.stage == Stage::Boots => Some(Cause::NotStarted(why.clone())),
            (None, _) if booting.stage == Stage::IsDismissed => Some(Cause::NotBooted),
            (None, _) => Some(Cause::NotStarted("it was gone at once".into())),
            (Some(there), _) if there.end.is_some() => {
                Some(Cause::NotStarted("it has ended while it booted: see its console".into()))
            }
            (Some(_), _) => None,
        };
        if let Some(cause) = failed {
            return self.fail(cause, None, look);
        }
        let there = look.standby.as_ref()?;
        self.mark("created", look.now);
        let (id, is_interrupted) = (there.id, self.record.noting == Some(there.id));
        match booting.stage {
            Stage::IsNoted => {
                self.record.noting = None;
                self.mark("noted", look.now);
                self.phase = Phase::Down { from: look.now };
                self.start(look.now, look)
            }
            Stage::Boots if is_interrupted || self.standby.has_booted(id) && !there.is_paused => {
                self.record.snapshots.insert(id);
                self.record.noting = Some(id);
                self.phase = Phase::Booting(Booting { stage: Stage::IsNoted, ..booting.clone() });
                Some(Act::Note(id))
            }
            Stage::Boots | Stage::IsDismissed if look.now >= booting.until && !there.is_dying => {
                // It is asked again if nothing comes of that.
                let until = look.now + Duration::from_secs(self.settings.ready_s);
                self.phase = Phase::Booting(Booting { until, stage: Stage::IsDismissed });
                Some(Act::Dismiss(id))
            }
            Stage::Boots | Stage::IsDismissed => None,
        }
    }

    /// It was tried to roll it back.
    pub(super) fn rolled_back(&mut self, domain: u16, look: &Look) -> Option<Act> {
        self.record.rolling = None;
        self.phase = Phase::Down { from: look.now };
        if look.standby.as_ref().is_some_and(|d| d.id == domain && is_usable(d)) {
            self.mark("rolled back", look.now);
            self.record.count("rolled-back");
        } else {
            self.say("what is left of it is of no use, and another one boots");
            self.record.snapshots.remove(&domain);
        }
        self.start(look.now, look)
    }

    /// An instance has to go. What was rolled back and fails before it is of use is not rolled back again, nor is what
    /// somebody destroys.
    pub(super) fn forget_attempts(&mut self, cause: &Cause, domain: Option<u16>) {
        self.forget_attempts_of(domain);
        let has_come = |line: &TimeLine| line.has("rolled back") || self.takes_turns() && line.has("handed over");
        let is_of_no_use = |line: &TimeLine| has_come(line) && !line.has(self.words.came);
        let is_of_no_use = cause.is_failure() && self.record.under_way.as_ref().is_some_and(is_of_no_use);
        if let Some(domain) = domain.filter(|_| is_of_no_use || *cause == Cause::Destroyed) {
            self.record.snapshots.remove(&domain);
        }
    }

    /// Nothing was begun with this one, or it is over.
    pub(super) fn forget_attempts_of(&mut self, domain: Option<u16>) {
        self.record.noting = self.record.noting.filter(|id| Some(*id) != domain);
        self.record.rolling = self.record.rolling.filter(|id| Some(*id) != domain);
    }
}
