//! Images made of what the verifier lets pass: each step proposes a few instructions and keeps them if the image is
//! still accepted. So the result is accepted, and as strange as the rules allow.

use std::vec::Vec;

use twin_abi::image::{flags, Address, Function, ImageBuilder, Import, Label, Mode, LABEL_CHARGE};
use twin_abi::kind::{Frame, Kind, State};
use twin_abi::layout::{constant, ctx, gate, CALL_TABLE_OFFSET, CODE_OFFSET, CONST_OFFSET, IMPORT_OFFSET, STLB_OFFSET};

use super::{policy, Choices};
use crate::verify;

/// The code of an image, for a fuzzer that wants to change only that.
#[must_use]
pub fn body_of(image: &[u8]) -> Vec<u8> {
    twin_abi::Image::parse(image).map(|image| image.code().to_vec()).unwrap_or_default()
}

/// Code that grows.
#[derive(Clone)]
struct Draft {
    code: Vec<u8>,
    labels: Vec<(u32, State, u32)>,
    /// Start, end, stack arguments, and whether nothing is declared of its registers.
    functions: Vec<(u32, u32, u32, bool)>,
    start: u32,
    args: u32,
}

/// Makes an image that is accepted under [`policy`].
#[must_use]
pub fn generate(choices: &mut Choices<'_>, mode: Mode) -> Vec<u8> {
    let mut draft = Draft { code: Vec::new(), labels: Vec::new(), functions: Vec::new(), start: 0, args: 0 };
    for _ in 0..=choices.below(3) {
        begin(&mut draft, choices, mode);
        for _ in 0..choices.below(40) {
            let mut next = draft.clone();
            propose(&mut next, choices, mode, 0);
            if accepted(&next, mode) {
                draft = next;
            }
        }
        finish(&mut draft, mode);
    }
    build(&draft, mode)
}

/// `charge; jmp over; trap: ud2; over:` with a label at each. Some functions rely on something in registers.
fn begin(draft: &mut Draft, choices: &mut Choices<'_>, mode: Mode) {
    draft.start = draft.here();
    draft.args = choices.of(&[0, 0, 1, 3]);
    let mut state = State::default();
    for _ in 0..choices.of(&[0, 0, 0, 1, 2]) {
        state.set_kind(choices.of(&[0, 1, 2, 6, 7, 11]), some_kind(choices, mode));
    }
    let trap = draft.start + 7 + 6 + 2;
    draft.label(state, LABEL_CHARGE);
    draft.relative(&[0x48, 0xff, 0x0d], i64::from(ctx::BUDGET), 0);
    draft.code.extend([0x0f, 0x88]);
    let next = draft.here() + 4;
    draft.code.extend((trap - next).to_le_bytes());
    draft.code.extend([0xeb, 0x02]);
    draft.label(State::default(), 0);
    draft.code.extend([0x0f, 0x0b]);
    draft.label(state, 0);
}

/// A kind that the mode has.
fn some_kind(choices: &mut Choices<'_>, mode: Mode) -> Kind {
    choices.of(match mode {
        Mode::Mirror => &[Kind::Masked, Kind::U32, Kind::Bits, Kind::Mask, Kind::Delta, Kind::PageOffset][..],
        Mode::Stlb => &[Kind::Window, Kind::U32, Kind::StlbIndex, Kind::StlbBase, Kind::Delta, Kind::PageOffset],
    })
}

/// Ends the function: by a return if the frame can be taken down, else by a trap.
fn finish(draft: &mut Draft, mode: Mode) {
    let mut epilogue = draft.clone();
    for _ in 0..16 {
        if end_by(&epilogue, draft, mode, &[0xc3]) {
            return;
        }
        let steps: [&[u8]; 7] =
            [&[0x5b], &[0x5d], &[0x41, 0x5c], &[0x41, 0x5d], &[0x41, 0x5e], &[0x41, 0x5f], &[0x48, 0x83, 0xc4, 0x08]];
        let next = steps.into_iter().find_map(|step| {
            let mut next = epilogue.clone();
            next.code.extend(step);
            accepted(&next, mode).then_some(next)
        });
        match next {
            Some(next) => epilogue = next,
            None => break,
        }
    }
    end_by(&draft.clone(), draft, mode, &[0x0f, 0x0b]);
}

