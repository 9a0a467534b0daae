//! Driver domains that own the NIC, by stock `xl`, and guests that have their network from them.
//!
//! The checks are `images/xen/tests/driver-domain.sh`, `driver-dies.sh`, `disk-outlives.sh`, `disk-recovery.sh`,
//! `disk-standby.sh`, `way-out.sh`, `both.sh`, `chosen.sh`, `flood.sh`, `network-disk.sh`, `causes.sh`, `recovery.sh`,
//! `routing.sh`, `standby.sh`, `snapshot.sh`, `upgrade.sh`, `recovery-twin.sh`, `twin-loads.sh`, `twin-net.sh`,
//! `twin-again.sh`, `twin-two.sh`, `twin-queues.sh` and `twin-modes.sh`.

use super::xl::{judge, judge_but};
use super::{Bed, Body, Test};
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use testbed::machine::{field, Disk, Machine, Outcome, Qemu, AMD_VI, IOMMU};
use testbed::peer::{Counts, Peer};
use testbed::{host, medium, pattern};

/// As large as the disk that `grub.sh` makes.
const GRUB_MEDIUM: u64 = 96 << 20;

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |name: &str, run: Body| tests.push(Test { level: "xl", name: name.into(), long: false, run });
    add("guests-behind-a-driver-domain-with-e1000es-messages", Box::new(|bed| serves(bed, "e1000e", bed.mib)));
    add(
        "guests-behind-a-driver-domain-with-e1000s-wire",
        Box::new(|bed| serves(bed, "e1000", if bed.full { bed.mib } else { bed.mib.div_ceil(4) })),
    );
    add("guests-outlive-their-driver-domain", Box::new(dies));
    add("a-disk-outlives-its-driver-domain", Box::new(disk_outlives));
    add("a-disk-whose-driver-domain-dies-comes-back", Box::new(disk_recovers));
    add("grub-starts-a-guest-whose-driver-domain-dies-meanwhile", Box::new(grub));
    add(
        "one-that-waits-takes-the-place-of-a-disks-driver-domain",
        Box::new(|bed| of_a_disk(bed, "disk-standby", "disk-standby")),
    );
    add(
        "a-networks-driver-domain-fails-in-ways-that-are-told-apart",
        Box::new(|bed| runs(bed, "causes", "e1000e", bed.mib.div_ceil(2))),
    );
    add(
        "a-disks-driver-domain-fails-in-ways-that-are-told-apart",
        Box::new(|bed| of_a_disk(bed, "causes-nvme", "causes:nvme")),
    );
    add("the-hypervisors-switch-has-a-way-out", Box::new(|bed| runs(bed, "way-out", "e1000", bed.mib.div_ceil(2))));
    add("a-driver-domain-that-routes-comes-back", Box::new(|bed| runs(bed, "routing", "e1000e", bed.mib.div_ceil(4))));
    add(
        "driver-domains-that-die-are-started-again",
        Box::new(|bed| runs(bed, "recovery", "e1000e", bed.mib.div_ceil(2))),
    );
    add(
        "one-that-waits-takes-the-place-of-a-driver-domain-that-dies",
        Box::new(|bed| runs(bed, "standby", "e1000e", bed.mib.div_ceil(2))),
    );
    add(
        "a-driver-domain-that-dies-is-rolled-back",
        Box::new(|bed| runs(bed, "snapshot", "e1000e", bed.mib.div_ceil(2))),
    );
    add(
        "a-driver-domain-is-upgraded-or-the-old-one-stays",
        Box::new(|bed| runs(bed, "upgrade", "e1000e", bed.mib.div_ceil(2))),
    );
    add("driver-domains-get-devices-of-the-kinds-that-they-ask-for", Box::new(chosen));
    add("a-driver-domain-with-a-card-and-a-disk-comes-back", Box::new(both));
    add("a-guest-that-floods-leaves-others-their-share", Box::new(floods));
    add("a-disks-driver-domain-may-be-behind-a-networks", Box::new(disk_of_a_network));
    for kind in ["e1000e", "nvme", "ahci"] {
        add(&format!("a-small-driver-domain-for-{kind}"), Box::new(move |bed| small(bed, kind)));
    }
    for driver in ["e1000", "e1000e", "8139cp"] {
        let on = Twinned {
            driver,
            unit: Some(IOMMU),
            qemu: Qemu::chosen(),
            memory_mib: 3072,
            is_short: false,
            is_stlb: false,
        };
        add(&format!("a-twin-of-{driver}-is-loaded-by-a-driver-domain"), Box::new(move |bed| loads(bed, driver, &on)));
        add(
            &format!("a-twin-of-{driver}-is-the-switchs-way-out"),
            Box::new(move |bed| sends(bed, &format!("twin-net-{driver}"), &on)),
        );
        add(&format!("twins-of-{driver}-come-and-go-under-a-stream"), Box::new(move |bed| again(bed, driver, &on)));
    }
    for driver in ["e1000", "8139cp", "vmxnet3", "virtio_net"] {
        // All of it each card reaches: few functions are the domain's to call, which what is damaged would call with
        // damaged arguments.
        let on = Twinned {
            driver,
            unit: Some(IOMMU),
            qemu: Qemu::chosen(),
            memory_mib: 2560,
            is_short: false,
            is_stlb: false,
        };
        add(&format!("faulty-twins-of-{driver}-harm-nobody"), Box::new(move |bed| faulty(bed, driver, &on)));
    }
    for (name, driver, unit, qemu, memory_mib) in [
        ("a-twin-of-vmxnet3-is-the-switchs-way-out", "vmxnet3", Some(IOMMU), Qemu::chosen(), 3072),
        ("a-twin-of-virtio_net-is-the-switchs-way-out", "virtio_net", Some(IOMMU), Qemu::chosen(), 3072),
        // QEMU 7.2 has no such card. It has several queues here.
        ("a-twin-of-igb-is-the-switchs-way-out", "igb", Some(IOMMU), Qemu::Ten, 3072),
        ("a-twin-of-e1000e-is-the-way-out-behind-amd-vi", "e1000e", Some(AMD_VI), Qemu::chosen(), 3072),
        // The driver domain's memory lies where the card does not reach.
        ("a-twin-of-e1000-is-the-way-out-without-an-iommu", "e1000", None, Qemu::chosen(), 5120),
    ] {
        let on = Twinned { driver, unit, qemu, memory_mib, is_short: true, is_stlb: false };
        add(name, Box::new(move |bed| sends(bed, name, &on)));
    }
    for driver in ["e1000", "e1000e", "8139cp", "vmxnet3", "virtio_net", "igb"] {
        let name = format!("a-twin-of-{driver}-in-stlb-mode-is-the-switchs-way-out");
        let qemu = if driver == "igb" { Qemu::Ten } else { Qemu::chosen() };
        let on = Twinned { driver, unit: Some(IOMMU), qemu, memory_mib: 3072, is_short: true, is_stlb: true };
        add(&name.clone(), Box::new(move |bed| sends(bed, &name, &on)));
    }
    add("twins-come-back-with-their-driver-domain", Box::new(comes_back));
    for (name, apart) in [("two-twins-of-one-driver-domain", false), ("two-twins-of-two-driver-domains", true)] {
        add(name, Box::new(move |bed| two(bed, name, apart)));
    }
    add("a-twin-of-vmxnet3-uses-all-queues-of-its-card", Box::new(queues));
    add("a-twin-of-igb-has-messages-and-queues-each-way", Box::new(messages));
    add("the-way-out-is-switched-while-packets-flow", Box::new(modes));
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

