//! Test kernels whose devices are behind an IOMMU: its tables follow what domain 0 may reach, and say where interrupts
//! go; what works without them works with them.

use super::{Bed, Test};
use testbed::guests::{self, Wishes};
use testbed::machine::{AMD_VI, IOMMU};

/// Those that get memory, map others' and give it away, or have interrupts, and their IOMMUs.
const KERNELS: &[(&str, &str, &str)] = &[
    ("domains-again", "vtd", IOMMU),
    ("grant-replacement", "vtd", IOMMU),
    ("grants", "vtd", IOMMU),
    ("grants", "amd-vi", AMD_VI),
    ("interrupt-affinity", "vtd", IOMMU),
    ("interrupt-affinity", "amd-vi", AMD_VI),
    ("memory-operations", "vtd", IOMMU),
    ("memory-operations", "amd-vi", AMD_VI),
    ("page-transfer", "vtd", IOMMU),
    ("pinning", "vtd", IOMMU),
    ("snapshots", "vtd", IOMMU),
    ("withdrawn-registers", "vtd", IOMMU),
];

pub fn tests() -> Vec<Test> {
    let test = |&(kernel, unit, device)| {
        let name = format!("{unit}-guest-{kernel}");
        let run = Box::new({
            let name = name.clone();
            move |bed: &Bed| behind(bed, &name, kernel, device)
        });
        Test { level: "guests", name, long: false, run }
    };
    KERNELS.iter().map(test).collect()
}

fn behind(bed: &Bed, name: &str, kernel: &str, device: &'static str) -> anyhow::Result<String> {
    let guest = guests::named(kernel)?;
    let mut machine = guest.machine(&bed.hypervisor, Wishes { iommu: Some(device), ..Wishes::default() })?;
    machine.name = name.into();
    guest.judge_on(&machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_behind_an_iommu_exists() {
        for (kernel, ..) in KERNELS {
            guests::named(kernel).unwrap();
        }
    }
}
