//! Boots that cannot work: each must stop with one line that says what is wrong and why, and end the machine.

use super::{Bed, Test};
use crate::run::{ended, relative};
use anyhow::{bail, ensure, Context, Result};
use std::path::PathBuf;
use testbed::machine::{Ending, Machine};
use testbed::{host, images};

/// What to spoil, and the words that the line about it must have.
struct Case {
    name: &'static str,
    spoil: fn(&mut Machine) -> Result<()>,
    words: &'static [&'static str],
    /// Before there is a console proper it just stops, with the line as its last.
    halts: bool,
}

const CASES: &[Case] = &[
    Case { name: "no-kernel-module-is-named", spoil: no_module, words: &["module"], halts: false },
    Case { name: "a-truncated-bzimage-is-named", spoil: truncated, words: &["truncated"], halts: false },
    Case {
        name: "an-unknown-compression-is-named",
        spoil: unknown_compression,
        words: &["unknown compression"],
        halts: false,
    },
    Case { name: "damaged-kernel-data-is-named", spoil: damaged, words: &["damaged"], halts: false },
    Case { name: "an-elf-without-xen-notes-is-named", spoil: no_notes, words: &["xen", "notes"], halts: false },
    Case { name: "a-32-bit-kernel-is-named", spoil: elf32, words: &["32-bit"], halts: false },
    Case { name: "too-little-memory-is-named", spoil: little_memory, words: &["memory"], halts: false },
    Case {
        name: "an-initrd-larger-than-dom0-is-named",
        spoil: large_initrd,
        words: &["initrd|initial ram disk|ram disk"],
        halts: false,
    },
    Case { name: "contradictory-options-are-named", spoil: contradiction, words: &["dom0_mem"], halts: false },
    Case {
        name: "a-cpu-without-long-mode-is-named",
        spoil: |m| cpu(m, "qemu64,-lm"),
        words: &["long mode|64-bit|x86_64"],
        halts: true,
    },
    Case {
        name: "a-cpu-without-nx-is-named",
        spoil: |m| cpu(m, "qemu64,-nx"),
        words: &["nx|no-execute|execute-disable"],
        halts: true,
    },
    Case {
        name: "a-cpu-without-syscall-is-named",
        spoil: |m| cpu(m, "qemu64,-syscall"),
        words: &["syscall"],
        halts: false,
    },
];

pub fn tests() -> Vec<Test> {
    CASES
        .iter()
        .map(|case| Test {
            level: "boot",
            name: case.name.into(),
            long: false,
            run: Box::new(|bed| refused(bed, case)),
        })
        .collect()
}

fn refused(bed: &Bed, case: &Case) -> Result<String> {
    let mut machine = Machine::new(&format!("refuse-{}", case.name), &bed.hypervisor, &bed.images, 1, "poweroff");
    machine.timeout_s = 60;
    (case.spoil)(&mut machine)?;
    let outcome = machine.start()?.finish(|line| case.halts && says(line, case.words))?;
    ensure!(outcome.report("up").is_none(), "it booted all the same");
    let line = outcome.lines.iter().find(|line| says(line, case.words)).with_context(|| {
        let last =
            outcome.lines.iter().rev().find(|l| l.contains("panic") || l.contains("PANIC")).or(outcome.lines.last());
        format!(
            "no line with {:?}; instead: {} (log {})",
            case.words,
            last.map_or("nothing", |l| l),
            relative(&outcome.log)
        )
    })?;
    match outcome.ending {
        Ending::Reset | Ending::PowerOff => {}
        Ending::Stopped if case.halts => {}
        other => bail!("it named the cause, but then: {}", ended(&other)),
    }
    Ok(line.trim().chars().take(100).collect())
}

/// Whether one of the hypervisor's own lines says that something cannot be, with every word; `a|b` is a choice.
///
/// The echo of the options and the lists of memory and modules are not such lines.
fn says(line: &str, words: &[&str]) -> bool {
    const REFUSAL: &[&str] = &["panic on cpu", "cannot", "lacks", "not enough", "could not", "needs a cpu"];
    let line = line.to_lowercase();
    let ours = line.contains("(tdm)") || line.contains("(xen)") || line.contains("tandem");
    ours && REFUSAL.iter().any(|w| line.contains(w))
        && words.iter().all(|w| w.split('|').any(|choice| line.contains(choice)))
}

