//! An adversary's machine: runs an image and reports when it leaves the sandbox, or when the verifier was wrong about
//! it.
//!
//! Before each instruction the machine's registers and frame are compared with what the verifier took for granted
//! there: that is the invariant of the proof in `docs/sandbox.md`, and a wrong rule shows at the next instruction, long
//! before it does harm.
//!
//! Otherwise it shares nothing with the verifier but the decoder: which registers an instruction writes and which
//! memory it touches comes from the decoder's own tables, and the rules here are those of the page, seen from the
//! outside: what is touched *is* inside, whatever anybody thought to know. What memory of the domain holds is chosen to
//! do harm. Results of instructions that are not modelled are arbitrary, and so are flags that are not: that only makes
//! the adversary stronger.
//!
//! In mirror mode all of that holds as well for a processor that guesses branches wrong ([`Guesses`], R22 of the page).

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedRegister,
};
use twin_abi::image::{flags, Function, Image, Mode, LABEL_CHARGE};
use twin_abi::kind::{Kind, State};
use twin_abi::layout::{
    constant, ctx, gate, CALL_TABLE_OFFSET, CODE_OFFSET, CONST_OFFSET, IMPORT_OFFSET, STACK_SIZE, STLB_OFFSET,
    WINDOW_GUARD,
};

use super::Choices;
use crate::sweep::Sweep;
use crate::value::{State as Claim, Value};
use crate::Policy;

/// Instance base.
const INSTANCE: u64 = 0xffff_82d0_0000_0000;
const CODE: u64 = INSTANCE + CODE_OFFSET as u64;
/// Stack, outside the window.
const STACK: u64 = 0xffff_8280_0000_0000;
/// Unsafe area, inside the window.
const UNSAFE: u64 = 0x1000_0000_0000;
/// Where stlb pairs are mapped: two pages of each four.
const PAIRS: u64 = 0xffff_8290_0000_0000;
const PAIR_STRIDE: u64 = 0x4000;
/// What a function leaves to the caller at the bottom of the stack.
const HOST: u64 = 0xffff_82c0_0000_0000;

/// What an accepted image must never do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields say where: code offset, address")]
pub enum Escape {
    /// Touches memory that is none of its.
    Access { at: u64, address: u64, write: bool },
    /// Touches the stack outside the running function's frame.
    Frame { at: u64, address: u64 },
    /// Runs at a place that is no instruction of the image, or a call to no function.
    Jump { at: u64, to: u64 },
    /// Returns elsewhere than to its caller, or with the caller's registers or stack changed.
    Return { at: u64 },
    /// Executes an instruction outside the allowed set.
    Instruction { at: u64, code: Code },
    /// Goes on although the budget is used up.
    Endless,
    /// A register, or (rsp) the frame, is not what the verifier took it for.
    Unlike { at: u64, register: usize, value: u64 },
}

/// How the processor guesses branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guesses {
    /// Always right.
    Right,
    /// At times wrong. It notices after some instructions, and the run ends there: what they did is undone, but whoever
    /// watches caches knows what they accessed.
    Wrong,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Returned to the host.
    Returned,
    /// Ended by an exception or a used-up budget.
    Aborted,
    /// Still running when the steps were used up.
    Running,
    /// Left the sandbox.
    Escaped(Escape),
}

/// Why a step does not go on.
enum Halt {
    Returned,
    Aborted,
    Escaped(Escape),
}

struct Frame {
    /// Address of the return address on the stack.
    top: u64,
    back: u64,
    saved: [u64; 6],
    args: u64,
}

struct Machine<'i, 'c> {
    image: &'i Image<'i>,
    regs: [u64; 16],
    carry: Option<bool>,
    zero: Option<bool>,
    sign: Option<bool>,
    stack: Vec<u8>,
    spill: [u64; 64],
    budget: i64,
    frames: Vec<Frame>,
    dice: Choices<'c>,
    claims: Option<Claims>,
    guesses: Guesses,
    /// Instructions until the processor notices that it guessed wrong, if it did.
    astray: Option<u32>,
}

/// Instructions that a processor runs before it notices that it guessed wrong.
const ASTRAY: u32 = 50;
/// Steps that a repeated string instruction comes to meanwhile.
const ASTRAY_REPEATS: u64 = 4096;

/// What the verifier takes for granted before each instruction, by code offset, of the functions that were run.
#[derive(Default)]
struct Claims(BTreeMap<u32, BTreeMap<u32, Claim>>);

impl Claims {
    /// The claim at a code offset. There is none where the verifier refuses the function before it comes there.
    fn at(&mut self, image: &Image<'_>, offset: u32) -> Option<&Claim> {
        let function = image.function_at(offset)?;
        let all = self.0.entry(function.start).or_insert_with(|| claims(image, function));
        all.get(&offset)
    }
}

