//! String instructions: both pointers translated, the count bounded.

use crate::asm::{self, memory};
use crate::emit::Writer;
use crate::program::Node;
use crate::regs::{number, RegSet};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};
use twin_abi::layout::{constant, ctx, STRING_BYTES};

const RCX: u8 = 1;
const RSI: u8 = 6;
const RDI: u8 = 7;
const COUNT_SLOT: u32 = ctx::SPILL + 8 * 12;

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

fn is_copy_or_fill(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Movsb | M::Movsw | M::Movsd | M::Movsq | M::Stosb | M::Stosw | M::Stosd | M::Stosq)
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
        let chunk = i64::from(STRING_BYTES) / size;
        let in_chunks = repeated && !self.counts_at_most(chunk as u64);
        if in_chunks && !is_copy_or_fill(i.mnemonic()) {
            return Err("string comparison of unknown or great length".into());
        }
        let saved = if in_chunks { self.save_flags(n, RegSet::NONE)? } else { None };
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
        if in_chunks {
            self.repeat_in_chunks(i, chunk, &pointers);
        } else {
            self.put(i);
        }
        for (r, s) in adjusted {
            self.put(asm::lea(r, memory(Some(r), Some((s, 1)), 0)));
        }
        for (r, slot) in borrowed {
            self.reload(r, slot);
        }
        self.restore_flags(saved);
        self.note(n);
        Ok(())
    }

    /// Whether the straight code before, back to the block's start, sets rcx to a constant that is not above `most`.
    fn counts_at_most(&self, most: u64) -> bool {
        let mut factory = InstructionInfoFactory::new();
        for item in self.written_here().iter().rev() {
            let i = &item.instruction;
            let writes = |r: &iced_x86::UsedRegister| {
                let reads = matches!(r.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
                number(r.register()) == Some(RCX) && !reads
            };
            if factory.info(i).used_registers().iter().any(writes) || i.op0_kind() == OpKind::NearBranch64 {
                let wide = i.op0_register().is_gpr32() || i.op0_register().is_gpr64();
                let constant =
                    matches!(i.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64);
                return i.mnemonic() == Mnemonic::Mov && wide && constant && i.immediate(1) <= most;
            }
        }
        false
    }

    /// The instruction as often as rcx says, `chunk` units at a time: what is more than that waits in a spill word. The
    /// pointers are translated; where a chunk ended they are inside the window still, and translating them again says
    /// so.
    fn repeat_in_chunks(&mut self, i: Instruction, chunk: i64, pointers: &[u8]) {
        let most = i32::try_from(chunk).unwrap_or(i32::MAX);
        let top = self.label_next();
        self.put(asm::cmp(RCX, most));
        let more = self.shared.number();
        self.put(asm::jump_above(more));
        self.put(i);
        self.put_aside(Some(more), asm::store(asm::context(COUNT_SLOT), RCX));
        self.put_aside(None, asm::set(RCX, chunk as u64));
        self.put_aside(None, i);
        self.put_aside(None, asm::load(RCX, asm::context(COUNT_SLOT)));
        self.put_aside(None, asm::lea(RCX, memory(Some(RCX), None, -chunk)));
        let mask = asm::constant(constant::MASK);
        for r in pointers {
            let masked = if self.cx.options.bmi { asm::pext(*r, *r, mask) } else { asm::and_memory(*r, mask) };
            self.put_aside(None, masked);
        }
        self.put_aside(None, asm::jump(top));
    }

    /// In stlb mode a translated address is good for one page: the instruction runs in a loop, page by page. The loop
    /// moves one unit a step through the spill words, which keeps it short; long runs are the business of imports.
    fn string_by_pages(&mut self, n: &Node, pointers: &[u8], size: i64, repeated: bool) -> Result<(), String> {
        let i = n.instruction;
        if !is_copy_or_fill(i.mnemonic()) {
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
