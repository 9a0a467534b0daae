//! What is told in answer to a request.

use crate::request::{Image, Mode};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use twin_abi::op::TwinStats;

/// An answer: what there is afterwards, or why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It was done.
    Ok(Told),
    /// It was not done; why, in words.
    Error(String),
}

impl Answer {
    /// From a line of JSON. Errors: in words.
    pub fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("not an answer: {error}"))
    }

    /// As a line of JSON, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        // Numbers, words and lists of them.
        serde_json::to_string(self).unwrap_or_else(|error| format!(r#"{{"error":"{error}"}}"#))
    }
}

/// Characters of a name or of words that another domain chose.
const MOST_CHARS: usize = 256;
/// Functions in its list.
const MOST_UPCALLS: usize = 64;

/// Words that another domain chose, without control characters, which a terminal would obey and which would end a line
/// of a log; and not endless.
#[must_use]
pub fn tamed(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(MOST_CHARS).collect()
}

fn tame(words: &mut String) {
    *words = tamed(words);
}

impl Answer {
    /// As it may be shown: what another domain chose has no control characters, which a terminal would obey, and is not
    /// endless.
    #[must_use]
    pub fn tamed(mut self) -> Self {
        match &mut self {
            Self::Error(words) => tame(words),
            Self::Ok(Told::Tandemd { services }) => services.clear(),
            Self::Ok(Told::Twind { twins }) => twins.iter_mut().for_each(Twin::tame),
        }
        self
    }
}

impl From<Result<Told, String>> for Answer {
    fn from(result: Result<Told, String>) -> Self {
        match result {
            Ok(told) => Self::Ok(told),
            Err(why) => Self::Error(why),
        }
    }
}

/// What there is, and who says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "lowercase")]
pub enum Told {
    /// The daemon in domain 0.
    Tandemd {
        /// The services that it was asked about.
        services: Vec<Service>,
    },
    /// The daemon in a driver domain.
    Twind {
        /// The twins that it was asked about.
        twins: Vec<Twin>,
    },
}

/// Packets in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// How many.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that were lost.
    pub lost: u64,
}

/// A service of tandemd's: a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Service {
    /// As guests name it.
    pub name: String,
    /// The domain that guests grant to.
    #[serde(default)]
    pub domain: Option<u16>,
    /// The switch in the hypervisor, once there is one.
    #[serde(default)]
    pub switch: Option<u32>,
    /// Name of the driver domain, if the configuration names one.
    #[serde(default)]
    pub driver_domain: Option<String>,
    /// How tandemd looks after it, if it does.
    #[serde(default)]
    pub looked_after: Option<LookedAfter>,
    /// Who carries packets to the outside and from there; nobody: there is no way out.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// The way out.
    #[serde(default)]
    pub way_out: Option<WayOut>,
    /// Guests' interfaces that are plugged in, the driver domain's own included.
    #[serde(default)]
    pub vifs: Vec<Vif>,
    /// It serves disks, and no interfaces.
    #[serde(default)]
    pub is_of_disks: bool,
    /// Guests' disks that are connected.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// What the twin has done, as the hypervisor says.
    #[serde(default)]
    pub counts: Option<Counts>,
    /// The twin, as the driver domain's twind says.
    #[serde(default)]
    pub twin: Option<Twin>,
    /// Why twind says nothing.
    #[serde(default)]
    pub twind_error: Option<String>,
}

/// A driver domain that is started again when it fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LookedAfter {
    /// `up`, `starting`, `going`, `waiting`, `off` or `parked`.
    pub state: String,
    /// Why it is parked.
    #[serde(default)]
    pub why: Option<String>,
    /// What its toolstack waits for that others have.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// Why no other one could be created just now, if none waits and it cannot be rolled back either.
    #[serde(default)]
    pub hindrance: Option<String>,
    /// How often it failed, by the name of the cause, and how often it was the way out again (`recovered`).
    pub counts: BTreeMap<String, u64>,
    /// Whether another one has booted and waits to take its place; nothing if none is wanted.
    #[serde(default)]
    pub standby: Option<bool>,
    /// Whether it can be rolled back to what it was when it had booted; nothing if that is not wanted.
    #[serde(default)]
    pub snapshot: Option<bool>,
    /// The devices that it has been given, where its service's section says which it is to have.
    #[serde(default)]
    pub devices: Vec<GivenDevice>,
    /// What it is started with instead of what its configuration says.
    #[serde(default)]
    pub image: Image,
    /// What the upgrade does that is under way.
    #[serde(default)]
    pub upgrade: Option<String>,
    /// Upgrades that have ended, and why the last one was refused, if it was.
    #[serde(default)]
    pub upgrades: u64,
    /// See `upgrades`.
    #[serde(default)]
    pub refused: Option<String>,
    /// Its driver's twin was aborted too often, and is not loaded again.
    #[serde(default)]
    pub twin_given_up: bool,
    /// For how many seconds the instance that is up has been of use; nothing if none is.
    #[serde(default)]
    pub age_s: Option<u64>,
    /// How much memory it says that it has left, in KiB, if it was asked and says so.
    #[serde(default)]
    pub available_kib: Option<u64>,
    /// Milliseconds in which guests had no way out, of all recoveries.
    #[serde(default)]
    pub outage_ms: u64,
    /// Of the last one; nothing if there was none, a first start aside.
    #[serde(default)]
    pub last_outage_ms: Option<u64>,
    /// The last recoveries: cause, steps, and the milliseconds after which each was done.
    pub recoveries: Vec<String>,
}

