//! Physical interrupts of domains: which line or message is which domain's pirq, who is told when it fires, and when a
//! level-triggered line may fire again.
//!
//! One [`Interrupts`] holds the whole machine's, in one lock of the shell (a leaf, but for the chip itself). A *line*
//! is a GSI or a message (MSI, MSI-X). A *pirq* is a domain's number for a line: GSI n is pirq n, messages are numbered
//! from the top down. Lines may be shared by domains that all agree.
//!
//! Level-triggered: masked when it fires, until every domain that was told has said EOI. A domain that shares the line
//! and does not answer in time is no longer waited for, until it does, and then for less long, as is one that takes its
//! time: a dead domain does not keep the line from the others; but as its device may go on asking, the line fires less
//! often meanwhile. So it does after a sharer has left, each time that it fires again as soon as the others have
//! answered, until the line was found silent a few times: its device may be asking with nobody left to serve it. Of a
//! line that somebody was found to serve only he is told, most times: a shared line keeps asking while another's device
//! does, and then he finds nothing. Edge-triggered and messages: never masked, except by the storm guard: a line that
//! fires more often than any device should is held for the rest of a window, so that a broken device costs a bounded
//! share of a CPU.

mod line;
mod look;
mod map;
mod snapshot;
mod steer;
mod tell;
#[cfg(test)]
mod tests;

use crate::evtchn::{DomId, PageWords};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::AcqRel;
use line::Line;
pub use look::{Look, Sharer};
pub use snapshot::Saved;
pub use tell::{Deliveries, Delivery, Turn};
use xen_abi::errno::Errno;
use xen_abi::event::Port;
use xen_abi::physdev::{XENIRQSTAT_NEEDS_EOI, XENIRQSTAT_SHARED};

/// A line's number: a GSI, or (from the number of GSIs on) a message.
pub type Irq = u32;

/// Domains that may share a line.
pub const MAX_SHARERS: usize = 8;

/// How a wire signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Level-triggered rather than edge-triggered.
    pub level: bool,
    /// Active low rather than high.
    pub active_low: bool,
}

/// The interrupt hardware. Lines are masked until [`IrqChip::unmask`].
pub trait IrqChip {
    /// Names a message source: a device and an entry.
    type Msi: Copy + PartialEq;

    /// How a GSI signals if nobody has said.
    fn default_wire(&self, gsi: u32) -> Wire;
    /// Gives a line a vector on some CPU. `EBUSY`: the hypervisor uses it itself. `ENOSPC`. A failure leaves nothing.
    fn allocate(&mut self, irq: Irq) -> Result<(), Errno>;
    /// Routes a GSI that has a vector to it, masked. What a failure leaves is undone by [`IrqChip::unroute`].
    fn route_gsi(&mut self, irq: Irq, wire: Wire) -> Result<(), Errno>;
    /// Programs a message that has a vector, masked if the device can. What a failure leaves is undone by
    /// [`IrqChip::unroute`].
    fn route_msi(&mut self, irq: Irq, msi: Self::Msi) -> Result<(), Errno>;
    /// Programs a message again as it was, masked if the device can: the device was reset.
    fn reprogram(&mut self, irq: Irq, msi: Self::Msi);
    /// Sends a routed line to CPU `cpu` from now on, whether it is masked or not. What is on its way still arrives.
    fn steer(&mut self, irq: Irq, msi: Option<Self::Msi>, cpu: u32);
    /// Undoes `allocate` and `route_*`, as far as they came; the line is masked.
    fn unroute(&mut self, irq: Irq, msi: Option<Self::Msi>);
    /// Lets a line fire.
    fn unmask(&mut self, irq: Irq, msi: Option<Self::Msi>);
    /// Stops a line from firing, whether its device can mask it or not, if anything can.
    fn mask(&mut self, irq: Irq, msi: Option<Self::Msi>);
}

/// A domain's pirq.
#[derive(Clone, Copy, Default)]
struct Pirq {
    /// The line plus one; 0: not mapped.
    irq: u32,
    /// The event port; 0: not bound.
    port: Port,
}

/// How many pirqs of a domain are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// They stand for a line.
    pub mapped: u32,
    /// They are connected to a port.
    pub bound: u32,
}

/// Whose pirqs they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The hardware domain's, which must always find vectors for its devices.
    Hardware,
    /// Another's.
    Guest,
}

/// pirqs of the hardware domain, wires included, unless there are more wires.
const HARDWARE_DOMAIN_PIRQS: u32 = 208;
/// pirqs of any other domain above the wires.
const MESSAGES_PER_DOMAIN: u32 = 32;

