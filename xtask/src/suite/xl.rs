//! Stock `xl` in dom0: each group of checks is one boot, and each check looks at what a command did.
//!
//! The checks themselves are `images/xen/tests/GROUP.sh`; they run on stock Xen as they do here, which is what
//! `--hypervisor xen` is for.

use super::{beside, clean_but, warning, Bed, Body, Test};
use crate::run::{ended, relative};
use anyhow::{bail, ensure, Context, Result};
use testbed::machine::{Disk, Ending, Hypervisor, Machine, Outcome, IOMMU};
use testbed::peer::Peer;
use testbed::{host, pattern};

/// A group of checks.
struct Group {
    /// `images/xen/tests/FILE.sh`.
    file: &'static str,
    /// What a user would notice.
    name: &'static str,
    /// The machine's CPUs, and how many of them dom0 uses.
    cpus: u32,
    vcpus: u32,
    /// A processor with XSAVE and AVX, where there is more state to keep than QEMU's default has.
    has_avx: bool,
    /// The machine's disk controller, with a disk that is checked from the host afterwards.
    disk: Option<&'static str>,
    /// Time is the number of instructions: figures do not depend on what else the host does. One CPU only.
    counted: bool,
    /// The program that keeps the store.
    store: &'static str,
    /// Whether there is an IOMMU, so that a domain can be given the NIC.
    iommu: bool,
    /// Arguments of the file: for a quick run and with `--full`; `None`: the mebibytes to move.
    counts: Option<(&'static str, &'static str)>,
    /// What the hypervisor's warnings contain that are part of the checks.
    provoked: &'static [&'static str],
    timeout_s: u64,
}

/// What most groups need.
const USUAL: Group = Group {
    file: "",
    name: "",
    cpus: 2,
    vcpus: 1,
    has_avx: false,
    disk: None,
    counted: false,
    store: "xenstored",
    iommu: false,
    counts: Some(("", "")),
    provoked: &[],
    timeout_s: 900,
};

/// `-cpu` for a processor with XSAVE and AVX. Programs in dom0 and in guests of Debian's
/// Xen 4.17 crash on it and find their memory spoilt, so that Xen gets QEMU's default.
pub(super) fn model_with_avx(hypervisor: &Hypervisor) -> Option<String> {
    (!hypervisor.is_stock_xen()).then(|| "max".into())
}

const GROUPS: &[Group] = &[
    Group { file: "commands", name: "xl-commands-do-what-they-say", vcpus: 2, ..USUAL },
    Group { file: "grub", name: "grub-starts-a-guest-from-its-own-disk", ..USUAL },
    Group {
        file: "migrate",
        name: "guests-are-saved-restored-and-moved",
        vcpus: 2,
        has_avx: true,
        timeout_s: 1200,
        ..USUAL
    },
    Group {
        file: "sched",
        name: "busy-guests-get-their-shares",
        cpus: 1,
        counted: true,
        iommu: true,
        timeout_s: 1800,
        ..USUAL
    },
    Group { file: "devices", name: "guests-have-network-and-disks", disk: Some("nvme"), counts: None, ..USUAL },
    Group {
        file: "ahci",
        name: "a-guest-has-a-disk-of-an-ahci-controller",
        disk: Some("ahci"),
        counts: None,
        iommu: true,
        ..USUAL
    },
    Group { file: "switch", name: "guests-share-the-hypervisors-switch", counts: None, ..USUAL },
    Group { file: "oxenstored", name: "xl-works-with-oxenstored-too", store: "oxenstored", ..USUAL },
    Group { file: "mistakes", name: "wrong-configurations-are-refused-in-words", ..USUAL },
    Group { file: "many", name: "eight-guests-at-once", counts: Some(("8", "8")), ..USUAL },
    Group { file: "cycles", name: "domains-come-and-go", iommu: true, counts: Some(("2:2", "200:20")), ..USUAL },
    Group { file: "attaches", name: "devices-of-a-guest-come-and-go", counts: Some(("2", "1000")), ..USUAL },
    Group {
        file: "deaths",
        name: "guests-die-and-others-go-on",
        counts: Some(("1", "20")),
        // One way to die is a kernel stack that is not there.
        provoked: &["crashed"],
        timeout_s: 1800,
        ..USUAL
    },
];

impl Group {
    /// A NIC without a wire, to be given to domains or put aside while dom0 keeps the other.
    fn spare_nic(&self) -> Option<&'static str> {
        match self.file {
            "cycles" => Some("e1000e"),
            "ahci" => Some("i82559er"),
            _ => None,
        }
    }
}

pub fn tests() -> Vec<Test> {
    let test = |group: &'static Group| {
        let run: Body = Box::new(move |bed| checks(bed, group));
        Test { level: "xl", name: group.name.into(), long: false, run }
    };
    GROUPS.iter().map(test).collect()
}

