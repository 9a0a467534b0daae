//! Into the twin and out of it: the entry, the stubs' common part, the gates.

use super::arena::{Arena, STUB_ICALL, STUB_MISS, STUB_WARN};
use super::faults::{is_late, RUNNING};
use crate::embed::Embedded;
use crate::emulate::routine;
use crate::world::World;
use std::sync::atomic::{AtomicU64, Ordering};
use twin_runtime::gate::{Answer, Call, Gate, Invocation, Registers};
use twin_runtime::linux::Support;
use twin_runtime::{Abort, Reason};

/// What the stubs store and load; the layout is known to the assembly below.
#[repr(C)]
#[derive(Debug)]
pub struct Saved {
    registers: Registers,
    number: u64,
    rsp: u64,
    target: u64,
}

/// What `twin_enter` is given.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// The stack pointer.
    pub stack: u64,
    /// The first instruction.
    pub target: u64,
    /// To be loaded.
    pub registers: Registers,
}

/// Bytes of a stub, with what fills it up.
pub const STUB: usize = 32;
/// Where in a stub the distance to the word that names the common part lies, and where that is counted from.
const DISTANCE: std::ops::Range<usize> = 17..21;

/// A stub, `distance` bytes before the word that holds the address of the common part. It stores rax and puts its
/// number there, since it may touch nothing else: no other register is free in all gates, and the twin's stack may be
/// full.
pub fn stub(number: u64, distance: u32) -> [u8; STUB] {
    let mut bytes = [0xcc; STUB];
    bytes[..2].copy_from_slice(&[0x48, 0xa3]); // mov [address], rax
    bytes[2..10].copy_from_slice(&(&raw const TANDEM_SAVED as u64).to_le_bytes());
    bytes[10] = 0xb8; // mov eax, imm32
    bytes[11..15].copy_from_slice(&(number as u32).to_le_bytes());
    bytes[15..17].copy_from_slice(&[0xff, 0x25]); // jmp [rip + x]
    bytes[DISTANCE].copy_from_slice(&distance.wrapping_sub(DISTANCE.end as u32).to_le_bytes());
    bytes
}

