//! Code of an instance that is not the twin's: the stubs behind its gates, and the ways in and out that need an
//! address.
//!
//! A gate is entered on the twin's stack, which may be full, with every register in use. So each instance has a page of
//! *save words* next to its stubs, which only the stubs and the embedder reach; the stub of a gate puts rax and rsp
//! there, loads the stack pointer that the embedder had when it entered the twin, and goes on in the embedder's own
//! code with the stub's number in rax. Imports have a way of their own, and their stubs put no rax there, which is none
//! of a call's arguments. The stubs are made here, because what lies where is known only when the instance is.
//!
//! What some imports do is so little that their stubs do it ([`Inline`]), and charge the budget as a gate does: nothing
//! leaves the twin then. Such calls are not counted.

use crate::linux::pages::{Pages, PAGE};
use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// Bytes of a stub.
pub const STUB_BYTES: u64 = STUB_LEN as u64;
const STUB_LEN: usize = 128;

/// Words of the save page, in bytes from its start.
pub mod save {
    /// The twin's rax at a gate.
    pub const RAX: u64 = 0;
    /// The twin's rsp at a gate: it points to the return address.
    pub const TWIN_RSP: u64 = 8;
    /// The embedder's rsp when it entered the twin.
    pub const HOST_RSP: u64 = 16;
    /// Where [`super::Stubs::enter`] goes.
    pub const TARGET: u64 = 24;
}

/// An import that its stub serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inline {
    /// It has nothing to do: 0.
    Nothing,
    /// Whether its first argument is at least `start` and less than `end`.
    IsWithin {
        /// The first value.
        start: u64,
        /// The first value after them.
        end: u64,
    },
    /// 0, if the frame that its second argument is an address in is in a list, with a number that is not one of these;
    /// else it is a gate.
    IsOutside {
        /// Where the list is: a word for each frame.
        list: u64,
        /// Frames that are in it, from the first on; less than 2^31.
        frames: u32,
        /// The first number.
        start: u64,
        /// How many numbers; less than 2^31.
        count: u32,
    },
    /// The machine address of what its second to fourth argument say, page, offset, and size, if it is in [`Pages`];
    /// else it is a gate.
    Page {
        /// Where the table is: [`Pages::address`].
        table: u64,
    },
}

/// How an import is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// By its stub, as far as the budget goes.
    pub inline: Option<Inline>,
    /// Else by the embedder's function at this address, which its stub names to [`Targets::import`].
    pub by: u64,
}

/// Where the embedder's code is, and the word that stubs charge.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// Where special gates go on, with the embedder's stack pointer and the stub's number in eax.
    pub gate: u64,
    /// The same for imports; r11 is the function that serves it.
    pub import: u64,
    /// Where the way out goes on, with it and the result in rax.
    pub leave: u64,
    /// The context page's word `BUDGET`, less than 2 GiB away.
    pub budget: u64,
}

/// Numbers of the special gates, added to the number of imports.
pub mod special {
    /// A page that is not in the stlb.
    pub const STLB_MISS: u32 = 0;
    /// An indirect call.
    pub const INDIRECT_CALL: u32 = 1;
    /// A `WARN` site.
    pub const WARN: u32 = 2;
    /// How many there are.
    pub const COUNT: u32 = 3;
}

/// Pieces behind the stubs: what gates have in common, what imports have, the way out, the way in.
const COMMON: u32 = 4;

/// Where the pieces are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stubs {
    start: u64,
    save: u64,
    imports: u32,
}

impl Stubs {
    /// Stubs from address `start` for `imports` imports; the save page is at `save`, less than 2 GiB away.
    #[must_use]
    pub const fn new(start: u64, save: u64, imports: u32) -> Self {
        Self { start, save, imports }
    }

    /// Number of imports.
    #[must_use]
    pub const fn imports(&self) -> u32 {
        self.imports
    }

    /// Address of the stub of import `n`.
    #[must_use]
    pub const fn import(&self, n: u32) -> u64 {
        self.start + n as u64 * STUB_BYTES
    }

    /// Address of the stub of a special gate ([`special`]).
    #[must_use]
    pub const fn special(&self, n: u32) -> u64 {
        self.import(self.imports + n)
    }

    const fn common(&self) -> u64 {
        self.special(special::COUNT)
    }

    const fn common_import(&self) -> u64 {
        self.common() + STUB_BYTES
    }

