//! What dies or is replaced, how it comes back, and by what it dies: words of the command line choose among them.

use anyhow::{ensure, Result};
use std::fmt;

/// A driver whose domain dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    E1000,
    E1000e,
    Rtl8139,
    Nvme,
    Ahci,
}

/// How there is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is made then.
    Fresh,
    /// It has booted before.
    Standby,
    /// It has booted before, and the link of the device is kept.
    Kept,
    /// It is rolled back.
    Snapshot,
    /// It has booted before, and the one before it is rolled back to be the next.
    Turns,
}

/// What the way out is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Vm,
    TwinMirror,
}

/// What it dies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Panic,
    Destroyed,
    /// It runs with interrupts off.
    Wedged,
    /// It writes at random into its memory.
    Wild,
    /// Its driver's instructions are damaged.
    Text,
    /// None of these: the operator has another one take its place.
    Planned,
    /// Not it, but the daemon that has given its driver a twin.
    Twind,
    /// Its devices are told addresses that are nobody's. The last one: QEMU's cards may send a damaged frame then, and
    /// who hears of it hangs up.
    Dma,
}

macro_rules! words {
    ($($kind:ident: $($variant:ident $word:literal),+;)+) => { $(
        impl $kind {
            const ALL: &[Self] = &[$(Self::$variant),+];

            /// The one that is called so.
            #[allow(dead_code, reason = "not all of them are read from reports")]
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|each| each.name() == word)
            }

            /// As it is called on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    )+ };
}
words! {
    Driver: E1000 "e1000", E1000e "e1000e", Rtl8139 "8139cp", Nvme "nvme", Ahci "ahci";
    Way: Fresh "fresh", Standby "standby", Kept "kept", Snapshot "snapshot", Turns "turns";
    Mode: Vm "vm", TwinMirror "twin-mirror";
    Cause: Panic "panic", Destroyed "destroyed", Wedged "wedged", Wild "wild", Text "text",
        Planned "planned", Twind "twind", Dma "dma";
}

/// Those that are measured if no word names a driver.
const USUAL: [Driver; 3] = [Driver::E1000e, Driver::Nvme, Driver::Ahci];

impl Driver {
    /// QEMU's device, if it is a disk.
    pub fn disk(self) -> Option<&'static str> {
        matches!(self, Self::Nvme | Self::Ahci).then(|| self.name())
    }

    /// QEMU's device.
    pub fn model(self) -> &'static str {
        if self == Self::Rtl8139 {
            "rtl8139"
        } else {
            self.name()
        }
    }

    /// Whether the hypervisor knows how its link is kept.
    pub fn keeps_link(self) -> bool {
        matches!(self, Self::E1000 | Self::E1000e)
    }

    /// What is shorter than so many ms no load calls a gap: `GAP_MS` of `diskload.c` and of `netprobe.c`.
    pub fn least_gap_ms(self) -> u64 {
        if self.disk().is_some() {
            5
        } else {
            10
        }
    }

    /// What it is to a guest.
    pub fn device(self) -> &'static str {
        if self.disk().is_some() {
            "disk"
        } else {
            "net"
        }
    }
}

/// A machine in which a driver domain dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    pub driver: Driver,
    pub way: Way,
    pub mode: Mode,
    pub causes: Vec<Cause>,
}

impl Boot {
    /// What dom0 does.
    pub fn job(&self, count: u64) -> String {
        let causes: Vec<&str> = self.causes.iter().map(|cause| cause.name()).collect();
        format!("restart:{}:{}:{}:{count}:{}", self.driver.name(), self.way.name(), self.mode.name(), causes.join(":"))
    }

    /// Whether there is such a thing: disks have no twin, and not of every device it is known how its link is kept.
    fn is_possible(&self) -> bool {
        let has_twin = self.driver.disk().is_none();
        (self.mode == Mode::Vm || has_twin) && (self.way != Way::Kept || self.driver.keeps_link())
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "restart {} {} {}", self.driver.name(), self.mode.name(), self.way.name())
    }
}

