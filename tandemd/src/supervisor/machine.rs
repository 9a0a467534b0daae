//! What is to be done next for a driver domain: a state machine that sees looks, and names acts.
//!
//! Nothing here touches the world, so the tests play all of it: the domain, the toolstack, the clock, and an end of the
//! daemon at any point. What has to outlive the daemon is in the [`Record`]; everything else is found again by looking.

mod coming;
pub mod drain;
mod going;
mod others;
mod planned;
mod remains;
mod renewal;
mod snapshot;
mod twin;
pub mod upgrade;

use super::cause::Cause;
use super::health::{Health, Illness};
use super::look::{Act, Domain, Errand, Look, Way};
use super::record::{ms, Mode, Record, TimeLine, STARTED};
use super::settings::Settings;
use super::standby::{is_usable, Standby, Wish};
use super::words::Words;
use crate::config::Kind;
use crate::departure::Answer;
use coming::Coming;
use control::{Image, Order};
use going::{Going, Then};
use planned::Planned;
use remains::Tried;
use renewal::Renewal;
use snapshot::Booting;
use std::collections::BTreeMap;
use std::time::Duration;
use twin::Twins;
use upgrade::Candidate;
use xen_abi::sched as reason;

/// So long after its interface is there a recovery is taken for complete, if no packet comes.
const QUIET: Duration = Duration::from_secs(60);
/// So long the memory of one that is destroyed beside is waited for.
const UNTIL_FREE: Duration = Duration::from_secs(5);
/// So long it is looked at often whether one that is up is of use.
const SOON: Duration = Duration::from_secs(2);
/// Who tries something again after twice as long each time, as TCP does, does so at the latest when as much time as it
/// was in vain has gone by again. TCP waits for no longer than this.
const LAST_TRY: Duration = Duration::from_secs(120);
/// What it does that is parked, for people.
pub const PARKED: &str = "parked";
/// Why it is parked.
pub const BY_OPERATOR: &str = "the operator wants it";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It has just begun. A toolstack that an earlier daemon has started may be at work still.
    Inherited,
    /// It is the way out.
    Up { domain: u16 },
    /// It was started, and its interface is not there yet.
    Coming(Coming),
    /// It goes.
    Going(Going),
    /// It is to be started then.
    Down { from: Duration },
    /// The toolstack starts it.
    Starting,
    /// One that is to be noted boots without devices.
    Booting(Booting),
    /// What is left of it is rolled back.
    RollingBack { domain: u16 },
    /// The one that waited takes the place, and gets the devices. `is_tried`: without the toolstack, which was not
    /// possible.
    HandingOver { domain: u16, tries: u32, is_tried: bool },
    /// It is off or parked.
    Resting,
}

/// Where a daemon begins if no toolstack is at work.
fn go_on(record: &Record) -> Phase {
    let then = if record.mode == Mode::Run { Then::Start(Duration::ZERO) } else { Then::Rest };
    match (record.going, then) {
        // Whether an earlier daemon has come to it nobody knows; twice does no harm.
        (Some(domain), then) => {
            let (is_quarantined, is_taken) = (false, false);
            let (draining, next) = (None, Duration::ZERO);
            Phase::Going(Going { domain, is_quarantined, is_taken, draining, next, tries: 0, then })
        }
        (None, Then::Start(from)) => match record.promoted {
            Some(domain) => Phase::HandingOver { domain, tries: 0, is_tried: false },
            None => Phase::Down { from },
        },
        (None, Then::Rest) => Phase::Resting,
    }
}