    /// What the return address of an invocation's first function has to be.
    #[must_use]
    pub const fn leave(&self) -> u64 {
        self.common_import() + STUB_BYTES
    }

    /// Jumping here with the twin's stack pointer enters what [`save::TARGET`] says, and clears r11.
    #[must_use]
    pub const fn enter(&self) -> u64 {
        self.leave() + STUB_BYTES
    }

    /// Bytes of all of it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.enter() + STUB_BYTES - self.start
    }

    /// The addresses of the imports' stubs.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn addresses(&self) -> Result<Vec<u64>, TryReserveError> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.imports as usize)?;
        all.extend((0..self.imports).map(|n| self.import(n)));
        Ok(all)
    }

    /// The code; `served` says how imports are.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn code(&self, to: &Targets, served: impl Fn(u32) -> Served) -> Result<Vec<u8>, TryReserveError> {
        let mut bytes = Vec::new();
        // All of it, so nothing that is written below takes memory.
        bytes.try_reserve_exact((self.imports + special::COUNT + COMMON) as usize * STUB_LEN)?;
        let mut code = Code { start: self.start, save: self.save, bytes };
        for n in 0..self.imports {
            let Served { inline, by } = served(n);
            if let Some(inline) = inline {
                code.inline(inline, to.budget);
            }
            code.number(n);
            code.server(by);
            code.jump_near(self.common_import());
            code.pad();
        }
        for n in self.imports..self.imports + special::COUNT {
            code.word(&[0x48, 0x89, 0x05], save::RAX); // mov [RAX], rax
            code.number(n);
            code.jump_near(self.common());
            code.pad();
        }
        for gate in [to.gate, to.import] {
            code.word(&[0x48, 0x89, 0x25], save::TWIN_RSP); // mov [TWIN_RSP], rsp
            code.word(&[0x48, 0x8b, 0x25], save::HOST_RSP); // mov rsp, [HOST_RSP]
            code.jump(gate);
            code.pad();
        }
        code.word(&[0x48, 0x8b, 0x25], save::HOST_RSP); // mov rsp, [HOST_RSP]
        code.jump(to.leave);
        code.pad();
        code.bytes.extend([0x45, 0x31, 0xdb]); // xor r11d, r11d
        code.word(&[0xff, 0x25], save::TARGET); // jmp [TARGET]
        code.pad();
        Ok(code.bytes)
    }
}

struct Code {
    start: u64,
    save: u64,
    bytes: Vec<u8>,
}

impl Code {
    fn at(&self) -> u64 {
        self.start.wrapping_add(self.bytes.len() as u64)
    }

    /// The last four bytes of an instruction: a distance from its end.
    #[allow(clippy::cast_possible_truncation, reason = "the pieces are less than 2 GiB apart")]
    fn distance(&mut self, distance: u64) {
        self.bytes.extend((distance as u32).to_le_bytes());
    }

    /// An instruction whose operand is a save word.
    fn word(&mut self, opcode: &[u8], word: u64) {
        self.relative(opcode, self.save.wrapping_add(word));
    }

    /// An instruction that ends with the distance to `target`.
    fn relative(&mut self, opcode: &[u8], target: u64) {
        self.bytes.extend(opcode);
        let next = self.at() + 4;
        self.distance(target.wrapping_sub(next));
    }

    fn jump_near(&mut self, to: u64) {
        self.relative(&[0xe9], to); // jmp to
    }

    fn number(&mut self, n: u32) {
        self.bytes.push(0xb8); // mov eax, n
        self.bytes.extend(n.to_le_bytes());
    }

    fn server(&mut self, by: u64) {
        self.bytes.extend([0x49, 0xbb]); // mov r11, by
        self.bytes.extend(by.to_le_bytes());
    }