/// The driver domain is destroyed in the middle of traffic, and its successor crashes; the disk is checked from the
/// host.
fn dies(bed: &Bed) -> Result<String> {
    let mib = bed.mib.div_ceil(2);
    of_card_and_disk(bed, "driver-dies", &format!("driver-dies:e1000e:{mib}"), mib)
}

/// What was sent and received was whole, and the disk is what it is to be.
fn of_card_and_disk(bed: &Bed, name: &str, checks: &str, mib: u64) -> Result<String> {
    let peer = Peer::start(name)?;
    let mut machine = machine(bed, name, checks, "e1000e", &peer)?;
    let disk = host::target("images")?.join(format!("{name}.raw"));
    pattern::make_disk(&disk, mib)?;
    machine.disks = vec![Disk { device: "nvme", file: disk.clone(), writable: true }];
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    whole(peer.counts())?;
    let blocks = pattern::verify_disk(&disk, mib)?;
    std::fs::remove_file(&disk)?;
    Ok(format!("{said}, {blocks} blocks"))
}

/// A guest's disk is a driver domain's, which is destroyed in the middle, and its successor crashes; the disk is
/// checked from the host.
fn disk_outlives(bed: &Bed) -> Result<String> {
    of_a_disk(bed, "disk-outlives", "disk-outlives")
}

