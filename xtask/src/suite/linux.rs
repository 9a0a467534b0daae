//! Stock Linux as dom0: what a user of the machine would notice.

use super::{clean, Bed, Body, Test};
use crate::run::{check_disk, check_net, each_works, ended, relative};
use anyhow::{bail, ensure, Context, Result};
use testbed::machine::{field, Disk, Ending, Machine, Outcome};
use testbed::peer::Peer;
use testbed::{host, images, pattern};

/// NICs: QEMU's device, Debian's driver, datagrams in flight (the ne2000 holds only a few frames).
const NICS: &[(&str, &str, u32)] = &[
    ("e1000", "e1000", 64),
    ("e1000e", "e1000e", 64),
    ("rtl8139", "8139cp", 16),
    ("ne2k_pci", "ne2k-pci", 4),
    ("virtio-net-pci", "virtio_net", 64),
    ("vmxnet3", "vmxnet3", 64),
];

/// Disks: QEMU's device, Debian's driver.
const DISKS: &[(&str, &str)] = &[("nvme", "nvme"), ("ahci", "ahci"), ("virtio-blk-pci", "virtio_blk")];

/// stress-ng's stressors that a paravirtual memory and CPU layer must bear.
const STRESSORS: &[&str] = &[
    "cpu",
    "vm",
    "fork",
    "mmap",
    "pagemove",
    "switch",
    "context",
    "signal",
    "timer",
    "futex",
    "pipe",
    "mremap",
    "madvise",
    "userfaultfd",
];

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |name: String, long: bool, run: Body| {
        tests.push(Test { level: "linux", name, long, run });
    };
    for cpus in [1, 2, 4] {
        add(format!("debian-boots-with-{cpus}-cpus"), false, Box::new(move |bed| boots(bed, cpus)));
    }
    add("grub-boots-it-from-a-disc".into(), false, Box::new(from_disc));
    add("dom0s-clock-needs-no-system-call".into(), false, Box::new(clock));
    add("cpus-go-off-line-and-come-back".into(), false, Box::new(hotplug));
    for (name, job, ending) in [
        ("poweroff-turns-the-machine-off", "poweroff", Ending::PowerOff),
        ("reboot-restarts-the-machine", "reboot", Ending::Reset),
        ("a-kernel-panic-restarts-the-machine", "panic", Ending::Reset),
        ("sysrq-b-restarts-the-machine", "sysrqb", Ending::Reset),
    ] {
        add(name.into(), false, Box::new(move |bed| ends(bed, job, &ending)));
    }
    add("an-nmi-is-reported-and-a-machine-check-restarts-the-machine".into(), false, Box::new(hardware_errors));
    for (device, driver, window) in NICS {
        add(format!("packets-through-{device}-arrive"), false, Box::new(move |bed| nic(bed, device, driver, *window)));
    }
    for (device, driver) in DISKS {
        add(format!("blocks-on-{device}-are-right"), false, Box::new(move |bed| disk(bed, device, driver)));
    }
    add("50-domains-live-and-die-and-leave-nothing".into(), false, Box::new(domains));
    for cpus in [2, 4] {
        let name = format!("stress-ng-with-{cpus}-vcpus-on-2-cpus");
        add(name, true, Box::new(move |bed| stress(bed, cpus)));
    }
    add(
        "xz-packs-and-unpacks-200-mb".into(),
        true,
        Box::new(|bed| heavy(bed, "xz:200", "xz ok", "bytes", "209715200")),
    );
    // The program adds up i * (0 + 1 + ... + 63) + 64 * i over its 100 files.
    add("gcc-builds-100-files".into(), true, Box::new(|bed| heavy(bed, "cc:100", "cc ok", "answer", "10296000")));
    tests
}

/// Boots `machine` to its end; `Err` if it never got to userspace.
fn run(machine: &Machine) -> Result<Outcome> {
    let outcome = machine.start()?.finish(|_| false)?;
    if outcome.report("up").is_none() {
        let last = outcome.lines.iter().rev().find(|l| !l.trim().is_empty()).cloned().unwrap_or_default();
        bail!("no userspace ({}); last line: {last} (log {})", ended(&outcome.ending), relative(&outcome.log));
    }
    Ok(outcome)
}

fn boots(bed: &Bed, cpus: u32) -> Result<String> {
    let machine = Machine::new(&format!("boots-{cpus}"), &bed.hypervisor, &bed.images, cpus, "cpus+pin+poweroff");
    let outcome = run(&machine)?;
    let report = outcome.report("cpus").context("no word about CPUs")?;
    ensure!(field(report, "nproc") == Some(&cpus.to_string()), "nproc disagrees: {report}");
    each_works(&outcome, cpus)?;
    clean(&outcome, &Ending::PowerOff)?;
    Ok(format!("nproc={cpus}"))
}

