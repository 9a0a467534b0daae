//! The only way into a twin and out of it.

use crate::cpu::percpu::{this_cpu, MAX_CPUS};
use crate::cpu::requests;
use crate::twin::instance::Instance;
use crate::twin::run::Running;
use crate::twin::space::{Filled, Mirror};
use crate::twin::words::MaskedAddr;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, Ordering};
use twin_runtime::gate::{Answer, Call, Gate, Registers};
use twin_runtime::linux::{Maker, Native, Routine, Stop};
use twin_runtime::stubs::{save, special, Targets};
use x86::error_code::PageFaultError;
use xen_abi::regs::CpuUserRegs;

/// Portions of other work on its domain's page tables that a routine waits for when it faults: a millisecond each or
/// less.
const ROUNDS: u32 = 64;

/// How a gate goes on, for the assembly.
mod way {
    pub const RETURN: u64 = 0;
    pub const ENTER: u64 = 1;
    pub const ABORT: u64 = 2;
    pub const WAIT: u64 = 3;
}

core::arch::global_asm!(
    include_str!("entry.S"),
    SAVE_HOST_RSP = const save::HOST_RSP,
    SAVE_TWIN_RSP = const save::TWIN_RSP,
    RESUME_SAVE = const offset_of!(Resume, save),
    RESUME_VALUE = const offset_of!(Resume, value),
    RESUME_KEPT = const offset_of!(Resume, kept),
    RETURN = const way::RETURN,
    ENTER = const way::ENTER,
    ABORT = const way::ABORT,
    SAVED_BYTES = const size_of::<Saved>(),
    CALL_BYTES = const size_of::<ImportCall>(),
    gate = sym gate,
);

extern "C" {
    fn twin_enter(save: *mut u64, running: *mut u8, stack: u64, stub: u64, args: *const u64) -> u64;
    fn twin_resume(resume: *const Resume, running: *mut u8) -> u64;
    fn twin_leave();
    fn twin_gate();
    fn twin_import();
    fn twin_exchange_u32(address: u64, old: u32, new: u32) -> Exchanged;
    fn twin_exchange_u64(address: u64, old: u64, new: u64) -> Exchanged;
    fn twin_read_device(address: u64, bytes: u32) -> Exchanged;
    fn twin_write_device(address: u64, bytes: u32, value: u32) -> u32;
}

/// Where stubs go on, which charge the word at `budget`.
pub fn targets(budget: u64) -> Targets {
    Targets {
        gate: twin_gate as *const () as u64,
        import: twin_import as *const () as u64,
        leave: leave_address(),
        budget,
    }
}

/// Where the way out goes on.
fn leave_address() -> u64 {
    twin_leave as *const () as u64
}

/// What `twin_enter` is given, in registers.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The instance's save page.
    pub save: *mut u64,
    /// The stack pointer: the return address lies there.
    pub stack: u64,
    /// The stub that enters what the save page's target says.
    pub stub: u64,
    /// The six arguments.
    pub args: *const u64,
}

/// The registers that a call preserves, of an invocation that waits.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Kept {
    /// The stack pointer: the return address of the gate's call lies there.
    pub stack: u64,
    /// rbx, rbp, r12 to r15.
    pub registers: [u64; 6],
}

// As `twin_gate` and `twin_resume` have it.
const _: () = assert!(offset_of!(Kept, registers) == 8 && size_of::<Kept>() == 56);

/// What `twin_resume` is given.
#[repr(C)]
pub struct Resume {
    /// The instance's save page.
    pub save: *mut u64,
    /// What the gate's call returns.
    pub value: u64,
    /// The registers.
    pub kept: Kept,
}

/// A call of an import, as `twin_import` pushes it.
#[repr(C)]
struct ImportCall {
    args: [u64; 6],
    /// The stub's number.
    number: u64,
}

impl ImportCall {
    #[inline(always)]
    fn number(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "the stub loaded 32 bits")]
        (self.number as u32)
    }
}

/// How a call of an import goes on, for the assembly: in rax and rdx.
#[repr(C)]
struct Outcome {
    way: u64,
    /// The result; address of a `Kept`, to wait.
    value: u64,
}

