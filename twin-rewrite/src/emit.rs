//! Writes the new code of one function: every instruction is kept, memory operands are redirected, transfers are bound.
//!
//! Blocks are visited so that most of a block's predecessors come before it; what they agree on is assumed at its
//! start. Where a later look shows that an assumption fails on some edge, it is banned there and the function is
//! written again. The bans only grow, so this ends.

use crate::asm;
use crate::facts::{Fact, Facts};
use crate::frame::Layout;
use crate::liveness::Liveness;
use crate::module::Module;
use crate::options::{Mode, Options, Reuse};
use crate::program::{import_name, Body, Flow, Node, Target};
use crate::regs::{number, RegSet};
use iced_x86::Instruction;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use twin_abi::layout::gate;

/// Counts for the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct Counts {
    pub insns_in: u32,
    pub insns_out: u32,
    pub dropped: u32,
    pub memory_operands: u32,
    pub stack_operands: u32,
    pub translated: u32,
    pub masks_emitted: u32,
    pub masks_elided: u32,
    pub spills: u32,
    pub flag_saves: u32,
    pub percpu_sites: u32,
    pub string_sites: u32,
    pub locked_sites: u32,
    pub indirect_sites: u32,
    pub bug_sites: u32,
    pub warn_sites: u32,
    pub unsafe_slots: u32,
}

/// A new instruction and the original it stems from.
#[derive(Debug, Clone)]
pub struct Item {
    /// The instruction; its address is its number.
    pub instruction: Instruction,
    /// Address of the original.
    pub origin: u64,
}

/// The new code of a function.
#[derive(Debug, Clone)]
pub struct FunctionCode {
    /// Original entry.
    pub address: u64,
    /// Name.
    pub name: String,
    /// New instructions in order.
    pub items: Vec<Item>,
    /// Deepest frame in bytes.
    pub frame: u32,
    /// Words of stack arguments.
    pub stack_args: u32,
    /// Counts.
    pub counts: Counts,
}

/// Numbers for instructions that are jumped to, and imports: shared by all functions of an image.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    next: u64,
    /// Number of each function's first instruction.
    pub entries: HashMap<u64, u64>,
    /// Imports by address in the driver domain, or by name for those that have none.
    pub imports: Vec<(String, u64)>,
}

/// Numbers start here, away from every real address.
const FIRST_NUMBER: u64 = 1 << 40;

impl Shared {
    /// A number that was not given before.
    pub fn number(&mut self) -> u64 {
        self.next += 16;
        FIRST_NUMBER + self.next
    }

