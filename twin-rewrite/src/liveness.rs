//! Which registers and flags are dead after each instruction, over all functions at once.

use crate::program::{Body, Flow, Node, Program, Target, IMPORT_READS};
use crate::regs::RegSet;
use std::collections::HashMap;

/// Live sets of every instruction.
#[derive(Debug, Default)]
pub struct Liveness {
    before: HashMap<(u64, u64), RegSet>,
    after: HashMap<(u64, u64), RegSet>,
    /// Live at each function's start.
    entry: HashMap<u64, RegSet>,
}

impl Liveness {
    /// Live before the instruction at `address` of the function `function`.
    pub fn before(&self, function: u64, address: u64) -> RegSet {
        self.before.get(&(function, address)).copied().unwrap_or(RegSet::GENERAL | RegSet::FLAGS)
    }

    /// Live after it, on any way on.
    pub fn after(&self, function: u64, address: u64) -> RegSet {
        self.after.get(&(function, address)).copied().unwrap_or(RegSet::GENERAL | RegSet::FLAGS)
    }
}

/// Solves liveness to a fixed point: what a function reads of its arguments feeds its callers.
pub fn solve(p: &Program) -> Liveness {
    let mut out = Liveness::default();
    let mut entry: HashMap<u64, RegSet> = HashMap::new();
    loop {
        let mut changed = false;
        for (address, body) in &p.bodies {
            solve_body(*address, body, &entry, &mut out);
            let at_entry = out.before(*address, *address);
            if entry.insert(*address, at_entry) != Some(at_entry) {
                changed = true;
            }
        }
        if !changed {
            out.entry = entry;
            return out;
        }
    }
}

/// Liveness of one function of a program that is otherwise solved. `None` if it reads more of its arguments than its
/// callers were told.
pub fn solve_one(solved: &Liveness, address: u64, body: &Body) -> Option<Liveness> {
    let mut out = Liveness::default();
    solve_body(address, body, &solved.entry, &mut out);
    let told = solved.entry.get(&address).copied().unwrap_or_default();
    (out.before(address, address) & !told).is_empty().then_some(out)
}

fn solve_body(function: u64, body: &Body, entry: &HashMap<u64, RegSet>, out: &mut Liveness) {
    loop {
        let mut changed = false;
        for (address, node) in body.nodes.iter().rev() {
            let mut after = RegSet::NONE;
            for to in body.successors(*address) {
                after |= out.before.get(&(function, to)).copied().unwrap_or_default();
            }
            let before = transfer(node, after, entry);
            out.after.insert((function, *address), after);
            if out.before.insert((function, *address), before) != Some(before) {
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

fn reads_of(target: &Target, entry: &HashMap<u64, RegSet>) -> RegSet {
    match target {
        // A function not solved yet reads nothing so far; the outer loop comes back.
        Target::Function(f) => entry.get(f).copied().unwrap_or_default() & (RegSet::ARGUMENTS | RegSet::one(0)),
        Target::Import(_) | Target::Memory => IMPORT_READS,
        Target::Register(r) => IMPORT_READS | RegSet::one(*r),
    }
}

fn transfer(node: &Node, after: RegSet, entry: &HashMap<u64, RegSet>) -> RegSet {
    let e = &node.effect;
    match &node.flow {
        Flow::Call(target) | Flow::LastCall(target) => {
            let kept = after & !(RegSet::CALLER_SAVED | RegSet::FLAGS);
            kept | reads_of(target, entry) | RegSet::RSP | (e.reads & RegSet::GENERAL)
        }
        Flow::Tail(target) => RegSet::CALLEE_SAVED | reads_of(target, entry) | (e.reads & RegSet::GENERAL),
        Flow::BranchTail(target) => after | e.reads | RegSet::CALLEE_SAVED | reads_of(target, entry),
        Flow::Return => RegSet::CALLEE_SAVED | RegSet::RESULTS,
        Flow::Trap => RegSet::NONE,
        Flow::Next | Flow::Warn | Flow::Jump(_) | Flow::Branch(_) => (after & !e.kills) | e.reads,
    }
}
