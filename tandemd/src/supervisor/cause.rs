//! Why an instance of a driver domain had to go.

use super::health::settings_of;
use super::look::Look;
use super::settings::Settings;
use super::words::{self, Words};
use crate::config::Kind;
use crate::device::Device;
use std::time::Duration;

/// Why an instance had to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Panicked,
    OutOfMemory,
    Crashed,
    Watchdog,
    Destroyed,
    Rebooted,
    PoweredOff {
        with_all: bool,
    },
    Wedged {
        vcpu: u32,
        since: Duration,
    },
    Undrained {
        since: Duration,
    },
    /// The same of disks: a medium may be why, and then the next one does no better.
    Unanswered {
        since: Duration,
    },
    Overdue {
        since: Duration,
    },
    Silent {
        since: Duration,
    },
    DmaFault {
        since: Duration,
    },
    EmptyRead,
    BadRing,
    FailedRequest,
    DeviceGone,
    NotStarted(String),
    NotReady,
    NotProbed,
    NotConnected,
    NotBooted,
    NothingCame {
        within: Duration,
    },
    LeavesDisk {
        which: Device,
        within: Duration,
    },
    LeavesWay {
        service: String,
        within: Duration,
    },
    WayLost {
        since: Duration,
    },
    Aged {
        age: Duration,
    },
    ShortOfMemory {
        available_kib: u64,
    },
    TwindSilent,
    Restart,
    Upgrade,
    Park,
    /// What is wrong with the way of another service whose driver domain it is.
    OfOther {
        service: String,
        kind: Kind,
        cause: Box<Cause>,
    },
}

/// All names of causes, each once.
pub const NAMES: [&str; 30] = [
    "panicked",
    "out-of-memory",
    "crashed",
    "watchdog",
    "destroyed",
    "rebooted",
    "powered-off",
    "wedged",
    "undrained",
    "overdue",
    "silent",
    "dma-fault",
    "empty-read",
    "bad-ring",
    "failed-request",
    "device-gone",
    "not-started",
    "not-ready",
    "not-probed",
    "not-connected",
    "nothing-came",
    "leaves-disk",
    "leaves-way",
    "way-lost",
    "aged",
    "short-of-memory",
    "twind-silent",
    "restart",
    "upgrade",
    "park",
];

impl Cause {
    /// What is wrong, whichever service's way that is.
    pub fn itself(&self) -> &Self {
        match self {
            Self::OfOther { cause, .. } => cause.itself(),
            _ => self,
        }
    }

    /// The service with whose way something is wrong; nothing: the one for which it is looked after.
    pub fn service(&self) -> &str {
        match self {
            Self::OfOther { service, .. } => service,
            _ => "",
        }
    }