    /// The slot of an import.
    pub fn import(&mut self, name: &str, address: u64) -> u32 {
        let found = self.imports.iter().position(|(n, a)| n == name && *a == address);
        let at = found.unwrap_or_else(|| {
            self.imports.push((name.to_owned(), address));
            self.imports.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }
}

/// What is fixed while a module is rewritten.
#[derive(Debug)]
pub struct Context<'a> {
    /// The module.
    pub module: &'a Module,
    /// Options.
    pub options: &'a Options,
    /// Liveness of the original.
    pub liveness: &'a Liveness,
    /// Words of stack arguments of each function.
    pub stack_args: &'a HashMap<u64, u32>,
    /// Offset of the per-CPU variable that holds the per-CPU base, if known.
    pub this_cpu_off: Option<u64>,
}

/// Why a function cannot be written: the address of the original instruction, and the reason.
pub type Refused = (u64, String);

type Bans = HashMap<u64, (BTreeSet<Fact>, RegSet)>;

/// Rounds after which nothing is assumed at block starts any more.
const ROUNDS: usize = 24;

/// Writes the function.
pub fn function(cx: &Context<'_>, shared: &mut Shared, body: &Body, layout: &Layout) -> Result<FunctionCode, Refused> {
    let blocks = body.blocks();
    let order = visiting_order(body, &blocks);
    let mut bans: Bans = HashMap::new();
    for round in 0.. {
        let cautious = round >= ROUNDS || cx.options.reuse != Reuse::Flow;
        let mut writer = Writer::new(cx, shared, body, layout);
        let new_bans = writer.blocks(&blocks, &order, &bans, cautious)?;
        if new_bans.is_empty() {
            return Ok(writer.finish(&blocks));
        }
        for (block, (facts, narrow)) in new_bans {
            let entry = bans.entry(block).or_default();
            entry.0.extend(facts);
            entry.1 |= narrow;
        }
    }
    unreachable!("the last round assumes nothing")
}

/// Reverse postorder from the entry; blocks that nothing reaches cannot occur.
fn visiting_order(body: &Body, blocks: &[Vec<u64>]) -> Vec<u64> {
    let ends: HashMap<u64, u64> = blocks.iter().map(|b| (b[0], b[b.len() - 1])).collect();
    let mut seen = BTreeSet::new();
    let mut post = Vec::new();
    let mut stack = vec![(body.function.address, false)];
    while let Some((block, done)) = stack.pop() {
        if done {
            post.push(block);
            continue;
        }
        if !seen.insert(block) {
            continue;
        }
        stack.push((block, true));
        for to in ends.get(&block).map_or(Vec::new(), |end| body.successors(*end)) {
            stack.push((to, false));
        }
    }
    post.reverse();
    post
}

/// The state of writing one function.
pub struct Writer<'a, 'b> {
    /// What is fixed.
    pub cx: &'a Context<'a>,
    /// What all functions share.
    pub shared: &'b mut Shared,
    /// The original.
    pub body: &'a Body,
    /// The frame.
    pub layout: &'a Layout,
    /// Number of each block's first instruction.
    labels: HashMap<u64, u64>,
    written: BTreeMap<u64, Vec<Item>>,
    /// Out-of-line code at the function's end.
    aside: Vec<Item>,
    /// Code of the block being written.
    now: Vec<Item>,
    /// What is known.
    pub facts: Facts,
    /// The original instruction being written.
    pub origin: u64,
    /// Counts.
    pub counts: Counts,
    /// Registers used by the sequence being written.
    pub busy: RegSet,
    /// Register freed by a spill for this instruction.
    pub spilled: Option<u8>,
    /// Bytes that added code pushes beyond the original's depth.
    pub extra_depth: u32,
    /// Number that the next instruction must take.
    next_label: Option<u64>,
}

impl<'a, 'b> Writer<'a, 'b> {
    fn new(cx: &'a Context<'a>, shared: &'b mut Shared, body: &'a Body, layout: &'a Layout) -> Self {
        Self {
            cx,
            shared,
            body,
            layout,
            labels: HashMap::new(),
            written: BTreeMap::new(),
            aside: Vec::new(),
            now: Vec::new(),
            facts: Facts::default(),
            origin: body.function.address,
            counts: Counts::default(),
            busy: RegSet::NONE,
            spilled: None,
            extra_depth: 0,
            next_label: None,
        }
    }

    /// Adds an instruction.
    pub fn put(&mut self, mut i: Instruction) {
        let number = self.next_label.take().unwrap_or_else(|| self.shared.number());
        i.set_ip(number);
        self.now.push(Item { instruction: i, origin: self.origin });
    }

    /// What was written of this block so far.
    pub fn written_here(&self) -> &[Item] {
        &self.now
    }

    /// Adds an instruction out of line, under a number.
    pub fn put_aside(&mut self, number: Option<u64>, mut i: Instruction) {
        let number = number.unwrap_or_else(|| self.shared.number());
        i.set_ip(number);
        self.aside.push(Item { instruction: i, origin: self.origin });
    }

    /// The next instruction gets a number that can be jumped to.
    pub fn label_next(&mut self) -> u64 {
        let shared = &mut *self.shared;
        *self.next_label.get_or_insert_with(|| shared.number())
    }

    /// Puts a number that was given before in front of what follows.
    pub fn place_label(&mut self, number: u64) {
        self.now.push(Item { instruction: placeholder(number), origin: self.origin });
    }

    /// The number of a block's start.
    fn label(&mut self, block: u64) -> u64 {
        if block == self.body.function.address {
            return self.entry(block);
        }
        let shared = &mut *self.shared;
        *self.labels.entry(block).or_insert_with(|| shared.number())
    }

    /// The number of a function's entry.
    fn entry(&mut self, function: u64) -> u64 {
        if let Some(n) = self.shared.entries.get(&function) {
            return *n;
        }
        let n = self.shared.number();
        self.shared.entries.insert(function, n);
        n
    }