/// The same; the driver domain is looked after.
fn disk_recovers(bed: &Bed) -> Result<String> {
    of_a_disk(bed, "disk-recovery", "disk-recovery")
}

/// GRUB reads its kernel from a disk of a driver domain, which dies meanwhile. Domain 0 fills the medium before.
fn grub(bed: &Bed) -> Result<String> {
    let name = "grub-of-a-disk";
    let peer = Peer::start(name)?;
    let mut machine = machine(bed, name, "grub:nvme", "e1000e", &peer)?;
    let file = host::target("images")?.join(format!("{name}.raw"));
    std::fs::File::create(&file)?.set_len(GRUB_MEDIUM)?;
    machine.disks = vec![Disk { device: "nvme", file: file.clone(), writable: true }];
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    std::fs::remove_file(&file)?;
    Ok(said)
}

/// A guest floods the way out, and a disk, beside another one.
fn floods(bed: &Bed) -> Result<String> {
    let peer = Peer::start("flood")?;
    let seconds = if bed.full { 60 } else { 10 };
    let mut machine = machine(bed, "flood", &format!("flood:e1000e:{seconds}"), "e1000e", &peer)?;
    let disk = host::target("images")?.join("flood.raw");
    pattern::make_disk(&disk, 32)?;
    machine.disks = vec![Disk { device: "nvme", file: disk.clone(), writable: true }];
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    let streams = peer.counts().streams;
    ensure!(streams.wrong == 0 && streams.received > 0, "streams were not right: {streams:?}");
    std::fs::remove_file(&disk)?;
    Ok(said)
}

/// The medium is at the other end of the wire; the host looks at it afterwards.
fn disk_of_a_network(bed: &Bed) -> Result<String> {
    const MIB: u64 = 8;
    let file = host::target("images")?.join("network-disk.raw");
    medium::make(&file)?;
    let peer = Peer::with_disk("network-disk", &file)?;
    let machine = machine(bed, "network-disk", &format!("network-disk:e1000e:{MIB}"), "e1000e", &peer)?;
    let outcome = machine.start()?.finish(|_| false)?;
    let said = judge(bed, &outcome)?;
    let sum = outcome.report("medium u1").and_then(|report| field(report, "sum")).context("the guest says no sum")?;
    medium::verify_blocks(&file, 1, 0, MIB, u64::from_str_radix(sum, 16)?)?;
    std::fs::remove_file(&file)?;
    Ok(said)
}

/// A driver domain lives in 48 MiB; a disk is checked from the host.
fn small(bed: &Bed, kind: &'static str) -> Result<String> {
    let name = format!("small-{kind}");
    let peer = Peer::start(&name)?;
    let mib = bed.mib.div_ceil(2);
    let mut machine = machine(bed, &name, &format!("small:{kind}:{mib}"), "e1000e", &peer)?;
    let disk = host::target("images")?.join(format!("{name}.raw"));
    if kind != "e1000e" {
        pattern::make_disk(&disk, mib)?;
        machine.disks = vec![Disk { device: kind, file: disk.clone(), writable: true }];
    }
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    if kind == "e1000e" {
        whole(peer.counts())?;
    } else {
        pattern::verify_disk(&disk, mib)?;
        std::fs::remove_file(&disk)?;
    }
    Ok(said)
}

