//! Devices of driver domains, by stock `xl`, with an IOMMU and without; and dom0's own behind an IOMMU.
//!
//! The checks are in `images/xen/tests`. At the end of `passthrough.sh` dom0 drives the NIC itself again.

use super::xl::{judge, judge_but, STOPPED};
use super::{clean, Bed, Body, Test};
use crate::run::{check_disk, check_net};
use anyhow::{bail, ensure, Context, Result};
use testbed::guests::{self, Wishes};
use testbed::machine::{Disk, Ending, Machine, Qemu, AMD_VI, IOMMU};
use testbed::peer::Peer;
use testbed::{host, pattern};

/// QEMU's VT-d without interrupt remapping.
const VTD: &str = "intel-iommu,intremap=off";
/// A device whose DMA can be told where to go; it could only reach the lowest 256 MiB otherwise. VT-d's tables have 39
/// bits.
pub(super) const EDU: &str = "edu,dma_mask=0x7fffffffff";

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |level, name: &str, run: Body| tests.push(Test { level, name: name.into(), long: false, run });
    for (name, nic, unit) in [
        // One kind of interrupt with remapping, the other without.
        ("driver-domain-owns-e1000-behind-an-iommu", "e1000", Some(IOMMU)),
        ("driver-domain-owns-e1000e-behind-an-iommu", "e1000e", Some(VTD)),
        ("driver-domain-owns-e1000-behind-amd-vi", "e1000", Some(AMD_VI)),
        ("driver-domain-owns-e1000e-behind-amd-vi", "e1000e", Some(AMD_VI)),
        ("driver-domain-owns-e1000-unsafely", "e1000", None),
    ] {
        add("xl", name, Box::new(move |bed| driver_domain(bed, name, nic, unit)));
    }
    add("xl", "without-an-iommu-no-device-leaves-dom0", Box::new(no_passthrough));
    add("boot", "functions-behind-other-root-buses-are-found", Box::new(other_root_buses));
    add(
        "linux",
        "dom0s-devices-work-behind-an-iommu",
        Box::new(|bed| dom0_behind(bed, "dom0-iommu", "iommu=on", "e1000e", IOMMU)),
    );
    add(
        "linux",
        "dom0s-devices-work-behind-amd-vi",
        Box::new(|bed| dom0_behind(bed, "dom0-amd-vi", "iommu=on", "e1000", AMD_VI)),
    );
    for (name, file, unit) in [
        ("dom0s-devices-work-behind-an-iommu-with-x2apic", "dom0-iommu-x2apic", IOMMU),
        ("dom0s-devices-work-behind-amd-vi-with-x2apic", "dom0-amd-vi-x2apic", AMD_VI),
    ] {
        add("linux", name, Box::new(move |bed| with_x2apic(bed, file, unit)));
    }
    add(
        "linux",
        "dom0s-devices-reach-only-dom0s-memory",
        Box::new(|bed| dom0_behind(bed, "dom0-strict", "iommu=dom0-strict", "e1000", VTD)),
    );
    tests
}

/// A driver domain gets the NIC, is destroyed, and gives it back.
fn driver_domain(bed: &Bed, name: &str, nic: &'static str, unit: Option<&'static str>) -> Result<String> {
    let peer = Peer::start(name)?;
    let is_silent = unit == Some(AMD_VI);
    let silent = if is_silent { ":silent" } else { "" };
    let jobs = format!("toolstack+xl:passthrough:{nic}{silent}+net:{nic}:1:16+poweroff");
    let mut machine = with_guests(bed, name, &jobs)?;
    machine.nic = Some((nic, peer.socket().to_path_buf()));
    if let Some(unit) = unit {
        machine.chipset = "q35";
        machine.devices = vec![unit, EDU];
    } else {
        machine.hypervisor_args += " passthrough=unsafe";
    }
    let running = machine.start()?;
    let monitor = running.monitor();
    // The start of the hypervisor, where the device is told to write.
    let file = host::target("logs")?.join(format!("{name}.memory"));
    const MARKS: [&str; 2] = ["TANDEM: toolstack ok", "check ok the-network-lives-on"];
    let mut texts = Vec::new();
    let outcome = running.finish(|line| {
        if is_silent && MARKS.iter().any(|mark| line.contains(mark)) {
            texts.push(monitor.dump(&format!("pmemsave 0x200000 64 \"{}\"", file.display()), &file));
        }
        false
    })?;
    let said = judge_but(bed, &outcome, if unit.is_some() { STOPPED } else { &[] })?;
    if is_silent {
        let texts = texts.into_iter().collect::<Result<Vec<_>>>()?;
        let [before, after] = &texts[..] else { bail!("it was not looked at the hypervisor before and after") };
        ensure!(before.iter().any(|byte| *byte != 0), "nothing of the hypervisor where the device wrote");
        ensure!(before == after, "the device wrote into the hypervisor");
    }
    let wire = peer.counts();
    ensure!(
        wire.received > 0 && wire.damaged == 0 && wire.missing == 0,
        "the other end of the wire got damaged or missed frames: {wire:?}"
    );
    if unit.is_none() {
        let has = |words: &str| outcome.lines.iter().any(|l| l.contains(words));
        ensure!(has("passthrough=unsafe: a domain that gets"), "nothing was said at boot");
        ensure!(has("WITHOUT AN IOMMU"), "nothing was said at the assignment");
    }
    Ok(format!("{said}, {} datagrams", wire.received))
}

