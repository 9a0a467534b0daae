//! Runs the twin on the host's own processor.
//!
//! The driver domain's kernel half is mapped at its masked addresses with its own page rights (mirror), or pair by pair
//! where the table says (stlb). Device registers are left unmapped: an access to them faults, and the fault handler takes
//! the one instruction to the device model. Any other fault in the twin's code, a trap or the end of its time leaves the
//! invocation for good. There is one running twin in a process; the fixed addresses allow no more.

use crate::cpu::{Bus, BusFault, CodeSpace, Cpu, Flags, Stop};
use crate::emulate::{class_of, upcall_result, UNSAFE_AREA};
use crate::lab::{Ended, Executor};
use crate::ram::Ram;
use crate::world::{Beside, Place, World, MASK_BITS, PAGE};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use twin_abi::image::Mode;
use twin_abi::layout::{self, ctx, CODE_OFFSET, STACK_GUARD, STACK_SIZE};
use twin_runtime::gate::{Answer, Call, Embedder, Gate, Twin};
use twin_runtime::instance::{Areas, Config};
use twin_runtime::linux::{Host, Routine, Support};
use twin_runtime::memory::Fault;
use twin_runtime::stlb::Mapper;
use twin_runtime::{Abort, Memory, Reason};

/// Registers stored by the stubs; the layout is known to the assembly below.
#[repr(C)]
#[derive(Debug)]
struct Saved {
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    rax: u64,
    number: u64,
    rsp: u64,
    value: u64,
    target: u64,
}

/// What `twin_enter` is given.
#[repr(C)]
struct Entry {
    stack: u64,
    target: u64,
    args: [u64; 6],
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
    mov rdi, [rax + 16]
    mov rsi, [rax + 24]
    mov rdx, [rax + 32]
    mov rcx, [rax + 40]
    mov r8, [rax + 48]
    mov r9, [rax + 56]
    xor eax, eax
    xor ebx, ebx
    xor ebp, ebp
    xor r10d, r10d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    cld
    call r11
    // The twin returned, or the fault handler sent us here.
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

    // Jumped to from a stub that pushed its number. Stack: number, return address into the twin.
    .globl tandem_twin_gate
tandem_twin_gate:
    mov [rip + TANDEM_SAVED + 0], rdi
    mov [rip + TANDEM_SAVED + 8], rsi
    mov [rip + TANDEM_SAVED + 16], rdx
    mov [rip + TANDEM_SAVED + 24], rcx
    mov [rip + TANDEM_SAVED + 32], r8
    mov [rip + TANDEM_SAVED + 40], r9
    mov [rip + TANDEM_SAVED + 48], r10
    mov [rip + TANDEM_SAVED + 56], r11
    mov [rip + TANDEM_SAVED + 64], rax
    pop rax
    mov [rip + TANDEM_SAVED + 72], rax
    mov [rip + TANDEM_SAVED + 80], rsp
    mov rsp, [rip + TANDEM_HOST_RSP]
    and rsp, -16
    cld
    lea rdi, [rip + TANDEM_SAVED]
    call {gate}
    mov rsp, [rip + TANDEM_SAVED + 80]
    cmp eax, 1
    je 2f
    ja 3f
    mov rax, [rip + TANDEM_SAVED + 88]
    xor ecx, ecx
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    ret
2:  mov rax, [rip + TANDEM_SAVED + 64]
    mov r11, [rip + TANDEM_SAVED + 56]
    mov r10, [rip + TANDEM_SAVED + 48]
    mov r9, [rip + TANDEM_SAVED + 40]
    mov r8, [rip + TANDEM_SAVED + 32]
    mov rcx, [rip + TANDEM_SAVED + 24]
    mov rdx, [rip + TANDEM_SAVED + 16]
    mov rsi, [rip + TANDEM_SAVED + 8]
    mov rdi, [rip + TANDEM_SAVED + 0]
    ret
3:  cmp eax, 2
    jne tandem_twin_leave
    mov r9, [rip + TANDEM_SAVED + 40]
    mov r8, [rip + TANDEM_SAVED + 32]
    mov rcx, [rip + TANDEM_SAVED + 24]
    mov rdx, [rip + TANDEM_SAVED + 16]
    mov rsi, [rip + TANDEM_SAVED + 8]
    mov rdi, [rip + TANDEM_SAVED + 0]
    xor eax, eax
    jmp [rip + TANDEM_SAVED + 96]

