//! Raising events: the hot paths.

use super::*;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// What became of a `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All done (or nobody is there: dropped).
    Done,
    /// Call [`EventChannels::raise_from`] on `dom`'s channels.
    To {
        /// The peer.
        dom: DomId,
        /// The peer's port.
        port: Port,
    },
    /// The hypervisor's own channel of that name has an event.
    Hypervisor(u32),
}

/// What became of a `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// One of the ports has an event.
    Ready,
    /// None has: the vCPU is to sleep until [`Shared::wake_poller`].
    Wait,
}

impl<P: AsRef<PageWords>> EventChannels<P> {
    /// An event from a vCPU of this domain. `EINVAL`: not a port that can be sent on.
    #[inline]
    pub fn send(&mut self, mem: &impl Shared, port: Port) -> Result<Sent, Errno> {
        let ch = self.ports.get(port).ok_or(Errno::EINVAL)?;
        match ch.binding {
            Binding::Interdomain { dom, port: peer } if dom != self.dom => Ok(Sent::To { dom, port: peer }),
            Binding::Interdomain { port: peer, .. } => {
                self.raise(mem, peer);
                Ok(Sent::Done)
            }
            Binding::Ipi => {
                self.raise(mem, port);
                Ok(Sent::Done)
            }
            Binding::Hypervisor { cookie, .. } => Ok(Sent::Hypervisor(cookie)),
            Binding::Unbound { .. } => Ok(Sent::Done),
            Binding::Free | Binding::Pirq(_) | Binding::Virq(_) => Err(Errno::EINVAL),
        }
    }

    /// An event from port `from_port` of `from`. Dropped if `port` is no longer connected to it.
    #[inline]
    pub fn raise_from(&mut self, mem: &impl Shared, port: Port, from: DomId, from_port: Port) {
        if self.ports.get(port).is_some_and(|ch| ch.is_peer(from, from_port)) {
            self.raise(mem, port);
        }
    }

    /// An event from the hypervisor's own channel `cookie`. Dropped if `port` is no longer connected to it.
    #[inline]
    pub fn raise_hypervisor(&mut self, mem: &impl Shared, port: Port, cookie: u32) {
        match self.ports.get(port) {
            Some(Channel { binding: Binding::Hypervisor { cookie: c, .. }, .. }) if *c == cookie => {
                self.raise(mem, port)
            }
            _ => {}
        }
    }

    /// A virtual interrupt for a vCPU (global ones: vCPU 0). Dropped if it has no port. `true` if it has.
    #[inline]
    pub fn raise_virq(&mut self, mem: &impl Shared, vcpu: u32, virq: u32) -> bool {
        let port = self.virq_port(vcpu, virq);
        if port != 0 {
            self.raise(mem, port);
        }
        port != 0
    }

    /// A physical interrupt whose port is `port`. Returns the vCPU that is told; `None` if the port is another's.
    #[inline]
    pub fn raise_pirq(&mut self, mem: &impl Shared, port: Port, pirq: u32) -> Option<u32> {
        let vcpu = self.ports.get(port).filter(|ch| ch.binding == Binding::Pirq(pirq))?.notify;
        self.raise(mem, port);
        Some(vcpu.into())
    }

    /// Makes an event pending on an open port, tells its vCPU unless it is masked, and ends polls.
    #[inline]
    pub(super) fn raise(&mut self, mem: &impl Shared, port: Port) {
        let Some(ch) = self.ports.get_mut(port) else { return };
        let was_pending = match &mut self.layout {
            Layout::TwoLevel => two_level_raise(mem, port, ch.notify.into()),
            Layout::Fifo(f) => f.raise(mem, &mut self.vcpus, ch, port),
        };
        if self.pollers != 0 && !was_pending {
            self.wake_pollers(mem, port);
        }
    }

    /// Clears a port's mask and delivers what is pending. `EINVAL`: there is no such port.
    pub fn unmask(&mut self, mem: &impl Shared, port: Port) -> Result<(), Errno> {
        let ch = self.ports.get_mut(port).ok_or(Errno::EINVAL)?;
        match &mut self.layout {
            Layout::TwoLevel => two_level_unmask(mem, port, ch.notify.into()),
            Layout::Fifo(f) => f.unmask(mem, &mut self.vcpus, ch, port),
        }
        Ok(())
    }

    /// Is an event of this port pending and not masked, or pending at all?
    pub fn pending(&self, mem: &impl Shared, port: Port) -> bool {
        self.ports.get(port).is_some_and(|ch| self.is_pending(mem, port, ch))
    }

    /// If `port` is a card's and that of physical interrupt `pirq`, and an event of it would be new and is not masked:
    /// the vCPU that would be told.
    pub fn would_tell(&self, mem: &impl Shared, port: Port, pirq: u32) -> Option<u32> {
        let ch = self.ports.get(port).filter(|_| self.is_cards(port, pirq))?;
        let is_masked = match &self.layout {
            Layout::TwoLevel => two_level_is_masked(mem, port),
            Layout::Fifo(f) => f.is_masked(port),
        };
        (!is_masked && !self.is_pending(mem, port, ch)).then_some(ch.notify.into())
    }

