//! Event channels: `EVTCHNOP_*`, 2-level and FIFO layouts, `VIRQ_*` (public/event_channel.h, public/xen.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

/// A port number of one domain. Port 0 is never allocated.
pub type Port = u32;

pub const EVTCHNOP_BIND_INTERDOMAIN: u32 = 0;
pub const EVTCHNOP_BIND_VIRQ: u32 = 1;
pub const EVTCHNOP_BIND_PIRQ: u32 = 2;
pub const EVTCHNOP_CLOSE: u32 = 3;
pub const EVTCHNOP_SEND: u32 = 4;
pub const EVTCHNOP_STATUS: u32 = 5;
pub const EVTCHNOP_ALLOC_UNBOUND: u32 = 6;
pub const EVTCHNOP_BIND_IPI: u32 = 7;
pub const EVTCHNOP_BIND_VCPU: u32 = 8;
pub const EVTCHNOP_UNMASK: u32 = 9;
pub const EVTCHNOP_RESET: u32 = 10;
pub const EVTCHNOP_INIT_CONTROL: u32 = 11;
pub const EVTCHNOP_EXPAND_ARRAY: u32 = 12;
pub const EVTCHNOP_SET_PRIORITY: u32 = 13;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnBindInterdomain {
    pub remote_dom: u16,
    pub pad: u16,
    pub remote_port: Port,
    /// Out.
    pub local_port: Port,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnBindVirq {
    pub virq: u32,
    pub vcpu: u32,
    /// Out.
    pub port: Port,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnBindPirq {
    pub pirq: u32,
    pub flags: u32,
    /// Out.
    pub port: Port,
}
/// `EvtchnBindPirq::flags`: the caller agrees to share the interrupt line.
pub const BIND_PIRQ_WILL_SHARE: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnBindIpi {
    pub vcpu: u32,
    /// Out.
    pub port: Port,
}

/// `close`, `send` and `unmask` all take one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnPort {
    pub port: Port,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnStatus {
    pub dom: u16,
    pub pad0: u16,
    pub port: Port,
    /// Out: `EVTCHNSTAT_*`.
    pub status: u32,
    /// Out: the vCPU that is notified.
    pub vcpu: u32,
    /// Out. Unbound: remote domain (`u16`). Interdomain: remote domain (`u16`). Pirq, virq: the number.
    pub u0: u32,
    /// Out. Interdomain: the remote port.
    pub u1: u32,
}
pub const EVTCHNSTAT_CLOSED: u32 = 0;
pub const EVTCHNSTAT_UNBOUND: u32 = 1;
pub const EVTCHNSTAT_INTERDOMAIN: u32 = 2;
pub const EVTCHNSTAT_PIRQ: u32 = 3;
pub const EVTCHNSTAT_VIRQ: u32 = 4;
pub const EVTCHNSTAT_IPI: u32 = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnAllocUnbound {
    pub dom: u16,
    pub remote_dom: u16,
    /// Out.
    pub port: Port,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnBindVcpu {
    pub port: Port,
    pub vcpu: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnReset {
    pub dom: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnInitControl {
    pub control_gfn: u64,
    pub offset: u32,
    pub vcpu: u32,
    /// Out: [`FIFO_LINK_BITS`].
    pub link_bits: u8,
    pub pad: [u8; 7],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnExpandArray {
    pub array_gfn: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EvtchnSetPriority {
    pub port: Port,
    pub priority: u32,
}

/// Ports of the 2-level layout: 64 words of 64 bits.
pub const NR_PORTS_2LEVEL: u32 = 4096;
/// Ports of the FIFO layout.
pub const NR_PORTS_FIFO: u32 = 1 << 17;

/// FIFO event word: an event is pending.
pub const FIFO_PENDING: u32 = 1 << 31;
/// FIFO event word: the guest does not want to be told.
pub const FIFO_MASKED: u32 = 1 << 30;
/// FIFO event word: it is on a queue.
pub const FIFO_LINKED: u32 = 1 << 29;
/// FIFO event word: the hypervisor is about to set the link; the guest does not unmask meanwhile.
pub const FIFO_BUSY: u32 = 1 << 28;
/// FIFO event word: width of the link field.
pub const FIFO_LINK_BITS: u32 = 17;
/// FIFO event word: the port that follows on the queue, 0 at the end.
pub const FIFO_LINK_MASK: u32 = (1 << FIFO_LINK_BITS) - 1;
/// Queues per vCPU; 0 is served first.
pub const FIFO_MAX_QUEUES: u32 = 16;
pub const FIFO_PRIORITY_MAX: u32 = 0;
pub const FIFO_PRIORITY_DEFAULT: u32 = 7;
pub const FIFO_PRIORITY_MIN: u32 = 15;
/// Event words in one page of the event array.
pub const FIFO_WORDS_PER_PAGE: u32 = 1024;
/// Pages of a full event array.
pub const FIFO_MAX_PAGES: u32 = NR_PORTS_FIFO / FIFO_WORDS_PER_PAGE;

/// Byte offsets inside a vCPU's FIFO control block.
pub mod fifo_control {
    /// `u32`, one bit a queue.
    pub const READY: usize = 0;
    /// `u32[16]`: the first port of each queue.
    pub const HEAD: usize = 8;
    /// Bytes in use.
    pub const SIZE: usize = 72;
}

pub const VIRQ_TIMER: u32 = 0;
pub const VIRQ_DEBUG: u32 = 1;
pub const VIRQ_CONSOLE: u32 = 2;
pub const VIRQ_DOM_EXC: u32 = 3;
pub const VIRQ_TBUF: u32 = 4;
pub const VIRQ_DEBUGGER: u32 = 6;
pub const VIRQ_XENOPROF: u32 = 7;
pub const VIRQ_CON_RING: u32 = 8;
pub const VIRQ_PCPU_STATE: u32 = 9;
pub const VIRQ_MEM_EVENT: u32 = 10;
pub const VIRQ_ARGO: u32 = 11;
pub const VIRQ_ENOMEM: u32 = 12;
pub const VIRQ_XENPMU: u32 = 13;
pub const VIRQ_ARCH_0: u32 = 16;
/// Machine checks (`VIRQ_ARCH_0` on x86).
pub const VIRQ_MCA: u32 = VIRQ_ARCH_0;
pub const VIRQ_ARCH_7: u32 = 23;
/// Tandem's: a domain that is watched has ended, one of its vCPUs is wedged, or a device of its was stopped
/// (`CHANNELOP_WATCH`).
pub const VIRQ_SUPERVISOR: u32 = VIRQ_ARCH_7;
/// Numbers from here on are invalid.
pub const NR_VIRQS: u32 = 24;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<EvtchnBindInterdomain>() == 12);
    assert!(offset_of!(EvtchnBindInterdomain, remote_port) == 4);
    assert!(size_of::<EvtchnBindVirq>() == 12);
    assert!(size_of::<EvtchnBindPirq>() == 12);
    assert!(size_of::<EvtchnBindIpi>() == 8);
    assert!(size_of::<EvtchnPort>() == 4);
    assert!(size_of::<EvtchnStatus>() == 24);
    assert!(offset_of!(EvtchnStatus, status) == 8);
    assert!(offset_of!(EvtchnStatus, u0) == 16);
    assert!(size_of::<EvtchnAllocUnbound>() == 8);
    assert!(size_of::<EvtchnBindVcpu>() == 8);
    assert!(size_of::<EvtchnReset>() == 2);
    assert!(size_of::<EvtchnInitControl>() == 24);
    assert!(offset_of!(EvtchnInitControl, link_bits) == 16);
    assert!(size_of::<EvtchnExpandArray>() == 8);
    assert!(size_of::<EvtchnSetPriority>() == 8);
    assert!(fifo_control::SIZE == fifo_control::HEAD + 4 * FIFO_MAX_QUEUES as usize);
};