fn checks(bed: &Bed, group: &Group) -> Result<String> {
    let images = bed.toolstack()?;
    let peer = Peer::start(group.file)?;
    let count = group.counts.map_or(bed.mib.to_string(), |(quick, full)| if bed.full { full } else { quick }.into());
    let jobs = format!("toolstack:{}+bridge:e1000+xl:{}:{count}+poweroff", group.store, group.file);
    let mut machine = Machine::with_guests(&format!("xl-{}", group.file), &bed.hypervisor, &images, group.vcpus, &jobs);
    machine.keep_packets();
    machine.cpus = group.cpus;
    if group.has_avx {
        machine.cpu_model = model_with_avx(&bed.hypervisor);
    }
    machine.nic = Some(("e1000", peer.socket().to_path_buf()));
    if group.counted {
        // Four ns an instruction; when nothing runs, time jumps to the next event.
        machine.accel.extend(["-icount".into(), "shift=2,sleep=off".into()]);
    }
    if group.iommu {
        machine.chipset = "q35";
        machine.devices = vec![IOMMU];
        machine.devices.extend(group.spare_nic());
    }
    machine.timeout_s = group.timeout_s + bed.mib * 40 + if bed.full { 8 * 3600 } else { 0 };
    let disk = host::target("images")?.join(format!("{}.raw", machine.name));
    if let Some(device) = group.disk {
        pattern::make_disk(&disk, bed.mib)?;
        machine.disks = vec![Disk { device, file: disk.clone(), writable: true }];
    }
    let outcome = machine.start()?.finish(|_| false)?;
    let said = judge_but(bed, &outcome, group.provoked)?;
    let wire = peer.counts();
    ensure!(
        wire.damaged == 0 && wire.missing == 0 && wire.streams.wrong == 0,
        "the other end of the wire got damaged or missed frames: {wire:?}"
    );
    if group.file == "devices" {
        ensure!(wire.received > 0 && wire.streams.received > 0, "nothing came out of the machine: {wire:?}");
    }
    if group.disk.is_some() {
        pattern::verify_disk(&disk, bed.mib)?;
        std::fs::remove_file(&disk)?;
    }
    Ok(said)
}

/// Warnings that checks of any group may provoke: of devices that may not go where they are sent.
const PROVOKED: &[&str] = &["WITHOUT AN IOMMU", "cannot go to", "cannot be put aside"];

/// What is said of DMA that an IOMMU stops. Only groups that provoke it expect it: what dom0 can see of it may be gone
/// from its ring.
pub(super) const STOPPED: &[&str] = &["was stopped", "accesses were stopped"];

/// Of a test that failed, so many of the hypervisor's warnings are shown.
const WARNINGS: usize = 3;

/// All checks passed, and the group ran to its end.
pub(super) fn judge(bed: &Bed, outcome: &Outcome) -> Result<String> {
    judge_but(bed, outcome, &[])
}

/// As [`judge`], but warnings of the hypervisor that contain one of `provoked` are part of the test.
pub(super) fn judge_but(bed: &Bed, outcome: &Outcome, provoked: &[&str]) -> Result<String> {
    judged(bed, outcome, &Ending::PowerOff, provoked)
}

/// As [`judge`], but the machine has to come to another end.
pub(super) fn judge_end(bed: &Bed, outcome: &Outcome, ending: &Ending) -> Result<String> {
    judged(bed, outcome, ending, &[])
}

fn judged(bed: &Bed, outcome: &Outcome, ending: &Ending, provoked: &[&str]) -> Result<String> {
    if let Ok(mut checks) = bed.checks.lock() {
        checks.extend(reports(outcome).filter_map(beside::result));
    }
    verdict(outcome, ending, provoked)
}

fn reports(outcome: &Outcome) -> impl DoubleEndedIterator<Item = &str> {
    outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: ").map(|(_, report)| report.trim()))
}

fn verdict(outcome: &Outcome, ending: &Ending, provoked: &[&str]) -> Result<String> {
    let failed: Vec<&str> = reports(outcome).filter(|r| r.contains("FAIL")).collect();
    if !failed.is_empty() {
        let warnings: Vec<&str> = outcome.lines.iter().filter_map(|l| warning(l)).collect();
        let last = warnings.get(warnings.len().saturating_sub(WARNINGS)..).unwrap_or_default().join("; ");
        let warned = if last.is_empty() { last } else { format!("; the hypervisor's last warnings: {last}") };
        bail!("{}{warned} (log {})", failed.join("; "), relative(&outcome.log));
    }
    if outcome.report("group").is_none() {
        let last = reports(outcome).next_back().context("dom0 said nothing")?;
        bail!("it stopped after: {last} ({}; log {})", ended(&outcome.ending), relative(&outcome.log));
    }
    clean_but(outcome, ending, &[PROVOKED, provoked].concat())?;
    let count = |kind: &str| reports(outcome).filter(|r| r.starts_with(kind)).count();
    let (ok, lacking) = (count("check ok "), count("check lacking "));
    ensure!(ok + lacking > 0, "nothing was checked (log {})", relative(&outcome.log));
    let said = if lacking == 0 { String::new() } else { format!(", {lacking} known to be missing") };
    Ok(format!("{ok} checks{said}"))
}

#[cfg(test)]
mod tests;
