//! Redirects the memory operand of an instruction: driver-domain memory through a translation, the rest by constants.

mod forms;
mod registers;

use crate::asm::{self, memory};
use crate::emit::Writer;
use crate::facts::{Fact, Source};
use crate::frame::{is_stack_operand, misuses_stack_pointer, Place};
use crate::program::Node;
use crate::regs::{number, RegSet, RSP};
use iced_x86::{Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use twin_abi::layout::constant;

/// In mirror mode, what may be added to a masked register is below this. What is larger may be the address itself, of a
/// table, with an index as base: added to a masked index it leads out of the window. Modules end 16 MiB below the end
/// of the address space, so no such address is nearer to zero; members of structures are much nearer.
const MIRROR_REACH: i64 = 16 << 20;

/// An address of the driver domain as the original instruction forms it.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    base: Option<u8>,
    index: Option<(u8, u32)>,
    displacement: i64,
}

/// Whether the instruction has an explicit memory operand.
pub fn has_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::Memory)
}

/// Registers whose second byte cannot be named together with the newer registers.
fn has_high_byte(i: &Instruction) -> bool {
    let high = [Register::AH, Register::CH, Register::DH, Register::BH];
    (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::Register && high.contains(&i.op_register(k)))
}

impl Writer<'_, '_> {
    /// Writes an instruction that goes on to the next.
    pub fn plain(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        if !n.expansion.is_empty() {
            for i in &n.expansion {
                self.track_saves(i);
                self.put(*i);
            }
            self.note(n);
            return Ok(());
        }
        if i.is_string_instruction() {
            return self.string(n);
        }
        match i.mnemonic() {
            Mnemonic::In | Mnemonic::Out => return self.port(n),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
                if i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register =>
            {
                return self.bit_string(n)
            }
            Mnemonic::Push if has_memory(&i) => return self.push_memory(n),
            Mnemonic::Pop if has_memory(&i) => return Err("pop into memory".into()),
            Mnemonic::Lea => return self.address_of(n),
            _ => {}
        }
        if misuses_stack_pointer(&i) {
            return Err("the stack pointer is used as a value".into());
        }
        if i.mnemonic() == Mnemonic::Mov
            && i.op_count() == 2
            && i.op1_kind() == OpKind::Register
            && i.op1_register() == Register::RSP
        {
            return match i.op0_kind() {
                OpKind::Memory => self.store_stack_address(n),
                _ => self.stack_address(n, i.op0_register(), 0),
            };
        }
        if !has_memory(&i) {
            self.track_saves(&i);
            self.put(i);
            self.note(n);
            return Ok(());
        }
        self.counts.memory_operands += 1;
        if i.segment_prefix() == Register::GS {
            return self.per_cpu(n);
        }
        if i.segment_prefix() == Register::FS {
            return Err("fs-relative access".into());
        }
        let spill = self.spill_if_needed(n)?;
        let new = self.redirect(n, i)?;
        self.put(new);
        self.note(n);
        if let Some((r, slot)) = spill {
            self.reload(r, slot);
        }
        Ok(())
    }

    /// The address that the memory operand of `i` names.
    fn address(&self, i: &Instruction) -> Result<Address, String> {
        let part = |r: Register| match r {
            Register::None => Ok(None),
            r if r.is_gpr64() => Ok(number(r)),
            _ => Err("address of less than 64 bits".to_owned()),
        };
        if i.memory_base() == Register::RIP {
            return Ok(Address { base: None, index: None, displacement: i.memory_displacement64() as i64 });
        }
        let index = part(i.memory_index())?.map(|r| (r, i.memory_index_scale()));
        Ok(Address { base: part(i.memory_base())?, index, displacement: i.memory_displacement64() as i64 })
    }

    /// Replaces the memory operand of `new`, which is `n`'s instruction or a load of the same operand.
    pub fn redirect(&mut self, n: &Node, new: Instruction) -> Result<Instruction, String> {
        let i = &n.instruction;
        if is_stack_operand(i) {
            self.counts.stack_operands += 1;
            return self.stack_operand(n, new);
        }
        self.counts.translated += 1;
        let address = self.address(i)?;
        let to = self.translate(n, address)?;
        Ok(with_memory(new, n, to))
    }

