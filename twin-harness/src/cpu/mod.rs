//! A small interpreter of the integer instructions that kernel code is made of.
//!
//! It runs the original text of a driver and the twin alike, against whatever memory a [`Bus`] shows it. It is the
//! harness's oracle, so it is written for plainness: one function per kind of instruction, flags computed at once.

mod integer;
mod string;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use twin_rewrite::allowed::{is_cmov, is_setcc};

/// Why an access failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusFault {
    /// The address.
    pub address: u64,
    /// Whether it was a write.
    pub write: bool,
}

/// Memory as the interpreted code sees it.
pub trait Bus {
    /// Reads `size` bytes (1, 2, 4, 8).
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault>;
    /// Writes the low `size` bytes of `value`.
    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault>;
}

/// Why interpretation stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The next instruction is outside of the code.
    Outside(u64),
    /// An access failed.
    Fault(BusFault),
    /// `ud2` or `int3`.
    Trap,
    /// Division by zero or overflow.
    Divide,
    /// An instruction that the interpreter does not know, or none at all.
    Unknown,
    /// The number of instructions given is used up.
    Steps,
}

impl From<BusFault> for Stop {
    fn from(f: BusFault) -> Self {
        Self::Fault(f)
    }
}

/// Status flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the manual")]
pub struct Flags {
    pub cf: bool,
    pub pf: bool,
    pub af: bool,
    pub zf: bool,
    pub sf: bool,
    pub of: bool,
}

/// Code with its decoded instructions.
#[derive(Debug, Clone)]
pub struct CodeSpace {
    base: u64,
    bytes: Vec<u8>,
    decoded: Vec<Option<Box<Instruction>>>,
}

impl CodeSpace {
    /// `bytes` at `base`.
    pub fn new(base: u64, bytes: Vec<u8>) -> Self {
        let decoded = vec![None; bytes.len()];
        Self { base, bytes, decoded }
    }

    /// Whether `address` is inside.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes.len() as u64
    }

    /// First address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Addresses of the instructions that were run at least once.
    pub fn visited(&self) -> Vec<u64> {
        (0u64..).zip(&self.decoded).filter(|(_, d)| d.is_some()).map(|(k, _)| self.base + k).collect()
    }

    fn at(&mut self, address: u64) -> Option<Instruction> {
        let k = usize::try_from(address.wrapping_sub(self.base)).ok().filter(|k| *k < self.bytes.len())?;
        if self.decoded[k].is_none() {
            let mut d = Decoder::with_ip(64, &self.bytes[k..], address, DecoderOptions::NONE);
            self.decoded[k] = Some(Box::new(d.decode()));
        }
        self.decoded[k].as_deref().copied()
    }
}

/// Registers of the interpreted processor.
#[derive(Debug, Clone, Default)]
pub struct Cpu {
    /// General registers in encoding order.
    pub regs: [u64; 16],
    /// Instruction pointer.
    pub rip: u64,
    /// Flags.
    pub flags: Flags,
    /// Base of gs.
    pub gs_base: u64,
    /// Instructions run.
    pub count: u64,
}

type Step = Result<(), Stop>;

fn width_mask(size: usize) -> u64 {
    if size >= 8 {
        u64::MAX
    } else {
        (1 << (size * 8)) - 1
    }
}

fn sign_bit(size: usize) -> u64 {
    1 << (size * 8 - 1)
}

fn sign_extend(value: u64, size: usize) -> i64 {
    let shift = 64 - size * 8;
    ((value << shift) as i64) >> shift
}

impl Cpu {
    /// Runs up to `steps` instructions of `code`; says why it stopped.
    pub fn run(&mut self, code: &mut CodeSpace, bus: &mut impl Bus, steps: u64) -> Stop {
        for _ in 0..steps {
            let Some(i) = code.at(self.rip) else { return Stop::Outside(self.rip) };
            if i.is_invalid() {
                return Stop::Unknown;
            }
            let at = self.rip;
            self.rip = i.next_ip();
            self.count += 1;
            if let Err(stop) = self.step(&i, bus) {
                self.rip = at;
                return stop;
            }
        }
        Stop::Steps
    }

