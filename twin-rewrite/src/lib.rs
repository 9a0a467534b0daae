//! Untrusted host tool: driver object in, sandboxed image and manifest out.

pub mod allowed;
pub mod annotate;
pub mod asm;
mod budget;
pub mod emit;
pub mod facts;
mod flags;
pub mod frame;
mod frame_pointer;
pub mod ko;
pub mod liveness;
pub mod module;
mod operand;
pub mod options;
pub mod program;
pub mod regs;
pub mod rewrite;
mod string;
mod table;
pub mod variant;
