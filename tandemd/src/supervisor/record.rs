//! What is remembered of a driver domain while no daemon runs.

use super::cause::Cause;
use super::choice::Given;
use super::words;
use crate::device::Device;
use control::Image;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The cause of a first start.
pub const STARTED: &str = "started";
/// The last step of one that was given up.
const GIVEN_UP: &str = "parked";
/// Recoveries that are kept.
const KEPT: usize = 20;

/// What is wanted of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It runs, and is started again when it fails.
    #[default]
    Run,
    /// It was shut down in order, and rests until somebody starts it, or the machine starts anew; with all others,
    /// until that is over.
    Off,
    /// It failed too often, or the operator wants it to rest.
    Parked,
}

/// The record. Times are milliseconds since the machine's start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Record {
    /// Name of the driver domain; nothing, if an earlier daemon has written it.
    pub driver: String,
    /// What is wanted.
    pub mode: Mode,
    /// Why it is parked.
    pub why: String,
    /// The devices that it has been given, where its section says which it is to have.
    pub given: Vec<Given>,
    /// It is off since it was shut down when all domains were.
    pub with_all: bool,
    /// The start of the machine that the times belong to, by Linux's `boot_id`.
    pub boot: String,
    /// When it failed.
    pub failures: Vec<u64>,
    /// The instance that has to go.
    pub going: Option<u16>,
    /// The one that waited and that takes the place: it has not all devices yet.
    pub promoted: Option<u16>,
    /// Instances that were noted when they waited, if that was possible, and may be rolled back.
    pub snapshots: BTreeSet<u16>,
    /// The one that is being noted.
    pub noting: Option<u16>,
    /// The one that is on its way back.
    pub rolling: Option<u16>,
    /// The one before had to go since it had answered a disk's request with an error. If this one does, the medium is
    /// bad.
    pub is_believed: bool,
    /// Services of whose disks nothing was answered when the one before had to go for that, nor since: their media are
    /// taken for slow. The one for which it is looked after has no name here.
    pub slow: BTreeSet<String>,
    /// What it is started with instead of what its configuration says.
    pub image: Image,
    /// How many upgrades have ended, and why the last one was refused; nothing if it was not.
    pub upgrades: u64,
    /// See `upgrades`.
    pub refused: String,
    /// The upgrade that is under way.
    pub upgrade: Option<Upgrade>,
    /// The instance that is of use, and since when.
    pub in_place: Option<InPlace>,
    /// The last restart that may have been in vain.
    pub hasty: Option<Hasty>,
    /// The instance whose driver's twin was aborted too often.
    pub twin_given_up: Option<u16>,
    /// How often it failed, by cause, and how often it recovered.
    pub counts: BTreeMap<String, u64>,
    /// Milliseconds in which guests had no way out, of all recoveries.
    pub outage: u64,
    /// Of the last one; nothing if there was none, a first start aside.
    pub last_outage: Option<u64>,
    /// The last recoveries, as they were logged.
    pub last: Vec<String>,
    /// The recovery that is under way.
    pub under_way: Option<TimeLine>,
}

/// An instance that is of use.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct InPlace {
    /// Which.
    pub domain: u16,
    /// Since then.
    pub since: u64,
}

/// One that was replaced for want of memory, or since its twind was silent: the next one may be no better.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Hasty {
    /// How often that happened with short times in between.
    pub count: u32,
    /// When it happened last.
    pub at: u64,
}

/// Another image, which has to prove that it is of use.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Upgrade {
    /// The image.
    pub to: Image,
    /// How far it has come.
    pub stage: Stage,
    /// The domain of this image that takes the place, if it was made before.
    pub domain: Option<u16>,
    /// How much had come by the old one when the new one began to boot.
    pub came: u64,
    /// More came by it until it was replaced.
    pub had_come: bool,
    /// All its devices were turned on then.
    pub was_probed: bool,
    /// Guests' disks that it served then.
    pub disks: Vec<Device>,
    /// Other services whose way out it was then.
    pub ways: Vec<String>,
}

