//! Signals: accesses to device registers, faults, and the end of an invocation's time.

use super::arena::{map, Arena};
use super::entry::{tandem_twin_leave, Callee, Running};
use crate::cpu::{Bus, BusFault, CodeSpace, Cpu, Flags, Stop};
use crate::embed::Instance;
use crate::world::World;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use twin_abi::layout::ctx;
use twin_runtime::{Abort, Reason};

/// The invocation that runs; null outside of one.
pub static RUNNING: AtomicPtr<Running> = AtomicPtr::new(std::ptr::null_mut());
/// Number of the run, for the message before the process ends.
pub static RUN: AtomicU64 = AtomicU64::new(0);
static IN_HANDLER: AtomicBool = AtomicBool::new(false);
/// Timer ticks of the running invocation.
pub static TICKS: AtomicU64 = AtomicU64::new(0);
/// Ticks after which an invocation is ended.
pub static TICK_LIMIT: AtomicU64 = AtomicU64::new(100);

const TICK_MICROSECONDS: i64 = 2000;

/// Whether the running invocation has used up its time.
pub fn is_late() -> bool {
    TICKS.load(Ordering::Relaxed) > TICK_LIMIT.load(Ordering::Relaxed)
}

/// Installs the handlers of faults and of the timer, once.
pub fn handlers() -> Result<(), String> {
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
    arena: &'a Arena,
    world: &'a World,
}

impl Bus for DeviceBus<'_> {
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault> {
        let fault = BusFault { address, write: false };
        let place = self.arena.device_place(self.world, address, false).ok_or(fault)?;
        Ok(self.world.load(place, size))
    }
    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault> {
        let fault = BusFault { address, write: true };
        let place = self.arena.device_place(self.world, address, true).ok_or(fault)?;
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
    let twin = unsafe { running.as_ref() }.and_then(|r| match r.callee {
        // SAFETY: as above.
        Callee::Twin(twin) if unsafe { (*r.arena).in_code(rip) } => Some(twin),
        _ => None,
    });
    let Some(twin) = twin else {
        if signal != libc::SIGVTALRM {
            stray(signal, rip);
        }
        return;
    };
    // SAFETY: as above; gates are not running, since the twin's own code was interrupted.
    let (running, image, arena, world) = unsafe {
        let running = &mut *running;
        let image = *(*twin).twin().verified().image();
        (&mut *(running as *mut Running), image, &mut *running.arena, &*running.world)
    };
    if signal == libc::SIGVTALRM {
        if is_late() {
            running.abort = Some(Abort::at(&image, arena.offset(rip), Reason::TimeOut));
            registers[libc::REG_RIP as usize] = tandem_twin_leave as *const () as i64;
        }
        return;
    }
    // SAFETY: valid for these signals.
    let address = if matches!(signal, libc::SIGSEGV | libc::SIGBUS) { unsafe { (*info).si_addr() as u64 } } else { 0 };
    if signal == libc::SIGSEGV {
        if arena.open_page(world, address) {
            return;
        }
        if arena.device_place(world, address, false).is_some() && device_access(arena, world, registers) {
            return;
        }
    }
    let vector = match signal {
        libc::SIGILL => 6,
        libc::SIGFPE => 0,
        libc::SIGTRAP => 3,
        _ => 14,
    };
    let (guard, budget) = (arena.in_guard(address), arena.word(ctx::BUDGET) as i64);
    running.abort = Some(Abort::exception(&image, arena.offset(rip), vector, address, budget, guard));
    registers[libc::REG_RIP as usize] = tandem_twin_leave as *const () as i64;
}

/// A fault outside of the twin's code: a mistake of the harness, or an escape. The process ends with a message.
fn stray(signal: libc::c_int, rip: u64) {
    if !IN_HANDLER.swap(true, Ordering::SeqCst) {
        let run = RUN.load(Ordering::Relaxed);
        eprintln!("twin-harness: signal {signal} outside of the twin, at {rip:#x}, run {run}");
    }
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(70) };
}

/// Takes one instruction that accesses a device register to the model.
fn device_access(arena: &mut Arena, world: &World, registers: &mut [libc::greg_t; 23]) -> bool {
    let mut cpu = Cpu { rip: registers[libc::REG_RIP as usize] as u64, ..Cpu::default() };
    for (to, from) in cpu.regs.iter_mut().zip(CONTEXT) {
        *to = registers[from as usize] as u64;
    }
    let bits = registers[libc::REG_EFL as usize] as u64;
    let bit = |n: u32| bits >> n & 1 != 0;
    cpu.flags = Flags { cf: bit(0), pf: bit(2), af: bit(4), zf: bit(6), sf: bit(7), of: bit(11) };
    let mut code = std::mem::replace(&mut arena.code, CodeSpace::new(0, Vec::new()));
    let stop = cpu.run(&mut code, &mut DeviceBus { arena, world }, 1);
    arena.code = code;
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