std::arch::global_asm!(
    r#"
    // Entered from Rust: rdi = &Entry. Leaves the twin's result in rax.
    .globl tandem_twin_enter
tandem_twin_enter:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    mov [rip + TANDEM_HOST_RSP], rsp
    mov rax, rdi
    mov rsp, [rax]
    mov r11, [rax + 8]
    mov [rip + TANDEM_SAVED + 88], r11
    mov rcx, [rax + 24]
    mov rdx, [rax + 32]
    mov rsi, [rax + 40]
    mov rdi, [rax + 48]
    mov r8, [rax + 56]
    mov r9, [rax + 64]
    mov r10, [rax + 72]
    mov r11, [rax + 80]
    mov [rip + TANDEM_TWIN_RSP], rsp
    // Values that are told apart, to be found again at the end; the hypervisor's entry clears these registers.
    movabs rax, 0x7a5a5a5a5a5a5a01
    lea rbx, [rax + 1]
    lea rbp, [rax + 2]
    lea r12, [rax + 3]
    lea r13, [rax + 4]
    lea r14, [rax + 5]
    lea r15, [rax + 6]
    xor eax, eax
    cld
    call [rip + TANDEM_SAVED + 88]
    // The twin returned: callee-saved registers and stack must be as they were.
    movabs rcx, 0x7a5a5a5a5a5a5a01
    sub rbx, rcx
    cmp rbx, 1
    jne 4f
    sub rbp, rcx
    cmp rbp, 2
    jne 4f
    sub r12, rcx
    cmp r12, 3
    jne 4f
    sub r13, rcx
    cmp r13, 4
    jne 4f
    sub r14, rcx
    cmp r14, 5
    jne 4f
    sub r15, rcx
    cmp r15, 6
    jne 4f
    cmp rsp, [rip + TANDEM_TWIN_RSP]
    je tandem_twin_leave
4:  mov qword ptr [rip + TANDEM_BROKEN], 1
    // Or the fault handler sent us here.
    .globl tandem_twin_leave
tandem_twin_leave:
    mov rsp, [rip + TANDEM_HOST_RSP]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    cld
    ret

    // Jumped to from a stub, which stored rax and left its number in it. The stack is the twin's: its return address on
    // top.
    .globl tandem_twin_gate
tandem_twin_gate:
    mov [rip + TANDEM_SAVED + 8], rcx
    mov [rip + TANDEM_SAVED + 16], rdx
    mov [rip + TANDEM_SAVED + 24], rsi
    mov [rip + TANDEM_SAVED + 32], rdi
    mov [rip + TANDEM_SAVED + 40], r8
    mov [rip + TANDEM_SAVED + 48], r9
    mov [rip + TANDEM_SAVED + 56], r10
    mov [rip + TANDEM_SAVED + 64], r11
    mov [rip + TANDEM_SAVED + 72], rax
    mov [rip + TANDEM_SAVED + 80], rsp
    mov rsp, [rip + TANDEM_HOST_RSP]
    and rsp, -16
    cld
    lea rdi, [rip + TANDEM_SAVED]
    call {gate}
    cmp eax, 1
    ja tandem_twin_leave
    mov rax, [rip + TANDEM_SAVED + 0]
    mov rcx, [rip + TANDEM_SAVED + 8]
    mov rdx, [rip + TANDEM_SAVED + 16]
    mov rsi, [rip + TANDEM_SAVED + 24]
    mov rdi, [rip + TANDEM_SAVED + 32]
    mov r8, [rip + TANDEM_SAVED + 40]
    mov r9, [rip + TANDEM_SAVED + 48]
    mov r10, [rip + TANDEM_SAVED + 56]
    mov r11, [rip + TANDEM_SAVED + 64]
    mov rsp, [rip + TANDEM_SAVED + 80]
    je 2f
    ret
2:  jmp [rip + TANDEM_SAVED + 88]

    .bss
    .balign 16
TANDEM_HOST_RSP: .skip 8
TANDEM_TWIN_RSP: .skip 8
    .globl TANDEM_BROKEN
TANDEM_BROKEN: .skip 8
    .balign 16
    .globl TANDEM_SAVED
TANDEM_SAVED: .skip 128
    .text
    "#,
    gate = sym gate_entry,
);

extern "C" {
    /// Enters the twin.
    pub fn tandem_twin_enter(entry: *const Entry) -> u64;
    /// Where the fault handler sends an invocation that is over.
    pub fn tandem_twin_leave();
    /// The common part of the stubs.
    pub fn tandem_twin_gate();
    /// Set when a twin returned with another stack pointer or callee-saved register than it was given.
    pub static mut TANDEM_BROKEN: u64;
    /// Where the stubs store rax: the first word of [`Saved`].
    static TANDEM_SAVED: u64;
}

/// What runs, and who serves its calls.
#[derive(Debug)]
pub enum Callee {
    /// An invocation of a twin.
    Twin(*mut Invocation<'static, 'static>),
    /// The original text; the names of what it calls, by stub.
    Original(*const Vec<String>),
}

/// Time stamps spent in gates, without the few instructions of entry and exit.
pub static GATE_CYCLES: AtomicU64 = AtomicU64::new(0);
/// Time stamps spent in invocations, gates included.
pub static CALL_CYCLES: AtomicU64 = AtomicU64::new(0);