/// How far an upgrade has come.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// One of the image boots beside the old one.
    #[default]
    Boots,
    /// It has booted, and one of the image takes the place.
    Takes,
}

/// When what happened in a recovery.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TimeLine {
    /// Why there is one.
    pub cause: String,
    /// When it began, as far as that is known, else when it was seen, in ms since the machine's start.
    pub from: u64,
    /// What has happened with instances that came and failed again before it was over.
    pub before: Vec<(String, u64)>,
    /// What happened, and how many ms later.
    pub steps: Vec<(String, u64)>,
    /// When guests lost their way out again, if one of those had been that, and how long they had none until then.
    pub lost_again: Option<u64>,
    /// See `lost_again`.
    pub earlier_outage: u64,
}

/// Milliseconds, as they are kept.
pub fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl TimeLine {
    /// Begins.
    pub fn new(cause: &str, now: Duration) -> Self {
        Self { cause: cause.into(), from: ms(now), ..Self::default() }
    }

    /// The instance that came has failed, as is seen now, since `began`: another one comes, of which nothing is known
    /// yet. `came`: it was of use when that has happened.
    pub fn again(&mut self, cause: &str, came: &str, began: Duration, now: Duration) {
        if self.has(came) {
            self.earlier_outage += self.outage_of_this();
            self.lost_again = Some(self.after(began));
        }
        self.before.append(&mut self.steps);
        self.before.push((format!("again {cause}"), self.after(now)));
    }

    fn after(&self, time: Duration) -> u64 {
        ms(time).saturating_sub(self.from)
    }

    /// Whether this has happened with the instance that comes.
    pub fn has(&self, step: &str) -> bool {
        self.steps.iter().any(|(name, _)| name == step)
    }

    /// This happened now, unless it is known.
    pub fn mark(&mut self, step: &str, now: Duration) {
        if !self.has(step) {
            self.steps.push((step.into(), self.after(now)));
        }
    }

    /// How long, in ms, guests had no way out.
    fn outage(&self) -> u64 {
        self.earlier_outage + self.outage_of_this()
    }

    /// The same since they lost it last: until a packet came in, or a disk's request was answered. None was for a long
    /// time: until the interface was there, or the disks' back end. None of that came: until it was given up.
    fn outage_of_this(&self) -> u64 {
        if self.is_first_start() {
            return 0;
        }
        let each = [words::NET, words::DISK];
        let came = each.iter().find_map(|words| self.at(words.came));
        let until = came.or(each.iter().find_map(|words| self.at(words.up))).or(self.at(GIVEN_UP)).unwrap_or(0);
        until.saturating_sub(self.lost_again.unwrap_or(0))
    }

    /// Before it there was nothing that could have ended.
    fn is_first_start(&self) -> bool {
        self.cause == STARTED && self.lost_again.is_none()
    }

    /// When the step was done, in ms after the beginning, if it was.
    pub fn at(&self, step: &str) -> Option<u64> {
        self.steps.iter().find(|(done, _)| done == step).map(|(_, at)| *at)
    }

    /// For the log: `CAUSE: STEP 12 ms, STEP 40 ms`.
    pub fn describe(&self) -> String {
        let steps: Vec<String> =
            self.before.iter().chain(&self.steps).map(|(step, at)| format!("{step} {at} ms")).collect();
        format!("{}: {}", self.cause, steps.join(", "))
    }
}

impl Record {
    /// The record for the driver domain of this name. What was remembered of another one, which the service had before,
    /// says nothing of this one; counts are the service's.
    pub fn of(self, driver: &str) -> Self {
        let driver = driver.to_string();
        if self.driver.is_empty() || self.driver == driver {
            return Self { driver, ..self };
        }
        let is_called_off = self.upgrade.is_some();
        let Self { boot, counts, outage, last_outage, last, upgrades, .. } = self;
        let mut record = Self { driver, boot, counts, outage, last_outage, last, upgrades, ..Self::default() };
        if is_called_off {
            record.end_upgrade("the service has another driver domain now");
        }
        record
    }