/// A driver domain that is looked after.
pub struct Machine {
    settings: Settings,
    words: &'static Words,
    phase: Phase,
    health: Health,
    standby: Standby,
    candidate: Candidate,
    renewal: Renewal,
    planned: Planned,
    twins: Twins,
    /// What is kept; to be written when it differs from what was.
    pub record: Record,
    /// Lines for the log.
    pub said: Vec<String>,
    /// The last line about what is waited for.
    waits_for: String,
    /// Why nobody could follow the one that is up, or be started; and what was said of that.
    hindrance: Option<String>,
    said_hindrance: Option<String>,
    /// What is left of earlier ones is not cleared away before; and how that went.
    clear_from: Duration,
    cleared: BTreeMap<u16, Tried>,
    /// The one of them that had the place last, and lost its devices without the toolstack.
    beside: Option<u16>,
    /// Another one could not be made beside them.
    lacks_room: bool,
    /// Since when one that waited or was tried is being destroyed.
    frees_since: Option<Duration>,
    /// The instance that is there can be rolled back.
    is_noted: bool,
    /// The one that waits runs, or will when there is something to do for it.
    runs_beside: Option<u16>,
    /// Since when its network is away, and until when it may take it for that.
    cut_off_since: Option<Duration>,
    excused_until: Duration,
}

impl Machine {
    /// Begins, or goes on where an earlier daemon ended.
    pub fn new(settings: Settings, words: &'static Words, record: Record) -> Self {
        Self {
            standby: Standby::new(Duration::from_secs(settings.ready_s)),
            settings,
            words,
            phase: Phase::Inherited,
            health: Health::default(),
            candidate: Candidate::default(),
            renewal: Renewal::default(),
            planned: Planned::default(),
            twins: Twins::default(),
            record,
            said: Vec::new(),
            waits_for: String::new(),
            hindrance: None,
            said_hindrance: None,
            clear_from: Duration::ZERO,
            cleared: BTreeMap::new(),
            beside: None,
            lacks_room: false,
            frees_since: None,
            is_noted: false,
            runs_beside: None,
            cut_off_since: None,
            excused_until: Duration::ZERO,
        }
    }