    /// What returns to the twin, unless the budget is used up, or it cannot tell the answer: then the gate, which comes
    /// next, is as if this were not here (and charges once more). It writes rax, r10 and r11, and of the other
    /// registers that a call does not preserve only those that it has read, if it returns; r10 and r11 are 0 then, or
    /// as they were.
    fn inline(&mut self, inline: Inline, budget: u64) {
        self.relative(&[0x48, 0xff, 0x0d], budget); // dec [BUDGET]
        let mut body = Body { bytes: &mut self.bytes, jumps: [0; MOST_JUMPS], nr_jumps: 0 };
        body.leave(0x78); // js the gate
        match inline {
            Inline::Nothing => body.bytes(&[0x31, 0xc0]), // xor eax, eax
            Inline::IsWithin { start, end } => {
                body.load([0x48, 0xb8], start); // mov rax, start
                body.bytes(&[0x48, 0x29, 0xc7]); // sub rdi, rax
                body.load([0x48, 0xb8], end.saturating_sub(start)); // mov rax, end - start
                body.bytes(&[0x48, 0x39, 0xc7]); // cmp rdi, rax
                body.bytes(&[0x19, 0xc0, 0xf7, 0xd8]); // sbb eax, eax; neg eax
            }
            Inline::IsOutside { list, frames, start, count } => {
                body.bytes(&[0x48, 0x89, 0xf0]); // mov rax, rsi
                body.bytes(&[0x48, 0xc1, 0xe8, 12]); // shr rax, 12
                body.immediate(&[0x48, 0x3d], frames); // cmp rax, frames
                body.leave(0x73); // jae the gate
                                  // However that was guessed, no other word is read.
                body.bytes(&[0x4d, 0x19, 0xdb]); // sbb r11, r11
                body.bytes(&[0x4c, 0x21, 0xd8]); // and rax, r11
                body.load([0x49, 0xbb], list); // mov r11, list
                body.bytes(&[0x4d, 0x8b, 0x1c, 0xc3]); // mov r11, [r11 + 8 * rax]
                body.load([0x48, 0xb8], start); // mov rax, start
                body.bytes(&[0x49, 0x29, 0xc3]); // sub r11, rax
                body.immediate(&[0x49, 0x81, 0xfb], count); // cmp r11, count
                body.leave(0x72); // jb the gate
                body.bytes(&[0x31, 0xc0, 0x45, 0x31, 0xdb]); // xor eax, eax; xor r11d, r11d
            }
            Inline::Page { table } => {
                #[allow(clippy::cast_possible_truncation, reason = "less than 32")]
                body.bytes(&[0x89, 0xf0, 0xc1, 0xe8, Pages::SHIFT as u8]); // mov eax, esi; shr eax, SHIFT
                body.immediate(&[0x25], Pages::MASK); // and eax, MASK
                body.load([0x49, 0xbb], table); // mov r11, table
                body.bytes(&[0x49, 0x01, 0xc3]); // add r11, rax
                body.bytes(&[0x4c, 0x8d, 0x51, 0xff]); // lea r10, [rcx - 1]
                body.bytes(&[0x49, 0x01, 0xd2]); // add r10, rdx
                body.leave(0x72); // jc the gate
                #[allow(clippy::cast_possible_truncation, reason = "less than 2^31")]
                body.immediate(&[0x49, 0x81, 0xfa], PAGE as u32); // cmp r10, PAGE
                body.leave(0x73); // jae the gate
                body.bytes(&[0x49, 0x39, 0x33]); // cmp [r11], rsi
                body.leave(0x75); // jne the gate
                body.bytes(&[0x49, 0x8b, 0x43, 8]); // mov rax, [r11 + 8]
                body.bytes(&[0x49, 0x39, 0x33]); // cmp [r11], rsi: another page may have got the place in between
                body.leave(0x75); // jne the gate
                body.bytes(&[0x48, 0x01, 0xd0]); // add rax, rdx
                body.bytes(&[0x45, 0x31, 0xd2, 0x45, 0x31, 0xdb]); // xor r10d, r10d; xor r11d, r11d
            }
        }
        body.bytes(&[0xc3]); // ret
        body.end();
    }

    /// `jmp [rip]` and the address behind it.
    fn jump(&mut self, to: u64) {
        self.bytes.extend([0xff, 0x25, 0, 0, 0, 0]);
        self.bytes.extend(to.to_le_bytes());
    }

    /// `int3` up to the next stub.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(STUB_LEN), 0xcc);
    }
}

/// Jumps behind a body.
const MOST_JUMPS: usize = 8;

/// The body of a stub that serves its import, with jumps to what comes behind it. It takes no memory: `bytes` have
/// room.
struct Body<'a> {
    bytes: &'a mut Vec<u8>,
    /// Where distances of jumps are.
    jumps: [usize; MOST_JUMPS],
    nr_jumps: usize,
}