    fn stack_operand(&mut self, n: &Node, new: Instruction) -> Result<Instruction, String> {
        let i = &n.instruction;
        let displacement = i.memory_displacement64() as i64;
        if let Some(index) = number(i.memory_index()) {
            let s = self.scratch_or_destination(n).ok_or("no register for a stack array")?;
            self.put(asm::load(s, asm::constant(constant::DELTA)));
            self.put(asm::lea(s, memory(Some(RSP), Some((s, 1)), 0)));
            self.busy |= RegSet::one(s);
            self.facts.drop_holder(s);
            let sum = memory(Some(s), Some((index, i.memory_index_scale())), displacement);
            self.put(asm::lea(s, sum));
            self.mask(n, s, s)?;
            return Ok(with_memory(new, n, memory(Some(s), None, 0)));
        }
        match self.layout.place(n) {
            Place::Stack => Ok(with_memory(new, n, memory(Some(RSP), None, displacement))),
            Place::Unsafe => {
                self.counts.unsafe_slots += 1;
                let s = self.delta(n)?;
                Ok(with_memory(new, n, memory(Some(RSP), Some((s, 1)), displacement)))
            }
        }
    }

    /// A register that holds the distance to the unsafe area.
    fn delta(&mut self, n: &Node) -> Result<u8, String> {
        let nameable = |s: &u8| *s < 8 || !has_high_byte(&n.instruction);
        if let Some(s) = self.facts.find_constant(Source::Delta).filter(nameable) {
            return Ok(s);
        }
        let s = self.scratch_or_destination(n).ok_or("no register for the unsafe area")?;
        self.put(asm::load(s, asm::constant(constant::DELTA)));
        self.facts.drop_holder(s);
        self.facts.copies.insert(Fact { holder: s, source: Source::Delta });
        Ok(s)
    }

    fn scratch_or_destination(&self, n: &Node) -> Option<u8> {
        self.scratch(n).or_else(|| self.own_destination(n)).or(self.spilled)
    }

    /// Whether a translation that serves `n` is at hand.
    fn is_known(&self, n: &Node) -> bool {
        match self.address(&n.instruction) {
            Ok(a) if a.index.is_none_or(|(x, _)| self.facts.narrow.has(x)) => self.known(n, &a).is_some(),
            _ => false,
        }
    }

    /// Whether displacement `d` may be added to a translation.
    pub fn reaches(&self, d: i64) -> bool {
        if self.is_mirror() {
            (1 - MIRROR_REACH..MIRROR_REACH).contains(&d)
        } else {
            (0..=i64::from(twin_abi::layout::STLB_REACH)).contains(&d)
        }
    }

    fn known(&self, n: &Node, a: &Address) -> Option<(u8, i64)> {
        if !self.is_mirror() && a.index.is_some() {
            return None;
        }
        let nameable = |holder: u8| holder < 8 || !has_high_byte(&n.instruction);
        let found = match a.base {
            Some(b) => self
                .facts
                .find(b, |o| self.reaches(o.wrapping_add(a.displacement)))
                .map(|(holder, offset)| (holder, offset.wrapping_add(a.displacement))),
            None if a.index.is_none() => self.facts.find_address(a.displacement as u64, |d| self.reaches(d)),
            None => None,
        };
        found.filter(|(holder, _)| nameable(*holder))
    }

    /// Finds or makes a translation of `a`.
    fn translate(&mut self, n: &Node, a: Address) -> Result<MemoryOperand, String> {
        let narrow = a.index.is_none_or(|(x, _)| self.facts.narrow.has(x));
        if narrow {
            if let Some((holder, displacement)) = self.known(n, &a) {
                self.counts.masks_elided += 1;
                return Ok(memory(Some(holder), a.index, displacement));
            }
        }
        let simple = narrow && (self.is_mirror() || a.index.is_none());
        match a.base {
            None if a.index.is_none() => self.translate_constant(n, a.displacement as u64),
            Some(b) if simple && self.reaches(a.displacement) => self.translate_base(n, b, a),
            _ => {
                let s = self.scratch_for(n, None).or_else(|| self.dead_base(n)).ok_or("no register for an address")?;
                self.busy |= RegSet::one(s);
                self.put(asm::lea(s, memory(a.base, a.index, a.displacement)));
                self.facts.drop_holder(s);
                self.mask(n, s, s)?;
                // A far displacement is part of the translation; what lies behind it can use it again.
                if let (Some(b), None) = (a.base, a.index) {
                    if b != s {
                        self.facts
                            .copies
                            .insert(Fact { holder: s, source: Source::Register(b, a.displacement.wrapping_neg()) });
                    }
                }
                Ok(memory(Some(s), None, 0))
            }
        }
    }