    /// Reads a register of any width.
    pub fn get(&self, r: Register) -> u64 {
        let full = self.regs[r.full_register().number()];
        match r.size() {
            8 => full,
            4 => full & 0xffff_ffff,
            2 => full & 0xffff,
            _ if matches!(r, Register::AH | Register::CH | Register::DH | Register::BH) => full >> 8 & 0xff,
            _ => full & 0xff,
        }
    }

    /// Writes a register of any width.
    pub fn set(&mut self, r: Register, value: u64) {
        let full = &mut self.regs[r.full_register().number()];
        match r.size() {
            8 => *full = value,
            4 => *full = value & 0xffff_ffff,
            2 => *full = *full & !0xffff | value & 0xffff,
            _ if matches!(r, Register::AH | Register::CH | Register::DH | Register::BH) => {
                *full = *full & !0xff00 | (value & 0xff) << 8
            }
            _ => *full = *full & !0xff | value & 0xff,
        }
    }

    fn address(&self, i: &Instruction) -> u64 {
        let part = |r: Register| if r == Register::None { 0 } else { self.get(r) };
        let mut a = i.memory_displacement64();
        if i.memory_base() != Register::RIP {
            a = a.wrapping_add(part(i.memory_base()));
            a = a.wrapping_add(part(i.memory_index()).wrapping_mul(u64::from(i.memory_index_scale())));
        }
        if i.segment_prefix() == Register::GS {
            a = a.wrapping_add(self.gs_base);
        }
        a
    }

    fn size(i: &Instruction, k: u32) -> usize {
        match i.op_kind(k) {
            OpKind::Register => i.op_register(k).size(),
            OpKind::Memory => i.memory_size().size(),
            _ => Self::size(i, 0),
        }
    }

    fn load(&self, i: &Instruction, k: u32, bus: &mut impl Bus) -> Result<u64, Stop> {
        Ok(match i.op_kind(k) {
            OpKind::Register => self.get(i.op_register(k)),
            OpKind::Memory => bus.read(self.address(i), i.memory_size().size())?,
            _ => i.immediate(k),
        })
    }

    fn store(&mut self, i: &Instruction, k: u32, value: u64, bus: &mut impl Bus) -> Step {
        match i.op_kind(k) {
            OpKind::Register => self.set(i.op_register(k), value),
            _ => bus.write(self.address(i), i.memory_size().size(), value & width_mask(i.memory_size().size()))?,
        }
        Ok(())
    }

    fn push(&mut self, value: u64, bus: &mut impl Bus) -> Step {
        let to = self.regs[4].wrapping_sub(8);
        bus.write(to, 8, value)?;
        self.regs[4] = to;
        Ok(())
    }

    fn pop(&mut self, bus: &mut impl Bus) -> Result<u64, Stop> {
        let value = bus.read(self.regs[4], 8)?;
        self.regs[4] = self.regs[4].wrapping_add(8);
        Ok(value)
    }

    fn result_flags(&mut self, value: u64, size: usize) {
        let value = value & width_mask(size);
        self.flags.zf = value == 0;
        self.flags.sf = value & sign_bit(size) != 0;
        self.flags.pf = (value as u8).count_ones().is_multiple_of(2);
    }

    fn add(&mut self, a: u64, b: u64, carry: bool, size: usize) -> u64 {
        let (a, b) = (a & width_mask(size), b & width_mask(size));
        let wide = u128::from(a) + u128::from(b) + u128::from(carry);
        let sum = wide as u64 & width_mask(size);
        self.result_flags(sum, size);
        self.flags.cf = wide >> (size * 8) != 0;
        self.flags.of = (a ^ sum) & (b ^ sum) & sign_bit(size) != 0;
        self.flags.af = (a ^ b ^ sum) & 16 != 0;
        sum
    }