    /// Its counter, one of [`NAMES`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Panicked => "panicked",
            Self::OutOfMemory => "out-of-memory",
            Self::Crashed => "crashed",
            Self::Watchdog => "watchdog",
            Self::Destroyed => "destroyed",
            Self::Rebooted => "rebooted",
            Self::PoweredOff { .. } => "powered-off",
            Self::Wedged { .. } => "wedged",
            Self::Undrained { .. } | Self::Unanswered { .. } => "undrained",
            Self::Overdue { .. } => "overdue",
            Self::Silent { .. } => "silent",
            Self::DmaFault { .. } => "dma-fault",
            Self::EmptyRead => "empty-read",
            Self::BadRing => "bad-ring",
            Self::FailedRequest => "failed-request",
            Self::DeviceGone => "device-gone",
            Self::NotStarted(_) => "not-started",
            Self::NotReady | Self::NotBooted => "not-ready",
            Self::NotProbed => "not-probed",
            Self::NotConnected => "not-connected",
            Self::NothingCame { .. } => "nothing-came",
            Self::LeavesDisk { .. } => "leaves-disk",
            Self::LeavesWay { .. } => "leaves-way",
            Self::WayLost { .. } => "way-lost",
            Self::Aged { .. } => "aged",
            Self::ShortOfMemory { .. } => "short-of-memory",
            Self::TwindSilent => "twind-silent",
            Self::Restart => "restart",
            Self::Upgrade => "upgrade",
            Self::Park => "park",
            Self::OfOther { cause, .. } => cause.name(),
        }
    }

    pub fn describe(&self, settings: &Settings, words: &Words) -> String {
        match self {
            Self::Panicked => "its kernel has panicked".into(),
            Self::OutOfMemory => "its kernel was out of memory, and has panicked for that".into(),
            Self::Crashed => "the hypervisor has ended it; why is in the hypervisor's log".into(),
            Self::Watchdog => "it has not wound up its watchdog".into(),
            Self::Destroyed => "it was destroyed".into(),
            Self::Rebooted => "it reboots".into(),
            Self::PoweredOff { with_all: false } => "it was shut down, and stays so until it is started".into(),
            Self::PoweredOff { with_all: true } => {
                "it was shut down with all other domains, and comes again after that".into()
            }
            Self::Wedged { vcpu, .. } => {
                format!("its vCPU {vcpu} has run for {} ms and taken no event though one waits", settings.wedged_ms)
            }
            Self::Undrained { .. } | Self::Unanswered { .. } => {
                format!("{} for {} ms", words.undrained, settings.undrained_ms())
            }
            Self::Overdue { .. } => {
                format!("a disk's request that it was given has looked lost for {} ms", settings.overdue_ms())
            }
            Self::Silent { .. } => format!(
                "nothing has come from outside for {} ms, though packets went there, and some had come before",
                settings.silent_ms
            ),
            Self::DmaFault { .. } => "a device of its has reached for memory that is not its own".into(),
            Self::EmptyRead => "it has said of a disk's read that it is done, which has brought nothing".into(),
            Self::BadRing => "it has written into a disk's ring what cannot be".into(),
            Self::FailedRequest => {
                "it has answered a disk's request with an error, of which the guest is told if the next one does, too"
                    .into()
            }
            Self::DeviceGone => "a device of its configuration is gone from the machine".into(),
            Self::NotStarted(why) => format!("it could not be started: {why}"),
            Self::NotReady => format!("its {} was not there within {} s", words.up, settings.ready_s),
            Self::NotProbed => {
                format!("it got its devices, and {} s later no driver of its had turned them on", settings.probe_s)
            }
            Self::NotConnected => {
                format!("it said that its link was up, and {} s later it was not the way out", settings.connect_s)
            }
            Self::NotBooted => format!("it had not booted within {} s", settings.ready_s),
            Self::NothingCame { within } => {
                format!("nothing has come by it within {} s, as it should", within.as_secs())
            }
            Self::LeavesDisk { which: Device { guest, number }, within } => format!(
                "vbd {number} of domain {guest}, which the old one served, is not served within {} s",
                within.as_secs()
            ),
            Self::LeavesWay { service, within } => {
                format!("{service}, whose way out the old one was, has none within {} s", within.as_secs())
            }
            Self::WayLost { .. } => format!("its {} has been gone for {} s", words.up, settings.ready_s),
            Self::Aged { age } => {
                format!(
                    "it has been there for {} s, and another one is to come after {}",
                    age.as_secs(),
                    settings.renew_s
                )
            }
            Self::ShortOfMemory { available_kib } => format!(
                "it has had less than {} KiB of memory left for {} s, and {available_kib} now",
                settings.least_free_kib, settings.least_free_s
            ),
            Self::TwindSilent => format!(
                "its twind has not answered for {} s, and is not there to see to its driver's twin",
                settings.silent_twind_s()
            ),
            Self::Restart => "it is to be restarted".into(),
            Self::Upgrade => "one of another image is to take its place".into(),
            Self::Park => "it is to be parked".into(),
            Self::OfOther { service, kind, cause } => {
                format!("{service}: {}", cause.describe(&settings_of(settings, words, *kind), words::of(*kind)))
            }
        }
    }

    /// When it began, if that can be known.
    pub fn began(&self, look: &Look) -> Option<Duration> {
        match self.itself() {
            Self::Wedged { since, .. }
            | Self::Undrained { since }
            | Self::Unanswered { since }
            | Self::Overdue { since }
            | Self::Silent { since }
            | Self::WayLost { since }
            | Self::DmaFault { since } => Some(*since),
            Self::Panicked
            | Self::OutOfMemory
            | Self::Crashed
            | Self::Watchdog
            | Self::Rebooted
            | Self::PoweredOff { .. } => Some(look.now.saturating_sub(look.domain.as_ref()?.ended_for)),
            _ => None,
        }
    }

    /// Whether the operator wants it, by an order or by the configuration, and it does what it should: what it has is
    /// sent before it goes.
    pub fn is_order(&self) -> bool {
        matches!(self.itself(), Self::Restart | Self::Upgrade | Self::Park) || self.is_planned()
    }

    /// Whether it is to go though nobody has ordered that, and guests lack nothing.
    pub fn is_planned(&self) -> bool {
        matches!(self.itself(), Self::Aged { .. } | Self::ShortOfMemory { .. } | Self::TwindSilent)
    }

    /// Whether it is held against the driver domain. One reboot is as good as none, as one failure is; one after the
    /// other leaves guests without.
    pub fn is_failure(&self) -> bool {
        !self.is_order() && !matches!(self.itself(), Self::PoweredOff { .. } | Self::FailedRequest)
    }
}

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn all_names_are_listed() {
        let source = include_str!("cause.rs");
        let (_, from) = source.split_once("pub fn name").unwrap();
        let (body, _) = from.split_once("pub fn describe").unwrap();
        let said: Vec<&str> = body.lines().filter_map(|line| line.split_once("=> \"")?.1.split('"').next()).collect();
        assert_eq!(said, NAMES);
    }
}
