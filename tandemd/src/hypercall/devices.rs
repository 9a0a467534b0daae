//! What a domain may use of a PCI function, and whose the function is: `domctl`, and `physdev_op` for its wire.

use super::domains::{head, Request};
use super::{Argument, Hypervisor};
use rustix::io::Errno;
use xen_abi::channel_op::{
    ChannelKeepLink, ChannelPci, ChannelPciFunction, BEAT_CONFINED, BEAT_LEFT_UNRESET, CHANNELOP_KEEP_LINK,
    CHANNELOP_PCI_SERVE, PCI_MAX_FUNCTIONS,
};
use xen_abi::domctl::{
    AssignDevice, IomemPermission, IoportPermission, IrqPermission, ASSIGN_DEVICE, DEASSIGN_DEVICE, DEV_PCI,
    IOMEM_PERMISSION, IOPORT_PERMISSION, IRQ_PERMISSION,
};
use xen_abi::hypercall::PHYSDEV_OP;
use xen_abi::physdev::{PhysdevMapPirq, PhysdevUnmapPirq, MAP_PIRQ_TYPE_GSI, PHYSDEVOP_MAP_PIRQ, PHYSDEVOP_UNMAP_PIRQ};

/// What a domain needs to use a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Frames of its registers.
    Frames { first: u64, count: u64 },
    /// Its ports.
    Ports { first: u32, count: u32 },
    /// Its wire.
    Interrupt(u32),
}

/// The hypervisor, as PCI functions change hands.
pub trait Passthrough {
    /// A domain may use this from now on, or may not.
    fn permit(&mut self, domain: u16, what: Resource, is_allowed: bool) -> Result<(), Errno>;
    /// The domain gets a wire, under the number that it has in the machine.
    fn map_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno>;
    /// It loses it.
    fn unmap_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno>;
    /// A function that is nobody's becomes the domain's. EBUSY: it is another one's.
    fn assign(&mut self, domain: u16, function: u32) -> Result<(), Errno>;
    /// It stops, is reset by its own registers as far as they are known, and is nobody's. ENODEV: the domain does not
    /// have it.
    fn deassign(&mut self, domain: u16, function: u32) -> Result<(), Errno>;
    /// An IOMMU keeps the domain's devices from others' memory. `false` also if that is not known.
    fn is_confined(&mut self, domain: u16) -> bool;
    /// The next domain's driver does not take this interface's link down while it begins; the domain has stopped.
    /// EOPNOTSUPP: it is not known how to keep it. ENOTCONN: it is down.
    fn keep_link(&mut self, domain: u16, function: u32) -> Result<(), Errno>;
    /// The hypervisor answers the domain's PCI front end, which has this ring and port, in its back end's place, until
    /// it gets or loses a device. ENOSPC: too many functions, or domains.
    fn answer_front(
        &mut self,
        domain: u16,
        ring: u32,
        port: u32,
        functions: &[ChannelPciFunction],
    ) -> Result<(), Errno>;
    /// All devices that were taken from the domain were reset by their own registers. `false` also if that is not
    /// known.
    fn has_reset(&mut self, domain: u16) -> bool;
}

impl Argument for Request<AssignDevice> {}
impl Argument for Request<IomemPermission> {}
impl Argument for Request<IoportPermission> {}
impl Argument for Request<IrqPermission> {}
impl Argument for ChannelKeepLink {}
impl Argument for ChannelPci {}
impl Argument for PhysdevMapPirq {}
impl Argument for PhysdevUnmapPirq {}

impl Hypervisor {
    fn change_owner(&mut self, command: u32, domain: u16, function: u32) -> Result<(), Errno> {
        let part = AssignDevice { dev: DEV_PCI, machine_sbdf: function, ..AssignDevice::default() };
        self.domctl(Request { head: head(command, domain), part }).map(|_| ())
    }
}

impl Passthrough for Hypervisor {
    fn permit(&mut self, domain: u16, what: Resource, is_allowed: bool) -> Result<(), Errno> {
        let allow_access = u8::from(is_allowed);
        match what {
            Resource::Frames { first, count } => {
                let part = IomemPermission { first_mfn: first, nr_mfns: count, allow_access, ..Default::default() };
                self.domctl(Request { head: head(IOMEM_PERMISSION, domain), part }).map(|_| ())
            }
            Resource::Ports { first, count } => {
                let part = IoportPermission { first_port: first, nr_ports: count, allow_access, ..Default::default() };
                self.domctl(Request { head: head(IOPORT_PERMISSION, domain), part }).map(|_| ())
            }
            Resource::Interrupt(pirq) => {
                let part = IrqPermission { pirq, allow_access, ..Default::default() };
                self.domctl(Request { head: head(IRQ_PERMISSION, domain), part }).map(|_| ())
            }
        }
    }

    fn map_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno> {
        let request =
            PhysdevMapPirq { domid: domain, kind: MAP_PIRQ_TYPE_GSI, index: wire, pirq: wire, ..Default::default() };
        self.call_of(u64::from(PHYSDEV_OP), PHYSDEVOP_MAP_PIRQ, request).map(|_| ())
    }

    fn unmap_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno> {
        let request = PhysdevUnmapPirq { domid: domain, pirq: wire, ..Default::default() };
        self.call_of(u64::from(PHYSDEV_OP), PHYSDEVOP_UNMAP_PIRQ, request).map(|_| ())
    }

    fn assign(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.change_owner(ASSIGN_DEVICE, domain, function)
    }

    fn deassign(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.change_owner(DEASSIGN_DEVICE, domain, function)
    }

    fn is_confined(&mut self, domain: u16) -> bool {
        self.beat(domain, 0).is_ok_and(|beat| beat.flags & BEAT_CONFINED != 0)
    }

    fn keep_link(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call(CHANNELOP_KEEP_LINK, ChannelKeepLink { domain, pad: 0, function }).map(|_| ())
    }

    fn answer_front(
        &mut self,
        domain: u16,
        ring: u32,
        port: u32,
        functions: &[ChannelPciFunction],
    ) -> Result<(), Errno> {
        let mut all = [ChannelPciFunction::default(); PCI_MAX_FUNCTIONS];
        all.get_mut(..functions.len()).ok_or(Errno::NOSPC)?.copy_from_slice(functions);
        let nr_functions = u16::try_from(functions.len()).map_err(|_| Errno::NOSPC)?;
        let request = ChannelPci { domain, nr_functions, ring, port, pad: 0, functions: all };
        self.call(CHANNELOP_PCI_SERVE, request).map(|_| ())
    }

    fn has_reset(&mut self, domain: u16) -> bool {
        self.beat(domain, 0).is_ok_and(|beat| beat.flags & BEAT_LEFT_UNRESET == 0)
    }
}