    .bss
    .balign 16
TANDEM_HOST_RSP: .skip 8
    .balign 16
    .globl TANDEM_SAVED
TANDEM_SAVED: .skip 128
    .text
    "#,
    gate = sym gate_entry,
);

extern "C" {
    fn tandem_twin_enter(entry: *const Entry) -> u64;
    fn tandem_twin_leave();
    fn tandem_twin_gate();
}

/// The invocation that runs; null outside of one.
static RUNNING: AtomicPtr<Running> = AtomicPtr::new(std::ptr::null_mut());
static IN_HANDLER: AtomicBool = AtomicBool::new(false);
/// Timer ticks of the running invocation.
static TICKS: AtomicU64 = AtomicU64::new(0);
/// Ticks after which an invocation is ended.
static TICK_LIMIT: AtomicU64 = AtomicU64::new(100);

const TICK_MICROSECONDS: i64 = 2000;

/// What gates and handlers need of the running invocation. Raw pointers because both are entered from outside of Rust.
struct Running {
    native: *mut Native<'static>,
    world: *mut World,
    support: *mut Support,
    abort: Option<Abort>,
}

/// A mapping of the process, unmapped when dropped.
#[derive(Debug)]
struct Mapped {
    at: u64,
    len: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and nothing of it is in use any more.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.len as usize) };
    }
}

/// Maps `len` bytes of `file` (or fresh memory) at `at` (or anywhere).
fn map(at: Option<u64>, len: u64, rights: i32, file: Option<(i32, u64)>) -> Result<Mapped, String> {
    let mut flags = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    if at.is_some() {
        flags |= libc::MAP_FIXED_NOREPLACE;
    }
    let (fd, offset) = file.unwrap_or((-1, 0));
    // SAFETY: a new mapping that replaces none.
    let got = unsafe {
        libc::mmap(at.unwrap_or(0) as *mut libc::c_void, len as usize, rights, flags, fd, offset as libc::off_t)
    };
    if got == libc::MAP_FAILED || at.is_some_and(|a| a != got as u64) {
        return Err(format!("cannot map {len:#x} bytes at {at:x?}: {}", std::io::Error::last_os_error()));
    }
    Ok(Mapped { at: got as u64, len })
}

fn protect(at: u64, len: u64, rights: i32) -> Result<(), String> {
    // SAFETY: the range is one of our own mappings.
    match unsafe { libc::mprotect(at as *mut libc::c_void, len as usize, rights) } {
        0 => Ok(()),
        _ => Err(format!("mprotect: {}", std::io::Error::last_os_error())),
    }
}

fn put(at: u64, bytes: &[u8]) {
    // SAFETY: callers write only into mappings of the instance, of which `bytes` is no part.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// The twin on the host's processor.
pub struct Native<'a> {
    /// The loaded image.
    pub twin: Twin<'a>,
    mode: Mode,
    base: u64,
    code: CodeSpace,
    code_len: u64,
    stack: u64,
    windows: u64,
    /// Domain page behind each mapped pair.
    pairs: Vec<Option<u64>>,
    ram_file: i32,
    ram_len: u64,
    unsafe_file: Ram,
    mapped: Vec<Mapped>,
}

const PAIR: u64 = 2 * PAGE;
const MAX_PAIRS: u64 = 1 << 16;

