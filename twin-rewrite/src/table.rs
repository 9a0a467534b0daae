//! Translation through the software table (mode stlb): the paper's sequence.

use crate::asm::{self, memory};
use crate::emit::Writer;
use crate::facts::{Fact, Source};
use crate::program::Node;
use crate::regs::{register, RegSet};
use iced_x86::{Code, Instruction};
use twin_abi::layout::{ctx, gate, PAGE_SIZE, STLB_INDEX_MASK};

const INDEX_SLOT: u32 = ctx::SPILL + 8 * 6;
const TABLE_SLOT: u32 = ctx::SPILL + 8 * 7;

impl Writer<'_, '_> {
    /// Looks up the address in `from`; its translation is left in `to`. Two more registers are needed: one for the
    /// index, one for the table, which stays known.
    pub fn look_up(&mut self, n: &Node, to: u8, from: u8) -> Result<(), String> {
        let saved = self.save_flags(n, RegSet::one(to) | RegSet::one(from))?;
        self.busy |= RegSet::one(to) | RegSet::one(from);
        let mut restore = Vec::new();
        let (table, index) = self.table_and_index(n, &mut restore)?;
        if to != from {
            self.put(asm::copy(to, from));
        }
        self.put(asm::copy32(index, to));
        self.put(asm::shr32(index, 8));
        self.put(asm::and32(index, STLB_INDEX_MASK as i32));
        let entry = |word| memory(Some(table), Some((index, 1)), word);
        self.put(asm::xor_memory(to, entry(0)));
        self.put(asm::cmp(to, PAGE_SIZE as i32 - 1));
        let miss = self.shared.number();
        self.put(asm::jump_above(miss));
        self.put(asm::add_memory(to, entry(8)));
        let back = self.label_next();
        self.put_aside(Some(miss), asm::xor_memory(to, entry(0)));
        self.put_aside(None, asm::store(asm::context(ctx::MISS_ADDRESS), to));
        self.put_aside(None, asm::call_memory(asm::constant(gate::STLB_MISS)));
        self.put_aside(None, asm::load(to, asm::context(ctx::MISS_RESULT)));
        self.put_aside(None, asm::jump(back));
        for (r, slot) in restore {
            self.reload(r, slot);
        }
        self.restore_flags(saved);
        Ok(())
    }

    fn table_and_index(&mut self, n: &Node, restore: &mut Vec<(u8, u32)>) -> Result<(u8, u8), String> {
        let free = |w: &Self| w.free(n).general().collect::<Vec<_>>();
        let table = match self.facts.find_constant(Source::Table).filter(|t| !self.busy.has(*t)) {
            Some(t) => t,
            None => {
                let candidates = free(self);
                let spare = candidates.iter().copied().max_by_key(|r| (self.rank(*r), candidates.len() > 1));
                let t = match spare.filter(|_| candidates.len() > 1) {
                    Some(t) => t,
                    None => self.borrow(n, TABLE_SLOT, restore)?,
                };
                self.facts.drop_holder(t);
                self.put(asm::lea(t, asm::stlb()));
                if restore.iter().all(|(r, _)| *r != t) {
                    self.facts.copies.insert(Fact { holder: t, source: Source::Table });
                }
                t
            }
        };
        self.busy |= RegSet::one(table);
        let holders = self.facts.holders();
        let index = match free(self).into_iter().min_by_key(|r| (holders.has(*r), self.rank(*r))) {
            Some(x) => x,
            None => self.borrow(n, INDEX_SLOT, restore)?,
        };
        self.facts.drop_holder(index);
        self.busy |= RegSet::one(index);
        Ok((table, index))
    }

    /// Callee-saved registers keep the table's address over calls.
    fn rank(&self, r: u8) -> (bool, bool) {
        (RegSet::CALLEE_SAVED.has(r), !self.facts.holders().has(r))
    }

    /// Frees a register by way of a spill word.
    pub fn borrow(&mut self, n: &Node, slot: u32, restore: &mut Vec<(u8, u32)>) -> Result<u8, String> {
        let e = &n.effect;
        let taken = restore.iter().fold(RegSet::NONE, |set, (r, _)| set | RegSet::one(*r));
        let free = !(e.reads | e.writes | RegSet::RSP | self.busy | taken) & RegSet::CALLER_SAVED;
        let r = free.general().last().ok_or("no register to spill")?;
        self.counts.spills += 1;
        self.put(asm::store(asm::context(slot), r));
        self.facts.drop_holder(r);
        restore.push((r, slot));
        Ok(r)
    }

    /// Begins a loop of single string steps: the count is tested first.
    pub fn begin_string_loop(&mut self) -> (u64, u64) {
        const RCX: u8 = 1;
        self.facts.copies.clear();
        let end = self.shared.number();
        let top = self.label_next();
        let test =
            Instruction::with2(Code::Test_rm64_r64, register(RCX), register(RCX)).expect("operand kinds fit the code");
        self.put(test);
        self.put(Instruction::with_branch(Code::Je_rel32_64, end).expect("operand kinds fit the code"));
        (top, end)
    }

    /// Ends it: one less, again from the top.
    pub fn end_string_loop(&mut self, (top, end): (u64, u64)) {
        const RCX: u8 = 1;
        self.put(asm::lea(RCX, memory(Some(RCX), None, -1)));
        self.put(asm::jump(top));
        self.facts.copies.clear();
        self.place_label(end);
    }
}
