//! What may be an instruction, once more: by a decoder that others wrote, with the allow-list in its words. The
//! verifier's own decoder is compared with it.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::Rule;

/// How an instruction is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads its operands.
    Reads,
    /// Writes its first operand, may read all.
    Writes,
    /// Writes its first operand without reading it.
    Sets,
    /// Writes its first two operands.
    Exchanges,
    /// Has no explicit operand; writes this register (hardware number), 16 for none.
    Implicit(u8),
    /// `mul`, `div` and the like: writes rax and rdx; `imul` with more operands writes the first.
    Multiplies,
    /// `cmpxchg`: writes its first operand and rax.
    CompareExchange,
    /// `bt` and the like, whose bit offset may move the address (M5).
    Bits,
    /// String instruction.
    String,
    /// `push` and `pop`.
    Stack,
    /// Ends or diverts the flow of control.
    Flow,
    /// Takes an address that is not accessed.
    Address,
}

/// One decoded instruction with what the raw bytes say.
pub struct Decoded {
    pub instruction: Instruction,
    pub class: Class,
}

/// The allow-list (D2). Anything else is refused.
fn classify(mnemonic: Mnemonic) -> Option<Class> {
    use Mnemonic as M;
    Some(match mnemonic {
        M::Cmp | M::Test | M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchnta | M::Prefetchw => {
            Class::Reads
        }
        M::Mov | M::Movzx | M::Movsx | M::Movsxd => Class::Sets,
        M::Seta | M::Setae | M::Setb | M::Setbe | M::Sete | M::Setg | M::Setge | M::Setl | M::Setle => Class::Sets,
        M::Setne | M::Setno | M::Setnp | M::Setns | M::Seto | M::Setp | M::Sets => Class::Sets,
        M::Pext | M::Bzhi | M::Andn | M::Rorx | M::Shlx | M::Shrx | M::Sarx => Class::Sets,
        M::Add | M::Adc | M::Sub | M::Sbb | M::And | M::Or | M::Xor | M::Not | M::Neg | M::Inc | M::Dec => {
            Class::Writes
        }
        M::Shl | M::Shr | M::Sar | M::Rol | M::Ror | M::Rcl | M::Rcr | M::Shld | M::Shrd | M::Bswap => Class::Writes,
        M::Bsf | M::Bsr | M::Popcnt | M::Tzcnt | M::Lzcnt => Class::Writes,
        M::Cmova | M::Cmovae | M::Cmovb | M::Cmovbe | M::Cmove | M::Cmovg | M::Cmovge | M::Cmovl => Class::Writes,
        M::Cmovle | M::Cmovne | M::Cmovno | M::Cmovnp | M::Cmovns | M::Cmovo | M::Cmovp | M::Cmovs => Class::Writes,
        M::Xchg | M::Xadd => Class::Exchanges,
        M::Cmpxchg => Class::CompareExchange,
        M::Mul | M::Imul | M::Div | M::Idiv => Class::Multiplies,
        M::Bt | M::Bts | M::Btr | M::Btc => Class::Bits,
        M::Cbw | M::Cwde | M::Cdqe | M::Lahf => Class::Implicit(0),
        M::Cwd | M::Cdq | M::Cqo => Class::Implicit(2),
        M::Sahf | M::Clc | M::Stc | M::Cmc | M::Pause | M::Lfence | M::Mfence | M::Sfence => Class::Implicit(16),
        M::Movsb | M::Movsw | M::Movsd | M::Movsq | M::Stosb | M::Stosw | M::Stosd | M::Stosq => Class::String,
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq | M::Scasb | M::Scasw | M::Scasd | M::Scasq => Class::String,
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => Class::String,
        M::Push | M::Pop => Class::Stack,
        M::Lea | M::Nop => Class::Address,
        M::Jmp | M::Call | M::Ret | M::Ud2 => Class::Flow,
        M::Ja | M::Jae | M::Jb | M::Jbe | M::Je | M::Jg | M::Jge | M::Jl => Class::Flow,
        M::Jle | M::Jne | M::Jno | M::Jnp | M::Jns | M::Jo | M::Jp | M::Js => Class::Flow,
        _ => return None,
    })
}

/// The prefixes that stand before an opcode.
#[derive(Default)]
struct Prefixes {
    operand_size: bool,
    repeat: bool,
    lock: bool,
}