impl<'a> Native<'a> {
    /// Maps image and domain. `code` replaces the image's own (fault injection behind the verifier).
    pub fn new(twin: Twin<'a>, world: &mut World, percpu: u64, code: Option<&[u8]>) -> Result<Self, String> {
        let verified = *twin.verified();
        let mode = verified.policy().mode;
        let code = code.unwrap_or(verified.image().code()).to_vec();
        let code_len = (code.len() as u64).next_multiple_of(PAGE);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let mut mapped = Vec::new();
        let instance = map(None, u64::from(CODE_OFFSET) + code_len, rw, None)?;
        let base = instance.at;
        let stack_map = map(None, STACK_SIZE + 2 * STACK_GUARD, libc::PROT_NONE, None)?;
        let stack = stack_map.at + STACK_GUARD;
        protect(stack, STACK_SIZE, rw)?;
        let unsafe_file = Ram::new(&vec![0; STACK_SIZE as usize]).map_err(|e| format!("memory: {e}"))?;
        let unsafe_map = map(Some(UNSAFE_AREA), STACK_SIZE, rw, Some((unsafe_file.file(), 0)))?;
        world.beside.push(Beside {
            address: UNSAFE_AREA,
            bytes: RefCell::new(vec![0; STACK_SIZE as usize]),
            at: Some(UNSAFE_AREA as *mut u8),
        });
        let hole = map(None, PAIR, libc::PROT_NONE, None)?;
        let slots = verified.image().imports().len();
        let stubs = Stubs::new(slots)?;
        let config = Config {
            base,
            stack,
            unsafe_area: UNSAFE_AREA,
            percpu,
            canary: 0,
            stlb_miss: stubs.address(slots),
            icall: stubs.address(slots + 1),
            warn: stubs.address(slots + 2),
            imports: (0..slots).map(|n| stubs.address(n)).collect(),
            hole: hole.at,
        };
        let areas = Areas::new(&verified, twin.addresses(), &config);
        put(base + u64::from(layout::CONST_OFFSET), &areas.constants);
        put(base + u64::from(layout::IMPORT_OFFSET), &areas.imports);
        put(base + u64::from(layout::CALL_TABLE_OFFSET), &areas.call_table);
        put(base + u64::from(layout::STLB_OFFSET), &areas.stlb);
        put(base + u64::from(CODE_OFFSET), &code);
        protect(base + PAGE, u64::from(CODE_OFFSET) - PAGE, libc::PROT_READ)?;
        protect(base + u64::from(CODE_OFFSET), code_len, libc::PROT_READ | libc::PROT_EXEC)?;
        let windows = map(None, MAX_PAIRS * PAIR, libc::PROT_NONE, None)?;
        let mut native = Self {
            twin,
            mode,
            base,
            code: CodeSpace::new(base + u64::from(CODE_OFFSET), code),
            code_len,
            stack,
            windows: windows.at,
            pairs: Vec::new(),
            ram_file: world.ram.file(),
            ram_len: world.ram.len(),
            unsafe_file,
            mapped: Vec::new(),
        };
        mapped.extend([instance, stack_map, unsafe_map, hole, stubs.mapped, windows]);
        if mode == Mode::Mirror {
            native.mirror(world, &mut mapped)?;
        }
        native.mapped = mapped;
        handlers()?;
        Ok(native)
    }

    /// Shows the domain's pages at their masked addresses, runs of pages together.
    fn mirror(&self, world: &World, mapped: &mut Vec<Mapped>) -> Result<(), String> {
        let mut pages: Vec<(u64, u64, bool)> = world.masked.iter().filter(|(_, pa, _)| *pa < self.ram_len).collect();
        pages.sort_unstable();
        let mut k = 0;
        while k < pages.len() {
            let (vpn, pa, writable) = pages[k];
            let mut n = 1;
            while k + n < pages.len() && pages[k + n] == (vpn + n as u64, pa + n as u64 * PAGE, writable) {
                n += 1;
            }
            let rights = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
            mapped.push(map(Some(vpn * PAGE), n as u64 * PAGE, rights, Some((self.ram_file, pa)))?);
            k += n;
        }
        Ok(())
    }

    /// After how many ticks of two milliseconds of processor time an invocation is ended.
    pub fn set_time_limit(ticks: u64) {
        TICK_LIMIT.store(ticks, Ordering::Relaxed);
    }

    fn in_code(&self, rip: u64) -> bool {
        rip.wrapping_sub(self.base + u64::from(CODE_OFFSET)) < self.code_len
    }

    fn offset(&self, rip: u64) -> u32 {
        rip.wrapping_sub(self.base + u64::from(CODE_OFFSET)) as u32
    }

