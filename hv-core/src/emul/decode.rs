//! A decoder for the instructions that are emulated, and no others.
//!
//! It computes the effective address on the way, as one pass is shorter and faster than building an operand tree; the
//! page-table write path runs through it more than a hundred thousand times in one session of the tools. Tests compare
//! length and operands with an independent decoder. Encodings: SDM vol. 2A, chapter 2 and appendix A.

use super::gpr::{self, Gpr};
use super::{Exception, Fetched, Mode, Segment, MAX_INSTRUCTION_BYTES};
use x86::VirtAddr;
use xen_abi::regs::CpuUserRegs;

/// Why an instruction was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Reading the byte at this address faults.
    Fetch(u64),
    /// More than fifteen bytes: the CPU raises #GP.
    TooLong,
    /// Not one of the instructions that are emulated.
    Unsupported,
}

impl DecodeError {
    /// The exception that the guest gets instead, if it is not simply the one that brought us here.
    pub const fn exception(self) -> Option<Exception> {
        match self {
            // The CPU raises #GP at an address that is none, and that is what brought us here.
            Self::Fetch(addr) => match VirtAddr::new(addr) {
                Some(_) => Some(Exception::fetch_fault(addr)),
                None => None,
            },
            Self::TooLong => Some(Exception::GP),
            Self::Unsupported => None,
        }
    }
}

/// Opcode map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// One-byte opcodes.
    Primary,
    /// Opcodes after 0F.
    Secondary,
}

/// What follows the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bare,
    Imm8,
    /// An absolute address of address size.
    Moffs,
    ModRm,
    ModRmImm8,
    /// ModRM and an immediate of operand size, at most four bytes.
    ModRmImm,
    /// ModRM whose mod field is ignored: both operands are registers.
    ModRmRegisters,
}

/// Legacy prefixes seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "prefix names")]
pub struct Prefixes {
    pub operand_size: bool,
    pub address_size: bool,
    pub lock: bool,
    /// F2 or F3, the last one seen.
    pub repeat: Option<Repeat>,
}

/// F3 or F2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "prefix names")]
pub enum Repeat {
    Rep,
    Repne,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    /// Length in bytes, 1..=15.
    pub len: u8,
    /// Opcode map.
    pub map: Map,
    /// Opcode byte.
    pub opcode: u8,
    /// Legacy prefixes.
    pub prefixes: Prefixes,
    /// REX byte, 0 if none.
    pub rex: u8,
    /// ModRM byte, 0 if none.
    pub modrm: u8,
    /// Segment override that counts.
    pub segment: Option<Segment>,
    /// Effective address without segment base, if there is a memory operand.
    pub offset: Option<u64>,
    /// Sign-extended immediate, 0 if none.
    pub imm: u64,
}

impl Decoded {
    /// REX.W?
    #[inline]
    pub const fn rex_w(&self) -> bool {
        self.rex & 8 != 0
    }
    /// ModRM.reg with REX.R.
    #[inline]
    pub const fn reg(&self) -> u8 {
        self.modrm >> 3 & 7 | (self.rex & 4) << 1
    }
    /// ModRM.reg alone, the selector of an opcode group.
    #[inline]
    pub const fn group(&self) -> u8 {
        self.modrm >> 3 & 7
    }
    /// ModRM.rm with REX.B, meaningful if `offset` is none.
    #[inline]
    pub const fn rm(&self) -> u8 {
        self.modrm & 7 | (self.rex & 1) << 3
    }
    /// Operand width in bytes of an opcode whose lowest bit selects between byte and full size.
    #[inline]
    pub const fn width(&self) -> u8 {
        if self.opcode & 1 == 0 {
            1
        } else {
            self.full_width()
        }
    }
    /// Operand width in bytes, byte forms aside.
    #[inline]
    pub const fn full_width(&self) -> u8 {
        if self.rex_w() {
            8
        } else if self.prefixes.operand_size {
            2
        } else {
            4
        }
    }
    /// The register operand in ModRM.reg.
    #[inline]
    pub const fn reg_operand(&self, width: u8) -> Gpr {
        Gpr::operand(self.reg(), width, self.rex != 0)
    }
    /// Truncates an address or a counter to the instruction's address size.
    #[inline]
    pub const fn address_mask(&self, mode: Mode) -> u64 {
        match (mode, self.prefixes.address_size) {
            (Mode::Long, false) => u64::MAX,
            (Mode::Long, true) | (Mode::Compat32, false) => 0xffff_ffff,
            (Mode::Compat32, true) => 0xffff,
        }
    }
}

