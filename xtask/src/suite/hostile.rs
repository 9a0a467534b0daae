//! Hostile domains beside dom0: a tiny kernel of `guests/` that does random operations, made by stock `xl`.
//!
//! The checks are `images/xen/tests/hostile.sh`. `--operations` and `--seed` say how many and which.

use super::passthrough::EDU;
use super::xl::{judge_but, model_with_avx, STOPPED};
use super::{Bed, Test};
use anyhow::Result;
use testbed::machine::{Machine, IOMMU};

/// Operations of each domain, if nothing else is asked for.
const OPERATIONS: (u64, u64) = (30_000, 10_000_000);
/// Operations a second at least, on a slow host.
const PER_S: u64 = 500;
/// A hostile domain may do what ends it. How often is for the checks to judge.
const RECKLESS: &[&str] = &["crashed"];

pub fn tests() -> Vec<Test> {
    let test = |name: &str, device: Option<&'static str>| Test {
        level: "xl",
        name: name.into(),
        long: false,
        run: Box::new(move |bed| beside_dom0(bed, device)),
    };
    vec![test("a-hostile-domain-harms-nobody", None), test("a-hostile-driver-domain-harms-nobody", Some(EDU))]
}

fn beside_dom0(bed: &Bed, device: Option<&'static str>) -> Result<String> {
    let operations = bed.operations.unwrap_or(if bed.full { OPERATIONS.1 } else { OPERATIONS.0 });
    let seed = bed.seed.unwrap_or(1);
    let (name, kind) = if device.is_some() { ("xl-hostile-driver", ":device") } else { ("xl-hostile", "") };
    let jobs = format!("toolstack+xl:hostile:{operations}:{seed}{kind}+poweroff");
    let mut machine = Machine::with_guests(name, &bed.hypervisor, &bed.toolstack()?, 1, &jobs);
    machine.cpus = 2;
    machine.cpu_model = model_with_avx(&bed.hypervisor);
    if let Some(device) = device {
        machine.chipset = "q35";
        machine.devices = vec![IOMMU, device];
    }
    machine.timeout_s = 900 + operations / PER_S;
    let of_its_device = if device.is_some() { STOPPED } else { &[] };
    let said = judge_but(bed, &machine.start()?.finish(|_| false)?, &[RECKLESS, of_its_device].concat())?;
    Ok(format!("{said}, twice {operations} operations, seed {seed}"))
}