    fn in_guard(&self, address: u64) -> bool {
        (self.stack - STACK_GUARD..self.stack).contains(&address)
            || (self.stack + STACK_SIZE..self.stack + STACK_SIZE + STACK_GUARD).contains(&address)
    }

    fn word(&self, offset: u32) -> *mut u64 {
        (self.base + u64::from(layout::CTX_OFFSET + offset)) as *mut u64
    }

    /// The place behind an address that faulted, if it is a device register.
    fn device_place(&self, world: &World, address: u64, write: bool) -> Option<Place> {
        let place = match self.mode {
            Mode::Mirror if address >> MASK_BITS == 0 => {
                let (pa, writable) = world.masked.get(address / PAGE)?;
                (writable || !write).then(|| world.target(pa + address % PAGE))?
            }
            Mode::Mirror => return None,
            Mode::Stlb => {
                let offset = address.checked_sub(self.windows)?;
                let page = (*self.pairs.get((offset / PAIR) as usize)?)?;
                world.place(page + offset % PAIR, 1, write).ok()?
            }
        };
        matches!(place, Place::Device(_)).then_some(place)
    }
}

/// Entry stubs: each pushes its number and jumps to the common part.
struct Stubs {
    mapped: Mapped,
}

const STUB: usize = 16;

impl Stubs {
    /// Stubs for `slots` imports and three gates.
    fn new(slots: usize) -> Result<Self, String> {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let count = slots + 3;
        let len = ((count + 1) * STUB) as u64;
        let mapped = map(None, len.next_multiple_of(PAGE), rw, None)?;
        let common = count * STUB;
        let mut bytes = vec![0xcc; common + STUB];
        for n in 0..count {
            let at = n * STUB;
            bytes[at] = 0x68; // push imm32
            bytes[at + 1..at + 5].copy_from_slice(&(n as u32).to_le_bytes());
            bytes[at + 5..at + 7].copy_from_slice(&[0xff, 0x25]); // jmp [rip + x]
            let distance = (common - (at + 11)) as u32;
            bytes[at + 7..at + 11].copy_from_slice(&distance.to_le_bytes());
        }
        let address = tandem_twin_gate as *const () as u64;
        bytes[common..common + 8].copy_from_slice(&address.to_le_bytes());
        put(mapped.at, &bytes);
        protect(mapped.at, mapped.len, libc::PROT_READ | libc::PROT_EXEC)?;
        Ok(Self { mapped })
    }

    fn address(&self, n: usize) -> u64 {
        self.mapped.at + (n * STUB) as u64
    }
}

/// Called by the assembly: serves a call out of the image. Returns 0 to return a value, 1 to resume, 2 to enter a function
/// of the twin, 3 to abort.
extern "C" fn gate_entry(saved: *mut Saved) -> u32 {
    // SAFETY: the assembly passes its only save area; the running invocation set `RUNNING` and lives until it returns.
    let (saved, running) = unsafe { (&mut *saved, &mut *RUNNING.load(Ordering::Relaxed)) };
    // SAFETY: the pointers were made from the exclusive references that `call` holds for the whole invocation.
    let (native, world, support) = unsafe { (&mut *running.native, &mut *running.world, &mut *running.support) };
    let slots = native.twin.verified().image().imports().len() as u64;
    let gate = match saved.number.checked_sub(slots) {
        None => Gate::Import(saved.number as u32),
        Some(0) => Gate::StlbMiss,
        Some(1) => Gate::IndirectCall,
        Some(_) => Gate::Warn,
    };
    // SAFETY: the stub was called, so the twin's rsp points to a return address in its stack.
    let back = unsafe { *(saved.rsp as *const u64) };
    let call = Call {
        gate,
        args: [saved.rdi, saved.rsi, saved.rdx, saved.rcx, saved.r8, saved.r9],
        r11: saved.r11,
        from: native.offset(back),
        stack: saved.rsp,
    };
    let late = TICKS.load(Ordering::Relaxed) > TICK_LIMIT.load(Ordering::Relaxed);
    let twin: *mut Twin<'static> = &mut native.twin;
    let mut host = NativeHost { native, world };
    // SAFETY: `NativeHost` uses everything of `native` but `twin`.
    let twin = unsafe { &mut *twin };
    let answer = if late {
        Answer::Abort(Abort::at(twin.verified().image(), call.from.saturating_sub(1), Reason::TimeOut))
    } else {
        twin.gate(&call, &mut host, support)
    };
    match answer {
        Answer::Return(value) => {
            saved.value = value;
            0
        }
        Answer::Resume => 1,
        Answer::Enter(offset) => {
            saved.target = host.native.base + u64::from(CODE_OFFSET) + u64::from(offset);
            2
        }
        Answer::Abort(abort) => {
            running.abort = Some(abort);
            3
        }
    }
}