/// A device that a driver domain has been given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GivenDevice {
    /// Its address, as Linux writes it.
    pub device: String,
    /// What was asked for: a kind, a vendor and a device, or the address itself.
    pub rule: String,
}

impl LookedAfter {
    /// Counts that are no causes.
    const NO_CAUSES: [&str; 5] =
        [Self::RECOVERED, Self::WITHOUT_TWIN, Self::ROLLED_BACK, Self::TWIN_LOADED_AGAIN, Self::TWIN_GIVEN_UP];
    /// How often it has become the way out, or got the disks.
    pub const RECOVERED: &str = "recovered";
    /// How often its twin has not come with it.
    pub const WITHOUT_TWIN: &str = "without-twin";
    /// How often its twin was loaded again after an abort.
    pub const TWIN_LOADED_AGAIN: &str = "twin-loaded-again";
    /// How often that was not done, as it was aborted too often.
    pub const TWIN_GIVEN_UP: &str = "twin-given-up";
    /// How often it was rolled back.
    pub const ROLLED_BACK: &str = "rolled-back";

    /// Causes by which instances had to go, and how often.
    pub fn ends(&self) -> impl Iterator<Item = (&str, u64)> {
        let counts = self.counts.iter().map(|(what, count)| (what.as_str(), *count));
        counts.filter(|(what, _)| !Self::NO_CAUSES.contains(what))
    }

    /// How often that happened.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

/// How packets leave a switch. Counts are those since it is this way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WayOut {
    /// The driver domain.
    pub domain: u16,
    /// Number of the driver domain's own interface.
    pub vif: u32,
    /// Packets that left.
    pub sent: Traffic,
    /// Packets that came.
    pub received: Traffic,
    /// Packets that wait for the card.
    pub waiting: u16,
}

/// A guest's interface. Directions are the guest's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Vif {
    /// Name of the guest.
    pub guest: String,
    /// Its domid.
    pub domain: u16,
    /// Number of the interface.
    pub number: u32,
    /// Its address.
    pub address: String,
    /// What is wrong with it, in a word or more; `connected` if nothing is.
    pub state: String,
    /// Sent; those to nobody or from others' addresses count as lost.
    pub sent: Traffic,
    /// Received.
    pub received: Traffic,
}

/// A guest's disk. Counts are those since it was connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Disk {
    /// Name of the guest.
    pub guest: String,
    /// Its domid.
    pub domain: u16,
    /// Number of the disk.
    pub number: u32,
    /// `connected`, if there is a back end; else what is wrong, in a word.
    pub state: String,
    /// Requests that were answered without an error.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes and barriers.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes.
    pub read_bytes: u64,
    /// Bytes.
    pub written_bytes: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Requests that were passed on once more, to another back end.
    pub repeated: u64,
    /// What back ends were asked for: neighbours go together, and long requests in several.
    #[serde(default)]
    pub passed_on: u64,
    /// Requests that went together with one before them on the medium.
    #[serde(default)]
    pub merged: u64,
    /// Requests that wait for their answer.
    pub waiting: u16,
    /// For how long the oldest of them has waited, since there is this back end, in ms.
    #[serde(default)]
    pub oldest_ms: u64,
    /// For how long one of them has looked lost, in ms.
    #[serde(default)]
    pub overdue_ms: u64,
    /// Answers of back ends that nobody had waited for.
    pub bad_answers: u64,
    /// Back ends that have written into their ring what cannot be.
    pub bad_rings: u32,
    /// Back ends that have said of a read that it is done, which has brought nothing.
    pub empty_reads: u64,
}

/// What a twin has done since it was loaded (`twin_abi::op::TwinStats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// Functions that were called for the domain.
    pub calls: u64,
    /// Interrupt handlers that ran for the card.
    pub handlers: u64,
    /// Polls.
    pub polls: u64,
    /// Packets that were handed to the transmit routine.
    pub packets: u64,
    /// Functions of the domain that were waited for.
    pub upcalls: u64,
    /// Locks of the domain's that were waited for.
    pub lock_waits: u64,
    /// How often a CPU went to run it.
    pub turns: u64,
    /// Cycles of the time-stamp counter that this took.
    pub cycles: u64,
    /// Invocations that ended in an abort: 0 or 1.
    pub aborts: u64,
}

impl From<&TwinStats> for Counts {
    fn from(stats: &TwinStats) -> Self {
        Self {
            calls: stats.calls,
            handlers: stats.handlers,
            polls: stats.polls,
            packets: stats.packets,
            upcalls: stats.upcalls,
            lock_waits: stats.lock_waits,
            turns: stats.turns,
            cycles: stats.ticks,
            aborts: stats.aborts,
        }
    }
}

