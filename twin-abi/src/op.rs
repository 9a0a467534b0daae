//! `twin_op`, hypercall 55: how a driver domain loads, runs and unloads its twins. Only data.
//!
//! `twin_op(cmd, arg)`: `cmd` in rdi, the address of the command's structure in rsi. All fields are little-endian and
//! there is no padding. A domain may only name its own twins.
//!
//! Each command that names a twin may answer ENOENT: the domain has none of this number; and, unless something else is
//! said, EBUSY: it is being loaded or unloaded.

/// The number of the hypercall (`__HYPERVISOR_arch_7`).
pub const HYPERVISOR_TWIN_OP: u64 = 55;

/// Checks an image and makes it ready to run: [`TwinLoad`]. May be executed again by itself until it is done. ENOSPC
/// for a domain that has [`MAX_TWINS_EACH`] twins, and if there are as many as there can be (32); ENOMEM if they would
/// take what the hypervisor keeps for itself.
pub const TWINOP_LOAD: u32 = 0;
/// Forgets a twin: [`TwinName`].
pub const TWINOP_UNLOAD: u32 = 1;
/// Runs a function of a twin: [`TwinCall`]. ESRCH: the image's table of addresses has no such function. EBUSY also if
/// the twin has a card, or if all its instances are in use. EIO: it is disabled.
pub const TWINOP_CALL: u32 = 2;
/// What became of a twin so far: [`TwinStatus`].
pub const TWINOP_STATUS: u32 = 3;
/// Goes on with an invocation that waits for a function of the domain: [`TwinCall`]. ENOENT also if none waits in this
/// instance. EBUSY: it waits for what the domain has not fetched ([`TWINOP_NEXT`]). EIO: the twin is disabled.
pub const TWINOP_RESUME: u32 = 4;
/// Lends buffers to a twin: [`TwinLend`]. E2BIG: more than [`MAX_LENT_AT_ONCE`].
pub const TWINOP_LEND: u32 = 5;
/// Fetches what the domain has to do for a twin: [`TwinNotes`]. E2BIG: more than [`MAX_NOTES_AT_ONCE`]. EFAULT: the
/// list cannot be written, and those are lost.
pub const TWINOP_NOTES: u32 = 6;
/// Gives a twin its network card: [`TwinAttach`]. From now on the hypervisor sends what the switch has for the outside
/// by the twin, serves the card's interrupts by it, and passes on what it receives. ENODEV: the interface is no
/// switch's way out. EBUSY also if the twin, or the switch, has a card, and while the twin runs or waits for the
/// domain. EIO: it is disabled. EMSGSIZE: see [`TwinAttach::max_frame`]. ENOMEM: nothing has changed.
pub const TWINOP_ATTACH: u32 = 7;
/// Takes the card away from its twin, with all that is on its way: [`TwinName`]. The domain's driver goes on alone.
pub const TWINOP_DETACH: u32 = 8;
/// Fetches an invocation that waits for a function of the domain and that nobody has fetched: [`TwinCall`], of which
/// `twin` is in. ENOENT if there is none. The domain goes on with it by [`TWINOP_RESUME`]. With [`NEXT_ATOMIC`] in
/// `flags`, only one that may be served by an interrupt handler.
pub const TWINOP_NEXT: u32 = 9;
/// Takes lent buffers back that the twin does not use: [`TwinLend`], of which `count` is room in the list when it comes
/// in, and how many were written when it goes out, 0 if the twin has none left that it does not use. Of each
/// [`TwinLent`] kind and object are out. What is not given back is with the domain's driver, whose own reference goes
/// on to count. E2BIG: more than [`MAX_LENT_AT_ONCE`]. EFAULT: the list cannot be written, and those are lost.
pub const TWINOP_RECALL: u32 = 10;
/// What a twin has done so far, and what disabled it: [`TwinStats`]. ENOENT: there is none from this number on.
pub const TWINOP_STATS: u32 = 11;

/// In [`TwinLoad::mode`]: driver-domain addresses are masked.
pub const MODE_MIRROR: u32 = 1;

/// In [`TwinLoad::mode`]: driver-domain addresses are looked up in a table. EACCES unless the machine was booted with
/// `twin-stlb`.
pub const MODE_STLB: u32 = 2;

/// In [`TwinLoad::flags`]: the image's code charges itself for loops and calls. Else it ends by time alone.
pub const LOAD_COUNTED: u32 = 1;