    /// The machine was started anew. Who takes it down has all domains shut down before, driver domains as well, by the
    /// same words as who means one of them; so one that was off then is wanted again, as with the machine all its
    /// guests are. One that is to rest for longer is parked.
    pub fn begin_anew(&mut self, boot: &str) {
        self.boot = boot.into();
        if self.mode == Mode::Off {
            (self.mode, self.with_all) = (Mode::Run, false);
        }
        (self.failures, self.going, self.promoted, self.under_way) = (Vec::new(), None, None, None);
        self.snapshots.clear();
        self.slow.clear();
        (self.noting, self.rolling, self.in_place, self.hasty, self.twin_given_up) = (None, None, None, None, None);
        if self.upgrade.take().is_some() {
            self.end_upgrade("the machine was started anew meanwhile");
        }
    }

    /// It is wanted, and what it did before is forgiven.
    pub fn wake(&mut self) {
        (self.mode, self.with_all) = (Mode::Run, false);
        self.why.clear();
        self.failures.clear();
        self.slow.clear();
    }

    /// One more of these.
    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    /// What one that is created now is started with.
    pub fn image_to_start(&self) -> &Image {
        self.upgrade.as_ref().filter(|upgrade| upgrade.stage == Stage::Takes).map_or(&self.image, |upgrade| &upgrade.to)
    }

    /// An upgrade has ended; why it was refused, or nothing.
    pub fn end_upgrade(&mut self, why: &str) {
        self.upgrade = None;
        self.upgrades += 1;
        self.refused = why.into();
    }

    /// The recovery that was under way comes to no good end: it is parked now. What it was like until then; nothing, if
    /// it began by an order to park it.
    pub fn give_up(&mut self, now: Duration) -> Option<String> {
        self.under_way.take_if(|line| line.cause == Cause::Park.name());
        self.under_way.as_mut()?.mark(GIVEN_UP, now);
        self.finish()
    }