/// Ends `from` by `end` if that is accepted, and makes it the draft.
fn end_by(from: &Draft, draft: &mut Draft, mode: Mode, end: &[u8]) -> bool {
    let mut next = from.clone();
    next.code.extend(end);
    let end = next.here();
    next.functions.push((next.start, end, next.args, next.needs_nothing()));
    let good = accepted(&next, mode);
    if good {
        *draft = next;
    }
    good
}

fn build(draft: &Draft, mode: Mode) -> Vec<u8> {
    let mirror = mode == Mode::Mirror;
    let mut b = ImageBuilder { mirror, mask_bits: policy(mode).mask_bits, flags: flags::ALL, ..Default::default() };
    b.imports = [Import::default(); 2].into();
    b.code.clone_from(&draft.code);
    let mut functions = draft.functions.clone();
    if functions.last().is_none_or(|f| f.0 != draft.start) {
        // Not finished: the trap ends it for a look.
        b.code.extend([0x0f, 0x0b]);
        functions.push((draft.start, draft.here() + 2, draft.args, draft.needs_nothing()));
    }
    for (n, (start, end, stack_args, needs_nothing)) in (0u32..).zip(functions) {
        b.functions.push(Function { start, end, stack_args, ..Default::default() });
        if stack_args == 0 && needs_nothing {
            b.addresses.push(Address { domain: 0x1000 + u64::from(n) * 16, function: n });
        }
    }
    for (offset, state, charge) in &draft.labels {
        let state = b.state(*state) | charge;
        b.labels.push(Label { offset: *offset, state });
    }
    b.build()
}

fn accepted(draft: &Draft, mode: Mode) -> bool {
    verify(&build(draft, mode), &policy(mode)).is_ok()
}

impl Draft {
    fn here(&self) -> u32 {
        u32::try_from(self.code.len()).unwrap_or(u32::MAX)
    }

    /// Whether the function that grows declares nothing of its registers.
    fn needs_nothing(&self) -> bool {
        self.labels.iter().any(|(offset, state, _)| *offset == self.start && state.regs == 0)
    }

    fn label(&mut self, state: State, charge: u32) {
        let at = self.here();
        self.labels.push((at, state, charge));
    }

    /// An instruction with a RIP-relative operand at `offset` of the instance; `tail` bytes follow the displacement.
    fn relative(&mut self, opcode: &[u8], offset: i64, tail: i64) {
        self.code.extend(opcode);
        let next = self.code.len() as i64 + 4 + tail;
        let displacement = offset - i64::from(CODE_OFFSET) - next;
        self.code.extend((displacement as i32).to_le_bytes());
    }

    /// An instruction with REX and ModRM: `reg`, and memory `[base + index * scale + displacement]`.
    fn memory(&mut self, wide: bool, opcode: &[u8], reg: u8, base: u8, index: Option<(u8, u8)>, displacement: i32) {
        let x = index.map_or(0, |(i, _)| i >> 3);
        self.code.push(0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | x << 1 | base >> 3);
        self.code.extend(opcode);
        let sib = index.is_some() || base & 7 == 4;
        self.code.push(0x80 | (reg & 7) << 3 | if sib { 4 } else { base & 7 });
        if sib {
            let (index, scale) = index.map_or((4, 0), |(i, s)| (i & 7, s));
            self.code.push(scale << 6 | index << 3 | base & 7);
        }
        self.code.extend(displacement.to_le_bytes());
    }

    /// An instruction with REX and ModRM of two registers.
    fn registers(&mut self, wide: bool, opcode: &[u8], reg: u8, rm: u8) {
        self.code.push(0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm >> 3);
        self.code.extend(opcode);
        self.code.push(0xc0 | (reg & 7) << 3 | rm & 7);
    }

