//! Firmware that does what firmware must not do: `guests/firmware`, a boot loader that pretends to be UEFI.

use crate::guests::Guest;
use crate::host;
use crate::machine::{Hypervisor, Machine};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// What its clock does wrong when it is called, by number; 0 does nothing wrong.
pub const FAULTS: std::ops::Range<u32> = 0..12;
/// Those that end the call.
pub const ENDING: std::ops::Range<u32> = 1..11;
/// It never comes back, and does no harm.
pub const ENDLESS: u32 = 12;

/// Compiles it with the host's gcc.
fn build() -> Result<PathBuf> {
    let source = host::root().join("guests/firmware");
    let output = host::target("guests")?.join("firmware.loader");
    let fresh = output.with_extension(format!("{:?}", std::thread::current().id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-m32", "-O1", "-fno-tree-loop-distribute-patterns", "-Wall", "-Wextra", "-Werror", "-ffreestanding"])
        .args(["-fno-pic", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fcf-protection=none"])
        .args(["-mgeneral-regs-only", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"])
        .args(["-Wl,--no-warn-rwx-segments", &format!("-Wl,-T,{}", source.join("loader.ld").display())])
        .args(["start.S", "loader.c"].map(|file| source.join(file)))
        .arg("-o")
        .arg(&fresh);
    host::run(&mut gcc).context("the faulty firmware does not compile")?;
    std::fs::rename(&fresh, &output)?;
    Ok(output)
}

/// Has `machine`, which boots `guest` on Tandem, do so with this firmware.
pub fn install(machine: &mut Machine, guest: &Guest, fault: u32) -> Result<()> {
    let Hypervisor::Elf(tandem) = &machine.hypervisor else { anyhow::bail!("there is no hypervisor") };
    machine.name = format!("faulty-firmware-{}-{fault}", guest.name);
    machine.kernel_args += &format!(" faulty={fault}");
    machine.initramfs = Some(tandem.clone());
    machine.hypervisor = Hypervisor::Elf(build()?);
    Ok(())
}
