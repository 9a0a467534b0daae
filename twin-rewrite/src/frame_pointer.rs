//! Functions with a frame pointer are brought into the form without one.
//!
//! A few functions address their frame through rbp (or through r10 where the compiler realigns the stack). The distance
//! of these registers from the stack pointer is a constant of each place, so the operands are re-based on rsp. The
//! realignment itself is dropped: kernel code uses no instruction that needs an aligned stack.

use crate::asm::{self, memory};
use crate::regs::{number, RegSet, RSP};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

const RBP: u8 = 5;
const R10: u8 = 10;

/// What is known on the way through such a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frames {
    /// Value of rbp and of r10, relative to where the return address lies.
    known: [Option<i64>; 2],
    /// What r10 was made to be; it is so again after it was saved and restored.
    r10: Option<i64>,
    /// Callee-saved registers pushed, with the depth behind the push.
    pushed: Vec<(u32, u8)>,
}

/// What an instruction becomes.
#[derive(Debug, Clone)]
pub struct Replaced {
    /// New instructions; none if nothing is left to do.
    pub by: Vec<Instruction>,
    /// Depth behind it.
    pub depth: u32,
}

/// Whether the instruction shows that its function has a frame pointer.
pub fn is_sign(i: &Instruction) -> bool {
    let moves_stack = i.op_count() > 0 && i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    match i.mnemonic() {
        Mnemonic::Leave => true,
        Mnemonic::And => moves_stack,
        Mnemonic::Lea => moves_stack && i.memory_base() != Register::RSP,
        _ => false,
    }
}

impl Frames {
    fn slot(r: u8) -> Option<usize> {
        [RBP, R10].iter().position(|x| *x == r)
    }

    fn of(&self, r: Register) -> Option<i64> {
        self.known[Self::slot(number(r).filter(|_| r.is_gpr64())?)?]
    }

    /// Follows one instruction; `None` if it stays as it is.
    pub fn follow(&mut self, i: &Instruction, depth: u32) -> Result<Option<Replaced>, String> {
        let gone = |depth| Ok(Some(Replaced { by: Vec::new(), depth }));
        let d = i64::from(depth);
        let to = (i.op_count() > 0 && i.op0_kind() == OpKind::Register).then(|| number(i.op0_register())).flatten();
        match i.mnemonic() {
            Mnemonic::Mov
                if to == Some(RBP) && i.op1_kind() == OpKind::Register && i.op1_register() == Register::RSP =>
            {
                self.known[0] = Some(-d);
                return gone(depth);
            }
            Mnemonic::Lea if to == Some(R10) && i.memory_base() == Register::RSP => {
                self.known[1] = Some(i.memory_displacement64() as i64 - d);
                self.r10 = self.known[1];
                return gone(depth);
            }
            Mnemonic::And if to == Some(RSP) => return gone(depth),
            Mnemonic::Push if i.op0_kind() == OpKind::Memory && self.of(i.memory_base()).is_some() => {
                // The copy of the return address that a realigned frame begins with; nobody reads it.
                return Ok(Some(Replaced { by: vec![asm::lea(RSP, memory(Some(RSP), None, -8))], depth: depth + 8 }));
            }
            Mnemonic::Lea if to == Some(RSP) && i.memory_base() != Register::RSP => {
                let base = self.of(i.memory_base()).ok_or("the stack pointer is taken from a variable")?;
                let below = -(base + i.memory_displacement64() as i64);
                let new = u32::try_from(below).ok().filter(|n| *n <= depth).ok_or("odd frame")?;
                self.pushed.retain(|(at, _)| *at <= new);
                return Ok(Some(Replaced {
                    by: vec![asm::lea(RSP, memory(Some(RSP), None, d - i64::from(new)))],
                    depth: new,
                }));
            }
            Mnemonic::Leave => return self.leave(depth).map(Some),
            Mnemonic::Push => {
                if let Some(r) = to.filter(|r| RegSet::CALLEE_SAVED.has(*r)) {
                    self.pushed.push((depth + 8, r));
                }
                return Ok(None);
            }
            Mnemonic::Pop => {
                self.pushed.retain(|(at, _)| *at != depth);
                if let Some(slot) = to.and_then(Self::slot) {
                    self.known[slot] = if to == Some(R10) { self.r10 } else { None };
                }
                return Ok(None);
            }
            _ => {}
        }
        if let Some(base) = self.of(i.memory_base()) {
            let mut new = *i;
            new.set_memory_base(Register::RSP);
            new.set_memory_displacement64((i.memory_displacement64() as i64 + base + d) as u64);
            new.set_memory_displ_size(8);
            return Ok(Some(Replaced { by: vec![new], depth }));
        }
        Ok(None)
    }

    /// Forgets what a written register was.
    pub fn written(&mut self, writes: RegSet) {
        for (slot, r) in [RBP, R10].iter().enumerate() {
            if writes.has(*r) {
                self.known[slot] = None;
            }
        }
    }

    /// `leave`: what was pushed behind the frame pointer goes back to where it came from, the rest is skipped.
    fn leave(&mut self, depth: u32) -> Result<Replaced, String> {
        let base = self.known[0].and_then(|b| u32::try_from(-b).ok()).filter(|b| *b <= depth && *b >= 8);
        let base = base.ok_or("leave without a frame pointer")?;
        let mut by = Vec::new();
        let mut at = depth;
        let mut skipped = 0;
        while at > base {
            match self.pushed.iter().find(|(d, _)| *d == at) {
                Some((_, r)) => {
                    skip(&mut by, &mut skipped);
                    by.push(asm::pop(*r));
                }
                None => skipped += 8,
            }
            at -= 8;
        }
        skip(&mut by, &mut skipped);
        by.push(asm::pop(RBP));
        self.pushed.retain(|(d, _)| *d < base);
        self.known[0] = None;
        Ok(Replaced { by, depth: base - 8 })
    }
}

fn skip(by: &mut Vec<Instruction>, bytes: &mut i64) {
    if *bytes > 0 {
        by.push(asm::lea(RSP, memory(Some(RSP), None, *bytes)));
        *bytes = 0;
    }
}

/// Gives the new instructions the place of the old one.
pub fn place(by: &mut [Instruction], old: &Instruction) {
    for i in by {
        // In this order: the address is kept as that of the end.
        i.set_len(old.len());
        i.set_ip(old.ip());
    }
}

/// Registers written by the replacement of `leave`.
pub fn popped(by: &[Instruction]) -> RegSet {
    by.iter()
        .filter(|i| i.mnemonic() == Mnemonic::Pop)
        .filter_map(|i| number(i.op0_register()))
        .fold(RegSet::NONE, |set, r| set | RegSet::one(r))
}
