//! Closing ports, one by one and all.

use super::*;

/// What a closed port was connected to, where the shell has something left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Nothing left to do.
    Done,
    /// The physical interrupt is to be unbound.
    Pirq(u32),
    /// The hypervisor's own channel of that name lost its guest.
    Hypervisor(u32),
}

/// A port was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseError {
    /// There is no such open port.
    Invalid,
    /// Lock this domain's channels too, in order, and try again.
    NeedsPeer(DomId),
}

/// The other domain of [`EventChannels::close`].
pub enum Peer<'a, P> {
    /// None is locked.
    Unlocked,
    /// This domain's, locked.
    Locked(&'a mut EventChannels<P>),
    /// This domain no longer exists.
    Gone(DomId),
}

impl<P: AsRef<PageWords>> EventChannels<P> {
    /// Closes a port. A connected peer becomes unbound, waiting for this domain.
    pub fn close(&mut self, mem: &impl Shared, port: Port, peer: Peer<'_, P>) -> Result<Closed, CloseError> {
        let ch = *self.ports.get(port).ok_or(CloseError::Invalid)?;
        let mut closed = Closed::Done;
        match ch.binding {
            Binding::Free => return Err(CloseError::Invalid),
            Binding::Unbound { .. } | Binding::Ipi => {}
            Binding::Pirq(pirq) => closed = Closed::Pirq(pirq),
            Binding::Hypervisor { cookie, .. } => closed = Closed::Hypervisor(cookie),
            Binding::Virq(virq) => {
                let vcpu = if virq_is_global(virq) { 0 } else { ch.notify.into() };
                self.set_virq_port(vcpu, virq, 0);
            }
            Binding::Interdomain { dom, port: peer_port } if dom == self.dom => {
                let own = dom;
                self.disconnect(peer_port, own, port);
            }
            Binding::Interdomain { dom, port: peer_port } => match peer {
                Peer::Locked(p) if p.dom == dom => p.disconnect(peer_port, self.dom, port),
                Peer::Gone(d) if d == dom => {}
                _ => return Err(CloseError::NeedsPeer(dom)),
            },
        }
        self.clear_pending(mem, port);
        self.release(port);
        Ok(closed)
    }

    /// The domain is being destroyed: no port of it opens any more, so that all can be closed.
    pub fn close_for_good(&mut self) {
        self.is_over = true;
    }

    /// The first open port at or after `from`, for closing all in steps.
    pub fn next_open(&self, from: Port) -> Option<Port> {
        (from..self.ports.end()).find(|p| self.ports.get(*p).is_some_and(|c| c.binding != Binding::Free))
    }

    /// After all ports are closed: back to the 2-level layout, guest pages given back. `EBUSY` if a port is open.
    pub fn finish_reset(&mut self) -> Result<(), Errno> {
        if self.open != 0 {
            return Err(Errno::EBUSY);
        }
        self.layout = Layout::TwoLevel;
        for v in &mut self.vcpus {
            v.fifo = fifo::VcpuQueues::new();
        }
        Ok(())
    }

    /// `port` loses its peer `peer_port` of `dom`, if that is still what it is connected to.
    fn disconnect(&mut self, port: Port, dom: DomId, peer_port: Port) {
        if let Some(ch) = self.ports.get_mut(port) {
            if ch.is_peer(dom, peer_port) {
                ch.binding = Binding::Unbound { remote: dom };
            }
        }
    }

    pub(super) fn release(&mut self, port: Port) {
        if let Some(ch) = self.ports.get_mut(port) {
            ch.release();
            self.open = self.open.saturating_sub(1);
            self.ports.shrink();
        }
    }
}