/// Decodes the instruction in `fetched`, which begins at `regs.rip`.
#[inline]
pub fn decode(regs: &CpuUserRegs, mode: Mode, fetched: &Fetched) -> Result<Decoded, DecodeError> {
    let mut c = Cursor { fetched, pos: 0, rip: regs.rip };
    let mut d = Decoded {
        len: 0,
        map: Map::Primary,
        opcode: 0,
        prefixes: Prefixes::default(),
        rex: 0,
        modrm: 0,
        segment: None,
        offset: None,
        imm: 0,
    };
    d.opcode = prefixes(&mut c, mode, &mut d)?;
    if d.opcode == 0x0f {
        d.map = Map::Secondary;
        d.opcode = c.byte()?;
    }
    let form = form(d.map, d.opcode).ok_or(DecodeError::Unsupported)?;
    let may_be_user =
        matches!(form, Form::Bare | Form::Imm8) || matches!((d.map, d.opcode), (Map::Secondary, 0x00 | 0x01));
    if mode == Mode::Compat32 && !may_be_user {
        // 32-bit code is always user code, which may execute only I/O, the interrupt flag's instructions, and stores of
        // tables.
        return Err(DecodeError::Unsupported);
    }
    match form {
        Form::Bare => {}
        Form::Imm8 => d.imm = c.sign_extended(1)?,
        Form::Moffs => {
            let wide = !d.prefixes.address_size;
            d.offset = Some(if wide { c.quad()? } else { c.sign_extended(4)? & 0xffff_ffff });
        }
        Form::ModRmRegisters => d.modrm = c.byte()?,
        Form::ModRm => address(&mut c, regs, mode, &mut d, 0)?,
        Form::ModRmImm8 => {
            address(&mut c, regs, mode, &mut d, 1)?;
            d.imm = c.sign_extended(1)?;
        }
        Form::ModRmImm => {
            let bytes = if d.opcode & 1 == 0 { 1 } else { d.full_width().min(4) };
            address(&mut c, regs, mode, &mut d, bytes)?;
            d.imm = c.sign_extended(bytes)?;
        }
    }
    d.len = c.pos;
    Ok(d)
}

/// Reads prefixes and returns the byte after them.
#[inline]
fn prefixes(c: &mut Cursor<'_>, mode: Mode, d: &mut Decoded) -> Result<u8, DecodeError> {
    loop {
        let byte = c.byte()?;
        match byte {
            // A REX prefix counts only directly before the opcode.
            0x40..=0x4f if mode == Mode::Long => {
                let next = c.byte()?;
                if !is_prefix(next) {
                    d.rex = byte;
                    return Ok(next);
                }
                c.pos -= 1;
            }
            0x66 => d.prefixes.operand_size = true,
            0x67 => d.prefixes.address_size = true,
            0xf0 => d.prefixes.lock = true,
            0xf2 => d.prefixes.repeat = Some(Repeat::Repne),
            0xf3 => d.prefixes.repeat = Some(Repeat::Rep),
            0x64 => d.segment = Some(Segment::Fs),
            0x65 => d.segment = Some(Segment::Gs),
            // 64-bit mode ignores the other four, also when they come after FS or GS.
            0x26 | 0x2e | 0x36 | 0x3e if mode == Mode::Long => {}
            0x26 => d.segment = Some(Segment::Es),
            0x2e => d.segment = Some(Segment::Cs),
            0x36 => d.segment = Some(Segment::Ss),
            0x3e => d.segment = Some(Segment::Ds),
            _ => return Ok(byte),
        }
    }
}