/// Enters what `RUNNING` describes; returns its result. The second is whether it came back with another stack pointer
/// or callee-saved register than it was given.
///
/// # Safety
/// 1. The target is the start of a function that keeps to its stack, or whose faults end the invocation.
/// 2. `RUNNING` points to what the gates need, exclusively, until this returns.
pub unsafe fn enter(entry: &Entry) -> (u64, bool) {
    // SAFETY: reads a counter.
    let start = unsafe { core::arch::x86_64::_rdtsc() };
    // SAFETY: promised by the caller.
    let value = unsafe { tandem_twin_enter(entry) };
    // SAFETY: as above.
    CALL_CYCLES.fetch_add(unsafe { core::arch::x86_64::_rdtsc() } - start, Ordering::Relaxed);
    // SAFETY: only the entry code writes it, and it does not run now.
    let broken = unsafe { core::ptr::replace(&raw mut TANDEM_BROKEN, 0) } != 0;
    (value, broken)
}

/// What gates and handlers need of the running invocation. Raw pointers because both are entered from outside of Rust.
#[derive(Debug)]
pub struct Running {
    /// What runs.
    pub callee: Callee,
    /// Its mappings.
    pub arena: *mut Arena,
    /// The domain.
    pub world: *mut World,
    /// The routines.
    pub support: *const Support,
    /// Set when it is over early.
    pub abort: Option<Abort>,
}

/// Called by the assembly: serves a call out of the image. Returns 0 to return, 1 to enter a function of the twin, 2 to
/// abort.
extern "C" fn gate_entry(saved: *mut Saved) -> u32 {
    // SAFETY: the assembly passes its only save area; the running invocation set `RUNNING` and lives until it returns.
    let (saved, running) = unsafe { (&mut *saved, &mut *RUNNING.load(Ordering::Relaxed)) };
    // SAFETY: reads a counter.
    let start = unsafe { core::arch::x86_64::_rdtsc() };
    // SAFETY: the pointers were made from the exclusive references that `call` holds for the whole invocation.
    let (arena, world, support) = unsafe { (&mut *running.arena, &mut *running.world, &*running.support) };
    let base = arena.code_base();
    let answer = match running.callee {
        // SAFETY: as above.
        Callee::Twin(twin) => twin_gate(unsafe { &mut *twin }, saved, arena, world, support),
        // SAFETY: as above.
        Callee::Original(names) => original_gate(unsafe { &*names }, saved, world, support),
    };
    // SAFETY: as above.
    GATE_CYCLES.fetch_add(unsafe { core::arch::x86_64::_rdtsc() } - start, Ordering::Relaxed);
    saved.registers = answer.registers(&saved.registers);
    match answer {
        Answer::Return(_) | Answer::Resume => 0,
        Answer::Enter(offset) => {
            saved.target = base + u64::from(offset);
            1
        }
        Answer::Wait => unreachable!("the domain answers at once"),
        Answer::Abort(abort) => {
            running.abort = Some(abort);
            2
        }
    }
}

fn twin_gate(
    invocation: &mut Invocation<'static, 'static>,
    saved: &Saved,
    arena: &mut Arena,
    world: &mut World,
    support: &Support,
) -> Answer {
    let gate = match saved.number {
        STUB_MISS => Gate::StlbMiss,
        STUB_ICALL => Gate::IndirectCall,
        STUB_WARN => Gate::Warn,
        number => Gate::Import(number as u32),
    };
    // SAFETY: the stub was called, so the twin's rsp points to a return address in its stack.
    let back = unsafe { *(saved.rsp as *const u64) };
    let call = Call { gate, registers: saved.registers, from: arena.offset(back), stack: saved.rsp };
    if is_late() {
        return Answer::Abort(Abort::at(
            invocation.twin().verified().image(),
            call.from.saturating_sub(1),
            Reason::TimeOut,
        ));
    }
    invocation.gate(&call, &mut Embedded { world, instance: arena }, support)
}

fn original_gate(names: &[String], saved: &Saved, world: &mut World, support: &Support) -> Answer {
    let name = names.get(saved.number as usize).map_or("", String::as_str);
    let args = saved.registers.args();
    // What goes wrong ends the process: this only runs what was seen to go right.
    let value = routine(name, &args, world, support);
    Answer::Return(value.unwrap_or_else(|(_, reason)| panic!("{name}: {reason}")))
}