/// Programs read Xen's clock in their own address space.
fn clock(bed: &Bed) -> Result<String> {
    let machine = Machine::new("clock", &bed.hypervisor, &bed.images, 2, "clock+poweroff");
    let outcome = run(&machine)?;
    let report = outcome.report("clock").context("no word about the clock")?;
    ensure!(report.starts_with("ok "), "{report}");
    ensure!(field(report, "source") == Some("xen"), "it is not the clock that Xen's interface gives: {report}");
    clean(&outcome, &Ending::PowerOff)?;
    Ok(report.into())
}

/// Domain 0 builds and destroys tiny domains through privcmd.
fn domains(bed: &Bed) -> Result<String> {
    let machine = Machine::new("domains", &bed.hypervisor, &bed.images, 2, "domlife:50+poweroff");
    let outcome = run(&machine)?;
    let report = outcome.report("domlife").context("no word about domains")?;
    ensure!(report.starts_with("ok "), "{report}");
    clean(&outcome, &Ending::PowerOff)?;
    Ok("no page lost".into())
}

fn from_disc(bed: &Bed) -> Result<String> {
    let iso = host::target("images")?.join("test.iso");
    let mut machine = Machine::new("disc", &bed.hypervisor, &bed.images, 2, "cpus+poweroff");
    crate::iso::build(&iso, &machine, crate::iso::Screen::Serial)?;
    machine.iso = Some(iso);
    let outcome = run(&machine)?;
    clean(&outcome, &Ending::PowerOff)?;
    Ok("Multiboot 2".into())
}

fn hotplug(bed: &Bed) -> Result<String> {
    let machine = Machine::new("hotplug", &bed.hypervisor, &bed.images, 2, "hotplug+poweroff");
    let outcome = run(&machine)?;
    let report = outcome.report("hotplug").context("the guest said nothing")?;
    ensure!(report.starts_with("ok"), "{report}");
    clean(&outcome, &Ending::PowerOff)?;
    Ok(report.into())
}

fn ends(bed: &Bed, job: &str, wanted: &Ending) -> Result<String> {
    let machine = Machine::new(&format!("ends-{job}"), &bed.hypervisor, &bed.images, 2, job);
    let outcome = run(&machine)?;
    ensure!(outcome.ending == *wanted, "it should have ended by {wanted:?}, but: {}", ended(&outcome.ending));
    Ok(String::new())
}

/// What the machine itself reports: an NMI, which is wired to the first CPU, then a machine check that cannot be
/// corrected.
fn hardware_errors(bed: &Bed) -> Result<String> {
    const NMI: &str = "NMI of the machine";
    let machine = Machine::new("hardware-errors", &bed.hypervisor, &bed.images, 2, "idle:120");
    let running = machine.start()?;
    let monitor = running.monitor();
    let mut sent = Ok(());
    let outcome = running.finish(|line| {
        if line.contains("TANDEM: up") {
            sent = monitor.send("nmi");
        } else if line.contains(NMI) {
            // CPU 0, bank 1: valid, uncorrected, its context corrupt.
            sent = monitor.send("mce 0 1 0xb200000000000000 0x4 0x0 0x0");
        }
        sent.is_err()
    })?;
    sent?;
    ensure!(outcome.find(NMI).is_some(), "no word of the NMI (log {})", relative(&outcome.log));
    let said =
        outcome.find("machine check").with_context(|| format!("no word of it (log {})", relative(&outcome.log)))?;
    ensure!(outcome.find("bank 1: status 0xb2").is_some(), "the bank with the error is not reported: {said}");
    ensure!(outcome.ending == Ending::Reset, "it should have restarted, but: {}", ended(&outcome.ending));
    Ok(said.trim().into())
}

fn nic(bed: &Bed, device: &'static str, driver: &str, window: u32) -> Result<String> {
    let name = format!("nic-{device}");
    let peer = Peer::start(&name)?;
    let jobs = format!("net:{driver}:{}:{window}+poweroff", bed.mib);
    let mut machine = Machine::new(&name, &bed.hypervisor, &bed.images, 2, &jobs);
    machine.keep_packets();
    machine.nic = Some((device, peer.socket().to_path_buf()));
    machine.timeout_s = 300 + bed.mib * 4;
    let outcome = run(&machine)?;
    check_net(&outcome, peer.counts())?;
    let bound = outcome.report(&format!("module {driver}")).context("the driver was not loaded")?;
    let interface = outcome.report("interface").context("no word about the interface")?;
    let keeps = matches!(field(interface, "queue"), Some("pfifo_fast" | "mq"));
    ensure!(keeps, "its queue may drop what has waited for long: {interface}");
    ensure!(field(interface, "errors") == Some("0"), "the interface counts errors: {interface}");
    clean(&outcome, &Ending::PowerOff)?;
    Ok(format!("{bound}, {} packets out, {} in", peer.counts().received, peer.counts().sent))
}