    /// VEX.LZ.`pp`.0F38.W1 F5 /r: pext (pp 2) or bzhi (pp 0), with the registers `reg`, `vvvv`; ModRM follows.
    fn vex(&mut self, pp: u8, reg: u8, vvvv: u8, rm: u8) {
        let inverted = |bit: u8| 1 - (bit & 1);
        self.code.push(0xc4);
        self.code.push(inverted(reg >> 3) << 7 | 1 << 6 | inverted(rm >> 3) << 5 | 2);
        self.code.push(1 << 7 | (!vvvv & 15) << 3 | pp);
        self.code.push(0xf5);
    }
}

/// A displacement that may be just inside or just outside of something.
fn displacement(choices: &mut Choices<'_>) -> i32 {
    let near = i32::from(choices.byte());
    choices.of(&[0, 8, 16, 24, -8, -4, near, 4088, 4089, near * 8, i32::MAX, i32::MIN, 0x1000 - near])
}

/// Adds a proposal.
fn propose(draft: &mut Draft, choices: &mut Choices<'_>, mode: Mode, nested: u32) {
    let reg = choices.byte() & 15;
    let other = choices.of(&[reg, choices.clone().byte() & 15, 0, 1, 2, 4, 11]);
    let word = [constant::MASK, constant::BITS, constant::DELTA, constant::PERCPU, constant::CANARY];
    let wide = choices.below(3) > 0;
    match choices.below(32) {
        0 => (0..=choices.below(6)).for_each(|_| draft.code.push(choices.byte())),
        1 => draft.relative(
            &[0x48 | (reg >> 3) << 2, 0x8b, 0x05 | (reg & 7) << 3],
            i64::from(CONST_OFFSET + choices.of(&word)),
            0,
        ),
        2 => {
            draft.vex(2, reg, other, 0);
            draft.relative(&[0x05 | (reg & 7) << 3], i64::from(CONST_OFFSET + constant::MASK), 0);
        }
        3 => {
            let source = choices.byte() & 15;
            let pp = choices.of(&[0, 2]);
            draft.vex(pp, reg, other, source);
            draft.code.push(0xc0 | (reg & 7) << 3 | source & 7);
        }
        4 => draft.relative(
            &[0x48 | (reg >> 3) << 2, 0x23, 0x05 | (reg & 7) << 3],
            i64::from(CONST_OFFSET + choices.of(&word)),
            0,
        ),
        5 | 6 => {
            let opcode = choices.of(&[
                &[0x8b][..],
                &[0x89],
                &[0x01],
                &[0x33],
                &[0x3b],
                &[0x0f, 0xb6],
                &[0x87],
                &[0x8d],
                &[0x0f, 0xab],
                &[0x21],
                &[0x03],
            ]);
            let index =
                choices.of(&[None, Some((choices.clone().byte() & 15, 0)), Some((choices.clone().byte() >> 4, 3))]);
            draft.memory(wide, opcode, reg, other, index, displacement(choices));
        }
        7 => {
            let opcode = choices.of(&[0x89, 0x01, 0x29, 0x21, 0x09, 0x31, 0x87, 0x39, 0x85, 0x63]);
            draft.registers(wide, &[opcode], reg, other);
        }
        8 => {
            let extension = choices.byte() & 7;
            let opcode = choices.of(&[0x81, 0xc7]);
            draft.registers(wide, &[opcode], if opcode == 0xc7 { 0 } else { extension }, reg);
            let near = u32::from(choices.byte());
            draft.code.extend(choices.of(&[0xfff0, 0xfff, 0xff0, near, 63, 512, u32::MAX, 0x7fff_ffff]).to_le_bytes());
        }
        9 => draft.code.extend([0x40 | reg >> 3, 0x50 | choices.of(&[0, 8]) | reg & 7]),
        10 => {
            let by = choices.of(&[8, 16, 40, 120, 4, 0xf8]);
            draft.code.extend([0x48, 0x83, choices.of(&[0xec, 0xc4]), by]);
        }
        11 => draft.memory(
            wide,
            &[choices.of(&[0x8b, 0x89, 0x8d])],
            reg,
            4,
            choices.of(&[None, Some((other, 0))]),
            displacement(choices),
        ),
        12 => draft.relative(
            &[0x48 | (reg >> 3) << 2, 0x8d, 0x05 | (reg & 7) << 3],
            choices.of(&[i64::from(STLB_OFFSET), i64::from(CALL_TABLE_OFFSET)]),
            0,
        ),
        13 => draft.relative(
            &[0x48 | (reg >> 3) << 2, choices.of(&[0x8b, 0x89]), 0x05 | (reg & 7) << 3],
            i64::from(choices.of(&[ctx::SPILL, ctx::MISS_ADDRESS, ctx::MISS_RESULT, ctx::SPILL + 8])),
            0,
        ),
        14 => {
            let import = i64::from(IMPORT_OFFSET + choices.of(&[0, 8]));
            let gate = i64::from(CONST_OFFSET + choices.of(&[gate::ICALL, gate::WARN, gate::STLB_MISS]));
            draft.relative(&[0xff, 0x15], choices.of(&[import, gate]), 0);
        }
        15 => draft.code.extend([0x48 | reg >> 3, 0xc1, 0xe8 | reg & 7, choices.of(&[8, 32, 40, 12, 31, 33, 63])]),
        16 => {
            draft.code.push(0x48 | reg >> 3);
            draft.code.push(0xb8 | reg & 7);
            draft.code.extend((choices.word() >> choices.of(&[0, 16, 17, 18, 32])).to_le_bytes());
        }
        17 => {
            let repeat = choices.of(&[&[][..], &[0xf3]]);
            draft.code.extend(repeat);
            draft.code.extend([0x48, choices.of(&[0xa5, 0xab, 0xad, 0xa4, 0xaa])]);
        }
        18 => look_up(draft, choices),
        19 | 20 => compare_and_branch(draft, choices, mode, nested),
        21 => back(draft, choices),
        22 => {
            let to = draft.functions.get(choices.below(draft.functions.len().max(1))).map_or(0, |f| f.0);
            draft.code.push(choices.of(&[0xe8, 0xe9]));
            let next = draft.here() + 4;
            draft.code.extend(to.wrapping_sub(next).to_le_bytes());
        }
        23 => draft.memory(true, &[0xff], choices.of(&[2, 4, 6]), reg, Some((other, 0)), choices.of(&[8, 0])),
        24 => draft.registers(true, &[0x0f, choices.of(&[0x44, 0x47, 0xaf, 0xbc, 0xa3, 0xb7])], reg, other),
        25..=28 => disturb(draft, choices, mode),
        29 => frame(draft, choices),
        _ => {
            let state = some_state(draft, choices);
            draft.label(state, 0);
        }
    }
}