fn no_module(machine: &mut Machine) -> Result<()> {
    machine.kernel = None;
    machine.initramfs = None;
    Ok(())
}

/// Gives the machine a kernel made from `bytes`.
fn replace_kernel(machine: &mut Machine, name: &str, bytes: &[u8]) -> Result<()> {
    let path = host::target("images/spoilt")?.join(name);
    std::fs::write(&path, bytes)?;
    machine.kernel = Some(path);
    Ok(())
}

fn kernel(machine: &Machine) -> Result<Vec<u8>> {
    Ok(std::fs::read(machine.kernel.as_ref().context("no kernel")?)?)
}

fn truncated(machine: &mut Machine) -> Result<()> {
    let bytes = kernel(machine)?;
    replace_kernel(machine, "truncated", &bytes[..bytes.len() / 2])
}

fn unknown_compression(machine: &mut Machine) -> Result<()> {
    let mut bytes = kernel(machine)?;
    let at = images::elf::payload_of_bzimage(&bytes)?.start;
    bytes[at..at + 6].copy_from_slice(b"TANDEM");
    replace_kernel(machine, "compression", &bytes)
}

fn damaged(machine: &mut Machine) -> Result<()> {
    let mut bytes = kernel(machine)?;
    let payload = images::elf::payload_of_bzimage(&bytes)?;
    let at = payload.start + payload.len() / 2;
    for byte in &mut bytes[at..at + 64] {
        *byte ^= 0x5a;
    }
    replace_kernel(machine, "damaged", &bytes)
}

fn no_notes(machine: &mut Machine) -> Result<()> {
    // Any program for Linux will do.
    machine.kernel = Some(images::tools::build()?.join("nettest"));
    Ok(())
}

fn elf32(machine: &mut Machine) -> Result<()> {
    // An executable of 32 bits for the 386 with one empty segment at 1 MiB.
    let mut elf = b"\x7fELF\x01\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2, 0, 3, 0, 1, 0, 0, 0]);
    for field in [0x10_0000u32, 52, 0, 0] {
        elf.extend(field.to_le_bytes());
    }
    for field in [52u16, 32, 1, 40, 0, 0] {
        elf.extend(field.to_le_bytes());
    }
    for field in [1u32, 0, 0x10_0000, 0x10_0000, 4096, 4096, 7, 4096] {
        elf.extend(field.to_le_bytes());
    }
    elf.resize(4096, 0x90);
    replace_kernel(machine, "elf32", &elf)
}

fn little_memory(machine: &mut Machine) -> Result<()> {
    machine.memory_mib = 96;
    machine.hypervisor_args = "dom0_mem=24M dom0_max_vcpus=1 loglvl=all".into();
    Ok(())
}

fn large_initrd(machine: &mut Machine) -> Result<()> {
    let path: PathBuf = host::target("images/spoilt")?.join("large-initrd");
    std::fs::File::create(&path)?.set_len(400 << 20)?;
    machine.initramfs = Some(path);
    machine.hypervisor_args = "dom0_mem=300M,max:300M dom0_max_vcpus=1 loglvl=all".into();
    Ok(())
}

fn contradiction(machine: &mut Machine) -> Result<()> {
    machine.hypervisor_args = "dom0_mem=min:700M,max:300M dom0_max_vcpus=1 loglvl=all".into();
    Ok(())
}

fn cpu(machine: &mut Machine, model: &str) -> Result<()> {
    machine.cpu_model = Some(model.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_of_the_hypervisors_own_counts() {
        assert!(says("(TDM) PANIC on CPU 0: image is truncated: it ends before payload", &["truncated"]));
        assert!(!says("Linux says truncated, cannot boot", &["truncated"]));
        assert!(!says("(TDM) Loader: qemu; options: dom0_mem=1G", &["dom0_mem"]));
        assert!(!says("(TDM) Module 0: 8053 KiB at 0x28e000 ''", &["module"]));
        assert!(!says("(TDM) Memory: 95 MiB, 73 MiB free", &["memory"]));
        assert!(says("(TDM) CPU lacks no-execute", &["cpu", "nx|no-execute"]));
    }
}
