//! Emulation of the few instructions that a PV guest cannot execute itself.
//!
//! - [`privileged`]: after #GP, or #UD with the forced-emulation prefix: I/O, CPUID, MSRs, control and debug registers.
//! - [`memory_write`]: after a write #PF on a page table that the guest may only read (writable page tables), and on
//!   read-only I/O pages.
//!
//! There is no general emulator. [`decode`] knows the opcodes that the two need and refuses everything else; what is
//! refused reaches the guest as the fault that it was. Nothing here touches memory or hardware: instruction bytes,
//! segment bases and the effects go through traits.

pub mod alu;
pub mod decode;
pub mod gpr;
pub mod memory_write;
pub mod privileged;

#[cfg(any(test, feature = "fuzzing"))]
pub mod oracle;

use x86::descriptor::{Descriptor, DESC_CODE, DESC_DB, DESC_L};
use x86::error_code::PageFaultError;
use x86::vector;

/// Longest instruction that the architecture allows.
pub const MAX_INSTRUCTION_BYTES: usize = 15;

/// Instruction bytes, as many as could be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fetched {
    /// The bytes from the instruction pointer on.
    pub bytes: [u8; 16],
    /// How many of them are valid. Fewer than 15 means that reading the next one faults.
    pub len: usize,
}

/// How the code segment makes the CPU decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit.
    Long,
    /// 32-bit code, in segments in which offsets are linear addresses.
    Compat32,
}

impl Mode {
    /// How the CPU decodes code of the segment `code`, with DS, ES and SS as `data` says. `None` for what is not
    /// emulated: 16-bit code, and 32-bit code with a segment in which an offset is no linear address. Neither its
    /// instructions nor its operands are where they would be looked for, and what its segments' limits keep it from it
    /// would reach.
    pub fn of(code: Descriptor, data: impl FnOnce() -> [Descriptor; 3]) -> Option<Self> {
        let is_code = code.is_present() && code.is_code_or_data() && code.0 & DESC_CODE != 0;
        match code.0 & (DESC_L | DESC_DB) {
            DESC_L if is_code => Some(Self::Long),
            DESC_DB if is_code && code.is_flat() => {
                data().iter().all(|d| d.is_flat() && d.is_writable_data()).then_some(Self::Compat32)
            }
            _ => None,
        }
    }
}

/// A segment register, numbered as in instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "register names")]
pub enum Segment {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
}

/// An exception to be delivered to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Vector.
    pub vector: u8,
    /// Error code; 0 for vectors that have none.
    pub error_code: u32,
    /// Faulting address of a #PF, else 0.
    pub cr2: u64,
}

impl Fetched {
    /// The first 15 of `bytes`, as if reading beyond them faulted.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut f = Self { len: bytes.len().min(MAX_INSTRUCTION_BYTES), ..Self::default() };
        f.bytes[..f.len].copy_from_slice(&bytes[..f.len]);
        f
    }
}

impl Exception {
    /// #GP(0).
    pub const GP: Self = Self { vector: vector::GP, error_code: 0, cr2: 0 };
    /// #UD.
    pub const UD: Self = Self { vector: vector::UD, error_code: 0, cr2: 0 };

    /// #PF at `addr` while reading an instruction. Presence is not known here; the guest looks for itself.
    pub const fn fetch_fault(addr: u64) -> Self {
        Self::page_fault(addr, PageFaultError::I.bits())
    }
    /// #PF at `addr` with `error_code`; the U bit is set on delivery.
    pub const fn page_fault(addr: u64, error_code: u32) -> Self {
        Self { vector: vector::PF, error_code, cr2: addr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x86::descriptor::{DESC_CONFORMING, DESC_G, DESC_P, DESC_WRITABLE};

    const FLAT: [Descriptor; 3] = [Descriptor::USER_DATA; 3];

    #[test]
    fn code_of_64_bits_has_no_segments() {
        let no_data = || unreachable!("64-bit mode ignores them");
        assert_eq!(Mode::of(Descriptor::USER_CODE64, no_data), Some(Mode::Long));
        assert_eq!(Mode::of(Descriptor(Descriptor::USER_CODE64.0 | 0x1234 << 16), no_data), Some(Mode::Long));
    }

    #[test]
    fn code_of_32_bits_is_emulated_where_its_offsets_are_linear_addresses() {
        let code = Descriptor::USER_CODE32;
        assert_eq!(Mode::of(code, || FLAT), Some(Mode::Compat32));
        // A base, a limit: of the code, or of any data.
        for bits in [0x1000 << 16, 1 << 56, 1, DESC_G, DESC_P] {
            assert_eq!(Mode::of(Descriptor(code.0 ^ bits), || FLAT), None, "code, {bits:#x}");
        }
        for bits in [0x1000 << 16, 1 << 56, 1, DESC_G, DESC_P, DESC_WRITABLE, DESC_CONFORMING] {
            for n in 0..3 {
                let mut data = FLAT;
                data[n].0 ^= bits;
                assert_eq!(Mode::of(code, || data), None, "data {n}, {bits:#x}");
            }
        }
        assert_eq!(Mode::of(code, || [Descriptor::NULL, Descriptor::USER_DATA, Descriptor::USER_DATA]), None);
    }

    #[test]
    fn other_code_is_not_emulated() {
        let code = Descriptor::USER_CODE32.0;
        for other in [code & !DESC_DB, code | DESC_L, Descriptor::USER_DATA.0, 0] {
            assert_eq!(Mode::of(Descriptor(other), || FLAT), None, "{other:#x}");
        }
    }
}