/// In [`TwinCall::flags`], for [`TWINOP_NEXT`]: only what a transmit routine or an interrupt handler waits for. Linux
/// calls these with interrupts off too, so the functions that they call may be called so as well, by whoever hears of
/// it, whatever he has interrupted.
pub const NEXT_ATOMIC: u32 = 1;

/// Bits of an address that mirror mode keeps in the hypervisor.
pub const MASK_BITS: u32 = 47;
/// Largest image in bytes.
pub const MAX_IMAGE: u32 = 8 << 20;
/// Steps of an invocation if none are asked for.
pub const DEFAULT_BUDGET: u64 = 100_000;
/// An upcall that takes longer, not counted what the domain was paused or kept from all CPUs, disables the twin when
/// somebody wants it again. Nothing is won by giving up early, as a domain that does not answer carries no packets
/// either; and a CPU may stand still for a second or more, if it is another hypervisor's.
pub const UPCALL_LIMIT_NS: u64 = 5_000_000_000;
/// Most objects that a twin is lent.
pub const MAX_LENT: usize = 8192;
/// Most in one [`TwinLend`].
pub const MAX_LENT_AT_ONCE: u32 = 256;
/// Notes that wait; a twin whose notes nobody fetches is aborted. A twin may free at once what its card's rings held
/// when the twin got it: of eight queues with 1,024 packets each, or of one or two with as many as any of these drivers
/// allows (4,096).
pub const MAX_NOTES: usize = 8192;
/// Most in one [`TwinNotes`].
pub const MAX_NOTES_AT_ONCE: u32 = 256;
/// Most steps of an invocation.
pub const MAX_BUDGET: u64 = 1_000_000;

/// Twins of one domain at a time, those that are being loaded among them.
pub const MAX_TWINS_EACH: u32 = 8;
/// In [`TwinLoad::rule`]: no rule of the sandbox was broken.
pub const NO_RULE: u32 = u32::MAX;

/// Argument of [`TWINOP_LOAD`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinLoad {
    /// In: virtual address of the image.
    pub image: u64,
    /// In: its length in bytes, at most [`MAX_IMAGE`].
    pub image_bytes: u32,
    /// In: how addresses are translated; [`MODE_MIRROR`] or [`MODE_STLB`], as the image says too.
    pub mode: u32,
    /// In: machine frame of the L4 table whose upper half the twin sees. It stays a table while the twin is loaded, so
    /// it should be one that the kernel never frees.
    pub root: u64,
    /// In: address of the per-CPU area of the first instance. There is an instance for each physical CPU, which another
    /// CPU may use when its own waits for an upcall, one invocation at a time.
    pub percpu: u64,
    /// In: distance in bytes from one instance's area to the next one's.
    pub percpu_stride: u64,
    /// In: steps of an invocation, at most [`MAX_BUDGET`]; 0 means [`DEFAULT_BUDGET`].
    pub budget: u64,
    /// Out: the twin's name.
    pub twin: u32,
    /// Out, with EINVAL: the rule that the image breaks, counted from F0 in the order of `docs/sandbox.md`; else
    /// [`NO_RULE`].
    pub rule: u32,
    /// Out, with a rule: the place in the code, or the index of the record.
    pub offset: u32,
    /// In: [`LOAD_COUNTED`] or 0.
    pub flags: u32,
    /// In: address of a [`TwinKernel`], with which routines of the hypervisor's own serve what they can; or 0, and the
    /// domain serves all imports.
    pub kernel: u64,
    /// In: how many per-CPU areas there are. With fewer than the machine has CPUs, EDOM; then `twin` says how many it
    /// wants.
    pub areas: u32,
    /// Must be zero.
    pub pad: u32,
}

