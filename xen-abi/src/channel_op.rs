//! `channel_op`, hypercall 56: the hypervisor's own switches, guests' network interfaces that are plugged into them,
//! guests' disks, and snapshots of domains.
//!
//! Xen has nothing like it: what is in this file is Tandem's. It is for the daemon in the control domain that plays the
//! back end's part in xenstore: it reads what a front end has written there and says it here. `channel_op(cmd, arg)`:
//! `cmd` in rdi, the address of the command's structure in rsi. All fields are little-endian, there is no padding, and
//! fields that are neither in nor out must be zero. Switches, interfaces and disks have names that are not used again
//! for a long time after they are gone.

/// The number of the hypercall.
pub const HYPERVISOR_CHANNEL_OP: u64 = 56;

/// Makes a switch without ports: [`ChannelSwitch`]. ENOSPC, ENOMEM.
pub const CHANNELOP_SWITCH_CREATE: u32 = 0;
/// Forgets a switch: [`ChannelSwitch`]. ENOENT; EBUSY while an interface is plugged into it.
pub const CHANNELOP_SWITCH_DESTROY: u32 = 1;
/// Takes up a front end's rings and plugs it into a switch: [`ChannelConnect`]. ENOENT: no such switch. ESRCH: no such
/// domain.
/// EBUSY: this device of the guest is connected, or one of its ports is, or the switch has a way out. EINVAL: a domain
/// that dies, an address of a group, unknown flags, no queue or more than [`VIF_MAX_QUEUES`], several of a way out or
/// with a limit, a grant that does not hold, a ring whose indices cannot be, a port that does not wait for the back
/// end. ENOSPC, ENOMEM.
pub const CHANNELOP_VIF_CONNECT: u32 = 2;
/// Lets an interface go, with what waits in it: [`ChannelVif`]. ENOENT.
pub const CHANNELOP_VIF_DISCONNECT: u32 = 3;
/// What an interface is and what it has done: [`ChannelStatus`]. ENOENT.
pub const CHANNELOP_VIF_STATUS: u32 = 4;
/// The same of the first interface from place `next` on: for a list of all. ENOENT: there is none.
pub const CHANNELOP_VIF_NEXT: u32 = 5;

/// What a switch's way out is and has done: [`ChannelWayOut`]. ENOENT: no such switch.
pub const CHANNELOP_WAY_OUT: u32 = 6;

/// Whether a vCPU takes its events: [`ChannelBeat`]. For who looks after driver domains. ESRCH: no such domain. ENOENT:
/// no such vCPU.
pub const CHANNELOP_BEAT: u32 = 7;

/// Takes up the ring of a guest's disk: [`ChannelDiskConnect`]. Nothing is taken out of it before a back end is
/// attached. ESRCH: no such domain. EBUSY: this device of the guest is connected, or its port is. EINVAL: a domain that
/// dies, unknown flags, a grant that does not hold, a ring whose indices cannot be, a port that does not wait for the
/// back end. ENOSPC, ENOMEM.
pub const CHANNELOP_DISK_CONNECT: u32 = 8;
/// Lets a disk go: [`ChannelDisk`]. What its guest has asked for, and nobody has answered, is answered with errors
/// before. ENOENT.
pub const CHANNELOP_DISK_DISCONNECT: u32 = 9;
/// Gives a disk a back end, which does what the one before has not answered: [`ChannelDiskAttach`]. ENOENT: no such
/// disk. ESRCH: no such domain. EBUSY: it has one; or ring or pages are not granted to this one, for writing, or are in
/// use by another. EINVAL: a domain that dies; too few pages or too many; while something waits, not as many as before,
/// or some of the same in other places; a port that is not connected with one of the back end's. EAGAIN: the guest has
/// stopped ([`DISK_GUEST_STOPPED`]). ENOMEM.
pub const CHANNELOP_DISK_ATTACH: u32 = 10;
/// Takes a disk's back end away. The guest waits; or, with [`DISK_GIVE_UP`], it is answered with errors until a back
/// end is attached, or until this is said once more, without: [`ChannelDisk`]. ENOENT: no such disk, or, without the
/// flag, it has none and has not given up.
pub const CHANNELOP_DISK_DETACH: u32 = 11;
/// What a disk is and what it has done: [`ChannelDiskStatus`]. ENOENT.
pub const CHANNELOP_DISK_STATUS: u32 = 12;
/// The same of the first disk from place `next` on: for a list of all. ENOENT: there is none.
pub const CHANNELOP_DISK_NEXT: u32 = 13;
/// Closes a port of a domain that does not run, and that is to be no disk's any more: [`ChannelDiskPort`]. ESRCH: no
/// such domain. EINVAL: no such port. EBUSY: it is the hypervisor's.
pub const CHANNELOP_DISK_CLOSE_PORT: u32 = 14;