    /// The recovery that was under way has come to its end; what it was like.
    pub fn finish(&mut self) -> Option<String> {
        let line = self.under_way.take()?;
        self.outage += line.outage();
        if !line.is_first_start() {
            self.last_outage = Some(line.outage());
        }
        let said = line.describe();
        self.last.push(said.clone());
        let surplus = self.last.len().saturating_sub(KEPT);
        self.last.drain(..surplus);
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_of_one_driver_domain_says_nothing_of_another_one() {
        let mut counted = Record { boot: "one".into(), outage: 670, upgrades: 2, ..Record::default() };
        counted.count("panicked");
        counted.last.push("panicked: interface 70 ms".into());
        let mut record =
            Record { mode: Mode::Parked, why: "it failed".into(), failures: vec![5, 9], ..counted.clone() };
        (record.going, record.promoted, record.is_believed) = (Some(77), Some(78), true);
        record.slow = [String::new()].into();
        (record.snapshots, record.noting, record.rolling) = ([77].into(), Some(78), Some(77));
        record.image.kernel = Some("/boot/kept".into());
        record.upgrade = Some(Upgrade::default());
        record.under_way = Some(TimeLine::new("panicked", Duration::from_secs(3)));
        // One of an earlier daemon's has no name.
        let record = record.clone().of("dd");
        assert_eq!(record.image.kernel.as_deref(), Some("/boot/kept"));
        assert_eq!(record.clone().of("dd"), record);
        let other = record.of("dd2");
        assert!(other.refused.contains("another driver domain"), "{}", other.refused);
        let expected = Record { driver: "dd2".into(), refused: other.refused.clone(), upgrades: 3, ..counted };
        assert_eq!(other, expected);
    }

    #[test]
    fn a_time_line_tells_each_step_once_and_few_are_kept() {
        let at = Duration::from_millis;
        let mut record = Record::default();
        for n in 0..25 {
            let mut line = TimeLine::new("destroyed", at(1000 + n));
            line.mark("created", at(1500 + n));
            line.mark("created", at(1700 + n));
            record.under_way = Some(line);
            assert_eq!(record.finish().as_deref(), Some("destroyed: created 500 ms"));
        }
        assert_eq!((record.finish(), record.last.len(), record.outage), (None, KEPT, 0));
    }

    #[test]
    fn an_outage_lasts_until_a_packet_comes_in() {
        let at = Duration::from_millis;
        let mut record = Record::default();
        let mut finish = |cause: &str, steps: &[(&str, u64)]| {
            let mut line = TimeLine::new(cause, at(1000));
            steps.iter().for_each(|(step, after)| line.mark(step, at(1000 + after)));
            record.under_way = Some(line);
            record.finish();
            (record.outage, record.last_outage)
        };
        let start = [("interface", 5000), ("first packet in", 6000)];
        assert_eq!(finish(STARTED, &start), (0, None), "nothing had ended");
        assert_eq!(finish("wedged", &[("interface", 500), ("first packet in", 600), ("card", 9000)]), (600, Some(600)));
        assert_eq!(finish("panicked", &[("interface", 70), ("card", 9000)]), (670, Some(70)), "no packet came");
        assert_eq!(finish(STARTED, &start), (670, Some(70)), "it was off before");
    }

    #[test]
    fn an_outage_lasts_until_it_is_given_up() {
        let at = |after: u64| Duration::from_millis(1000 + after);
        let mut record = Record::default();
        let mut give_up = |line: TimeLine, after| {
            let before = record.outage;
            record.under_way = Some(line);
            (record.give_up(at(after)), record.outage - before)
        };
        let line = TimeLine::new("wedged", at(0));
        let mut never = line.clone();
        never.again("not-ready", "first packet in", at(2000), at(2000));
        assert_eq!(give_up(never, 2010), (Some("wedged: again not-ready 2000 ms, parked 2010 ms".into()), 2010));
        let mut once = line.clone();
        once.mark("first packet in", at(600));
        once.again("panicked", "first packet in", at(5000), at(5100));
        assert_eq!(give_up(once, 5110).1, 600 + 110);
        assert_eq!(give_up(TimeLine::new(STARTED, at(0)), 9000).1, 0, "there was nothing that could end");
        assert_eq!(give_up(TimeLine::new("park", at(0)), 0), (None, 0));
        assert_eq!(record.under_way, None);
    }

    #[test]
    fn each_outage_of_a_recovery_is_counted_and_what_comes_has_no_steps_of_what_was() {
        let at = |after| Duration::from_millis(1000 + after);
        let mark = |line: &mut TimeLine, steps: &[(&str, u64)]| {
            steps.iter().for_each(|(step, after)| line.mark(step, at(*after)));
        };
        for (cause, first) in [("wedged", 600), (STARTED, 0)] {
            let mut line = TimeLine::new(cause, at(0));
            mark(&mut line, &[("interface", 500), ("first packet in", 600)]);
            line.again("panicked", "first packet in", at(1990), at(2000));
            assert!(!line.has("interface") && !line.has("first packet in"));
            // This one was of no use: guests go on to wait.
            mark(&mut line, &[("interface", 2500)]);
            line.again("not-ready", "first packet in", at(3000), at(3000));
            mark(&mut line, &[("interface", 3400), ("first packet in", 3500), ("card", 9000)]);
            assert_eq!(line.outage(), first + 1510);
            let told = "interface 500 ms, first packet in 600 ms, again panicked 2000 ms, interface 2500 ms, \
                        again not-ready 3000 ms, interface 3400 ms, first packet in 3500 ms, card 9000 ms";
            assert_eq!(line.describe(), format!("{cause}: {told}"));
        }
    }
}