/// Driver domains get a network card and a disk's controller by their kinds, and the card goes and comes; the disk is
/// checked from the host.
fn chosen(bed: &Bed) -> Result<String> {
    let mib = bed.mib.div_ceil(4);
    of_card_and_disk(bed, "chosen", &format!("chosen:{mib}"), mib)
}

/// A driver domain serves packets and a disk, and dies; the disk is checked from the host.
fn both(bed: &Bed) -> Result<String> {
    let mib = bed.mib.div_ceil(2);
    of_card_and_disk(bed, "both", &format!("both:{mib}"), mib)
}

fn of_a_disk(bed: &Bed, name: &str, checks: &str) -> Result<String> {
    let peer = Peer::start(name)?;
    let mib = bed.mib.div_ceil(2);
    let mut machine = machine(bed, name, &format!("{checks}:{mib}"), "e1000e", &peer)?;
    let disk = host::target("images")?.join(format!("{name}.raw"));
    pattern::make_disk(&disk, mib)?;
    machine.disks = vec![Disk { device: "nvme", file: disk.clone(), writable: true }];
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    let blocks = pattern::verify_disk(&disk, mib)?;
    std::fs::remove_file(&disk)?;
    Ok(format!("{said}, {blocks} blocks"))
}

/// A driver that has a twin, and its machine.
#[derive(Clone, Copy)]
struct Twinned {
    driver: &'static str,
    /// The IOMMU, if there is one.
    unit: Option<&'static str>,
    qemu: Qemu,
    /// Memory of the machine.
    memory_mib: u32,
    /// Without `--full`, only what depends on driver and machine.
    is_short: bool,
    /// The twin looks addresses up in a table.
    is_stlb: bool,
}

/// The twin of the live driver is loaded, called and unloaded while packets pass the driver.
fn loads(bed: &Bed, driver: &str, on: &Twinned) -> Result<String> {
    let name = format!("twin-loads-{driver}");
    let peer = Peer::start(&name)?;
    judge(bed, &with_twin(bed, &name, &format!("twin-loads:{driver}:0"), on, &peer)?)
}

/// When it starts, QEMU's vmxnet3 reads a list of no addresses at address 0.
const NO_ADDRESSES: &str = "was stopped reading address 0x0:";

/// Guests' packets go by the twin.
fn sends(bed: &Bed, name: &str, on: &Twinned) -> Result<String> {
    let peer = Peer::start(name)?;
    let is_short = on.is_short && !bed.full;
    let (mib, short) = if is_short { (2.min(bed.mib), ":short") } else { (bed.mib.div_ceil(2), "") };
    let mode = if on.is_stlb { "twin-stlb" } else { "twin-mirror" };
    let outcome = with_twin(bed, name, &format!("twin-net:{}:{mib}:{mode}{short}", on.driver), on, &peer)?;
    let said = judge_but(bed, &outcome, if on.driver == "vmxnet3" { &[NO_ADDRESSES] } else { &[] })?;
    whole(peer.counts())?;
    Ok(said)
}

/// The driver domain dies, and twind: each time the twin is the way out again.
fn comes_back(bed: &Bed) -> Result<String> {
    let peer = Peer::start("recovery-twin")?;
    let on = Twinned {
        driver: "e1000e",
        unit: Some(IOMMU),
        qemu: Qemu::chosen(),
        memory_mib: 3072,
        is_short: true,
        is_stlb: false,
    };
    let said = judge(bed, &with_twin(bed, "recovery-twin", "recovery-twin:e1000e:4", &on, &peer)?)?;
    whole(peer.counts())?;
    Ok(said)
}

