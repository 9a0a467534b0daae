//! One file per hardware thing.

pub mod cpu;
pub mod descriptor;
pub mod fpu;
pub mod idt;
pub mod insn;
pub mod ipi;
pub mod percpu;
pub mod reboot;
pub mod serial;
pub mod timer_hw;
pub mod tsc;
