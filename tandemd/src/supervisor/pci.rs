//! The devices of a driver domain that goes: they stop reaching memory, and the toolstack gets them back.

use crate::device::state;
use crate::store::{Change, Store};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// State 7 and 8 of xenbus: one end wants to change what the other serves, which has done so.
const RECONFIGURING: &str = "7";
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

/// It reaches no memory any more, until its next owner lets it.
pub fn keep_from_memory(device: &str) -> Result<()> {
    let config =
        File::options().read(true).write(true).open(file(device, "config")).context("no configuration space")?;
    let mut command = [0; 2];
    config.read_exact_at(&mut command, COMMAND).context("its command register cannot be read")?;
    command[0] &= !BUS_MASTER;
    config.write_all_at(&command, COMMAND).context("its command register cannot be written")
}

/// Answers the PCI back end in place of a domain that does not any more. When the toolstack takes a device away, the back end asks the
/// domain to let go of it, and the toolstack waits ten seconds for that.
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

fn back(domain: u16) -> String {
    format!("/local/domain/0/backend/pci/{domain}/0")
}
