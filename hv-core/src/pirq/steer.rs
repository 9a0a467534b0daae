//! To which CPU a line goes.

use super::*;

/// An interrupt that found its vCPU on another CPU so many times follows it there. Fewer would make those of a vCPU
/// that wanders more expensive than their detour.
pub(super) const DETOURS: u8 = 16;

impl<C: IrqChip, P: AsRef<PageWords>> Interrupts<C, P> {
    /// Sends the line of a bound pirq to CPU `cpu`, unless it is shared: then it stays where it is.
    pub fn steer(&mut self, dom: DomId, pirq: u32, cpu: u32) {
        let Some(irq) = self.irq_of(dom, pirq) else { return };
        let Some(line) = self.lines.get_mut(irq as usize) else { return };
        if line.nr_guests() == 1 {
            line.detours = 0;
            self.chip.steer(irq, line.msi, cpu);
        }
    }
    /// A pirq fired, and its vCPU was not on the CPU that took it but on `cpu`. Where that happens often the line
    /// follows.
    pub fn made_detour(&mut self, dom: DomId, pirq: u32, cpu: u32) {
        let Some(irq) = self.irq_of(dom, pirq) else { return };
        let Some(line) = self.lines.get_mut(irq as usize) else { return };
        line.detours = line.detours.saturating_add(1);
        if line.detours >= DETOURS {
            self.steer(dom, pirq, cpu);
        }
    }
}