impl Kind {
    /// How many messages such a domain may have on a machine with `nr_gsis` wires.
    pub const fn messages(self, nr_gsis: u32) -> u32 {
        let left = HARDWARE_DOMAIN_PIRQS.saturating_sub(nr_gsis);
        match self {
            Self::Hardware if left > MESSAGES_PER_DOMAIN => left,
            Self::Hardware | Self::Guest => MESSAGES_PER_DOMAIN,
        }
    }
}

/// Messages of all other domains than the hardware domain together. Vectors are the machine's, some 190 of them, and a
/// line has the same one on all CPUs.
pub const GUESTS_MESSAGES: u32 = 128;

struct DomainPirqs<P> {
    kind: Kind,
    pirqs: Vec<Pirq>,
    /// Page of bits that say which pirqs need an EOI, and whether an EOI unmasks the port too.
    eoi_map: Option<(P, bool)>,
    /// It has kept a shared line from others for long, and left it.
    was_late: bool,
}

/// See the module's documentation. `P` keeps a guest page referenced and gives its words.
pub struct Interrupts<C: IrqChip, P> {
    chip: C,
    nr_gsis: u32,
    lines: Vec<Line<C::Msi>>,
    /// A tree, as its nodes go back with the domains in them; a list that has grown would stay as long as domain 0
    /// does.
    domains: BTreeMap<DomId, DomainPirqs<P>>,
    /// When the shell was told to call [`Interrupts::expire`].
    wake_at: Option<u64>,
}

impl<C: IrqChip, P: AsRef<PageWords>> Interrupts<C, P> {
    /// `nr_gsis` wires and room for `nr_messages` messages.
    pub fn new(chip: C, nr_gsis: u32, nr_messages: u32) -> Self {
        let mut lines = Vec::new();
        lines.resize_with((nr_gsis + nr_messages) as usize, Line::new);
        Interrupts { chip, nr_gsis, lines, domains: BTreeMap::new(), wake_at: None }
    }

    /// The hardware.
    pub fn chip(&mut self) -> &mut C {
        &mut self.chip
    }

    /// A domain with pirqs for all wires, and for the messages that its kind may have. `EEXIST`, `ENOMEM`. The caller
    /// has seen to it that there is memory for a node of the tree of domains.
    pub fn add_domain(&mut self, dom: DomId, kind: Kind) -> Result<(), Errno> {
        if self.domains.contains_key(&dom) {
            return Err(Errno::EEXIST);
        }
        let mut pirqs = Vec::new();
        let count = (self.nr_gsis + kind.messages(self.nr_gsis)) as usize;
        pirqs.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        pirqs.resize(count, Pirq::default());
        self.domains.insert(dom, DomainPirqs { kind, pirqs, eoi_map: None, was_late: false });
        Ok(())
    }

    /// Unbinds and unmaps all that a domain has, and forgets it. Its pages are given back.
    pub fn remove_domain(&mut self, dom: DomId) {
        for pirq in 0..self.nr_pirqs(dom) {
            let _ = self.unmap(dom, pirq);
        }
        self.domains.remove(&dom);
    }

    /// Number of a domain's pirqs; 0 if it has none.
    pub fn nr_pirqs(&self, dom: DomId) -> u32 {
        self.domains.get(&dom).map_or(0, |d| u32::try_from(d.pirqs.len()).unwrap_or(u32::MAX))
    }

    /// How many pirqs of a domain stand for a line, and are connected to a port.
    pub fn sizes(&self, dom: DomId) -> Sizes {
        let mapped = self.domains.get(&dom).into_iter().flat_map(|d| &d.pirqs).filter(|p| p.irq != 0);
        mapped.fold(Sizes::default(), |s, p| Sizes { mapped: s.mapped + 1, bound: s.bound + u32::from(p.port != 0) })
    }

    /// Connects a mapped pirq to an event port and lets the line fire. The caller calls [`Interrupts::expire`] when the
    /// answer says so: a line that is masked for somebody alone may have nobody who looks how long. `EINVAL`: not
    /// mapped. `EEXIST`: it has a port. `EBUSY`: others use the line and not all agree to share.
    pub fn bind(&mut self, dom: DomId, pirq: u32, port: Port, share: bool) -> Result<Option<u64>, Errno> {
        let d = self.domains.get_mut(&dom).ok_or(Errno::EINVAL)?;
        let entry = d.pirqs.get_mut(pirq as usize).ok_or(Errno::EINVAL)?;
        let irq = entry.irq.checked_sub(1).ok_or(Errno::EINVAL)?;
        if entry.port != 0 {
            return Err(Errno::EEXIST);
        }
        let line = self.lines.get_mut(irq as usize).ok_or(Errno::EINVAL)?;
        line.admit(share)?;
        if line.is_idle() && line.msi.is_none() {
            let wire = *line.wire.get_or_insert_with(|| self.chip.default_wire(irq));
            self.chip.allocate(irq)?;
            self.chip.route_gsi(irq, wire).inspect_err(|_| self.chip.unroute(irq, None))?;
        }
        let first = line.is_idle();
        line.add(Delivery { dom, pirq, port, kind: d.kind }, share, d.was_late);
        let level = line.is_level();
        if first {
            self.chip.unmask(irq, line.msi);
        }
        let wake = line.wake_at();
        entry.port = port;
        d.note_eoi(pirq, level);
        Ok(self.wanted_earlier(wake))
    }