// `twin_enter` leaves rsp at 8 modulo 16; the call in `twin_import` needs it at 0.
const _: () = assert!(size_of::<ImportCall>() == 56);

/// A gate's caller, as `twin_gate` pushes it.
#[repr(C)]
struct Saved {
    /// The stub's number; on the way back, the twin's stack pointer.
    number: u64,
    /// The stub through which to enter another function; address of a `Kept`, to wait.
    enter: u64,
    /// What the twin had, rax apart; on the way back, what it gets.
    registers: Registers,
}

// `twin_enter` leaves rsp at 8 modulo 16; the call in `twin_gate` needs it at 0.
const _: () = assert!(size_of::<Saved>() % 16 == 8);
const _: () = assert!(offset_of!(Saved, registers) == 16 && offset_of!(Registers, r11) == 64);

#[repr(C)]
struct Exchanged {
    value: u64,
    faulted: u64,
}

/// Who runs on each CPU.
static RUNNING: [AtomicPtr<Running<'static, 'static>>; MAX_CPUS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];

fn slot() -> &'static AtomicPtr<Running<'static, 'static>> {
    &RUNNING[this_cpu().cpu as usize & (MAX_CPUS - 1)]
}

/// The mirror on which each CPU is.
static MIRRORS: [AtomicPtr<Mirror>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];

fn mirror() -> &'static AtomicPtr<Mirror> {
    &MIRRORS[this_cpu().cpu as usize & (MAX_CPUS - 1)]
}

/// Is this CPU on a mirror: does a twin run on it, or what is done for one?
#[inline]
pub fn is_running() -> bool {
    !mirror().load(Ordering::Relaxed).is_null()
}

/// From now on page faults of this CPU are those of a twin's mirror, or with `None` no longer.
///
/// # Safety
/// 1. The mirror stays until this is called again.
pub unsafe fn set_mirror(of: Option<&Mirror>) {
    mirror().store(of.map_or(core::ptr::null_mut(), |of| core::ptr::from_ref(of).cast_mut()), Ordering::Relaxed);
}

/// Goes into the twin that `running` describes by `go`, which is given its address. Returns rax of the way out; how it
/// ended is in `running`.
#[inline(always)]
fn run(running: &mut Running<'_, '_>, go: impl FnOnce(*mut u8) -> u64) -> u64 {
    let place = slot();
    place.store(core::ptr::from_mut(running).cast(), Ordering::Relaxed);
    // Gates and the exception handler reach `running` only through the slot, and only until this returns.
    let value = go(place.load(Ordering::Relaxed).cast());
    place.store(core::ptr::null_mut(), Ordering::Relaxed);
    value
}

/// Enters the twin that `running` describes. Returns rax of the way out; how it ended is in `running`.
///
/// # Safety
/// 1. The instance's areas are mapped as `twin_abi::layout` says, its code was verified, its mirror root is loaded, the
///    twins' IDT is, and no breakpoint is armed.
/// 2. The entry's stack pointer is in the instance's stack, with the address of the way out at it and `indirect_args`
///    words above; its arguments are there to be read.
#[inline(always)]
pub unsafe fn enter(running: &mut Running<'_, '_>, Entry { save, stack, stub, args }: Entry) -> u64 {
    // SAFETY: (1), (2).
    run(running, |running| unsafe { twin_enter(save, running, stack, stub, args) })
}

/// Goes back into it. Returns the same.
///
/// # Safety
/// 1. As for [`enter`].
/// 2. What goes on is what was kept when this instance's gate last answered that it waits.
pub unsafe fn resume(running: &mut Running<'_, '_>, resume: &Resume) -> u64 {
    // SAFETY: (1), (2).
    run(running, |running| unsafe { twin_resume(resume, running) })
}

/// The address of what `twin_import` calls for an import that `routine` serves, or the domain.
pub fn server(routine: Option<Routine>) -> u64 {
    struct Servers;
    impl Maker for Servers {
        type Made = u64;
        fn make<N: Native>() -> u64 {
            serve::<N> as *const () as u64
        }
    }
    routine.map_or(serve_not as *const () as u64, Routine::made::<Servers>)
}