/// Has VIRQ_SUPERVISOR raised when a domain ends, or one of its vCPUs is wedged, also of those that it gets later, or
/// it has lost its devices ([`BEAT_BEREFT`]), and when it is paused then, or, if that is asked for, when an IOMMU stops
/// an access of a device of its: [`ChannelWatch`]. Whoever hears it asks [`CHANNELOP_BEAT`] what it was. ESRCH: no such
/// domain.
/// EINVAL: bad flags.
pub const CHANNELOP_WATCH: u32 = 15;

/// Says how long packets for outside wait when a switch's way out has gone, until there is one again: [`ChannelHold`].
/// They keep their places in their senders' rings. Holds for those that wait already, too. ENOENT: no such switch.
/// EINVAL: too long. ENOMEM: it stays as it was for those.
pub const CHANNELOP_SWITCH_HOLD: u32 = 16;
/// Drains a switch's way out, which is about to go: for so long, or until there is another one, packets for outside
/// wait as if it had gone, while it sends what it has taken, and what comes by it goes its way. Argument:
/// [`ChannelDrain`]. ENOENT: no such switch. ENODEV: it has no way out. EINVAL: too long. ENOMEM: nothing has changed.
pub const CHANNELOP_SWITCH_DRAIN: u32 = 21;

/// Notes what a paused domain is, so that it can be rolled back to that: [`ChannelSnapshot`]. ESRCH: no such domain.
/// EINVAL: the control domain, or one that is not paused, has shut down or dies; an unknown flag. EEXIST: it has a
/// snapshot. EBUSY: it is in no state for one: [`ChannelSnapshot::why`].
/// ENOMEM: [`ChannelSnapshot::missing`] frames more may be needed. After an error it has no snapshot.
pub const CHANNELOP_SNAPSHOT_TAKE: u32 = 17;
/// Makes a paused domain, which may have shut down or crashed, what it was when its snapshot was taken:
/// [`ChannelSnapshot`]. It is still paused, and not shut down. The snapshot stays. ESRCH: no such domain. ENOENT: it
/// has no snapshot. EINVAL: it is not paused, or dies. EBUSY: it cannot go back, and nothing has changed:
/// [`ChannelSnapshot::why`]. ENOMEM: nothing has changed. EIO: it was on its way, and cannot go on: it is fit for
/// nothing but to be destroyed.
pub const CHANNELOP_SNAPSHOT_ROLL_BACK: u32 = 18;
/// Forgets a domain's snapshot: [`ChannelSnapshot`]. ESRCH, ENOENT. EBUSY: it is being taken, or the domain is on its
/// way back, or could not get there.
pub const CHANNELOP_SNAPSHOT_DROP: u32 = 19;
/// Whether a domain has a snapshot, and what it takes: [`ChannelSnapshot`]. ESRCH.
pub const CHANNELOP_SNAPSHOT_STATUS: u32 = 20;

/// Keeps the link of a network interface, whose domain has stopped, for the next domain that gets it: while that
/// domain's driver begins, what would have the PHY reset, switched off, or negotiate anew does not reach it, until the
/// driver receives: [`ChannelKeepLink`]. It is forgotten when the hardware domain gets the interface. ESRCH: no such
/// domain. ENODEV: it does not have the function. EBUSY: it has not stopped. EOPNOTSUPP: it is not known how, for this
/// function. ENOTCONN: the link is down. EINVAL: bad padding.
/// ENOMEM: it is not kept.
pub const CHANNELOP_KEEP_LINK: u32 = 22;
/// Forgets all twins of a paused domain, as if it had unloaded them: [`ChannelTwins`]. What they had in their hands
/// goes back, and cards are its drivers' again. One that has none is no error. ESRCH: no such domain. EINVAL: it is not
/// paused, or dies; bad padding.
pub const CHANNELOP_FORGET_TWINS: u32 = 23;
/// Answers a domain's PCI front end from now on, in the place of the back end that it is connected with, until the
/// domain gets or loses a function:
/// [`ChannelPci`]. The back end hears nothing of what is asked meanwhile. Said once more it counts anew. ESRCH: no such
/// domain. EINVAL: it dies; too many functions, two in one place, bad padding; a port that is not connected; a grant
/// that does not hold for the domain at its other end. EPERM: a function is not the domain's. ENOSPC: too many domains
/// are answered. ENOMEM.
pub const CHANNELOP_PCI_SERVE: u32 = 24;
/// Sends the event of a paused domain's port in its name: [`ChannelNotify`]. So who stands in for it, with the pages
/// that it shares with others, is heard. ESRCH: no such domain. EINVAL: it is the caller, is not paused, or dies; the
/// port leads nowhere, or to the hypervisor; bad padding.
pub const CHANNELOP_NOTIFY: u32 = 25;