/// What routines of the hypervisor's own know of the kernel whose driver it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinKernel {
    /// `page_offset_base`.
    pub page_offset: u64,
    /// First byte of vmalloc space.
    pub vmalloc_start: u64,
    /// First byte after it.
    pub vmalloc_end: u64,
    /// `vmemmap_base`.
    pub vmemmap: u64,
    /// Address of the variable `jiffies`.
    pub jiffies: u64,
    /// Address of the list of machine frames by pseudo-physical frame.
    pub p2m: u64,
    /// Entries of it.
    pub p2m_frames: u64,
    /// The device reaches bus addresses below this; 0: all.
    pub dma_limit: u64,
    /// First pseudo-physical frame of the domain's bounce buffers, in which it has copies of what a device does not
    /// reach.
    pub bounce: u64,
    /// Frames of them.
    pub bounce_frames: u64,
    /// Address of 32-bit words, the places of members and the sizes of structures in the order of
    /// `twin_runtime::linux::offsets`.
    pub offsets: u64,
    /// How many.
    pub nr_offsets: u32,
    /// Must be zero.
    pub flags: u32,
    /// Address of the table in which vCPUs are put down that sleep until a spinlock is released (`pv_lock_hash`):
    /// elements that begin with the address of the lock, or 0. 0: it is not known, and what they wait for is the
    /// domain's to release (`note::UNLOCK`).
    pub sleepers: u64,
    /// Its elements, at most 1024.
    pub nr_sleepers: u32,
    /// Bytes of an element, at most 256.
    pub sleeper_bytes: u32,
}

/// Most transmit queues, polls and interrupts of a card.
pub const MAX_QUEUES: u32 = 16;

/// The card sums TCP and UDP over IPv4 when it sends.
pub const ATTACH_CHECKSUM_V4: u32 = 1 << 0;
/// The card sums TCP and UDP over IPv6 when it sends.
pub const ATTACH_CHECKSUM_V6: u32 = 1 << 1;
/// The card takes packets in pieces.
pub const ATTACH_SG: u32 = 1 << 2;
/// The card cuts TCP over IPv4 into segments.
pub const ATTACH_GSO_TCPV4: u32 = 1 << 3;
/// The card cuts TCP over IPv6 into segments.
pub const ATTACH_GSO_TCPV6: u32 = 1 << 4;
/// All flags of [`TwinAttach`].
pub const ATTACH_FLAGS: u32 = (1 << 5) - 1;

/// Argument of [`TWINOP_ATTACH`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinAttach {
    /// Which twin.
    pub twin: u32,
    /// Which of the domain's own network interfaces (its number as a device of the domain) is plugged into the switch
    /// whose way out the card is to be. The control domain says so when it plugs it in.
    pub vif: u32,
    /// Address of the card's `struct net_device`.
    pub device: u64,
    /// Address of its `ndo_start_xmit`.
    pub start_xmit: u64,
    /// Address of its first `struct netdev_queue`.
    pub queues: u64,
    /// Address of a list of [`TwinNapi`].
    pub napis: u64,
    /// Address of a list of [`TwinIrq`].
    pub irqs: u64,
    /// How many transmit queues, 1 to [`MAX_QUEUES`].
    pub nr_queues: u32,
    /// Bytes from one `struct netdev_queue` to the next.
    pub queue_stride: u32,
    /// How many polls, 1 to [`MAX_QUEUES`].
    pub nr_napis: u32,
    /// How many interrupts, 1 to [`MAX_QUEUES`].
    pub nr_irqs: u32,
    /// `ATTACH_*`.
    pub flags: u32,
    /// An unbound event channel of the domain's own, for itself, that is raised when an invocation waits for a function
    /// of the domain, when there are notes, and when the twin is disabled.
    pub port: u32,
    /// The longest frame that the card takes, with its Ethernet header and without its checksum and VLAN tag. EMSGSIZE:
    /// without [`ATTACH_SG`], that and a tag are more than the lent buffers have room for.
    pub max_frame: u32,
    /// Must be zero.
    pub pad: u32,
}

/// A poll of a card.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinNapi {
    /// Address of the `struct napi_struct`.
    pub napi: u64,
    /// Address of its poll function.
    pub poll: u64,
    /// What it may do at once.
    pub weight: u32,
    /// Must be zero.
    pub flags: u32,
}

/// An interrupt of a card.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinIrq {
    /// Address of the handler.
    pub handler: u64,
    /// Its second argument.
    pub argument: u64,
    /// Its first argument: the kernel's number of the interrupt.
    pub number: u32,
    /// The event channel of the domain that is bound to it (to its pirq).
    pub port: u32,
}

/// Argument of [`TWINOP_UNLOAD`] and [`TWINOP_DETACH`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinName {
    /// Which twin.
    pub twin: u32,
    /// Must be zero.
    pub flags: u32,
}