    /// Writes all blocks; returns what must not be assumed at which block's start.
    fn blocks(&mut self, blocks: &[Vec<u64>], order: &[u64], bans: &Bans, cautious: bool) -> Result<Bans, Refused> {
        let by_start: HashMap<u64, &Vec<u64>> = blocks.iter().map(|b| (b[0], b)).collect();
        let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
        for b in blocks {
            for to in self.body.successors(b[b.len() - 1]) {
                before.entry(to).or_default().push(b[0]);
            }
        }
        let own = self.body.function.address;
        let mut at_start: HashMap<u64, Facts> = HashMap::new();
        let mut at_end: HashMap<u64, Facts> = HashMap::new();
        for start in order {
            let from = before.get(start).map_or(&[][..], Vec::as_slice);
            let mut facts: Option<Facts> = None;
            for b in from {
                if let Some(f) = at_end.get(b) {
                    facts = Some(facts.map_or_else(|| f.clone(), |x| x.meet(f)));
                }
            }
            let mut facts = if *start == own { Facts::default() } else { facts.unwrap_or_default() };
            if cautious {
                facts.copies.clear();
                facts.narrow = RegSet::NONE;
            }
            if let Some((banned, narrow)) = bans.get(start) {
                facts.copies.retain(|f| !banned.contains(f));
                facts.narrow = facts.narrow & !*narrow;
            }
            facts.prune(self.cx.liveness.before(own, *start));
            at_start.insert(*start, facts.clone());
            self.facts = facts;
            self.next_label = Some(self.label(*start));
            let Some(block) = by_start.get(start) else { return Err((*start, "not the start of a block".into())) };
            for address in *block {
                self.origin = *address;
                self.node(*address).map_err(|e| (*address, e))?;
            }
            // A block of nothing but fillers still needs a place to be jumped to: its number goes to what follows.
            if let Some(number) = self.next_label.take() {
                self.now.push(Item { instruction: placeholder(number), origin: *start });
            }
            self.written.insert(*start, std::mem::take(&mut self.now));
            at_end.insert(*start, self.facts.clone());
        }
        let mut out = Bans::new();
        for b in blocks {
            let Some(end) = at_end.get(&b[0]) else { continue };
            for to in self.body.successors(b[b.len() - 1]) {
                let Some(assumed) = at_start.get(&to) else { continue };
                if !assumed.implied_by(end) {
                    let entry = out.entry(to).or_default();
                    entry.0.extend(assumed.copies.difference(&end.copies));
                    entry.1 |= assumed.narrow & !end.narrow;
                }
            }
        }
        Ok(out)
    }

    /// Puts the blocks in order: from the entry upwards, then what lies below it, then what is out of line.
    fn finish(mut self, blocks: &[Vec<u64>]) -> FunctionCode {
        let own = self.body.function.address;
        let (high, low): (Vec<&Vec<u64>>, Vec<&Vec<u64>>) = blocks.iter().partition(|b| b[0] >= own);
        let mut items: Vec<Item> = Vec::new();
        for b in high.into_iter().chain(low) {
            items.extend(self.written.remove(&b[0]).unwrap_or_default());
        }
        items.append(&mut self.aside);
        merge_placeholders(&mut items);
        let entry = self.entry(own);
        take_entry_number(&mut items, entry);
        let mut counts = self.counts;
        counts.insns_in = self.body.nodes.values().filter(|n| !n.dropped).count() as u32;
        counts.dropped = self.body.nodes.values().filter(|n| n.dropped).count() as u32;
        counts.insns_out = items.len() as u32;
        FunctionCode {
            address: own,
            name: self.body.function.name.clone(),
            items,
            frame: self.body.max_depth + self.extra_depth,
            stack_args: self.layout.stack_args,
            counts,
        }
    }