    /// A line wants to be looked at: when, if nobody would come by then.
    #[inline]
    fn wanted_earlier(&mut self, wake: Option<u64>) -> Option<u64> {
        let wake = wake.filter(|wake| self.wake_at.is_none_or(|at| *wake < at))?;
        self.wake_at = Some(wake);
        Some(wake)
    }

    /// Undoes [`Interrupts::bind`]: the domain is no longer told and no longer waited for. Nothing happens if it is not
    /// bound to that port: a port may outlive its pirq, whose number stands for something else then.
    pub fn unbind(&mut self, dom: DomId, pirq: u32, port: Port) {
        let Some(entry) = self.pirq_mut(dom, pirq) else { return };
        let Some(irq) = entry.irq.checked_sub(1).filter(|_| port != 0 && entry.port == port) else { return };
        entry.port = 0;
        let Some(line) = self.lines.get_mut(irq as usize) else { return };
        let was_late = line.has_kept(dom, pirq);
        let done = line.remove(dom, pirq);
        if line.is_idle() {
            self.chip.mask(irq, line.msi);
            line.end_hold();
            if line.msi.is_none() {
                self.chip.unroute(irq, None);
            }
        } else if done {
            self.chip.unmask(irq, line.msi);
        }
        if let Some(d) = self.domains.get_mut(&dom) {
            d.was_late |= was_late;
        }
    }

    /// A line fired: it is masked if it must be, and these are to be told. The caller ends the interrupt at the CPU
    /// afterwards, and calls [`Interrupts::expire`] when the answer says so.
    #[inline]
    pub fn fired(&mut self, irq: Irq, now: u64) -> Deliveries {
        let Some(line) = self.lines.get_mut(irq as usize) else { return Deliveries::none() };
        let storm = line.count(now);
        if line.is_held() && !line.is_level() {
            // It was on its way when the line was masked, or nothing can mask it: the end of the hold tells what was
            // missed.
            return Deliveries::none();
        }
        if storm || line.is_level() || line.is_idle() {
            self.chip.mask(irq, line.msi);
        }
        if storm {
            line.hold();
        }
        let mut told = line.start(now);
        let wake = line.wake_at();
        told.wake_ns = self.wanted_earlier(wake);
        told
    }

    /// A domain has handled a pirq, now. Returns the port to be unmasked, if the domain asked for that. `EINVAL`: not
    /// mapped.
    #[inline]
    pub fn eoi(&mut self, dom: DomId, pirq: u32, now: u64) -> Result<Option<Port>, Errno> {
        let d = self.domains.get(&dom).ok_or(Errno::EINVAL)?;
        let entry = d.pirqs.get(pirq as usize).copied().ok_or(Errno::EINVAL)?;
        let auto = matches!(d.eoi_map, Some((_, true)));
        let irq = entry.irq.checked_sub(1).ok_or(Errno::EINVAL)?;
        if let Some(line) = self.lines.get_mut(irq as usize) {
            if line.finish(dom, pirq, now) {
                self.chip.unmask(irq, line.msi);
            }
        }
        Ok((auto && entry.port != 0).then_some(entry.port))
    }

    /// Whoever serves a pirq for a domain has looked whether it was the domain's device that asked: [`Line::found`].
    /// Before its EOI.
    pub fn found(&mut self, dom: DomId, pirq: u32, is_its: bool) {
        let irq = self.pirq(dom, pirq).ok().and_then(|entry| entry.irq.checked_sub(1));
        if let Some(line) = irq.and_then(|irq| self.lines.get_mut(irq as usize)) {
            line.found(dom, pirq, is_its);
        }
    }

    /// `XENIRQSTAT_*` of a pirq. `EINVAL`: no such number.
    pub fn status(&self, dom: DomId, pirq: u32) -> Result<u32, Errno> {
        let entry = self.pirq(dom, pirq)?;
        let Some(line) = entry.irq.checked_sub(1).and_then(|irq| self.lines.get(irq as usize)) else { return Ok(0) };
        let needs_eoi = if line.is_level() { XENIRQSTAT_NEEDS_EOI } else { 0 };
        let shared = if line.is_shared() { XENIRQSTAT_SHARED } else { 0 };
        Ok(needs_eoi | shared)
    }

