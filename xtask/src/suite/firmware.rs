//! Machines with UEFI: GRUB starts the hypervisor, and dom0 has what UEFI firmware gives to an operating system.

use super::{clean, Bed, Body, Test};
use crate::iso::{self, Screen};
use crate::run::ended;
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use testbed::guests::{self, Verdict, Wishes};
use testbed::machine::{field, Ending, Machine, Qemu};
use testbed::{firmware, host};

/// What is said when firmware has faulted.
const NOTICED: &str = "EFI's run-time services failed";

pub fn tests() -> Vec<Test> {
    let test = |name: &str, run: Body| Test { level: "linux", name: name.into(), long: false, run };
    let faulty = Test {
        level: "boot",
        name: "firmware-that-faults-is-not-called-again".into(),
        long: false,
        run: Box::new(faulty),
    };
    let broken = Test {
        level: "boot",
        name: "a-machine-check-in-firmware-restarts-the-machine".into(),
        long: false,
        run: Box::new(broken),
    };
    vec![
        faulty,
        broken,
        test("uefi-and-grub-give-dom0-acpi-variables-and-poweroff", Box::new(dom0)),
        test("uefis-services-bear-any-request", Box::new(requests)),
    ]
}

/// `machine` with UEFI, from a disc with what it would boot without one.
fn from_disc(machine: &mut Machine, screen: Screen) -> Result<()> {
    let disc = host::target("images")?.join(format!("{}.iso", machine.name));
    iso::build(&disc, machine, screen)?;
    machine.iso = Some(disc);
    Ok(())
}

fn dom0(bed: &Bed) -> Result<String> {
    let mut machine = Machine::new("uefi", &bed.hypervisor, &bed.images, 2, "efi+poweroff");
    machine.chipset = "q35";
    machine.devices = vec!["VGA"];
    machine.uefi = true;
    from_disc(&mut machine, Screen::Serial)?;
    let outcome = machine.start()?.finish(|_| false)?;
    let report = outcome.report("efi").context("dom0 said nothing about EFI")?;
    ensure!(report.starts_with("ok "), "{report}");
    ensure!(outcome.find("efi: EFI v2.").is_some(), "dom0's kernel found no EFI");
    ensure!(outcome.find("ACPI: Interpreter enabled").is_some(), "dom0's kernel found no ACPI");
    let tables: u32 = field(report, "tables").and_then(|n| n.parse().ok()).context("no number of tables")?;
    ensure!(tables >= 5, "few ACPI tables: {report}");
    clean(&outcome, &Ending::PowerOff)?;
    Ok(report.into())
}

/// A test kernel as dom0.
fn requests(bed: &Bed) -> Result<String> {
    let guest = guests::named("efi-runtime")?;
    let mut machine = guest.machine(&bed.hypervisor, Wishes::default())?;
    machine.name = format!("uefi-{}", machine.name);
    machine.chipset = "q35";
    machine.uefi = true;
    from_disc(&mut machine, Screen::Serial)?;
    let said = guest.judge_on(&machine)?;
    ensure!(said.is_empty(), "it was not tried: {said}");
    Ok(said)
}

/// A machine check while the firmware is called is no fault of the firmware's, and not survived either.
fn broken(bed: &Bed) -> Result<String> {
    let guest = guests::named("efi-runtime")?;
    let mut machine = guest.machine(&bed.hypervisor, Wishes { qemu: Qemu::Ten, ..Wishes::default() })?;
    firmware::install(&mut machine, &guest, firmware::ENDLESS)?;
    let running = machine.start()?;
    let monitor = running.monitor();
    let mut sent = Ok(());
    let outcome = running.finish(|line| {
        if line.trim_end() == "Test efi-runtime" {
            // It calls the firmware at once.
            std::thread::sleep(Duration::from_secs(1));
            // CPU 0, bank 1: valid, uncorrected, its context corrupt.
            sent = monitor.send("mce 0 1 0xb200000000000000 0x4 0x0 0x0");
        }
        sent.is_err()
    })?;
    sent?;
    ensure!(outcome.find(NOTICED).is_none(), "it is taken for a fault of the firmware's");
    let said = outcome.find("machine check").context("no word of it")?;
    let at = outcome.find("  rip ").context("no word of where it was")?;
    // That of the firmware, as a loader's image lies so low.
    ensure!(at.contains(":0x0000000004"), "it was not in the firmware: {at}");
    ensure!(outcome.ending == Ending::Reset, "it should have restarted, but: {}", ended(&outcome.ending));
    Ok(said.trim().into())
}

/// A machine for each of the things that firmware can do wrong. They have SMAP, so that memory that was left open is
/// noticed.
fn faulty(bed: &Bed) -> Result<String> {
    let guest = guests::named("efi-runtime")?;
    for fault in firmware::FAULTS {
        let mut machine = guest.machine(&bed.hypervisor, Wishes { qemu: Qemu::Ten, ..Wishes::default() })?;
        firmware::install(&mut machine, &guest, fault)?;
        let (verdict, outcome) = guest.run_on(&machine)?;
        let said = guests::complaints(&outcome.lines).unwrap_or_default();
        ensure!(verdict == Verdict::Success, "fault {fault}: {} {said}", verdict.word());
        let is_noticed = outcome.find(NOTICED).is_some();
        ensure!(is_noticed == firmware::ENDING.contains(&fault), "fault {fault}: noticed: {is_noticed}");
    }
    Ok(format!("{} kinds of faults", firmware::ENDING.len()))
}
