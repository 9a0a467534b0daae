//! RFLAGS, control registers, EFER, XCR0 and debug registers (SDM vol. 3A, 2.3, 2.5, 2.6, 17.2).

bitflags::bitflags! {
    /// RFLAGS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rflags: u64 {
        /// Carry.
        const CF = 1 << 0;
        /// Bit 1, always set.
        const FIXED = 1 << 1;
        /// Parity of the low byte.
        const PF = 1 << 2;
        /// Auxiliary (nibble) carry.
        const AF = 1 << 4;
        /// Zero.
        const ZF = 1 << 6;
        /// Sign.
        const SF = 1 << 7;
        /// Single step.
        const TF = 1 << 8;
        /// Interrupts enabled.
        const IF = 1 << 9;
        /// String operations go down.
        const DF = 1 << 10;
        /// Overflow.
        const OF = 1 << 11;
        /// I/O privilege level, two bits.
        const IOPL = 3 << 12;
        /// Nested task.
        const NT = 1 << 14;
        /// Resume: no instruction breakpoint on the next instruction.
        const RF = 1 << 16;
        /// Virtual-8086 mode.
        const VM = 1 << 17;
        /// Alignment check.
        const AC = 1 << 18;
        /// Virtual interrupt flag.
        const VIF = 1 << 19;
        /// Virtual interrupt pending.
        const VIP = 1 << 20;
        /// CPUID exists.
        const ID = 1 << 21;
        /// The six flags that arithmetic sets.
        const ARITHMETIC = 0x8d5;
    }
}
/// Position of the IOPL field.
pub const IOPL_SHIFT: u32 = 12;

bitflags::bitflags! {
    /// CR0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Cr0: u64 {
        /// Protected mode.
        const PE = 1 << 0;
        /// Monitor coprocessor.
        const MP = 1 << 1;
        /// No x87.
        const EM = 1 << 2;
        /// Task switched: FPU instructions give #NM.
        const TS = 1 << 3;
        /// Extension type.
        const ET = 1 << 4;
        /// Native x87 errors.
        const NE = 1 << 5;
        /// Read-only pages bind ring 0 too.
        const WP = 1 << 16;
        /// Alignment checks possible.
        const AM = 1 << 18;
        /// Not write-through.
        const NW = 1 << 29;
        /// Cache disable.
        const CD = 1 << 30;
        /// Paging.
        const PG = 1 << 31;
    }
}

bitflags::bitflags! {
    /// CR4.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Cr4: u64 {
        /// Virtual-8086 extensions.
        const VME = 1 << 0;
        /// Protected-mode virtual interrupts.
        const PVI = 1 << 1;
        /// RDTSC only at ring 0.
        const TSD = 1 << 2;
        /// Debugging extensions: I/O breakpoints.
        const DE = 1 << 3;
        /// 4 MiB pages in 32-bit paging.
        const PSE = 1 << 4;
        /// Physical address extension.
        const PAE = 1 << 5;
        /// Machine checks.
        const MCE = 1 << 6;
        /// Global pages.
        const PGE = 1 << 7;
        /// RDPMC at any ring.
        const PCE = 1 << 8;
        /// FXSAVE and SSE.
        const OSFXSR = 1 << 9;
        /// #XM is handled.
        const OSXMMEXCPT = 1 << 10;
        /// SGDT, SIDT, SLDT, SMSW, STR only at ring 0.
        const UMIP = 1 << 11;
        /// Five-level paging.
        const LA57 = 1 << 12;
        /// VMX.
        const VMXE = 1 << 13;
        /// SMX.
        const SMXE = 1 << 14;
        /// RDFSBASE and friends.
        const FSGSBASE = 1 << 16;
        /// Process-context identifiers.
        const PCIDE = 1 << 17;
        /// XSAVE and XSETBV.
        const OSXSAVE = 1 << 18;
        /// No execution of user pages at ring 0.
        const SMEP = 1 << 20;
        /// No access to user pages at ring 0.
        const SMAP = 1 << 21;
        /// Protection keys.
        const PKE = 1 << 22;
        /// Control-flow enforcement.
        const CET = 1 << 23;
    }
}

bitflags::bitflags! {
    /// IA32_EFER.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Efer: u64 {
        /// SYSCALL.
        const SCE = 1 << 0;
        /// Long mode enabled.
        const LME = 1 << 8;
        /// Long mode active.
        const LMA = 1 << 10;
        /// No-execute.
        const NXE = 1 << 11;
        /// SVM.
        const SVME = 1 << 12;
        /// Long-mode segment limits (AMD).
        const LMSLE = 1 << 13;
        /// Fast FXSAVE (AMD).
        const FFXSE = 1 << 14;
        /// Translation-cache extension (AMD).
        const TCE = 1 << 15;
    }
}

bitflags::bitflags! {
    /// XCR0: the state components that XSAVE manages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Xcr0: u64 {
        /// x87; must be set.
        const X87 = 1 << 0;
        /// XMM registers.
        const SSE = 1 << 1;
        /// Upper halves of YMM.
        const AVX = 1 << 2;
        /// MPX bound registers.
        const BNDREGS = 1 << 3;
        /// MPX configuration.
        const BNDCSR = 1 << 4;
        /// AVX-512 opmask.
        const OPMASK = 1 << 5;
        /// Upper halves of ZMM0-15.
        const ZMM_HI256 = 1 << 6;
        /// ZMM16-31.
        const HI16_ZMM = 1 << 7;
        /// Protection-key rights.
        const PKRU = 1 << 9;
        /// AMX tile configuration.
        const TILECFG = 1 << 17;
        /// AMX tile data.
        const TILEDATA = 1 << 18;
    }
}

bitflags::bitflags! {
    /// DR6.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Dr6: u64 {
        /// Breakpoint conditions 0-3.
        const B = 0xf;
        /// Debug-register access detected.
        const BD = 1 << 13;
        /// Single step.
        const BS = 1 << 14;
        /// Task switch.
        const BT = 1 << 15;
        /// *Cleared* inside a transaction.
        const RTM = 1 << 16;
    }
}
/// DR6 with no condition pending; the bits that always read one.
pub const DR6_DEFAULT: u64 = 0xffff_0ff0;
/// DR7 with no breakpoint enabled; the bit that always reads one.
pub const DR7_DEFAULT: u64 = 0x400;
/// DR7: general detect, #DB on access to a debug register.
pub const DR7_GD: u64 = 1 << 13;
/// DR7: the local and global enable bits of all four breakpoints.
pub const DR7_ENABLE_MASK: u64 = 0xff;
/// DR7: bits that must be written as zero (11, 12, 14, 15 and the upper half).
pub const DR7_MUST_BE_ZERO: u64 = 0xffff_ffff_0000_d800;
/// DR7: the four-bit control field of breakpoint 0 (R/W in bits 0-1, length in bits 2-3).
pub const DR7_CONTROL_SHIFT: u32 = 16;
/// DR7: bits in one control field.
pub const DR7_CONTROL_SIZE: u32 = 4;
