//! The daemon: it looks, does what is to be done, is told something, and is killed.

use super::*;
use crate::departure::Answer;
use crate::supervisor::health::Queue;
use crate::supervisor::look::{Errand, Look, OtherWay, Way};
use control::Order;

impl World {
    pub fn look(&mut self) -> Look {
        let now = self.now;
        let (over, aside) = std::mem::take(&mut self.aside).into_iter().partition(|process| process.until <= now);
        self.aside = aside;
        self.clear_away(over);
        if let Some((id, _)) = self.going_back.take_if(|(_, until)| *until <= now) {
            self.roll_back(id);
        }
        if let Some((id, _)) = self.noting.take_if(|(_, until)| *until <= now) {
            self.is_noted(id, Native::Works);
        }
        self.release();
        self.wait_for_lock();
        let domain = self.domain.as_ref().map(|d| d.seen(self.now));
        let way = self.domain.as_ref().filter(|d| d.is_way()).map(|d| Way {
            is_card: false,
            // Guests go on to send while it is paused.
            queue: Queue { is_waiting: d.is_paused, taken: d.taken, ..Queue::default() },
            came: d.came,
            has_failed: self.words == &words::DISK && (d.does == Does::Errs || self.medium_is_bad),
            ..Way::default()
        });
        // As for guests that ask again and again: what is excused of what the one before had is not counted.
        let hung = Way { queue: Queue { is_waiting: true, taken: 1, ..Queue::default() }, ..Way::default() };
        let of = |which, kind: Kind, way: Way| match self.hangs_for {
            Some(hangs) if hangs == which => hung,
            _ => Way { has_answered: kind == Kind::Disk, ..way },
        };
        let far = way.map(|way| of(MediumOf::Far, self.far_kind, Way { has_failed: false, ..way }));
        let way = way.map(|way| of(MediumOf::Own, self.words.kind, way));
        // Those of earlier daemons are found, too.
        let errand = match self.processes.first().copied() {
            Some(process) if process.until > self.now && process.is_released => Errand::ClearsAway,
            Some(process) if process.until > self.now => Errand::Runs,
            Some(process) => {
                self.processes.remove(0);
                Errand::Done(self.complete(process))
            }
            None => Errand::None,
        };
        let side = match self.side {
            Some(process) if process.until > self.now => Errand::Runs,
            Some(process) => {
                self.side = None;
                Errand::Done(self.complete(process))
            }
            None => Errand::None,
        };
        let is_done = matches!(errand, Errand::Done(_));
        let domain = if is_done { self.domain.as_ref().map(|d| d.seen(self.now)) } else { domain };
        let has_all = self.domain.as_ref().is_some_and(|d| d.has_devices);
        let does = self.domain.as_ref().map(|d| d.does);
        let is_new = self.domain.as_ref().is_some_and(|d| d.image == new());
        let other = |service: &String| OtherWay {
            service: service.clone(),
            kind: self.far_kind,
            way: far.filter(|_| !(is_new && self.lacks_far)),
            may_be_none: false,
        };
        let others = self.far.iter().map(other).collect();
        let is_served = |disk: &Device| way.is_some() && !(is_new && self.lacks_disks.contains(disk));
        let (disks, disks_without) = self.disks.iter().partition(|disk| is_served(disk));
        let is_driven = way.is_some() && does != Some(Does::IsBlind) || does == Some(Does::Idles);
        Look {
            now: self.now,
            domain,
            has_all,
            is_meeting: self.meets_until.is_some_and(|until| now < until),
            is_probed: has_all && is_driven,
            has_link: has_all && is_driven,
            available_kib: self.domain.as_ref().and_then(|d| d.available_kib),
            twind: self.domain.as_ref().and_then(|d| d.twind),
            standby: self.standby.as_ref().map(|d| d.seen(self.now)),
            candidate: self.candidate.as_ref().map(|d| d.seen(self.now)),
            remains: self.remains.iter().map(|d| d.id).filter(|id| !self.is_cleared(*id)).collect(),
            going_back: self.going_back.map(|(id, _)| id),
            noting: self.noting.map(|(id, _)| id),
            snapshots: self.all().filter(|d| d.is_noted).map(|d| d.id).collect(),
            has_room: self.has_room,
            clearing: self.cleared().collect(),
            way,
            others,
            disks,
            disks_without,
            has_devices: self.has_devices && !self.lacks_another,
            missing: self.missing.clone(),
            has_lost: !self.has_devices || self.lacks_another && !has_all,
            is_served: true,
            is_cut_off: false,
            are_all_ended: self.asks_for_all().then_some(match self.are_all_ended {
                _ if self.is_in_doubt => Answer::Unknown,
                true => Answer::Yes,
                false => Answer::No,
            }),
            errand,
            side,
            dismissing: self.dismissed().collect(),
            not_promoted: self.not_promoted.take(),
        }
    }

    /// As the shell does.
    fn asks_for_all(&self) -> bool {
        let was_shut_down = |d: &Instance| matches!(d.end, Some((reason::SHUTDOWN_POWEROFF, _)));
        self.domain.as_ref().is_some_and(was_shut_down) || self.machine.waits_for_all()
    }

    /// The daemon does what is to be done now. It may be killed before it does the act of that number.
    pub fn step(&mut self, killed_before: Option<usize>) {
        let mut look = self.look();
        let mut count = 0;
        while let Some(act) = self.machine.next(&look) {
            self.disk = self.machine.record.clone();
            if killed_before == Some(count) {
                return self.kill();
            }
            self.take(act);
            if self.native == Native::IsKilled
                && matches!(
                    act,
                    Act::Take(_) | Act::HandOver(_) | Act::Note(_) | Act::RollBack(_) | Act::RollBackBeside(_)
                )
            {
                self.native = Native::Works;
                return self.kill();
            }
            count += 1;
            look = self.look();
        }
        self.disk = self.machine.record.clone();
        self.log.append(&mut self.machine.said);
    }

    pub fn kill(&mut self) {
        // What clears away goes on without it, and the next one does not know.
        let (mut aside, hung) = (std::mem::take(&mut self.aside), self.hung.take());
        aside.retain(|process| hung.is_none_or(|id| process.act != Act::Dismiss(id)));
        self.clear_away(aside);
        if let Some((id, until)) = self.going_back.take() {
            // It may have got half way.
            if until < self.now + BACK / 2 {
                let native = std::mem::replace(&mut self.native, Native::IsKilled);
                self.roll_back(id);
                self.native = native;
            }
        }
        if let Some((id, _)) = self.noting.take() {
            // It stays paused.
            self.is_noted(id, Native::IsKilled);
        }
        self.machine = Machine::new(self.settings.clone(), self.words, self.disk.clone());
    }

    pub fn ask(&mut self, order: Order) -> Result<(), String> {
        let look = self.look();
        if let Some(act) = self.machine.command(order, &look)? {
            self.take(act);
        }
        self.disk = self.machine.record.clone();
        if let (Order::Park, Some(d)) = (order, &mut self.domain) {
            // Whoever has started it: it is to go.
            d.is_others = false;
        }
        Ok(())
    }

    /// It is to be of the new image, which has a flaw or not.
    pub fn upgrade(&mut self, flaw: Option<Flaw>) -> Result<(), String> {
        let look = self.look();
        self.machine.upgrade(with(flaw), false, &look)?;
        self.disk = self.machine.record.clone();
        Ok(())
    }
}
