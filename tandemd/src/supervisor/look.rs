//! What the machine sees and does: a look at everything, and acts.

use super::files::MissingFiles;
use super::health::{Beat, Queue};
use crate::config::Kind;
use crate::departure::Answer;
use crate::device::Device;
use std::time::Duration;

/// The domain of the driver domain's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Its domid.
    pub id: u16,
    /// SHUTDOWN_*, if it has ended; and whether it was the hypervisor that ended it.
    pub end: Option<(u32, bool)>,
    /// How long ago that was.
    pub ended_for: Duration,
    /// It has panicked, and its console says that it was out of memory. Of the driver domain alone.
    pub is_out_of_memory: bool,
    /// It is being destroyed.
    pub is_dying: bool,
    /// The tools have paused it.
    pub is_paused: bool,
    /// It had devices, and somebody has taken them.
    pub is_bereft: bool,
    /// It may have so many pages.
    pub max_pages: u64,
    /// Its vCPUs that are up.
    pub beats: Vec<Beat>,
}

impl Domain {
    /// It is gone soon: the toolstack destroys it, or is about to. First of all that takes its devices, while it runs,
    /// and then it pauses it.
    pub fn is_destroyed(&self) -> bool {
        self.is_dying || self.is_bereft && self.is_paused && self.end.is_none()
    }
}

/// Where the outside is, if it is reached by this domain; or where guests' disks are, if this domain has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// By the card that its twin drives; else by its interface.
    pub is_card: bool,
    /// What is for the outside.
    pub queue: Queue,
    /// Packets that came in; or requests for disks that it has answered.
    pub came: u64,
    /// Nobody has asked it for anything that it has not done. Of interfaces that is never known.
    pub is_idle: bool,
    /// It has answered something that it was asked for disks since the look before.
    pub has_answered: bool,
    /// It has written into a disk's ring what cannot be.
    pub has_lied: bool,
    /// It has said of a read that it is done, which has brought nothing.
    pub has_lost: bool,
    /// It has answered a disk's request with an error, of which the guest was not told yet.
    pub has_failed: bool,
}

/// The way of another service whose driver domain it is, beside the one for which it is looked after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherWay {
    /// Its name.
    pub service: String,
    /// What it has for guests.
    pub kind: Kind,
    /// The way, if it is that domain's. Of disks there is none while it serves no guest's.
    pub way: Option<Way>,
    /// That there is none is not its fault: it says that its link is down, or the service's own domain is not there.
    pub may_be_none: bool,
}

/// A driver domain's twind, which has answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twind {
    /// How long ago it was heard last, or was not to be.
    pub silent_for: Duration,
    /// Its twin, if it has told of one.
    pub twin: Option<TwinSeen>,
}

/// A twin, as twind tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinSeen {
    /// How often one was aborted.
    pub aborts: u64,
    /// One is loaded, whoever has the card.
    pub is_loaded: bool,
    /// It is to have the card.
    pub is_wanted: bool,
    /// None is loaded, since the last one was aborted.
    pub was_aborted: bool,
}

/// What became of the toolstack's process that was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Errand {
    /// There is none.
    #[default]
    None,
    /// It is under way.
    Runs,
    /// It is under way, and destroys a domain that has neither name nor devices any more: what is left of it is memory.
    ClearsAway,
    /// It has ended; an error is what it said. This is told once.
    Done(Result<(), String>),
}

