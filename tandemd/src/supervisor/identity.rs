//! Which card is at an address: firmware may number buses anew, and then another card of the same kind is where one
//! was.

use super::choice::{Function, Kind};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where PCI Express has its extended capabilities, and the one that is a serial number (PCI Express, 7.9.3).
const EXTENDED: u64 = 0x100;
const SERIAL_NUMBER: u32 = 3;
/// As many of them as there is room for.
const MOST_CAPABILITIES: u32 = 480;

/// What is known of a function that goes with it to another address.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Identity {
    /// Vendor and device, those of the subsystem, and the function's number on its card.
    pub model: String,
    /// The card's serial number, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Its interface's own address, if a driver of domain 0's has told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

impl Identity {
    /// Of the function of this name and class; `root` has `sys`. Other functions than disks' controllers and network
    /// cards are not asked for more than Linux knows of them: to ask one may wake it.
    pub fn read(root: &Path, name: &str, class: u32) -> Self {
        let place = root.join("sys/bus/pci/devices").join(name);
        let id = |file: &str| {
            let said = std::fs::read_to_string(place.join(file)).unwrap_or_default();
            said.trim().trim_start_matches("0x").to_string()
        };
        let (vendor, device) = (id("vendor"), id("device"));
        let (of, subsystem) = (id("subsystem_vendor"), id("subsystem_device"));
        let number = name.rsplit_once('.').map_or("", |(_, number)| number);
        let model = format!("{vendor}:{device} {of}:{subsystem} .{number}");
        let is_asked = Kind::Disk.has(class) || Kind::Network.has(class);
        let config = is_asked.then(|| File::open(place.join("config")).ok()).flatten();
        let word = |at: u64| {
            let mut bytes = [0; 4];
            config.as_ref()?.read_exact_at(&mut bytes, at).ok().map(|()| u32::from_le_bytes(bytes))
        };
        Self { model, serial: serial_in(word), mac: mac_in(&place.join("net")) }
    }

    /// Whether both are one card, as far as that is known; `None`: it may be.
    fn is(&self, other: &Self) -> Option<bool> {
        if self.model != other.model {
            return Some(false);
        }
        let both = |one: &Option<String>, other: &Option<String>| Some(one.as_ref()? == other.as_ref()?);
        both(&self.serial, &other.serial).or_else(|| both(&self.mac, &other.mac))
    }

    /// They are one card.
    pub fn is_proven(&self, other: &Self) -> bool {
        self.is(other) == Some(true)
    }

    /// They are two.
    pub fn is_refuted(&self, other: &Self) -> bool {
        self.is(other) == Some(false)
    }

    /// The same, with what was known of it before and cannot be seen now.
    pub fn with(self, known: &Self) -> Self {
        Self { serial: self.serial.or(known.serial.clone()), mac: self.mac.or(known.mac.clone()), ..self }
    }
}

/// Where the card of this identity is among those that would do: where it is proven to be, if that is one place; else
/// at `place`, if nothing says that another one is there.
pub fn place_of<'a>(known: Option<&Identity>, place: &str, fitting: &[&'a Function]) -> Option<&'a Function> {
    let there = fitting.iter().copied().find(|one| one.name == place);
    let Some(known) = known else { return there };
    let proven: Vec<&Function> = fitting.iter().copied().filter(|one| known.is_proven(&one.identity)).collect();
    match proven.as_slice() {
        [one] => Some(one),
        _ => there.filter(|there| !known.is_refuted(&there.identity)),
    }
}

/// The serial number that a function's configuration space has, by its words.
fn serial_in(word: impl Fn(u64) -> Option<u32>) -> Option<String> {
    let mut at = EXTENDED;
    for _ in 0..MOST_CAPABILITIES {
        let header = word(at).filter(|header| ![0, u32::MAX].contains(header))?;
        if header & 0xffff == SERIAL_NUMBER {
            let (low, high) = (word(at + 4)?, word(at + 8)?);
            let is_one = ![0, u64::MAX].contains(&(u64::from(high) << 32 | u64::from(low)));
            return is_one.then(|| format!("{high:08x}{low:08x}"));
        }
        at = u64::from(header >> 20);
        if at < EXTENDED {
            return None;
        }
    }
    None
}

