//! What is said of a driver domain of interfaces, and of one of disks.

use crate::config::Kind;

/// How steps of a recovery are called, and what goes wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    /// What they are for.
    pub kind: Kind,
    /// What is there when it is up.
    pub up: &'static str,
    /// What it is then.
    pub is_up: &'static str,
    /// What it takes first; none: it is not told.
    pub out: Option<&'static str>,
    /// What it gives first: then it is of use again.
    pub came: &'static str,
    /// It takes nothing.
    pub undrained: &'static str,
    /// One that has booted without the devices can take its place, also if the configuration says neither that one
    /// waits nor that it is rolled back.
    pub hands_over: bool,
}

/// Those of what is for guests of such a service.
pub fn of(kind: Kind) -> &'static Words {
    match kind {
        Kind::Net => &NET,
        Kind::Disk => &DISK,
    }
}

/// Of interfaces.
pub const NET: Words = Words {
    kind: Kind::Net,
    up: "interface",
    is_up: "it is the way out",
    out: Some("first packet out"),
    came: "first packet in",
    undrained: "it has taken nothing of what waits for the outside",
    hands_over: true,
};

/// Of disks.
pub const DISK: Words = Words {
    kind: Kind::Disk,
    up: "back end",
    is_up: "it has the disks",
    out: None,
    came: "first answer",
    undrained: "it has answered nothing of what guests have asked their disks for",
    hands_over: false,
};