    /// Registers the page in which a domain finds which of its pirqs need an EOI. `auto_unmask`: an EOI unmasks the
    /// port too (the first version of the call). `EBUSY`: it has one.
    pub fn set_eoi_map(
        &mut self,
        dom: DomId,
        auto_unmask: bool,
        map: impl FnOnce() -> Result<P, Errno>,
    ) -> Result<(), Errno> {
        let d = self.domains.get_mut(&dom).ok_or(Errno::EINVAL)?;
        if d.eoi_map.is_some() {
            return Err(Errno::EBUSY);
        }
        d.eoi_map = Some((map()?, auto_unmask));
        let d = self.domain(dom)?;
        for pirq in 0..self.nr_pirqs(dom) {
            let level = self.line_of(dom, pirq).is_some_and(Line::is_level);
            d.note_eoi(pirq, level);
        }
        Ok(())
    }

    /// Calls `f` for each page that a domain has registered.
    pub fn for_each_page(&self, mut f: impl FnMut(&P)) {
        self.domains.values().filter_map(|d| d.eoi_map.as_ref()).for_each(|(page, _)| f(page));
    }

    /// Programs the messages that `which` chooses again, after their device was reset.
    pub fn reprogram(&mut self, which: impl Fn(&C::Msi) -> bool) {
        for (irq, line) in (0u32..).zip(&self.lines) {
            if let Some(msi) = line.msi.filter(&which) {
                self.chip.reprogram(irq, msi);
                if line.is_idle() || line.is_held() {
                    self.chip.mask(irq, Some(msi));
                } else {
                    self.chip.unmask(irq, Some(msi));
                }
            }
        }
    }

    /// The time that was asked for has come: a line whose hold is over may fire again, and what may have been missed is
    /// delivered again; a line that waited too long for a sharer is unmasked. Call until `None`, then ask for
    /// [`Interrupts::next_wake`].
    pub fn expire(&mut self, now: u64) -> Option<Deliveries> {
        for (irq, line) in (0u32..).zip(&mut self.lines) {
            if line.give_up(now) {
                self.chip.unmask(irq, line.msi);
                return Some(Deliveries::none());
            }
            if !line.hold_is_over(now) {
                continue;
            }
            line.end_hold();
            if line.is_level() {
                if line.is_finished() {
                    line.note_reopened(now);
                    self.chip.unmask(irq, line.msi);
                }
                return Some(Deliveries::none());
            }
            self.chip.unmask(irq, line.msi);
            return Some(line.start(now));
        }
        None
    }

    /// When to call [`Interrupts::expire`] again, if no line fires before.
    pub fn next_wake(&mut self) -> Option<u64> {
        self.wake_at = self.lines.iter().filter_map(Line::wake_at).min();
        self.wake_at
    }

    /// The line of a mapped pirq.
    pub fn irq_of(&self, dom: DomId, pirq: u32) -> Option<Irq> {
        self.pirq(dom, pirq).ok()?.irq.checked_sub(1)
    }

    fn line_of(&self, dom: DomId, pirq: u32) -> Option<&Line<C::Msi>> {
        self.lines.get(self.irq_of(dom, pirq)? as usize)
    }

    #[inline]
    fn domain(&self, dom: DomId) -> Result<&DomainPirqs<P>, Errno> {
        self.domains.get(&dom).ok_or(Errno::EINVAL)
    }

    #[inline]
    fn pirq(&self, dom: DomId, pirq: u32) -> Result<Pirq, Errno> {
        self.domain(dom)?.pirqs.get(pirq as usize).copied().ok_or(Errno::EINVAL)
    }

    fn pirq_mut(&mut self, dom: DomId, pirq: u32) -> Option<&mut Pirq> {
        self.domains.get_mut(&dom)?.pirqs.get_mut(pirq as usize)
    }
}

impl<P: AsRef<PageWords>> DomainPirqs<P> {
    /// Writes into the domain's page whether a pirq needs an EOI.
    fn note_eoi(&self, pirq: u32, needed: bool) {
        let Some((page, _)) = &self.eoi_map else { return };
        let Some(word) = page.as_ref().get(pirq as usize / 32) else { return };
        let bit = 1 << (pirq % 32);
        if needed {
            word.fetch_or(bit, AcqRel);
        } else {
            word.fetch_and(!bit, AcqRel);
        }
    }
}
