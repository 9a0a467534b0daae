//! Control-flow recovery: decodes the functions of a module and finds what each instruction leads to.

use crate::allowed::is_allowed;
use crate::frame_pointer::{self, Frames};
use crate::module::{Function, Module};
use crate::regs::{effect, number, Effect, RegSet, RSP};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is called or jumped to beyond the function itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A function of the module, by original address.
    Function(u64),
    /// A function outside, by address; `Program::import_name` names it.
    Import(u64),
    /// The address in a register (a plain or thunked indirect transfer).
    Register(u8),
    /// The address in memory: the operand of the instruction itself.
    Memory,
}

/// Where control goes after an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// To one place in the same function.
    Jump(u64),
    /// To one of two places in the same function.
    Branch(u64),
    /// Through a call and on.
    Call(Target),
    /// Through a call that never comes back.
    LastCall(Target),
    /// Away, by a jump, with the caller's return address on the stack.
    Tail(Target),
    /// Away, by a conditional jump; else on.
    BranchTail(Target),
    /// Back to the caller.
    Return,
    /// Nowhere: a deliberate fault (BUG).
    Trap,
    /// On, after a report (WARN).
    Warn,
}

/// One recovered instruction.
#[derive(Debug, Clone)]
pub struct Node {
    /// As decoded.
    pub instruction: Instruction,
    /// Where it leads.
    pub flow: Flow,
    /// Registers read and written, calls apart.
    pub effect: Effect,
    /// Bytes between the stack pointer and the return address, before the instruction.
    pub depth: u32,
    /// The LOCK prefix was patched into a segment prefix because the domain had one CPU.
    pub lock_patched: bool,
    /// Has no effect in a twin: padding, hooks of tracing and preemption, prefetches.
    pub dropped: bool,
    /// Written in place of the instruction, where that takes more than one.
    pub expansion: Vec<Instruction>,
}

/// The recovered body of a function, with its cold parts.
#[derive(Debug, Clone)]
pub struct Body {
    /// The symbol.
    pub function: Function,
    /// Instructions by original address.
    pub nodes: BTreeMap<u64, Node>,
    /// Addresses that are jumped to.
    pub labels: BTreeSet<u64>,
    /// Largest depth of the stack inside.
    pub max_depth: u32,
}

/// A function that could not be recovered, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the function.
    pub function: String,
    /// Original address of the instruction.
    pub address: u64,
    /// The reason.
    pub reason: String,
}

/// The recovered program.
#[derive(Debug, Default)]
pub struct Program {
    /// Bodies by entry address.
    pub bodies: BTreeMap<u64, Body>,
    /// Functions that could not be recovered.
    pub refused: Vec<Refusal>,
}

/// Where the processor's mitigations redirect an indirect transfer, in register order of the kernel's thunk names.
const THUNK_REGISTERS: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// The register of an indirect-branch thunk, if `names` are those of one.
pub fn thunk_register(names: &[&str]) -> Option<u8> {
    for name in names {
        let Some(register) =
            name.strip_prefix("__x86_indirect_thunk_").or(name.strip_prefix("__x86_indirect_its_thunk_"))
        else {
            continue;
        };
        if let Some(n) = THUNK_REGISTERS.iter().position(|r| *r == register) {
            return Some(n as u8);
        }
    }
    names.iter().any(|n| *n == "__indirect_thunk_start" || *n == "__x86_indirect_thunk_array").then_some(0)
}

/// Whether `names` are those of the thunk of returns.
pub fn is_return_thunk(names: &[&str]) -> bool {
    names.iter().any(|n| n.ends_with("return_thunk"))
}

/// Calls that have no effect in a twin, which is never preempted, and that leave all registers alone.
pub fn is_preemption_hook(names: &[&str]) -> bool {
    names.iter().any(|n| n.contains("preempt_schedule") || *n == "__fentry__")
}

/// Whether `names` are those of a function that notes in the running task that it reads what RCU frees, or has read it.
/// A twin runs in no task: the two calls would be the domain's, perhaps in two of its tasks, and if the twin ended
/// between them one would read for ever. Where readers cannot be preempted Linux has no such functions.
pub fn is_reader_mark(names: &[&str]) -> bool {
    names.iter().any(|n| matches!(*n, "__rcu_read_lock" | "__rcu_read_unlock"))
}

/// Whether a twin does without calls of the function with these names.
pub fn has_no_effect(names: &[&str]) -> bool {
    is_preemption_hook(names) || is_reader_mark(names)
}

fn never_returns(names: &[&str]) -> bool {
    const NAMES: [&str; 4] = ["__stack_chk_fail", "panic", "fortify_panic", "__fortify_panic"];
    names.iter().any(|n| NAMES.contains(n))
}

