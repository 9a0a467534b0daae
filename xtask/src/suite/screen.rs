//! What is on the screen of a machine without a serial line: why a boot failed, and dom0's console afterwards.

use super::{Bed, Body, Test};
use crate::screens::{has, Boot, Course, Firmware, Seen, FAILURE, OF_DOM0, OF_PROGRAMS, TO_HYPERVISOR};
use anyhow::{ensure, Result};

pub fn tests() -> Vec<Test> {
    let test = |name: &str, run: Body| Test { level: "linux", name: name.into(), long: false, run };
    let mut tests = vec![
        test("the-screen-shows-why-a-bios-boot-fails", Box::new(|bed| failure(bed, Firmware::BiosPixels))),
        test("the-screen-shows-why-a-bios-boot-in-text-mode-fails", Box::new(|bed| failure(bed, Firmware::Bios))),
        test("the-screen-shows-why-a-uefi-boot-fails", Box::new(|bed| failure(bed, Firmware::Uefi))),
    ];
    for (firmware, words) in [
        (Firmware::Bios, "text-mode"),
        (Firmware::BiosPixels, "bios-frame-buffer"),
        (Firmware::Uefi, "uefi-frame-buffer"),
    ] {
        tests.push(test(
            &format!("the-screen-becomes-dom0s-in-a-{words}"),
            Box::new(move |bed| dom0s(bed, firmware, Course::HandsOver)),
        ));
        tests.push(test(
            &format!("the-screen-is-kept-beside-dom0-in-a-{words}"),
            Box::new(move |bed| dom0s(bed, firmware, Course::Keeps)),
        ));
    }
    tests
}

fn failure(bed: &Bed, firmware: Firmware) -> Result<String> {
    let boot = Boot { images: &bed.images, hypervisor: &bed.hypervisor, firmware, course: Course::Fails };
    let seen = boot.look(|seen| has(&seen.hypervisor, FAILURE), None)?;
    ensure!(has(&seen.hypervisor, FAILURE), "the screen shows: {}", seen.hypervisor.join(" | "));
    Ok(FAILURE.into())
}

/// dom0's console is on the screen; what dom0 writes to the hypervisor's is there only if the hypervisor keeps the
/// screen. Then older rows are of both.
fn dom0s(bed: &Bed, firmware: Firmware, course: Course) -> Result<String> {
    let boot = Boot { images: &bed.images, hypervisor: &bed.hypervisor, firmware, course };
    let is_dom0s = |seen: &Seen| has(&seen.dom0, OF_DOM0);
    let seen = boot.look(is_dom0s, None)?;
    ensure!(
        is_dom0s(&seen),
        "dom0 is not on the screen, which shows: {} | {}",
        seen.dom0.join(" | "),
        seen.hypervisor.join(" | ")
    );
    ensure!(course == Course::Keeps || has(&seen.dom0, OF_PROGRAMS), "dom0's programs have another console");
    let is_kept = has(&seen.hypervisor, TO_HYPERVISOR);
    ensure!(
        is_kept == (course == Course::Keeps),
        "the hypervisor {} it",
        if is_kept { "still writes to" } else { "lost" }
    );
    Ok(format!("dom0 shows {} rows", seen.dom0.len()))
}
