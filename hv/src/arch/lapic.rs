//! The local APIC of each CPU, through memory (xAPIC) or registers (x2APIC) (SDM vol. 3A, chapter 11).

use crate::arch::{acpi, vectors};
use crate::cpu::{cpuid, rdmsr, wrmsr};
use crate::info;
use crate::mem::device_frames;
use crate::mem::vmap;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use x86::{msr, MachAddr, Mfn};

/// Registers, as offsets in the memory page; in x2APIC mode the MSR is 0x800 + offset / 16.
mod reg {
    pub const ID: u32 = 0x20;
    pub const VERSION: u32 = 0x30;
    pub const TASK_PRIORITY: u32 = 0x80;
    pub const EOI: u32 = 0xb0;
    pub const LOGICAL_DESTINATION: u32 = 0xd0;
    pub const DESTINATION_FORMAT: u32 = 0xe0;
    pub const SPURIOUS: u32 = 0xf0;
    pub const IN_SERVICE: u32 = 0x100;
    pub const ERROR_STATUS: u32 = 0x280;
    pub const COMMAND_LOW: u32 = 0x300;
    pub const COMMAND_HIGH: u32 = 0x310;
    pub const LVT_TIMER: u32 = 0x320;
    pub const LVT_THERMAL: u32 = 0x330;
    pub const LVT_PERFORMANCE: u32 = 0x340;
    pub const LVT_LINT0: u32 = 0x350;
    pub const LVT_LINT1: u32 = 0x360;
    pub const LVT_ERROR: u32 = 0x370;
    pub const TIMER_INITIAL: u32 = 0x380;
    pub const TIMER_CURRENT: u32 = 0x390;
    pub const TIMER_DIVIDE: u32 = 0x3e0;
}

const LVT_MASKED: u32 = 1 << 16;
const SOFTWARE_ENABLE: u32 = 1 << 8;
const DELIVER_NMI: u32 = 4 << 8;
const DELIVER_INIT: u32 = 5 << 8;
const DELIVER_STARTUP: u32 = 6 << 8;
const LEVEL_ASSERT: u32 = 1 << 14;
const SEND_PENDING: u32 = 1 << 12;
const DIVIDE_BY_1: u32 = 0b1011;
const DIVIDE_BY_16: u32 = 0b0011;
/// While it is measured the timer runs slower by this, so that it lasts a minute and not seconds.
pub const MEASURING_DIVISOR: u64 = 16;
/// Polls of a command that is being sent.
const MAX_SEND_POLLS: u32 = 100_000;
const CPUID_X2APIC: u32 = 1 << 21;
const CPUID_HYPERVISOR: u32 = 1 << 31;

/// Where the registers are mapped; zero in x2APIC mode.
static BASE: AtomicU64 = AtomicU64::new(0);
static X2APIC: AtomicBool = AtomicBool::new(false);

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "registers have 32 bits")]
fn read(register: u32) -> u32 {
    match BASE.load(Ordering::Relaxed) {
        0 => rdmsr(msr::X2APIC_FIRST + (register >> 4)) as u32,
        // SAFETY: the page of registers is mapped at `base` for ever; registers are read as whole words.
        base => unsafe { ((base + u64::from(register)) as *const u32).read_volatile() },
    }
}

#[inline]
fn write(register: u32, value: u32) {
    match BASE.load(Ordering::Relaxed) {
        // SAFETY: APIC registers do not affect memory or control flow of Rust code, interrupts being off.
        0 => unsafe { wrmsr(msr::X2APIC_FIRST + (register >> 4), value.into()) },
        // SAFETY: as for `read`, and as above.
        base => unsafe { ((base + u64::from(register)) as *mut u32).write_volatile(value) },
    }
}

/// Chooses the mode and sets up the first CPU's APIC. `allow_x2apic` is the user's choice.
pub fn init(allow_x2apic: bool) {
    let base = rdmsr(msr::APIC_BASE);
    let features = cpuid(1, 0).ecx;
    // Without interrupt remapping x2APIC is architecturally for virtual machines only, unless the firmware chose it.
    let use_x2apic = base & msr::APIC_BASE_X2APIC != 0
        || allow_x2apic && features & CPUID_X2APIC != 0 && features & CPUID_HYPERVISOR != 0;
    X2APIC.store(use_x2apic, Ordering::Relaxed);
    if !use_x2apic {
        let addr = acpi::tables().madt.as_ref().map_or(base & 0xf_ffff_f000, |madt| madt.local_apic);
        let registers = vmap::map_device(MachAddr::new(addr), 4096).expect("memory to map the local APIC");
        BASE.store(registers as u64, Ordering::Relaxed);
    }
    // Messages to APICs go to this MiB, which no domain may write by itself.
    device_frames::hide(Mfn::new(0xfee00), Mfn::new(0xfeeff));
    init_this_cpu();
    let mode = if use_x2apic { "x2APIC" } else { "xAPIC" };
    info!("Local APIC: id {}, version {:#x}, {mode}", id(), read(reg::VERSION) & 0xff);
}