/// Installs the handlers of faults and of the timer, once.
fn handlers() -> Result<(), String> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    const ALTERNATE: usize = 1 << 18;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let alternate = map(None, ALTERNATE as u64, rw, None)?;
    let stack = libc::stack_t { ss_sp: alternate.at as *mut libc::c_void, ss_flags: 0, ss_size: ALTERNATE };
    std::mem::forget(alternate);
    // SAFETY: the stack is a mapping that is never given back; the handler has the right signature.
    unsafe {
        if libc::sigaltstack(&stack, std::ptr::null_mut()) != 0 {
            return Err("sigaltstack failed".into());
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGVTALRM] {
            if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
                return Err("sigaction failed".into());
            }
        }
        let tick = libc::timeval { tv_sec: 0, tv_usec: TICK_MICROSECONDS };
        let timer = libc::itimerval { it_interval: tick, it_value: tick };
        if libc::setitimer(libc::ITIMER_VIRTUAL, &timer, std::ptr::null_mut()) != 0 {
            return Err("setitimer failed".into());
        }
    }
    Ok(())
}

/// Bus of the fault handler: device registers only.
struct DeviceBus<'a> {
    native: &'a Native<'static>,
    world: &'a World,
}

impl Bus for DeviceBus<'_> {
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault> {
        let fault = BusFault { address, write: false };
        let place = self.native.device_place(self.world, address, false).ok_or(fault)?;
        Ok(self.world.load(place, size))
    }
    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault> {
        let fault = BusFault { address, write: true };
        let place = self.native.device_place(self.world, address, true).ok_or(fault)?;
        self.world.store(place, size, value);
        Ok(())
    }
}

/// Positions of the general registers in the saved context, in encoding order.
const CONTEXT: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let running = RUNNING.load(Ordering::Relaxed);
    let rip = registers[libc::REG_RIP as usize] as u64;
    if signal == libc::SIGVTALRM {
        TICKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: if set, the invocation lives; the handler runs on its thread, between two of its instructions.
    let in_code = unsafe { running.as_ref().is_some_and(|r| (*r.native).in_code(rip)) };
    if !in_code {
        if signal != libc::SIGVTALRM {
            stray(signal, rip);
        }
        return;
    }
    // SAFETY: as above; gates are not running, since the twin's own code was interrupted.
    let (running, native, world) = unsafe {
        let running = &mut *running;
        (&mut *(running as *mut Running), &mut *running.native, &*running.world)
    };
    if signal == libc::SIGVTALRM {
        if TICKS.load(Ordering::Relaxed) > TICK_LIMIT.load(Ordering::Relaxed) {
            running.abort = Some(Abort::at(native.twin.verified().image(), native.offset(rip), Reason::TimeOut));
            registers[libc::REG_RIP as usize] = tandem_twin_leave as *const () as i64;
        }
        return;
    }
    // SAFETY: valid for these signals.
    let address = if matches!(signal, libc::SIGSEGV | libc::SIGBUS) { unsafe { (*info).si_addr() as u64 } } else { 0 };
    let maybe_device = native.device_place(world, address, false).is_some();
    if signal == libc::SIGSEGV && maybe_device && device_access(native, world, registers) {
        return;
    }
    let vector = match signal {
        libc::SIGILL => 6,
        libc::SIGFPE => 0,
        libc::SIGTRAP => 3,
        _ => 14,
    };
    let image = *native.twin.verified().image();
    let guard = native.in_guard(address);
    // SAFETY: the context page is mapped.
    let budget = unsafe { *native.word(ctx::BUDGET) as i64 };
    running.abort = Some(Abort::exception(&image, native.offset(rip), vector, address, budget, guard));
    registers[libc::REG_RIP as usize] = tandem_twin_leave as *const () as i64;
}

