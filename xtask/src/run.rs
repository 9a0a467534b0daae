//! `./tandem run`: boots the hypervisor with Debian as dom0 and guests beside it, and shows, step by step, what works.

mod domains;

use crate::options::Options;
use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;
use testbed::counter::{self, Counter};
use testbed::images::{self, Images};
use testbed::machine::{field, Disk, Ending, Hypervisor, Machine, Outcome, GDB};
use testbed::peer::{Counts, Peer};
use testbed::{host, pattern, progress};

/// Shows the demonstration; false when it failed, which has been said by then.
pub fn run(options: &Options) -> Result<bool> {
    match demonstrate(options) {
        Ok(()) => {
            println!("PASS");
            Ok(true)
        }
        Err(error) => {
            println!("FAIL: {error:#}");
            Ok(false)
        }
    }
}

fn demonstrate(options: &Options) -> Result<()> {
    println!("Preparing");
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    let with_guests = hypervisor != Hypervisor::None;
    let has_switch = with_guests && !hypervisor.is_stock_xen();
    let images = if with_guests { images::toolstack()? } else { images::basic()? };
    let cpus = options.cpus.unwrap_or(2);
    let mib = options.mib.unwrap_or(8);
    let disk = host::target("images")?.join("run-disk.raw");
    pattern::make_disk(&disk, mib)?;
    let guests_disk = host::target("images")?.join("run-disk-of-guests.raw");
    pattern::make_disk(&guests_disk, mib)?;
    let peer = Peer::start("run")?;
    let jobs = format!("cpus+pin+net:e1000:{mib}:64+disk:nvme:{mib}");
    let mut machine = if with_guests {
        Machine::with_guests("run", &hypervisor, &images, cpus, &format!("{jobs}+toolstack+show:{mib}+poweroff"))
    } else {
        Machine::new("run", &hypervisor, &images, cpus, &format!("{jobs}+poweroff"))
    };
    machine.keep_packets();
    if with_guests {
        machine.chipset = "q35";
        // All of it below 4 GiB: a twin's driver has to reach every page of its domain.
        machine.memory_mib = 2752;
        machine.devices = vec![testbed::machine::IOMMU];
    }
    machine.timeout_s = 900 + mib * 10;
    machine.nic = Some(("e1000", peer.socket().to_path_buf()));
    machine.disks = [&disk, &guests_disk].map(|f| Disk { device: "nvme", file: f.clone(), writable: true }).into();
    if options.gdb {
        wait_for_gdb(&mut machine);
    }
    let counts = host::target("logs")?.join("run.count");
    machine.accel = Counter::build()?.accel(&counts, &[]);

    println!("Booting {} with Debian {} as dom0, {cpus} CPUs", hypervisor.name(), images.kernel_version);
    let verbose = options.verbose;
    let start = Instant::now();
    let mut to_userspace = None;
    let mut latest = progress::Latest::default();
    let outcome = machine.start()?.finish(|line| {
        if line.contains("TANDEM: up ") {
            to_userspace.get_or_insert(start.elapsed());
        }
        show(line, verbose, &mut latest);
        false
    })?;
    progress::clear();
    judge(&outcome, &Expected { images: &images, hypervisor: &hypervisor, cpus, mib, disk: &disk }, peer.counts())?;
    if with_guests {
        domains::judge(&outcome, &images.kernel_version, peer.counts(), mib, &counter::spans(&counts)?, has_switch)?;
        let blocks = pattern::verify_disk(&guests_disk, mib)?;
        println!("  {blocks} blocks of the guest's disk verified from the host");
    }
    ensure!(outcome.ending == Ending::PowerOff, "`poweroff` did not end it: {}", ended(&outcome.ending));
    println!("  `poweroff` powers the machine off");
    let seconds = to_userspace.unwrap_or_default().as_secs_f32();
    let instructions = counter::to_userspace(&counts)?;
    println!(
        "  userspace {seconds:.1} s after power-on, {:.0} million instructions of all CPUs",
        millions(instructions)
    );
    println!("Serial log: {}", relative(&outcome.log));
    Ok(())
}

/// Live progress: reports of the guest as lines, everything else passing by.
fn show(line: &str, verbose: bool, latest: &mut progress::Latest) {
    if verbose {
        println!("    {line}");
    } else if let Some((_, report)) = line.split_once("TANDEM: ") {
        progress::clear();
        println!("  dom0: {}", report.chars().take(110).collect::<String>());
    } else {
        latest.line(line);
    }
}

struct Expected<'a> {
    images: &'a Images,
    hypervisor: &'a Hypervisor,
    cpus: u32,
    mib: u64,
    disk: &'a Path,
}