    fn sub(&mut self, a: u64, b: u64, borrow: bool, size: usize) -> u64 {
        let (a, b) = (a & width_mask(size), b & width_mask(size));
        let difference = a.wrapping_sub(b).wrapping_sub(u64::from(borrow)) & width_mask(size);
        self.result_flags(difference, size);
        self.flags.cf = u128::from(a) < u128::from(b) + u128::from(borrow);
        self.flags.of = (a ^ b) & (a ^ difference) & sign_bit(size) != 0;
        self.flags.af = (a ^ b ^ difference) & 16 != 0;
        difference
    }

    fn logic(&mut self, value: u64, size: usize) -> u64 {
        self.result_flags(value, size);
        (self.flags.cf, self.flags.of, self.flags.af) = (false, false, false);
        value
    }

    fn condition(&self, i: &Instruction) -> bool {
        use iced_x86::ConditionCode as C;
        let f = &self.flags;
        match i.condition_code() {
            C::o => f.of,
            C::no => !f.of,
            C::b => f.cf,
            C::ae => !f.cf,
            C::e => f.zf,
            C::ne => !f.zf,
            C::be => f.cf || f.zf,
            C::a => !f.cf && !f.zf,
            C::s => f.sf,
            C::ns => !f.sf,
            C::p => f.pf,
            C::np => !f.pf,
            C::l => f.sf != f.of,
            C::ge => f.sf == f.of,
            C::le => f.zf || f.sf != f.of,
            C::g => !f.zf && f.sf == f.of,
            C::None => true,
        }
    }