/// In [`ChannelConnect::flags`]: the guest takes packets of more than one page.
pub const CONNECT_SG: u32 = 1 << 0;
/// The guest takes TCP over IPv4 that is to be cut into segments.
pub const CONNECT_GSO_TCPV4: u32 = 1 << 1;
/// The guest takes TCP over IPv6 that is to be cut into segments.
pub const CONNECT_GSO_TCPV6: u32 = 1 << 2;
/// The guest takes packets over IPv4 without their checksum.
pub const CONNECT_CSUM_IPV4: u32 = 1 << 3;
/// The guest takes packets over IPv6 without their checksum.
pub const CONNECT_CSUM_IPV6: u32 = 1 << 4;
/// The guest may send with any source address.
pub const CONNECT_ANY_SOURCE: u32 = 1 << 5;
/// The guest is a driver domain, and its interface the switch's way out: what is for nobody else goes to it, and it may
/// send with any source address. While a twin of the guest's has a card on this switch, the card is the way out
/// instead, and the interface is the port of the driver domain's own network stack. EBUSY if the switch has a way out
/// already.
pub const CONNECT_UPLINK: u32 = 1 << 6;
/// With [`CONNECT_UPLINK`]: a card that is the way out in the interface's place is left neither sums nor segments, and
/// what it says of the sums of what it receives is not believed. EINVAL without that.
pub const CONNECT_NO_OFFLOAD: u32 = 1 << 7;
/// All flags of a connection.
pub const CONNECT_FLAGS: u32 = (1 << 8) - 1;

/// Argument of [`CHANNELOP_SWITCH_CREATE`] and [`CHANNELOP_SWITCH_DESTROY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSwitch {
    /// Its name. Out when it is created.
    pub switch: u32,
    /// Must be zero.
    pub flags: u32,
}

/// Argument of [`CHANNELOP_SWITCH_HOLD`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelHold {
    /// In: its name.
    pub switch: u32,
    /// In: how long packets wait, in ms, at most [`HOLD_MAX_MS`]; 0, as at first: not at all.
    pub hold_ms: u32,
}

/// Argument of [`CHANNELOP_SWITCH_DRAIN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelDrain {
    /// In: the switch's name.
    pub switch: u32,
    /// In: for how long, in ms, at most [`DRAIN_MAX_MS`]; 0: it is drained no more.
    pub drain_ms: u32,
}

/// The longest time that a way out may be drained, in ms.
pub const DRAIN_MAX_MS: u32 = 10_000;

/// The longest time that packets may wait for a way out, in ms.
pub const HOLD_MAX_MS: u32 = 600_000;

/// Argument of [`CHANNELOP_VIF_DISCONNECT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelVif {
    /// Which interface.
    pub vif: u32,
    /// Must be zero.
    pub flags: u32,
}

/// Queues that an interface has at most.
pub const VIF_MAX_QUEUES: u32 = 8;

/// Rings and ports of one of an interface's queues.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelQueue {
    /// Grant of the transmit ring.
    pub tx_ring: u32,
    /// Grant of the receive ring.
    pub rx_ring: u32,
    /// The guest's port for transmit events.
    pub tx_port: u32,
    /// The guest's port for receive events; the same if it does not split them.
    pub rx_port: u32,
}

