//! Starts the other CPUs.
//!
//! They come up one after the other through a page below 1 MiB (`arch/trampoline.S`) and, for the few instructions
//! until they load the final tables, on the boot page tables: those show the trampoline where it is. When the last one
//! is up the low mapping goes. One that does not come in time is given up, and stops should it come all the same.

use crate::arch::{acpi, lapic, stacks, tsc_warp};
use crate::cpu::percpu::{self, MAX_CPUS};
use crate::cpu::{cr, halt_forever, rdtsc, read_cr4, write_cr3, write_cr4};
use crate::mem::{self, image_to_phys, layout, phys_to_virt};
use crate::sync::Once;
use crate::{info, warn};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hv_core::arrival::Arrival;
use hv_core::start_page;
use x86::MachAddr;

/// The address for which the trampoline is assembled.
const TRAMPOLINE: u64 = start_page::USUAL;
/// TSC ticks until a start-up IPI is repeated (the manuals ask for 200 us), and until a CPU is given up.
const REPEAT_TICKS: u64 = 1 << 20;
const GIVE_UP_TICKS: u64 = 1 << 32;
/// Ticks of the APIC timer that runs while a CPU is reset.
const TIMER_DURING_RESET: u32 = 1000;

global_asm!(include_str!("trampoline.S"), TRAMPOLINE = const TRAMPOLINE);

extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
    static trampoline_root: u8;
    static trampoline_stack: u8;
    static trampoline_entry: u8;
    static trampoline_addresses: u32;
    static trampoline_addresses_end: u32;
    /// The boot page tables' root, at the address it would have if it were linked like the rest.
    static boot_l4_linked: u8;
}

/// Where a CPU that was started goes on.
static THEN: Once<fn() -> !> = Once::new();

/// What became of each CPU.
static ARRIVALS: [Arrival; MAX_CPUS] = [const { Arrival::new() }; MAX_CPUS];

/// APIC id of each CPU.
static APIC_IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// APIC id of CPU `cpu`.
#[inline]
pub fn apic_id(cpu: usize) -> u32 {
    APIC_IDS.get(cpu).map_or(0, |id| id.load(Ordering::Relaxed))
}

/// Notes who the first CPU is.
pub fn init() {
    let id = lapic::id();
    percpu::this_cpu().apic_id.set(id);
    APIC_IDS[0].store(id, Ordering::Relaxed);
}

/// Starts the CPUs that ACPI lists, `limit` in all at most; each goes on in `then`. A CPU that does not come up is left
/// out, with a message.
pub fn start_others(limit: usize, then: fn() -> !) {
    THEN.call_once(|| then);
    let bsp = lapic::id();
    let Some(madt) = &acpi::tables().madt else { return };
    let (others, repeated) = madt.others(bsp);
    for apic_id in repeated {
        warn!("CPU with APIC id {apic_id} is listed more than once");
    }
    // RAM, and nothing else below 1 MiB, is in the direct map.
    let is_ram = |page| mem::tables().translate(layout::DIRECT_MAP + page).is_some();
    let Some(page) = start_page::choose(is_ram) else {
        warn!("No memory below 1 MiB in which other CPUs could start: there is one CPU");
        return;
    };
    let mut next = 1;
    let mut is_low_mapping_used = false;
    prepare_trampoline(page);
    for apic_id in others {
        if next >= limit.min(MAX_CPUS) {
            warn!("CPU with APIC id {apic_id} is not used: only {next} are");
            continue;
        }
        if apic_id > 254 && !lapic::is_x2apic() {
            warn!("CPU with APIC id {apic_id} cannot be reached without x2APIC");
            continue;
        }
        APIC_IDS[next].store(apic_id, Ordering::Relaxed);
        if start(next, apic_id, page) {
            next += 1;
        } else {
            // Its stack stays taken, and the low mapping shown: it may wake up late, in the middle of the trampoline.
            // Without them it would fault where no fault can be handled, which resets the machine.
            warn!("CPU with APIC id {apic_id} does not come up");
            is_low_mapping_used = true;
            break;
        }
    }
    set_low_mapping(is_low_mapping_used);
    tsc_warp::report();
    info!("{} CPUs", percpu::online_count());
}