/// Serves a call of an import by routine `N`: a function for each, which saves the registers that this one needs, and
/// leaves its result in registers. Called by `twin_import` on the hypervisor's stack, with interrupts off.
extern "C" fn serve<N: Native>(call: &ImportCall, running: &mut Running<'_, '_>) -> Outcome {
    match running.serve::<N>(&call.args) {
        Some(Ok(value)) => Outcome { way: way::RETURN, value },
        Some(Err(stop)) => not_returned(call, Some(&stop), running),
        None => not_returned(call, None, running),
    }
}

/// The same for an import that no routine serves.
extern "C" fn serve_not(call: &ImportCall, running: &mut Running<'_, '_>) -> Outcome {
    not_returned(call, None, running)
}

#[cold]
#[inline(never)]
fn not_returned(call: &ImportCall, stop: Option<&Stop>, running: &mut Running<'_, '_>) -> Outcome {
    crate::cpu::requests::answer();
    let (number, args) = (call.number(), &call.args);
    let stack = running.instance.saved(save::TWIN_RSP);
    let from = running.return_offset(stack);
    let call = Call { gate: Gate::Import(number), registers: Registers::of_args(args), from, stack };
    match running.not_returned(number, stop, &call) {
        Answer::Return(value) => Outcome { way: way::RETURN, value },
        Answer::Wait => {
            running.left.kept.stack = stack;
            Outcome { way: way::WAIT, value: (&raw mut running.left.kept) as u64 }
        }
        answer => {
            debug_assert!(matches!(answer, Answer::Abort(_)), "no other answer to an import");
            running.left.abort = if let Answer::Abort(abort) = answer { Some(abort) } else { None };
            Outcome { way: way::ABORT, value: 0 }
        }
    }
}

/// Called by `twin_gate` on the hypervisor's stack, with interrupts off.
extern "C" fn gate(saved: &mut Saved) -> u64 {
    // SAFETY: only `run` leads here; it stored the pointer, and its reference is not used until the twin is left.
    let running = unsafe { &mut *slot().load(Ordering::Relaxed) };
    crate::cpu::requests::answer();
    #[allow(clippy::cast_possible_truncation, reason = "the stub loaded 32 bits")]
    let number = saved.number as u32;
    let special = number.checked_sub(running.instance.stubs.imports());
    if special == Some(special::INDIRECT_CALL) {
        if let Some(offset) = running.invocation.enters(saved.registers.r11, running.domain) {
            saved.number = running.instance.saved(save::TWIN_RSP);
            saved.registers = Registers::of_args(&saved.registers.args());
            return enter_at(saved, running, offset);
        }
    }
    let gate = match special {
        None => Gate::Import(number),
        Some(special::STLB_MISS) => Gate::StlbMiss,
        Some(special::INDIRECT_CALL) => Gate::IndirectCall,
        Some(_) => Gate::Warn,
    };
    let stack = running.instance.saved(save::TWIN_RSP);
    saved.registers.rax = running.instance.saved(save::RAX);
    let call = Call { gate, registers: saved.registers, from: running.return_offset(stack), stack };
    let answer = running.gate(&call);
    saved.number = stack;
    saved.registers = answer.registers(&saved.registers);
    match answer {
        Answer::Return(_) | Answer::Resume => way::RETURN,
        Answer::Enter(offset) => enter_at(saved, running, offset),
        Answer::Wait => {
            running.left.kept.stack = stack;
            saved.enter = (&raw mut running.left.kept) as u64;
            way::WAIT
        }
        Answer::Abort(abort) => {
            running.left.abort = Some(abort);
            way::ABORT
        }
    }
}

/// A gate goes on at a code offset.
fn enter_at(saved: &mut Saved, running: &Running<'_, '_>, offset: u32) -> u64 {
    running.instance.set_saved(save::TARGET, running.instance.code_address(offset));
    saved.enter = running.instance.stubs.enter();
    way::ENTER
}

