//! Which instructions the rewriter knows how to carry over. Everything else refuses its function, by name.

use iced_x86::{Instruction, Mnemonic, OpKind};

/// Whether `i` can become part of a twin. Transfers of control are judged elsewhere.
pub fn is_allowed(i: &Instruction) -> bool {
    use Mnemonic as M;
    let registers = (0..i.op_count()).all(|k| i.op_kind(k) != OpKind::Register || i.op_register(k).is_gpr());
    if i.is_string_instruction() {
        return !matches!(i.mnemonic(), M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd);
    }
    let known = matches!(
        i.mnemonic(),
        M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Lea
            | M::Push
            | M::Pop
            | M::Xchg
            | M::Xadd
            | M::Cmpxchg
            | M::Bswap
            | M::Add
            | M::Adc
            | M::Sub
            | M::Sbb
            | M::And
            | M::Or
            | M::Xor
            | M::Not
            | M::Neg
            | M::Inc
            | M::Dec
            | M::Cmp
            | M::Test
            | M::Imul
            | M::Mul
            | M::Div
            | M::Idiv
            | M::Shl
            | M::Shr
            | M::Sar
            | M::Rol
            | M::Ror
            | M::Rcl
            | M::Rcr
            | M::Shld
            | M::Shrd
            | M::Bt
            | M::Bts
            | M::Btr
            | M::Btc
            | M::Bsf
            | M::Bsr
            | M::Popcnt
            | M::Tzcnt
            | M::Lzcnt
            | M::Cbw
            | M::Cwde
            | M::Cdqe
            | M::Cwd
            | M::Cdq
            | M::Cqo
            | M::Clc
            | M::Stc
            | M::Cmc
            | M::Pause
            | M::Lfence
            | M::Mfence
            | M::Sfence
            | M::In
            | M::Out
    ) || is_cmov(i.mnemonic())
        || is_setcc(i.mnemonic());
    known && registers
}

/// Is it a conditional move?
pub fn is_cmov(m: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        m,
        M::Cmova
            | M::Cmovae
            | M::Cmovb
            | M::Cmovbe
            | M::Cmove
            | M::Cmovg
            | M::Cmovge
            | M::Cmovl
            | M::Cmovle
            | M::Cmovne
            | M::Cmovno
            | M::Cmovnp
            | M::Cmovns
            | M::Cmovo
            | M::Cmovp
            | M::Cmovs
    )
}

/// Does it set a byte by a condition?
pub fn is_setcc(m: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        m,
        M::Seta
            | M::Setae
            | M::Setb
            | M::Setbe
            | M::Sete
            | M::Setg
            | M::Setge
            | M::Setl
            | M::Setle
            | M::Setne
            | M::Setno
            | M::Setnp
            | M::Setns
            | M::Seto
            | M::Setp
            | M::Sets
    )
}