    fn step(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        use Mnemonic as M;
        match i.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch => {
                if self.condition(i) {
                    self.rip = i.near_branch_target();
                }
                return Ok(());
            }
            FlowControl::UnconditionalBranch => {
                self.rip = i.near_branch_target();
                return Ok(());
            }
            FlowControl::IndirectBranch => {
                self.rip = self.load(i, 0, bus)?;
                return Ok(());
            }
            FlowControl::Call => {
                self.push(self.rip, bus)?;
                self.rip = i.near_branch_target();
                return Ok(());
            }
            FlowControl::IndirectCall => {
                let to = self.load(i, 0, bus)?;
                self.push(self.rip, bus)?;
                self.rip = to;
                return Ok(());
            }
            FlowControl::Return => {
                self.rip = self.pop(bus)?;
                return Ok(());
            }
            FlowControl::Interrupt | FlowControl::Exception => return Err(Stop::Trap),
            _ => return Err(Stop::Unknown),
        }
        if i.is_string_instruction() {
            return self.string(i, bus);
        }
        match i.mnemonic() {
            M::Nop | M::Lfence | M::Sfence | M::Mfence | M::Pause => Ok(()),
            M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchnta | M::Prefetchw => Ok(()),
            M::Mov => {
                let v = self.load(i, 1, bus)?;
                self.store(i, 0, v, bus)
            }
            M::Movzx => {
                let v = self.load(i, 1, bus)?;
                self.store(i, 0, v, bus)
            }
            M::Movsx | M::Movsxd => {
                let v = sign_extend(self.load(i, 1, bus)?, Self::size(i, 1));
                self.store(i, 0, v as u64, bus)
            }
            M::Lea => {
                self.set(i.op0_register(), self.address(i));
                Ok(())
            }
            M::Push => {
                let v = if i.op0_kind() == OpKind::Register || i.op0_kind() == OpKind::Memory {
                    self.load(i, 0, bus)?
                } else {
                    i.immediate(0)
                };
                self.push(v, bus)
            }
            M::Pop => {
                let v = self.pop(bus)?;
                self.store(i, 0, v, bus)
            }
            M::Add | M::Adc | M::Sub | M::Sbb | M::Cmp | M::And | M::Or | M::Xor | M::Test => self.arithmetic(i, bus),
            M::Inc | M::Dec | M::Neg | M::Not => self.unary(i, bus),
            M::Shl | M::Shr | M::Sar | M::Rol | M::Ror | M::Rcl | M::Rcr => self.shift(i, bus),
            M::Shld | M::Shrd => self.double_shift(i, bus),
            M::Bt | M::Bts | M::Btr | M::Btc => self.bit(i, bus),
            M::Bsf | M::Bsr | M::Tzcnt | M::Lzcnt | M::Popcnt => self.scan(i, bus),
            M::Mul | M::Imul => self.multiply(i, bus),
            M::Div | M::Idiv => self.divide(i, bus),
            M::Xchg => {
                let (a, b) = (self.load(i, 0, bus)?, self.load(i, 1, bus)?);
                self.store(i, 0, b, bus)?;
                self.store(i, 1, a, bus)
            }
            M::Xadd => {
                let size = Self::size(i, 0);
                let (a, b) = (self.load(i, 0, bus)?, self.load(i, 1, bus)?);
                let sum = self.add(a, b, false, size);
                self.store(i, 0, sum, bus)?;
                if i.op0_kind() != OpKind::Register || i.op0_register() != i.op1_register() {
                    self.store(i, 1, a, bus)?;
                }
                Ok(())
            }
            M::Cmpxchg => self.compare_exchange(i, bus),
            M::Bswap => {
                let size = Self::size(i, 0);
                let v = self.load(i, 0, bus)?.swap_bytes() >> (64 - size * 8);
                self.store(i, 0, v, bus)
            }
            M::Cbw | M::Cwde | M::Cdqe | M::Cwd | M::Cdq | M::Cqo => {
                self.widen(i.mnemonic());
                Ok(())
            }
            M::Clc => {
                self.flags.cf = false;
                Ok(())
            }
            M::Stc => {
                self.flags.cf = true;
                Ok(())
            }
            M::Cmc => {
                self.flags.cf = !self.flags.cf;
                Ok(())
            }
            M::Lahf => {
                let f = self.flags;
                let byte = u64::from(f.cf)
                    | 2
                    | u64::from(f.pf) << 2
                    | u64::from(f.af) << 4
                    | u64::from(f.zf) << 6
                    | u64::from(f.sf) << 7;
                self.set(Register::AH, byte);
                Ok(())
            }
            M::Sahf => {
                let b = self.get(Register::AH);
                let bit = |n: u32| b >> n & 1 != 0;
                (self.flags.cf, self.flags.pf, self.flags.af) = (bit(0), bit(2), bit(4));
                (self.flags.zf, self.flags.sf) = (bit(6), bit(7));
                Ok(())
            }
            M::Pext => {
                let (source, mask) = (self.load(i, 1, bus)?, self.load(i, 2, bus)?);
                let (mut out, mut to) = (0, 0);
                for k in 0..Self::size(i, 0) * 8 {
                    if mask >> k & 1 != 0 {
                        out |= (source >> k & 1) << to;
                        to += 1;
                    }
                }
                self.store(i, 0, out, bus)
            }
            M::Bzhi => {
                let (source, n) = (self.load(i, 1, bus)?, self.load(i, 2, bus)? & 0xff);
                let bits = Self::size(i, 0) as u64 * 8;
                let v = if n < bits { source & ((1 << n) - 1) } else { source };
                self.result_flags(v, Self::size(i, 0));
                (self.flags.cf, self.flags.of) = (n >= bits, false);
                self.store(i, 0, v, bus)
            }
            _ if is_cmov(i.mnemonic()) => {
                let v = self.load(i, 1, bus)?;
                let old = self.load(i, 0, bus)?;
                let take = self.condition(i);
                self.store(i, 0, if take { v } else { old }, bus)
            }
            _ if is_setcc(i.mnemonic()) => {
                let v = u64::from(self.condition(i));
                self.store(i, 0, v, bus)
            }
            _ => Err(Stop::Unknown),
        }
    }
}
