//! Arithmetic, shifts, bits, multiplication, division: each with its flags.

use super::{sign_bit, sign_extend, width_mask, Bus, Cpu, Flags, Step, Stop};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

impl Cpu {
    pub(super) fn arithmetic(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        use Mnemonic as M;
        let size = Self::size(i, 0);
        let (a, b) = (self.load(i, 0, bus)?, self.load(i, 1, bus)?);
        let carry = self.flags.cf;
        let before = self.flags;
        let v = match i.mnemonic() {
            M::Add => self.add(a, b, false, size),
            M::Adc => self.add(a, b, carry, size),
            M::Sub | M::Cmp => self.sub(a, b, false, size),
            M::Sbb => self.sub(a, b, carry, size),
            M::And | M::Test => self.logic(a & b, size),
            M::Or => self.logic(a | b, size),
            _ => self.logic(a ^ b, size),
        };
        if matches!(i.mnemonic(), M::Cmp | M::Test) {
            return Ok(());
        }
        self.store(i, 0, v, bus).inspect_err(|_| self.flags = before)
    }

    pub(super) fn unary(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        use Mnemonic as M;
        let size = Self::size(i, 0);
        let a = self.load(i, 0, bus)?;
        let carry = self.flags.cf;
        let v = match i.mnemonic() {
            M::Inc => self.add(a, 1, false, size),
            M::Dec => self.sub(a, 1, false, size),
            M::Neg => self.sub(0, a, false, size),
            _ => !a,
        };
        if matches!(i.mnemonic(), M::Inc | M::Dec) {
            self.flags.cf = carry;
        }
        self.store(i, 0, v, bus)
    }

    pub(super) fn shift(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        use Mnemonic as M;
        let size = Self::size(i, 0);
        let bits = size as u32 * 8;
        let a = self.load(i, 0, bus)? & width_mask(size);
        let raw = if i.op_count() > 1 { self.load(i, 1, bus)? } else { 1 };
        let n = (raw as u32) & if size == 8 { 63 } else { 31 };
        if n == 0 {
            // A 32-bit destination register is still written, which clears its upper half.
            return self.store(i, 0, a, bus);
        }
        let top = sign_bit(size);
        let v = match i.mnemonic() {
            M::Shl => {
                let v = if n < 64 { a << n } else { 0 } & width_mask(size);
                self.flags.cf = n <= bits && a >> (bits - n) & 1 != 0;
                self.flags.of = (v & top != 0) != self.flags.cf;
                v
            }
            M::Shr => {
                self.flags.cf = n <= 64 && a >> (n - 1) & 1 != 0;
                self.flags.of = a & top != 0;
                a >> n
            }
            M::Sar => {
                let s = sign_extend(a, size);
                self.flags.cf = s >> (n - 1).min(63) & 1 != 0;
                self.flags.of = false;
                (s >> n.min(63)) as u64 & width_mask(size)
            }
            M::Rol => {
                let r = n % bits;
                let v = if r == 0 { a } else { (a << r | a >> (bits - r)) & width_mask(size) };
                self.flags.cf = v & 1 != 0;
                self.flags.of = (v & top != 0) != self.flags.cf;
                return self.store(i, 0, v, bus);
            }
            M::Ror => {
                let r = n % bits;
                let v = if r == 0 { a } else { (a >> r | a << (bits - r)) & width_mask(size) };
                self.flags.cf = v & top != 0;
                self.flags.of = (v & top != 0) != (v & top >> 1 != 0);
                return self.store(i, 0, v, bus);
            }
            _ => {
                let left = i.mnemonic() == M::Rcl;
                let (mut v, mut c) = (a, self.flags.cf);
                for _ in 0..n % (bits + 1) {
                    let out = if left { v & top != 0 } else { v & 1 != 0 };
                    v = if left { v << 1 | u64::from(c) } else { v >> 1 | if c { top } else { 0 } } & width_mask(size);
                    c = out;
                }
                self.flags.cf = c;
                self.flags.of = if left { (v & top != 0) != c } else { (v & top != 0) != (v & top >> 1 != 0) };
                return self.store(i, 0, v, bus);
            }
        };
        self.result_flags(v, size);
        self.flags.af = false;
        self.store(i, 0, v, bus)
    }

