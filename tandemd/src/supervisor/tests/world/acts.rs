//! What becomes of the machine's acts: at once, by the toolstack in the end, or half.

use super::*;
use crate::supervisor::record::Mode;

impl World {
    pub fn is_cleared(&self, id: u16) -> bool {
        self.aside.iter().any(|process| process.act == Act::ClearAway(id))
    }

    /// Domains that are cleared away beside others.
    pub fn cleared(&self) -> impl Iterator<Item = u16> + '_ {
        self.aside.iter().filter_map(|process| match process.act {
            Act::ClearAway(id) | Act::Destroy(id) => Some(id),
            _ => None,
        })
    }

    /// Those who waited or were tried, and are destroyed beside others.
    pub fn dismissed(&self) -> impl Iterator<Item = u16> + '_ {
        self.aside.iter().filter_map(|process| match process.act {
            Act::Dismiss(id) => Some(id),
            _ => None,
        })
    }

    /// These have come to their end.
    pub fn clear_away(&mut self, over: Vec<Process>) {
        for process in over {
            if let Act::Dismiss(id) = process.act {
                if self.hung.take_if(|hung| *hung == id).is_none() {
                    self.standby.take_if(|d| d.id == id);
                    self.candidate.take_if(|d| d.id == id);
                }
            }
            let Act::ClearAway(id) = process.act else { continue };
            match self.stubborn.get_mut(&id).filter(|left| **left > 0) {
                Some(left) => *left -= 1,
                None => self.remains.retain(|d| d.id != id),
            }
        }
    }

    /// Who is destroyed loses its name and its devices before its memory.
    pub fn release(&mut self) {
        let Some(process) = self.processes.first_mut() else { return };
        if let (Act::Destroy(id), true) = (process.act, self.now + CLEAR >= process.until) {
            if self.stubborn.get(&id).is_some_and(|left| *left > 0) {
                return;
            }
            process.is_released |= self.domain.take_if(|d| d.id == id).is_some();
        }
    }

    /// Who creates a domain waits for the lock first.
    pub fn wait_for_lock(&mut self) {
        let (is_locked, until) = (self.is_locked, self.now + CREATE);
        let creates = |act| matches!(act, Act::Create | Act::CreateStandby | Act::CreateCandidate);
        let waiting =
            self.processes.iter_mut().chain(&mut self.side).filter(|process| is_locked && creates(process.act));
        waiting.for_each(|process| process.until = until);
    }

    /// What the toolstack does in the end.
    pub fn complete(&mut self, process: Process) -> Result<(), String> {
        match process.act {
            Act::Create if self.domain.is_some() => Err("the name is taken".into()),
            Act::Create if !self.has_devices => Err("no device".into()),
            Act::Create if self.is_full && !self.remains.is_empty() => Err("no memory".into()),
            Act::Create => {
                self.add_domain();
                Ok(())
            }
            Act::Destroy(_) if process.is_released => Ok(()),
            Act::Destroy(id) if self.stubborn.get(&id).is_some_and(|left| *left > 0) => {
                self.stubborn.entry(id).and_modify(|left| *left -= 1);
                Err("it stays".into())
            }
            Act::CreateStandby if self.standby.is_some() => Err("the name is taken".into()),
            Act::CreateStandby => {
                let image = self.machine.record.image.clone();
                self.standby = Some(self.instance(false, image));
                Ok(())
            }
            Act::CreateCandidate if self.candidate.is_some() => Err("the name is taken".into()),
            Act::CreateCandidate => match self.machine.record.upgrade.as_ref().map(|upgrade| upgrade.to.clone()) {
                Some(image) if image != with(Some(Flaw::NotCreated)) => {
                    self.candidate = Some(self.instance(false, image));
                    Ok(())
                }
                _ => Err("no kernel".into()),
            },
            Act::Attach(_) if !self.has_devices => Err("no device".into()),
            Act::Attach(id) => match self.domain.as_mut().filter(|d| d.id == id) {
                Some(d) if !d.has_devices => {
                    d.get_devices();
                    Ok(())
                }
                _ => Err("no such domain, or it has them".into()),
            },
            _ => Err("no such domain".into()),
        }
    }

    pub fn take(&mut self, act: Act) {
        self.acts.push(act);
        let is_named = |id: u16| match act {
            Act::Create | Act::CreateStandby | Act::CreateCandidate | Act::RollBack(_) => false,
            Act::Drain(of) | Act::Quarantine(of) | Act::Take(of) | Act::ClearAway(of) | Act::Destroy(of) => of == id,
            Act::Introduce(of) | Act::Dismiss(of) | Act::Note(of) | Act::RollBackBeside(of) => of == id,
            Act::Promote(of) | Act::HandOver(of) | Act::Attach(of) | Act::LoadTwin(of) => of == id,
        };
        let is_at_work = self.going_back.into_iter().chain(self.noting).any(|(id, _)| is_named(id));
        assert!(!is_at_work, "it is being noted or rolled back: {act:?}");
        let start = |world: &mut Self, lasts| {
            let until = world.now + lasts;
            assert!(world.processes.is_empty(), "two processes of the toolstack at once");
            world.processes.push(Process { act, until, is_released: false });
        };
        let start_beside = |world: &mut Self| {
            assert!(world.side.is_none(), "two processes that make one beside");
            world.side = Some(Process { act, until: world.now + CREATE, is_released: false });
        };
        let is_dismissed = self.dismissed().any(is_named);
        assert!(!is_dismissed, "it is being destroyed: {act:?}");
        match act {
            Act::Drain(id) => {
                let ours = self.domain.as_ref().filter(|d| d.id == id).expect("who is drained is there");
                assert!(!ours.is_paused && ours.end.is_none(), "it sends nothing any more");
            }
            Act::Quarantine(id) => {
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("who is quarantined is there");
                ours.is_paused = true;
            }
            Act::Destroy(id) => {
                let there = self.domain.as_ref().filter(|d| d.id == id);
                assert!(
                    there.is_none_or(|d| d.is_paused),
                    "what the toolstack takes from it is seen by a domain that runs"
                );
                start(self, DESTROY);
            }
            Act::Take(id) => {
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("whose devices are taken is there");
                assert!(ours.is_paused, "its driver may be at work still");
                assert!(self.processes.is_empty(), "the toolstack is at work on them");
                if self.native != Native::Fails {
                    ours.has_devices = false;
                }
                if self.native == Native::Works {
                    self.remains.extend(self.domain.take());
                }
            }
            Act::ClearAway(id) => {
                assert!(self.remains.iter().any(|d| d.id == id && !d.has_devices), "it has devices still, or is gone");
                assert!(!self.is_cleared(id), "it is cleared away already");
                self.aside.push(Process { act, until: self.now + DESTROY, is_released: true });
            }
            Act::LoadTwin(id) => {
                let ours = self.domain.as_ref().filter(|d| d.id == id).expect("whose twin is loaded is there");
                assert!(ours.is_way() && !ours.is_paused, "its twind would not answer");
            }
            Act::HandOver(id) => {
                assert!(self.remains.iter().all(|d| !d.has_devices), "somebody has them still");
                assert!(self.meets_until.is_none_or(|until| self.now >= until), "it would not find them");
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("who gets devices has the name");
                if self.native == Native::Works && self.has_devices {
                    ours.get_devices();
                }
            }
            Act::Introduce(id) => {
                let waits = self.standby.as_ref().filter(|d| d.id == id).expect("who is introduced waits");
                assert!(!waits.has_devices);
                let is_tried = waits.is_noted || self.machine.record.snapshots.contains(&id);
                assert!(is_tried || !self.settings.snapshot, "what it has of others' cannot be noted");
                self.meets_until = Some(self.now + self.meeting);
            }
            Act::Note(id) => {
                assert_ne!(self.machine.standby(), Some(true), "a failure may come as soon as that is told");
                assert!(self.going_back.is_none() && self.noting.is_none(), "one after the other");
                match self.native {
                    Native::Works => {
                        self.all_mut().find(|d| d.id == id).expect("who is noted is there").is_paused = true;
                        self.noting = Some((id, self.now + NOTE));
                    }
                    native => self.is_noted(id, native),
                }
            }
            Act::RollBack(id) => {
                assert!(self.domain.is_none(), "somebody has the place");
                // One that is on its way is waited for.
                if self.going_back.take().is_none() {
                    self.assert_noted(id);
                }
                self.roll_back(id);
            }
            Act::RollBackBeside(id) => {
                assert!(self.settings.standby > 0 && self.going_back.is_none(), "it is waited for");
                assert!(self.noting.is_none(), "one after the other");
                self.assert_noted(id);
                self.going_back = Some((id, self.now + BACK));
                if self.native != Native::Works {
                    self.going_back = None;
                    self.roll_back(id);
                }
            }
            Act::CreateStandby => {
                assert_eq!(self.machine.record.mode, Mode::Run, "one that should rest gets another one");
                let is_first = self.domain.is_none();
                assert!(
                    !is_first || self.remains.is_empty() && self.cleared().next().is_none(),
                    "others have its memory"
                );
                start_beside(self);
            }
            Act::CreateCandidate => {
                assert!(self.standby.is_none(), "the one that waits has the memory still");
                start_beside(self);
            }
            Act::Dismiss(id) => {
                let hangs = self.hangs > 0;
                self.hangs -= u32::from(hangs);
                let until = self.now + if hangs { HANGS } else { DESTROY };
                self.aside.push(Process { act, until, is_released: false });
                if hangs {
                    // It has got so far.
                    self.hung = Some(id);
                    self.all_mut().filter(|d| d.id == id).for_each(|d| d.is_paused = true);
                }
            }
            Act::Promote(id) => {
                assert!(self.domain.is_none(), "there is one of the name already");
                assert!(self.processes.iter().all(|p| p.is_released), "who goes has the devices still");
                self.aside.append(&mut self.processes);
                if self.is_clung_to && self.nr_domains > 1 {
                    self.not_promoted = Some("domain 1, which was it before: it is clung to".into());
                    return;
                }
                // It may have gone a moment ago.
                let waits = self.standby.take_if(|d| d.id == id);
                self.domain = waits.or_else(|| self.candidate.take_if(|d| d.id == id));
            }
            Act::Attach(id) => {
                assert_eq!(self.domain.as_ref().map(|d| d.id), Some(id));
                start(self, ATTACH);
            }
            Act::Create => {
                assert_eq!(self.machine.record.mode, Mode::Run, "one that should rest is started");
                assert!(self.domain.is_none(), "there is one already");
                let is_alone = self.remains.is_empty() && self.cleared().next().is_none();
                assert!(is_alone || self.has_room, "others have the memory that it needs");
                start(self, CREATE);
            }
        }
    }

    fn assert_noted(&mut self, id: u16) {
        let is_noted = self.all_mut().any(|d| d.id == id && d.is_noted);
        assert!(is_noted, "domain {id} cannot be rolled back");
    }

    /// What is left of it becomes one that waits.
    pub fn roll_back(&mut self, id: u16) {
        assert!(self.standby.as_ref().is_none_or(|d| d.id == id), "somebody else has the name");
        let image = self.machine.record.image_to_start().clone();
        let at = self.remains.iter().position(|d| d.id == id);
        let back = at.map(|at| self.remains.remove(at)).or_else(|| self.standby.take_if(|d| d.id == id));
        let mut back = back.expect("who is rolled back has neither name nor devices");
        assert!(!back.has_devices && back.image == image, "{back:?}");
        // What was noted of it may have been lost meanwhile.
        if self.native == Native::Fails || !back.is_noted {
            back.is_noted = false;
            return self.remains.push(back);
        }
        (back.end, back.ended_at, back.does, back.age) = (None, None, Does::Boots, BOOT);
        (back.spun, back.beat.wedged_for, back.beat.dma_fault_for) = (Duration::ZERO, None, None);
        back.is_paused = self.native == Native::IsKilled || self.stays_paused;
        self.standby = Some(back);
    }

    /// It was tried to note it. Somebody else may have destroyed it meanwhile.
    pub fn is_noted(&mut self, id: u16, native: Native) {
        let Some(there) = self.all_mut().find(|d| d.id == id) else { return };
        assert!(!there.has_devices, "the hypervisor does not know how to give its devices back");
        there.is_noted = native == Native::Works;
        there.is_paused = native == Native::IsKilled;
    }
}