/// Sets up the running CPU's APIC in the mode that [`init`] chose.
pub fn init_this_cpu() {
    let mode = if X2APIC.load(Ordering::Relaxed) { msr::APIC_BASE_X2APIC } else { 0 };
    // SAFETY: the register exists on every 64-bit CPU; the address is kept.
    unsafe { wrmsr(msr::APIC_BASE, rdmsr(msr::APIC_BASE) | msr::APIC_BASE_ENABLE | mode) };
    if mode == 0 {
        write(reg::DESTINATION_FORMAT, 0xffff_ffff);
        write(reg::LOGICAL_DESTINATION, 0);
    }
    write(reg::TASK_PRIORITY, 0);
    for lvt in [reg::LVT_TIMER, reg::LVT_LINT0, reg::LVT_ERROR] {
        write(lvt, LVT_MASKED);
    }
    let entries = (read(reg::VERSION) >> 16 & 0xff) + 1;
    if entries > 4 {
        write(reg::LVT_PERFORMANCE, LVT_MASKED);
    }
    if entries > 5 {
        write(reg::LVT_THERMAL, LVT_MASKED);
    }
    write(reg::LVT_LINT1, if is_bsp() { DELIVER_NMI } else { LVT_MASKED });
    write(reg::SPURIOUS, SOFTWARE_ENABLE | u32::from(vectors::SPURIOUS));
    write(reg::LVT_ERROR, vectors::APIC_ERROR.into());
    write(reg::ERROR_STATUS, 0);
    write(reg::TIMER_DIVIDE, DIVIDE_BY_1);
    write(reg::LVT_TIMER, vectors::TIMER.into());
    // Whatever the firmware left in service would block everything of lower priority.
    for word in (0..8).rev() {
        for _ in 0..read(reg::IN_SERVICE + word * 16).count_ones() {
            eoi();
        }
    }
}

fn is_bsp() -> bool {
    rdmsr(msr::APIC_BASE) & msr::APIC_BASE_BSP != 0
}

/// The running CPU's APIC id.
pub fn id() -> u32 {
    let raw = read(reg::ID);
    if X2APIC.load(Ordering::Relaxed) {
        raw
    } else {
        raw >> 24
    }
}

/// Is the APIC driven through registers, so that ids have 32 bits?
pub fn is_x2apic() -> bool {
    X2APIC.load(Ordering::Relaxed)
}

/// Does the APIC wait for the end of interrupt `vector`?
pub fn is_in_service(vector: u8) -> bool {
    read(reg::IN_SERVICE + u32::from(vector) / 32 * 16) >> (vector % 32) & 1 != 0
}

/// Ends the interrupt in service.
#[inline]
pub fn eoi() {
    write(reg::EOI, 0);
}

/// The errors since the last call.
pub fn take_errors() -> u32 {
    write(reg::ERROR_STATUS, 0);
    read(reg::ERROR_STATUS)
}

/// Starts the one-shot timer with `ticks` (at least 1); zero stops it.
#[inline]
pub fn start_timer(ticks: u32) {
    write(reg::TIMER_INITIAL, ticks);
}

/// Starts the timer slowly and from its highest value, to measure its frequency.
pub fn start_measuring() {
    write(reg::LVT_TIMER, LVT_MASKED | u32::from(vectors::TIMER));
    write(reg::TIMER_DIVIDE, DIVIDE_BY_16);
    write(reg::TIMER_INITIAL, u32::MAX);
}

/// Ends the measurement.
pub fn stop_measuring() {
    write(reg::TIMER_INITIAL, 0);
    write(reg::TIMER_DIVIDE, DIVIDE_BY_1);
    write(reg::LVT_TIMER, vectors::TIMER.into());
}

/// Ticks left on the timer.
pub fn timer_left() -> u32 {
    read(reg::TIMER_CURRENT)
}

/// Interrupts CPU `apic_id` with `vector`.
#[inline]
pub fn send(apic_id: u32, vector: u8) {
    command(apic_id, u32::from(vector) | LEVEL_ASSERT);
}

/// Sends CPU `apic_id` an NMI.
pub fn send_nmi(apic_id: u32) {
    command(apic_id, DELIVER_NMI | LEVEL_ASSERT);
}

/// Resets CPU `apic_id`, which then waits to be started.
pub fn send_init(apic_id: u32) {
    command(apic_id, DELIVER_INIT | LEVEL_ASSERT);
}

/// Starts CPU `apic_id` in real mode at machine page `page` (below 1 MiB).
pub fn send_startup(apic_id: u32, page: u8) {
    command(apic_id, DELIVER_STARTUP | LEVEL_ASSERT | u32::from(page));
}

#[inline]
fn command(apic_id: u32, low: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        let whole = u64::from(apic_id) << 32 | u64::from(low);
        // x2APIC writes do not order earlier stores, which the receiver must see (SDM vol. 3A, 11.12.3).
        // SAFETY: two fences, then a register of the APIC.
        unsafe {
            core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags));
            wrmsr(msr::X2APIC_FIRST + (reg::COMMAND_LOW >> 4), whole);
        }
        return;
    }
    for _ in 0..MAX_SEND_POLLS {
        if read(reg::COMMAND_LOW) & SEND_PENDING == 0 {
            break;
        }
        core::hint::spin_loop();
    }
    write(reg::COMMAND_HIGH, apic_id << 24);
    write(reg::COMMAND_LOW, low);
}