/// Makes something known of a register, does a few things that may end that, and relies on it.
fn disturb(draft: &mut Draft, choices: &mut Choices<'_>, mode: Mode) {
    let known = choices.of(&[0u8, 1, 2, 3, 6, 8, 11, 13]);
    let load = |draft: &mut Draft, word: u32| {
        draft.relative(&[0x48 | (known >> 3) << 2, 0x8b, 0x05 | (known & 7) << 3], i64::from(word), 0);
    };
    match (mode, choices.below(5)) {
        (_, 0) => load(draft, CONST_OFFSET + constant::DELTA),
        (_, 1) => {
            draft.registers(choices.below(2) == 0, &[0x81], 4, known);
            draft.code.extend(choices.of(&[0xfff0u32, 0xff0, 0xfff, 63, 31, 512]).to_le_bytes());
        }
        (Mode::Mirror, 2) => load(draft, CONST_OFFSET + constant::MASK),
        (Mode::Mirror, _) => {
            draft.vex(2, known, choices.byte() & 15, 0);
            draft.relative(&[0x05 | (known & 7) << 3], i64::from(CONST_OFFSET + constant::MASK), 0);
        }
        (Mode::Stlb, _) => load(draft, ctx::MISS_RESULT),
    }
    if choices.below(6) == 0 {
        load_string(draft, choices, mode);
    }
    for _ in 0..choices.below(3) {
        let (wide, one) = (choices.below(2) == 0, choices.byte() & 15);
        let other = choices.of(&[known, known, one]);
        let opcode: &[u8] = match choices.below(14) {
            0 => &[0x0f, 0xb1],
            1 => &[0x0f, 0xc1],
            2 => &[0x0f, 0xbe],
            3 => &[0x0f, 0xbf],
            4 => &[0x0f, 0xb6],
            5 => &[0x0f, 0x42],
            6 => &[0x63],
            7 => &[0x88],
            8 => &[0x0f, 0xbd],
            9 => &[0x0f, 0xa5],
            10 => &[0x87],
            11 => &[0x0f, 0xb3],
            _ => &[choices.of(&[0x89, 0x01, 0x21, 0x31, 0x13, 0x2b])],
        };
        match choices.below(4) {
            0 => draft.registers(wide, &[choices.of(&[0xf7, 0xf6])], choices.of(&[2, 3, 4, 5, 6]), other),
            1 => draft.code.extend(choices.of(&[[0x48, 0x98], [0x48, 0x99], [0x90, 0x98], [0x90, 0x9f]])),
            _ => draft.registers(wide, opcode, one, other),
        }
    }
    let index = choices.of(&[
        None,
        Some((known, 0)),
        Some((choices.clone().byte() & 15, 3)),
        Some((choices.clone().byte() >> 4, 0)),
    ]);
    let opcode = choices.of(&[&[0x8b][..], &[0x89], &[0x0f, 0xab], &[0x0f, 0xa3], &[0x03]]);
    let base = choices.of(&[known, known, known, 4, choices.clone().byte() & 15]);
    let reg = choices.of(&[known, 0, choices.clone().byte() & 15]);
    draft.memory(choices.below(3) > 0, opcode, reg, base, index, displacement(choices));
}

