//! Finds what the image has to declare at each label: a forward pass over the *new* code, to a fixed point.
//!
//! This knows nothing of what the emitter intended. It only asks what the finished code guarantees under the rules of
//! the contract, so a declaration never claims more than the code keeps.

use crate::asm::CODE_BASE;
use crate::emit::Item;
use crate::options::Mode;
use crate::regs::{number, RegSet, RSP};
use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::{BTreeMap, HashMap};
use twin_abi::kind::{Frame, Kind, State, CALLEE_SAVED};
use twin_abi::layout::{
    constant, ctx, gate, CALL_TABLE_OFFSET, CONST_OFFSET, CTX_OFFSET, PAGE_SIZE, STLB_INDEX_MASK, STLB_OFFSET,
};

/// What is known before an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    kinds: [Kind; 16],
    frame: Frame,
}

impl Known {
    fn entry() -> Self {
        Self { kinds: [Kind::Any; 16], frame: Frame::default() }
    }

    fn get(&self, r: Register) -> Kind {
        number(r).filter(|_| r.is_gpr64()).map_or(Kind::Any, |n| self.kinds[usize::from(n)])
    }

    fn set(&mut self, r: u8, kind: Kind) {
        if r != RSP {
            self.kinds[usize::from(r)] = kind;
        }
    }

    fn meet(&mut self, other: &Self, mode: Mode) -> Result<bool, String> {
        if self.frame != other.frame {
            return Err(format!("frames differ: {:?} and {:?}", self.frame, other.frame));
        }
        let mut changed = false;
        for (a, b) in self.kinds.iter_mut().zip(&other.kinds) {
            let met = meet(*a, *b, mode);
            changed |= met != *a;
            *a = met;
        }
        Ok(changed)
    }

    fn state(&self) -> State {
        let mut s = State { regs: 0, frame: self.frame };
        for (r, kind) in (0u8..).zip(&self.kinds) {
            s.set_kind(r, *kind);
        }
        s
    }
}

/// Below 2^32 for certain.
fn is_narrow(k: Kind) -> bool {
    matches!(k, Kind::U32 | Kind::PageOffset | Kind::StlbIndex | Kind::CallIndex)
}

fn meet(a: Kind, b: Kind, mode: Mode) -> Kind {
    if a == b {
        return a;
    }
    if is_narrow(a) && is_narrow(b) {
        return Kind::U32;
    }
    let masked = |k| k == Kind::Masked || is_narrow(k);
    if mode == Mode::Mirror && masked(a) && masked(b) {
        return Kind::Masked;
    }
    Kind::Any
}

/// What to declare at each label of a function, by number. The function's own start is always declared empty.
pub fn labels(items: &[Item], mode: Mode, mask_bits: u32) -> Result<BTreeMap<u64, State>, String> {
    let index: HashMap<u64, usize> = items.iter().enumerate().map(|(k, i)| (i.instruction.ip(), k)).collect();
    let mut known: BTreeMap<usize, Known> = BTreeMap::new();
    let mut factory = InstructionInfoFactory::new();
    let targets: Vec<Option<usize>> =
        items.iter().map(|i| local_target(&i.instruction).and_then(|t| index.get(&t).copied())).collect();
    let mut is_label = vec![false; items.len()];
    for t in targets.iter().flatten() {
        is_label[*t] = true;
    }
    is_label[0] = true;
    known.insert(0, Known::entry());
    let mut work = vec![0];
    while let Some(start) = work.pop() {
        let mut now = known[&start].clone();
        let mut k = start;
        loop {
            let i = &items[k].instruction;
            let origin = items[k].origin;
            let place = |e: String| format!("{origin:#x}: {e}");
            step(&mut now, items, k, mode, mask_bits, &mut factory);
            if let Some(t) = targets[k] {
                let on_jump = now.clone();
                flow_to(&mut known, &mut work, t, on_jump, mode).map_err(place)?;
            }
            if falls(i) {
                after_compare(&mut now, items, k, mode);
                k += 1;
                if k >= items.len() {
                    return Err("the code runs over its end".into());
                }
                if is_label[k] {
                    flow_to(&mut known, &mut work, k, now, mode).map_err(place)?;
                    break;
                }
            } else {
                break;
            }
        }
    }
    Ok(known.iter().filter(|(k, _)| is_label[**k]).map(|(k, v)| (items[*k].instruction.ip(), v.state())).collect())
}