    pub(super) fn double_shift(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        let size = Self::size(i, 0);
        let bits = size as u32 * 8;
        let (a, b) = (self.load(i, 0, bus)?, self.load(i, 1, bus)?);
        let n = (self.load(i, 2, bus)? as u32) & if size == 8 { 63 } else { 31 };
        if n == 0 || n >= bits {
            return self.store(i, 0, a, bus);
        }
        let left = i.mnemonic() == Mnemonic::Shld;
        let v = if left { a << n | b >> (bits - n) } else { a >> n | b << (bits - n) } & width_mask(size);
        self.flags.cf = if left { a >> (bits - n) & 1 != 0 } else { a >> (n - 1) & 1 != 0 };
        self.flags.of = (a ^ v) & sign_bit(size) != 0;
        self.result_flags(v, size);
        self.store(i, 0, v, bus)
    }

    pub(super) fn bit(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        let size = Self::size(i, 0);
        let n = self.load(i, 1, bus)?;
        let bits = size as u64 * 8;
        let far = i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register;
        let at = if far {
            let word = sign_extend(n, Self::size(i, 1)) >> bits.trailing_zeros();
            Some(self.address(i).wrapping_add_signed(word.wrapping_mul(size as i64)))
        } else {
            (i.op0_kind() == OpKind::Memory).then(|| self.address(i))
        };
        let a = match at {
            Some(at) => bus.read(at, size)?,
            None => self.get(i.op0_register()),
        };
        let one = 1 << (n % bits);
        self.flags.cf = a & one != 0;
        let v = match i.mnemonic() {
            Mnemonic::Bts => a | one,
            Mnemonic::Btr => a & !one,
            Mnemonic::Btc => a ^ one,
            _ => return Ok(()),
        };
        match at {
            Some(at) => bus.write(at, size, v)?,
            None => self.set(i.op0_register(), v),
        }
        Ok(())
    }

    pub(super) fn scan(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        let size = Self::size(i, 0);
        let bits = size as u64 * 8;
        let a = self.load(i, 1, bus)? & width_mask(size);
        let low = u64::from(a.trailing_zeros()).min(bits);
        let high = u64::from((a << (64 - bits)).leading_zeros()).min(bits);
        let v = match i.mnemonic() {
            Mnemonic::Popcnt => {
                self.flags = Flags { zf: a == 0, ..Flags::default() };
                u64::from(a.count_ones())
            }
            Mnemonic::Tzcnt | Mnemonic::Lzcnt => {
                let v = if i.mnemonic() == Mnemonic::Tzcnt { low } else { high };
                (self.flags.cf, self.flags.zf) = (a == 0, v == 0);
                v
            }
            scan => {
                self.flags.zf = a == 0;
                if a == 0 {
                    return Ok(());
                }
                if scan == Mnemonic::Bsf {
                    low
                } else {
                    bits - 1 - high
                }
            }
        };
        self.store(i, 0, v, bus)
    }

