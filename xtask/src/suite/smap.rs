//! SMEP, SMAP and UMIP on the processor of QEMU 10: they are on, or off if the user says so, and what works without
//! works with.

use super::{clean, Bed, Test};
use crate::run::each_works;
use anyhow::{bail, ensure, Context, Result};
use std::time::Duration;
use testbed::guests;
use testbed::machine::{Ending, Machine, Qemu};

/// Bits of CR4 (SDM vol. 3A, 2.5).
const CR4_UMIP: u64 = 1 << 11;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

/// Test kernels that come into the hypervisor, and have it touch their memory, in every way.
const KERNELS: &[&str] = &[
    "alignment-flag",
    "bad-pointers",
    "descriptor-stores",
    "exceptions",
    "extended-state",
    "grants",
    "iret-modes",
    "multicall",
    "page-faults",
    "random-operations",
    "second-vcpu",
    "string-io",
    "trap-frame",
    "user-mode",
    "writable-page-tables",
];

pub fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test {
            level: "linux",
            name: "debian-boots-with-smep-smap-and-umip".into(),
            long: false,
            run: Box::new(|bed| boots(bed, "smap-on", "", CR4_SMEP | CR4_SMAP | CR4_UMIP)),
        },
        Test {
            level: "linux",
            name: "debian-boots-without-smep-smap-and-umip".into(),
            long: false,
            run: Box::new(|bed| boots(bed, "smap-off", " smep=hvm smap=0 umip=no", 0)),
        },
    ];
    tests.extend(KERNELS.iter().map(|name| Test {
        level: "guests",
        name: format!("smap-guest-{name}"),
        long: false,
        run: Box::new(|bed| guests::named(name)?.judge(&bed.hypervisor, Qemu::Ten)),
    }));
    tests
}

/// Debian boots, and every CPU then has `expected` of the three bits in CR4, as seen by QEMU.
fn boots(bed: &Bed, name: &str, options: &str, expected: u64) -> Result<String> {
    let mut machine = Machine::new(name, &bed.hypervisor, &bed.images, 2, "cpus+pin+poweroff");
    machine.qemu = Qemu::Ten;
    machine.hypervisor_args += options;
    let running = machine.start()?;
    let monitor = running.monitor();
    let mut seen = None;
    let outcome = running.finish(|line| {
        if line.contains("TANDEM: pin ") {
            seen = Some(monitor.ask("info registers -a", Duration::from_secs(20)));
        }
        false
    })?;
    each_works(&outcome, machine.cpus)?;
    clean(&outcome, &Ending::PowerOff)?;
    let registers = seen.context("work pinned to each CPU did not finish")??;
    let found = cr4s(&registers)?;
    ensure!(found.len() == 2, "QEMU shows {} CPUs", found.len());
    for cr4 in found {
        let bits = cr4 & (CR4_SMEP | CR4_SMAP | CR4_UMIP);
        ensure!(bits == expected, "CR4 is {cr4:#x}: of SMEP, SMAP and UMIP it has {bits:#x} instead of {expected:#x}");
    }
    Ok(format!("{expected:#x} of CR4 on each CPU"))
}

/// CR4 of each CPU in what QEMU's monitor says about registers.
fn cr4s(registers: &str) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for (_, rest) in registers.match_indices("CR4=").map(|(at, key)| registers.split_at(at + key.len())) {
        let Some(digits) = rest.get(..8) else { bail!("the answer is cut short") };
        found.push(u64::from_str_radix(digits, 16).with_context(|| format!("CR4 is `{digits}`"))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cr4_of_each_cpu_is_found() {
        let said = r"CPU#0\r\nCR0=80050033 CR2=00 CR3=01 CR4=00350ef0\r\nCPU#1\r\nCR4=00000020 DR0=0";
        assert_eq!(cr4s(said).unwrap(), [0x35_0ef0, 0x20]);
        assert!(cr4s("CR4=0035").is_err());
    }

    #[test]
    fn every_kernel_named_here_exists() {
        for name in KERNELS {
            guests::named(name).unwrap();
        }
    }
}
