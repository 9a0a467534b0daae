//! To which CPU a line goes.

use super::*;

impl<C: IrqChip, P: AsRef<PageWords>> Interrupts<C, P> {
    /// Sends the line of a bound pirq to CPU `cpu`, unless it is shared: then it stays where it is.
    pub fn steer(&mut self, dom: DomId, pirq: u32, cpu: u32) {
        let Some(irq) = self.irq_of(dom, pirq) else { return };
        let Some(line) = self.lines.get(irq as usize) else { return };
        if line.nr_guests() == 1 {
            self.chip.steer(irq, line.msi, cpu);
        }
    }
}