/// Name of an imported symbol at `address`. Of several, the one without leading underscores, the shortest, the first.
pub fn import_name(m: &Module, address: u64) -> Option<String> {
    m.externs.names(address).into_iter().min_by_key(|n| (n.starts_with('_'), n.len(), *n)).map(Into::into)
}

/// Whether `name` is a part that the compiler split off a function because it is seldom run.
fn is_cold_part(name: &str) -> bool {
    name.contains(".cold")
}

/// Recovers every function of `m`.
pub fn recover(m: &Module) -> Program {
    let mut out = Program::default();
    let entries = entries(m);
    for f in m.functions.iter().filter(|f| !is_cold_part(&f.name) && f.len > 0) {
        match recover_function(m, f, &entries) {
            Ok(body) => drop(out.bodies.insert(f.address, body)),
            Err((address, reason)) => out.refused.push(Refusal { function: f.name.clone(), address, reason }),
        }
    }
    out
}

/// The starts of all functions.
pub fn entries(m: &Module) -> BTreeSet<u64> {
    m.functions.iter().filter(|f| !is_cold_part(&f.name)).map(|f| f.address).collect()
}

type Refused = (u64, String);

/// Recovers one function; an error names the instruction.
pub fn recover_function(m: &Module, f: &Function, entries: &BTreeSet<u64>) -> Result<Body, Refused> {
    let mut factory = InstructionInfoFactory::new();
    let mut body = Body { function: f.clone(), nodes: BTreeMap::new(), labels: BTreeSet::new(), max_depth: 0 };
    let has_frame_pointer = has_frame_pointer(m, f);
    let mut queue = VecDeque::from([(f.address, 0u32, Frames::default())]);
    while let Some((address, depth, mut frames)) = queue.pop_front() {
        if let Some(known) = body.nodes.get(&address) {
            if known.depth != depth {
                return Err((address, format!("the stack has depth {} or {depth}", known.depth)));
            }
            continue;
        }
        if overlaps(&body, address) {
            return Err((address, "jump into the middle of an instruction".into()));
        }
        let mut instruction = decode(m, address).map_err(|e| (address, e))?;
        if body.nodes.range(address + 1..).next().is_some_and(|(later, _)| *later < instruction.next_ip()) {
            return Err((address, "jump into the middle of an instruction".into()));
        }
        let lock_patched = is_patched_lock(m, &instruction);
        let mut expansion = Vec::new();
        let mut new_depth = None;
        let mut dropped = is_without_effect(m, &instruction);
        if has_frame_pointer && !dropped {
            if let Some(mut r) = frames.follow(&instruction, depth).map_err(|e| (address, e))? {
                frame_pointer::place(&mut r.by, &instruction);
                new_depth = Some(r.depth);
                match r.by.len() {
                    0 => dropped = true,
                    1 => instruction = r.by[0],
                    _ => expansion = r.by,
                }
            }
        }
        let flow = if dropped || !expansion.is_empty() {
            Flow::Next
        } else {
            flow(m, &instruction, f.address, entries).map_err(|e| (address, e))?
        };
        let effect = if dropped {
            Effect::default()
        } else if !expansion.is_empty() {
            let popped = frame_pointer::popped(&expansion);
            Effect { reads: RegSet::RSP, kills: popped, writes: popped }
        } else {
            effect(&instruction, &mut factory)
        };
        let after = match new_depth {
            Some(d) => d,
            None => depth_after(&instruction, depth, &effect, &flow).map_err(|e| (address, e))?,
        };
        if instruction.mnemonic() != Mnemonic::Pop {
            frames.written(effect.writes);
        }
        body.max_depth = body.max_depth.max(after).max(depth);
        let next = instruction.next_ip();
        let mut follow = |to: u64, is_label: bool| {
            if is_label {
                body.labels.insert(to);
            }
            queue.push_back((to, after, frames.clone()));
        };
        match &flow {
            Flow::Next | Flow::Warn | Flow::Call(_) => follow(next, false),
            Flow::Jump(to) => follow(*to, true),
            Flow::Branch(to) => {
                follow(next, false);
                follow(*to, true);
            }
            Flow::BranchTail(_) => follow(next, false),
            Flow::LastCall(_) | Flow::Tail(_) | Flow::Return | Flow::Trap => {}
        }
        let leaves = matches!(flow, Flow::Tail(_) | Flow::BranchTail(_) | Flow::Return);
        if leaves && depth != 0 {
            return Err((address, format!("leaves the function with {depth} bytes on the stack")));
        }
        if flow == Flow::Next && entries.contains(&next) {
            return Err((address, "runs on into the next function".into()));
        }
        body.nodes.insert(address, Node { instruction, flow, effect, depth, lock_patched, dropped, expansion });
    }
    Ok(body)
}

