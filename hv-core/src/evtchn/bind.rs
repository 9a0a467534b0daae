//! Making ports and connecting them.

use super::*;

/// The other end of `bind_interdomain`.
pub enum Remote<'a, P> {
    /// A port of the same domain.
    Own,
    /// Another domain's channels, locked.
    Other(&'a mut EventChannels<P>),
}

impl<P: AsRef<PageWords>> EventChannels<P> {
    /// A new port to which `remote` may bind. `ENOSPC`, `ENOMEM`; `EINVAL`: the domain is being destroyed, as for all
    /// that open one.
    pub fn alloc_unbound(&mut self, remote: DomId) -> Result<Port, Errno> {
        self.open_port(Binding::Unbound { remote }, 0)
    }

    /// A new port connected to `remote_port` of `remote`, which must be unbound and meant for this domain (`EINVAL`).
    /// An event is pending on it from the start, since one may have been sent and dropped before.
    pub fn bind_interdomain(
        &mut self,
        mem: &impl Shared,
        remote: Remote<'_, P>,
        remote_port: Port,
    ) -> Result<Port, Errno> {
        let dom = self.dom;
        let meant_for_us = Binding::Unbound { remote: dom };
        let port = match remote {
            Remote::Own => {
                if self.binding(remote_port)? != meant_for_us {
                    return Err(Errno::EINVAL);
                }
                let port = self.open_port(Binding::Interdomain { dom, port: remote_port }, 0)?;
                self.connect(remote_port, dom, port);
                port
            }
            Remote::Other(peer) => {
                if peer.binding(remote_port)? != meant_for_us {
                    return Err(Errno::EINVAL);
                }
                let port = self.open_port(Binding::Interdomain { dom: peer.dom, port: remote_port }, 0)?;
                peer.connect(remote_port, dom, port);
                port
            }
        };
        self.raise(mem, port);
        Ok(port)
    }

    /// Connects an unbound port that is meant for `dom` with the hypervisor, which acts for `dom`. `EINVAL` otherwise.
    pub fn bind_hypervisor(&mut self, port: Port, dom: DomId, cookie: u32) -> Result<(), Errno> {
        let ch = self.ports.get_mut(port).ok_or(Errno::EINVAL)?;
        if ch.binding != (Binding::Unbound { remote: dom }) {
            return Err(Errno::EINVAL);
        }
        ch.binding = Binding::Hypervisor { dom, cookie };
        Ok(())
    }

    /// The hypervisor takes this domain's place at `port`, which is connected with one of `remote`'s: `port` is closed,
    /// and the other end is connected with the hypervisor, which acts for this domain. Its number. `EINVAL`: not
    /// connected so.
    pub fn hand_over(
        &mut self,
        mem: &impl Shared,
        port: Port,
        remote: Remote<'_, P>,
        cookie: u32,
    ) -> Result<Port, Errno> {
        let dom = self.dom;
        let Binding::Interdomain { dom: other, port: peer_port } = self.binding(port)? else {
            return Err(Errno::EINVAL);
        };
        let peer = match remote {
            Remote::Own if other == dom => self.ports.get_mut(peer_port),
            Remote::Other(peer) if other == peer.dom => peer.ports.get_mut(peer_port),
            _ => None,
        };
        let peer = peer.filter(|peer| peer.is_peer(dom, port)).ok_or(Errno::EINVAL)?;
        peer.binding = Binding::Hypervisor { dom, cookie };
        self.clear_pending(mem, port);
        self.release(port);
        Ok(peer_port)
    }