    /// Writes one original instruction.
    fn node(&mut self, address: u64) -> Result<(), String> {
        let body = self.body;
        let Some(n) = body.nodes.get(&address) else { return Err("not recovered".into()) };
        if n.dropped {
            return Ok(());
        }
        self.busy = RegSet::NONE;
        self.spilled = None;
        if self.cx.options.reuse == Reuse::Access {
            self.facts.copies.clear();
        }
        if n.lock_patched || n.instruction.has_lock_prefix() {
            self.counts.locked_sites += 1;
        }
        match &n.flow {
            Flow::Next => self.plain(n)?,
            Flow::Jump(to) => {
                let label = self.label(*to);
                self.put(asm::jump(label));
            }
            Flow::Branch(to) => {
                let mut i = n.instruction;
                i.as_near_branch();
                i.set_near_branch64(self.label(*to));
                self.put(i);
            }
            Flow::Call(target) | Flow::LastCall(target) => {
                self.transfer(n, target, true)?;
                if matches!(n.flow, Flow::LastCall(_)) {
                    self.put(asm::ud2());
                }
                self.facts.after_call();
            }
            Flow::Tail(target) => self.transfer(n, target, false)?,
            Flow::BranchTail(target) => {
                let mut i = n.instruction;
                i.as_near_branch();
                let side = self.shared.number();
                i.set_near_branch64(side);
                self.put(i);
                let tail = self.tail_of(target)?;
                self.put_aside(Some(side), tail);
            }
            Flow::Return => self.put(asm::ret()),
            Flow::Trap => {
                self.counts.bug_sites += 1;
                self.put(asm::ud2());
            }
            Flow::Warn => {
                self.counts.warn_sites += 1;
                self.put(asm::call_memory(asm::constant(gate::WARN)));
            }
        }
        Ok(())
    }

    /// A jump to a target that is not indirect.
    fn tail_of(&mut self, target: &Target) -> Result<Instruction, String> {
        Ok(match target {
            Target::Function(f) if self.cx.stack_args.contains_key(f) => asm::jump(self.entry(*f)),
            Target::Function(f) => asm::jump_memory(self.refused_import(*f)),
            Target::Import(a) => asm::jump_memory(self.import(*a)?),
            Target::Register(_) | Target::Memory => return Err("conditional jump through a register".into()),
        })
    }

    fn import(&mut self, address: u64) -> Result<iced_x86::MemoryOperand, String> {
        let name = import_name(self.cx.module, address).ok_or(format!("no name for {address:#x}"))?;
        Ok(asm::import(self.shared.import(&name, address)))
    }

    /// A function of the module that could not be rewritten is called where it is, in the driver domain.
    fn refused_import(&mut self, address: u64) -> iced_x86::MemoryOperand {
        let name = self.cx.module.describe(address);
        let name = name.strip_suffix("+0x0").unwrap_or(&name).to_owned();
        asm::import(self.shared.import(&name, address))
    }

    /// A call or a final jump.
    fn transfer(&mut self, n: &Node, target: &Target, is_call: bool) -> Result<(), String> {
        const HELD: u8 = 11;
        let through = |of| if is_call { asm::call_memory(of) } else { asm::jump_memory(of) };
        match target {
            Target::Function(f) if self.cx.stack_args.contains_key(f) => {
                let entry = self.entry(*f);
                self.put(if is_call { asm::call(entry) } else { asm::jump(entry) });
            }
            Target::Function(f) => {
                let slot = self.refused_import(*f);
                self.put(through(slot));
            }
            Target::Import(a) => {
                let slot = self.import(*a)?;
                self.put(through(slot));
            }
            Target::Register(r) => {
                self.counts.indirect_sites += 1;
                if *r != HELD {
                    self.put(asm::copy(HELD, *r));
                }
                self.put(through(asm::constant(gate::ICALL)));
            }
            Target::Memory => {
                self.counts.indirect_sites += 1;
                let mut load = n.instruction;
                load.set_code(iced_x86::Code::Mov_r64_rm64);
                load.set_op0_kind(iced_x86::OpKind::Register);
                load.set_op0_register(crate::regs::register(HELD));
                load.set_op1_kind(iced_x86::OpKind::Memory);
                let load = self.redirect(n, load)?;
                self.put(load);
                self.put(through(asm::constant(gate::ICALL)));
            }
        }
        Ok(())
    }

    /// Registers and flags live before the instruction being written.
    pub fn live_before(&self) -> RegSet {
        self.cx.liveness.before(self.body.function.address, self.origin)
    }

    /// Registers and flags live after it.
    pub fn live_after(&self) -> RegSet {
        self.cx.liveness.after(self.body.function.address, self.origin)
    }

    /// Whether the image is for mirror mode.
    pub fn is_mirror(&self) -> bool {
        self.cx.options.mode == Mode::Mirror
    }