/// The boots that the words choose. A word narrows what it is a word of; no word of a kind leaves all of it, but for
/// drivers.
pub fn chosen(words: &[String]) -> Result<Vec<Boot>> {
    let all = [
        Driver::ALL.iter().map(|d| d.name()).collect::<Vec<_>>(),
        Mode::ALL.iter().map(|m| m.name()).collect(),
        Way::ALL.iter().map(|w| w.name()).collect(),
        Cause::ALL.iter().map(|c| c.name()).collect(),
    ]
    .concat();
    for word in words {
        ensure!(all.contains(&word.as_str()), "`bench restart` knows no `{word}`; there are {}", all.join(", "));
    }
    let named = |name: &str| words.iter().any(|word| word == name);
    let wanted = |names: &[&str], name: &str| !names.iter().any(|n| named(n)) || named(name);
    let drivers: Vec<&str> = Driver::ALL.iter().map(|d| d.name()).collect();
    let modes: Vec<&str> = Mode::ALL.iter().map(|m| m.name()).collect();
    let ways: Vec<&str> = Way::ALL.iter().map(|w| w.name()).collect();
    let kinds: Vec<&str> = Cause::ALL.iter().map(|c| c.name()).collect();
    let says_driver = drivers.iter().any(|name| named(name));
    let mut boots = Vec::new();
    for driver in Driver::ALL.iter().filter(|d| if says_driver { named(d.name()) } else { USUAL.contains(d) }) {
        for mode in Mode::ALL.iter().filter(|m| wanted(&modes, m.name())) {
            for way in Way::ALL.iter().filter(|w| wanted(&ways, w.name())) {
                let has = |c: &&Cause| wanted(&kinds, c.name()) && (**c != Cause::Twind || *mode == Mode::TwinMirror);
                let causes: Vec<Cause> = Cause::ALL.iter().filter(has).copied().collect();
                let boot = Boot { driver: *driver, way: *way, mode: *mode, causes };
                if boot.is_possible() && !boot.causes.is_empty() {
                    boots.push(boot);
                }
            }
        }
    }
    ensure!(
        !boots.is_empty(),
        "nothing is `{}`: disks have no twin; links are kept of e1000 and e1000e",
        words.join(" ")
    );
    Ok(boots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &str) -> Vec<String> {
        let words: Vec<String> = words.split_whitespace().map(String::from).collect();
        chosen(&words).unwrap().iter().map(|boot| boot.job(2)).collect()
    }

    #[test]
    fn words_choose_rows() {
        assert_eq!(names("nvme fresh panic"), ["restart:nvme:fresh:vm:2:panic"]);
        assert_eq!(names("ahci standby panic"), ["restart:ahci:standby:vm:2:panic"]);
        assert_eq!(names("nvme snapshot panic"), ["restart:nvme:snapshot:vm:2:panic"]);
        assert_eq!(
            names("e1000 vm wedged text"),
            ["fresh", "standby", "kept", "snapshot", "turns"]
                .map(|way| format!("restart:e1000:{way}:vm:2:wedged:text"))
        );
        assert_eq!(names("fresh twind"), ["restart:e1000e:fresh:twin-mirror:2:twind"]);
        assert_eq!(names("twin-mirror e1000 turns panic"), ["restart:e1000:turns:twin-mirror:2:panic"]);
        assert_eq!(names("").len(), 18);
        assert_eq!(names("kept 8139cp e1000 vm panic"), ["restart:e1000:kept:vm:2:panic"]);
        assert!(names("")
            .iter()
            .all(|job| job.contains("panic:destroyed:wedged:wild:text:planned:") && job.ends_with(":dma")));
    }

    #[test]
    fn other_words_are_errors() {
        let said = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            format!("{:#}", chosen(&words).unwrap_err())
        };
        assert!(said(&["e1000", "burnt"]).starts_with("`bench restart` knows no `burnt`; there are e1000, e1000e"));
        assert_eq!(
            said(&["nvme", "twin-mirror"]),
            "nothing is `nvme twin-mirror`: disks have no twin; links are kept of e1000 and e1000e"
        );
        assert_eq!(
            said(&["ahci", "kept"]),
            "nothing is `ahci kept`: disks have no twin; links are kept of e1000 and e1000e"
        );
    }
}