/// Checks each claim against what the guest, the peer and the disk say, and prints it.
fn judge(outcome: &Outcome, expected: &Expected, wire: Counts) -> Result<()> {
    if outcome.report("up").is_none() {
        let last: Vec<&String> = outcome.lines.iter().rev().filter(|l| !l.trim().is_empty()).take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().map(String::as_str).collect();
        bail!(
            "dom0 did not reach userspace ({}); the console ends: {} (log {})",
            ended(&outcome.ending),
            last.join(" | "),
            relative(&outcome.log)
        );
    }
    println!("Proved");
    let up = outcome.report("up").unwrap_or_default();
    let kind = if *expected.hypervisor == Hypervisor::None { "none" } else { "xen" };
    ensure!(
        field(up, "hypervisor") == Some(kind),
        "Linux names its hypervisor {:?}, not {kind}",
        field(up, "hypervisor")
    );
    ensure!(field(up, "kernel") == Some(&expected.images.kernel_version), "another kernel runs: {up}");
    println!("  stock Debian kernel {} reached userspace as dom0", expected.images.kernel_version);

    let cpus = outcome.report("cpus").context("no word about CPUs")?;
    ensure!(field(cpus, "nproc") == Some(&expected.cpus.to_string()), "CPUs are wrong: {cpus}");
    each_works(outcome, expected.cpus)?;
    println!("  {} CPUs, each does work", expected.cpus);

    let module = outcome.report("module e1000").context("modprobe e1000 did not succeed")?;
    ensure!(field(module, "bound") == Some("e1000"), "the NIC is not driven by e1000: {module}");
    println!("  stock e1000 driver loaded by modprobe and bound to the NIC");
    check_net(outcome, wire)?;
    println!(
        "  {} packets ({:.1} MB) sent and {} ({:.1} MB) received, every checksum right at the other end",
        wire.received,
        millions(wire.received_bytes),
        wire.sent,
        millions(wire.sent_bytes)
    );
    check_disk(outcome)?;
    let blocks = pattern::verify_disk(expected.disk, expected.mib)?;
    println!("  {blocks} disk blocks of 64 KiB read or written through stock nvme, verified in dom0 and from the host");
    Ok(())
}

/// Work that was pinned to each CPU was done by that one, says Linux.
pub fn each_works(outcome: &Outcome, cpus: u32) -> Result<()> {
    let report = outcome.report("pin").context("work pinned to each CPU did not finish")?;
    ensure!(field(report, "ran") == Some(&cpus.to_string()), "not each CPU does work: {report}");
    Ok(())
}

/// The guest and the peer agree that everything arrived.
pub fn check_net(outcome: &Outcome, wire: Counts) -> Result<()> {
    if let Some(reason) = outcome.report("net FAIL") {
        bail!("network: {reason}");
    }
    // dom0's own test and those of guests.
    let reports: Vec<&str> =
        outcome.lines.iter().filter_map(|l| l.split_once("net ok ").map(|(_, report)| report)).collect();
    ensure!(!reports.is_empty(), "the network test said nothing");
    let sum = |key| -> u64 { reports.iter().filter_map(|r| field(r, key)?.parse::<u64>().ok()).sum() };
    let (sent, received) = (sum("sent"), sum("received"));
    ensure!(sent > 0 && sent == wire.received, "{sent} datagrams were sent, the peer got {}", wire.received);
    ensure!(received == wire.sent, "the peer sent {} datagrams, {received} arrived", wire.sent);
    ensure!(wire.damaged == 0 && wire.missing == 0, "{} damaged and {} missing frames", wire.damaged, wire.missing);
    Ok(())
}

pub fn check_disk(outcome: &Outcome) -> Result<()> {
    if let Some(reason) = outcome.report("disk FAIL") {
        bail!("disk: {reason}");
    }
    outcome.report("disk ok").context("the disk test said nothing")?;
    Ok(())
}

pub fn ended(ending: &Ending) -> String {
    match ending {
        Ending::PowerOff => "it powered off".into(),
        Ending::Reset => "it reset".into(),
        Ending::TimeOut => "time-out".into(),
        Ending::Stopped => "stopped".into(),
        Ending::Broken(why) => format!("QEMU ended: {why}"),
    }
}

/// The machine waits for gdb; says how that gets there.
pub fn wait_for_gdb(machine: &mut Machine) {
    machine.wait_for_gdb();
    let image = match &machine.hypervisor {
        Hypervisor::Elf(path) => format!(" {}", relative(path)),
        Hypervisor::None => String::new(),
    };
    println!("QEMU waits for gdb:  gdb{image} -ex \"target remote {GDB}\"");
}

pub fn relative(path: &Path) -> String {
    let root: PathBuf = host::root();
    path.strip_prefix(&root).unwrap_or(path).display().to_string()
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn millions(number: u64) -> f64 {
    number as f64 / 1e6
}