/// Argument of [`CHANNELOP_VIF_CONNECT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelConnect {
    /// In: the guest.
    pub guest: u16,
    /// In: the domain that the guest has granted to, and whose end of the ports the hypervisor takes.
    pub backend: u16,
    /// In: which of the guest's devices it is.
    pub device: u32,
    /// In: the switch.
    pub switch: u32,
    /// In: `CONNECT_*`.
    pub flags: u32,
    /// In: how many queues it has. More than one only without [`CONNECT_UPLINK`], and without a limit.
    pub nr_queues: u32,
    /// In: length of an interval in us; 0 if there is no limit, and only then.
    pub rate_interval_us: u32,
    /// In: its queues; those behind `nr_queues` are not looked at.
    pub queues: [ChannelQueue; VIF_MAX_QUEUES as usize],
    /// In: its address; not a group's.
    pub mac: [u8; 6],
    /// In: its weight among those who send by one way out; 0: [`WEIGHT`].
    pub weight: u16,
    /// In: bytes that the guest may send in each interval; 0: as many as it can.
    pub rate_bytes: u64,
    /// Out: its name.
    pub vif: u32,
    /// Must be zero.
    pub pad: u32,
}

/// The transmit ring has ended: its guest has written to it what cannot be.
pub const STATE_TX_ENDED: u32 = 1 << 0;
/// The receive ring has ended.
pub const STATE_RX_ENDED: u32 = 1 << 1;
/// The guest has not taken anything for so long that nothing waits for it any more.
pub const STATE_STALLED: u32 = 1 << 2;

/// Argument of [`CHANNELOP_VIF_STATUS`] and [`CHANNELOP_VIF_NEXT`]. Directions are the guest's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStatus {
    /// In for STATUS, out for NEXT: which interface.
    pub vif: u32,
    /// In for NEXT: the first place that is looked at; out: the place behind the one that was found.
    pub next: u32,
    /// Out: as at the connection.
    pub guest: u16,
    /// Out: as at the connection.
    pub backend: u16,
    /// Out: as at the connection.
    pub device: u32,
    /// Out: as at the connection.
    pub switch: u32,
    /// Out: `CONNECT_*`.
    pub flags: u32,
    /// Out: as at the connection.
    pub mac: [u8; 6],
    /// Out: packets that wait to be answered.
    pub tx_waiting: u16,
    /// Out: `STATE_*`, of any of its queues.
    pub state: u32,
    /// Out: as at the connection.
    pub nr_queues: u32,
    /// Out: packets that the guest has sent.
    pub tx_packets: u64,
    /// Out: their bytes.
    pub tx_bytes: u64,
    /// Out: packets that were answered with an error.
    pub tx_errors: u64,
    /// Out: packets that could not be sent.
    pub tx_dropped: u64,
    /// Out: packets that the switch has not passed on: to nobody, or from an address that is not the guest's.
    pub tx_refused: u64,
    /// Out: packets that the guest has received.
    pub rx_packets: u64,
    /// Out: their bytes.
    pub rx_bytes: u64,
    /// Out: packets that were lost because one of the guest's grants did not hold.
    pub rx_errors: u64,
    /// Out: packets that were lost because the guest had no room for them, or does not take such ones.
    pub rx_dropped: u64,
}

/// In [`ChannelWayOut::kind`]: there is none.
pub const WAY_OUT_NONE: u32 = 0;
/// In [`ChannelWayOut::kind`]: a driver domain's interface.
pub const WAY_OUT_INTERFACE: u32 = 1;
/// In [`ChannelWayOut::kind`]: a network card that a twin drives.
pub const WAY_OUT_CARD: u32 = 2;

/// Argument of [`CHANNELOP_WAY_OUT`]. Counts are those since this way out was there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelWayOut {
    /// In: the switch.
    pub switch: u32,
    /// Out: `WAY_OUT_*`.
    pub kind: u32,
    /// Out: the interface that is the way out, or that belongs to the card.
    pub vif: u32,
    /// Out: whose it is.
    pub domain: u16,
    /// Out: packets that wait for it.
    pub waiting: u16,
    /// Out: [`STATE_STALLED`], if it has taken nothing for so long that nothing waits for it any more.
    pub state: u32,
    /// Out: 0.
    pub pad: u32,
    /// Out: packets that went out.
    pub out_packets: u64,
    /// Out: their bytes.
    pub out_bytes: u64,
    /// Out: packets for the outside that were lost.
    pub out_dropped: u64,
    /// Out: packets that came in.
    pub in_packets: u64,
    /// Out: their bytes.
    pub in_bytes: u64,
    /// Out: packets from outside that the switch has not passed on.
    pub in_dropped: u64,
}

