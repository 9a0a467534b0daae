//! The devices of a driver domain that goes: they stop reaching memory, and the toolstack gets them back.

use crate::device::state;
use crate::store::{Change, Store};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// State 7 and 8 of xenbus: one end wants to change what the other serves, which has done so.
pub const RECONFIGURING: &str = "7";
const RECONFIGURED: &str = "8";
/// The command register, and its bit that lets a function reach memory (PCI, 6.2.2).
const COMMAND: u64 = 4;
const BUS_MASTER: u8 = 1 << 2;

fn file(device: &str, name: &str) -> String {
    format!("/sys/bus/pci/devices/{device}/{name}")
}

/// Whether the machine has it, and it answers.
pub fn is_there(device: &str) -> bool {
    let mut vendor = [0xff; 2];
    let read = File::open(file(device, "config")).and_then(|config| config.read_exact_at(&mut vendor, 0));
    read.is_ok() && vendor != [0xff; 2]
}

/// Whether it may reach memory: its driver has let it.
pub fn reaches_memory(device: &str) -> bool {
    let mut command = [0; 2];
    let read = File::open(file(device, "config")).and_then(|config| config.read_exact_at(&mut command, COMMAND));
    read.is_ok() && command[0] & BUS_MASTER != 0
}

/// The devices that a domain has.
pub fn devices_of(domain: u16, store: &mut impl Store) -> Result<Vec<String>> {
    let path = back(domain);
    let count = store.read(&format!("{path}/num_devs"))?.and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    let mut devices = Vec::new();
    for n in 0..count.min(32) {
        devices.extend(store.read(&format!("{path}/dev-{n}"))?);
    }
    Ok(devices)
}

/// The domains that the PCI back end knows.
pub fn domains(store: &mut impl Store) -> Result<Vec<u16>> {
    Ok(store.list(ALL_BACKS)?.iter().filter_map(|domain| domain.parse().ok()).collect())
}

/// It reaches no memory any more, until its next owner lets it.
pub fn keep_from_memory(device: &str) -> Result<()> {
    let config =
        File::options().read(true).write(true).open(file(device, "config")).context("no configuration space")?;
    let mut command = [0; 2];
    config.read_exact_at(&mut command, COMMAND).context("its command register cannot be read")?;
    command[0] &= !BUS_MASTER;
    config.write_all_at(&command, COMMAND).context("its command register cannot be written")
}

/// Answers the PCI back end in place of a domain that does not any more. When the toolstack takes a device away, the
/// back end asks the domain to let go of it, and the toolstack waits ten seconds for that.
pub fn answer_for(domain: u16, store: &mut impl Store) -> Result<()> {
    let back = store.read(&format!("{}/state", back(domain)))?;
    let front = format!("/local/domain/{domain}/device/pci/0/state");
    let answer = match back.as_deref() {
        Some(RECONFIGURING) => RECONFIGURING.to_string(),
        Some(RECONFIGURED) => state::CONNECTED.to_string(),
        _ => return Ok(()),
    };
    if store.read(&front)?.is_some_and(|said| said != answer) {
        store.change(&front, &[Change::Write(front.clone(), answer)])?;
    }
    Ok(())
}

/// Its PCI back end's directory.
pub fn back(domain: u16) -> String {
    format!("{}/0", backs(domain))
}

/// That in which it is, and nothing else.
pub fn backs(domain: u16) -> String {
    format!("{ALL_BACKS}/{domain}")
}

/// Where those of all domains are.
const ALL_BACKS: &str = "/local/domain/0/backend/pci";

/// Whether it is in one.
pub fn is_in_backs(path: &str) -> bool {
    path.strip_prefix(ALL_BACKS).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_store::Nodes;

    const BACK: &str = "/local/domain/0/backend/pci/7/0/state";
    const FRONT: &str = "/local/domain/7/device/pci/0/state";

    #[test]
    fn the_back_end_is_answered_when_it_asks() {
        for (asked, answered) in [("4", "4"), ("7", "7"), ("8", "4"), ("5", "4"), ("6", "4")] {
            let mut nodes = Nodes::default();
            nodes.set(BACK, asked);
            nodes.set(FRONT, if asked == "8" { "7" } else { "4" });
            answer_for(7, &mut nodes).unwrap();
            assert_eq!(nodes.get(FRONT), Some(answered), "to {asked}");
        }
    }

    #[test]
    fn nothing_is_written_where_no_domain_is() {
        let mut nodes = Nodes::default();
        nodes.set(BACK, "7");
        answer_for(7, &mut nodes).unwrap();
        assert!(nodes.paths().all(|path| BACK.starts_with(path)));
    }

    #[test]
    fn the_devices_of_a_domain_are_those_of_its_back_end() {
        let mut nodes = Nodes::default();
        assert!(devices_of(7, &mut nodes).unwrap().is_empty());
        let back = "/local/domain/0/backend/pci/7/0";
        for (key, value) in [("num_devs", "2"), ("dev-0", "0000:00:03.0"), ("dev-1", "0000:00:04.0")] {
            nodes.set(&format!("{back}/{key}"), value);
        }
        assert_eq!(devices_of(7, &mut nodes).unwrap(), ["0000:00:03.0", "0000:00:04.0"]);
    }
}