/// Argument of [`TWINOP_CALL`], [`TWINOP_RESUME`] and [`TWINOP_NEXT`]. The call succeeds if the function was entered,
/// or went on; how it ended is in `reason`.
///
/// With [`reason::UPCALL`] it has not ended: the domain calls the function at `detail` with `args` and `more`, puts
/// what that returned into `result`, and executes [`TWINOP_RESUME`], on any vCPU, within [`UPCALL_LIMIT_NS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinCall {
    /// In: which twin.
    pub twin: u32,
    /// Out: how it ended ([`reason`]).
    pub reason: u32,
    /// In: the domain's address of the function, which must be in the image's address table.
    pub function: u64,
    /// In: its arguments. Out, for an upcall: those of the domain's function.
    pub args: [u64; 6],
    /// Out: what it returned, if it did. In, to go on: what the domain's function returned.
    pub result: u64,
    /// Out, for an abort: the address, vector or value that [`reason`] speaks of. For an upcall: the function's
    /// address.
    pub detail: u64,
    /// Out, for an abort: address of the driver's instruction from which the aborted one stems.
    pub original: u64,
    /// Out, for an abort: offset in the twin's code. For an upcall: the import's number.
    pub offset: u32,
    /// Out: steps of the budget that were used.
    pub steps: u32,
    /// Out, for an upcall: what follows the six arguments on the stack, if the function has so many.
    pub more: [u64; 4],
    /// Out, for an upcall: who waits. In, to go on: the same.
    pub instance: u32,
    /// In, for [`TWINOP_NEXT`]: [`NEXT_ATOMIC`], or none. Else it must be zero. Out: 0.
    pub flags: u32,
}

/// Argument of [`TWINOP_STATUS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinStatus {
    /// In: which twin.
    pub twin: u32,
    /// Out: how addresses are translated: `MODE_*`.
    pub mode: u32,
    /// Out: how often one of its functions was entered.
    pub invocations: u64,
    /// Out: how many of those ended in an abort.
    pub aborts: u64,
    /// Out: functions in its code.
    pub functions: u32,
    /// Out: 1 if it is disabled, because an invocation was aborted.
    pub disabled: u32,
}

/// In [`TwinStats::flags`]: twins of all domains; for the control domain. EPERM for others.
pub const STATS_ALL: u32 = 1 << 0;

/// Argument of [`TWINOP_STATS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinStats {
    /// In: the first number that is looked at. Out: that of the twin that was found.
    pub twin: u32,
    /// In: [`STATS_ALL`] or 0. Out: how addresses are translated: `MODE_*`.
    pub flags: u32,
    /// Out: whose it is.
    pub domain: u32,
    /// Out: functions in its code.
    pub functions: u32,
    /// Out: 1 if it is disabled.
    pub disabled: u32,
    /// Out: 1 if it has a card.
    pub has_card: u32,
    /// Out, if it is disabled: why ([`reason`]); [`reason::UPCALL`] if the domain did not answer in time. 0 if it is
    /// not.
    pub reason: u32,
    /// Out: offset in the twin's code of what was aborted; 0 if there is no such place.
    pub offset: u32,
    /// Out: the address, vector or value that [`reason`] speaks of.
    pub detail: u64,
    /// Out: address of the driver's instruction from which the aborted one stems; 0 if there is none.
    pub original: u64,
    /// Out: functions that the domain called ([`TWINOP_CALL`]).
    pub calls: u64,
    /// Out: interrupt handlers that ran for the card.
    pub handlers: u64,
    /// Out: polls that ran for it.
    pub polls: u64,
    /// Out: packets that were handed to its transmit routine, those that it refused included.
    pub packets: u64,
    /// Out: functions of the domain that it waited for.
    pub upcalls: u64,
    /// Out: locks of the domain's that it waited for.
    pub lock_waits: u64,
    /// Out: how often a CPU went to run it, for one or more of these.
    pub turns: u64,
    /// Out: ticks of the time-stamp counter that this took, with what the hypervisor does for it meanwhile.
    pub ticks: u64,
    /// Out: invocations that ended in an abort.
    pub aborts: u64,
}

/// Argument of [`TWINOP_LEND`] and [`TWINOP_RECALL`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinLend {
    /// Which twin.
    pub twin: u32,
    /// How many, at most [`MAX_LENT_AT_ONCE`].
    pub count: u32,
    /// Address of that many [`TwinLent`].
    pub list: u64,
}

