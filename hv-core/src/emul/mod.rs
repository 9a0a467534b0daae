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
    /// 32-bit code in a flat segment.
    Compat32,
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
