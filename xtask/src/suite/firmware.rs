//! Machines with UEFI: GRUB starts the hypervisor, and dom0 has what UEFI firmware gives to an operating system.

use super::{clean, Bed, Body, Test};
use crate::iso::{self, Screen};
use anyhow::{ensure, Context, Result};
use hv_core::screen::{Format, Glyphs};
use testbed::guests::{self, Wishes};
use testbed::host;
use testbed::machine::{field, Ending, Machine};

pub fn tests() -> Vec<Test> {
    let test = |name: &str, run: Body| Test { level: "linux", name: name.into(), long: false, run };
    vec![
        test("uefi-and-grub-give-dom0-acpi-variables-and-poweroff", Box::new(dom0)),
        test("uefis-services-bear-any-request", Box::new(requests)),
        test("the-screen-shows-why-a-bios-boot-fails", Box::new(|bed| failure_on_screen(bed, false))),
        test("the-screen-shows-why-a-uefi-boot-fails", Box::new(|bed| failure_on_screen(bed, true))),
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

/// What the screen must show in the end.
const FAILURE: &str = "PANIC on CPU 0: no kernel for domain 0";

/// A boot that fails before there is a domain 0, read from the screen.
fn failure_on_screen(bed: &Bed, uefi: bool) -> Result<String> {
    let name = if uefi { "screen-uefi" } else { "screen-bios" };
    let mut machine = Machine::new(name, &bed.hypervisor, &bed.images, 1, "");
    machine.uefi = uefi;
    machine.devices = vec!["VGA"];
    machine.timeout_s = 120;
    (machine.kernel, machine.initramfs) = (None, None);
    machine.hypervisor_args = "noreboot loglvl=all".into();
    from_disc(&mut machine, Screen::Only)?;
    let picture = host::target("logs")?.join(format!("{name}.ppm"));
    let _ = std::fs::remove_file(&picture);
    let running = machine.start()?;
    let monitor = running.monitor();
    let mut sent = Ok(());
    let outcome = running.finish(|line| {
        if line.contains("Halted.") {
            sent = monitor.send(&format!("screendump {}", picture.display()));
            // The answer says nothing; the file is there when its size stays.
            for _ in 0..50 {
                std::thread::sleep(std::time::Duration::from_millis(100));
                if std::fs::metadata(&picture).is_ok_and(|file| file.len() > 1 << 16) {
                    break;
                }
            }
            return true;
        }
        false
    })?;
    sent?;
    ensure!(outcome.ending == Ending::Stopped, "it did not halt (log {})", outcome.log.display());
    let shown = read_picture(&std::fs::read(&picture).context("no picture of the screen")?)?;
    ensure!(shown.iter().any(|row| row.contains(FAILURE)), "the screen shows: {}", shown.join(" | "));
    Ok(FAILURE.into())
}

/// The rows of text in a picture (PPM) of a frame buffer.
fn read_picture(picture: &[u8]) -> Result<Vec<String>> {
    let mut words = picture.splitn(5, |b| b.is_ascii_whitespace());
    ensure!(words.next() == Some(b"P6"), "the picture is no PPM");
    let mut number = || {
        let word = words.next().and_then(|word| std::str::from_utf8(word).ok()).context("the picture is cut")?;
        word.parse::<u32>().context("the picture has no size")
    };
    let (width, height, _) = (number()?, number()?, number()?);
    let pixels = words.next().context("the picture is cut")?;
    let format = Format { base: 0, pitch: width * 4, width, height, bits: 32, colours: [(16, 8), (8, 8), (0, 8)] };
    let glyphs = Glyphs::new(format).context("the picture is of no screen")?;
    let lit = |x: usize, y: usize| pixels.get(3 * (y * width as usize + x)).is_some_and(|&red| red > 64);
    let (columns, rows) = glyphs.size();
    let row = |row| (0..columns).map(|column| glyphs.recognise(column, row, lit).map_or('?', char::from)).collect();
    Ok((0..rows).map(row).map(|text: String| text.trim_end().to_string()).filter(|text| !text.is_empty()).collect())
}