/// An exception while a twin or one of its gates runs. `true` if `regs` say where to go on: at the same instruction,
/// which now finds what it lacked; or out of the twin, whose own code raised the exception. Else it is for the
/// exception table.
pub fn trap(regs: &mut CpuUserRegs, vector: u8, address: u64) -> bool {
    // SAFETY: `set_mirror` says that it stays.
    let mirror = unsafe { mirror().load(Ordering::Relaxed).as_ref() };
    if vector == x86::vector::PF && mirror.is_some_and(|mirror| may_try_again(mirror, regs, address)) {
        return true;
    }
    let place = slot().load(Ordering::Relaxed);
    if place.is_null() {
        return false;
    }
    // SAFETY: set by `run`, which waits for the twin. A copy of a shared reference, whoever was interrupted.
    let instance = unsafe { (*place).instance };
    if !instance.is_code(regs.rip) {
        return false;
    }
    // SAFETY: the twin's own code was interrupted, so nobody uses a reference to it.
    let running = unsafe { &mut *place };
    running.was_stopped(regs.rip, vector, address);
    lead_out(instance, regs);
    true
}

/// May the access that faulted on `mirror` be tried again?
fn may_try_again(mirror: &Mirror, regs: &CpuUserRegs, address: u64) -> bool {
    let code = PageFaultError::from_bits_retain(regs.error_code);
    if !code.difference(PageFaultError::P | PageFaultError::W).is_empty() {
        return false;
    }
    // The twin's own code is interrupted before it comes again, and has a time limit. A routine has neither.
    let is_twins = is_in_code(regs.rip);
    let rounds = if is_twins { 1 } else { ROUNDS };
    for _ in 0..rounds {
        match mirror.fill(address, code.contains(PageFaultError::W)) {
            Filled::Allowed => return true,
            Filled::Denied => return false,
            Filled::Later => requests::answer(),
        }
    }
    is_twins
}

/// Is `rip` in the code of the twin that this CPU has entered?
pub fn is_in_code(rip: u64) -> bool {
    let place = slot().load(Ordering::Relaxed);
    // SAFETY: set by `run`, which waits for the twin. A copy of a shared reference, whoever was interrupted.
    !place.is_null() && unsafe { (*place).instance }.is_code(rip)
}

/// An interrupt came and was served. If it interrupted a twin whose time is over, `regs` lead out of it.
pub fn interrupted(regs: &mut CpuUserRegs) {
    let place = slot().load(Ordering::Relaxed);
    if place.is_null() {
        return;
    }
    // SAFETY: as in `trap`: gates run with interrupts off, so it is the twin or a stub that was interrupted.
    let running = unsafe { &mut *place };
    let instance = running.instance;
    if !instance.is_code(regs.rip) {
        // It is on its way into the code, or to a gate, which asks for the time too.
        return running.keep_timer();
    }
    if running.is_out_of_time(regs.rip) {
        lead_out(instance, regs);
    }
}

/// Makes an interrupted twin go on at the way out.
fn lead_out(instance: &Instance, regs: &mut CpuUserRegs) {
    regs.rip = leave_address();
    regs.rsp = instance.saved(save::HOST_RSP);
    regs.rflags = x86::rflags::Rflags::FIXED.bits();
    regs.rax = 0;
}

/// Replaces `size` (4 or 8) bytes of domain memory at the masked address if they are `old`; what was there.
pub fn exchange(masked: MaskedAddr, old: u64, new: u64, size: usize) -> Option<u64> {
    // SAFETY: a masked address: in the window, or unmapped; a fault is caught.
    let result = unsafe {
        if size == 4 {
            #[allow(clippy::cast_possible_truncation, reason = "four bytes")]
            twin_exchange_u32(masked.raw(), old as u32, new as u32)
        } else {
            twin_exchange_u64(masked.raw(), old, new)
        }
    };
    (result.faulted == 0).then_some(result.value)
}

/// Reads a device's register of 1, 2 or 4 bytes at once.
pub fn read_device(masked: MaskedAddr, bytes: u32) -> Option<u64> {
    // SAFETY: a masked address: in the window, or unmapped; a fault is caught.
    let result = unsafe { twin_read_device(masked.raw(), bytes) };
    (result.faulted == 0).then_some(result.value)
}

/// Writes a device's register of 1, 2 or 4 bytes at once.
pub fn write_device(masked: MaskedAddr, bytes: u32, value: u32) -> Option<()> {
    // SAFETY: as for reading.
    let faulted = unsafe { twin_write_device(masked.raw(), bytes, value) };
    (faulted == 0).then_some(())
}
