//! Restarting the machine.

use crate::arch::insn::{halt_forever, inb, outb};
use core::arch::asm;

const KEYBOARD_STATUS: u16 = 0x64;
const KEYBOARD_INPUT_FULL: u8 = 1 << 1;
const KEYBOARD_PULSE_RESET: u8 = 0xfe;

/// Restarts the machine: by the keyboard controller, else by a triple fault.
pub fn reboot() -> ! {
    for _ in 0..0x1_0000 {
        if inb(KEYBOARD_STATUS) & KEYBOARD_INPUT_FULL == 0 {
            break;
        }
    }
    outb(KEYBOARD_STATUS, KEYBOARD_PULSE_RESET);
    for _ in 0..0x1_0000 {
        core::hint::spin_loop();
    }
    triple_fault()
}

fn triple_fault() -> ! {
    let empty_idt = [0u16; 5];
    // SAFETY: with an empty IDT the breakpoint cannot be delivered, which resets the CPU: that is what is wanted.
    unsafe { asm!("lidt [{}]", "int3", in(reg) &empty_idt) };
    halt_forever()
}

/// Powers the machine off.
pub fn power_off() -> ! {
    halt_forever()
}
