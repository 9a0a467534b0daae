//! String instructions, unit by unit.

use super::{width_mask, Bus, Cpu, Step, Stop};
use iced_x86::{Instruction, Mnemonic, Register};

impl Cpu {
    pub(super) fn string(&mut self, i: &Instruction, bus: &mut impl Bus) -> Step {
        use Mnemonic as M;
        let size = match i.mnemonic() {
            M::Movsb | M::Stosb | M::Lodsb | M::Scasb | M::Cmpsb => 1,
            M::Movsw | M::Stosw | M::Lodsw | M::Scasw | M::Cmpsw => 2,
            M::Movsd | M::Stosd | M::Lodsd | M::Scasd | M::Cmpsd => 4,
            M::Movsq | M::Stosq | M::Lodsq | M::Scasq | M::Cmpsq => 8,
            _ => return Err(Stop::Unknown),
        };
        let repeated = i.has_rep_prefix() || i.has_repne_prefix();
        const RCX: usize = 1;
        const RSI: usize = 6;
        const RDI: usize = 7;
        loop {
            if repeated && self.regs[RCX] == 0 {
                return Ok(());
            }
            let (source, target) = (self.regs[RSI], self.regs[RDI]);
            let (mut moves_source, mut moves_target, mut ends) = (false, false, false);
            match i.mnemonic() {
                M::Movsb | M::Movsw | M::Movsd | M::Movsq => {
                    let v = bus.read(source, size)?;
                    bus.write(target, size, v)?;
                    (moves_source, moves_target) = (true, true);
                }
                M::Stosb | M::Stosw | M::Stosd | M::Stosq => {
                    bus.write(target, size, self.regs[0] & width_mask(size))?;
                    moves_target = true;
                }
                M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => {
                    let v = bus.read(source, size)?;
                    let name =
                        [Register::AL, Register::AX, Register::EAX, Register::RAX][size.trailing_zeros() as usize];
                    self.set(name, v);
                    moves_source = true;
                }
                M::Scasb | M::Scasw | M::Scasd | M::Scasq => {
                    let v = bus.read(target, size)?;
                    self.sub(self.regs[0], v, false, size);
                    moves_target = true;
                    ends = repeated && self.flags.zf == i.has_repne_prefix();
                }
                _ => {
                    let (a, b) = (bus.read(source, size)?, bus.read(target, size)?);
                    self.sub(a, b, false, size);
                    (moves_source, moves_target) = (true, true);
                    ends = repeated && self.flags.zf == i.has_repne_prefix();
                }
            }
            if moves_source {
                self.regs[RSI] = source.wrapping_add(size as u64);
            }
            if moves_target {
                self.regs[RDI] = target.wrapping_add(size as u64);
            }
            if !repeated {
                return Ok(());
            }
            self.regs[RCX] = self.regs[RCX].wrapping_sub(1);
            if ends {
                return Ok(());
            }
        }
    }
}
