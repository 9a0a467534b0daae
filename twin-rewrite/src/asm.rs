//! Short names for the instructions that the rewriter adds.

use crate::regs::register;
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use twin_abi::layout::{CALL_TABLE_OFFSET, CODE_OFFSET, CONST_OFFSET, CTX_OFFSET, IMPORT_OFFSET, STLB_OFFSET};

/// Where the code is assembled: the areas around it then have their offsets as addresses.
pub const CODE_BASE: u64 = CODE_OFFSET as u64;

fn rip(offset: u32) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, i64::from(offset))
}

/// Builds an instruction of two operands; the codes are chosen to fit.
macro_rules! two {
    ($code:expr, $a:expr, $b:expr) => {
        Instruction::with2($code, $a, $b).expect("operand kinds fit the code")
    };
}

/// A word of the page of constants.
pub fn constant(offset: u32) -> MemoryOperand {
    rip(CONST_OFFSET + offset)
}

/// A word of the context page.
pub fn context(offset: u32) -> MemoryOperand {
    rip(CTX_OFFSET + offset)
}

/// The slot of import `n`.
pub fn import(n: u32) -> MemoryOperand {
    rip(IMPORT_OFFSET + 8 * n)
}

/// The translation table.
pub fn stlb() -> MemoryOperand {
    rip(STLB_OFFSET)
}

/// The call table.
pub fn call_table() -> MemoryOperand {
    rip(CALL_TABLE_OFFSET)
}

/// `mov r64, r64`
pub fn copy(to: u8, from: u8) -> Instruction {
    two!(Code::Mov_r64_rm64, register(to), register(from))
}

/// `mov r32, r32`
pub fn copy32(to: u8, from: u8) -> Instruction {
    two!(Code::Mov_r32_rm32, register32(to), register32(from))
}

/// `mov r64, m`
pub fn load(to: u8, from: MemoryOperand) -> Instruction {
    two!(Code::Mov_r64_rm64, register(to), from)
}

/// `mov m, r64`
pub fn store(to: MemoryOperand, from: u8) -> Instruction {
    two!(Code::Mov_rm64_r64, to, register(from))
}

/// `lea r64, m`
pub fn lea(to: u8, of: MemoryOperand) -> Instruction {
    two!(Code::Lea_r64_m, register(to), of)
}

/// `pext r64, r64, m`
pub fn pext(to: u8, from: u8, mask: MemoryOperand) -> Instruction {
    Instruction::with3(Code::VEX_Pext_r64_r64_rm64, register(to), register(from), mask)
        .expect("operand kinds fit the code")
}

/// `and r64, m`
pub fn and_memory(to: u8, with: MemoryOperand) -> Instruction {
    two!(Code::And_r64_rm64, register(to), with)
}

/// `xor r64, m`
pub fn xor_memory(to: u8, with: MemoryOperand) -> Instruction {
    two!(Code::Xor_r64_rm64, register(to), with)
}

/// `add r64, m`
pub fn add_memory(to: u8, with: MemoryOperand) -> Instruction {
    two!(Code::Add_r64_rm64, register(to), with)
}

/// `not r64`
pub fn not(r: u8) -> Instruction {
    Instruction::with1(Code::Not_rm64, register(r)).expect("operand kinds fit the code")
}

/// `and r32, imm32`
pub fn and32(to: u8, with: i32) -> Instruction {
    two!(Code::And_rm32_imm32, register32(to), with)
}

/// `shr r32, imm8`
pub fn shr32(to: u8, by: u32) -> Instruction {
    two!(Code::Shr_rm32_imm8, register32(to), by)
}

/// `sar r64, imm8`
pub fn sar(to: u8, by: u32) -> Instruction {
    two!(Code::Sar_rm64_imm8, register(to), by)
}

/// `cmp r64, imm32`
pub fn cmp(a: u8, b: i32) -> Instruction {
    two!(Code::Cmp_rm64_imm32, register(a), b)
}

/// `mov r64, imm`, in the shortest form.
pub fn set(to: u8, value: u64) -> Instruction {
    if let Ok(low) = u32::try_from(value) {
        return two!(Code::Mov_r32_imm32, register32(to), low);
    }
    match i32::try_from(value as i64) {
        Ok(low) => two!(Code::Mov_rm64_imm32, register(to), low),
        Err(_) => two!(Code::Mov_r64_imm64, register(to), value),
    }
}

/// `push r64`
pub fn push(r: u8) -> Instruction {
    Instruction::with1(Code::Push_r64, register(r)).expect("operand kinds fit the code")
}

/// `pop r64`
pub fn pop(r: u8) -> Instruction {
    Instruction::with1(Code::Pop_r64, register(r)).expect("operand kinds fit the code")
}

/// `call m`
pub fn call_memory(of: MemoryOperand) -> Instruction {
    Instruction::with1(Code::Call_rm64, of).expect("operand kinds fit the code")
}

/// `jmp m`
pub fn jump_memory(of: MemoryOperand) -> Instruction {
    Instruction::with1(Code::Jmp_rm64, of).expect("operand kinds fit the code")
}

/// `call` of an instruction, by its number.
pub fn call(target: u64) -> Instruction {
    Instruction::with_branch(Code::Call_rel32_64, target).expect("operand kinds fit the code")
}

/// `jmp` to an instruction, by its number.
pub fn jump(target: u64) -> Instruction {
    Instruction::with_branch(Code::Jmp_rel32_64, target).expect("operand kinds fit the code")
}

/// `ja` to an instruction, by its number.
pub fn jump_above(target: u64) -> Instruction {
    Instruction::with_branch(Code::Ja_rel32_64, target).expect("operand kinds fit the code")
}

/// `js` to an instruction, by its number.
pub fn jump_sign(target: u64) -> Instruction {
    Instruction::with_branch(Code::Js_rel32_64, target).expect("operand kinds fit the code")
}

/// `dec qword m`
pub fn decrement(of: MemoryOperand) -> Instruction {
    Instruction::with1(Code::Dec_rm64, of).expect("operand kinds fit the code")
}

/// `ret`
pub fn ret() -> Instruction {
    Instruction::with(Code::Retnq)
}

/// `ud2`
pub fn ud2() -> Instruction {
    Instruction::with(Code::Ud2)
}

/// `lahf`
pub fn lahf() -> Instruction {
    Instruction::with(Code::Lahf)
}

/// `sahf`
pub fn sahf() -> Instruction {
    Instruction::with(Code::Sahf)
}

/// `seto al`
pub fn seto_al() -> Instruction {
    Instruction::with1(Code::Seto_rm8, Register::AL).expect("operand kinds fit the code")
}

/// `add al, imm8`
pub fn add_al(by: u32) -> Instruction {
    two!(Code::Add_AL_imm8, Register::AL, by)
}

/// The 32-bit register of a number.
pub fn register32(number: u8) -> Register {
    Register::EAX + u32::from(number)
}

/// `[base + index * scale + displacement]`
pub fn memory(base: Option<u8>, index: Option<(u8, u32)>, displacement: i64) -> MemoryOperand {
    let none = Register::None;
    let (index, scale) = index.map_or((none, 1), |(r, s)| (register(r), s));
    let base = base.map_or(none, register);
    // Without any register the displacement must be spelled out; else the shortest size is chosen.
    let size = match (base == none, displacement) {
        (true, _) => 8,
        (false, 0) => 0,
        (false, d) if i8::try_from(d).is_ok() => 1,
        _ => 8,
    };
    MemoryOperand::new(base, index, scale, displacement, size, false, none)
}