/// Whether the function addresses its frame through a register of its own.
fn has_frame_pointer(m: &Module, f: &Function) -> bool {
    let mut at = f.address;
    while at < f.address + f.len {
        let Ok(i) = decode(m, at) else { return false };
        if frame_pointer::is_sign(&i) {
            return true;
        }
        at = i.next_ip();
    }
    false
}

fn overlaps(body: &Body, address: u64) -> bool {
    body.nodes.range(..address).next_back().is_some_and(|(_, n)| n.instruction.next_ip() > address)
}

/// Whether a twin can do without the instruction: padding, prefetches, calls of hooks and of what marks a reader.
fn is_without_effect(m: &Module, i: &Instruction) -> bool {
    match i.mnemonic() {
        Mnemonic::Nop | Mnemonic::Reservednop | Mnemonic::Fnop => true,
        Mnemonic::Prefetcht0 | Mnemonic::Prefetcht1 | Mnemonic::Prefetcht2 | Mnemonic::Prefetchnta => true,
        Mnemonic::Prefetchw => true,
        Mnemonic::Call => i.is_call_near() && has_no_effect(&m.externs.names(i.near_branch_target())),
        _ => false,
    }
}

fn decode(m: &Module, address: u64) -> Result<Instruction, String> {
    let section = m.section(address).filter(|s| s.executable).ok_or("runs out of the text")?;
    let bytes = &section.bytes[(address - section.address) as usize..];
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let i = decoder.decode();
    if i.is_invalid() {
        let shown: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
        return Err(format!("not an instruction: {}", shown.join(" ")));
    }
    Ok(i)
}

fn flow(m: &Module, i: &Instruction, own: u64, entries: &BTreeSet<u64>) -> Result<Flow, String> {
    let outside = |to: u64| -> Result<Target, String> {
        if let Some(register) = thunk_register(&m.externs.names(to)) {
            return Ok(Target::Register(register));
        }
        import_name(m, to).map(|_| Target::Import(to)).ok_or(format!("transfer to {to:#x}, which no symbol names"))
    };
    Ok(match i.flow_control() {
        FlowControl::Next if i.mnemonic() == Mnemonic::Leave || is_allowed(i) => Flow::Next,
        FlowControl::Next => return Err(format!("{:?} cannot be part of a twin", i.mnemonic())),
        FlowControl::Return if i.mnemonic() == Mnemonic::Ret && i.op_count() == 0 => Flow::Return,
        FlowControl::UnconditionalBranch => {
            let to = i.near_branch_target();
            let names = m.externs.names(to);
            if is_return_thunk(&names) || is_reader_mark(&names) {
                Flow::Return
            } else if is_outside(m, to) {
                Flow::Tail(outside(to)?)
            } else if entries.contains(&to) && to != own {
                Flow::Tail(Target::Function(to))
            } else {
                Flow::Jump(to)
            }
        }
        FlowControl::ConditionalBranch => {
            let to = i.near_branch_target();
            if is_outside(m, to) {
                Flow::BranchTail(outside(to)?)
            } else if entries.contains(&to) && to != own {
                Flow::BranchTail(Target::Function(to))
            } else {
                Flow::Branch(to)
            }
        }
        FlowControl::Call if i.is_call_near() => {
            let to = i.near_branch_target();
            if entries.contains(&to) {
                Flow::Call(Target::Function(to))
            } else if !is_outside(m, to) {
                return Err(format!("call of {to:#x}, which is not the start of a function"));
            } else if never_returns(&m.externs.names(to)) {
                Flow::LastCall(outside(to)?)
            } else {
                Flow::Call(outside(to)?)
            }
        }
        FlowControl::IndirectCall => Flow::Call(indirect(i)?),
        FlowControl::IndirectBranch => match indirect(i)? {
            Target::Memory => return Err("jump through memory (jump table)".into()),
            register => Flow::Tail(register),
        },
        FlowControl::Exception if i.mnemonic() == Mnemonic::Ud2 && m.is_warning(i.ip()) => Flow::Warn,
        FlowControl::Exception if i.mnemonic() == Mnemonic::Ud2 => Flow::Trap,
        _ => return Err(format!("{:?} cannot be part of a twin", i.mnemonic())),
    })
}

/// Whether an address is not part of what is rewritten: outside of the text, or a function that was left out and is
/// known as a symbol outside.
fn is_outside(m: &Module, address: u64) -> bool {
    !m.is_text(address) || !m.externs.names(address).is_empty()
}