    pub(super) fn clear_pending(&mut self, mem: &impl Shared, port: Port) {
        let Some(ch) = self.ports.get_mut(port) else { return };
        match &mut self.layout {
            Layout::TwoLevel => {
                let (word, bit) = position(port);
                mem.pending(word).fetch_and(!bit, AcqRel);
            }
            Layout::Fifo(f) => f.clear_pending(port),
        }
        ch.pending = false;
    }

    /// A vCPU wants to sleep until one of `ports` has an event, masked or not. `EINVAL` if one does not exist,
    /// `ENOENT`: no such vCPU.
    pub fn poll(&mut self, mem: &impl Shared, vcpu: u32, ports: &[Port]) -> Result<Poll, Errno> {
        self.vcpu_exists(vcpu)?;
        // All are checked before any is believed.
        if ports.iter().any(|p| self.ports.get(*p).is_none()) {
            return Err(Errno::EINVAL);
        }
        if ports.iter().any(|p| self.pending(mem, *p)) {
            return Ok(Poll::Ready);
        }
        self.set_poll(vcpu, if let [one] = ports { *one } else { POLL_ANY });
        Ok(Poll::Wait)
    }

    /// A vCPU no longer polls (its time is up, or another event woke it).
    pub fn end_poll(&mut self, vcpu: u32) {
        self.set_poll(vcpu, 0);
    }

    /// Takes a mark of an upcall back that was made without an event. `true`: one has come since, which found the mark;
    /// the vCPU is told now. It does not execute the guest's code meanwhile.
    pub fn unmark_upcall(&self, mem: &impl Shared, vcpu: u32) -> bool {
        let has_event = match &self.layout {
            Layout::TwoLevel => mem.pending_sel(vcpu).load(Acquire) != 0,
            Layout::Fifo(_) => self.vcpus.get(vcpu as usize).is_some_and(|v| v.fifo.has_ready()),
        };
        if has_event {
            mem.notify(vcpu);
        } else {
            mem.upcall_pending(vcpu).store(0, Release);
        }
        has_event
    }

    fn set_poll(&mut self, vcpu: u32, poll: u32) {
        if let Some(v) = self.vcpus.get_mut(vcpu as usize) {
            let before = core::mem::replace(&mut v.poll, poll);
            match (before, poll) {
                (0, 1..) => self.pollers += 1,
                (1.., 0) => self.pollers = self.pollers.saturating_sub(1),
                _ => {}
            }
        }
    }

    #[cold]
    fn wake_pollers(&mut self, mem: &impl Shared, port: Port) {
        for (vcpu, v) in (0u32..).zip(&mut self.vcpus) {
            if v.poll == POLL_ANY || v.poll == port {
                v.poll = 0;
                self.pollers = self.pollers.saturating_sub(1);
                mem.wake_poller(vcpu);
            }
        }
    }
}

/// Tells a vCPU that there is something to do, if it has not been told already.
#[inline]
pub(super) fn mark_upcall(mem: &impl Shared, vcpu: u32) {
    if mem.upcall_pending(vcpu).swap(1, AcqRel) == 0 {
        mem.notify(vcpu);
    }
}

/// Word and bit of a port in the 2-level layout.
#[inline]
fn position(port: Port) -> (usize, u64) {
    (port as usize / 64 % 64, 1 << (port % 64))
}

/// A vCPU is told of `port`, unless that is masked, although its word of ports may have been marked before. The mark
/// stays: it is that of other ports, too.
pub(super) fn tell_again(mem: &impl Shared, port: Port, vcpu: u32) {
    let (word, bit) = position(port);
    if mem.mask(word).load(Acquire) & bit == 0 {
        mem.pending_sel(vcpu).fetch_or(1 << word, AcqRel);
        mark_upcall(mem, vcpu);
    }
}

#[inline]
fn two_level_raise(mem: &impl Shared, port: Port, vcpu: u32) -> bool {
    let (word, bit) = position(port);
    if mem.pending(word).fetch_or(bit, AcqRel) & bit != 0 {
        return true;
    }
    two_level_select(mem, word, bit, vcpu);
    false
}

#[inline]
fn two_level_select(mem: &impl Shared, word: usize, bit: u64, vcpu: u32) {
    let select = 1 << word;
    if mem.mask(word).load(Acquire) & bit == 0 && mem.pending_sel(vcpu).fetch_or(select, AcqRel) & select == 0 {
        mark_upcall(mem, vcpu);
    }
}

fn two_level_unmask(mem: &impl Shared, port: Port, vcpu: u32) {
    let (word, bit) = position(port);
    mem.mask(word).fetch_and(!bit, AcqRel);
    if mem.pending(word).load(Acquire) & bit != 0 {
        two_level_select(mem, word, bit, vcpu);
    }
}

fn two_level_is_masked(mem: &impl Shared, port: Port) -> bool {
    let (word, bit) = position(port);
    mem.mask(word).load(Acquire) & bit != 0
}

pub(super) fn two_level_is_pending(mem: &impl Shared, port: Port) -> bool {
    let (word, bit) = position(port);
    mem.pending(word).load(Acquire) & bit != 0
}
