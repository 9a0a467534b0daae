//! Code of an instance that is not the twin's: the stubs behind its gates, and the ways in and out that need an address.
//!
//! A gate is entered on the twin's stack, which may be full, with every register in use. So each instance has a page of
//! *save words* next to its stubs, which only the stubs and the embedder reach; a stub puts rax and rsp there, loads the stack
//! pointer that the embedder had when it entered the twin, and goes on in the embedder's own code with the stub's number in
//! rax. The stubs are made here, because what lies where is known only when the instance is.

use alloc::vec::Vec;

/// Bytes of a stub.
pub const STUB_BYTES: u64 = 32;

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

    /// What the return address of an invocation's first function has to be.
    #[must_use]
    pub const fn leave(&self) -> u64 {
        self.common() + STUB_BYTES
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

    /// The code. Gates go on at `gate`, with the embedder's stack pointer and the stub's number in eax; the way out goes on
    /// at `leave`, with it and the result in rax.
    #[must_use]
    pub fn code(&self, gate: u64, leave: u64) -> Vec<u8> {
        let mut code = Code { start: self.start, save: self.save, bytes: Vec::new() };
        for n in 0..self.imports + special::COUNT {
            code.word(&[0x48, 0x89, 0x05], save::RAX); // mov [RAX], rax
            code.bytes.push(0xb8); // mov eax, n
            code.bytes.extend(n.to_le_bytes());
            code.bytes.push(0xe9); // jmp common
            let next = code.at() + 4;
            code.distance(self.common().wrapping_sub(next));
            code.pad();
        }
        code.word(&[0x48, 0x89, 0x25], save::TWIN_RSP); // mov [TWIN_RSP], rsp
        code.word(&[0x48, 0x8b, 0x25], save::HOST_RSP); // mov rsp, [HOST_RSP]
        code.jump(gate);
        code.pad();
        code.word(&[0x48, 0x8b, 0x25], save::HOST_RSP); // mov rsp, [HOST_RSP]
        code.jump(leave);
        code.pad();
        code.bytes.extend([0x45, 0x31, 0xdb]); // xor r11d, r11d
        code.word(&[0xff, 0x25], save::TARGET); // jmp [TARGET]
        code.pad();
        code.bytes
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
        self.bytes.extend(opcode);
        let next = self.at() + 4;
        self.distance(self.save.wrapping_add(word).wrapping_sub(next));
    }

    /// `jmp [rip]` and the address behind it.
    fn jump(&mut self, to: u64) {
        self.bytes.extend([0xff, 0x25, 0, 0, 0, 0]);
        self.bytes.extend(to.to_le_bytes());
    }

    /// `int3` up to the next stub.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(32), 0xcc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};

    const START: u64 = 0xffff_8200_01c0_0000;
    const SAVE: u64 = START - 4096;
    const GATE: u64 = 0xffff_82d0_8000_1234;
    const LEAVE: u64 = 0xffff_82d0_8000_5678;

    fn at(address: u64) -> (Stubs, Vec<Instruction>) {
        let stubs = Stubs::new(START, SAVE, 5);
        let code = stubs.code(GATE, LEAVE);
        assert_eq!(code.len() as u64, stubs.bytes());
        let from = usize::try_from(address - START).expect("inside");
        let decoder = Decoder::with_ip(64, &code[from..from + 32], address, DecoderOptions::NONE);
        (stubs, decoder.into_iter().take_while(|i| i.mnemonic() != Mnemonic::Int3).collect())
    }

    #[test]
    fn a_stub_saves_rax_and_goes_on_with_its_number() {
        for n in 0..8 {
            let (stubs, insns) = at(START + n * STUB_BYTES);
            assert_eq!(insns.len(), 3, "{n}");
            assert_eq!((insns[0].mnemonic(), insns[0].memory_displacement64()), (Mnemonic::Mov, SAVE + save::RAX));
            assert_eq!(insns[0].op1_register(), Register::RAX);
            assert_eq!((insns[1].op0_register(), insns[1].immediate32()), (Register::EAX, u32::try_from(n).unwrap()));
            assert_eq!((insns[2].mnemonic(), insns[2].near_branch_target()), (Mnemonic::Jmp, stubs.common()));
        }
    }

    #[test]
    fn the_common_part_changes_stacks_and_goes_to_the_gate() {
        let (_, insns) = at(Stubs::new(START, SAVE, 5).common());
        assert_eq!((insns[0].memory_displacement64(), insns[0].op1_register()), (SAVE + save::TWIN_RSP, Register::RSP));
        assert_eq!((insns[1].memory_displacement64(), insns[1].op0_register()), (SAVE + save::HOST_RSP, Register::RSP));
        assert_eq!((insns[2].mnemonic(), insns[2].memory_displacement64()), (Mnemonic::Jmp, insns[2].next_ip()));
        let code = Stubs::new(START, SAVE, 5).code(GATE, LEAVE);
        let word = usize::try_from(insns[2].next_ip() - START).expect("inside");
        assert_eq!(code[word..word + 8], GATE.to_le_bytes());
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