/// `lods` through a translated rsi, at times repeated.
fn load_string(draft: &mut Draft, choices: &mut Choices<'_>, mode: Mode) {
    match mode {
        Mode::Mirror => {
            draft.vex(2, 6, choices.byte() & 15, 0);
            draft.relative(&[0x35], i64::from(CONST_OFFSET + constant::MASK), 0);
        }
        Mode::Stlb => draft.relative(&[0x48, 0x8b, 0x35], i64::from(ctx::MISS_RESULT), 0),
    }
    if choices.below(3) == 0 {
        draft.code.push(0xb9);
        draft.code.extend(choices.of(&[8u32, 512, 513, 4096, 4097]).to_le_bytes());
        draft.code.push(0xf3);
    }
    draft.code.extend(choices.of(&[&[0x48, 0xad][..], &[0xad], &[0xac]]));
}

/// Saves a register, uses the frame, and restores: or not quite.
fn frame(draft: &mut Draft, choices: &mut Choices<'_>) {
    let saved = choices.of(&[3u8, 5, 12, 13, 14, 15]);
    draft.code.extend([0x40 | saved >> 3, 0x50 | saved & 7]);
    let room = choices.of(&[0u8, 8, 24]);
    draft.code.extend([0x48, 0x83, 0xec, room]);
    draft.registers(true, &[0x89], choices.byte() & 15, saved);
    draft.memory(choices.below(2) == 0, &[0x89], choices.byte() & 15, 4, None, displacement(choices));
    let restored = choices.of(&[saved, saved, saved, choices.clone().byte() & 15]);
    if choices.below(3) > 0 {
        draft.code.extend([0x48, 0x83, 0xc4, choices.of(&[room, room, room.wrapping_add(8)])]);
        draft.code.extend([0x40 | restored >> 3, 0x58 | restored & 7]);
    }
}