    pub(super) fn multiply(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        let size = Self::size(i, 0);
        let bits = size as u32 * 8;
        if i.op_count() >= 2 {
            let (x, y) = if i.op_count() == 3 { (1, 2) } else { (0, 1) };
            let (a, b) = (self.load(i, x, bus)?, self.load(i, y, bus)?);
            let wide = i128::from(sign_extend(a, size)) * i128::from(sign_extend(b, size));
            let v = wide as u64 & width_mask(size);
            self.flags.cf = i128::from(sign_extend(v, size)) != wide;
            self.flags.of = self.flags.cf;
            return self.store(i, 0, v, bus);
        }
        let a = self.regs[0] & width_mask(size);
        let b = self.load(i, 0, bus)? & width_mask(size);
        let wide = if i.mnemonic() == Mnemonic::Mul {
            u128::from(a) * u128::from(b)
        } else {
            (i128::from(sign_extend(a, size)) * i128::from(sign_extend(b, size))) as u128
        };
        let (low, high) = (wide as u64 & width_mask(size), (wide >> bits) as u64 & width_mask(size));
        self.flags.cf =
            if i.mnemonic() == Mnemonic::Mul { high != 0 } else { i128::from(sign_extend(low, size)) != wide as i128 };
        self.flags.of = self.flags.cf;
        self.put_pair(size, low, high);
        Ok(())
    }

    fn put_pair(&mut self, size: usize, low: u64, high: u64) {
        let names = match size {
            8 => (Register::RAX, Register::RDX),
            4 => (Register::EAX, Register::EDX),
            2 => (Register::AX, Register::DX),
            _ => (Register::AL, Register::AH),
        };
        self.set(names.0, low);
        self.set(names.1, high);
    }

    pub(super) fn divide(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        let size = Self::size(i, 0);
        let bits = size as u32 * 8;
        let d = self.load(i, 0, bus)? & width_mask(size);
        let (low, high) = match size {
            1 => (self.get(Register::AL), self.get(Register::AH)),
            _ => (self.regs[0] & width_mask(size), self.regs[2] & width_mask(size)),
        };
        let wide = u128::from(high) << bits | u128::from(low);
        let (quotient, rest) = if i.mnemonic() == Mnemonic::Div {
            let d = u128::from(d);
            if d == 0 || wide / d > u128::from(width_mask(size)) {
                return Err(Stop::Divide);
            }
            ((wide / d) as u64, (wide % d) as u64)
        } else {
            let wide = if bits == 64 { wide as i128 } else { ((wide << (128 - 2 * bits)) as i128) >> (128 - 2 * bits) };
            let d = i128::from(sign_extend(d, size));
            let q = if d == 0 { return Err(Stop::Divide) } else { wide.checked_div(d).ok_or(Stop::Divide)? };
            if i128::from(sign_extend(q as u64, size)) != q {
                return Err(Stop::Divide);
            }
            (q as u64, (wide % d) as u64)
        };
        self.put_pair(size, quotient & width_mask(size), rest & width_mask(size));
        Ok(())
    }

    pub(super) fn compare_exchange(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        let size = Self::size(i, 0);
        let old = self.load(i, 0, bus)?;
        let new = self.load(i, 1, bus)?;
        let expected = self.regs[0] & width_mask(size);
        self.sub(expected, old, false, size);
        if self.flags.zf {
            self.store(i, 0, new, bus)
        } else {
            let name = [Register::AL, Register::AX, Register::EAX, Register::RAX][size.trailing_zeros() as usize];
            self.store(i, 0, old, bus)?;
            self.set(name, old);
            Ok(())
        }
    }

    pub(super) fn widen(&mut self, m: Mnemonic) {
        let rax = self.regs[0];
        match m {
            Mnemonic::Cbw => self.set(Register::AX, sign_extend(rax & 0xff, 1) as u64),
            Mnemonic::Cwde => self.set(Register::EAX, sign_extend(rax & 0xffff, 2) as u64),
            Mnemonic::Cdqe => self.set(Register::RAX, sign_extend(rax & 0xffff_ffff, 4) as u64),
            Mnemonic::Cwd => self.set(Register::DX, (sign_extend(rax & 0xffff, 2) >> 16) as u64),
            Mnemonic::Cdq => self.set(Register::EDX, (sign_extend(rax & 0xffff_ffff, 4) >> 32) as u64),
            _ => self.set(Register::RDX, ((rax as i64) >> 63) as u64),
        }
    }
}