/// Is `byte` any prefix of 64-bit mode?
#[inline]
const fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// What follows each supported opcode.
#[inline]
const fn form(map: Map, opcode: u8) -> Option<Form> {
    Some(match (map, opcode) {
        // add, or, adc, sbb, and, sub, xor: r to r/m
        (Map::Primary, 0x00 | 0x01 | 0x08 | 0x09 | 0x10 | 0x11 | 0x18 | 0x19) => Form::ModRm,
        (Map::Primary, 0x20 | 0x21 | 0x28 | 0x29 | 0x30 | 0x31) => Form::ModRm,
        // ins, outs, stos
        (Map::Primary, 0x6c..=0x6f | 0xaa | 0xab) => Form::Bare,
        // the same seven with an immediate
        (Map::Primary, 0x80 | 0x83) => Form::ModRmImm8,
        (Map::Primary, 0x81) => Form::ModRmImm,
        // xchg, mov
        (Map::Primary, 0x86..=0x89) => Form::ModRm,
        (Map::Primary, 0xa2 | 0xa3) => Form::Moffs,
        (Map::Primary, 0xc6 | 0xc7) => Form::ModRmImm,
        // in, out
        (Map::Primary, 0xe4..=0xe7) => Form::Imm8,
        (Map::Primary, 0xec..=0xef) => Form::Bare,
        // not, neg (the others of the group have an immediate or do not write); cli, sti; inc, dec
        (Map::Primary, 0xf6 | 0xf7 | 0xfe | 0xff) => Form::ModRm,
        (Map::Primary, 0xfa | 0xfb) => Form::Bare,
        // sldt, str; sgdt, sidt, smsw, lmsw, xsetbv, rdtscp
        (Map::Secondary, 0x00 | 0x01) => Form::ModRm,
        // clts, wbinvd, wrmsr, rdtsc, rdmsr, cpuid
        (Map::Secondary, 0x06 | 0x09 | 0x30 | 0x31 | 0x32 | 0xa2) => Form::Bare,
        // mov to and from control and debug registers
        (Map::Secondary, 0x20..=0x23) => Form::ModRmRegisters,
        // bts, btr, btc; cmpxchg; xadd; movnti
        (Map::Secondary, 0xab | 0xb3 | 0xbb | 0xb0 | 0xb1 | 0xc0 | 0xc1 | 0xc3) => Form::ModRm,
        (Map::Secondary, 0xba) => Form::ModRmImm8,
        _ => return None,
    })
}

/// Reads ModRM, SIB and displacement and computes the effective address. Addresses of 16 bits are not supported.
/// `immediate_bytes` is what is still to come, for rip-relative addresses.
#[inline]
fn address(
    c: &mut Cursor<'_>,
    regs: &CpuUserRegs,
    code: Mode,
    d: &mut Decoded,
    immediate_bytes: u8,
) -> Result<(), DecodeError> {
    d.modrm = c.byte()?;
    let mode = d.modrm >> 6;
    let is_narrow = d.prefixes.address_size || code == Mode::Compat32;
    if mode == 3 {
        return Ok(());
    }
    if code == Mode::Compat32 && d.prefixes.address_size {
        return Err(DecodeError::Unsupported);
    }
    let rm = d.modrm & 7;
    let mut sum;
    if rm == 4 {
        let sib = c.byte()?;
        let base = sib & 7;
        if base == 5 && mode == 0 {
            sum = c.sign_extended(4)?;
        } else {
            sum = gpr::get(regs, base | (d.rex & 1) << 3);
        }
        let index = sib >> 3 & 7 | (d.rex & 2) << 2;
        if index != 4 {
            sum = sum.wrapping_add(gpr::get(regs, index) << (sib >> 6));
        }
    } else if rm == 5 && mode == 0 {
        sum = c.sign_extended(4)?;
        if code == Mode::Long {
            let next = u64::from(c.pos + immediate_bytes);
            sum = sum.wrapping_add(c.rip).wrapping_add(next);
        }
    } else {
        sum = gpr::get(regs, d.rm());
    }
    match mode {
        1 => sum = sum.wrapping_add(c.sign_extended(1)?),
        2 => sum = sum.wrapping_add(c.sign_extended(4)?),
        _ => {}
    }
    d.offset = Some(if is_narrow { sum & 0xffff_ffff } else { sum });
    Ok(())
}

/// Position in the instruction bytes.
struct Cursor<'a> {
    fetched: &'a Fetched,
    pos: u8,
    rip: u64,
}

impl Cursor<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, DecodeError> {
        let pos = usize::from(self.pos);
        if pos >= self.fetched.len.min(MAX_INSTRUCTION_BYTES) {
            return Err(self.ran_out());
        }
        self.pos += 1;
        Ok(self.fetched.bytes[pos & 15])
    }

    #[cold]
    fn ran_out(&self) -> DecodeError {
        if usize::from(self.pos) >= MAX_INSTRUCTION_BYTES {
            DecodeError::TooLong
        } else {
            DecodeError::Fetch(self.rip.wrapping_add(self.pos.into()))
        }
    }

    /// The next 1, 2 or 4 bytes, sign-extended.
    #[inline]
    #[allow(clippy::cast_sign_loss, reason = "sign extension is the point")]
    fn sign_extended(&mut self, bytes: u8) -> Result<u64, DecodeError> {
        let mut raw = 0u32;
        for i in 0..bytes {
            raw |= u32::from(self.byte()?) << (8 * u32::from(i));
        }
        let unused = 32 - 8 * u32::from(bytes);
        Ok(i64::from((raw << unused) as i32 >> unused) as u64)
    }

    #[inline]
    fn quad(&mut self) -> Result<u64, DecodeError> {
        let low = self.sign_extended(4)? & 0xffff_ffff;
        Ok(low | self.sign_extended(4)? << 32)
    }
}
