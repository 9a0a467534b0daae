//! Redirects the memory operand of an instruction: driver-domain memory through a translation, the rest by constants.

use crate::asm::{self, memory};
use crate::emit::Writer;
use crate::facts::{Fact, Source};
use crate::frame::{is_canary_load, is_stack_operand, misuses_stack_pointer, Place};
use crate::program::Node;
use crate::regs::{number, register, RegSet, RSP};
use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use twin_abi::layout::{constant, ctx};

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

    /// Gives a register its value back; what was known about it is lost on the way.
    pub fn reload(&mut self, r: u8, slot: u32) {
        self.put(asm::load(r, asm::context(slot)));
        self.facts.drop_holder(r);
        self.facts.narrow = self.facts.narrow & !RegSet::one(r);
    }

    /// Registers that cannot hold a translation: rax passes through memory where flags are saved.
    fn unfit(&self) -> RegSet {
        let writes_flags = !self.is_mirror() || !self.cx.options.bmi;
        if writes_flags && self.live_before().meets(RegSet::FLAGS) {
            RegSet::one(0)
        } else {
            RegSet::NONE
        }
    }

    /// A register is freed if the instruction leaves none: its value waits in a spill word.
    fn spill_if_needed(&mut self, n: &Node) -> Result<Option<(u8, u32)>, String> {
        if is_stack_operand(&n.instruction) && self.layout.place(n) == Place::Stack {
            return Ok(None);
        }
        if self.scratch(n).is_some() || self.own_destination(n).is_some() || self.is_known(n) {
            return Ok(None);
        }
        if self.dead_base(n).is_some() {
            return Ok(None);
        }
        let e = &n.effect;
        let free = !(e.reads | e.writes | RegSet::RSP | self.unfit()) & RegSet::CALLER_SAVED;
        let r = free.general().find(|r| !has_high_byte(&n.instruction) || *r < 8).ok_or("no register to spill")?;
        let slot = twin_abi::layout::ctx::SPILL;
        self.counts.spills += 1;
        self.put(asm::store(asm::context(slot), r));
        self.facts.drop_holder(r);
        self.busy = RegSet::NONE;
        self.spilled = Some(r);
        Ok(Some((r, slot)))
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
            (-(1 << 31)..(1 << 31) - 16).contains(&d)
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
                // In stlb mode a far displacement is part of the translation; what lies behind it can use it again.
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

    /// Whether the base register is not needed after `n`, so that it can hold its own translation.
    fn in_place_possible(&self, n: &Node) -> bool {
        self.dead_base(n).is_some()
    }

    fn dead_base(&self, n: &Node) -> Option<u8> {
        let i = &n.instruction;
        if n.flow != crate::program::Flow::Next {
            return None; // what a callee is given must not change
        }
        let b = number(i.memory_base()).filter(|b| *b != RSP && i.memory_base().is_gpr64())?;
        if self.live_after().has(b) && !n.effect.kills.has(b) {
            return None;
        }
        // Read as data too, or partly written: the value must stay.
        let as_data = (0..i.op_count()).any(|k| {
            let same = i.op_kind(k) == OpKind::Register && number(i.op_register(k)) == Some(b);
            same && !(k == 0 && n.effect.kills.has(b) && overwrites_first(i))
        });
        let implicit = implicit_reads(i).has(b) || number(i.memory_index()) == Some(b);
        let unsaved = RegSet::CALLEE_SAVED.has(b) && !self.facts.saved.has(b);
        (!as_data && !implicit && !unsaved && !self.unfit().has(b)).then_some(b)
    }

    /// The register that the instruction is about to overwrite anyhow, if it can hold an address until then.
    fn own_destination(&self, n: &Node) -> Option<u8> {
        let i = &n.instruction;
        let r = (i.op_count() > 0 && i.op0_kind() == OpKind::Register).then(|| number(i.op0_register())).flatten()?;
        let address = number(i.memory_base()) == Some(r) || number(i.memory_index()) == Some(r);
        let free = overwrites_first(i) && n.effect.kills.has(r) && !address && r != RSP && !self.unfit().has(r);
        let unsaved = RegSet::CALLEE_SAVED.has(r) && !self.facts.saved.has(r);
        (free && !unsaved && !self.busy.has(r)).then_some(r)
    }

    /// A register for a translation of `base`: one that will stay free for long if the base is used again.
    fn scratch_for(&self, n: &Node, base: Option<u8>) -> Option<u8> {
        let again = base.is_some_and(|b| self.live_after().has(b) && !n.effect.kills.has(b));
        if !again {
            // The destination costs nothing that is known elsewhere.
            if let Some(r) = self.own_destination(n) {
                if !self.facts.holders().has(r) {
                    return Some(r);
                }
            }
        }
        self.scratch(n).or_else(|| self.own_destination(n)).or(self.spilled)
    }

    /// Registers that nothing needs around `n`.
    pub fn free(&self, n: &Node) -> RegSet {
        let e = &n.effect;
        let mut used =
            self.live_before() | self.live_after() | e.reads | e.writes | RegSet::RSP | self.busy | self.unfit();
        if has_high_byte(&n.instruction) {
            used |= RegSet(0xff00);
        }
        !used & RegSet::GENERAL & (RegSet::CALLER_SAVED | self.facts.saved)
    }

    /// The free register that serves best as a new holder.
    pub fn scratch(&self, n: &Node) -> Option<u8> {
        let holders = self.facts.holders();
        let score = |r: &u8| {
            let value = if holders.has(*r) { self.next_use(n, *r) } else { self.stays_free(n, *r) };
            let order = [11, 10, 9, 8].iter().position(|x| x == r).map_or(0, |p| 4 - p);
            (!holders.has(*r) || value >= LOOK_AHEAD, value, order)
        };
        self.free(n).general().max_by_key(score)
    }

    /// Instructions straight ahead until something needs or overwrites `r`.
    fn stays_free(&self, n: &Node, r: u8) -> usize {
        for (count, (address, next)) in self.ahead(n).enumerate() {
            let live = self.cx.liveness.before(self.body.function.address, address);
            if live.has(r) || next.effect.writes.has(r) {
                return count;
            }
            if is_call(next) && RegSet::CALLER_SAVED.has(r) {
                return count;
            }
        }
        LOOK_AHEAD
    }

    /// Instructions straight ahead until what `holder` holds is used.
    fn next_use(&self, n: &Node, holder: u8) -> usize {
        let sources: Vec<Source> = self.facts.copies.iter().filter(|f| f.holder == holder).map(|f| f.source).collect();
        for (count, (_, next)) in self.ahead(n).enumerate() {
            let i = &next.instruction;
            let base = number(i.memory_base()).filter(|_| has_memory(i) && i.memory_base() != Register::RSP);
            let hit = sources.iter().any(|s| match s {
                Source::Register(b, _) => base == Some(*b),
                Source::Address(_) => i.memory_base() == Register::RIP && has_memory(i),
                Source::Delta => is_stack_operand(i),
                Source::Table => base.is_some(),
            });
            if hit {
                return count;
            }
            if is_call(next) && RegSet::CALLER_SAVED.has(holder) {
                return LOOK_AHEAD;
            }
        }
        LOOK_AHEAD
    }

    fn ahead<'s>(&'s self, n: &Node) -> impl Iterator<Item = (u64, &'s Node)> + 's {
        let mut at = n.instruction.next_ip();
        let nodes = &self.body.nodes;
        std::iter::from_fn(move || {
            let node = nodes.get(&at)?;
            let here = at;
            at = match &node.flow {
                crate::program::Flow::Jump(to) => *to,
                crate::program::Flow::Return | crate::program::Flow::Tail(_) | crate::program::Flow::Trap => u64::MAX,
                _ => node.instruction.next_ip(),
            };
            Some((here, node))
        })
        .take(LOOK_AHEAD)
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

    /// `lea`: addresses of data become constants, addresses of stack variables those of their unsafe twins.
    fn address_of(&mut self, n: &Node) -> Result<(), String> {
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

    fn stack_address(&mut self, n: &Node, to: Register, displacement: i64) -> Result<(), String> {
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
    fn store_stack_address(&mut self, n: &Node) -> Result<(), String> {
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

    fn push_memory(&mut self, n: &Node) -> Result<(), String> {
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

    /// gs-relative: the twin has a per-CPU area of its own. The canary is a constant, since the stack is protected otherwise.
    fn per_cpu(&mut self, n: &Node) -> Result<(), String> {
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

    fn per_cpu_indirect(&mut self, n: &Node) -> Result<(), String> {
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
    fn canary(&mut self, n: &Node) -> Result<(), String> {
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
    fn bit_string(&mut self, n: &Node) -> Result<(), String> {
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
    fn port(&mut self, n: &Node) -> Result<(), String> {
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

const LOOK_AHEAD: usize = 48;
/// Where registers wait that a bit string borrows.
const BIT_SLOTS: [u32; 2] = [ctx::SPILL + 8 * 13, ctx::SPILL + 8 * 14];

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
