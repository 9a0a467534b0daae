//! Driver domains that own the NIC, by stock `xl`, and guests that have their network from them.
//!
//! The checks are `images/xen/tests/driver-domain.sh`, `driver-dies.sh` and `way-out.sh`.

use super::xl::judge;
use super::{Bed, Body, Test};
use anyhow::{ensure, Result};
use testbed::machine::{Disk, Machine, IOMMU};
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
