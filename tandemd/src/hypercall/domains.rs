//! What the supervisor asks the hypervisor about a driver domain: `domctl`, and CHANNELOP_BEAT.

use super::{Argument, Call, Hypervisor};
use rustix::io::Errno;
use xen_abi::channel_op::{self as op, ChannelBeat, ChannelDrain, ChannelTwins, ChannelWatch};
use xen_abi::domctl::{
    Domctl, GetDomainInfo, DOMINF_DYING, GETDOMAININFO, MAX_MEM, PAUSEDOMAIN, XEN_DOMCTL_INTERFACE_VERSION,
};
use xen_abi::hypercall::{DOMCTL, SYSCTL};
use xen_abi::sysctl::{PhysInfo, Sysctl, PHYSINFO, XEN_SYSCTL_INTERFACE_VERSION};

/// A request of `domctl` or `sysctl`, with room for any command's part.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Request<T, H = Domctl> {
    pub(super) head: H,
    pub(super) part: T,
}

impl Argument for Request<GetDomainInfo> {}
impl Argument for Request<[u64; 16]> {}
impl Argument for Request<PhysInfo, Sysctl> {}
impl Argument for ChannelBeat {}
impl Argument for ChannelDrain {}
impl Argument for ChannelTwins {}
impl Argument for ChannelWatch {}

pub(super) fn head(cmd: u32, domain: u16) -> Domctl {
    Domctl { cmd, interface_version: XEN_DOMCTL_INTERFACE_VERSION, domain, ..Domctl::default() }
}

impl Hypervisor {
    pub(super) fn domctl<T: Argument>(&mut self, request: T) -> Result<T, Errno> {
        self.make(request, |address| Call { op: u64::from(DOMCTL), arg: [address, 0, 0, 0, 0] })
    }

    /// What this domain is. ESRCH: there is none of this number.
    pub fn domain(&mut self, domain: u16) -> Result<GetDomainInfo, Errno> {
        let request = Request { head: head(GETDOMAININFO, domain), part: GetDomainInfo::default() };
        let answer = self.domctl(request)?;
        // The hypervisor tells of the next one if there is none of this number.
        if answer.part.domain == domain {
            Ok(answer.part)
        } else {
            Err(Errno::SRCH)
        }
    }

    /// It is there, and does not go. Of whom nothing can be said that is not said either.
    pub fn is_there(&mut self, domain: u16) -> bool {
        self.domain(domain).is_ok_and(|info| info.flags & DOMINF_DYING == 0)
    }

    /// There is something of it, if it goes or not.
    pub fn has(&mut self, domain: u16) -> bool {
        !matches!(self.domain(domain), Err(Errno::SRCH))
    }

    /// It is paused: its twins are no more, and have nothing in their hands.
    pub fn forget_twins(&mut self, domain: u16) -> Result<(), Errno> {
        self.call(op::CHANNELOP_FORGET_TWINS, ChannelTwins { domain, ..ChannelTwins::default() }).map(|_| ())
    }

    /// So many pages of the machine's are free, and promised to nobody.
    pub fn free_pages(&mut self) -> Result<u64, Errno> {
        let head = Sysctl { cmd: PHYSINFO, interface_version: XEN_SYSCTL_INTERFACE_VERSION };
        let request = Request { head, part: PhysInfo::default() };
        let answer = self.make(request, |address| Call { op: u64::from(SYSCTL), arg: [address, 0, 0, 0, 0] })?;
        Ok(answer.part.free_pages.saturating_sub(answer.part.outstanding_pages))
    }

    /// Stops all of its vCPUs.
    pub fn pause(&mut self, domain: u16) -> Result<(), Errno> {
        let request = Request { head: head(PAUSEDOMAIN, domain), part: [0_u64; 16] };
        self.domctl(request).map(|_| ())
    }

    /// What is for outside waits until a switch has another way out, for so long at most. ENODEV: it has none.
    pub fn drain(&mut self, switch: u32, drain_ms: u32) -> Result<(), Errno> {
        self.call(op::CHANNELOP_SWITCH_DRAIN, ChannelDrain { switch, drain_ms }).map(|_| ())
    }

    /// It may have so much memory, in KiB.
    pub(super) fn limit_memory(&mut self, domain: u16, kib: u64) -> Result<(), Errno> {
        let mut part = [0_u64; 16];
        part[0] = kib;
        self.domctl(Request { head: head(MAX_MEM, domain), part }).map(|_| ())
    }

    /// There is news when it ends, or one of its vCPUs has run for so long while an event waited; 0: only when it ends.
    /// With `dma_faults`, one of
    /// [`op::WATCH_DMA_FAULTS`] and its like, also when an IOMMU stops a device of its, of which nothing is taken any
    /// more then.
    pub fn watch(&mut self, domain: u16, wedged_ms: u32, dma_faults: u16) -> Result<(), Errno> {
        self.call(op::CHANNELOP_WATCH, ChannelWatch { domain, flags: dma_faults, wedged_ms }).map(|_| ())
    }

    /// Whether a vCPU of the domain's takes its events.
    pub fn beat(&mut self, domain: u16, vcpu: u32) -> Result<ChannelBeat, Errno> {
        self.call(op::CHANNELOP_BEAT, ChannelBeat { domain, vcpu, ..ChannelBeat::default() })
    }
}