fn flow_to(
    known: &mut BTreeMap<usize, Known>,
    work: &mut Vec<usize>,
    to: usize,
    with: Known,
    mode: Mode,
) -> Result<(), String> {
    match known.get_mut(&to) {
        None => {
            known.insert(to, with);
            work.push(to);
        }
        Some(old) => {
            let mut with = with;
            if to == 0 {
                with.kinds = [Kind::Any; 16];
            }
            if old.meet(&with, mode)? {
                work.push(to);
            }
        }
    }
    Ok(())
}

fn falls(i: &Instruction) -> bool {
    !matches!(
        i.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception
    )
}

/// The jump target inside the function; calls are not jumps.
fn local_target(i: &Instruction) -> Option<u64> {
    let jumps = matches!(i.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
    (jumps && i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch64())
}

/// The way not taken of `cmp r, 4095; ja` knows in stlb mode that r is an offset in a page. In mirror mode a branch
/// says nothing of values.
fn after_compare(now: &mut Known, items: &[Item], k: usize, mode: Mode) {
    if mode == Mode::Mirror || items[k].instruction.mnemonic() != Mnemonic::Ja || k == 0 {
        return;
    }
    let c = &items[k - 1].instruction;
    let bound = c.mnemonic() == Mnemonic::Cmp && c.op0_kind() == OpKind::Register && c.op0_register().is_gpr64();
    if bound && matches!(c.op1_kind(), OpKind::Immediate32to64) && c.immediate(1) == PAGE_SIZE - 1 {
        if let Some(r) = number(c.op0_register()) {
            now.set(r, Kind::PageOffset);
        }
    }
}

/// The word that a RIP-relative operand names, as an offset in the area that it lies in.
fn word(i: &Instruction) -> Option<u64> {
    (i.memory_base() == Register::RIP).then(|| i.memory_displacement64())
}

fn step(now: &mut Known, items: &[Item], k: usize, mode: Mode, mask_bits: u32, factory: &mut InstructionInfoFactory) {
    let i = &items[k].instruction;
    if matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        let gates = [gate::STLB_MISS, gate::WARN].map(|g| u64::from(CONST_OFFSET + g));
        if !word(i).is_some_and(|w| gates.contains(&w)) {
            for r in RegSet::CALLER_SAVED.general() {
                now.set(r, Kind::Any);
            }
        }
        return;
    }
    if stack_step(now, i) {
        return;
    }
    if i.mnemonic() == Mnemonic::Xchg && i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register {
        if let (Some(a), Some(b), true, true) = (
            number(i.op0_register()),
            number(i.op1_register()),
            i.op0_register().is_gpr64(),
            i.op1_register().is_gpr64(),
        ) {
            now.kinds.swap(usize::from(a), usize::from(b));
            return;
        }
    }
    let made = made(now, i, mode, mask_bits);
    let info = factory.info(i);
    for used in info.used_registers() {
        let writes =
            !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess);
        if let (true, Some(r)) = (writes, number(used.register())) {
            now.set(r, Kind::Any);
        }
    }
    if let Some((r, kind)) = made {
        now.set(r, kind);
    }
}

/// Pushes, pops and moves of the stack pointer.
fn stack_step(now: &mut Known, i: &Instruction) -> bool {
    let saved_slot = |r: u8| CALLEE_SAVED.iter().position(|c| *c == r);
    match i.mnemonic() {
        Mnemonic::Push => {
            now.frame.depth += 1;
            if let Some(s) = number(i.op0_register()).and_then(saved_slot) {
                if now.frame.saved[s] == 0 {
                    now.frame.saved[s] = u8::try_from(now.frame.depth).unwrap_or(0);
                }
            }
        }
        Mnemonic::Pop => {
            if let Some(r) = number(i.op0_register()) {
                if let Some(s) = saved_slot(r) {
                    if u16::from(now.frame.saved[s]) == now.frame.depth {
                        now.frame.saved[s] = 0;
                    }
                }
                now.set(r, Kind::Any);
            }
            now.frame.depth = now.frame.depth.saturating_sub(1);
        }
        Mnemonic::Sub | Mnemonic::Add | Mnemonic::Lea if i.op0_register() == Register::RSP => {
            let by = match i.mnemonic() {
                Mnemonic::Sub => i.immediate(1) as i64,
                Mnemonic::Add => -(i.immediate(1) as i64),
                _ => -(i.memory_displacement64() as i64),
            };
            now.frame.depth = u16::try_from(i64::from(now.frame.depth) + by / 8).unwrap_or(0);
        }
        _ => return false,
    }
    true
}