/// Starts one CPU by the trampoline at `page` and waits for it. `false`: it cannot be started, or is given up.
fn start(cpu: usize, apic_id: u32, page: u64) -> bool {
    let Some(block) = stacks::map(cpu) else { return false };
    // SAFETY: the block was just mapped, zeroed, and never goes.
    let stack_pointer = unsafe { percpu::init_block(block, cpu, apic_id) };
    set_field(page, &raw const trampoline_stack, stack_pointer);
    let [page, ..] = (page >> 12).to_le_bytes();
    // Under QEMU's -icount a CPU that is reset is charged the time until the next timer, so there is one. It is handled
    // as a timer that came early.
    lapic::start_timer(TIMER_DURING_RESET);
    lapic::send_init(apic_id);
    lapic::send_startup(apic_id, page);
    let is_up = || {
        tsc_warp::answer();
        percpu::online_mask() >> cpu & 1 != 0
    };
    let begin = rdtsc();
    if !wait_until(begin, REPEAT_TICKS, is_up) {
        lapic::send_startup(apic_id, page);
    }
    if wait_until(begin, GIVE_UP_TICKS, is_up) {
        return true;
    }
    if ARRIVALS[cpu].give_up() {
        // If it listens it waits to be started again, for ever.
        lapic::send_init(apic_id);
        return false;
    }
    // It is only slow: it may have errors from before the start to print.
    while !is_up() {
        core::hint::spin_loop();
    }
    true
}

fn wait_until(begin: u64, ticks: u64, done: impl Fn() -> bool) -> bool {
    while rdtsc().wrapping_sub(begin) < ticks {
        if done() {
            return true;
        }
        core::hint::spin_loop();
    }
    done()
}

/// First Rust function on a CPU that was started.
extern "C" fn ap_main() -> ! {
    if !ARRIVALS[percpu::this_cpu().cpu as usize].come() {
        halt_forever();
    }
    // SAFETY: the final tables map the image, the direct map and so this stack exactly as the boot CPU has them.
    unsafe {
        write_cr4(read_cr4() | cr::CR4_PGE);
        write_cr3(mem::idle_root().addr().raw());
    }
    lapic::init_this_cpu();
    tsc_warp::compare();
    THEN.get().expect("set before a CPU is started")()
}

/// Copies the trampoline to `page` and fills in what is the same for all CPUs.
fn prepare_trampoline(page: u64) {
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let bytes = end as usize - start as usize;
    let copy = phys_to_virt(MachAddr::new(page));
    let (first, behind) = (&raw const trampoline_addresses, &raw const trampoline_addresses_end);
    // SAFETY: the trampoline is shorter than a page; the page is conventional memory, in the direct map, and not the
    // allocator's. The addresses in it, which the list between the two symbols names, are inside the trampoline.
    unsafe {
        core::ptr::copy_nonoverlapping(start, copy, bytes);
        let count = (behind as usize - first as usize) / size_of::<u32>();
        for &offset in core::slice::from_raw_parts(first, count) {
            let address = copy.add(offset as usize).cast::<u32>();
            address.write_unaligned(start_page::moved(address.read_unaligned(), page));
        }
    }
    set_field(page, &raw const trampoline_root, boot_root().raw());
    set_field(page, &raw const trampoline_entry, ap_main as *const () as u64);
    for slot in layout::HYPERVISOR_FIRST_SLOT..layout::HYPERVISOR_END_SLOT {
        boot_table_entry(slot).store(mem::l4_entry(slot).0, Ordering::Relaxed);
    }
    set_low_mapping(true);
}

/// Fills a field of the trampoline that was copied to `page`.
fn set_field(page: u64, field: *const u8, value: u64) {
    let offset = field as u64 - &raw const trampoline_start as u64;
    // SAFETY: the field is an aligned word of the trampoline, whose copy is in the direct map and ours. Volatile: the
    // CPU that is about to start reads it.
    unsafe { phys_to_virt(MachAddr::new(page + offset)).cast::<u64>().write_volatile(value) };
}

fn boot_root() -> MachAddr {
    image_to_phys(&raw const boot_l4_linked)
}

fn boot_table_entry(index: usize) -> &'static AtomicU64 {
    let table = phys_to_virt(boot_root()).cast::<AtomicU64>();
    // SAFETY: the table is a page of the image, in the direct map, and only used as page table.
    unsafe { &*table.add(index) }
}

/// Shows or hides the first 4 GiB at address 0 in the boot page tables.
fn set_low_mapping(shown: bool) {
    // The tables came with it in entry 0; bit 0 is its present bit.
    let entry = boot_table_entry(0);
    if shown {
        entry.fetch_or(1, Ordering::SeqCst);
    } else {
        entry.fetch_and(!1, Ordering::SeqCst);
    }
}