/// A look at everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Since the machine's start.
    pub now: Duration,
    /// The domain of the name, whoever has made it.
    pub domain: Option<Domain>,
    /// It has all devices of the configuration.
    pub has_all: bool,
    /// It and the PCI back end get to know each other just now.
    pub is_meeting: bool,
    /// All of them have been able to reach memory: their drivers have begun.
    pub is_probed: bool,
    /// It says that its device's link is up, which it need not.
    pub has_link: bool,
    /// How much memory it says that it has left, in KiB, if that is asked for.
    pub available_kib: Option<u64>,
    /// Its twind, if that is asked for, and was heard.
    pub twind: Option<Twind>,
    /// The domain that waits to take its place.
    pub standby: Option<Domain>,
    /// The domain of another image that is to take its place.
    pub candidate: Option<Domain>,
    /// What is left of others, which have lost name and devices: nobody destroys it yet.
    pub remains: Vec<u16>,
    /// The one of these that is being rolled back beside all else.
    pub going_back: Option<u16>,
    /// The one that waits, or is tried, and is being noted beside all else.
    pub noting: Option<u16>,
    /// Those of all these that the hypervisor can roll back.
    pub snapshots: Vec<u16>,
    /// There is memory for an instance more, as large as the one that was seen last.
    pub has_room: bool,
    /// What is left of others and the toolstack clears away just now, beside all else that it does, as long as that has
    /// memory.
    pub clearing: Vec<u16>,
    /// The way out, or the way to guests' disks, if it is that domain's.
    pub way: Option<Way>,
    /// Those of its other services.
    pub others: Vec<OtherWay>,
    /// Guests' disks that it serves, of all its services; and those that nobody serves, for which guests wait.
    pub disks: Vec<Device>,
    /// See `disks`.
    pub disks_without: Vec<Device>,
    /// All devices of its configuration are in the machine.
    pub has_devices: bool,
    /// One that the driver domain has is not in the machine any more; or, if it has none yet, one of its configuration.
    pub has_lost: bool,
    /// Files without which another instance cannot be created.
    pub missing: MissingFiles,
    /// The service's own domain is there, to which its interface has to be connected, and those of other services that
    /// its configuration names as back ends.
    pub is_served: bool,
    /// A network by which it reaches what it serves has no way out just now: it can do nothing, and it is not its
    /// fault.
    pub is_cut_off: bool,
    /// All domains are being ended. It is asked when the driver domain was shut down, and while it waits until that is
    /// over.
    pub are_all_ended: Option<Answer>,
    /// The process that was started for the driver domain.
    pub errand: Errand,
    /// The one that was started beside it, to create one that waits or is tried. It has the name of that one, and
    /// nothing else that the driver domain needs.
    pub side: Errand,
    /// Those who waited or were tried, and are destroyed just now by processes of which nothing more is heard.
    pub dismissing: Vec<u16>,
    /// Why the one that was to take the place could not. This is told once.
    pub not_promoted: Option<String>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// What is for outside waits from now on, and the domain sends what it has.
    Drain(u16),
    /// The domain stops, and its devices reach no memory any more.
    Quarantine(u16),
    /// It loses its devices, its interface and its name, if that is possible without the toolstack; what is left of it
    /// is to be cleared away.
    Take(u16),
    /// The toolstack is to clear away what is left of it, beside all else that it does.
    ClearAway(u16),
    /// The toolstack is to destroy it.
    Destroy(u16),
    /// The toolstack is to create it.
    Create,
    /// The toolstack is to create one that waits, without devices.
    CreateStandby,
    /// The toolstack is to create one of the image that is to be tried, without devices.
    CreateCandidate,
    /// One that waits and the PCI back end get to know each other, before there is a device.
    Introduce(u16),
    /// The toolstack is to destroy one that waits, or that was tried, beside all else that it does.
    Dismiss(u16),
    /// One that waits is noted beside all else, so that it can be rolled back to that. It runs on, whether that was
    /// possible or not.
    Note(u16),
    /// What is left of it becomes one that waits again, if that is possible; if that goes on beside, it is waited for.
    RollBack(u16),
    /// The same, beside all else.
    RollBackBeside(u16),
    /// One that waits gets the name. A process that clears the last one away goes on, and nobody waits for it any more.
    Promote(u16),
    /// It gets all its devices, if that is possible without the toolstack.
    HandOver(u16),
    /// The toolstack is to hand it the next device that it lacks.
    Attach(u16),
    /// Its twind is to load the twin again.
    LoadTwin(u16),
}