/// The kind that an instruction gives to its first operand.
fn made(now: &Known, i: &Instruction, mode: Mode, mask_bits: u32) -> Option<(u8, Kind)> {
    use Mnemonic as M;
    if i.op_count() == 0 || i.op0_kind() != OpKind::Register {
        return None;
    }
    let to = i.op0_register();
    let r = number(to)?;
    let kind = if to.is_gpr64() {
        match i.mnemonic() {
            M::Pext if word(i) == Some(u64::from(CONST_OFFSET + constant::MASK)) => Kind::Masked,
            M::And if word(i) == Some(u64::from(CONST_OFFSET + constant::MASK)) => Kind::Masked,
            M::Mov => match i.op1_kind() {
                OpKind::Register => now.get(i.op1_register()),
                OpKind::Memory => loaded(word(i)?, mode)?,
                OpKind::Immediate64 | OpKind::Immediate32to64 => {
                    let value = i.immediate(1);
                    if u32::try_from(value).is_ok() {
                        Kind::U32
                    } else if mode == Mode::Mirror && value >> mask_bits == 0 {
                        Kind::Masked
                    } else {
                        return None;
                    }
                }
                _ => return None,
            },
            M::Lea => match word(i)? {
                w if w == u64::from(STLB_OFFSET) => Kind::StlbBase,
                w if w == u64::from(CALL_TABLE_OFFSET) => Kind::CallBase,
                _ => return None,
            },
            M::Shr if i.op1_kind() == OpKind::Immediate8 && (32..64).contains(&i.immediate(1)) => Kind::U32,
            M::Add if i.op1_kind() == OpKind::Memory => {
                let table = now.get(i.memory_base()) == Kind::StlbBase && now.get(i.memory_index()) == Kind::StlbIndex;
                if table && i.memory_displacement64() == 8 && now.get(to) == Kind::PageOffset {
                    Kind::Window
                } else {
                    return None;
                }
            }
            _ => return None,
        }
    } else if to.is_gpr32() {
        match i.mnemonic() {
            M::And if mode == Mode::Stlb && i.code() == Code::And_rm32_imm32 && i.immediate32() == STLB_INDEX_MASK => {
                Kind::StlbIndex
            }
            M::Mov
            | M::Movzx
            | M::Add
            | M::Sub
            | M::And
            | M::Or
            | M::Xor
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Not
            | M::Lea => Kind::U32,
            M::Imul if i.op_count() >= 2 => Kind::U32,
            M::Shl | M::Shr | M::Sar if i.op1_kind() == OpKind::Immediate8 && i.immediate(1) & 31 != 0 => Kind::U32,
            _ => return None,
        }
    } else {
        return None;
    };
    Some((r, kind))
}

/// The kind of a loaded word.
fn loaded(word: u64, mode: Mode) -> Option<Kind> {
    let c = |offset: u32| u64::from(CONST_OFFSET + offset);
    debug_assert!(CODE_BASE > word);
    Some(if word == c(constant::DELTA) {
        Kind::Delta
    } else if word == c(constant::MASK) && mode == Mode::Mirror {
        Kind::Mask
    } else if word == c(constant::BITS) && mode == Mode::Mirror {
        Kind::Bits
    } else if word == c(constant::PERCPU) && mode == Mode::Mirror {
        Kind::Masked
    } else if word == u64::from(CTX_OFFSET + ctx::MISS_RESULT) && mode == Mode::Stlb {
        Kind::Window
    } else {
        return None;
    })
}
