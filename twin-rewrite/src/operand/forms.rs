//! Instructions whose operand needs more than a translation: addresses as values, per-CPU data, the canary, bit
//! strings, ports.

use super::with_memory;
use crate::asm::{self, memory};
use crate::emit::Writer;
use crate::facts::Source;
use crate::frame::{is_canary_load, is_stack_operand};
use crate::program::Node;
use crate::regs::{number, register, RegSet, RSP};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use twin_abi::layout::{constant, ctx};

impl Writer<'_, '_> {
    /// `lea`: addresses of data become constants, addresses of stack variables those of their unsafe twins.
    pub(super) fn address_of(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        if i.memory_base() == Register::RIP {
            let to = number(i.op0_register()).filter(|_| i.op0_register().is_gpr64()).ok_or("odd lea")?;
            self.put(asm::set(to, i.memory_displacement64()));
        } else if i.op0_register() == Register::RSP {
            self.put(i);
        } else if i.memory_base() == Register::RSP {
            if let Some(index) = number(i.memory_index()) {
                let to = number(i.op0_register()).filter(|_| i.op0_register().is_gpr64());
                let to = to.ok_or("odd lea of the stack")?;
                let start = if to == index { self.scratch(n).ok_or("no register for a stack array")? } else { to };
                self.stack_address(n, register(start), 0)?;
                let displacement = i.memory_displacement64() as i64;
                self.put(asm::lea(to, memory(Some(start), Some((index, i.memory_index_scale())), displacement)));
                self.facts.drop_holder(start);
                self.note(n);
                return Ok(());
            }
            return self.stack_address(n, i.op0_register(), i.memory_displacement64() as i64);
        } else {
            self.put(i);
        }
        self.note(n);
        Ok(())
    }

    pub(super) fn stack_address(&mut self, n: &Node, to: Register, displacement: i64) -> Result<(), String> {
        let to = number(to).filter(|_| to.is_gpr64()).ok_or("odd use of the stack pointer")?;
        let held = self.facts.find_constant(Source::Delta);
        let s = held.unwrap_or(to);
        if held.is_none() {
            self.put(asm::load(to, asm::constant(constant::DELTA)));
        }
        if (0..=i64::from(n.depth)).contains(&displacement) {
            self.put(asm::lea(to, memory(Some(RSP), Some((s, 1)), displacement)));
        } else {
            self.put(asm::lea(to, memory(Some(RSP), Some((s, 1)), 0)));
            self.put(asm::lea(to, memory(Some(to), None, displacement)));
        }
        self.counts.unsafe_slots += 1;
        self.note(n);
        Ok(())
    }

    /// `mov [m], rsp`: what is stored is the address of the stack's unsafe twin.
    pub(super) fn store_stack_address(&mut self, n: &Node) -> Result<(), String> {
        self.counts.memory_operands += 1;
        let s = self.scratch(n).ok_or("no register for the address of the stack")?;
        self.facts.drop_holder(s);
        self.put(asm::load(s, asm::constant(constant::DELTA)));
        self.put(asm::lea(s, memory(Some(RSP), Some((s, 1)), 0)));
        self.busy |= RegSet::one(s);
        self.counts.unsafe_slots += 1;
        let mut new = n.instruction;
        new.set_op1_register(register(s));
        let new = self.redirect(n, new)?;
        self.put(new);
        self.note(n);
        Ok(())
    }

    pub(super) fn push_memory(&mut self, n: &Node) -> Result<(), String> {
        self.counts.memory_operands += 1;
        let s = self.scratch(n).ok_or("no register for a push")?;
        let mut load = n.instruction;
        load.set_code(Code::Mov_r64_rm64);
        load.set_op1_kind(OpKind::Memory);
        load.set_op0_kind(OpKind::Register);
        load.set_op0_register(register(s));
        let load = self.redirect(n, load)?;
        self.put(load);
        self.facts.drop_holder(s);
        self.put(asm::push(s));
        Ok(())
    }

    /// gs-relative: the twin has a per-CPU area of its own. The canary is a constant, since the stack is protected
    /// otherwise.
    pub(super) fn per_cpu(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        self.counts.percpu_sites += 1;
        if !matches!(i.memory_base(), Register::None | Register::RIP) || i.memory_index() != Register::None {
            return self.per_cpu_indirect(n);
        }
        let offset = i.memory_displacement64();
        if is_canary_load(&i) {
            return self.canary(n);
        }
        let to = (i.op_count() == 2 && i.op0_kind() == OpKind::Register && i.op0_register().is_gpr64())
            .then(|| number(i.op0_register()))
            .flatten();
        if self.cx.this_cpu_off == Some(offset) {
            let to = to.ok_or("odd use of the per-CPU base")?;
            if i.mnemonic() == Mnemonic::Mov {
                self.put(asm::load(to, asm::constant(constant::PERCPU_ADDRESS)));
            } else {
                let s = self.scratch(n).ok_or("no register for the per-CPU base")?;
                self.facts.drop_holder(s);
                self.put(asm::load(s, asm::constant(constant::PERCPU_ADDRESS)));
                let mut new = i;
                new.set_segment_prefix(Register::None);
                new.set_op1_kind(OpKind::Register);
                new.set_op1_register(register(s));
                self.put(new);
            }
            self.note(n);
            return Ok(());
        }
        let s = self.scratch_for(n, None).ok_or("no register for a per-CPU access")?;
        self.facts.drop_holder(s);
        self.busy |= RegSet::one(s);
        self.put(asm::load(s, asm::constant(constant::PERCPU)));
        let to = if self.is_mirror() {
            memory(Some(s), None, i64::from(offset as u32 as i32))
        } else {
            self.put(asm::lea(s, memory(Some(s), None, i64::from(offset as u32 as i32))));
            self.mask(n, s, s)?;
            memory(Some(s), None, 0)
        };
        self.put(with_memory(i, n, to));
        self.note(n);
        Ok(())
    }