fn indirect(i: &Instruction) -> Result<Target, String> {
    match i.op0_kind() {
        OpKind::Register if i.op0_register() == Register::RSP => Err("transfer to the stack".into()),
        OpKind::Register => {
            number(i.op0_register()).map(Target::Register).ok_or("indirect transfer by an odd register".into())
        }
        OpKind::Memory => Ok(Target::Memory),
        _ => Err("far transfer".into()),
    }
}

/// The depth behind an instruction. The stack pointer may only be moved by constants.
fn depth_after(i: &Instruction, depth: u32, effect: &Effect, flow: &Flow) -> Result<u32, String> {
    let moved = |by: i64| {
        let to = i64::from(depth) + by;
        u32::try_from(to).ok().filter(|d| *d <= 4096).ok_or(format!("the stack pointer leaves the frame (depth {to})"))
    };
    if matches!(flow, Flow::Call(_) | Flow::LastCall(_) | Flow::Return) {
        return Ok(depth);
    }
    let wide = |r: Register| r == Register::None || r.size() == 8 || !r.is_gpr();
    match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pop => {
            if !wide(i.op0_register()) || i.op0_register() == Register::RSP {
                return Err("push or pop of an odd operand".into());
            }
            moved(i64::from(-i.stack_pointer_increment()))
        }
        Mnemonic::Pushfq | Mnemonic::Popfq | Mnemonic::Enter | Mnemonic::Leave => {
            Err(format!("{:?} is not supported", i.mnemonic()))
        }
        Mnemonic::Sub | Mnemonic::Add if i.op0_register() == Register::RSP => {
            let by = match i.op1_kind() {
                OpKind::Immediate8to64 | OpKind::Immediate32to64 => i.immediate(1) as i64,
                _ => return Err("the stack pointer is moved by a variable".into()),
            };
            moved(if i.mnemonic() == Mnemonic::Sub { by } else { -by })
        }
        _ if effect.writes.has(RSP) => Err("the stack pointer is written".into()),
        _ => Ok(depth),
    }
}

/// Whether a segment prefix stands where a one-CPU kernel took the LOCK prefix away.
fn is_patched_lock(m: &Module, i: &Instruction) -> bool {
    let first = m.section(i.ip()).map(|s| s.bytes[(i.ip() - s.address) as usize]);
    if first != Some(0x3e) {
        return false;
    }
    let lockable = matches!(
        i.mnemonic(),
        Mnemonic::Add
            | Mnemonic::Adc
            | Mnemonic::And
            | Mnemonic::Btc
            | Mnemonic::Btr
            | Mnemonic::Bts
            | Mnemonic::Cmpxchg
            | Mnemonic::Cmpxchg8b
            | Mnemonic::Cmpxchg16b
            | Mnemonic::Dec
            | Mnemonic::Inc
            | Mnemonic::Neg
            | Mnemonic::Not
            | Mnemonic::Or
            | Mnemonic::Sbb
            | Mnemonic::Sub
            | Mnemonic::Xor
            | Mnemonic::Xadd
    );
    lockable && i.op0_kind() == OpKind::Memory
}

impl Body {
    /// Successors of the instruction at `address` inside the function.
    pub fn successors(&self, address: u64) -> Vec<u64> {
        let Some(n) = self.nodes.get(&address) else { return Vec::new() };
        let next = n.instruction.next_ip();
        match &n.flow {
            Flow::Next | Flow::Warn | Flow::Call(_) | Flow::BranchTail(_) => vec![next],
            Flow::Jump(to) => vec![*to],
            Flow::Branch(to) => vec![next, *to],
            Flow::LastCall(_) | Flow::Tail(_) | Flow::Return | Flow::Trap => Vec::new(),
        }
    }

    /// Basic blocks in order of address: each a run of instructions entered only at its start.
    pub fn blocks(&self) -> Vec<Vec<u64>> {
        let mut out: Vec<Vec<u64>> = Vec::new();
        let mut follows = None;
        for (address, n) in &self.nodes {
            if follows != Some(*address) || self.labels.contains(address) {
                out.push(Vec::new());
            }
            if let Some(block) = out.last_mut() {
                block.push(*address);
            }
            let goes_on =
                matches!(n.flow, Flow::Next | Flow::Warn | Flow::Call(_) | Flow::Branch(_) | Flow::BranchTail(_));
            let ends = matches!(n.flow, Flow::Branch(_) | Flow::BranchTail(_));
            follows = (goes_on && !ends).then(|| n.instruction.next_ip());
        }
        out
    }
}

/// Registers an external call may read: all that carry arguments, and the count of vector arguments.
pub const IMPORT_READS: RegSet = RegSet(RegSet::ARGUMENTS.0 | 1);
