//! What the processor must have.

use super::HostCpuid;
use x86::cpuid::{feature, CpuidRegs, Feature, Reg, WORD_SOURCE};

/// Features without which the hypervisor cannot run, and what each is needed for.
pub const REQUIRED: &[(Feature, &str)] = &[
    (feature::FPU, "FPU (x87 state of guests)"),
    (feature::TSC, "TSC (system time)"),
    (feature::MSR, "MSR (RDMSR and WRMSR)"),
    (feature::PAE, "PAE (four-level paging)"),
    (feature::CX8, "CX8 (CMPXCHG8B, page-table updates)"),
    (feature::APIC, "APIC (local interrupt controller)"),
    (feature::PGE, "PGE (global pages)"),
    (feature::CMOV, "CMOV"),
    (feature::PAT, "PAT (memory types)"),
    (feature::FXSR, "FXSR (FXSAVE and FXRSTOR)"),
    (feature::SSE, "SSE"),
    (feature::SSE2, "SSE2 (64-bit guests)"),
    (feature::SYSCALL, "SYSCALL (hypercalls)"),
    (feature::NX, "NX (no-execute pages; is it off in the firmware's settings?)"),
    (feature::LM, "LM (long mode)"),
];

/// The first required feature that the processor lacks; worth one line on the console and a stop.
pub fn missing_feature(host: &impl HostCpuid) -> Option<&'static str> {
    let max_extended = host.cpuid(0x8000_0000, 0).eax;
    REQUIRED.iter().find_map(|&(f, name)| {
        let (leaf, subleaf, reg) = *WORD_SOURCE.get(f.word())?;
        let readable = leaf < 0x8000_0000 || leaf <= max_extended;
        let r = if readable { host.cpuid(leaf, subleaf) } else { CpuidRegs::ZERO };
        let word = match reg {
            Reg::Eax => r.eax,
            Reg::Ebx => r.ebx,
            Reg::Ecx => r.ecx,
            Reg::Edx => r.edx,
        };
        (word & f.mask() == 0).then_some(name)
    })
}
