//! String instructions: both pointers translated, the count bounded.

use crate::asm::{self, memory};
use crate::emit::Writer;
use crate::program::Node;
use crate::regs::RegSet;
use iced_x86::Mnemonic;
use twin_abi::layout::ctx;

const RCX: u8 = 1;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// Address registers that a string instruction uses, and the bytes of one step.
fn uses(mnemonic: Mnemonic) -> Option<(bool, bool, i64)> {
    use Mnemonic as M;
    let size = match mnemonic {
        M::Movsb | M::Stosb | M::Lodsb | M::Scasb | M::Cmpsb => 1,
        M::Movsw | M::Stosw | M::Lodsw | M::Scasw | M::Cmpsw => 2,
        M::Movsd | M::Stosd | M::Lodsd | M::Scasd | M::Cmpsd => 4,
        M::Movsq | M::Stosq | M::Lodsq | M::Scasq | M::Cmpsq => 8,
        _ => return None,
    };
    let source =
        !matches!(mnemonic, M::Stosb | M::Stosw | M::Stosd | M::Stosq | M::Scasb | M::Scasw | M::Scasd | M::Scasq);
    let target = !matches!(mnemonic, M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq);
    Some((source, target, size))
}

impl Writer<'_, '_> {
    /// Writes a string instruction.
    pub fn string(&mut self, n: &Node) -> Result<(), String> {
        let i = n.instruction;
        let (source, target, size) = uses(i.mnemonic()).ok_or("unknown string instruction")?;
        self.counts.memory_operands += 1;
        self.counts.translated += 1;
        self.counts.string_sites += 1;
        let repeated = i.has_rep_prefix() || i.has_repne_prefix();
        let pointers: Vec<u8> =
            [(source, RSI), (target, RDI)].iter().filter(|(used, _)| *used).map(|(_, r)| *r).collect();
        if !self.is_mirror() {
            return self.string_by_pages(n, &pointers, size, repeated);
        }
        if repeated && !self.facts.narrow.has(RCX) {
            self.put(asm::copy32(RCX, RCX));
        }
        let mut adjusted = Vec::new();
        let mut borrowed = Vec::new();
        for (k, r) in pointers.iter().enumerate() {
            if self.live_after().has(*r) {
                let s = match self.scratch(n) {
                    Some(s) => s,
                    None => self.borrow(n, ctx::SPILL + 8 * (10 + k as u32), &mut borrowed)?,
                };
                self.busy |= RegSet::one(s);
                self.facts.drop_holder(s);
                self.put(asm::copy(s, *r));
                self.mask(n, *r, *r)?;
                // s - r without touching the flags: the complement of (complement of s) + r.
                self.put(asm::not(s));
                self.put(asm::lea(s, memory(Some(s), Some((*r, 1)), 0)));
                self.put(asm::not(s));
                adjusted.push((*r, s));
            } else {
                self.mask(n, *r, *r)?;
            }
        }
        self.put(i);
        for (r, s) in adjusted {
            self.put(asm::lea(r, memory(Some(r), Some((s, 1)), 0)));
        }
        for (r, slot) in borrowed {
            self.reload(r, slot);
        }
        self.note(n);
        Ok(())
    }

    /// In stlb mode a translated address is good for one page: the instruction runs in a loop, page by page. The loop
    /// moves one unit a step through the spill words, which keeps it short; long runs are the business of imports.
    fn string_by_pages(&mut self, n: &Node, pointers: &[u8], size: i64, repeated: bool) -> Result<(), String> {
        let i = n.instruction;
        if !matches!(
            i.mnemonic(),
            Mnemonic::Movsb
                | Mnemonic::Movsw
                | Mnemonic::Movsd
                | Mnemonic::Movsq
                | Mnemonic::Stosb
                | Mnemonic::Stosw
                | Mnemonic::Stosd
                | Mnemonic::Stosq
        ) {
            return Err("string comparison in stlb mode".into());
        }
        let saved = self.save_flags(n, RegSet::NONE)?;
        let mut slots = Vec::new();
        for (k, r) in pointers.iter().enumerate() {
            slots.push((*r, ctx::SPILL + 8 * (8 + k as u32)));
        }
        let top = if repeated { Some(self.begin_string_loop()) } else { None };
        for (r, slot) in &slots {
            self.put(asm::store(asm::context(*slot), *r));
        }
        for r in pointers {
            self.look_up(n, *r, *r)?;
            self.busy |= RegSet::one(*r);
        }
        let mut one = i;
        one.set_has_rep_prefix(false);
        one.set_has_repne_prefix(false);
        self.put(one);
        for (r, slot) in &slots {
            self.put(asm::load(*r, asm::context(*slot)));
            self.put(asm::lea(*r, memory(Some(*r), None, size)));
        }
        if let Some(top) = top {
            self.end_string_loop(top);
        }
        self.restore_flags(saved);
        self.facts.copies.clear();
        self.note(n);
        Ok(())
    }
}