/// In [`ChannelBeat::flags`]: an event waits to be taken.
pub const BEAT_PENDING: u32 = 1 << 0;
/// In [`ChannelBeat::flags`]: the vCPU takes no events now.
pub const BEAT_MASKED: u32 = 1 << 1;
/// In [`ChannelBeat::flags`]: the hypervisor has ended the domain, because of what one of its vCPUs did.
pub const BEAT_CRASHED: u32 = 1 << 2;
/// In [`ChannelBeat::flags`]: the vCPU has run for as long as [`ChannelWatch`] allows, and taken no event though one
/// waits.
pub const BEAT_WEDGED: u32 = 1 << 3;
/// In [`ChannelBeat::flags`]: an IOMMU keeps the domain's devices from others' memory.
pub const BEAT_CONFINED: u32 = 1 << 4;
/// In [`ChannelBeat::flags`]: an IOMMU has stopped an access of a device of the domain's since that was to count.
pub const BEAT_DMA_FAULT: u32 = 1 << 5;
/// In [`ChannelBeat::flags`]: a device was taken from the domain that the hypervisor has not reset by its own
/// registers, as it does not know how, or as the device did not come back. Forgotten when a domain without devices gets
/// one.
pub const BEAT_LEFT_UNRESET: u32 = 1 << 6;
/// In [`ChannelBeat::flags`]: the domain had devices, and has none any more.
pub const BEAT_BEREFT: u32 = 1 << 7;

/// In [`ChannelWatch::flags`]: a device of the domain's whose access to memory an IOMMU stops ends its service. What
/// the domain says from then on to guests, or answers their disks, is not taken from it, until it is rolled back.
/// Without it, none counts from now on.
pub const WATCH_DMA_FAULTS: u16 = 1 << 0;
/// In [`ChannelWatch::flags`], in the place of [`WATCH_DMA_FAULTS`]: the same from when the domain serves a guest's
/// disk, if it does not now.
pub const WATCH_DMA_FAULTS_IN_USE: u16 = 1 << 1;

/// Argument of [`CHANNELOP_WATCH`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelWatch {
    /// In: which domain.
    pub domain: u16,
    /// In: `WATCH_*`.
    pub flags: u16,
    /// In: a vCPU of its that has run for so many ms while an event waited is wedged; 0: none ever is.
    pub wedged_ms: u32,
}

/// Argument of [`CHANNELOP_KEEP_LINK`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelKeepLink {
    /// In: which domain.
    pub domain: u16,
    /// Must be zero.
    pub pad: u16,
    /// In: the function, as `machine_sbdf` has it.
    pub function: u32,
}

/// Functions of one [`ChannelPci`].
pub const PCI_MAX_FUNCTIONS: usize = 8;

/// Argument of [`CHANNELOP_PCI_SERVE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelPci {
    /// In: which domain.
    pub domain: u16,
    /// In: functions, up to [`PCI_MAX_FUNCTIONS`].
    pub nr_functions: u16,
    /// In: the grant of its ring, to the back end's domain.
    pub ring: u32,
    /// In: its port.
    pub port: u32,
    /// Must be zero.
    pub pad: u32,
    /// In: the functions.
    pub functions: [ChannelPciFunction; PCI_MAX_FUNCTIONS],
}

/// A function of a [`ChannelPci`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelPciFunction {
    /// In: which, as `machine_sbdf` has it.
    pub function: u32,
    /// In: the device and function that the domain knows it by, on bus 0 of segment 0.
    pub devfn: u8,
    /// In: the interrupt of its wire; 0: it has none.
    pub wire: u8,
    /// Must be zero.
    pub pad: [u8; 2],
}

/// Argument of [`CHANNELOP_NOTIFY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelNotify {
    /// In: whose.
    pub domain: u16,
    /// Must be zero.
    pub pad: u16,
    /// In: its own.
    pub port: u32,
}

/// Argument of [`CHANNELOP_FORGET_TWINS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelTwins {
    /// In: whose.
    pub domain: u16,
    /// Must be zero.
    pub pad: [u16; 3],
}