/// A buffer that is lent. Lending one again changes nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinLent {
    /// What: [`lent`].
    pub kind: u32,
    /// Bytes of the buffer, with room for the shared info.
    pub bytes: u32,
    /// Address of the `sk_buff`; of the data of a fragment. Not 0.
    pub object: u64,
    /// Address of the buffer of an `sk_buff`, which is not 0; of the `page` of a fragment.
    pub of: u64,
    /// `_refcount` of a fragment's page while it is lent.
    pub references: u32,
    /// Must be zero.
    pub flags: u32,
}

/// Kinds of buffers: [`TwinLent::kind`].
pub mod lent {
    /// An `sk_buff` with its buffer. Its `users` is 2 as long as it is lent; less, while the twin has it: the domain
    /// has freed it.
    pub const SKB: u32 = 0;
    /// An `sk_buff` without one. The same holds of its `users`.
    pub const BARE_SKB: u32 = 1;
    /// A page fragment.
    pub const FRAGMENT: u32 = 2;
}

/// Argument of [`TWINOP_NOTES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinNotes {
    /// Which twin.
    pub twin: u32,
    /// In: room in the list, at most [`MAX_NOTES_AT_ONCE`]. Out: how many were written.
    pub count: u32,
    /// Address of so many [`TwinNote`].
    pub list: u64,
}

/// Something that the domain has to do.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinNote {
    /// What: [`note`].
    pub kind: u32,
    /// Zero.
    pub flags: u32,
    /// With what.
    pub object: u64,
}

/// What the domain has to do: [`TwinNote::kind`].
pub mod note {
    /// Free an `sk_buff` that was not lent.
    pub const FREE_SKB: u32 = 0;
    /// Free the data of a page fragment that was not lent.
    pub const FREE_FRAGMENT: u32 = 1;
    /// Let a `netdev_queue` go on.
    pub const QUEUE: u32 = 2;
    /// The twin is disabled: the card is the domain's driver's alone again, as after [`super::TWINOP_DETACH`].
    pub const DISABLED: u32 = 3;
    /// Release this spinlock (`arch_spin_unlock`), which was taken for the twin: a vCPU waits for it asleep, which only
    /// the domain's kernel can wake.
    pub const UNLOCK: u32 = 4;
}

/// How an invocation ended: [`TwinCall::reason`].
pub mod reason {
    /// The function returned.
    pub const RETURNED: u32 = 0;
    /// It accessed memory that it may not; the detail is the address, with bit 47 and up clear as the twin used it.
    pub const MEMORY: u32 = 1;
    /// The processor raised another exception; the detail is the vector.
    pub const EXCEPTION: u32 = 2;
    /// It came to a `BUG` of the driver.
    pub const BUG: u32 = 3;
    /// It used up its budget.
    pub const BUDGET: u32 = 4;
    /// It took too long.
    pub const TIME_OUT: u32 = 5;
    /// It called an address that is no function; the detail is the address.
    pub const INDIRECT_CALL: u32 = 6;
    /// It called a function of the domain that is not served; the detail is the import's number.
    pub const IMPORT: u32 = 7;
    /// It handed out an address of its own stack; the detail is the address.
    pub const STACK_POINTER: u32 = 8;
    /// A lock stayed taken; the detail is its address.
    pub const LOCK: u32 = 9;
    /// A structure was in a state that the driver must not produce; the detail is the value.
    pub const STRUCTURE: u32 = 10;
    /// It used up its stack; the detail is the address.
    pub const STACK: u32 = 11;
    /// Not ended: it waits for a function of the domain.
    pub const UPCALL: u32 = 12;
}

const _: () = assert!(core::mem::size_of::<TwinLoad>() == 80);
const _: () = assert!(core::mem::size_of::<TwinAttach>() == 80);
const _: () = assert!(core::mem::size_of::<TwinNapi>() == 24);
const _: () = assert!(core::mem::size_of::<TwinIrq>() == 24);
const _: () = assert!(core::mem::size_of::<TwinName>() == 8);
const _: () = assert!(core::mem::size_of::<TwinCall>() == 136);
const _: () = assert!(core::mem::size_of::<TwinStatus>() == 32);
const _: () = assert!(core::mem::size_of::<TwinStats>() == 120);
const _: () = assert!(core::mem::size_of::<TwinKernel>() == 112);
const _: () = assert!(core::mem::size_of::<TwinLend>() == 16);
const _: () = assert!(core::mem::size_of::<TwinLent>() == 32);
const _: () = assert!(core::mem::size_of::<TwinNotes>() == 16);
const _: () = assert!(core::mem::size_of::<TwinNote>() == 16);