/// The stlb look-up, with a choice of what may go wrong.
fn look_up(draft: &mut Draft, choices: &mut Choices<'_>) {
    let (value, index, base) = (choices.byte() & 15, choices.byte() & 15, choices.byte() & 15);
    draft.registers(true, &[0x89], value, index);
    draft.code.extend([0x48 | index >> 3, 0xc1, 0xe8 | index & 7, 8]);
    draft.registers(false, &[0x81], 4, index);
    draft.code.extend(choices.of(&[0xfff0u32, 0xfff0, 0xff0, 0xffff, 0x1fff0]).to_le_bytes());
    let table = choices.of(&[STLB_OFFSET, STLB_OFFSET, CALL_TABLE_OFFSET]);
    draft.relative(&[0x48 | (base >> 3) << 2, 0x8d, 0x05 | (base & 7) << 3], i64::from(table), 0);
    draft.memory(true, &[0x33], value, base, Some((index, 0)), 0);
    draft.registers(true, &[0x81], 7, value);
    draft.code.extend(choices.of(&[0xfffu32, 0xfff, 0x1000, 0x7ff]).to_le_bytes());
    let trap = draft.start + 15;
    draft.code.extend([0x0f, choices.of(&[0x87, 0x87, 0x83, 0x86])]);
    let next = draft.here() + 4;
    draft.code.extend(trap.wrapping_sub(next).to_le_bytes());
    draft.memory(true, &[0x03], value, base, Some((index, 0)), choices.of(&[8, 8, 0, 16]));
    draft.memory(true, &[choices.of(&[0x8b, 0x89])], index, value, None, displacement(choices));
}

/// `cmp r, imm; jcc over; ...; over:`, at times with an access at r behind the branch.
fn compare_and_branch(draft: &mut Draft, choices: &mut Choices<'_>, mode: Mode, nested: u32) {
    let reg = choices.byte() & 15;
    draft.registers(true, &[0x81], 7, reg);
    draft.code.extend(choices.of(&[0xfffu32, 31, 512, 0x1000, 0x7fff_ffff]).to_le_bytes());
    draft.code.extend([0x0f, 0x80 | choices.of(&[7, 3, 2, 4, 8])]);
    let hole = draft.code.len();
    draft.code.extend([0; 4]);
    if choices.below(3) == 0 {
        draft.memory(true, &[choices.of(&[0x8b, 0x89])], choices.byte() & 15, reg, None, displacement(choices));
    }
    if nested < 2 {
        (0..=choices.below(4)).for_each(|_| propose(draft, choices, mode, nested + 1));
    }
    let over = (draft.code.len() - hole - 4) as u32;
    draft.code[hole..hole + 4].copy_from_slice(&over.to_le_bytes());
    let state = some_state(draft, choices);
    draft.label(state, 0);
}

/// A jump to some label behind.
fn back(draft: &mut Draft, choices: &mut Choices<'_>) {
    let Some((to, _, _)) = draft.labels.get(choices.below(draft.labels.len().max(1))) else { return };
    let (to, conditional) = (*to, choices.below(4) > 0);
    if conditional {
        draft.code.extend([0x0f, 0x80 | choices.byte() & 15]);
    } else {
        draft.code.push(0xe9);
    }
    let next = draft.here() + 4;
    draft.code.extend(to.wrapping_sub(next).to_le_bytes());
}

/// A state to declare: often the one of another label, or with one register known.
fn some_state(draft: &Draft, choices: &mut Choices<'_>) -> State {
    let mut state = draft.labels.last().map_or(State::default(), |(_, state, _)| *state);
    if choices.below(3) == 0 {
        state = State::default();
    }
    if choices.below(3) == 0 {
        let depth = u16::from(choices.byte() & 7);
        state.frame = Frame {
            depth,
            saved: core::array::from_fn(|_| if choices.below(3) == 0 { choices.byte() & 7 } else { 0 }),
        };
    }
    if choices.below(2) == 0 {
        let kind = Kind::from_code(choices.byte() % 12).unwrap_or(Kind::Any);
        state.set_kind(choices.byte() & 15, kind);
    }
    state
}