/// Argument of [`CHANNELOP_BEAT`]. A kernel that lives takes an event a moment after it has come, if it runs. So one
/// that has run for long between two looks, with an event waiting at both and none taken, does not live.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelBeat {
    /// In: whose vCPU.
    pub domain: u16,
    /// Must be zero.
    pub pad: u16,
    /// In: which.
    pub vcpu: u32,
    /// Out: how often it has taken events; goes round.
    pub upcalls: u32,
    /// Out: `BEAT_*`.
    pub flags: u32,
    /// Out: how long it has run, in ns, up to the last sign of the CPU on which it is. Each call asks that CPU for a
    /// sign.
    pub run_ns: u64,
    /// Out: how long ago its domain has ended, in ns; 0 if it has not.
    pub ended_ns: u64,
    /// Out: how long ago the event came that a wedged vCPU does not take, in ns, as far as that was seen.
    pub wedged_ns: u64,
    /// Out: how long it would have run if others had not, in ns.
    pub waited_ns: u64,
    /// Out: how long ago the first access of [`BEAT_DMA_FAULT`] was, in ns.
    pub dma_fault_ns: u64,
}

/// In [`ChannelDiskConnect::flags`]: the guest may write.
pub const DISK_WRITE: u32 = 1 << 0;
/// The guest was offered flushes (`feature-flush-cache`).
pub const DISK_FLUSH: u32 = 1 << 1;
/// The guest was offered barriers (`feature-barrier`).
pub const DISK_BARRIER: u32 = 1 << 2;
/// The guest was offered discards (`feature-discard`).
pub const DISK_DISCARD: u32 = 1 << 3;
/// All flags of a disk.
pub const DISK_FLAGS: u32 = (1 << 4) - 1;

/// Argument of [`CHANNELOP_DISK_DISCONNECT`] and [`CHANNELOP_DISK_DETACH`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelDisk {
    /// Which disk.
    pub disk: u32,
    /// For DETACH: 0 or [`DISK_GIVE_UP`]; else must be zero.
    pub flags: u32,
}

/// In [`ChannelDisk::flags`]: all that waits, and all that comes, is answered with errors.
pub const DISK_GIVE_UP: u32 = 1 << 0;

/// Argument of [`CHANNELOP_DISK_CLOSE_PORT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelDiskPort {
    /// Whose it is.
    pub domain: u16,
    /// Must be zero.
    pub pad: u16,
    /// Which.
    pub port: u32,
}

/// The weight of devices of which nothing else is said.
pub const WEIGHT: u16 = 256;

/// Argument of [`CHANNELOP_DISK_CONNECT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelDiskConnect {
    /// In: the guest.
    pub guest: u16,
    /// In: the domain that the guest has granted to, and whose end of the port the hypervisor takes.
    pub backend: u16,
    /// In: which of the guest's devices it is.
    pub device: u32,
    /// In: grant of the ring, of one page and for 64-bit guests.
    pub ring: u32,
    /// In: the guest's port.
    pub port: u32,
    /// In: `DISK_*`: what the guest was told that it may ask for.
    pub flags: u32,
    /// In: must be zero. Out: its name.
    pub disk: u32,
    /// In: its weight among the disks that its back end's domain serves; 0: [`WEIGHT`].
    pub weight: u16,
    /// Must be zero.
    pub pad: u16,
}

/// Argument of [`CHANNELOP_DISK_ATTACH`]. Ring and pages are the guest's back end's domain's, which has granted them to
/// this one for writing and does nothing with them itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelDiskAttach {
    /// In: which disk.
    pub disk: u32,
    /// In: the domain that has the medium, and a stock back end.
    pub back: u16,
    /// In: segments of an indirect request that this takes at most, as it says in `feature-max-indirect-segments`; 0:
    /// it takes no such requests. There are no more than 32 in one.
    pub max_segments: u16,
    /// In: grant of the ring's page.
    pub ring: u32,
    /// In: a port of the guest's back end's domain that is connected with one of this one's. It is closed: the
    /// hypervisor takes its place.
    pub port: u32,
    /// In: the first of the grants of pages that bytes go through; the others follow.
    pub first_page: u32,
    /// In: their number, 32 to 1024.
    pub nr_pages: u32,
}