/// The address of the one interface that a function has, if it is the card's own (`addr_assign_type`, 0).
fn mac_in(net: &Path) -> Option<String> {
    let mut names = std::fs::read_dir(net).ok()?.flatten();
    let (Some(one), None) = (names.next(), names.next()) else { return None };
    let read = |file: &str| std::fs::read_to_string(one.path().join(file)).ok().map(|said| said.trim().to_string());
    (read("addr_assign_type")? == "0").then(|| read("address"))?.filter(|mac| !mac.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(model: &str, serial: Option<&str>, mac: Option<&str>) -> Identity {
        Identity { model: model.into(), serial: serial.map(Into::into), mac: mac.map(Into::into) }
    }

    #[test]
    fn a_serial_number_is_found_among_the_capabilities() {
        let of = |words: &[(u64, u32)]| {
            serial_in(|at| words.iter().find(|(place, _)| *place == at).map(|(_, word)| *word).or(Some(0)))
        };
        assert_eq!(of(&[]), None, "there is none");
        let chain = [(0x100, 0x1401_0001), (0x140, 0x0001_0003), (0x144, 0xff12_3456), (0x148, 0x001b_21ff)];
        assert_eq!(of(&chain).as_deref(), Some("001b21ffff123456"));
        assert_eq!(of(&[(0x100, 0x1401_0001), (0x140, 0x0001_0003)]), None, "it is 0");
        assert_eq!(of(&[(0x100, 0x1001_0001)]), None, "they go round");
        assert_eq!(serial_in(|_| Some(u32::MAX)), None, "the card does not answer");
        assert_eq!(serial_in(|_| None), None, "it has 256 bytes");
    }

    #[test]
    fn a_card_is_known_by_what_both_tell() {
        let (a, b) = (identity("m", Some("a"), Some("1")), identity("m", Some("b"), Some("1")));
        assert!(a.is_proven(&a) && a.is_refuted(&b), "the serial number counts more");
        let silent = identity("m", None, None);
        assert!(!a.is_proven(&silent) && !a.is_refuted(&silent), "nobody knows");
        assert!(a.is_proven(&identity("m", None, Some("1"))) && a.is_refuted(&identity("m", None, Some("2"))));
        assert!(silent.is_refuted(&identity("n", None, None)));
        assert_eq!(identity("m", None, Some("2")).with(&a), identity("m", Some("a"), Some("2")));
    }

    #[test]
    fn what_sysfs_tells_of_a_card_is_read() {
        let root = std::env::temp_dir().join(format!("tandemd-identity-{}", std::process::id()));
        let place = root.join("sys/bus/pci/devices/0000:03:00.1");
        std::fs::create_dir_all(place.join("net/eth0")).unwrap();
        let mut config = vec![0_u8; 0x200];
        for (at, word) in [(0x100, 0x0001_0003_u32), (0x104, 5), (0x108, 7)] {
            config[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        std::fs::write(place.join("config"), config).unwrap();
        let files = [("vendor", "0x8086"), ("device", "0x10d3"), ("subsystem_vendor", "0x17aa")];
        let own = [("subsystem_device", "0x2074"), ("net/eth0/address", "00:1b:21:00:00:07")];
        for (file, text) in files.into_iter().chain(own).chain([("net/eth0/addr_assign_type", "0")]) {
            std::fs::write(place.join(file), format!("{text}\n")).unwrap();
        }
        let read = |class| Identity::read(&root, "0000:03:00.1", class);
        let (model, mac) = ("8086:10d3 17aa:2074 .1", Some("00:1b:21:00:00:07"));
        assert_eq!(read(0x02_0000), identity(model, Some("0000000700000005"), mac));
        assert_eq!(read(0x03_0000), identity(model, None, mac), "a screen is not woken");
        std::fs::write(place.join("net/eth0/addr_assign_type"), "3\n").unwrap();
        assert_eq!(read(0x03_0000).mac, None, "somebody has set it");
        std::fs::remove_dir_all(root).unwrap();
    }
}
