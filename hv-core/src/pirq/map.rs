//! Numbers: giving a domain a pirq for a wire or a message, and taking it back.

use super::*;

/// The lowest pirq that is given out for a wire without a wish: those below are the ISA interrupts.
const FIRST_FREE_GSI: u32 = 16;

impl<C: IrqChip, P: AsRef<PageWords>> Interrupts<C, P> {
    /// Says how a wire signals. `EINVAL`: no such wire. `EEXIST`: it was said before, or the line is in use.
    pub fn setup_gsi(&mut self, gsi: u32, wire: Wire) -> Result<(), Errno> {
        let line = self.gsi_line(gsi)?;
        if line.wire.is_some() {
            return Err(Errno::EEXIST);
        }
        line.wire = Some(wire);
        // A domain that mapped it before it was said may look into its page.
        for d in self.domains.values() {
            for (pirq, _) in (0u32..).zip(&d.pirqs).filter(|(_, p)| p.irq == gsi + 1) {
                d.note_eoi(pirq, wire.level);
            }
        }
        Ok(())
    }

    /// Gives a domain a pirq for a wire: `wanted`, or if that is `None` the one it has, or a free one. `EINVAL`: no
    /// such wire or pirq. `EEXIST`: the wire has another pirq, or the pirq another wire. `ENOSPC`. The caller has
    /// checked that the domain may use the wire.
    pub fn map_gsi(&mut self, dom: DomId, gsi: u32, wanted: Option<u32>) -> Result<u32, Errno> {
        self.gsi_line(gsi)?;
        let pirqs = &self.domain(dom)?.pirqs;
        let has = (0u32..).zip(pirqs).find(|(_, p)| p.irq == gsi + 1).map(|(n, _)| n);
        let pirq = match (has, wanted) {
            (Some(has), None) => return Ok(has),
            (Some(has), Some(w)) if has == w => return Ok(has),
            (Some(_), Some(_)) => return Err(Errno::EEXIST),
            (None, Some(w)) => w,
            (None, None) => {
                let free = |n: &u32| pirqs.get(*n as usize).is_some_and(|p| p.irq == 0);
                (FIRST_FREE_GSI..self.nr_gsis).find(free).ok_or(Errno::ENOSPC)?
            }
        };
        self.put(dom, pirq, gsi)?;
        Ok(pirq)
    }

    /// Gives a domain a pirq for a message, which is programmed, masked. `EEXIST`: the message has one, or the pirq is
    /// taken. `ENOSPC`: no free pirq or line. The caller has checked that the device is the domain's.
    pub fn map_msi(&mut self, dom: DomId, msi: C::Msi, wanted: Option<u32>) -> Result<u32, Errno> {
        let kind = self.domain(dom)?.kind;
        if self.lines.iter().any(|l| l.msi == Some(msi)) {
            return Err(Errno::EEXIST);
        }
        if kind == Kind::Guest && self.guests_messages() >= GUESTS_MESSAGES as usize {
            return Err(Errno::ENOSPC);
        }
        let pirq = match wanted {
            Some(w) => w,
            None => self.free_pirq(dom)?,
        };
        let messages = (0u32..).zip(&self.lines).skip(self.nr_gsis as usize);
        let irq = { messages }.find(|(_, l)| l.msi.is_none()).map(|(n, _)| n).ok_or(Errno::ENOSPC)?;
        self.put(dom, pirq, irq)?;
        let routed = self
            .chip
            .allocate(irq)
            .and_then(|()| self.chip.route_msi(irq, msi).inspect_err(|_| self.chip.unroute(irq, Some(msi))));
        if let Err(e) = routed {
            if let Some(entry) = self.pirq_mut(dom, pirq) {
                *entry = Pirq::default();
            }
            return Err(e);
        }
        if let Some(line) = self.lines.get_mut(irq as usize) {
            *line = Line::new();
            line.msi = Some(msi);
        }
        Ok(pirq)
    }

    fn guests_messages(&self) -> usize {
        let guests = self.domains.values().filter(|d| d.kind == Kind::Guest);
        guests.flat_map(|d| &d.pirqs).filter(|p| p.irq > self.nr_gsis).count()
    }

    /// The highest free pirq above the wires. `ENOSPC`.
    pub fn free_pirq(&self, dom: DomId) -> Result<u32, Errno> {
        let pirqs = &self.domain(dom)?.pirqs;
        let free = |n: &u32| pirqs.get(*n as usize).is_some_and(|p| p.irq == 0);
        (self.nr_gsis..self.nr_pirqs(dom)).rev().find(free).ok_or(Errno::ENOSPC)
    }

    /// Takes a pirq back, unbinding it if it is bound. `EINVAL`: not mapped.
    pub fn unmap(&mut self, dom: DomId, pirq: u32) -> Result<(), Errno> {
        let Pirq { irq, port } = self.pirq(dom, pirq)?;
        let irq = irq.checked_sub(1).ok_or(Errno::EINVAL)?;
        self.unbind(dom, pirq, port);
        let d = self.domains.get_mut(&dom).ok_or(Errno::EINVAL)?;
        d.pirqs[pirq as usize] = Pirq::default();
        d.note_eoi(pirq, false);
        if let Some(line) = self.lines.get_mut(irq as usize) {
            if let Some(msi) = line.msi.take() {
                self.chip.unroute(irq, Some(msi));
            }
        }
        Ok(())
    }

    /// The first message line whose source `which` chooses, and the domain and pirq that have it.
    pub fn find_msi(&self, which: impl Fn(&C::Msi) -> bool) -> Option<(DomId, u32)> {
        let irq = self.lines.iter().position(|l| l.msi.as_ref().is_some_and(&which))?;
        let irq = u32::try_from(irq).ok()? + 1;
        self.domains.iter().find_map(|(dom, d)| {
            let pirq = d.pirqs.iter().position(|p| p.irq == irq)?;
            Some((*dom, u32::try_from(pirq).ok()?))
        })
    }

    fn put(&mut self, dom: DomId, pirq: u32, irq: Irq) -> Result<(), Errno> {
        let entry = self.pirq_mut(dom, pirq).ok_or(Errno::EINVAL)?;
        if entry.irq != 0 {
            return Err(Errno::EEXIST);
        }
        *entry = Pirq { irq: irq + 1, port: 0 };
        Ok(())
    }

    fn gsi_line(&mut self, gsi: u32) -> Result<&mut Line<C::Msi>, Errno> {
        if gsi >= self.nr_gsis {
            return Err(Errno::EINVAL);
        }
        self.lines.get_mut(gsi as usize).ok_or(Errno::EINVAL)
    }
}
