//! How a device is passed through, as a domain's configuration says it: behind the device, or for all of them.

use std::fmt;

/// Options of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The PCI back end lets the domain write what it does not know.
    pub is_permissive: bool,
    /// For emulated interrupts; a number to pass on.
    pub msi_translate: bool,
    /// The same.
    pub power_management: bool,
}

/// What is said for all devices, and how the same is said for one.
pub const FOR_ALL: [(&str, &str); 4] = [
    ("pci_permissive", "permissive"),
    ("pci_msitranslate", "msitranslate"),
    ("pci_power_mgmt", "power_mgmt"),
    ("pci_seize", "seize"),
];

impl Options {
    /// What a device's own text says behind the device. `None`: something that is for xl to understand, as a slot or a
    /// name.
    pub fn of(said: &str) -> Option<Self> {
        let mut words = said.trim_start_matches("bdf=").split(',');
        if words.next()?.contains(['@', '=', '*']) {
            return None;
        }
        let mut options = Self::default();
        for word in words {
            let (key, value) = word.split_once('=')?;
            let value = value.trim();
            match (key.trim(), value) {
                ("permissive", "0" | "1") => options.is_permissive = value == "1",
                ("msitranslate", "0" | "1") => options.msi_translate = value == "1",
                ("power_mgmt", "0" | "1") => options.power_management = value == "1",
                // A device that is not the PCI back end's already is found out by that.
                ("seize", "0" | "1") | ("rdm_policy", "strict") => {}
                _ => return None,
            }
        }
        Some(options)
    }
}

impl fmt::Display for Options {
    /// As the toolstack writes them down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "msitranslate={},power_mgmt={},permissive={},rdm_policy=strict",
            u8::from(self.msi_translate),
            u8::from(self.power_management),
            u8::from(self.is_permissive)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_or_left_to_xl() {
        assert_eq!(Options::of("00:03.0"), Some(Options::default()));
        let permissive = Options { is_permissive: true, ..Options::default() };
        assert_eq!(Options::of("bdf=0000:00:03.0,permissive=1,seize=1"), Some(permissive));
        assert_eq!(Options::of("00:03.0,permissive=1,permissive=0"), Some(Options::default()));
        assert_eq!(permissive.to_string(), "msitranslate=0,power_mgmt=0,permissive=1,rdm_policy=strict");
        for others in ["00:03.0@5", "00:03.*", "00:03.0,name=nic", "00:03.0,permissive", "00:03.0,rdm_policy=relaxed"] {
            assert_eq!(Options::of(others), None, "{others}");
        }
    }
}