/// A fault outside of the twin's code: a mistake of the harness, or an escape. The process ends with a message.
fn stray(signal: libc::c_int, rip: u64) {
    if !IN_HANDLER.swap(true, Ordering::SeqCst) {
        eprintln!("twin-harness: signal {signal} outside of the twin, at {rip:#x}");
    }
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(70) };
}

/// Takes one instruction that accesses a device register to the model.
fn device_access(native: &mut Native<'static>, world: &World, registers: &mut [libc::greg_t; 23]) -> bool {
    let mut cpu = Cpu { rip: registers[libc::REG_RIP as usize] as u64, ..Cpu::default() };
    for (to, from) in cpu.regs.iter_mut().zip(CONTEXT) {
        *to = registers[from as usize] as u64;
    }
    let bits = registers[libc::REG_EFL as usize] as u64;
    let bit = |n: u32| bits >> n & 1 != 0;
    cpu.flags = Flags { cf: bit(0), pf: bit(2), af: bit(4), zf: bit(6), sf: bit(7), of: bit(11) };
    let mut code = std::mem::replace(&mut native.code, CodeSpace::new(0, Vec::new()));
    let stop = cpu.run(&mut code, &mut DeviceBus { native, world }, 1);
    native.code = code;
    if stop != Stop::Steps {
        return false;
    }
    for (from, to) in cpu.regs.iter().zip(CONTEXT) {
        registers[to as usize] = *from as i64;
    }
    let f = cpu.flags;
    let set = [(0, f.cf), (2, f.pf), (4, f.af), (6, f.zf), (7, f.sf), (11, f.of)];
    let new = set.into_iter().fold(bits, |bits, (n, on)| bits & !(1 << n) | u64::from(on) << n);
    registers[libc::REG_EFL as usize] = new as i64;
    registers[libc::REG_RIP as usize] = cpu.rip as i64;
    true
}

impl Executor for Native<'_> {
    fn call(&mut self, world: &mut World, support: &mut Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        // SAFETY: the lifetime is forgotten only for the time of this call, during which `self` is borrowed.
        let native: *mut Native<'static> =
            unsafe { std::mem::transmute::<*mut Native<'_>, *mut Native<'static>>(self) };
        let begun = {
            // SAFETY: `NativeHost` uses everything of `native` but `twin`.
            let twin = unsafe { &(*native).twin };
            // SAFETY: as above.
            twin.begin(function, i64::MAX, &mut NativeHost { native: unsafe { &mut *native }, world })
        };
        let offset = begun.map_err(ended)?;
        let entry = Entry {
            stack: self.stack + STACK_SIZE - 256,
            target: self.base + u64::from(CODE_OFFSET) + u64::from(offset),
            args: *args,
        };
        let mut running = Running { native, world, support, abort: None };
        TICKS.store(0, Ordering::Relaxed);
        RUNNING.store(&mut running, Ordering::SeqCst);
        // SAFETY: the target is the start of a function of a loaded image, the stack is the twin's own; the sandbox or the
        // fault handler brings control back here with all callee-saved registers.
        let value = unsafe { tandem_twin_enter(&entry) };
        RUNNING.store(std::ptr::null_mut(), Ordering::SeqCst);
        match running.abort {
            None => Ok(value),
            Some(abort) => Err(ended(abort)),
        }
    }

    fn instructions(&self) -> u64 {
        0
    }
}

fn ended(a: Abort) -> Ended {
    Ended {
        class: class_of(&a.reason),
        reason: format!("{:x?}", a.reason),
        at: format!("{}+{:#x}", a.symbol, a.original),
    }
}

/// The embedder of the native twin.
struct NativeHost<'a> {
    native: &'a mut Native<'static>,
    world: &'a mut World,
}

impl Memory for NativeHost<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.world.read(address, into)
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.world.write(address, from)
    }
    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        self.world.exchange_u32(address, old, new)
    }
    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        self.world.exchange_u64(address, old, new)
    }
}

