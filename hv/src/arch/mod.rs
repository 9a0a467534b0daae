//! One file per hardware thing.

pub mod insn;
pub mod ipi;
pub mod reboot;
pub mod serial;
