//! Which functions of a module are on the transmit or receive path: what its entry points reach by calls and jumps of its own.

use crate::driver::Live;
use std::collections::BTreeSet;
use twin_rewrite::module::Module;
use twin_rewrite::program::{recover, Flow, Refusal, Target};

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
    let program = recover(module);
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