/// In [`ChannelDiskStatus::state`]: the ring has ended: its guest has written to it what cannot be.
pub const DISK_ENDED: u32 = 1 << 0;
/// In [`ChannelDiskStatus::state`]: the back end has written to its ring what cannot be, and is used no longer.
pub const DISK_BACK_ENDED: u32 = 1 << 1;
/// In [`ChannelDiskStatus::state`]: there is no back end, and requests are answered with errors.
pub const DISK_GIVEN_UP: u32 = 1 << 2;
/// Its back end has said of a read that it is done, which has brought nothing: it is looked at no more.
pub const DISK_BACK_EMPTY: u32 = 1 << 3;
/// The same: it has answered a request with an error, of which the guest is told in five seconds if it is the back end
/// still.
pub const DISK_BACK_DOUBTED: u32 = 1 << 4;
/// The same: its guest is suspended, or has shut down or crashed. It gets no back end before it goes on.
pub const DISK_GUEST_STOPPED: u32 = 1 << 5;
/// In [`ChannelDiskStatus::back`]: there is none.
pub const DISK_NO_BACK: u16 = 0xffff;

/// Argument of [`CHANNELOP_DISK_STATUS`] and [`CHANNELOP_DISK_NEXT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelDiskStatus {
    /// In for STATUS, out for NEXT: which disk.
    pub disk: u32,
    /// In for NEXT: the first place that is looked at; out: the place behind the one that was found.
    pub next: u32,
    /// Out: as at the connection.
    pub guest: u16,
    /// Out: as at the connection.
    pub backend: u16,
    /// Out: as at the connection.
    pub device: u32,
    /// Out: `DISK_*`.
    pub flags: u32,
    /// Out: the domain of the back end, or [`DISK_NO_BACK`].
    pub back: u16,
    /// Out: requests that were taken and are not answered.
    pub waiting: u16,
    /// Out: `DISK_ENDED`, `DISK_BACK_ENDED`, `DISK_GIVEN_UP`, `DISK_BACK_EMPTY`,
    /// `DISK_BACK_DOUBTED`, `DISK_GUEST_STOPPED`.
    pub state: u32,
    /// Out: back ends that have written to their ring what cannot be.
    pub bad_rings: u32,
    /// Out: reads that were answered without an error; and so on.
    pub reads: u64,
    /// Out.
    pub writes: u64,
    /// Out: flushes and barriers.
    pub flushes: u64,
    /// Out.
    pub discards: u64,
    /// Out: sectors of 512 bytes.
    pub read_sectors: u64,
    /// Out: sectors of 512 bytes.
    pub written_sectors: u64,
    /// Out: requests that were answered with an error, whoever's it was.
    pub errors: u64,
    /// Out: requests that were passed on once more, to another back end.
    pub repeated: u64,
    /// Out: answers of back ends that nobody had waited for.
    pub bad_answers: u64,
    /// Out: what back ends were asked for: neighbours go together, and long requests in several.
    pub passed_on: u64,
    /// Out: requests that went together with one before them on the medium.
    pub merged: u64,
    /// Out: back ends that have said of a read that it is done, which has brought nothing.
    pub empty_reads: u64,
    /// Out: for how long the oldest request has waited that is not answered, since this back end is there, in ns; 0:
    /// there is none. It need not have been passed on.
    pub oldest_ns: u64,
    /// Out: what back ends have answered of what they were asked for.
    pub answered: u64,
    /// Out: for how long a request has looked lost, as far as calls before have seen that, in ns; 0: none does. It was
    /// passed on, and others that were passed on after it are answered; or none of the disk's is.
    pub overdue_ns: u64,
}

/// In [`ChannelSnapshot::state`]: there is none.
pub const SNAPSHOT_NONE: u32 = 0;
/// It is being taken.
pub const SNAPSHOT_TAKING: u32 = 1;
/// The domain can be rolled back, if nothing is in the way then.
pub const SNAPSHOT_READY: u32 = 2;
/// The domain is on its way back.
pub const SNAPSHOT_ROLLING_BACK: u32 = 3;
/// It could not go on, on its way back: it runs no more.
pub const SNAPSHOT_BROKEN: u32 = 4;

