//! `twin_op`, hypercall 55: how a driver domain loads, runs and unloads its twins. Only data.
//!
//! `twin_op(cmd, arg)`: `cmd` in rdi, the address of the command's structure in rsi. All fields are little-endian and there is
//! no padding. A domain may only name its own twins.

/// The number of the hypercall (`__HYPERVISOR_arch_7`).
pub const HYPERVISOR_TWIN_OP: u64 = 55;

/// Checks an image and makes it ready to run: [`TwinLoad`]. May be executed again by itself until it is done.
pub const TWINOP_LOAD: u32 = 0;
/// Forgets a twin: [`TwinName`].
pub const TWINOP_UNLOAD: u32 = 1;
/// Runs a function of a twin: [`TwinCall`].
pub const TWINOP_CALL: u32 = 2;
/// What became of a twin so far: [`TwinStatus`].
pub const TWINOP_STATUS: u32 = 3;

/// In [`TwinLoad::mode`]: driver-domain addresses are masked.
pub const MODE_MIRROR: u32 = 1;

/// In [`TwinLoad::flags`]: the image's code charges itself for loops and calls. Else it ends by time alone.
pub const LOAD_COUNTED: u32 = 1;

/// Bits of an address that mirror mode keeps in the hypervisor.
pub const MASK_BITS: u32 = 47;
/// Largest image in bytes.
pub const MAX_IMAGE: u32 = 8 << 20;
/// Steps of an invocation if none are asked for.
pub const DEFAULT_BUDGET: u64 = 100_000;
/// Most steps of an invocation.
pub const MAX_BUDGET: u64 = 1_000_000;

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
    /// In: how addresses are translated; [`MODE_MIRROR`].
    pub mode: u32,
    /// In: machine frame of the L4 table whose upper half the twin sees. It stays a table while the twin is loaded, so it
    /// should be one that the kernel never frees.
    pub root: u64,
    /// In: address of the per-CPU area that the twin uses on physical CPU 0.
    pub percpu: u64,
    /// In: distance in bytes from one CPU's area to the next one's.
    pub percpu_stride: u64,
    /// In: steps of an invocation, at most [`MAX_BUDGET`]; 0 means [`DEFAULT_BUDGET`].
    pub budget: u64,
    /// Out: the twin's name.
    pub twin: u32,
    /// Out, with EINVAL: the rule that the image breaks, counted from F0 in the order of `docs/sandbox.md`; else [`NO_RULE`].
    pub rule: u32,
    /// Out, with a rule: the place in the code, or the index of the record.
    pub offset: u32,
    /// In: [`LOAD_COUNTED`] or 0.
    pub flags: u32,
}

/// Argument of [`TWINOP_UNLOAD`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinName {
    /// Which twin.
    pub twin: u32,
    /// Must be zero.
    pub flags: u32,
}

/// Argument of [`TWINOP_CALL`]. The call succeeds if the function was entered; how it ended is in `reason`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinCall {
    /// In: which twin.
    pub twin: u32,
    /// Out: how it ended ([`reason`]).
    pub reason: u32,
    /// In: the domain's address of the function, which must be in the image's address table.
    pub function: u64,
    /// In: its arguments.
    pub args: [u64; 6],
    /// Out: what it returned, if it did.
    pub result: u64,
    /// Out, for an abort: the address, vector or value that [`reason`] speaks of.
    pub detail: u64,
    /// Out, for an abort: address of the driver's instruction from which the aborted one stems.
    pub original: u64,
    /// Out, for an abort: offset in the twin's code.
    pub offset: u32,
    /// Out: steps of the budget that were used.
    pub steps: u32,
}

/// Argument of [`TWINOP_STATUS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinStatus {
    /// In: which twin.
    pub twin: u32,
    /// Out: [`MODE_MIRROR`].
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
}

const _: () = assert!(core::mem::size_of::<TwinLoad>() == 64);
const _: () = assert!(core::mem::size_of::<TwinName>() == 8);
const _: () = assert!(core::mem::size_of::<TwinCall>() == 96);
const _: () = assert!(core::mem::size_of::<TwinStatus>() == 32);