    pub(super) fn per_cpu_indirect(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        let a = self.address(&i)?;
        let s = self.scratch_for(n, None).ok_or("no register for a per-CPU access")?;
        let (Some(base), None) = (a.base, a.index) else { return Err("per-CPU access by an index".into()) };
        self.facts.drop_holder(s);
        self.busy |= RegSet::one(s);
        self.put(asm::load(s, asm::constant(constant::PERCPU_ADDRESS)));
        self.put(asm::lea(s, memory(Some(s), Some((base, 1)), a.displacement)));
        self.mask(n, s, s)?;
        self.put(with_memory(i, n, memory(Some(s), None, 0)));
        self.note(n);
        Ok(())
    }

    /// The canary is taken as zero: what is compared at the end is what was stored at the start.
    pub(super) fn canary(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        let code = match i.mnemonic() {
            Mnemonic::Mov => Code::Mov_rm64_imm32,
            Mnemonic::Sub => Code::Sub_rm64_imm8,
            Mnemonic::Xor => Code::Xor_rm64_imm8,
            Mnemonic::Cmp => Code::Cmp_rm64_imm8,
            _ => return Err("odd use of the stack canary".into()),
        };
        let r = number(i.op0_register()).ok_or("odd use of the stack canary")?;
        if code == Code::Mov_rm64_imm32 {
            self.put(asm::set(r, 0));
        } else {
            self.put(Instruction::with2(code, i.op0_register(), 0).map_err(|e| e.to_string())?);
        }
        self.note(n);
        Ok(())
    }

    /// A bit operation whose register operand selects the bit anywhere behind the address: the word is found first.
    pub(super) fn bit_string(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        self.counts.memory_operands += 1;
        self.counts.translated += 1;
        let bit = number(i.op1_register()).filter(|_| i.op1_register().is_gpr64()).ok_or("narrow bit string")?;
        let mut borrowed = Vec::new();
        let [s, t] = BIT_SLOTS.map(|slot| {
            let r = self.scratch(n).map_or_else(|| self.borrow(n, slot, &mut borrowed), Ok)?;
            self.busy |= RegSet::one(r);
            self.facts.drop_holder(r);
            Ok::<u8, String>(r)
        });
        let (s, t) = (s?, t?);
        // The instruction writes the carry flag and leaves the others undefined, so flags are free here.
        self.put(asm::copy(s, bit));
        self.put(asm::sar(s, 6));
        if is_stack_operand(&i) {
            self.put(asm::load(t, asm::constant(constant::DELTA)));
            self.put(asm::lea(t, memory(Some(RSP), Some((t, 1)), i.memory_displacement64() as i64)));
            self.put(asm::lea(s, memory(Some(t), Some((s, 8)), 0)));
        } else {
            let a = self.address(&i)?;
            self.put(asm::lea(t, memory(a.base, a.index, a.displacement)));
            self.put(asm::lea(s, memory(Some(t), Some((s, 8)), 0)));
        }
        self.mask(n, s, s)?;
        self.put(asm::copy32(t, bit));
        self.put(asm::and32(t, 63));
        let mut new = with_memory(i, n, memory(Some(s), None, 0));
        new.set_op1_register(register(t));
        self.put(new);
        for (r, slot) in borrowed {
            self.reload(r, slot);
        }
        self.note(n);
        Ok(())
    }

    /// Port input and output become calls of the routines that do it for the driver domain.
    pub(super) fn port(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        let is_output = i.mnemonic() == Mnemonic::Out;
        let (port, data) = if is_output { (0, 1) } else { (1, 0) };
        if i.op_kind(port) != OpKind::Register {
            return Err("port number in the instruction".into());
        }
        let letter = match i.op_register(data) {
            Register::AL => 'b',
            Register::AX => 'w',
            _ => 'l',
        };
        if self.live_after().meets(RegSet::FLAGS) {
            return Err("port access with flags in use".into());
        }
        let name = format!("{}{letter}", if is_output { "out" } else { "in" });
        let slot = self.shared.import(&name, 0);
        let mut kept = self.live_after() & RegSet::CALLER_SAVED;
        if !is_output {
            kept = kept & !RegSet::one(0);
        }
        let kept: Vec<u8> = kept.general().collect();
        for r in &kept {
            self.put(asm::push(*r));
        }
        let (rdi, rsi, rdx, rax) = (7, 6, 2, 0);
        if is_output {
            self.put(asm::copy(rdi, rax));
            self.put(asm::copy(rsi, rdx));
        } else {
            self.put(asm::copy(rdi, rdx));
        }
        self.put(asm::call_memory(asm::import(slot)));
        for r in kept.iter().rev() {
            self.put(asm::pop(*r));
        }
        self.extra_depth = self.extra_depth.max(8 * kept.len() as u32);
        self.facts.after_call();
        self.note(n);
        Ok(())
    }
}

/// Where registers wait that a bit string borrows.
const BIT_SLOTS: [u32; 2] = [ctx::SPILL + 8 * 13, ctx::SPILL + 8 * 14];
