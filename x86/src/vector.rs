//! Exception vectors (SDM vol. 3A, 6.3.1) and which of them push an error code.

/// Divide error, #DE.
pub const DE: u8 = 0;
/// Debug, #DB.
pub const DB: u8 = 1;
/// Non-maskable interrupt.
pub const NMI: u8 = 2;
/// Breakpoint, #BP.
pub const BP: u8 = 3;
/// Overflow, #OF.
pub const OF: u8 = 4;
/// BOUND range exceeded, #BR.
pub const BR: u8 = 5;
/// Invalid opcode, #UD.
pub const UD: u8 = 6;
/// Device not available, #NM.
pub const NM: u8 = 7;
/// Double fault, #DF.
pub const DF: u8 = 8;
/// Invalid TSS, #TS.
pub const TS: u8 = 10;
/// Segment not present, #NP.
pub const NP: u8 = 11;
/// Stack-segment fault, #SS.
pub const SS: u8 = 12;
/// General protection, #GP.
pub const GP: u8 = 13;
/// Page fault, #PF.
pub const PF: u8 = 14;
/// x87 floating-point error, #MF.
pub const MF: u8 = 16;
/// Alignment check, #AC.
pub const AC: u8 = 17;
/// Machine check, #MC.
pub const MC: u8 = 18;
/// SIMD floating-point exception, #XM.
pub const XM: u8 = 19;
/// Virtualization exception, #VE.
pub const VE: u8 = 20;
/// Control protection, #CP.
pub const CP: u8 = 21;
/// The vector of 32-bit Linux system calls.
pub const INT80: u8 = 0x80;
/// Number of vectors that the architecture reserves for exceptions.
pub const NR_EXCEPTIONS: u8 = 32;

/// Bit n is set if vector n pushes an error code: 8, 10-14, 17, 21.
pub const ERROR_CODE_MASK: u32 = 1 << DF | 1 << TS | 1 << NP | 1 << SS | 1 << GP | 1 << PF | 1 << AC | 1 << CP;

/// Whether the CPU pushes an error code for `vector`.
#[inline]
pub const fn has_error_code(vector: u8) -> bool {
    vector < 32 && ERROR_CODE_MASK >> vector & 1 != 0
}

/// What the exception at `vector` is called.
pub const fn name(vector: u8) -> &'static str {
    match vector {
        DE => "divide error",
        DB => "debug exception",
        NMI => "NMI",
        BP => "breakpoint",
        OF => "overflow",
        BR => "bound range exceeded",
        UD => "invalid opcode",
        NM => "device not available",
        DF => "double fault",
        TS => "invalid TSS",
        NP => "segment not present",
        SS => "stack-segment fault",
        GP => "general protection",
        PF => "page fault",
        MF => "x87 floating-point error",
        AC => "alignment check",
        MC => "machine check",
        XM => "SIMD floating-point exception",
        VE => "virtualization exception",
        CP => "control protection",
        _ => "unknown exception",
    }
}

#[cfg(test)]
mod tests {
    use super::has_error_code;

    #[test]
    fn error_code_vectors() {
        let with: [u8; 8] = [8, 10, 11, 12, 13, 14, 17, 21];
        for v in 0..=255u8 {
            assert_eq!(has_error_code(v), with.contains(&v), "vector {v}");
        }
    }
}
