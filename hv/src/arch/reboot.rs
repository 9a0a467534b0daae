//! Restarting the machine and turning it off.

use crate::arch::acpi;
use crate::console::print_interrupting;
use crate::cpu::halt_forever;
use crate::cpu::port::{inb, inw, outb, outw};
use crate::mem::vmap;
use core::arch::asm;
use x86::MachAddr;

const KEYBOARD_STATUS: u16 = 0x64;
const KEYBOARD_INPUT_FULL: u8 = 1 << 1;
const KEYBOARD_PULSE_RESET: u8 = 0xfe;

const SPACE_MEMORY: u8 = 0;
const SPACE_PORT: u8 = 1;

const PM1_SLEEP_TYPE_SHIFT: u32 = 10;
const PM1_SLEEP_TYPE: u16 = 7 << PM1_SLEEP_TYPE_SHIFT;
const PM1_SLEEP_ENABLE: u16 = 1 << 13;

/// Restarts the machine: as ACPI says, else by the keyboard controller, else by a triple fault.
pub fn reboot() -> ! {
    if let Some(reset) = acpi::tables().fadt.and_then(|fadt| fadt.reset) {
        match (reset.space, u16::try_from(reset.addr)) {
            // SAFETY: a port of the chipset whose only effect is the reset.
            (SPACE_PORT, Ok(port)) => unsafe { outb(port, reset.value) },
            (SPACE_MEMORY, _) => {
                if let Some(register) = vmap::map_device(MachAddr::new(reset.addr), 1) {
                    // SAFETY: a mapped register of the chipset whose only effect is the reset.
                    unsafe { register.write_volatile(reset.value) };
                }
            }
            _ => {}
        }
        wait_a_moment();
    }
    for _ in 0..0x1_0000 {
        if inb(KEYBOARD_STATUS) & KEYBOARD_INPUT_FULL == 0 {
            break;
        }
    }
    // SAFETY: the keyboard controller's only answer is the reset.
    unsafe { outb(KEYBOARD_STATUS, KEYBOARD_PULSE_RESET) };
    wait_a_moment();
    triple_fault()
}

/// Turns the machine off, with the sleep types that the firmware's byte code names.
pub fn power_off() -> ! {
    if let Some((type_a, type_b)) = acpi::s5_sleep_types() {
        let value = |sleep_type: u8| u16::from(sleep_type) << PM1_SLEEP_TYPE_SHIFT;
        sleep(value(type_a), value(type_b));
    }
    print_interrupting(format_args!("The machine cannot turn itself off. It is safe to do so now."));
    halt_forever()
}

/// Enters the sleep state that `pm1a` and `pm1b` select: what dom0 would write to the PM1 control registers
/// (`XENPF_enter_acpi_sleep`). Returns if the machine did not turn off.
pub fn sleep(pm1a: u16, pm1b: u16) {
    let Some(fadt) = acpi::tables().fadt else { return };
    for (port, value) in [(fadt.pm1a_control, pm1a), (fadt.pm1b_control, pm1b)] {
        if port != 0 {
            let kept = inw(port) & !(PM1_SLEEP_TYPE | PM1_SLEEP_ENABLE);
            // SAFETY: a power management register by what ACPI says: the machine goes on, or it turns off.
            unsafe {
                outw(port, kept | value & PM1_SLEEP_TYPE);
                outw(port, kept | value & PM1_SLEEP_TYPE | PM1_SLEEP_ENABLE);
            }
        }
    }
    wait_a_moment();
}

fn wait_a_moment() {
    for _ in 0..0x10_0000 {
        core::hint::spin_loop();
    }
}

fn triple_fault() -> ! {
    let empty_idt = [0u16; 5];
    // SAFETY: with an empty IDT the breakpoint cannot be delivered, which resets the CPU: that is what is wanted.
    unsafe { asm!("lidt [{}]", "int3", in(reg) &empty_idt) };
    halt_forever()
}
