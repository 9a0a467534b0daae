//! Says at boot which known weaknesses this CPU has and what is done about them. Honest rather than reassuring: a
//! weakness that nothing is done about is named. So is DMA, which nothing confines yet.

use crate::cpu::{cpuid, rdmsr};
use crate::{info, warn};
use alloc::string::String;
use x86::msr;

const FEATURE_RTM: u32 = 1 << 11;
const FEATURE_ARCH_CAPABILITIES: u32 = 1 << 29;

/// Bits of IA32_ARCH_CAPABILITIES that say "not affected".
const RDCL_NO: u64 = 1 << 0;
const SSB_NO: u64 = 1 << 4;
const MDS_NO: u64 = 1 << 5;
const TAA_NO: u64 = 1 << 8;
const FBSDP_NO: u64 = 1 << 14;
const RRSBA: u64 = 1 << 19;
const GDS_NO: u64 = 1 << 26;
const RFDS_NO: u64 = 1 << 27;

/// Prints the lines.
pub fn report() {
    let vendor = cpuid(0, 0);
    let is_intel = vendor.ebx == u32::from_le_bytes(*b"Genu");
    let is_amd = vendor.ebx == u32::from_le_bytes(*b"Auth");
    let structured = if vendor.eax >= 7 { cpuid(7, 0) } else { Default::default() };
    let has_capabilities = structured.edx & FEATURE_ARCH_CAPABILITIES != 0;
    let capabilities = if has_capabilities { rdmsr(msr::ARCH_CAPABILITIES) } else { 0 };
    let lacks = |bit: u64| capabilities & bit == 0;
    let family = family();

    let known = [
        ("Spectre v1", true),
        ("Spectre v2", true),
        ("Meltdown", is_intel && lacks(RDCL_NO)),
        ("L1TF", is_intel && lacks(RDCL_NO)),
        ("SSB", lacks(SSB_NO)),
        ("MDS", is_intel && lacks(MDS_NO)),
        ("TAA", is_intel && structured.ebx & FEATURE_RTM != 0 && lacks(TAA_NO)),
        ("MMIO stale data", is_intel && lacks(FBSDP_NO)),
        ("GDS", is_intel && lacks(GDS_NO)),
        ("RFDS", is_intel && has_capabilities && lacks(RFDS_NO)),
        ("Retbleed", is_intel && !lacks(RRSBA) || is_amd && (0x15..=0x17).contains(&family)),
        ("SRSO", is_amd && (0x17..=0x19).contains(&family)),
    ];
    let mut affected = String::new();
    for (name, _) in known.into_iter().filter(|(_, is_affected)| *is_affected) {
        if !affected.is_empty() {
            affected.push_str(", ");
        }
        affected.push_str(name);
    }
    info!("CPU: family {family:#x}, isolation by paging with NX; guests run in ring 3");
    warn!("Side channels without mitigation on this CPU: {affected}");
}

/// Family with its extension.
fn family() -> u32 {
    let signature = cpuid(1, 0).eax;
    match signature >> 8 & 15 {
        15 => 15 + (signature >> 20 & 0xff),
        base => base,
    }
}