impl Host for NativeHost<'_> {
    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        self.world.machine_frame(pfn)
    }
    fn schedule_poll(&mut self, napi: u64) {
        self.world.schedule_poll(napi);
    }
    fn receive(&mut self, frame: &twin_runtime::linux::skb::Frame) {
        self.world.receive(frame);
    }
    fn transmitted(&mut self, skb: u64, cookie: u64) {
        self.world.transmitted(skb, cookie);
    }
    fn free_in_domain(&mut self, what: twin_runtime::linux::Foreign) {
        self.world.free_in_domain(what);
    }
    fn queue_event(&mut self, queue: u64) {
        self.world.queue_event(queue);
    }
    fn lock_is_busy(&mut self, lock: u64, tries: u32) -> bool {
        self.world.lock_is_busy(lock, tries)
    }
    fn note(&mut self, routine: Routine, args: &[u64; 6]) {
        self.world.note(routine, args);
    }
}

impl Mapper for NativeHost<'_> {
    fn map_pair(&mut self, page: u64) -> Result<u64, Fault> {
        let n = self.native.pairs.len() as u64;
        let fault = Fault { address: page, write: false };
        if n >= MAX_PAIRS {
            return Err(fault);
        }
        self.world.place(page, 1, false)?;
        let at = self.native.windows + n * PAIR;
        for k in 0..2 {
            let va = page.wrapping_add(k * PAGE);
            let Ok(place) = self.world.place(va, 1, false) else { continue };
            let writable = self.world.place(va, 1, true).is_ok();
            let rights = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
            let to = (at + k * PAGE) as *mut libc::c_void;
            let (file, offset) = match place {
                Place::Ram(pa) => (self.native.ram_file, pa),
                Place::Beside(_, offset) => (self.native.unsafe_file.file(), offset as u64),
                Place::Device(_) => continue,
            };
            // SAFETY: replaces a page of the window area, which is ours and unused so far.
            let got = unsafe {
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                libc::mmap(to, PAGE as usize, rights, flags, file, offset as libc::off_t)
            };
            if got != to && k == 0 {
                return Err(fault);
            }
        }
        self.native.pairs.push(Some(page));
        Ok(at)
    }

    fn unmap_pair(&mut self, mapped: u64) {
        let n = (mapped.wrapping_sub(self.native.windows) / PAIR) as usize;
        if let Some(pair) = self.native.pairs.get_mut(n) {
            *pair = None;
            // SAFETY: the pair is part of the window area.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(mapped as *mut libc::c_void, PAIR as usize, libc::PROT_NONE, flags, -1, 0);
            }
        }
    }

    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
        if index >= layout::STLB_ENTRIES as usize {
            return;
        }
        let at = self.native.base + u64::from(layout::STLB_OFFSET) + index as u64 * 16;
        let page = at & !(PAGE - 1);
        // The twin sees the table read-only; it is not running now.
        if protect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE).is_ok() {
            put(at + 8, &mapped.to_le_bytes());
            put(at, &tag.to_le_bytes());
            let _ = protect(page, PAGE, libc::PROT_READ);
        }
    }
}

impl Embedder for NativeHost<'_> {
    fn budget(&self) -> i64 {
        // SAFETY: the context page is mapped as long as the instance.
        unsafe { *self.native.word(ctx::BUDGET) as i64 }
    }
    fn set_budget(&mut self, steps: i64) {
        // SAFETY: as above.
        unsafe { *self.native.word(ctx::BUDGET) = steps as u64 };
    }
    fn miss_address(&self) -> u64 {
        // SAFETY: as above.
        unsafe { *self.native.word(ctx::MISS_ADDRESS) }
    }
    fn set_miss_result(&mut self, address: u64) {
        // SAFETY: as above.
        unsafe { *self.native.word(ctx::MISS_RESULT) = address };
    }
    fn upcall(&mut self, _import: u32, name: &str, _domain: u64, _args: &[u64; 6], _stack: u64) -> Result<u64, Reason> {
        self.world.told.upcalls.push(name.to_owned());
        Ok(upcall_result(name))
    }
    fn is_twin_stack(&self, address: u64) -> bool {
        (self.native.stack..self.native.stack + STACK_SIZE).contains(&address)
    }
}
