//! Instances that are noted when they have booted, and rolled back when they fail.
//!
//! With `snapshot = true` an instance is created as one that waits, without devices. When it has booted it is noted, and then it takes
//! the place and gets the devices as one that waits does. When it fails it loses them, and what is left of it becomes what it was: one
//! that waits. So each is the one that waits for itself. What cannot be rolled back is destroyed, and another one boots.

use super::super::cause::Cause;
use super::super::look::{Act, Errand, Look};
use super::super::standby::is_usable;
use super::{Machine, Phase};
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

    /// The one that the hypervisor can roll back, and that is of the right image.
    pub(super) fn can_go_back(&self, look: &Look) -> Option<u16> {
        self.record.noted.filter(|id| self.settings.snapshot && look.snapshots.contains(id))
    }

    /// It was tried to note this one, and has come to an end.
    pub(super) fn was_noted(&self, domain: u16) -> bool {
        self.settings.snapshot && self.record.noted == Some(domain) && self.record.noting != Some(domain)
    }

    /// The one whose remains, without name and devices, can be rolled back now.
    pub(super) fn who_goes_back(&self, look: &Look) -> Option<u16> {
        let is_remains = |id: &u16| look.remains.contains(id);
        // An earlier daemon was killed while it was on its way.
        let is_on_its_way = |id: &u16| {
            self.record.rolling == Some(*id) && look.standby.as_ref().is_some_and(|d| d.id == *id && d.is_paused)
        };
        self.can_go_back(look).filter(|id| is_remains(id) || is_on_its_way(id))
    }

    /// Whether somebody can take the place of this one, as soon as it has lost its devices and its name.
    pub(super) fn is_followed(&self, domain: u16, look: &Look) -> bool {
        self.who_waits(look).is_some() || self.who_goes_back(look).is_some() || self.can_go_back(look) == Some(domain)
    }

    /// Remains that are not to be cleared away, since they may be rolled back.
    pub(super) fn kept(&self, look: &Look) -> Option<u16> {
        match self.phase {
            Phase::Inherited | Phase::Going(_) | Phase::Down { .. } | Phase::RollingBack { .. } => {
                self.can_go_back(look)
            }
            _ => None,
        }
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
        (self.record.noted, self.record.noting) = (None, None);
        Some(Act::CreateStandby)
    }

    /// It is created, boots, and is noted.
    pub(super) fn wait_until_noted(&mut self, booting: &Booting, look: &Look) -> Option<Act> {
        if look.errand == Errand::Runs {
            return None;
        }
        if let Some(domain) = &look.domain {
            // Somebody was faster.
            self.mark("created", look.now);
            self.adopt(domain.id, look);
            return None;
        }
        let failed = match (&look.standby, &look.errand) {
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
                (self.record.noted, self.record.noting) = (Some(id), Some(id));
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
            self.record.noted = None;
        }
        self.start(look.now, look)
    }

    /// An instance has to go. What was rolled back and fails before it is of use is not rolled back again, nor is what somebody destroys.
    pub(super) fn forget_attempts(&mut self, cause: &Cause) {
        (self.record.noting, self.record.rolling) = (None, None);
        if *cause == Cause::Destroyed {
            self.record.noted = None;
        }
        if cause.is_failure() && self.record.under_way.as_ref().is_some_and(|line| line.has("rolled back")) {
            self.record.noted = None;
        }
    }
}
