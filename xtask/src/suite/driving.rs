//! Driver domains that own the NIC, by stock `xl`, and guests that have their network from them.
//!
//! The checks are `images/xen/tests/driver-domain.sh`, `driver-dies.sh`, `way-out.sh`, `twin-loads.sh` and
//! `twin-net.sh`.

use super::xl::judge;
use super::{Bed, Body, Test};
use anyhow::{ensure, Result};
use testbed::machine::{Disk, Machine, Outcome, IOMMU};
use testbed::peer::{Counts, Peer};
use testbed::{host, pattern};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |name: &str, run: Body| tests.push(Test { level: "xl", name: name.into(), long: false, run });
    add("guests-behind-a-driver-domain-with-e1000es-messages", Box::new(|bed| serves(bed, "e1000e", bed.mib)));
    add(
        "guests-behind-a-driver-domain-with-e1000s-wire",
        Box::new(|bed| serves(bed, "e1000", if bed.full { bed.mib } else { bed.mib.div_ceil(4) })),
    );
    add("guests-outlive-their-driver-domain", Box::new(dies));
    add("the-hypervisors-switch-has-a-way-out", Box::new(|bed| runs(bed, "way-out", "e1000", bed.mib.div_ceil(2))));
    for nic in ["e1000", "e1000e", "8139cp"] {
        add(&format!("a-twin-of-{nic}-is-loaded-by-a-driver-domain"), Box::new(move |bed| loads(bed, nic)));
        add(&format!("a-twin-of-{nic}-is-the-switchs-way-out"), Box::new(move |bed| sends(bed, nic)));
    }
    tests
}

/// Two guests' packets and streams go through the driver domain's back ends.
fn serves(bed: &Bed, nic: &'static str, mib: u64) -> Result<String> {
    runs(bed, "driver-domain", nic, mib)
}

/// The checks of a file with two guests behind a driver domain that owns the NIC.
fn runs(bed: &Bed, file: &str, nic: &'static str, mib: u64) -> Result<String> {
    let name = format!("{file}-{nic}");
    let peer = Peer::start(&name)?;
    let machine = machine(bed, &name, &format!("{file}:{nic}:{mib}"), nic, &peer)?;
    let outcome = machine.start()?.finish(|_| false)?;
    let said = judge(bed, &outcome)?;
    let wire = peer.counts();
    whole(wire)?;
    let bytes = wire.streams.received + wire.streams.sent;
    Ok(format!("{said}, {} datagrams, {} MiB in streams", wire.received + wire.sent, bytes >> 20))
}

/// The driver domain is destroyed in the middle of traffic, and its successor crashes; the disk is checked from the host.
fn dies(bed: &Bed) -> Result<String> {
    let peer = Peer::start("driver-dies")?;
    let mib = bed.mib.div_ceil(2);
    let mut machine = machine(bed, "driver-dies", &format!("driver-dies:e1000e:{mib}"), "e1000e", &peer)?;
    let disk = host::target("images")?.join("driver-dies.raw");
    pattern::make_disk(&disk, mib)?;
    machine.disks = vec![Disk { device: "nvme", file: disk.clone(), writable: true }];
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    whole(peer.counts())?;
    let blocks = pattern::verify_disk(&disk, mib)?;
    std::fs::remove_file(&disk)?;
    Ok(format!("{said}, {blocks} blocks"))
}

/// The twin of the live driver is loaded, called and unloaded while packets pass the driver.
fn loads(bed: &Bed, nic: &'static str) -> Result<String> {
    let peer = Peer::start(&format!("twin-loads-{nic}"))?;
    judge(bed, &with_twin(bed, "twin-loads", nic, 0, &peer)?)
}

/// Guests' packets go by the twin.
fn sends(bed: &Bed, nic: &'static str) -> Result<String> {
    let peer = Peer::start(&format!("twin-net-{nic}"))?;
    let said = judge(bed, &with_twin(bed, "twin-net", nic, bed.mib.div_ceil(2), &peer)?)?;
    whole(peer.counts())?;
    Ok(said)
}

/// The checks of a file, where a driver has a twin.
fn with_twin(bed: &Bed, file: &str, nic: &'static str, mib: u64, peer: &Peer) -> Result<Outcome> {
    // The model of the device has another name than its driver.
    let model = if nic == "8139cp" { "rtl8139" } else { nic };
    let mut machine = machine(bed, &format!("{file}-{nic}"), &format!("{file}:{nic}:{mib}"), model, peer)?;
    // All memory lies below 4 GiB, which is what the older cards reach.
    machine.memory_mib = 2048;
    machine.start()?.finish(|_| false)
}

fn machine(bed: &Bed, name: &str, group: &str, nic: &'static str, peer: &Peer) -> Result<Machine> {
    let jobs = format!("toolstack+xl:{group}+poweroff");
    let mut machine = Machine::with_guests(name, &bed.hypervisor, &bed.toolstack()?, 1, &jobs);
    machine.keep_packets();
    machine.cpus = 2;
    machine.chipset = "q35";
    machine.devices = vec![IOMMU];
    machine.nic = Some((nic, peer.socket().to_path_buf()));
    machine.timeout_s = 1800 + bed.mib * 60;
    Ok(machine)
}

/// All frames that came were right, in order, and there were some.
fn whole(wire: Counts) -> Result<()> {
    ensure!(
        wire.received > 0 && wire.streams.received > 0 && wire.streams.sent > 0,
        "nothing came out of the machine: {wire:?}"
    );
    ensure!(
        wire.damaged == 0 && wire.missing == 0 && wire.streams.wrong == 0,
        "the other end of the wire got damaged or missed frames: {wire:?}"
    );
    Ok(())
}