fn claims(image: &Image<'_>, function: Function) -> BTreeMap<u32, Claim> {
    let policy = Policy {
        mode: image.mode,
        mask_bits: image.mask_bits,
        counted: image.flags & flags::COUNTED != 0,
        bmi: image.flags & flags::BMI != 0,
    };
    let mut all = BTreeMap::new();
    let mut sweep = Sweep::new(image, &policy, function);
    while let Ok(false) = sweep.advance(image, &policy, &mut 1) {
        if let (at, Some(claim)) = sweep.here() {
            all.insert(at, *claim);
        }
    }
    for label in image.labels().iter().filter(|l| (function.start..function.end).contains(&l.offset)) {
        if let Some(state) = image.states().get((label.state & !LABEL_CHARGE) as usize) {
            all.insert(label.offset, Claim::declared(&state));
        }
    }
    all
}

const SAVED: [usize; 6] = [3, 5, 12, 13, 14, 15];

/// Runs the image from a function of its address table (or its first), for at most `steps` instructions.
#[must_use]
pub fn emulate(image: &Image<'_>, seed: u64, steps: u32) -> Outcome {
    let entries = image.addresses().len();
    let pick = Choices::new(&seed.to_le_bytes()).below(entries.max(1));
    let entry = image.addresses().get(pick).map_or(0, |a| a.function as usize);
    emulate_function(image, entry, seed, steps)
}

/// Runs the image from one of its functions.
#[must_use]
pub fn emulate_function(image: &Image<'_>, entry: usize, seed: u64, steps: u32) -> Outcome {
    let Some(function) = image.functions().get(entry) else { return Outcome::Returned };
    let label = image.labels().last_not_above(function.start, |l| l.offset);
    label.map_or(Outcome::Returned, |label| emulate_label(image, label, seed, steps))
}

/// The same without asking what the verifier thought: only harm counts.
#[must_use]
pub fn emulate_unasked(image: &Image<'_>, guesses: Guesses, seed: u64, steps: u32) -> Outcome {
    let Some(function) = image.functions().get(0) else { return Outcome::Returned };
    let mut m = Machine::new(image, Choices::seeded(seed, 0));
    m.guesses = guesses;
    m.claims = None;
    m.enter(&function, HOST);
    m.run(CODE + u64::from(function.start), steps)
}

/// Runs the image from one of its labels, in a state that is any of those which the label declares.
#[must_use]
pub fn emulate_label(image: &Image<'_>, label: usize, seed: u64, steps: u32) -> Outcome {
    from_label(image, label, Guesses::Right, seed, steps)
}

/// The same on a processor that guesses wrong, if the image is for mirror mode: stlb mode promises nothing there (R22).
#[must_use]
pub fn emulate_guessing(image: &Image<'_>, label: usize, seed: u64, steps: u32) -> Outcome {
    let guesses = if image.mode == Mode::Mirror { Guesses::Wrong } else { Guesses::Right };
    from_label(image, label, guesses, seed, steps)
}

fn from_label(image: &Image<'_>, label: usize, guesses: Guesses, seed: u64, steps: u32) -> Outcome {
    let Some(label) = image.labels().get(label) else { return Outcome::Returned };
    let Some(function) = image.function_at(label.offset) else { return Outcome::Returned };
    let Some(state) = image.states().get((label.state & !LABEL_CHARGE) as usize) else { return Outcome::Returned };
    let mut m = Machine::new(image, Choices::seeded(seed, 0));
    m.guesses = guesses;
    m.take_kinds(&state, 0xffff);
    m.enter(&function, HOST);
    let top = m.regs[4];
    for (n, slot) in SAVED.into_iter().zip(state.frame.saved).filter(|(_, slot)| *slot != 0) {
        m.store_stack(top - 8 * u64::from(slot), 8, m.regs[n]);
        m.take_kinds(&state, 1 << n);
    }
    m.regs[4] = top - 8 * u64::from(state.frame.depth);
    m.run(CODE + u64::from(label.offset), steps)
}