/// In [`ChannelSnapshot::why`]: an operation on its page tables is half done, or registers that were taken from it are
/// in them. Let it run and try again.
pub const SNAPSHOT_UNSETTLED: u32 = 1;
/// Its page tables map a frame ([`ChannelSnapshot::what`]) that is not its own.
pub const SNAPSHOT_FOREIGN: u32 = 2;
/// It uses grants of others'.
pub const SNAPSHOT_MAPS: u32 = 3;
/// The hypervisor is at the other end of a port, as for a switch or a disk.
pub const SNAPSHOT_CHANNEL: u32 = 4;
/// It has a twin.
pub const SNAPSHOT_TWIN: u32 = 5;
/// Its writes are being logged.
pub const SNAPSHOT_LOGGED: u32 = 6;
/// A frame of its is another's.
pub const SNAPSHOT_FRAMES: u32 = 7;
/// A frame is to be a page table or to hold descriptors, and others may write to it.
pub const SNAPSHOT_HELD: u32 = 8;
/// A port led to another domain, and does not lead there any more.
pub const SNAPSHOT_PORT: u32 = 9;
/// Others use a grant that they did not use then, or otherwise.
pub const SNAPSHOT_GRANT: u32 = 10;
/// It has other vCPUs than then.
pub const SNAPSHOT_VCPUS: u32 = 11;
/// A physical interrupt was taken from it, or is another.
pub const SNAPSHOT_PIRQ: u32 = 12;
/// A device came to it or has left it, or does not come back from its reset: segment (16 bits), bus (8), device and
/// function (8).
pub const SNAPSHOT_DEVICE: u32 = 13;

/// The copy of a frame cannot be unpacked: the hypervisor's memory is damaged. Only after EIO.
pub const SNAPSHOT_COPY: u32 = 14;

/// In [`ChannelSnapshot::flags`], to TAKE: copies are compressed, if they shrink to three quarters or less, and several
/// of them are kept in a frame.
pub const SNAPSHOT_COMPRESS: u16 = 1 << 0;

/// Argument of [`CHANNELOP_SNAPSHOT_TAKE`], [`CHANNELOP_SNAPSHOT_ROLL_BACK`], [`CHANNELOP_SNAPSHOT_DROP`] and
/// [`CHANNELOP_SNAPSHOT_STATUS`]. What is out is written after errors, too, but for ESRCH and EFAULT.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSnapshot {
    /// In: which domain.
    pub domain: u16,
    /// In: [`SNAPSHOT_COMPRESS`] or nothing to TAKE, zero to the others; else EINVAL.
    pub flags: u16,
    /// Out: `SNAPSHOT_NONE` to `SNAPSHOT_BROKEN`.
    pub state: u32,
    /// Out: why not (`SNAPSHOT_UNSETTLED` and so on); 0: it was done, or there was another error.
    pub why: u32,
    /// Out: how often the domain was rolled back.
    pub rolled_back: u32,
    /// Out: what `why` names: a frame, a port, a grant, a vCPU, an interrupt, a device.
    pub what: u64,
    /// Out: frames of the domain's that are noted.
    pub frames: u64,
    /// Out: frames of which there is a copy; those that were zero need none.
    pub copies: u64,
    /// Out, with ENOMEM from TAKE: frames that may be needed besides those that were free.
    pub missing: u64,
    /// Out: of the copies, those that were there already when these frames were noted, since another frame held the
    /// same, of this domain or of another one that is noted. The others take a frame of the hypervisor's each, unless
    /// they are packed.
    pub found: u64,
    /// Out: of the copies that were not there already, those that are packed.
    pub packed: u64,
    /// Out: bytes that these take.
    pub packed_bytes: u64,
    /// Out: frames that hold packed copies, of all snapshots.
    pub packed_frames: u64,
}

const _: () = assert!(core::mem::size_of::<ChannelSnapshot>() == 80);
const _: () = assert!(core::mem::size_of::<ChannelDisk>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelDiskPort>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelDiskConnect>() == 28);
const _: () = assert!(core::mem::size_of::<ChannelDiskAttach>() == 24);
const _: () = assert!(core::mem::size_of::<ChannelDiskStatus>() == 152);
const _: () = assert!(core::mem::size_of::<ChannelBeat>() == 56);
const _: () = assert!(core::mem::size_of::<ChannelWatch>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelKeepLink>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelTwins>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelNotify>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelPci>() == 80);
const _: () = assert!(core::mem::size_of::<ChannelWayOut>() == 72);
const _: () = assert!(core::mem::size_of::<ChannelHold>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelDrain>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelSwitch>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelVif>() == 8);
const _: () = assert!(core::mem::size_of::<ChannelConnect>() == 176);
const _: () = assert!(core::mem::size_of::<ChannelStatus>() == 112);
