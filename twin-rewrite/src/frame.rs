//! The stack frame of a function: which of it stays on the protected stack and which moves to the unsafe area.
//!
//! A variable whose address is taken must be reachable through ordinary pointers. Where it ends is not known, so
//! everything from the lowest address taken up to the saved registers moves. Compilers that protect the stack put such
//! variables highest, next to the canary, so little else moves with them.

use crate::program::{Body, Flow, Node};
use crate::regs::number;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// How the frame is laid out.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Offsets below the return address up to this one are in the unsafe area (0: none).
    pub unsafe_below: i64,
    /// Slots (offset below the return address) that hold a canary; they stay.
    pub canaries: BTreeSet<i64>,
    /// Words of stack arguments used.
    pub stack_args: u32,
}

/// Where a stack operand lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the protected stack.
    Stack,
    /// In the unsafe area.
    Unsafe,
}

impl Layout {
    /// Looks at all stack operands of `body`. An error names the instruction.
    pub fn of(body: &Body) -> Result<Self, (u64, String)> {
        let mut out = Self::default();
        let mut canary: Option<Register> = None;
        for (address, n) in &body.nodes {
            let i = &n.instruction;
            if n.dropped {
                continue;
            }
            if is_canary_load(i) {
                canary = Some(i.op0_register());
                continue;
            }
            if let (Some(r), Mnemonic::Mov, OpKind::Memory) =
                (canary, i.mnemonic(), i.op_kinds().next().unwrap_or(OpKind::Register))
            {
                if i.op1_kind() == OpKind::Register && i.op1_register() == r && i.memory_base() == Register::RSP {
                    out.canaries.insert(below(n));
                    canary = None;
                    continue;
                }
            }
            if let Some(taken) = address_taken(n) {
                if taken <= 0 {
                    return Err((*address, "takes the address of a stack argument".into()));
                }
                out.unsafe_below = out.unsafe_below.max(taken);
            }
            if is_stack_operand(i) && i.mnemonic() != Mnemonic::Lea {
                out.argument(n, *address)?;
            }
        }
        Ok(out)
    }

    fn argument(&mut self, n: &Node, address: u64) -> Result<(), (u64, String)> {
        let above = -below(n);
        let size = n.instruction.memory_size().size() as i64;
        if above < 0 {
            return Ok(());
        }
        if above < 8 {
            return Err((address, "touches its return address".into()));
        }
        let words = (above - 8 + size + 7) / 8;
        self.stack_args = self.stack_args.max(u32::try_from(words).unwrap_or(u32::MAX));
        if self.stack_args > 16 {
            return Err((address, "too many stack arguments".into()));
        }
        Ok(())
    }

    /// Where the stack operand of `n` lies.
    pub fn place(&self, n: &Node) -> Place {
        let at = below(n);
        if at > 0 && at <= self.unsafe_below && !self.canaries.contains(&at) {
            Place::Unsafe
        } else {
            Place::Stack
        }
    }
}

/// Distance of the stack operand below the return address; negative or zero: above.
pub fn below(n: &Node) -> i64 {
    i64::from(n.depth) - n.instruction.memory_displacement64() as i64
}

/// Whether the memory operand is relative to the stack pointer.
pub fn is_stack_operand(i: &Instruction) -> bool {
    i.memory_base() == Register::RSP && (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::Memory)
}

/// The read of the stack canary.
pub fn is_canary_load(i: &Instruction) -> bool {
    const CANARY: u64 = 0x28;
    let memory = i.op_count() == 2 && i.op1_kind() == OpKind::Memory && i.segment_prefix() == Register::GS;
    memory
        && i.memory_displacement64() == CANARY
        && i.memory_index() == Register::None
        && matches!(i.memory_base(), Register::None | Register::RIP)
        && i.op0_register().is_gpr64()
}

/// The distance below the return address of a stack address that the instruction makes into a value.
fn address_taken(n: &Node) -> Option<i64> {
    let i = &n.instruction;
    if n.flow != Flow::Next {
        return None;
    }
    let indexed = is_stack_operand(i) && i.memory_index() != Register::None;
    if is_stack_operand(i) && (i.mnemonic() == Mnemonic::Lea || indexed) {
        return (i.op0_kind() != OpKind::Register || i.op0_register() != Register::RSP).then(|| below(n));
    }
    let copies = i.mnemonic() == Mnemonic::Mov && i.op1_kind() == OpKind::Register && i.op1_register() == Register::RSP;
    copies.then(|| i64::from(n.depth))
}

/// Whether the instruction reads the stack pointer as a value in a way that the rewriter cannot follow.
pub fn misuses_stack_pointer(i: &Instruction) -> bool {
    let plain = matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Pop);
    let adjusts = matches!(i.mnemonic(), Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea);
    (0..i.op_count()).any(|k| {
        let here = i.op_kind(k) == OpKind::Register && number(i.op_register(k)) == Some(crate::regs::RSP);
        let usual = match k {
            0 => adjusts,
            1 => i.mnemonic() == Mnemonic::Mov,
            _ => false,
        };
        here && !usual && !plain
    }) || i.memory_index() == Register::RSP
}