    fn translate_constant(&mut self, n: &Node, address: u64) -> Result<MemoryOperand, String> {
        let s = self.scratch_for(n, None).ok_or("no register for an address")?;
        self.facts.drop_holder(s);
        self.busy |= RegSet::one(s);
        if self.is_mirror() {
            self.put(asm::set(s, address & ((1 << self.cx.options.mask_bits) - 1)));
            self.counts.masks_emitted += 1;
        } else {
            self.put(asm::set(s, address));
            self.mask(n, s, s)?;
        }
        self.facts.copies.insert(Fact { holder: s, source: Source::Address(address) });
        Ok(memory(Some(s), None, 0))
    }

    fn translate_base(&mut self, n: &Node, base: u8, a: Address) -> Result<MemoryOperand, String> {
        if self.in_place_possible(n) && self.dead_base(n) == Some(base) {
            self.mask(n, base, base)?;
            return Ok(memory(Some(base), a.index, a.displacement));
        }
        let s = self.scratch_for(n, Some(base)).ok_or("no register for a translation")?;
        self.mask(n, s, base)?;
        self.facts.drop_holder(s);
        self.facts.copies.insert(Fact { holder: s, source: Source::Register(base, 0) });
        Ok(memory(Some(s), a.index, a.displacement))
    }

    /// Translates the address in `from` into `to`.
    pub fn mask(&mut self, n: &Node, to: u8, from: u8) -> Result<(), String> {
        self.counts.masks_emitted += 1;
        if !self.is_mirror() {
            return self.look_up(n, to, from);
        }
        let mask = asm::constant(constant::MASK);
        if self.cx.options.bmi {
            self.put(asm::pext(to, from, mask));
            return Ok(());
        }
        let saved = self.save_flags(n, RegSet::one(to) | RegSet::one(from))?;
        if to != from {
            self.put(asm::copy(to, from));
        }
        self.put(asm::and_memory(to, mask));
        self.restore_flags(saved);
        Ok(())
    }

    /// Notes pushes and pops of registers that belong to the caller.
    fn track_saves(&mut self, i: &Instruction) {
        let Some(r) =
            (i.op_count() == 1 && i.op0_kind() == OpKind::Register).then(|| number(i.op0_register())).flatten()
        else {
            return;
        };
        match i.mnemonic() {
            Mnemonic::Push if RegSet::CALLEE_SAVED.has(r) => self.facts.saved |= RegSet::one(r),
            Mnemonic::Pop => self.facts.saved = self.facts.saved & !RegSet::one(r),
            _ => {}
        }
    }
}

fn is_call(n: &Node) -> bool {
    matches!(n.flow, crate::program::Flow::Call(_) | crate::program::Flow::LastCall(_))
}

/// Whether the first operand is written without being read.
fn overwrites_first(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd | Mnemonic::Lea)
        || (i.mnemonic() == Mnemonic::Imul && i.op_count() == 3)
}

/// Registers that an instruction reads without naming them.
fn implicit_reads(i: &Instruction) -> RegSet {
    let (rax, rdx, rcx, rbx) = (RegSet::one(0), RegSet::one(2), RegSet::one(1), RegSet::one(3));
    match i.mnemonic() {
        Mnemonic::Cmpxchg | Mnemonic::Mul | Mnemonic::Imul => rax,
        Mnemonic::Div | Mnemonic::Idiv => rax | rdx,
        Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => rax | rbx | rcx | rdx,
        _ => RegSet::NONE,
    }
}

/// `new` with its memory operand replaced, and with its LOCK prefix if it had one before it was patched away.
fn with_memory(mut new: Instruction, n: &Node, to: MemoryOperand) -> Instruction {
    new.set_segment_prefix(Register::None);
    new.set_memory_base(to.base);
    new.set_memory_index(to.index);
    new.set_memory_index_scale(to.scale);
    new.set_memory_displacement64(to.displacement as u64);
    new.set_memory_displ_size(to.displ_size);
    if n.lock_patched {
        new.set_has_lock_prefix(true);
    }
    new
}