/// Two cards have twins at once, each with a wire of its own.
fn two(bed: &Bed, name: &str, apart: bool) -> Result<String> {
    let peers = [Peer::start(&format!("{name}-0"))?, Peer::start(&format!("{name}-1"))?];
    let mib = 2.min(bed.mib);
    let apart = if apart { ":apart" } else { "" };
    let mut machine = machine(bed, name, &format!("twin-two:e1000:8139cp:{mib}{apart}"), "e1000", &peers[0])?;
    machine.second_nic = Some(("rtl8139", peers[1].socket().to_path_buf()));
    let said = judge(bed, &machine.start()?.finish(|_| false)?)?;
    peers.iter().try_for_each(|peer| whole(peer.counts()))?;
    Ok(said)
}

/// The card has several queues, and they are used.
fn queues(bed: &Bed) -> Result<String> {
    let peer = Peer::start("twin-queues")?;
    let on = Twinned {
        driver: "vmxnet3",
        unit: Some(IOMMU),
        qemu: Qemu::chosen(),
        memory_mib: 3072,
        is_short: true,
        is_stlb: false,
    };
    let checks = format!("twin-queues:vmxnet3:{}", 2.min(bed.mib));
    let provoked = ["twin 0 is disabled: ", NO_ADDRESSES];
    let said = judge_but(bed, &with_twin(bed, "twin-queues", &checks, &on, &peer)?, &provoked)?;
    whole(peer.counts())?;
    Ok(said)
}

/// A driver that turns its messages off and on has them, and a twin of it several queues each way.
fn messages(bed: &Bed) -> Result<String> {
    let peer = Peer::start("messages")?;
    let on =
        Twinned { driver: "igb", unit: Some(IOMMU), qemu: Qemu::Ten, memory_mib: 3072, is_short: true, is_stlb: false };
    let checks = format!("messages:igb:{}", 2.min(bed.mib));
    let said = judge(bed, &with_twin(bed, "messages", &checks, &on, &peer)?)?;
    let streams = peer.counts().streams;
    ensure!(streams.wrong == 0 && streams.received > 0 && streams.sent > 0, "streams were not right: {streams:?}");
    Ok(said)
}

/// A stream goes on while one twin after the other has the card.
fn again(bed: &Bed, driver: &str, on: &Twinned) -> Result<String> {
    let name = format!("twin-again-{driver}");
    let peer = Peer::start(&name)?;
    let rounds = if bed.full { 100 } else { 3 };
    let said = judge(bed, &with_twin(bed, &name, &format!("twin-again:{driver}:{rounds}"), on, &peer)?)?;
    let wire = peer.counts();
    ensure!(wire.damaged == 0 && wire.streams.wrong == 0, "the other end of the wire got damaged frames: {wire:?}");
    Ok(said)
}

/// The operator says which way packets go, and what he is told can be read.
fn modes(bed: &Bed) -> Result<String> {
    let peer = Peer::start("twin-modes")?;
    let mut machine = machine(bed, "twin-modes", "twin-modes:e1000", "e1000", &peer)?;
    // All of it the card reaches, so that what is damaged is damaged in the twin, and not while it waits for the
    // domain.
    machine.memory_mib = 2048;
    machine.hypervisor_args += " twin-stlb";
    let outcome = machine.start()?.finish(|_| false)?;
    let said = judge_but(bed, &outcome, &["twin 0 is disabled: "])?;
    let told: Vec<&str> = outcome.lines.iter().filter_map(|l| Some(l.split_once("TANDEM: json ")?.1.trim())).collect();
    let [status, refused] = told[..] else { bail!("{} answers in JSON instead of 2", told.len()) };
    let status: Value = serde_json::from_str(status).context("twinctl --json status")?;
    let twin = &status["services"][0]["twin"];
    ensure!(
        twin["mode"] == "twin-mirror" && twin["driver"] == "e1000" && twin["counts"]["packets"].as_u64() > Some(0),
        "twinctl --json status says {status}"
    );
    let refused: Value = serde_json::from_str(refused).context("twinctl --json, refused")?;
    ensure!(refused["error"].as_str().is_some_and(|why| why.contains("nat")), "twinctl --json says {refused}");
    Ok(said)
}

