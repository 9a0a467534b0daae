//! A domain's event channels as they once were, and the way back to them.
//!
//! What leads to another domain has two ends, and only one of them goes back: so such a port must still lead where it
//! led. All other ports are the domain's alone, and are closed and opened as they were. Events that came since are
//! forgotten with the pages that they are in; so all that can have an event gets one ([`EventChannels::raise_all`]):
//! too many do no harm, a lost one does.
//!
//! While the domain's memory goes back nobody may write events to it ([`EventChannels::let_go`]), and the queues of the
//! FIFO layout are known here and in its pages: so what is in the pages is to be copied under the same lock as this.

use super::fifo::{ControlBlock, VcpuQueues};
use super::*;
use crate::snapshot::Refusal;
use xen_abi::event::VIRQ_DEBUG;

/// A vCPU's part.
struct SavedVcpu {
    virq: [Port; NR_VIRQS as usize],
    /// Name of the page that has its control block, and the block's first word.
    control: Option<(u64, usize)>,
    tail: [Port; event::FIFO_MAX_QUEUES as usize],
}

/// Event channels as they were.
pub struct Saved {
    ports: PortTable,
    open: u32,
    /// Names of the pages of the event array; `None`: 2-level.
    array: Option<Vec<u64>>,
    vcpus: Vec<SavedVcpu>,
}

impl Saved {
    /// Number of ports that were not free.
    pub fn nr_open(&self) -> u32 {
        self.open
    }

    /// Calls `f` with the name of each page that events were written to.
    pub fn for_each_page(&self, f: impl FnMut(u64)) {
        let blocks = self.vcpus.iter().filter_map(|v| v.control.map(|(page, _)| page));
        self.array.iter().flatten().copied().chain(blocks).for_each(f);
    }

    /// What `port` was connected to.
    fn binding(&self, port: Port) -> Binding {
        self.ports.get(port).map_or(Binding::Free, |ch| ch.binding)
    }
}

impl<P: AsRef<PageWords>> EventChannels<P> {
    /// Notes what they are; `name` gives a page a name. ENOMEM. A port at whose other end the hypervisor is cannot go
    /// back: it is named.
    pub fn save(&self, name: impl Fn(&P) -> u64) -> Result<Result<Saved, Refusal>, Errno> {
        let ends = |port: &Port| matches!(self.binding(*port), Ok(Binding::Hypervisor { .. }));
        if let Some(port) = (0..self.ports.end()).find(ends) {
            return Ok(Err(Refusal::Channel(port)));
        }
        let array = match &self.layout {
            Layout::TwoLevel => None,
            Layout::Fifo(f) => {
                let mut names = Vec::new();
                names.try_reserve_exact(f.pages.len()).map_err(|_| Errno::ENOMEM)?;
                names.extend(f.pages.iter().map(&name));
                Some(names)
            }
        };
        let mut vcpus = Vec::new();
        vcpus.try_reserve_exact(self.vcpus.len()).map_err(|_| Errno::ENOMEM)?;
        vcpus.extend(self.vcpus.iter().map(|v| SavedVcpu {
            virq: v.virq,
            control: v.fifo.control.as_ref().map(|block| (name(&block.page), block.first)),
            tail: v.fifo.tail,
        }));
        Ok(Ok(Saved { ports: self.ports.try_clone(self.room)?, open: self.open, array, vcpus }))
    }

    /// Could they be as they were? Changes nothing.
    pub fn check(&self, saved: &Saved) -> Result<(), Refusal> {
        if self.vcpus.len() != saved.vcpus.len() {
            return Err(Refusal::Vcpus(0));
        }
        for port in 0..self.ports.end().max(saved.ports.end()) {
            let now = self.binding(port).unwrap_or(Binding::Free);
            if matches!(now, Binding::Hypervisor { .. }) {
                return Err(Refusal::Channel(port));
            }
            match saved.binding(port) {
                then @ Binding::Interdomain { dom, .. } if dom != self.dom && now != then => {
                    return Err(Refusal::Port(port));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The first open port at or after `from` that was not connected so: it is to be closed.
    pub fn next_changed(&self, saved: &Saved, from: Port) -> Option<Port> {
        let is_changed =
            |port: &Port| self.binding(*port).is_ok_and(|now| now != Binding::Free && now != saved.binding(*port));
        (from..self.ports.end()).find(is_changed)
    }

    /// Gives all pages back that events are written to. What comes until [`Self::go_back`] is lost.
    pub fn let_go(&mut self) {
        self.layout = Layout::TwoLevel;
        for v in &mut self.vcpus {
            v.fifo = VcpuQueues::new();
        }
    }

    /// Makes them what they were, after all that had changed was closed and the domain's memory went back. `take` gets
    /// hold of a page by its name. After an error they are not what they were, and the domain must not run.
    pub fn go_back(&mut self, saved: &Saved, mut take: impl FnMut(u64) -> Result<P, Errno>) -> Result<(), Errno> {
        // Somebody may have been quick, since it was looked.
        if self.next_changed(saved, 0).is_some() || self.check(saved).is_err() {
            return Err(Errno::EBUSY);
        }
        let layout = match &saved.array {
            None => Layout::TwoLevel,
            Some(names) => {
                let mut pages = Vec::new();
                pages.try_reserve(names.len()).map_err(|_| Errno::ENOMEM)?;
                for name in names {
                    pages.push(take(*name)?);
                }
                Layout::Fifo(Fifo { pages })
            }
        };
        self.ports.assign(&saved.ports, self.room)?;
        self.ports.forget_pending();
        self.open = saved.open;
        self.layout = layout;
        self.pollers = 0;
        for (v, then) in self.vcpus.iter_mut().zip(&saved.vcpus) {
            v.virq = then.virq;
            v.poll = 0;
            let control = match then.control {
                None => None,
                Some((name, first)) => Some(ControlBlock { page: take(name)?, first }),
            };
            v.fifo = VcpuQueues { control, tail: then.tail };
        }
        Ok(())
    }

    /// Raises an event on the ports from `from` on that may have lost one, at most `most` of them, as if it had just
    /// come. Where to go on; `None`: that were all.
    pub fn raise_all(&mut self, mem: &impl Shared, from: Port, most: u32) -> Option<Port> {
        let mut port = from;
        for _ in 0..most {
            let next = self.next_open(port)?;
            let may_have_lost = match self.binding(next) {
                // It would only have asked for what is printed.
                Ok(Binding::Virq(virq)) => virq != VIRQ_DEBUG,
                Ok(Binding::Interdomain { .. } | Binding::Pirq(_) | Binding::Ipi) => true,
                _ => false,
            };
            if may_have_lost {
                if !self.is_fifo() {
                    // Whether its vCPU was told may have been noted before the event was: it is told again.
                    self.clear_pending(mem, next);
                    deliver::tell_again(mem, next, self.ports.get(next).map_or(0, |ch| ch.notify.into()));
                }
                self.raise(mem, next);
            }
            port = next + 1;
        }
        Some(port)
    }
}

#[cfg(test)]
mod tests;