    /// For people: what it does.
    pub fn state(&self) -> &'static str {
        match (&self.phase, self.record.mode) {
            (Phase::Up { .. }, _) => "up",
            (Phase::Coming(_) | Phase::Starting | Phase::HandingOver { .. }, _) => "starting",
            (Phase::Booting(_) | Phase::RollingBack { .. }, _) => "starting",
            (Phase::Going(_) | Phase::Inherited, _) => "going",
            (Phase::Down { .. }, _) => "waiting",
            (Phase::Resting, Mode::Parked) => PARKED,
            (Phase::Resting, _) => "off",
        }
    }

    /// It was shut down with all other domains, and is started when that is over.
    pub fn waits_for_all(&self) -> bool {
        self.record.mode == Mode::Off && self.record.with_all
    }

    /// Whether another one waits to take its place, and can, if one is wanted.
    pub fn standby(&self) -> Option<bool> {
        let can = |id| self.runs_beside == Some(id) && (!self.takes_turns() || self.was_noted(id));
        (self.settings.standby > 0).then(|| self.standby.ready().is_some_and(can))
    }

    /// Why nobody could follow the one that is up, or be started, if that is for want of a file.
    pub fn not_replaceable(&self) -> Option<&str> {
        self.hindrance.as_deref()
    }

    /// For how long the instance that is up has been of use.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        let Phase::Up { domain } = self.phase else { return None };
        let known = self.record.in_place.filter(|known| known.domain == domain)?;
        Some(Duration::from_millis(ms(now).saturating_sub(known.since)))
    }

    /// Whether something is under way that should be looked at often.
    pub fn is_busy(&self, now: Duration) -> bool {
        match self.phase {
            Phase::Inherited | Phase::Coming(_) | Phase::Going(_) | Phase::Starting | Phase::HandingOver { .. } => true,
            Phase::Booting(_) | Phase::RollingBack { .. } => true,
            Phase::Down { .. } => self.waits_for.is_empty(),
            Phase::Up { .. } => self.is_of_use_soon(now),
            Phase::Resting => false,
        }
    }

    /// One that goes sends what it has taken.
    pub fn is_draining(&self) -> bool {
        matches!(&self.phase, Phase::Going(going) if going.draining.is_some())
    }

    /// It is up, and is about to be of use.
    fn is_of_use_soon(&self, now: Duration) -> bool {
        let Some(line) = self.record.under_way.as_ref().filter(|line| !line.has(self.words.came)) else { return false };
        ms(now).saturating_sub(line.from + line.at(self.words.up).unwrap_or(0)) < ms(SOON)
    }

    /// The next thing to do, if there is one. After each another look is taken.
    pub fn next(&mut self, look: &Look) -> Option<Act> {
        self.is_noted = look.domain.as_ref().is_some_and(|d| self.can_go_back(d.id, look));
        self.runs_beside = look.standby.as_ref().filter(|d| is_usable(d)).map(|d| d.id);
        let frees = |d: &Domain| look.dismissing.contains(&d.id);
        let frees = look.standby.iter().chain(&look.candidate).any(frees);
        self.frees_since = frees.then(|| self.frees_since.unwrap_or(look.now));
        if let Some(result) = self.standby.take_result(look) {
            // It was its toolstack, and nobody else waits for that.
            self.said.extend(result.err());
            return self.next(&Look { side: Errand::None, ..look.clone() });
        }
        if let Some(result) = self.candidate.take_result(look) {
            self.hear_of_candidate(result);
            return self.next(&Look { side: Errand::None, ..look.clone() });
        }
        if self.awaits_answer(look) {
            return None;
        }
        let act = self.advance(look).or_else(|| self.clear_away(look));
        act.or_else(|| if Self::is_idle(look) { self.beside(look) } else { None })
    }

    /// No toolstack is at work but such as destroys somebody beside.
    fn is_idle(look: &Look) -> bool {
        look.errand == Errand::None && look.side == Errand::None
    }

    /// It was shut down, and whether that was meant for it alone is not known yet.
    fn awaits_answer(&self, look: &Look) -> bool {
        let was_shut_down = |d: &Domain| matches!(d.end, Some((reason::SHUTDOWN_POWEROFF, false))) && !d.is_destroyed();
        look.are_all_ended == Some(Answer::Unknown)
            && matches!(self.phase, Phase::Up { .. } | Phase::Coming(_))
            && look.domain.as_ref().is_some_and(was_shut_down)
    }

    /// What there is to do for those that are not the driver domain, and may become it.
    fn beside(&mut self, look: &Look) -> Option<Act> {
        if look.going_back.is_some() || look.noting.is_some() {
            // It has the name of the one that waits, or is about to get it; or it is paused.
            return None;
        }
        self.forget_stale_attempts(look);
        let has_one = self.settings.standby > 0;
        let wish = match self.phase {
            // One may be there of when the configuration was another one.
            Phase::Up { .. } if self.record.upgrade.is_some() || !has_one || self.is_left_half(look) => Wish::Gone,
            // It may need the memory of what is cleared away.
            Phase::Up { .. } if self.record.under_way.is_none() && !self.has_remains(look) => Wish::There,
            Phase::Resting => Wish::Gone,
            // What they become is decided there.
            Phase::HandingOver { .. } => return None,
            _ => Wish::Kept,
        };
        if let Some(act) = self.upgrade_on(look) {
            return Some(act);
        }
        let goes_on = matches!(self.phase, Phase::Up { .. }) && self.record.under_way.is_none();
        if self.takes_turns() && goes_on && self.record.upgrade.is_none() {
            if let Some(act) = self.renew(look) {
                return Some(act);
            }
        }
        let act = self.standby.next(wish, look, &mut self.said);
        act.or_else(|| if wish == Wish::There { self.introduce(look) } else { None })
    }

    /// One that has booted gets to know others while it waits; if it is to be noted, that comes first.
    fn introduce(&mut self, look: &Look) -> Option<Act> {
        let there = look.standby.as_ref().filter(|d| !d.is_dying && d.end.is_none())?;
        if look.dismissing.contains(&there.id) {
            return None;
        }
        if self.takes_turns() {
            if let Some(act) = self.note_who_waits(there, look) {
                return Some(act);
            }
        }
        self.standby.introduce(there.id)
    }

    fn advance(&mut self, look: &Look) -> Option<Act> {
        if !matches!(self.phase, Phase::Up { .. }) {
            self.hindrance = None;
        }
        match self.phase.clone() {
            Phase::Inherited => {
                if look.errand != Errand::Runs {
                    self.phase = go_on(&self.record);
                }
                None
            }
            Phase::Up { domain } => {
                let act = self.is_up(domain, look);
                if act.is_none() && matches!(self.phase, Phase::Up { .. }) {
                    self.tell_of_hindrance(domain, look);
                }
                act
            }
            Phase::Coming(coming) => self.wait_for(coming, look),
            Phase::Going(going) => self.let_go(going, look),
            Phase::Down { from } => self.start(from, look),
            Phase::Starting => self.started(look),
            Phase::Booting(booting) => self.wait_until_noted(&booting, look),
            Phase::RollingBack { domain } => self.rolled_back(domain, look),
            Phase::HandingOver { domain, tries, is_tried } => self.hand_over(domain, tries, is_tried, look),
            Phase::Resting => {
                self.record.going = self.record.going.filter(|id| look.domain.as_ref().is_some_and(|d| d.id == *id));
                // Also one that has ended since: it was wanted.
                let there = look.domain.as_ref().filter(|d| !d.is_dying);
                if let (Some(domain), Mode::Off) = (there, self.record.mode) {
                    self.say("it was started by somebody else");
                    (self.record.mode, self.record.with_all) = (Mode::Run, false);
                    self.adopt(domain.id, look);
                } else if look.domain.is_none() && self.waits_for_all() && look.are_all_ended == Some(Answer::No) {
                    self.say("all domains were ended, and the machine goes on");
                    (self.record.mode, self.record.with_all) = (Mode::Run, false);
                    self.phase = Phase::Down { from: look.now };
                }
                None
            }
        }
    }

    /// Whether it can do what somebody asks for, or say why not. One that has just begun knows after its first step;
    /// and what became of a process, which is told once, is heard first, by who has asked for that.
    pub fn hears(&self, look: &Look) -> bool {
        let is_told = [&look.errand, &look.side].into_iter().any(|errand| matches!(errand, Errand::Done(_)));
        !is_told && (self.phase != Phase::Inherited || look.errand == Errand::Runs)
    }

    /// Does what the operator asks for; or says why not.
    pub fn command(&mut self, order: Order, look: &Look) -> Result<Option<Act>, String> {
        // Also one that goes and is not to come again: whoever sees that it is gone may ask before its toolstack has
        // ended.
        let rests = matches!(self.phase, Phase::Resting | Phase::Going(Going { then: Then::Rest, .. }));
        // One that nobody has noted yet, since it was there only when this look was taken, is meant too.
        let there = look.domain.as_ref().map(|d| d.id);
        match (order, &mut self.phase) {
            (_, Phase::Inherited | Phase::Starting) => {
                Err("the toolstack is at work; ask again when it is done".into())
            }
            (Order::Unpark, _) if !rests => Err(format!("it is not parked: it is {}", self.state())),
            (Order::Park, Phase::Going(going)) if there.is_none_or(|id| id == going.domain) => {
                going.then = Then::Rest;
                if self.record.upgrade.is_some() {
                    self.refuse(upgrade::BY_OPERATOR);
                }
                self.park(BY_OPERATOR.into(), look.now);
                Ok(None)
            }
            (Order::Restart | Order::Unpark, Phase::Going(going)) if there.is_none_or(|id| id == going.domain) => {
                going.then = Then::Start(look.now);
                self.record.wake();
                Ok(None)
            }
            (Order::Park, _) => Ok(self.fail(Cause::Park, there, look)),
            (Order::Restart, phase) if there.is_some() => {
                let up = if let Phase::Up { domain } = phase { Some(*domain) } else { None };
                if let Some(why) = up.and_then(|domain| self.hindrance(domain, look)) {
                    return Err(format!("no other one could be created, so it stays: {why}"));
                }
                self.record.wake();
                Ok(self.fail(Cause::Restart, there, look))
            }
            (Order::Unpark, _) if there.is_some() && there == self.record.going => {
                // It could not be destroyed, and is paused.
                self.record.wake();
                self.phase = go_on(&self.record);
                Ok(None)
            }
            (Order::Restart | Order::Unpark, _) => {
                self.record.wake();
                (self.record.going, self.record.promoted) = (None, None);
                self.phase = Phase::Down { from: look.now };
                Ok(None)
            }
        }
    }

    fn say(&mut self, line: impl Into<String>) {
        self.said.push(line.into());
    }

    fn mark(&mut self, step: &str, now: Duration) {
        if let Some(line) = &mut self.record.under_way {
            line.mark(step, now);
        }
    }

    /// The same, if the other one was before.
    fn mark_if(&mut self, before: &str, step: &str, now: Duration) {
        if let Some(line) = self.record.under_way.as_mut().filter(|line| line.has(before)) {
            line.mark(step, now);
        }
    }

    /// What is wrong with an instance that should be there.
    fn trouble(&mut self, domain: u16, look: &Look) -> Option<Cause> {
        let Some(seen) = look.domain.as_ref().filter(|d| d.id == domain && !d.is_destroyed()) else {
            return Some(Cause::Destroyed);
        };
        match seen.end {
            Some((_, true)) => return Some(Cause::Crashed),
            Some((reason::SHUTDOWN_CRASH, false)) if seen.is_out_of_memory => return Some(Cause::OutOfMemory),
            Some((reason::SHUTDOWN_CRASH, false)) => return Some(Cause::Panicked),
            Some((reason::SHUTDOWN_WATCHDOG, _)) => return Some(Cause::Watchdog),
            Some((reason::SHUTDOWN_REBOOT, _)) => return Some(Cause::Rebooted),
            Some((reason::SHUTDOWN_POWEROFF, _)) => {
                return Some(Cause::PoweredOff { with_all: look.are_all_ended == Some(Answer::Yes) })
            }
            // Saved: whoever does that knows what comes.
            Some(_) => return None,
            None => {}
        }
        if look.has_lost {
            return Some(Cause::DeviceGone);
        }
        None
    }

    /// It is up.
    fn is_up(&mut self, domain: u16, look: &Look) -> Option<Act> {
        let act = self.look_after(domain, look).or_else(|| self.note_progress(domain, look));
        let is_well = act.is_none() && matches!(self.phase, Phase::Up { .. });
        act.or_else(|| is_well.then(|| self.look_after_twin(domain, look))?)
    }

    /// It runs; does it do what it should?
    fn look_after(&mut self, domain: u16, look: &Look) -> Option<Act> {
        if let Some(cause) = self.trouble(domain, look) {
            return self.fail(cause, Some(domain), look);
        }
        let Some(way) = look.way else {
            // It closes it before it goes itself, or the operator has taken it; it gets time to come back.
            self.adopt(domain, look);
            return None;
        };
        if look.domain.as_ref().is_some_and(|d| d.is_paused) {
            // By the operator: it does nothing, whatever waits for it, until it runs again.
            (self.health, self.planned) = (Health::default(), Planned::default());
            return None;
        }
        if self.is_excused(look) {
            // What it does not do meanwhile is not its fault. That a vCPU is wedged, or a device was stopped, is.
            self.health = Health::default();
        }
        let beats = look.domain.as_ref().map_or(&[][..], |d| &d.beats);
        let illness = self.health.look(&self.settings, look.now, beats, way.queue, way.came);
        let kind = self.words.kind;
        let wrong = self.what_is_wrong(illness, &way, kind, "").or_else(|| self.wrong_with_others(look));
        let cause = wrong.or_else(|| self.is_due(domain, look))?;
        self.fail(cause, Some(domain), look)
    }

    /// What is wrong with a service's way, or with all of it. The one for which it is looked after has no name.
    fn what_is_wrong(&mut self, illness: Option<Illness>, way: &Way, kind: Kind, service: &str) -> Option<Cause> {
        if way.has_answered {
            self.record.slow.remove(service);
        }
        // The one before has not answered either: it is the medium, and another one would do no better. What is overdue
        // beside that is.
        let is_slow = |illness: &_| matches!(illness, Illness::Undrained { .. }) && self.record.slow.contains(service);
        Some(match illness.filter(|illness| !is_slow(illness)) {
            // Its disks' rings are not looked at any more then.
            Some(Illness::DmaFault { since }) => Cause::DmaFault { since },
            _ if way.has_lost => Cause::EmptyRead,
            _ if way.has_lied => Cause::BadRing,
            Some(Illness::Wedged { vcpu, since }) => Cause::Wedged { vcpu, since },
            Some(Illness::Undrained { since }) if kind == Kind::Disk => Cause::Unanswered { since },
            Some(Illness::Undrained { since }) => Cause::Undrained { since },
            Some(Illness::Overdue { since }) => Cause::Overdue { since },
            Some(Illness::Silent { since }) => Cause::Silent { since },
            None if way.has_failed && self.may_doubt() => Cause::FailedRequest,
            None => return None,
        })
    }

    /// Whether it can do nothing, since its network is away; or may not know yet that it is there again.
    fn is_excused(&mut self, look: &Look) -> bool {
        match self.cut_off_since {
            None if look.is_cut_off => self.cut_off_since = Some(look.now),
            Some(since) if !look.is_cut_off => {
                self.cut_off_since = None;
                self.excused_until = look.now + look.now.saturating_sub(since).min(LAST_TRY);
            }
            _ => {}
        }
        look.is_cut_off || look.now < self.excused_until
    }

    /// Whether another one is asked before an error of its is believed. Guests can bring about errors, too: that costs
    /// others no more than a moment, once, where the next one is there at once.
    fn may_doubt(&self) -> bool {
        let is_quick = self.settings.standby > 0 || self.settings.snapshot;
        is_quick && self.settings.restart && !self.record.is_believed
    }

    /// The first packets, and the twin. One of a new image through which nothing comes, or that leaves guests without
    /// what they had, has failed.
    fn note_progress(&mut self, domain: u16, look: &Look) -> Option<Act> {
        if look.has_link {
            // It may be told after it was of use.
            self.mark_if("start", "link", look.now);
        }
        let (Some(way), Some(line)) = (look.way, &mut self.record.under_way) else { return None };
        let words = self.words;
        let reached = [(way.is_card, Some("card")), (way.queue.taken > 0, words.out), (way.came > 0, Some(words.came))];
        for step in reached.into_iter().filter_map(|(is_reached, step)| step.filter(|_| is_reached)) {
            line.mark(step, look.now);
        }
        let is_of_use = line.has(words.came) || way.is_idle;
        let lacks_twin = self.settings.twin && !line.has("card");
        let is_late = ms(look.now).saturating_sub(line.from + line.at(words.up).unwrap_or(0)) >= ms(QUIET);
        let leaves = self.what_it_leaves(look);
        let is_whole = is_of_use && !lacks_twin && leaves.is_none();
        let cause = if !is_of_use && self.is_missed() { Some(Cause::NothingCame { within: QUIET }) } else { leaves };
        if let Some(cause) = cause.filter(|_| is_late) {
            // By the operator, who may let it run again.
            let is_paused = look.domain.as_ref().is_some_and(|d| d.is_paused);
            return (!is_paused).then(|| self.fail(cause, Some(domain), look))?;
        }
        if is_whole || is_late {
            if lacks_twin {
                self.record.count("without-twin");
                self.say("its driver's twin has not come; Linux's driver is the way");
            }
            self.record.count("recovered");
            if let Some(line) = self.record.finish() {
                self.say(format!("recovered, {line}"));
            }
            self.settle_upgrade(domain);
        }
        None
    }

    /// The one that can take the place.
    pub(super) fn who_waits(&self, look: &Look) -> Option<u16> {
        let is_done = |d: &Domain| {
            is_usable(d) && ![look.going_back, look.noting].contains(&Some(d.id)) && !look.dismissing.contains(&d.id)
        };
        let is_ready = |d: &&Domain| is_done(d) && (self.settings.standby > 0 || self.was_noted(d.id));
        let waits = || look.standby.as_ref().filter(is_ready).map(|d| d.id);
        self.who_is_new(look).or_else(waits)
    }

    /// It is to be started, unless somebody has done that.
    fn start(&mut self, from: Duration, look: &Look) -> Option<Act> {
        if let Some(domain) = &look.domain {
            self.adopt(domain.id, look);
            return None;
        }
        self.miss_new(look);
        let waits = self.who_waits(look);
        let back = if waits.is_none() { self.who_goes_back(look) } else { None };
        let is_ready = waits.or(back).is_some();
        // Who is there already needs no file.
        let is_one_there = is_ready || look.standby.is_some() || look.going_back.is_some() || look.noting.is_some();
        let lacks = look.missing.config.clone().filter(|_| !is_one_there && self.record.upgrade.is_none());
        let waits_for = if !look.has_devices {
            "waits for its device, which is not in the machine, or is domain 0's or another domain's still".into()
        } else if !look.is_served {
            "waits for its service's domain".into()
        } else {
            lacks.as_ref().map_or(String::new(), |why| format!("waits for what it is made of: {why}"))
        };
        if waits_for != self.waits_for && !waits_for.is_empty() {
            self.say(waits_for.clone());
        }
        self.waits_for.clone_from(&waits_for);
        self.hindrance = lacks;
        let is_at_work = match look.errand {
            Errand::Runs => true,
            Errand::ClearsAway => !is_ready,
            // It is paused for a moment, and then takes the place.
            Errand::None | Errand::Done(_) if look.noting.is_some() => true,
            Errand::None | Errand::Done(_) => !is_ready && !self.has_room(look) && self.has_remains(look),
        };
        if !waits_for.is_empty() || look.now < from {
            return None;
        }
        if let Some(act) = self.note_again(look) {
            return Some(act);
        }
        if Self::is_idle(look) && self.is_in_the_way(look) {
            return self.standby.next(Wish::Gone, look, &mut self.said);
        }
        if is_at_work || waits.is_none() && self.is_held_up(back.is_some(), look) {
            return None;
        }
        if self.record.under_way.is_none() {
            self.record.under_way = Some(TimeLine::new(STARTED, look.now));
        }
        self.mark("start", look.now);
        if let Some(waits) = waits {
            self.record.promoted = Some(waits);
            self.phase = Phase::HandingOver { domain: waits, tries: 0, is_tried: false };
            return Some(Act::Promote(waits));
        }
        if let Some(domain) = back {
            self.record.rolling = Some(domain);
            self.phase = Phase::RollingBack { domain };
            return Some(Act::RollBack(domain));
        }
        self.forget_what_is_missing(look);
        if self.settings.snapshot {
            return self.boot(look);
        }
        self.phase = Phase::Starting;
        Some(Act::Create)
    }

    /// An image that an upgrade has brought, and whose files are gone, can start nobody. What the configuration says
    /// can, perhaps.
    fn forget_what_is_missing(&mut self, look: &Look) {
        if let (Some(why), None) = (&look.missing.image, &self.record.upgrade) {
            self.say(format!(
                "{why}: what earlier upgrades have brought is forgotten, and it is started as it is configured"
            ));
            self.record.image = Image::default();
        }
    }

    /// Whether one cannot be made yet, or rolled back, for what the toolstack does beside: who makes one there has xl's
    /// lock, or is the next to get it, and a name that one that is rolled back has for a moment.
    fn is_held_up(&self, goes_back: bool, look: &Look) -> bool {
        let is_making = look.side == Errand::Runs;
        if goes_back {
            return is_making && !self.candidate.is_at_work();
        }
        let is_leaving = |d: &Domain| look.dismissing.contains(&d.id);
        let has_name = self.settings.snapshot && look.standby.as_ref().is_some_and(is_leaving);
        is_making || has_name || self.frees_since.is_some_and(|since| look.now < since + UNTIL_FREE)
    }

    /// The toolstack starts it.
    fn started(&mut self, look: &Look) -> Option<Act> {
        let Errand::Done(result) = &look.errand else { return None };
        if let Some(domain) = &look.domain {
            // Ours, or that of somebody who was faster: then our toolstack had to complain.
            self.mark("created", look.now);
            self.adopt(domain.id, look);
            return None;
        }
        let why = result.clone().err().unwrap_or("it was gone at once".into());
        if result.is_err() && self.was_in_want(&why, look) {
            return None;
        }
        self.fail(Cause::NotStarted(why), None, look)
    }
}