/// What the hypervisor says of faulty twins, and of what a faulty driver does to its device and its domain.
const FAULTY: &[&str] = &["is disabled", "was stopped", "accesses were stopped", "crashed"];

/// Faulty twins harm nobody.
fn faulty(bed: &Bed, driver: &str, on: &Twinned) -> Result<String> {
    let name = format!("twin-faults-{driver}");
    let peer = Peer::start(&name)?;
    let runs = bed.operations.unwrap_or(if bed.full { 8000 } else { 32 });
    let seed = bed.seed.unwrap_or(1);
    // Spoilt data may leave a card that only a reset brings back, and not each has one.
    let data = if bed.full { ":--data:16" } else { "" };
    let mut machine = twinned(bed, &name, &format!("twin-faults:{driver}:{runs}:{seed}{data}"), on, &peer)?;
    // As it usually is: many run in circles.
    machine.hypervisor_args += " twin-limit-ms=100";
    let running = machine.start()?;
    peer.outlives_empty_frames(running.monitor());
    let outcome = running.finish(|_| false)?;
    let said = judge_but(bed, &outcome, FAULTY)?;
    // What a driver sends is its own to spoil, before its card sums it.
    ensure!(
        bed.full || peer.counts().streams.wrong == 0,
        "the other end of the wire got wrong bytes: {:?}",
        peer.counts()
    );
    Ok(format!("{said}, {}", outcome.report("faults").unwrap_or_default()))
}

/// The checks of a file, where a driver has a twin.
fn with_twin(bed: &Bed, name: &str, checks: &str, on: &Twinned, peer: &Peer) -> Result<Outcome> {
    twinned(bed, name, checks, on, peer)?.start()?.finish(|_| false)
}

/// The machine of these.
fn twinned(bed: &Bed, name: &str, checks: &str, on: &Twinned, peer: &Peer) -> Result<Machine> {
    // The model of the device has another name than its driver.
    let model = match on.driver {
        "8139cp" => "rtl8139",
        // Only so are its accesses the IOMMU's business.
        "virtio_net" => "virtio-net-pci,disable-legacy=on,iommu_platform=on",
        driver => driver,
    };
    let mut machine = machine(bed, name, checks, model, peer)?;
    match on.unit {
        Some(unit) => machine.devices = vec![unit],
        None => {
            machine.devices = Vec::new();
            machine.hypervisor_args += " passthrough=unsafe";
        }
    }
    if on.is_stlb {
        machine.hypervisor_args += " twin-stlb";
    }
    machine.qemu = on.qemu;
    machine.memory_mib = on.memory_mib;
    Ok(machine)
}

/// Groups of checks with the store that Debian starts if it is installed. The others have xenstored.
const WITH_OXENSTORED: [&str; 2] = ["snapshot", "standby"];

pub(super) fn machine(bed: &Bed, name: &str, group: &str, nic: &'static str, peer: &Peer) -> Result<Machine> {
    let file = group.split(':').next().unwrap_or_default();
    let store = if WITH_OXENSTORED.contains(&file) { "oxenstored" } else { "xenstored" };
    let jobs = format!("toolstack:{store}+xl:{group}+poweroff");
    let mut machine = Machine::with_guests(name, &bed.hypervisor, &bed.toolstack()?, 1, &jobs);
    machine.keep_packets();
    machine.cpus = 2;
    machine.chipset = "q35";
    machine.devices = vec![IOMMU];
    machine.nic = Some((nic, peer.socket().to_path_buf()));
    machine.timeout_s = 1800 + bed.mib * 60;
    // It stands still for as long when its host has other work.
    machine.hypervisor_args += " twin-limit-ms=2000";
    Ok(machine)
}

/// All frames that came were right, in order, and there were some.
pub(super) fn whole(wire: Counts) -> Result<()> {
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