/// Reads the prefixes of rule D3; `None` if they break it.
fn prefixes(bytes: &[u8]) -> Option<Prefixes> {
    let mut found = Prefixes::default();
    let mut bytes = bytes.iter();
    loop {
        let flag = match bytes.next()? {
            0x66 => &mut found.operand_size,
            0xf2 | 0xf3 => &mut found.repeat,
            0xf0 => &mut found.lock,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 => return None,
            0x40..=0x4f => {
                let ignored = matches!(bytes.next()?,
                    0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0xc4 | 0xc5);
                return (!ignored).then_some(found);
            }
            0xc4 | 0xc5 if found.operand_size || found.repeat || found.lock => return None,
            _ => return Some(found),
        };
        if core::mem::replace(flag, true) {
            return None;
        }
    }
}

/// Decodes the instruction at `at` of `code`, which ends where the function ends. `bmi` says whether BMI is allowed.
pub fn decode(code: &[u8], at: usize, bmi: bool) -> Result<Decoded, (Rule, &'static str, i64)> {
    let bytes = code.get(at..).unwrap_or(&[]);
    let bytes = bytes.get(..15).unwrap_or(bytes);
    let mut decoder = Decoder::with_ip(64, bytes, at as u64, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return Err((Rule::D1, "no instruction", 0));
    }
    let class =
        classify(instruction.mnemonic()).ok_or((Rule::D2, "instruction not allowed", instruction.code() as i64))?;
    if is_disputed(&instruction) {
        return Err((Rule::D2, "encoding that decoders disagree about", instruction.code() as i64));
    }
    let is_bmi = matches!(bytes.first(), Some(0xc4 | 0xc5));
    if is_bmi && !bmi {
        return Err((Rule::D2, "BMI instruction but the header names none", instruction.code() as i64));
    }
    let prefixes = prefixes(bytes).ok_or((Rule::D3, "prefix not allowed", 0))?;
    let counts =
        matches!(instruction.mnemonic(), Mnemonic::Popcnt | Mnemonic::Tzcnt | Mnemonic::Lzcnt | Mnemonic::Pause);
    if prefixes.repeat && class != Class::String && !counts {
        return Err((Rule::D3, "repeat prefix", 0));
    }
    let memory_first = instruction.op0_kind() == OpKind::Memory;
    if prefixes.lock && (!memory_first || class == Class::String) {
        return Err((Rule::D3, "lock prefix", 0));
    }
    if prefixes.operand_size && matches!(class, Class::Flow | Class::Stack) {
        return Err((Rule::D3, "operand-size prefix", 0));
    }
    registers(&instruction)?;
    Ok(Decoded { instruction, class })
}

/// Encodings that no compiler uses and that another decoder takes for something else.
fn is_disputed(instruction: &Instruction) -> bool {
    let is_register = instruction.op0_kind() == OpKind::Register;
    match instruction.code() {
        Code::Movsxd_r32_rm32 | Code::Movsxd_r16_rm16 => true,
        // With REX.B the processor may take it for an exchange with r8.
        Code::Pause => instruction.len() != 2,
        code if instruction.mnemonic() == Mnemonic::Prefetchw => code != Code::Prefetchw_m8,
        Code::Push_rm64 | Code::Pop_rm64 => is_register,
        _ => false,
    }
}

/// D4: register operands are general-purpose ones.
fn registers(instruction: &Instruction) -> Result<(), (Rule, &'static str, i64)> {
    for n in 0..instruction.op_count() {
        if instruction.op_kind(n) == OpKind::Register && general(instruction.op_register(n)).is_none() {
            return Err((Rule::D4, "not a general-purpose register", i64::from(n)));
        }
    }
    Ok(())
}

/// The hardware number of a general-purpose register of any width; ah..bh are rax..rbx.
pub fn general(register: Register) -> Option<usize> {
    use Register as R;
    let number = register as usize;
    let of = |first: Register, last: Register| {
        (first as usize..=last as usize).contains(&number).then(|| number - first as usize)
    };
    of(R::RAX, R::R15)
        .or_else(|| of(R::EAX, R::R15D))
        .or_else(|| of(R::AX, R::R15W))
        .or_else(|| of(R::AL, R::BL))
        .or_else(|| of(R::AH, R::BH))
        .or_else(|| of(R::SPL, R::R15L).map(|n| n + 4))
}
