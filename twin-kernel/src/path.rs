//! Which functions of a module are on the transmit or receive path: what its entry points reach by calls and jumps of
//! its own.

use crate::driver::Live;
use iced_x86::{Mnemonic, OpKind};
use std::collections::{BTreeMap, BTreeSet};
use twin_rewrite::module::Module;
use twin_rewrite::program::{import_name, recover, Body, Flow, Node, Program, Refusal, Target};
use twin_rewrite::regs::{number, RegSet, RSP};
use twin_runtime::linux::Routine;

/// The transmit routine, the interrupt handlers and the polls of a live driver.
#[must_use]
pub fn entries(live: &Live) -> Vec<u64> {
    let handlers = live.net.irqs.iter().map(|(_, handler, _)| *handler);
    let polls = live.net.napi.iter().map(|(_, poll)| *poll);
    handlers.chain(polls).chain([live.net.start_xmit]).collect()
}

/// Addresses of all functions of the module that `entries` reach. What is called through pointers is not followed.
#[must_use]
pub fn reached(module: &Module, entries: &[u64]) -> BTreeSet<u64> {
    reached_in(&recover(module), entries)
}

fn reached_in(program: &Program, entries: &[u64]) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut next = entries.to_vec();
    while let Some(address) = next.pop() {
        if !found.insert(address) {
            continue;
        }
        let nodes = program.bodies.get(&address).map(|body| body.nodes.values());
        next.extend(nodes.into_iter().flatten().filter_map(|node| match &node.flow {
            Flow::Call(Target::Function(to))
            | Flow::LastCall(Target::Function(to))
            | Flow::Tail(Target::Function(to))
            | Flow::BranchTail(Target::Function(to)) => Some(*to),
            _ => None,
        }));
    }
    found
}

/// Whether the function that was refused is one of these.
#[must_use]
pub fn is_among(module: &Module, refused: &Refusal, functions: &BTreeSet<u64>) -> bool {
    let named = |address: &u64| module.functions.iter().any(|f| f.address == *address && f.name == refused.function);
    functions.iter().any(named)
}

/// A call of the domain's function that gets the address of a variable on the twin's stack, which means nothing to the
/// domain: the twin is aborted there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lent {
    /// The function that calls.
    pub function: String,
    /// Address of the call.
    pub address: u64,
    /// What is called.
    pub import: String,
}

/// The calls in what `entries` reach that hand a variable's address to what no routine stands for. Addresses that were
/// in memory meanwhile are not followed.
#[must_use]
pub fn lent(module: &Module, entries: &[u64]) -> Vec<Lent> {
    let program = recover(module);
    let mut found = Vec::new();
    for body in reached_in(&program, entries).iter().filter_map(|address| program.bodies.get(address)) {
        for (address, state) in stack_addresses(body) {
            let Some(import) = body.nodes.get(&address).and_then(|node| upcall(module, node)) else { continue };
            if state.meets(RegSet::ARGUMENTS) {
                found.push(Lent { function: body.function.name.clone(), address, import });
            }
        }
    }
    found
}

/// What the domain does for the twin at this instruction.
fn upcall(module: &Module, node: &Node) -> Option<String> {
    let (Flow::Call(Target::Import(to)) | Flow::Tail(Target::Import(to))) = &node.flow else { return None };
    import_name(module, *to).filter(|name| !node.dropped && Routine::by_name(name).is_none())
}

/// Before each instruction: the registers that may hold an address on the stack.
fn stack_addresses(body: &Body) -> BTreeMap<u64, RegSet> {
    let mut states = BTreeMap::from([(body.function.address, RegSet::NONE)]);
    let mut next = vec![body.function.address];
    while let Some(address) = next.pop() {
        let (Some(node), Some(before)) = (body.nodes.get(&address), states.get(&address).copied()) else { continue };
        let after = follow(node, before);
        let behind = Some((node.instruction.next_ip(), after));
        // What a call gets is set before it in one line, mostly: what is still in a register behind a jump was for
        // something else.
        let by_jump = |to| Some((to, after & !RegSet::CALLER_SAVED));
        let ways = match node.flow {
            Flow::Next | Flow::Warn | Flow::Call(_) | Flow::BranchTail(_) => [behind, None],
            Flow::Jump(to) => [by_jump(to), None],
            Flow::Branch(to) => [behind, by_jump(to)],
            _ => [None, None],
        };
        for (to, after) in ways.into_iter().flatten() {
            let known = states.get(&to).copied();
            let joined = known.unwrap_or(RegSet::NONE) | after;
            if known != Some(joined) {
                states.insert(to, joined);
                next.push(to);
            }
        }
    }
    states
}

/// The registers that may hold an address on the stack behind an instruction.
fn follow(node: &Node, before: RegSet) -> RegSet {
    if node.dropped {
        return before;
    }
    if matches!(node.flow, Flow::Call(_)) {
        return before & !RegSet::CALLER_SAVED;
    }
    let i = &node.instruction;
    let is_address = |r| number(r).is_some_and(|r| r == RSP || before.has(r));
    let to = number(i.op0_register()).filter(|to| i.op_count() > 1 && i.op0_register().is_gpr64() && *to != RSP);
    let makes = match i.mnemonic() {
        Mnemonic::Lea => is_address(i.memory_base()) || is_address(i.memory_index()),
        Mnemonic::Mov => i.op1_kind() == OpKind::Register && is_address(i.op1_register()),
        Mnemonic::Add | Mnemonic::Sub => is_address(i.op0_register()),
        _ => false,
    };
    // What is read or written through a register is hardly what a call gets as well.
    let used = [i.memory_base(), i.memory_index()].into_iter().filter_map(number);
    let used = used.filter(|_| i.mnemonic() != Mnemonic::Lea).fold(RegSet::NONE, |set, r| set | RegSet::one(r));
    let kept = before & !node.effect.writes & !(used & RegSet::CALLER_SAVED);
    match to {
        Some(to) if makes => kept | RegSet::one(to),
        _ => kept,
    }
}
