//! Snapshots of domains: what keeps one from being taken, and a domain from going back to it.
//!
//! The decisions are beside what they are about: [`crate::mmu::snapshot`] has memory and page tables, [`crate::evtchn`]
//! event channels, [`crate::grant`] grants. Each can first be asked whether it could go back, which changes nothing.

use xen_abi::channel_op as op;

/// Why a snapshot is not taken, or not gone back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An operation on page tables is half done, or they have registers that were taken from the domain; it can be
    /// tried again when the domain has run.
    Unsettled,
    /// A page table of the domain maps this frame, which is not its own, or which it may not map any more.
    Foreign(u64),
    /// It uses a grant of another's.
    Maps,
    /// The other end of this port is the hypervisor.
    Channel(u32),
    /// It has a twin.
    Twin,
    /// Its writes are being logged.
    Logged,
    /// This frame of its is another's.
    Frames(u64),
    /// This frame must be a page table or hold descriptors again, and others may write to it.
    Held(u64),
    /// This port no longer leads where it led.
    Port(u32),
    /// Others use this grant, and did not then, or not so.
    Grant(u32),
    /// It has other vCPUs, or one has another kind of state.
    Vcpus(u32),
    /// This interrupt was taken from it, or is another.
    Pirq(u32),
    /// This function came to it or has left it: segment, bus, device and function.
    Device(u32),
    /// The copy of this frame cannot be unpacked.
    Copy(u64),
}

impl Refusal {
    /// Its number for the control domain, and what it names.
    pub fn code(self) -> (u32, u64) {
        match self {
            Self::Unsettled => (op::SNAPSHOT_UNSETTLED, 0),
            Self::Foreign(mfn) => (op::SNAPSHOT_FOREIGN, mfn),
            Self::Maps => (op::SNAPSHOT_MAPS, 0),
            Self::Channel(port) => (op::SNAPSHOT_CHANNEL, port.into()),
            Self::Twin => (op::SNAPSHOT_TWIN, 0),
            Self::Logged => (op::SNAPSHOT_LOGGED, 0),
            Self::Frames(mfn) => (op::SNAPSHOT_FRAMES, mfn),
            Self::Held(mfn) => (op::SNAPSHOT_HELD, mfn),
            Self::Port(port) => (op::SNAPSHOT_PORT, port.into()),
            Self::Grant(gref) => (op::SNAPSHOT_GRANT, gref.into()),
            Self::Vcpus(id) => (op::SNAPSHOT_VCPUS, id.into()),
            Self::Pirq(pirq) => (op::SNAPSHOT_PIRQ, pirq.into()),
            Self::Device(at) => (op::SNAPSHOT_DEVICE, at.into()),
            Self::Copy(mfn) => (op::SNAPSHOT_COPY, mfn),
        }
    }
}

/// Why a step came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is to be called again.
    Preempted,
    /// There is no memory.
    NoMemory,
    /// It cannot be.
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}