    /// Notes the effect of an original instruction on what is known.
    pub fn note(&mut self, n: &Node) {
        use iced_x86::{Mnemonic, OpKind};
        let i = &n.instruction;
        let wide = |k: u32| {
            (i.op_kind(k) == OpKind::Register && i.op_register(k).is_gpr64())
                .then(|| number(i.op_register(k)))
                .flatten()
        };
        let constant =
            || matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64).then(|| i.immediate(1) as i64);
        match (i.mnemonic(), i.op_count().checked_sub(1).and_then(|_| wide(0))) {
            (Mnemonic::Mov, Some(to)) => {
                if let Some(from) = wide(1) {
                    let narrow = self.facts.narrow.has(from);
                    return self.facts.derive(to, from, 0, narrow);
                }
            }
            (Mnemonic::Add, Some(to)) => {
                if let Some(by) = constant() {
                    return self.facts.derive(to, to, by, false);
                }
            }
            (Mnemonic::Sub, Some(to)) => {
                if let Some(by) = constant() {
                    return self.facts.derive(to, to, by.wrapping_neg(), false);
                }
            }
            (Mnemonic::Lea, Some(to)) if i.memory_index() == iced_x86::Register::None => {
                if let (Some(from), true) = (number(i.memory_base()), i.memory_base().is_gpr64()) {
                    return self.facts.derive(to, from, i.memory_displacement64() as i64, false);
                }
            }
            _ => {}
        }
        let narrow = narrow_result(i);
        self.facts.forget(n.effect.writes);
        if let Some(r) = narrow {
            self.facts.narrow |= RegSet::one(r);
        }
    }
}

/// The register that an instruction leaves below 2^32, as far as the contract says so.
fn narrow_result(i: &Instruction) -> Option<u8> {
    use iced_x86::{Mnemonic as M, OpKind};
    if i.op_count() == 0 || i.op0_kind() != OpKind::Register {
        return None;
    }
    let to = i.op0_register();
    let plain = matches!(
        i.mnemonic(),
        M::Mov | M::Movzx | M::Add | M::Sub | M::And | M::Or | M::Xor | M::Inc | M::Dec | M::Neg | M::Not | M::Lea
    ) || (i.mnemonic() == M::Imul && i.op_count() >= 2);
    let shift = matches!(i.mnemonic(), M::Shl | M::Shr | M::Sar) && i.op1_kind() == OpKind::Immediate8;
    let constant = shift && i.immediate(1) & 31 != 0;
    if to.is_gpr32() && (plain || constant) {
        return number(to);
    }
    if to.is_gpr64() && i.mnemonic() == M::Shr && shift && (32..64).contains(&i.immediate(1)) {
        return number(to);
    }
    None
}

/// Stands for a block without instructions until the order is known.
fn placeholder(number: u64) -> Instruction {
    let mut i = Instruction::with(iced_x86::Code::Nopd);
    i.set_ip(number);
    i
}

fn is_placeholder(i: &Item) -> bool {
    i.instruction.code() == iced_x86::Code::Nopd
}

/// The first instruction has the number that other functions call.
fn take_entry_number(items: &mut [Item], entry: u64) {
    let Some(first) = items.first().map(|i| i.instruction.ip()).filter(|n| *n != entry) else { return };
    for item in items.iter_mut() {
        let i = &mut item.instruction;
        if i.ip() == first {
            i.set_ip(entry);
        }
        if i.op_count() == 1 && i.op0_kind() == iced_x86::OpKind::NearBranch64 && i.near_branch64() == first {
            i.set_near_branch64(entry);
        }
    }
}

/// Gives the numbers of placeholders to the instruction that follows, by renaming jumps.
fn merge_placeholders(items: &mut Vec<Item>) {
    let mut renamed: HashMap<u64, u64> = HashMap::new();
    let mut follows = None;
    for item in items.iter().rev() {
        if is_placeholder(item) {
            if let Some(number) = follows {
                renamed.insert(item.instruction.ip(), number);
            }
        } else {
            follows = Some(item.instruction.ip());
        }
    }
    items.retain(|i| !is_placeholder(i));
    for item in items.iter_mut() {
        let i = &mut item.instruction;
        if i.op_count() == 1 && i.op0_kind() == iced_x86::OpKind::NearBranch64 {
            if let Some(to) = renamed.get(&i.near_branch64()) {
                i.set_near_branch64(*to);
            }
        }
    }
}
