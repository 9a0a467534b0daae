//! Which register may hold a translation: one that is dead, dies with the access, or is spilled.

use super::{has_high_byte, has_memory, implicit_reads, is_call, overwrites_first};
use crate::asm;
use crate::emit::Writer;
use crate::facts::Source;
use crate::frame::{is_stack_operand, Place};
use crate::program::Node;
use crate::regs::{number, RegSet, RSP};
use iced_x86::{OpKind, Register};

impl Writer<'_, '_> {
    /// Gives a register its value back; what was known about it is lost on the way.
    pub fn reload(&mut self, r: u8, slot: u32) {
        self.put(asm::load(r, asm::context(slot)));
        self.facts.drop_holder(r);
        self.facts.narrow = self.facts.narrow & !RegSet::one(r);
    }

    /// Registers that cannot hold a translation: rax passes through memory where flags are saved.
    pub(super) fn unfit(&self) -> RegSet {
        let writes_flags = !self.is_mirror() || !self.cx.options.bmi;
        if writes_flags && self.live_before().meets(RegSet::FLAGS) {
            RegSet::one(0)
        } else {
            RegSet::NONE
        }
    }

    /// A register is freed if the instruction leaves none: its value waits in a spill word.
    pub(super) fn spill_if_needed(&mut self, n: &Node) -> Result<Option<(u8, u32)>, String> {
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

    /// Whether the base register is not needed after `n`, so that it can hold its own translation.
    pub(super) fn in_place_possible(&self, n: &Node) -> bool {
        self.dead_base(n).is_some()
    }

    pub(super) fn dead_base(&self, n: &Node) -> Option<u8> {
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
    pub(super) fn own_destination(&self, n: &Node) -> Option<u8> {
        let i = &n.instruction;
        let r = (i.op_count() > 0 && i.op0_kind() == OpKind::Register).then(|| number(i.op0_register())).flatten()?;
        let address = number(i.memory_base()) == Some(r) || number(i.memory_index()) == Some(r);
        let free = overwrites_first(i) && n.effect.kills.has(r) && !address && r != RSP && !self.unfit().has(r);
        let unsaved = RegSet::CALLEE_SAVED.has(r) && !self.facts.saved.has(r);
        (free && !unsaved && !self.busy.has(r)).then_some(r)
    }

    /// A register for a translation of `base`: one that will stay free for long if the base is used again.
    pub(super) fn scratch_for(&self, n: &Node, base: Option<u8>) -> Option<u8> {
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
}

const LOOK_AHEAD: usize = 48;
