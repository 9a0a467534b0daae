//! Panics: reason, backtrace with names, then stop or restart.
//!
//! The names come from a table that `cargo xtask build` writes into the section `.tandem_symbols` after linking; an
//! image linked without it prints addresses only. The table is: count (u32), then per function offset from the image's
//! address, offset and length of its name (u32, u32, u32), sorted; then the names.

use crate::arch::{ipi, machine_check, reboot, stacks};
use crate::console::print_unlocked;
use crate::cpu;
use crate::cpu::percpu::this_cpu;
use crate::mem::{self, layout};
use core::arch::asm;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use x86::insn::{ends_with_call, CALL_MAX};
use x86::vector;

/// Bytes kept in the image for the table; the build warns when names have to be left out.
const TABLE_BYTES: usize = 128 << 10;
/// Callers printed at most.
const MAX_FRAMES: usize = 24;

#[link_section = ".tandem_symbols"]
#[used]
static TABLE: [u8; TABLE_BYTES] = [0; TABLE_BYTES];

/// Stop rather than restart after a panic (`noreboot`).
static NO_REBOOT: AtomicBool = AtomicBool::new(true);
/// The CPU that reports, plus one; zero while nothing is wrong.
static REPORTER: AtomicU32 = AtomicU32::new(0);

/// Has a CPU panicked?
pub fn is_under_way() -> bool {
    REPORTER.load(Ordering::Relaxed) != 0
}

/// The first CPU here may report, after stopping the others; `false` says that this CPU was at it already, so that the
/// report itself failed. Another CPU does not return.
fn begin_report() -> bool {
    let me = this_cpu().cpu + 1;
    match REPORTER.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            ipi::stop_others();
            true
        }
        Err(reporter) if reporter == me => false,
        Err(_) => cpu::halt_forever(),
    }
}

/// Chooses what follows a panic.
pub fn set_noreboot(stop: bool) {
    NO_REBOOT.store(stop, Ordering::Relaxed);
}

// Where crates are checked for the host, some of them bring the standard library, and that its own.
#[cfg_attr(target_os = "none", panic_handler)]
#[cfg_attr(not(target_os = "none"), allow(dead_code, reason = "see above"))]
fn panic(info: &PanicInfo<'_>) -> ! {
    if begin_report() {
        print_unlocked(format_args!("PANIC on CPU {}: {}", this_cpu().cpu, info.message()));
        if let Some(place) = info.location() {
            print_unlocked(format_args!("  at {}:{}", place.file(), place.line()));
        }
        backtrace(stack_pointer());
    }
    stop()
}

/// Ends after a fatal error that was reported: restarts, or halts with `noreboot`.
pub fn stop() -> ! {
    if NO_REBOOT.load(Ordering::Relaxed) {
        print_unlocked(format_args!("Halted."));
        cpu::halt_forever();
    }
    print_unlocked(format_args!("Restarting."));
    reboot::reboot()
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let sp;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Prints the callers: what is on this CPU's stack from `sp` on and looks like a return address, which what was there
/// before may do as well.
pub fn backtrace(sp: u64) {
    print_unlocked(format_args!("Backtrace (leftovers of earlier calls may be among it):"));
    let words = stacks::words(sp, stack_pointer()).unwrap_or_default();
    for &word in words.iter().filter(|&&word| is_return_address(word)).take(MAX_FRAMES) {
        // The call, not what follows it: a call that never returns may be its function's last instruction.
        print_address(word - 1);
    }
}

/// Does `address` lie in the code, after a call?
fn is_return_address(address: u64) -> bool {
    let code = mem::text();
    let before = address.wrapping_sub(CALL_MAX as u64);
    if !code.contains(&address) || !code.contains(&before) {
        return false;
    }
    // SAFETY: the code is mapped, and never written.
    ends_with_call(unsafe { core::slice::from_raw_parts(before as *const u8, CALL_MAX) })
}

/// Prints `address` and the function it lies in.
pub fn print_address(address: u64) {
    match symbol(address) {
        Some((name, offset)) => print_unlocked(format_args!("  [{address:#x}] {name}+{offset:#x}")),
        None => print_unlocked(format_args!("  [{address:#x}]")),
    }
}

/// The function that holds `address` and how far inside it is.
pub fn symbol(address: u64) -> Option<(&'static str, u64)> {
    // Read through a volatile pointer: the compiler believes the table to be all zero.
    let table: &'static [u8] = core::hint::black_box(&TABLE);
    let word = |index: usize| -> Option<u32> {
        let bytes = table.get(index.checked_mul(4)?..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let offset = u32::try_from(address.checked_sub(layout::IMAGE)?).ok()?;
    let (mut low, mut high) = (0, word(0)? as usize);
    while low < high {
        let middle = low + (high - low) / 2;
        if word(1 + 3 * middle)? <= offset {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let entry = 1 + 3 * low.checked_sub(1)?;
    let start = word(entry + 1)? as usize;
    let name = table.get(start..start.checked_add(word(entry + 2)? as usize)?)?;
    Some((core::str::from_utf8(name).ok()?, u64::from(offset - word(entry)?)))
}

/// Ends after an exception in the hypervisor's own code, or a machine check or double fault anywhere: `regs` is the
/// frame, `cr2` the last fault address.
pub fn fatal_trap(regs: &xen_abi::regs::CpuUserRegs, cr2: u64) -> ! {
    if begin_report() {
        if stacks::is_hole(cr2) {
            print_unlocked(format_args!("STACK OVERFLOW on CPU {}", this_cpu().cpu));
        }
        let from_guest = regs.cs & 3 != 0;
        #[allow(clippy::cast_possible_truncation, reason = "the stub stored a vector")]
        let vec = regs.entry_vector as u8;
        print_unlocked(format_args!(
            "FATAL TRAP on CPU {}: {} (vector {vec}), error {:#06x}, in {}, cr2 {cr2:#018x}",
            this_cpu().cpu,
            vector::name(vec),
            regs.error_code,
            if from_guest { "a guest" } else { "the hypervisor" },
        ));
        if vec == vector::MC {
            machine_check::report();
        }
        print_unlocked(format_args!(
            "  rip {:#06x}:{:#018x} rflags {:#010x} rsp {:#018x}",
            regs.cs, regs.rip, regs.rflags, regs.rsp
        ));
        print_unlocked(format_args!(
            "  rax {:#018x} rbx {:#018x} rcx {:#018x} rdx {:#018x}",
            regs.rax, regs.rbx, regs.rcx, regs.rdx
        ));
        print_unlocked(format_args!(
            "  rsi {:#018x} rdi {:#018x} rbp {:#018x} r8  {:#018x}",
            regs.rsi, regs.rdi, regs.rbp, regs.r8
        ));
        print_unlocked(format_args!(
            "  r9  {:#018x} r10 {:#018x} r11 {:#018x} r12 {:#018x}",
            regs.r9, regs.r10, regs.r11, regs.r12
        ));
        print_unlocked(format_args!("  r13 {:#018x} r14 {:#018x} r15 {:#018x}", regs.r13, regs.r14, regs.r15));
        if !from_guest {
            print_address(regs.rip);
            backtrace(regs.rsp);
        }
    }
    stop()
}