/// Where a twin is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There is none.
    #[default]
    Absent,
    /// It is loaded, and Linux has the card.
    Loaded,
    /// It has the card.
    Attached,
}

/// A twin as twind knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Twin {
    /// The interface whose driver it is.
    pub interface: String,
    /// Number of the domain's own interface at the switch.
    pub vif: u32,
    /// The driver.
    pub driver: String,
    /// What was asked for.
    pub wanted: Mode,
    /// Who carries packets now.
    pub mode: Mode,
    /// Where it is.
    pub state: State,
    /// Why that is not what was asked for.
    #[serde(default)]
    pub why: Option<String>,
    /// Its number in the hypervisor.
    #[serde(default)]
    pub number: Option<u32>,
    /// How often one was loaded.
    pub loads: u64,
    /// How often one was aborted.
    pub aborts: u64,
    /// Functions in its code.
    pub functions: u32,
    /// Buffers that are lent.
    pub lent: u32,
    /// What it has done since it was loaded.
    #[serde(default)]
    pub counts: Option<Counts>,
    /// Functions of the kernel that it had called.
    #[serde(default)]
    pub upcalls: Vec<Upcall>,
    /// The last abort.
    #[serde(default)]
    pub aborted: Option<Aborted>,
}

impl Twin {
    fn tame(&mut self) {
        tame(&mut self.interface);
        tame(&mut self.driver);
        self.why.iter_mut().for_each(tame);
        if let Some(Aborted { reason, at, detail, time: _ }) = &mut self.aborted {
            [reason, at, detail].into_iter().for_each(tame);
        }
        self.upcalls.truncate(MOST_UPCALLS);
        self.upcalls.iter_mut().for_each(|upcall| tame(&mut upcall.function));
        // Who reads metrics refuses all of them if one comes twice.
        let mut names = BTreeSet::new();
        self.upcalls.retain(|upcall| names.insert(upcall.function.clone()));
    }
}

/// How often a function of the driver domain's kernel was called for a twin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upcall {
    /// Its name.
    pub function: String,
    /// How often.
    pub count: u64,
}

/// How a twin ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {
    /// Why, in words.
    pub reason: String,
    /// The driver's instruction: symbol and offset.
    pub at: String,
    /// What the reason speaks of: an address, a vector.
    pub detail: String,
    /// Seconds since 1970.
    pub time: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_domain_says_is_tamed() {
        let text = r#"{"ok":{"from":"twind","twins":[{"interface":"eth\u001b[2J0","vif":0,"driver":"X","wanted":"vm","mode":"vm",
            "state":"absent","why":"a\u009bb\nc","loads":0,"aborts":0,"functions":0,"lent":0,
            "upcalls":[{"function":"F","count":1}],"aborted":{"reason":"\u0007r","at":"a\tt","detail":"\u007f0","time":0}}]}}"#;
        let Ok(Answer::Ok(Told::Twind { mut twins })) = Answer::parse(text) else { panic!("twind's") };
        twins[0].driver = "long".repeat(1000);
        twins[0].upcalls = (0..5000).map(|n| Upcall { function: format!("F{}\u{1b}", n / 2), count: n }).collect();
        let Answer::Ok(Told::Twind { twins }) = Answer::Ok(Told::Twind { twins }).tamed() else { panic!("twind's") };
        let twin = &twins[0];
        assert_eq!((twin.interface.as_str(), twin.why.as_deref()), ("eth[2J0", Some("abc")));
        assert_eq!((twin.driver.len(), twin.upcalls.len()), (MOST_CHARS, MOST_UPCALLS / 2), "each comes once");
        let aborted = twin.aborted.as_ref().unwrap();
        assert_eq!((aborted.reason.as_str(), aborted.at.as_str(), aborted.detail.as_str()), ("r", "at", "0"));
        assert_eq!(Answer::Error("no\u{1b}[1m".into()).tamed(), Answer::Error("no[1m".into()));
        // It speaks for nobody else.
        let services = vec![Service::default()];
        assert_eq!(Answer::Ok(Told::Tandemd { services }).tamed(), Answer::Ok(Told::Tandemd { services: vec![] }));
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let service =
            Service { name: "net".into(), mode: Some(Mode::Vm), vifs: vec![Vif::default()], ..Service::default() };
        let told = Answer::Ok(Told::Tandemd { services: vec![service] });
        assert!(told.line().starts_with(r#"{"ok":{"from":"tandemd","services":[{"name":"net""#), "{}", told.line());
        assert_eq!(Answer::parse(&told.line()), Ok(told));
        let refused = Answer::Error("no \"such\" thing".into());
        assert_eq!(refused.line(), r#"{"error":"no \"such\" thing"}"#);
        assert_eq!(Answer::parse(&refused.line()), Ok(refused));
        assert!(Answer::parse(r#"{"ok":5}"#).unwrap_err().contains("not an answer"));
        // What a newer one says besides does not matter.
        let newer = r#"{"ok":{"from":"tandemd","services":[{"name":"net","colour":"blue"}]}}"#;
        assert!(
            matches!(Answer::parse(newer), Ok(Answer::Ok(Told::Tandemd { services })) if services[0].mode.is_none())
        );
    }
}