    /// The hypervisor lets go of a port that it was bound to with `cookie`: it waits for `dom` again.
    pub fn unbind_hypervisor(&mut self, port: Port, cookie: u32) -> Result<(), Errno> {
        let ch = self.ports.get_mut(port).ok_or(Errno::EINVAL)?;
        match ch.binding {
            Binding::Hypervisor { dom, cookie: c } if c == cookie => {
                ch.binding = Binding::Unbound { remote: dom };
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// A new port for a virtual interrupt. `EINVAL`: no such number, or a global one on another vCPU than 0. `ENOENT`:
    /// no such vCPU. `EEXIST`: it has a port.
    pub fn bind_virq(&mut self, virq: u32, vcpu: u32) -> Result<Port, Errno> {
        if virq >= NR_VIRQS || (virq_is_global(virq) && vcpu != 0) {
            return Err(Errno::EINVAL);
        }
        let nr = self.vcpu_exists(vcpu)?;
        if self.virq_port(vcpu, virq) != 0 {
            return Err(Errno::EEXIST);
        }
        let port = self.open_port(Binding::Virq(virq), nr)?;
        self.set_virq_port(vcpu, virq, port);
        Ok(port)
    }

    /// A new port from this domain's vCPUs to `vcpu`. `ENOENT`: no such vCPU.
    pub fn bind_ipi(&mut self, vcpu: u32) -> Result<Port, Errno> {
        let nr = self.vcpu_exists(vcpu)?;
        self.open_port(Binding::Ipi, nr)
    }

    /// A new port for a physical interrupt. `bind`, given the port, connects the interrupt; its refusal undoes the
    /// rest. The caller has checked that the domain may use the interrupt and that it has no port yet.
    pub fn bind_pirq(&mut self, pirq: u32, bind: impl FnOnce(Port) -> Result<(), Errno>) -> Result<Port, Errno> {
        let port = self.open_port(Binding::Pirq(pirq), 0)?;
        match bind(port) {
            Ok(()) => Ok(port),
            Err(e) => {
                self.release(port);
                Err(e)
            }
        }
    }

    /// The port of a physical interrupt is a card's until it is closed; the interrupt's number. `EINVAL`: it is none.
    pub fn give_to_card(&mut self, port: Port) -> Result<u32, Errno> {
        let ch = self.ports.get_mut(port).ok_or(Errno::EINVAL)?;
        let Binding::Pirq(pirq) = ch.binding else { return Err(Errno::EINVAL) };
        ch.is_cards = true;
        Ok(pirq)
    }

    /// Has `port` been a card's, and that of `pirq`, ever since it was bound? Who closes it frees what handled the
    /// interrupt; a port that is bound afterwards may well have the same numbers.
    pub fn is_cards(&self, port: Port, pirq: u32) -> bool {
        self.ports.get(port).is_some_and(|ch| ch.is_cards && ch.binding == Binding::Pirq(pirq))
    }

    /// Chooses the vCPU that a port notifies. `ENOENT`: no such vCPU. `EINVAL`: no such port, or one that belongs to a
    /// vCPU (IPI, per-vCPU virtual interrupt), or the hypervisor's. For a physical interrupt its number is returned, so
    /// that the line can be steered along.
    pub fn bind_vcpu(&mut self, port: Port, vcpu: u32) -> Result<Option<u32>, Errno> {
        let nr = self.vcpu_exists(vcpu)?;
        let ch = self.ports.get_mut(port).ok_or(Errno::EINVAL)?;
        let pirq = match ch.binding {
            Binding::Unbound { .. } | Binding::Interdomain { .. } | Binding::Hypervisor { .. } => None,
            Binding::Virq(virq) if virq_is_global(virq) => None,
            Binding::Pirq(pirq) => Some(pirq),
            Binding::Virq(_) | Binding::Ipi | Binding::Free => return Err(Errno::EINVAL),
        };
        ch.notify = nr;
        Ok(pirq)
    }

    /// The port of a virtual interrupt; 0: none.
    pub fn virq_port(&self, vcpu: u32, virq: u32) -> Port {
        self.vcpus.get(vcpu as usize).and_then(|v| v.virq.get(virq as usize)).copied().unwrap_or(0)
    }

    pub(super) fn set_virq_port(&mut self, vcpu: u32, virq: u32, port: Port) {
        if let Some(p) = self.vcpus.get_mut(vcpu as usize).and_then(|v| v.virq.get_mut(virq as usize)) {
            *p = port;
        }
    }

    fn connect(&mut self, port: Port, dom: DomId, peer_port: Port) {
        if let Some(ch) = self.ports.get_mut(port) {
            ch.binding = Binding::Interdomain { dom, port: peer_port };
        }
    }

    /// Takes the lowest free port and gives it a binding. `EINVAL`: the domain gets none any more.
    fn open_port(&mut self, binding: Binding, notify: u16) -> Result<Port, Errno> {
        if self.is_over {
            return Err(Errno::EINVAL);
        }
        let limit = self.limit();
        let mut port: Port = 1;
        loop {
            if port >= limit {
                return Err(Errno::ENOSPC);
            }
            match self.ports.get(port) {
                None => self.grow()?,
                // A port that the guest has not taken off its FIFO queue yet would be delivered to the wrong one.
                Some(ch) if ch.binding == Binding::Free && !self.is_linked(port) => break,
                Some(_) => port += 1,
            }
        }
        if let Some(ch) = self.ports.get_mut(port) {
            ch.binding = binding;
            ch.notify = notify;
        }
        self.open += 1;
        Ok(port)
    }

    fn grow(&mut self) -> Result<(), Errno> {
        let first = self.ports.end();
        self.ports.grow(self.room)?;
        self.find_queues(first);
        Ok(())
    }

    fn is_linked(&self, port: Port) -> bool {
        match &self.layout {
            Layout::TwoLevel => false,
            Layout::Fifo(f) => f.is_linked(port),
        }
    }
}