/// A value with which a hostile domain would try its luck.
fn harmful(dice: &mut Choices<'_>) -> u64 {
    let word = dice.word();
    match dice.below(12) {
        0 => 0,
        1 => word % 4096,
        2 => u64::MAX - word % 4096,
        3 => 0xffff_8300_0000_0000 | word >> 24,
        4 => STACK + word % STACK_SIZE,
        5 => INSTANCE + word % 0x3_0000,
        6 => 1 << (word % 64),
        7 => (1 << (46 + word % 2)) - word / 2 % 16,
        8 => UNSAFE + word % STACK_SIZE,
        9 => u64::from((word >> 32) as u32),
        10 => PAIRS + word % (4096 * PAIR_STRIDE),
        _ => word,
    }
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn number(register: Register) -> Option<usize> {
    (register.is_gpr()).then(|| register.full_register() as usize - Register::RAX as usize)
}

impl<'i, 'c> Machine<'i, 'c> {
    fn new(image: &'i Image<'i>, mut dice: Choices<'c>) -> Self {
        let regs = core::array::from_fn(|_| harmful(&mut dice));
        let stack = vec![0; usize::try_from(STACK_SIZE).unwrap_or(0)];
        let (carry, zero, sign) = (None, None, None);
        let claims = Some(Claims::default());
        let frames = Vec::new();
        let (spill, budget, guesses, astray) = ([0; 64], 100, Guesses::Right, None);
        let mut m =
            Self { image, regs, carry, zero, sign, stack, spill, budget, frames, dice, claims, guesses, astray };
        m.spill[usize_of(u64::from(ctx::MISS_RESULT) / 8)] = PAIRS;
        m.regs[4] = STACK + STACK_SIZE - 256;
        m
    }

    fn run(&mut self, mut rip: u64, steps: u32) -> Outcome {
        let patience = 4 * (self.image.code().len() + 16) * (self.image.functions().len() + 1);
        let (mut since, mut charged) = (0, self.budget);
        for _ in 0..steps {
            since = if self.budget == charged { since + 1 } else { 0 };
            charged = self.budget;
            let is_endless = since > patience || charged < -1;
            match &mut self.astray {
                Some(0) => return Outcome::Aborted,
                Some(left) => *left -= 1,
                None if is_endless && self.image.flags & flags::COUNTED != 0 => {
                    return Outcome::Escaped(Escape::Endless);
                }
                None => {}
            }
            match self.step(&mut rip) {
                Ok(()) => {}
                Err(Halt::Returned) => return Outcome::Returned,
                Err(Halt::Aborted) => return Outcome::Aborted,
                Err(Halt::Escaped(escape)) => return Outcome::Escaped(escape),
            }
        }
        Outcome::Running
    }

    /// Gives the registers in `which` arbitrary values of the declared kinds.
    fn take_kinds(&mut self, state: &State, which: u16) {
        for n in (0..16u8).filter(|n| which >> n & 1 == 1 && *n != 4) {
            let any = harmful(&mut self.dice);
            self.regs[usize::from(n)] = match state.kind(n).unwrap_or(Kind::Any) {
                Kind::Any => any,
                Kind::Masked => any & ((1 << self.image.mask_bits) - 1),
                Kind::U32 => any & 0xffff_ffff,
                Kind::Bits => u64::from(self.image.mask_bits),
                Kind::Mask => (1 << self.image.mask_bits) - 1,
                Kind::Delta => UNSAFE.wrapping_sub(STACK),
                Kind::StlbBase => INSTANCE + u64::from(STLB_OFFSET),
                Kind::StlbIndex => any & 0xfff0,
                Kind::PageOffset => any & 0xfff,
                Kind::Window => PAIRS + any / 16 % 4096 * PAIR_STRIDE + any % 4096,
                Kind::CallBase => INSTANCE + u64::from(CALL_TABLE_OFFSET),
                Kind::CallIndex => any & 0xff0,
            };
        }
    }

    fn enter(&mut self, function: &Function, back: u64) {
        self.regs[4] = self.regs[4].wrapping_sub(8);
        let top = self.regs[4];
        self.store_stack(top, 8, back);
        let saved = SAVED.map(|r| self.regs[r]);
        self.frames.push(Frame { top, back, saved, args: u64::from(function.stack_args) * 8 });
    }

    fn store_stack(&mut self, address: u64, size: usize, value: u64) {
        let at = usize_of(address.wrapping_sub(STACK));
        if let Some(to) = self.stack.get_mut(at..at.saturating_add(size)) {
            to.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }

    fn load_stack(&self, address: u64, size: usize) -> u64 {
        let at = usize_of(address.wrapping_sub(STACK));
        let mut bytes = [0; 8];
        if let Some(from) = self.stack.get(at..at.saturating_add(size)) {
            bytes[..size].copy_from_slice(from);
        }
        u64::from_le_bytes(bytes)
    }

    /// The address of a memory operand.
    fn address(&self, i: &Instruction) -> u64 {
        if i.memory_base() == Register::RIP {
            return i.memory_displacement64();
        }
        let value = |r: Register| number(r).map_or(0, |n| self.regs[n]);
        let index = value(i.memory_index()).wrapping_mul(u64::from(i.memory_index_scale()));
        value(i.memory_base()).wrapping_add(index).wrapping_add(i.memory_displacement64())
    }

    /// Whether `size` bytes at `address` are the twin's to touch; an inaccessible address ends the run, a foreign one
    /// escapes.
    fn check(&self, i: &Instruction, address: u64, size: u64, write: bool) -> Result<(), Halt> {
        let at = i.ip() - CODE;
        let last = address.wrapping_add(size).wrapping_sub(1);
        let within = |start: u64, len: u64| address >= start && last >= address && last - start < len;
        if within(STACK - 8192, STACK_SIZE + 16384) {
            return self.check_frame(i, address, size);
        }
        if within(UNSAFE, STACK_SIZE) {
            return Ok(());
        }
        if within(INSTANCE, u64::from(CODE_OFFSET)) {
            return self.check_word(i, address - INSTANCE, size, write);
        }
        match self.image.mode {
            Mode::Mirror => {
                let limit = 1u64 << self.image.mask_bits;
                if within(0, limit) {
                    Ok(())
                } else if last < limit + WINDOW_GUARD || address > u64::MAX - (2 << 30) {
                    Err(Halt::Aborted)
                } else {
                    Err(Halt::Escaped(Escape::Access { at, address, write }))
                }
            }
            Mode::Stlb => {
                let offset = address.wrapping_sub(PAIRS);
                if offset < 4096 * PAIR_STRIDE && offset % PAIR_STRIDE + size <= 8192 {
                    return Ok(());
                }
                Err(Halt::Escaped(Escape::Access { at, address, write }))
            }
        }
    }

    /// Stack accesses stay between rsp and the return address, or in the arguments; only rsp-relative ones come here at
    /// all.
    fn check_frame(&self, i: &Instruction, address: u64, size: u64) -> Result<(), Halt> {
        let (rsp, frame) = (self.regs[4], self.frames.last());
        let barrier = i.has_lock_prefix() && address == rsp.wrapping_sub(4) && i.immediate(1) == 0;
        let inside = frame.is_some_and(|frame| {
            let own = address >= rsp && address + size <= frame.top;
            own || (address >= frame.top + 8 && address + size <= frame.top + 8 + frame.args)
        });
        if i.memory_base() == Register::RSP && (inside || barrier) {
            return if rsp < STACK { Err(Halt::Aborted) } else { Ok(()) };
        }
        Err(Halt::Escaped(Escape::Frame { at: i.ip() - CODE, address }))
    }

    /// The words around the code.
    fn check_word(&self, i: &Instruction, offset: u64, size: u64, write: bool) -> Result<(), Halt> {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let branch = matches!(i.mnemonic(), Mnemonic::Call | Mnemonic::Jmp);
        let spill = ctx::SPILL..ctx::SPILL + ctx::SPILL_WORDS * 8;
        let aligned = offset % 8 == 0 && size == 8;
        let fine = aligned
            && match offset {
                ctx::BUDGET => i.mnemonic() == Mnemonic::Dec,
                ctx::MISS_ADDRESS => true,
                ctx::MISS_RESULT => !write,
                _ if spill.contains(&offset) => true,
                CONST_OFFSET..IMPORT_OFFSET if offset - CONST_OFFSET < constant::END => !write,
                CONST_OFFSET..IMPORT_OFFSET => branch && (gate::BASE..gate::END).contains(&(offset - CONST_OFFSET)),
                IMPORT_OFFSET..CALL_TABLE_OFFSET => {
                    branch && ((offset - IMPORT_OFFSET) / 8) < self.image.imports().len() as u32
                }
                CALL_TABLE_OFFSET..STLB_OFFSET if offset < CALL_TABLE_OFFSET + 4096 => {
                    !write && (offset % 16 == 8) == branch
                }
                STLB_OFFSET..CODE_OFFSET => !write && !branch && self.image.mode == Mode::Stlb,
                _ => false,
            };
        if fine {
            return Ok(());
        }
        Err(Halt::Escaped(Escape::Access { at: i.ip() - CODE, address: INSTANCE + u64::from(offset), write }))
    }

    /// What is read at an address that was checked.
    fn load(&mut self, i: &Instruction, address: u64, size: usize) -> u64 {
        if (STACK..STACK + STACK_SIZE).contains(&address) {
            return self.load_stack(address, size);
        }
        let Some(offset) = address.checked_sub(INSTANCE).filter(|o| *o < u64::from(CODE_OFFSET)) else {
            let value = harmful(&mut self.dice);
            return if size < 8 { value & ((1 << (8 * size)) - 1) } else { value };
        };
        let offset = offset as u32;
        let word = |of: u32| CONST_OFFSET + of;
        match offset {
            0..0x200 => self.spill[offset as usize / 8],
            _ if offset == word(constant::MASK) => (1 << self.image.mask_bits) - 1,
            _ if offset == word(constant::BITS) => u64::from(self.image.mask_bits),
            _ if offset == word(constant::DELTA) => UNSAFE.wrapping_sub(STACK),
            _ if offset == word(constant::PERCPU) && self.image.mode == Mode::Mirror => 0x2345_6789_a000,
            STLB_OFFSET..CODE_OFFSET if offset % 16 == 8 => PAIRS + u64::from(offset - STLB_OFFSET) / 16 * PAIR_STRIDE,
            // A tag that makes the look-up hit, or nearly so.
            STLB_OFFSET..CODE_OFFSET => {
                let own = number(i.op0_register()).map_or(0, |n| self.regs[n]);
                own ^ (self.dice.word() % 8192)
            }
            _ => harmful(&mut self.dice),
        }
    }

    fn store(&mut self, address: u64, size: usize, value: u64) {
        if (STACK..STACK + STACK_SIZE).contains(&address) {
            self.store_stack(address, size, value);
        } else if (INSTANCE..INSTANCE + 0x200).contains(&address) {
            self.spill[usize_of(address - INSTANCE) / 8] = value;
        }
    }

    /// The machine is in a state that the verifier's claim describes.
    fn check_claim(&mut self, offset: u32) -> Result<(), Halt> {
        let Some(mut claims) = self.claims.take() else { return Ok(()) };
        let wrong = claims.at(self.image, offset).and_then(|claim| self.unlike(claim));
        self.claims = Some(claims);
        match wrong {
            None => Ok(()),
            Some(register) => {
                let (at, value) = (u64::from(offset), self.regs[register]);
                Err(Halt::Escaped(Escape::Unlike { at, register, value }))
            }
        }
    }

    fn unlike(&self, claim: &Claim) -> Option<usize> {
        let frame = self.frames.last()?;
        if self.regs[4] != frame.top.wrapping_sub(8 * u64::from(claim.frame.depth)) {
            return Some(4);
        }
        let slots = SAVED.into_iter().zip(claim.frame.saved).zip(frame.saved);
        for ((register, slot), callers) in slots {
            let held = match slot {
                0 => self.regs[register],
                _ => self.load_stack(frame.top - 8 * u64::from(slot), 8),
            };
            if held != callers {
                return Some(register);
            }
        }
        (0..16).find(|n| !self.is_like(self.regs[*n], claim.get(*n)))
    }

    fn is_like(&self, value: u64, claim: Value) -> bool {
        let pair = value.wrapping_sub(PAIRS);
        match claim {
            Value::Any => true,
            Value::Masked => value >> self.image.mask_bits == 0,
            Value::AtMost(most) => value <= u64::from(most),
            Value::Step16(most) => value <= u64::from(most) && value.is_multiple_of(16),
            Value::Window => pair < 4096 * PAIR_STRIDE && pair % PAIR_STRIDE < 4096,
            Value::Is(Kind::Bits) => value == u64::from(self.image.mask_bits),
            Value::Is(Kind::Mask) => value == (1 << self.image.mask_bits) - 1,
            Value::Is(Kind::Delta) => value == UNSAFE.wrapping_sub(STACK),
            Value::Is(Kind::StlbBase) => value == INSTANCE + u64::from(STLB_OFFSET),
            Value::Is(Kind::CallBase) => value == INSTANCE + u64::from(CALL_TABLE_OFFSET),
            Value::Is(_) => false,
        }
    }

    fn step(&mut self, rip: &mut u64) -> Result<(), Halt> {
        let offset = usize_of(rip.wrapping_sub(CODE));
        let code = self.image.code();
        if offset >= code.len() {
            return Err(Halt::Escaped(Escape::Jump { at: *rip, to: *rip }));
        }
        self.check_claim(offset as u32)?;
        let mut decoder = Decoder::with_ip(64, &code[offset..], *rip, DecoderOptions::NONE);
        let i = decoder.decode();
        if i.is_invalid() {
            return Err(Halt::Escaped(Escape::Instruction { at: offset as u64, code: i.code() }));
        }
        *rip = i.next_ip();
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(&i);
        if outside(&i, info.used_registers()) {
            return Err(Halt::Escaped(Escape::Instruction { at: offset as u64, code: i.code() }));
        }
        let used: Vec<(Register, OpAccess)> =
            info.used_registers().iter().map(|r| (r.register(), r.access())).collect();
        let writes_memory = info
            .used_memory()
            .iter()
            .any(|m| !matches!(m.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess));
        if i.is_string_instruction() {
            return self.string(&i, writes_memory);
        }
        match i.mnemonic() {
            Mnemonic::Ud2 => return Err(Halt::Aborted),
            // Reports an address behind itself, which need not be the code's.
            Mnemonic::Int3 => return Err(Halt::Escaped(Escape::Instruction { at: offset as u64, code: i.code() })),
            Mnemonic::Push | Mnemonic::Pop => return self.push_pop(&i),
            Mnemonic::Call | Mnemonic::Jmp | Mnemonic::Ret => return self.transfer(&i, rip),
            _ if i.is_jcc_short_or_near() => {
                if self.taken(&i) != self.goes_astray() {
                    *rip = self.target(&i)?;
                }
                return Ok(());
            }
            _ => {}
        }
        self.execute(&i, &used, writes_memory)
    }

    /// Ordinary instructions.
    fn execute(&mut self, i: &Instruction, used: &[(Register, OpAccess)], writes_memory: bool) -> Result<(), Halt> {
        let size = i.memory_size().size();
        let in_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        let address = self.address(i).wrapping_add(self.bit_displacement(i, in_memory));
        if in_memory && !matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) {
            self.check(i, address, size.max(1) as u64, writes_memory)?;
        }
        let width = |m: &Self, n: u32| match i.op_kind(n) {
            OpKind::Register => i.op_register(n).size(),
            OpKind::Memory => size,
            _ => {
                if in_memory {
                    size
                } else {
                    m.width_of(i)
                }
            }
        };
        let operand = |m: &mut Self, n: u32| -> u64 {
            if n >= i.op_count() {
                return 0;
            }
            let bytes = width(m, n);
            let value = match i.op_kind(n) {
                OpKind::Register => number(i.op_register(n)).map_or(0, |r| m.regs[r]),
                OpKind::Memory if i.mnemonic() == Mnemonic::Lea => address,
                OpKind::Memory => m.load(i, address, size.clamp(1, 8)),
                _ => i.immediate(n),
            };
            if bytes < 8 && bytes > 0 {
                value & ((1 << (8 * bytes)) - 1)
            } else {
                value
            }
        };
        let (a, b) = (operand(self, 0), operand(self, 1));
        let c = if i.op_count() > 2 { operand(self, 2) } else { 0 };
        let bits = (width(self, 0) * 8).clamp(8, 64) as u32;
        let modelled = self.result(i, (a, b, c), bits);
        if let Mnemonic::Xchg = i.mnemonic() {
            if let (Some(x), Some(y), 64) = (number(i.op0_register()), number(i.op1_register()), bits) {
                if !in_memory {
                    self.regs.swap(x, y);
                    return Ok(());
                }
            }
        }
        for (register, access) in used {
            if !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None) {
                if let Some(n) = number(*register) {
                    self.write(i, *register, n, modelled);
                }
            }
        }
        if writes_memory {
            let value = modelled.unwrap_or_else(|| harmful(&mut self.dice));
            let word = address.wrapping_sub(INSTANCE);
            if word == u64::from(ctx::BUDGET) {
                self.budget -= 1;
                self.sign = Some(self.budget < 0);
            } else {
                self.store(address, size.clamp(1, 8), value);
            }
        }
        Ok(())
    }

    fn width_of(&self, i: &Instruction) -> usize {
        match i.op0_kind() {
            OpKind::Register => i.op0_register().size(),
            _ => 8,
        }
    }

    /// `bt` and the like with a register offset reach beyond their operand.
    fn bit_displacement(&self, i: &Instruction, in_memory: bool) -> u64 {
        let bit = matches!(i.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
        if !bit || !in_memory || i.op1_kind() != OpKind::Register {
            return 0;
        }
        let value = number(i.op1_register()).map_or(0, |n| self.regs[n]);
        match i.op1_register().size() {
            8 => ((value as i64 >> 6) * 8) as u64,
            4 => ((i64::from(value as i32) >> 5) * 4) as u64,
            _ => ((i64::from(value as i16) >> 4) * 2) as u64,
        }
    }

    fn write(&mut self, i: &Instruction, register: Register, n: usize, modelled: Option<u64>) {
        let first = i.op0_kind() == OpKind::Register && number(i.op0_register()) == Some(n);
        let value = modelled.filter(|_| first).unwrap_or_else(|| harmful(&mut self.dice));
        let keeps_top = matches!(i.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr | Mnemonic::Cmpxchg);
        // For a 32-bit destination the decoder's tables name the whole register.
        let size = if first { i.op0_register().size() } else { register.size() };
        self.regs[n] = match size {
            8 => value,
            4 if !keeps_top => value & 0xffff_ffff,
            2 => self.regs[n] & !0xffff | value & 0xffff,
            1 => self.regs[n] & !0xffff | value & 0xffff,
            _ => value,
        };
    }

    /// The result of the instructions on which the rules build, and the flags that they build on.
    fn result(&mut self, i: &Instruction, (a, b, c): (u64, u64, u64), bits: u32) -> Option<u64> {
        use Mnemonic as M;
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let (mut carry, mut known) = (None, true);
        let value = match i.mnemonic() {
            M::Mov | M::Movzx | M::Lea => return Some(b),
            M::Pext => return Some(pext(b, c)),
            M::Bzhi => {
                (self.carry, self.zero, self.sign) = (None, None, None);
                return Some(if c & 0xff < u64::from(bits) { b & ((1 << (c & 0xff)) - 1) } else { b });
            }
            M::Xchg => return Some(b),
            m if (M::Cmova..=M::Cmovs).contains(&m) => return Some(if self.dice.below(2) == 0 { a } else { b }),
            M::And | M::Test => a & b,
            M::Or => a | b,
            M::Xor => a ^ b,
            M::Add => a.wrapping_add(b),
            M::Sub | M::Cmp => {
                carry = Some(a & mask < b & mask);
                a.wrapping_sub(b)
            }
            M::Inc => a.wrapping_add(1),
            M::Dec => a.wrapping_sub(1),
            M::Not => return Some(!a & mask),
            M::Neg => a.wrapping_neg(),
            M::Shr => (a & mask) >> (b & if bits == 64 { 63 } else { 31 }),
            M::Shl => a << (b & if bits == 64 { 63 } else { 31 }),
            _ => {
                known = false;
                0
            }
        } & mask;
        let changes = i.rflags_modified() != 0;
        if changes {
            self.carry = carry.filter(|_| known);
            self.zero = known.then_some(value == 0);
            self.sign = known.then_some(value >> (bits - 1) & 1 == 1);
        }
        if matches!(i.mnemonic(), M::Cmp | M::Test) {
            return None;
        }
        known.then_some(value)
    }

    fn taken(&mut self, i: &Instruction) -> bool {
        let any = self.dice.below(2) == 0;
        let known = match i.mnemonic() {
            Mnemonic::Jb => self.carry,
            Mnemonic::Jae => self.carry.map(|c| !c),
            Mnemonic::Ja => self.carry.zip(self.zero).map(|(c, z)| !c && !z),
            Mnemonic::Jbe => self.carry.zip(self.zero).map(|(c, z)| c || z),
            Mnemonic::Je => self.zero,
            Mnemonic::Jne => self.zero.map(|z| !z),
            Mnemonic::Js => self.sign,
            Mnemonic::Jns => self.sign.map(|s| !s),
            _ => None,
        };
        known.unwrap_or(any)
    }

    /// Whether the processor guesses wrong here.
    fn goes_astray(&mut self) -> bool {
        let wrong = self.guesses == Guesses::Wrong && self.dice.below(4) == 0;
        if wrong {
            self.astray.get_or_insert(ASTRAY);
        }
        wrong
    }

    fn target(&self, i: &Instruction) -> Result<u64, Halt> {
        let to = i.near_branch64();
        let at = i.ip() - CODE;
        let inside = to.checked_sub(CODE).is_some_and(|o| o < self.image.code().len() as u64);
        if inside {
            Ok(to)
        } else {
            Err(Halt::Escaped(Escape::Jump { at, to }))
        }
    }

    fn string(&mut self, i: &Instruction, writes: bool) -> Result<(), Halt> {
        let repeats = i.has_rep_prefix() || i.has_repne_prefix();
        let most = if self.astray.is_some() { ASTRAY_REPEATS } else { u64::MAX };
        let count = if repeats { self.regs[1].min(most) } else { 1 };
        let size = i.memory_size().size() as u64;
        let name = std::format!("{:?}", i.mnemonic());
        let (source, target) = (!name.starts_with("Stos") && !name.starts_with("Scas"), !name.starts_with("Lods"));
        let bytes = count.saturating_mul(size);
        for (n, uses, write) in [(6, source, false), (7, target, writes)] {
            if uses && count > 0 {
                // Element by element, as far as it takes to leave; the middle is as safe as the ends.
                self.check(i, self.regs[n], size, write)?;
                self.check(i, self.regs[n].wrapping_add(bytes).wrapping_sub(size), size, write)?;
                if bytes > 64 << 30 {
                    return Err(Halt::Escaped(Escape::Access { at: i.ip() - CODE, address: self.regs[n], write }));
                }
            }
        }
        for (n, uses) in [(6, source), (7, target)] {
            if uses {
                self.regs[n] = self.regs[n].wrapping_add(bytes);
            }
        }
        if repeats {
            self.regs[1] = self.dice.below(2) as u64;
        }
        if name.starts_with("Lods") {
            self.regs[0] = harmful(&mut self.dice);
        }
        (self.carry, self.zero, self.sign) = (None, None, None);
        Ok(())
    }

    fn push_pop(&mut self, i: &Instruction) -> Result<(), Halt> {
        let at = i.ip() - CODE;
        let top = self.frames.last().map_or(0, |f| f.top);
        if i.stack_pointer_increment().unsigned_abs() != 8 {
            return Err(Halt::Escaped(Escape::Instruction { at, code: i.code() }));
        }
        if i.mnemonic() == Mnemonic::Pop {
            if self.regs[4] + 8 > top || i.op0_kind() != OpKind::Register {
                return Err(Halt::Escaped(Escape::Frame { at, address: self.regs[4] }));
            }
            let value = self.load_stack(self.regs[4], 8);
            self.regs[4] += 8;
            number(i.op0_register()).into_iter().for_each(|n| self.regs[n] = value);
            return Ok(());
        }
        let value = match i.op0_kind() {
            OpKind::Register => number(i.op0_register()).map_or(0, |n| self.regs[n]),
            OpKind::Memory => {
                let address = self.address(i);
                self.check(i, address, 8, false)?;
                self.load(i, address, 8)
            }
            _ => i.immediate(0),
        };
        self.regs[4] -= 8;
        if self.regs[4] < STACK {
            return Err(Halt::Aborted);
        }
        self.store_stack(self.regs[4], 8, value);
        Ok(())
    }

    /// Calls, jumps and returns.
    fn transfer(&mut self, i: &Instruction, rip: &mut u64) -> Result<(), Halt> {
        let at = i.ip() - CODE;
        if i.mnemonic() == Mnemonic::Ret {
            return self.leave(at, rip, i.code() == Code::Retnq);
        }
        let is_call = i.mnemonic() == Mnemonic::Call;
        if i.op0_kind() == OpKind::NearBranch64 {
            let to = self.target(i)?;
            return self.direct(at, to, is_call, rip);
        }
        if i.op0_kind() != OpKind::Memory {
            return Err(Halt::Escaped(Escape::Jump { at, to: 0 }));
        }
        let address = self.address(i);
        let near = address.wrapping_sub(INSTANCE);
        self.check(i, address, 8, false)?;
        if near >= u64::from(CODE_OFFSET) {
            return Err(Halt::Escaped(Escape::Jump { at, to: address }));
        }
        let offset = near as u32;
        let special = offset == CONST_OFFSET + gate::STLB_MISS || offset == CONST_OFFSET + gate::WARN;
        self.budget -= 1;
        if self.budget < 0 || self.regs[4] < STACK + 64 {
            return Err(Halt::Aborted);
        }
        if special {
            let pair = PAIRS + self.dice.word() % 4096 * PAIR_STRIDE + self.dice.word() % 4096;
            self.spill[usize_of(u64::from(ctx::MISS_RESULT) / 8)] = pair;
            return if is_call { Ok(()) } else { Err(Halt::Escaped(Escape::Jump { at, to: address })) };
        }
        let table = (CALL_TABLE_OFFSET..STLB_OFFSET).contains(&offset) || offset == CONST_OFFSET + gate::ICALL;
        let entry = self.image.addresses().get(self.dice.below(self.image.addresses().len().max(1)));
        let function = entry.and_then(|a| self.image.functions().get(a.function as usize));
        if let Some(function) = function.filter(|_| table && self.dice.below(2) == 0) {
            let to = CODE + u64::from(function.start);
            return self.direct(at, to, is_call, rip);
        }
        for n in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
            self.regs[n] = harmful(&mut self.dice);
        }
        (self.carry, self.zero, self.sign) = (None, None, None);
        if is_call {
            Ok(())
        } else {
            self.leave(at, rip, true)
        }
    }

    /// To a place of the image: as a call, or as a jump, which to another function is a tail call.
    fn direct(&mut self, at: u64, to: u64, is_call: bool, rip: &mut u64) -> Result<(), Halt> {
        let offset = u32::try_from(to - CODE).unwrap_or(u32::MAX);
        let start = self.image.function_at(offset).filter(|f| f.start == offset);
        let own = self.image.function_at(u32::try_from(at).unwrap_or(u32::MAX));
        let inside = own.is_some_and(|f| (f.start..f.end).contains(&offset));
        if is_call {
            let Some(function) = start else { return Err(Halt::Escaped(Escape::Jump { at, to })) };
            if self.regs[4] < STACK + 8 {
                return Err(Halt::Aborted);
            }
            let back = *rip;
            self.enter(&function, back);
        } else if !inside {
            let Some(function) = start else { return Err(Halt::Escaped(Escape::Jump { at, to })) };
            self.unchanged(at)?;
            if let Some(frame) = self.frames.last_mut() {
                if u64::from(function.stack_args) * 8 > frame.args {
                    return Err(Halt::Escaped(Escape::Return { at }));
                }
                frame.args = u64::from(function.stack_args) * 8;
            }
        }
        *rip = to;
        Ok(())
    }

    /// The frame is empty and the caller's registers are as they were.
    fn unchanged(&self, at: u64) -> Result<(), Halt> {
        let same = self.frames.last().is_some_and(|f| self.regs[4] == f.top && SAVED.map(|r| self.regs[r]) == f.saved);
        if same {
            Ok(())
        } else {
            Err(Halt::Escaped(Escape::Return { at }))
        }
    }

    fn leave(&mut self, at: u64, rip: &mut u64, plain: bool) -> Result<(), Halt> {
        self.unchanged(at)?;
        let back = self.load_stack(self.regs[4], 8);
        let Some(frame) = self.frames.pop().filter(|f| f.back == back && plain) else {
            return Err(Halt::Escaped(Escape::Return { at }));
        };
        self.regs[4] += 8;
        *rip = frame.back;
        if self.frames.is_empty() {
            Err(Halt::Returned)
        } else {
            Ok(())
        }
    }
}

/// Privileged, diverting control in ways that are not modelled, or using registers that are not the twin's.
fn outside(i: &Instruction, used: &[UsedRegister]) -> bool {
    let flow = matches!(i.flow_control(), FlowControl::XbeginXabortXend)
        || matches!(i.flow_control(), FlowControl::Interrupt) && i.mnemonic() != Mnemonic::Int3
        || matches!(i.flow_control(), FlowControl::Call) && i.mnemonic() != Mnemonic::Call;
    let foreign = used.iter().any(|u| {
        let register = u.register();
        let reads = matches!(u.access(), OpAccess::Read | OpAccess::CondRead);
        !register.is_gpr() && register != Register::RIP && !(register.is_segment_register() && reads)
    });
    i.is_privileged() || flow || foreign || i.segment_prefix() != Register::None
}

fn pext(value: u64, mask: u64) -> u64 {
    let (mut result, mut at) = (0, 0);
    for bit in 0..64 {
        if mask >> bit & 1 == 1 {
            result |= (value >> bit & 1) << at;
            at += 1;
        }
    }
    result
}
