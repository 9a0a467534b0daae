//! Charges loops and calls to the budget (`Options::counted`): rules B1 and B2 of the contract.
//!
//! A pass over the finished code of a function. Where a jump goes back, its target begins with a charge; a function
//! that calls functions of the image begins with one. Loops that come by a gate anyway need none: the runtime charges
//! those. A charge spoils the flags except carry, so it goes where they are not in use: in the straight code that leads
//! to the jump, or at the loop's head, or else in front of the jump with the flags saved around it.

use crate::asm;
use crate::emit::{FunctionCode, Item, Shared};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use std::collections::{BTreeSet, HashMap};
use twin_abi::layout::ctx;

const RAX: u8 = 0;
const RAX_SLOT: u32 = ctx::SPILL + 8 * 28;
const FLAGS_SLOT: u32 = ctx::SPILL + 8 * 29;
const OVERFLOW_FROM_ONE: u32 = 0x7f;
/// The flags that a decrement changes.
const SPOILED: u32 = RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;

/// Whether an instruction is the first of a charge.
pub fn is_charge(i: &Instruction) -> bool {
    let charge = asm::decrement(asm::context(ctx::BUDGET));
    i.code() == charge.code()
        && i.op0_kind() == OpKind::Memory
        && i.memory_displacement64() == charge.memory_displacement64()
}

/// Adds the charges that the contract asks for.
pub fn charge(code: &mut FunctionCode, shared: &mut Shared) {
    let items = &code.items;
    let index: HashMap<u64, usize> = items.iter().enumerate().map(|(k, i)| (i.instruction.ip(), k)).collect();
    let targets: BTreeSet<u64> = items.iter().filter_map(|i| target(&i.instruction)).collect();
    let live = live_flags(items, &index);
    let mut heads = BTreeSet::new();
    let mut jumps = BTreeSet::new();
    for (k, item) in items.iter().enumerate() {
        match target(&item.instruction).map(|t| index.get(&t)) {
            Some(Some(to)) if item.instruction.mnemonic() == Mnemonic::Call || *to > k => {}
            Some(Some(to)) if passes_gate(items, &targets, k) || is_charge(&items[*to].instruction) => {}
            Some(Some(to)) => {
                let before_flags = free_place(&items[..=k], &targets, &live);
                match before_flags.or((live[*to] & SPOILED == 0).then_some(*to)) {
                    Some(place) => heads.insert(place),
                    None => jumps.insert(k),
                };
            }
            Some(None) => drop(heads.insert(0)),
            None => {}
        }
        // A call of the function itself is one of a function of the image.
        if item.instruction.mnemonic() == Mnemonic::Call && target(&item.instruction).is_some() {
            heads.insert(0);
        }
    }
    if heads.is_empty() && jumps.is_empty() {
        return;
    }
    // A trap for each charge: what is on the stack differs.
    let mut traps = Vec::new();
    let mut out = Vec::with_capacity(items.len() + 4 * (heads.len() + jumps.len()));
    for (k, item) in code.items.iter().enumerate() {
        let trap = shared.number();
        let before = match (heads.contains(&k), jumps.contains(&k)) {
            (true, _) if !is_charge(&item.instruction) => {
                vec![asm::decrement(asm::context(ctx::BUDGET)), asm::jump_sign(trap)]
            }
            (_, true) => around(trap),
            _ => Vec::new(),
        };
        if !before.is_empty() {
            traps.push((trap, item.origin));
        }
        // What stands first takes the number that is jumped to.
        let mut number = item.instruction.ip();
        for mut i in before {
            i.set_ip(number);
            number = shared.number();
            out.push(Item { instruction: i, origin: item.origin });
        }
        let mut last = item.clone();
        last.instruction.set_ip(number);
        out.push(last);
    }
    for (trap, origin) in traps {
        let mut end = asm::ud2();
        end.set_ip(trap);
        out.push(Item { instruction: end, origin });
    }
    code.items = out;
    code.counts.insns_out = u32::try_from(code.items.len()).unwrap_or(u32::MAX);
}

/// A charge with the flags saved around it.
fn around(trap: u64) -> Vec<Instruction> {
    vec![
        asm::store(asm::context(RAX_SLOT), RAX),
        asm::lahf(),
        asm::seto_al(),
        asm::store(asm::context(FLAGS_SLOT), RAX),
        asm::load(RAX, asm::context(RAX_SLOT)),
        asm::decrement(asm::context(ctx::BUDGET)),
        asm::jump_sign(trap),
        asm::store(asm::context(RAX_SLOT), RAX),
        asm::load(RAX, asm::context(FLAGS_SLOT)),
        asm::add_al(OVERFLOW_FROM_ONE),
        asm::sahf(),
        asm::load(RAX, asm::context(RAX_SLOT)),
    ]
}

fn target(i: &Instruction) -> Option<u64> {
    (i.op_count() == 1 && i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch64())
}

/// The last place where a charge spoils no flags, in the straight code up to the jump that is the last of `items`.
fn free_place(items: &[Item], targets: &BTreeSet<u64>, live: &[u32]) -> Option<usize> {
    for (k, item) in items.iter().enumerate().rev() {
        if live[k] & SPOILED == 0 {
            return Some(k);
        }
        if targets.contains(&item.instruction.ip()) {
            return None;
        }
    }
    None
}

/// Whether the straight code before the jump at `k`, back to the last place that is jumped to, calls a gate or an
/// import.
fn passes_gate(items: &[Item], targets: &BTreeSet<u64>, k: usize) -> bool {
    for item in items[..=k].iter().rev() {
        let i = &item.instruction;
        if i.code() == Code::Call_rm64 && i.memory_base() == Register::RIP {
            return true;
        }
        if targets.contains(&i.ip()) {
            return false;
        }
    }
    false
}

/// The flags in use before each instruction. Calls and returns use none.
fn live_flags(items: &[Item], index: &HashMap<u64, usize>) -> Vec<u32> {
    let mut effects = Vec::with_capacity(items.len());
    for item in items {
        let i = &item.instruction;
        let by_count = i.op_count() == 2 && i.op1_kind() == OpKind::Register && i.op1_register() == Register::CL;
        // A shift or a repeated comparison by a count of zero leaves the flags.
        let may_keep = by_count || i.is_string_instruction();
        let kept = if may_keep { u32::MAX } else { !i.rflags_modified() };
        effects.push((i.rflags_read(), kept));
    }
    let mut live = vec![0; items.len()];
    loop {
        let mut changed = false;
        for k in (0..items.len()).rev() {
            let i = &items[k].instruction;
            let next = live.get(k + 1).copied().unwrap_or(0);
            let there = target(i).and_then(|t| index.get(&t)).map_or(0, |to| live[*to]);
            let after = match i.flow_control() {
                FlowControl::Next => next,
                FlowControl::ConditionalBranch => next | there,
                FlowControl::UnconditionalBranch => there,
                _ => 0,
            };
            let now = effects[k].0 | after & effects[k].1;
            changed |= live[k] != now;
            live[k] = now;
        }
        if !changed {
            return live;
        }
    }
}