fn disk(bed: &Bed, device: &'static str, driver: &str) -> Result<String> {
    let name = format!("disk-{device}");
    let file = host::target("images")?.join(format!("{name}.raw"));
    pattern::make_disk(&file, bed.mib)?;
    let jobs = format!("disk:{driver}:{}+poweroff", bed.mib);
    let mut machine = Machine::new(&name, &bed.hypervisor, &bed.images, 2, &jobs);
    machine.disks = vec![Disk { device, file: file.clone(), writable: true }];
    machine.timeout_s = 300 + bed.mib * 2;
    let outcome = run(&machine)?;
    check_disk(&outcome)?;
    clean(&outcome, &Ending::PowerOff)?;
    let blocks = pattern::verify_disk(&file, bed.mib)?;
    std::fs::remove_file(&file)?;
    Ok(format!("{blocks} blocks of 64 KiB right in dom0 and from the host"))
}

fn with_tree(bed: &Bed, name: &str, cpus: u32, jobs: &str) -> Result<Outcome> {
    let tree = images::tree::build()?;
    let mut machine = Machine::new(name, &bed.hypervisor, &bed.images, cpus, jobs);
    machine.hypervisor_args = format!("dom0_mem=1536M,max:1536M dom0_max_vcpus={cpus} loglvl=all");
    machine.memory_mib = 2048;
    machine.cpus = cpus.min(2);
    machine.disks = vec![Disk { device: "virtio-blk-pci", file: tree, writable: false }];
    machine.timeout_s = 1800 + bed.stress_s * 2 * STRESSORS.len() as u64;
    run(&machine)
}

/// All stressors one after the other in one boot, so that what one leaves behind meets the next.
fn stress(bed: &Bed, cpus: u32) -> Result<String> {
    let jobs: Vec<String> = STRESSORS.iter().map(|s| format!("stress:{s}:{}", bed.stress_s)).collect();
    let outcome = with_tree(bed, &format!("stress-{cpus}"), cpus, &format!("{}+poweroff", jobs.join("+")))?;
    for stressor in STRESSORS {
        let report = outcome
            .report(&format!("stress {stressor}"))
            .with_context(|| format!("{stressor} said nothing ({})", ended(&outcome.ending)))?;
        ensure!(field(report, "status") == Some("0"), "{stressor} failed: {report}");
        ensure!(field(report, "warnings") == Some("0"), "the kernel warned under {stressor}: {report}");
    }
    clean(&outcome, &Ending::PowerOff)?;
    Ok(format!("{} stressors, {} s each", STRESSORS.len(), bed.stress_s))
}

fn heavy(bed: &Bed, job: &str, subject: &str, key: &str, wanted: &str) -> Result<String> {
    let name = subject.split(' ').next().unwrap_or(subject);
    let outcome = with_tree(bed, name, 2, &format!("{job}+poweroff"))?;
    let report = outcome.report(subject).with_context(|| {
        outcome.find(&format!("TANDEM: {name} FAIL")).unwrap_or("the work did not finish").to_string()
    })?;
    ensure!(field(report, key) == Some(wanted), "wrong result: {report}");
    clean(&outcome, &Ending::PowerOff)?;
    Ok(report.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What `job_pin` of `images/init/init.sh` says on a machine with two CPUs whose times of which users have this, in
    /// a shell.
    fn job_pin(user: &str) -> String {
        let jobs = include_str!("../../../images/init/init.sh");
        let start = jobs.find("\njob_pin() {\n").unwrap();
        let job = jobs[start..].split_inclusive("\n}\n").next().unwrap();
        let dir = host::target("logs").unwrap().join(format!("pin.{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let job = job.replace("/tmp/idle", &dir.join("idle").display().to_string()).replace("20000", "20");
        // Each loop is a shell of its own, so what it asks for is, too.
        let job = job.replace("user() {", &format!("cd \"{}\"; user() {{ {user}; }}; old() {{", dir.display()));
        let here = "say() { echo \"$*\"; }; nproc() { echo 2; }; taskset() { shift 2; \"$@\"; }";
        let said = host::output(Command::new("sh").args(["-c", &format!("{here}\n{job}\njob_pin")])).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        said.trim().into()
    }

    #[test]
    fn each_cpu_works_if_the_time_of_each_has_grown() {
        let verdict = |said: &str| {
            let lines = vec![format!("TANDEM: {said}")];
            each_works(&Outcome { ending: Ending::PowerOff, lines, log: "x.log".into() }, 2)
        };
        let all = job_pin("echo x >> $0; wc -l < $0");
        assert_eq!(all, "pin ran=2");
        verdict(&all).unwrap();
        let first = job_pin("[ $0 = 1 ] || echo x >> $0; cat $0 2> /dev/null | wc -l");
        assert_eq!(first, "pin FAIL no work was done by cpu 1");
        assert!(verdict(&first).unwrap_err().to_string().contains("by cpu 1"));
        assert_eq!(job_pin("echo 7"), "pin FAIL no work was done by cpu 0 1");
        assert!(verdict("pin ran=1").is_err());
    }
}