fn no_passthrough(bed: &Bed) -> Result<String> {
    let peer = Peer::start("no-passthrough")?;
    let mut machine = with_guests(bed, "no-passthrough", "toolstack+xl:no-passthrough+poweroff")?;
    machine.nic = Some(("e1000", peer.socket().to_path_buf()));
    judge(bed, &machine.start()?.finish(|_| false)?)
}

fn with_guests(bed: &Bed, name: &str, jobs: &str) -> Result<Machine> {
    let mut machine = Machine::with_guests(name, &bed.hypervisor, &bed.toolstack()?, 2, jobs);
    machine.keep_packets();
    machine.timeout_s = 1500;
    Ok(machine)
}

/// Packets and blocks through dom0's own drivers, which the IOMMU lets reach memory.
fn dom0_behind(bed: &Bed, name: &str, option: &str, nic: &'static str, unit: &'static str) -> Result<String> {
    dom0_of(bed, name, option, nic, unit, Qemu::chosen()).map(|(said, _)| said)
}

/// QEMU's processor has x2APIC from version 10 on; its units name CPUs by eight bits. Interrupts are remapped all the
/// same.
fn with_x2apic(bed: &Bed, name: &str, unit: &'static str) -> Result<String> {
    let (said, lines) = dom0_of(bed, name, "iommu=on", "e1000e", unit, Qemu::Ten)?;
    for words in ["Local APIC: id 0, version 0x14, x2APIC", "interrupts are remapped, and none but"] {
        ensure!(lines.iter().any(|line| line.contains(words)), "the hypervisor did not say `{words}`");
    }
    Ok(said)
}

fn dom0_of(
    bed: &Bed,
    name: &str,
    option: &str,
    nic: &'static str,
    unit: &'static str,
    qemu: Qemu,
) -> Result<(String, Vec<String>)> {
    let peer = Peer::start(name)?;
    let disk = host::target("images")?.join(format!("{name}.raw"));
    pattern::make_disk(&disk, bed.mib)?;
    let jobs = format!("net:{nic}:{}:64+disk:nvme:{}+poweroff", bed.mib, bed.mib);
    let mut machine = Machine::new(name, &bed.hypervisor, &bed.images, 2, &jobs);
    machine.keep_packets();
    machine.hypervisor_args += &format!(" {option}");
    machine.chipset = "q35";
    machine.devices = vec![unit];
    machine.nic = Some((nic, peer.socket().to_path_buf()));
    machine.disks = vec![Disk { device: "nvme", file: disk.clone(), writable: true }];
    machine.timeout_s = 300 + bed.mib * 10;
    machine.qemu = qemu;
    let outcome = machine.start()?.finish(|_| false)?;
    check_net(&outcome, peer.counts())?;
    check_disk(&outcome)?;
    clean(&outcome, &Ending::PowerOff)?;
    let blocks = pattern::verify_disk(&disk, bed.mib)?;
    std::fs::remove_file(&disk)?;
    let stopped = outcome.lines.iter().find(|l| l.contains("was stopped") || l.contains("DMAR:[DMA"));
    ensure!(stopped.is_none(), "an access of dom0's own was stopped: {}", stopped.map_or("", String::as_str));
    Ok((format!("{} datagrams, {blocks} blocks", peer.counts().received), outcome.lines))
}

/// A second host bridge shows as three functions: itself, the bridge on its root bus, and what is behind that.
fn other_root_buses(bed: &Bed) -> Result<String> {
    let guest = guests::named("console")?;
    let mut machine = guest.machine(&bed.hypervisor, Wishes::default())?;
    let found = |machine: &Machine| {
        let (_, outcome) = guest.run_on(machine)?;
        let line = outcome.find("PCI: ").context("nothing was said of PCI")?;
        let number = line.split_whitespace().find_map(|word| word.parse::<u32>().ok());
        number.with_context(|| format!("no number of functions in `{line}`"))
    };
    machine.name = "one-root-bus".into();
    let with_one = found(&machine)?;
    machine.name = "two-root-buses".into();
    machine.devices = vec!["pxb,id=other,bus_nr=64", "e1000,bus=other,romfile="];
    let with_two = found(&machine)?;
    ensure!(with_two == with_one + 3, "{with_two} functions with another root bus, {with_one} without");
    Ok(format!("{with_one} functions and {with_two}"))
}