impl Body<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// An instruction that ends with a word.
    fn load(&mut self, opcode: [u8; 2], word: u64) {
        self.bytes.extend(opcode);
        self.bytes.extend(word.to_le_bytes());
    }

    /// An instruction that ends with a value of 32 bits, of which the highest is 0.
    fn immediate(&mut self, opcode: &[u8], value: u32) {
        self.bytes.extend(opcode);
        self.bytes.extend((value & u32::MAX >> 1).to_le_bytes());
    }

    /// A jump behind the body.
    fn leave(&mut self, opcode: u8) {
        self.bytes.extend([opcode, 0]);
        if let Some(jump) = self.jumps.get_mut(self.nr_jumps) {
            *jump = self.bytes.len() - 1;
            self.nr_jumps += 1;
        }
        debug_assert!(self.nr_jumps < MOST_JUMPS, "no body has so many");
    }

    fn end(self) {
        let len = self.bytes.len();
        for at in self.jumps.into_iter().take(self.nr_jumps) {
            if let Some(distance) = self.bytes.get_mut(at) {
                #[allow(clippy::cast_possible_truncation, reason = "some eighty bytes")]
                (*distance = (len - at - 1) as u8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};

    const START: u64 = 0xffff_8200_01c0_0000;
    const SAVE: u64 = START - 4096;
    const GATE: u64 = 0xffff_82d0_8000_1234;
    const IMPORT: u64 = 0xffff_82d0_8000_2345;
    const LEAVE: u64 = 0xffff_82d0_8000_5678;
    const BUDGET: u64 = START - (20 << 20);
    const TARGETS: Targets = Targets { gate: GATE, import: IMPORT, leave: LEAVE, budget: BUDGET };
    const RANGE: Inline = Inline::IsWithin { start: 0xffff_c900_0000_0000, end: 0xffff_e8ff_ffff_ffff };

    const SERVER: u64 = 0xffff_82d0_8000_9000;

    /// Of five imports the second has nothing to do, and the third asks for a range.
    fn code() -> (Stubs, Vec<u8>) {
        let stubs = Stubs::new(START, SAVE, 5);
        let inline = |n| [None, Some(Inline::Nothing), Some(RANGE)].get(n as usize).copied().flatten();
        let code = stubs.code(&TARGETS, |n| Served { inline: inline(n), by: SERVER + u64::from(n) });
        let code = code.expect("memory");
        assert_eq!(code.len() as u64, stubs.bytes());
        (stubs, code)
    }

    fn at(address: u64) -> (Stubs, Vec<Instruction>) {
        let (stubs, code) = code();
        let from = usize::try_from(address - START).expect("inside");
        let decoder = Decoder::with_ip(64, &code[from..from + STUB_LEN], address, DecoderOptions::NONE);
        (stubs, decoder.into_iter().take_while(|i| i.mnemonic() != Mnemonic::Int3).collect())
    }

    #[test]
    fn a_stub_goes_on_with_its_number() {
        for n in [0, 3, 4] {
            let (stubs, insns) = at(START + n * STUB_BYTES);
            assert_eq!(insns.len(), 3, "{n}");
            assert_eq!((insns[0].op0_register(), insns[0].immediate32()), (Register::EAX, u32::try_from(n).unwrap()));
            assert_eq!((insns[1].op0_register(), insns[1].immediate64()), (Register::R11, SERVER + n));
            assert_eq!((insns[2].mnemonic(), insns[2].near_branch_target()), (Mnemonic::Jmp, stubs.common_import()));
        }
        for n in 5..8 {
            let (stubs, insns) = at(START + n * STUB_BYTES);
            assert_eq!(insns.len(), 3, "{n}");
            assert_eq!((insns[0].mnemonic(), insns[0].memory_displacement64()), (Mnemonic::Mov, SAVE + save::RAX));
            assert_eq!(insns[0].op1_register(), Register::RAX);
            assert_eq!((insns[1].op0_register(), insns[1].immediate32()), (Register::EAX, u32::try_from(n).unwrap()));
            assert_eq!((insns[2].mnemonic(), insns[2].near_branch_target()), (Mnemonic::Jmp, stubs.common()));
        }
    }

    /// What a stub does by itself charges the budget, leaves only rax and rdi changed, and goes to the gate when the
    /// budget is used up.
    #[test]
    fn what_a_stub_does_by_itself_is_charged() {
        for (n, mnemonics) in [
            (1, &[Mnemonic::Xor][..]),
            (2, &[Mnemonic::Mov, Mnemonic::Sub, Mnemonic::Mov, Mnemonic::Cmp, Mnemonic::Sbb, Mnemonic::Neg]),
        ] {
            let (stubs, insns) = at(START + n * STUB_BYTES);
            assert_eq!((insns[0].mnemonic(), insns[0].memory_displacement64()), (Mnemonic::Dec, BUDGET));
            let over = insns.len() - 3;
            assert_eq!((insns[1].mnemonic(), insns[1].near_branch_target()), (Mnemonic::Js, insns[over].ip()));
            let body: Vec<Mnemonic> = insns[2..over].iter().map(Instruction::mnemonic).collect();
            assert_eq!(body, [mnemonics, &[Mnemonic::Ret]].concat());
            let writes_else = |i: &Instruction| {
                !matches!(i.op0_register(), Register::RAX | Register::EAX | Register::RDI | Register::None)
            };
            assert!(!insns[2..over].iter().any(writes_else));
            assert_eq!(
                (insns[over].op0_register(), insns[over].immediate32()),
                (Register::EAX, u32::try_from(n).unwrap())
            );
            assert_eq!(insns[over + 1].immediate64(), SERVER + n);
            assert_eq!(insns[over + 2].near_branch_target(), stubs.common_import());
        }
        let (_, insns) = at(START + 2 * STUB_BYTES);
        let Inline::IsWithin { start, end } = RANGE else { unreachable!() };
        assert_eq!((insns[2].immediate64(), insns[4].immediate64()), (start, end - start));
    }

    /// What is executed of one stub: the registers, and whether it returned; else it went on to its gate.
    fn run(inline: Inline, args: [u64; 4], word: impl Fn(u64) -> u64) -> (u64, bool) {
        use Register::{R10, R11, RAX, RCX, RDI, RDX, RSI};
        let stubs = Stubs::new(START, SAVE, 1);
        let code = stubs.code(&TARGETS, |_| Served { inline: Some(inline), by: SERVER }).expect("memory");
        let mut registers = alloc::collections::BTreeMap::from([(RAX, 0u64), (R10, 77), (R11, 88)]);
        registers.extend([RDI, RSI, RDX, RCX].into_iter().zip(args));
        let whole = |register| match register {
            Register::EAX => RAX,
            Register::ESI => RSI,
            Register::R10D => R10,
            Register::R11D => R11,
            other => other,
        };
        let (mut at, mut carry, mut zero) = (0, false, false);
        loop {
            let i = Decoder::with_ip(64, &code[at..], START + at as u64, DecoderOptions::NONE).decode();
            at += i.len();
            let is_32 = whole(i.op0_register()) != i.op0_register();
            let place = |i: &Instruction| {
                let index = registers
                    .get(&i.memory_index())
                    .map_or(0, |value| value.wrapping_mul(i.memory_index_scale().into()));
                let base = registers.get(&i.memory_base()).copied().unwrap_or(0);
                base.wrapping_add(index).wrapping_add(i.memory_displacement64())
            };
            let operand = |n: u32| match i.op_kind(n) {
                iced_x86::OpKind::Register => registers[&whole(i.op_register(n))],
                iced_x86::OpKind::Memory => word(place(&i)),
                _ => i.immediate(n),
            };
            let narrow = |value: u64| if is_32 { value & 0xffff_ffff } else { value };
            let result = match i.mnemonic() {
                Mnemonic::Dec => None,
                Mnemonic::Ret => {
                    let is_gone = |r| matches!((r, registers[&r]), (_, 0) | (R10, 77) | (R11, 88));
                    assert!(is_gone(R10) && is_gone(R11), "the twin sees what is the embedder's");
                    return (registers[&RAX], true);
                }
                Mnemonic::Js => None,
                Mnemonic::Jae | Mnemonic::Jb | Mnemonic::Jne => {
                    let is_taken = match i.mnemonic() {
                        Mnemonic::Jae => !carry,
                        Mnemonic::Jb => carry,
                        _ => !zero,
                    };
                    if is_taken {
                        at = usize::try_from(i.near_branch_target() - START).unwrap();
                    }
                    None
                }
                Mnemonic::Mov
                    if i.immediate32() == 0
                        && i.op0_register() == Register::EAX
                        && i.op1_kind() == iced_x86::OpKind::Immediate32 =>
                {
                    // The stub's number: this is the way to the gate, with the arguments as they were.
                    assert_eq!([RDI, RSI, RDX, RCX].map(|r| registers[&r]), args);
                    return (0, false);
                }
                Mnemonic::Mov => Some(operand(1)),
                Mnemonic::Lea => Some(place(&i)),
                Mnemonic::Shr => Some(narrow(operand(0)) >> operand(1)),
                Mnemonic::And => Some(operand(0) & operand(1)),
                Mnemonic::Xor => Some(operand(0) ^ operand(1)),
                Mnemonic::Sbb => Some(0u64.wrapping_sub(carry.into())),
                Mnemonic::Add => {
                    let (sum, over) = operand(0).overflowing_add(operand(1));
                    carry = over;
                    Some(sum)
                }
                Mnemonic::Sub | Mnemonic::Cmp => {
                    let (difference, under) = operand(0).overflowing_sub(operand(1));
                    (carry, zero) = (under, difference == 0);
                    (i.mnemonic() == Mnemonic::Sub).then_some(difference)
                }
                other => panic!("{other:?} is not expected in a stub"),
            };
            if let Some(result) = result {
                registers.insert(whole(i.op0_register()), narrow(result));
            }
        }
    }

    /// The stub says of each address what the list says, reads no other word, and leaves to the gate what it cannot
    /// know.
    #[test]
    fn a_stub_looks_frames_up_in_a_list() {
        const LIST: u64 = 0xffff_8080_0000_0000;
        let list = [5, 100, u64::MAX, 109, 110, 99, 0];
        let inline =
            Inline::IsOutside { list: LIST, frames: u32::try_from(list.len()).unwrap(), start: 100, count: 10 };
        let word = |address: u64| list[usize::try_from((address - LIST) / 8).unwrap()];
        for (frame, number) in list.iter().enumerate() {
            for low in [0, 1, 0xfff] {
                let address = (frame as u64) << 12 | low;
                let is_outside = !(100..110).contains(number);
                assert_eq!(run(inline, [1, address, 3, 4], word), (0, is_outside), "{address:#x}");
            }
        }
        for address in [(list.len() as u64) << 12, 1 << 52, u64::MAX] {
            assert_eq!(run(inline, [1, address, 3, 4], |_| panic!("not in the list")), (0, false), "{address:#x}");
        }
    }

    /// The stub answers what the table says.
    #[test]
    fn a_stub_looks_pages_up_in_the_table() {
        const FIRST: u64 = 0xffff_ea00_0040_0000;
        let pages = Pages::new().unwrap();
        for n in [0, 3, 2047, 2049] {
            pages.put(FIRST + n * 64, 0x1_0000_0000 + n * PAGE);
        }
        let table = pages.address();
        let word = |address| pages.word(address);
        for page in (0..2050).map(|n| FIRST + n * 64).chain([FIRST + 1, FIRST + 32, 0, u64::MAX]) {
            for (offset, size) in
                [(0, 1), (64, 1500), (0, PAGE), (1, PAGE), (PAGE, 0), (0, 0), (PAGE, 1), (u64::MAX, 2), (3, u64::MAX)]
            {
                let (answer, is_answered) = run(Inline::Page { table }, [1, page, offset, size], word);
                assert_eq!(
                    is_answered.then_some(answer),
                    pages.find(page, offset, size),
                    "{page:#x} {offset:#x} {size:#x}"
                );
            }
        }
    }

    /// Whatever a driver calls a page, no stub answers for it if it is not lent.
    #[test]
    fn a_stub_finds_nothing_in_a_place_without_a_page() {
        let pages = Pages::new().unwrap();
        let table = pages.address();
        let in_places: Vec<u64> = (0..2048).map(|n| pages.word(table + 16 * n)).collect();
        let odd = (0..=130).chain([2048 * 64, 1 << 32, u64::MAX - 63, u64::MAX]);
        let all: Vec<u64> = odd.chain(in_places).chain((0..2048).map(|n| n * 64)).collect();
        let finds = |page| run(Inline::Page { table }, [1, page, 0, 60], |address| pages.word(address)).1;
        assert_eq!(all.iter().find(|page| finds(**page)), None, "of none");
        // One in each place.
        let lent = |n: u64| 0xffff_ea00_0040_0000 + n * 64;
        (0..2048).for_each(|n| pages.put(lent(n), 0x1_0000_0000 + n * PAGE));
        assert!((0..2048).all(|n| finds(lent(n))));
        assert_eq!(all.iter().find(|page| finds(**page)), None, "of those that are lent");
        (0..2048).for_each(|n| pages.forget(lent(n)));
        let in_places = (0..2048).map(|n| pages.word(table + 16 * n));
        assert_eq!(in_places.chain((0..2048).map(lent)).chain(all).find(|page| finds(*page)), None, "of none any more");
        assert_eq!([0, 1, 64].map(|page| pages.find(page, 0, 60)), [None; 3]);
    }

    /// Another CPU puts a page into the place at which the stub looks: its address is not the answer.
    #[test]
    fn a_stub_does_not_mix_pages_that_meet() {
        const PAGES: [u64; 2] = [0xffff_ea00_0040_0000, 0xffff_ea00_0040_0000 + 2048 * 64];
        const MACHINES: [u64; 2] = [0x1000, 0x2000];
        // What each read of the stub finds, at whatever moment the place changes hands, and goes through having no
        // page.
        for changes in 0..4 {
            let nr_read = core::cell::Cell::new(0);
            let word = |address: u64| {
                let n = nr_read.replace(nr_read.get() + 1);
                match (n < changes, address % 16) {
                    (true, 0) => PAGES[0],
                    (true, _) => MACHINES[0],
                    (false, 0) => PAGES[1],
                    (false, _) => MACHINES[1],
                }
            };
            let (answer, is_answered) = run(Inline::Page { table: 0 }, [1, PAGES[0], 0, 60], word);
            assert!(!is_answered || answer == MACHINES[0], "after {changes} reads: {answer:#x}");
            assert_eq!(is_answered, changes == 3, "after {changes} reads");
        }
    }

    /// Who makes stubs for a domain hears of it when there is no memory: all of it is asked for at once, and nothing is
    /// added later.
    #[test]
    fn stubs_take_their_memory_at_once() {
        let longest = Inline::Page { table: 0xffff_8080_0000_0000 };
        for imports in [0, 1, 7, 1024] {
            let stubs = Stubs::new(START, SAVE, imports);
            let code = stubs.code(&TARGETS, |_| Served { inline: Some(longest), by: SERVER }).expect("memory");
            assert_eq!((code.len() as u64, code.capacity() as u64), (stubs.bytes(), stubs.bytes()));
            let addresses = stubs.addresses().expect("memory");
            assert_eq!((addresses.len(), addresses.capacity()), (imports as usize, imports as usize));
            assert_eq!(addresses.last().map_or(START, |last| last + STUB_BYTES), stubs.special(0));
        }
    }

    #[test]
    fn the_common_parts_change_stacks_and_go_to_the_gates() {
        let stubs = Stubs::new(START, SAVE, 5);
        for (address, gate) in [(stubs.common(), GATE), (stubs.common_import(), IMPORT)] {
            let (_, insns) = at(address);
            let word = |n: usize| insns[n].memory_displacement64();
            assert_eq!((word(0), insns[0].op1_register()), (SAVE + save::TWIN_RSP, Register::RSP));
            assert_eq!((word(1), insns[1].op0_register()), (SAVE + save::HOST_RSP, Register::RSP));
            assert_eq!((insns[2].mnemonic(), word(2)), (Mnemonic::Jmp, insns[2].next_ip()));
            let at = usize::try_from(insns[2].next_ip() - START).expect("inside");
            assert_eq!(code().1[at..at + 8], gate.to_le_bytes());
        }
    }

    #[test]
    fn the_ways_in_and_out_use_the_save_words() {
        let (stubs, insns) = at(Stubs::new(START, SAVE, 5).leave());
        assert_eq!((insns[0].memory_displacement64(), insns[0].op0_register()), (SAVE + save::HOST_RSP, Register::RSP));
        assert_eq!(insns[1].mnemonic(), Mnemonic::Jmp);
        let (_, insns) = at(stubs.enter());
        assert_eq!(
            (insns[0].mnemonic(), insns[0].op0_register(), insns[0].op1_register()),
            (Mnemonic::Xor, Register::R11D, Register::R11D)
        );
        assert_eq!((insns[1].mnemonic(), insns[1].memory_displacement64()), (Mnemonic::Jmp, SAVE + save::TARGET));
    }

    #[test]
    fn special_gates_come_after_the_imports() {
        let stubs = Stubs::new(START, SAVE, 5);
        assert_eq!(stubs.import(4) + STUB_BYTES, stubs.special(special::STLB_MISS));
        assert_eq!(stubs.special(special::WARN), stubs.import(7));
    }
}
