//! Numbers and bits of model-specific registers (SDM vol. 4, chapter 2; AMD APM vol. 2, appendix A).
#![allow(missing_docs, reason = "the manuals' names")]

pub const TSC: u32 = 0x10;
pub const PLATFORM_ID: u32 = 0x17;
pub const APIC_BASE: u32 = 0x1b;
pub const FEATURE_CONTROL: u32 = 0x3a;
pub const TSC_ADJUST: u32 = 0x3b;
pub const SPEC_CTRL: u32 = 0x48;
pub const PRED_CMD: u32 = 0x49;
pub const UCODE_WRITE: u32 = 0x79;
pub const UCODE_REV: u32 = 0x8b;
pub const CORE_CAPABILITIES: u32 = 0xcf;
pub const PLATFORM_INFO: u32 = 0xce;
pub const MTRR_CAP: u32 = 0xfe;
pub const ARCH_CAPABILITIES: u32 = 0x10a;
pub const FLUSH_CMD: u32 = 0x10b;
pub const MCU_OPT_CTRL: u32 = 0x123;
pub const MISC_FEATURES_ENABLES: u32 = 0x140;
pub const SYSENTER_CS: u32 = 0x174;
pub const SYSENTER_ESP: u32 = 0x175;
pub const SYSENTER_EIP: u32 = 0x176;
pub const MCG_CAP: u32 = 0x179;
pub const MCG_STATUS: u32 = 0x17a;
pub const MCG_CTL: u32 = 0x17b;
pub const PERF_STATUS: u32 = 0x198;
pub const PERF_CTL: u32 = 0x199;
pub const THERM_CONTROL: u32 = 0x19a;
pub const MISC_ENABLE: u32 = 0x1a0;
pub const DEBUGCTL: u32 = 0x1d9;
pub const MTRR_PHYSBASE0: u32 = 0x200;
pub const PAT: u32 = 0x277;
pub const MTRR_DEF_TYPE: u32 = 0x2ff;
/// First machine-check bank register (MC0_CTL); four per bank.
pub const MC0_CTL: u32 = 0x400;
pub const X2APIC_FIRST: u32 = 0x800;
pub const X2APIC_LAST: u32 = 0x8ff;
pub const XSS: u32 = 0xda0;
pub const EFER: u32 = 0xc000_0080;
pub const STAR: u32 = 0xc000_0081;
pub const LSTAR: u32 = 0xc000_0082;
pub const CSTAR: u32 = 0xc000_0083;
pub const SYSCALL_MASK: u32 = 0xc000_0084;
pub const FS_BASE: u32 = 0xc000_0100;
pub const GS_BASE: u32 = 0xc000_0101;
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
pub const TSC_AUX: u32 = 0xc000_0103;
pub const K7_EVNTSEL0: u32 = 0xc001_0000;
pub const K7_EVNTSEL3: u32 = 0xc001_0003;
pub const K7_PERFCTR0: u32 = 0xc001_0004;
pub const K7_PERFCTR3: u32 = 0xc001_0007;
pub const K8_SYSCFG: u32 = 0xc001_0010;
pub const K8_HWCR: u32 = 0xc001_0015;
pub const AMD64_NB_CFG: u32 = 0xc001_001f;
pub const AMD64_PATCHLOADER: u32 = 0xc001_0020;
/// What bank 4 neither logs nor reports, whatever its control register says, on AMD's family 10h and later ones.
pub const AMD64_MC4_MASK: u32 = 0xc001_0048;
pub const K8_INT_PENDING_MSG: u32 = 0xc001_0055;
pub const FAM15H_PERFCTL0: u32 = 0xc001_0200;
pub const FAM15H_PERFCTR5: u32 = 0xc001_020b;
pub const AMD64_DE_CFG: u32 = 0xc001_1029;
pub const AMD64_DR1_ADDRESS_MASK: u32 = 0xc001_1019;
pub const AMD64_DR3_ADDRESS_MASK: u32 = 0xc001_101b;
pub const AMD64_DR0_ADDRESS_MASK: u32 = 0xc001_1027;

/// APIC_BASE: this is the bootstrap processor.
pub const APIC_BASE_BSP: u64 = 1 << 8;
/// APIC_BASE: x2APIC mode.
pub const APIC_BASE_X2APIC: u64 = 1 << 10;
/// APIC_BASE: the local APIC is on.
pub const APIC_BASE_ENABLE: u64 = 1 << 11;
/// FEATURE_CONTROL: may not be written any more.
pub const FEATURE_CONTROL_LOCK: u64 = 1 << 0;
/// MISC_ENABLE: performance monitoring available.
pub const MISC_ENABLE_PERF_AVAIL: u64 = 1 << 7;
/// MISC_ENABLE: branch trace storage unavailable.
pub const MISC_ENABLE_BTS_UNAVAIL: u64 = 1 << 11;
/// MISC_ENABLE: PEBS unavailable.
pub const MISC_ENABLE_PEBS_UNAVAIL: u64 = 1 << 12;
/// MISC_ENABLE: MONITOR/MWAIT enabled.
pub const MISC_ENABLE_MONITOR: u64 = 1 << 18;
/// DE_CFG: LFENCE serialises.
pub const DE_CFG_LFENCE_SERIALISE: u64 = 1 << 1;
/// PLATFORM_INFO: CPUID faulting is available.
pub const PLATFORM_INFO_CPUID_FAULTING: u64 = 1 << 31;
/// MISC_FEATURES_ENABLES: CPUID faults outside ring 0.
pub const MISC_FEATURES_CPUID_FAULTING: u64 = 1 << 0;

/// The page-attribute table that the hypervisor gives every CPU and every guest sees: WB, WT, UC-, UC, WC, WP, UC, UC.
pub const PAT_XEN: u64 = 0x0000_0501_0007_0406;
