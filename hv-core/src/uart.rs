//! Whether there is a serial port (16550A) where one is looked for.
//!
//! Where no device answers, reads give all ones, or all zeros, or what was last on the bus: with all ones a port would
//! have received bytes without end.

/// The port's registers, by their offset.
pub trait Registers {
    /// Reads one.
    fn read(&mut self, offset: u16) -> u8;
    /// Writes one.
    fn write(&mut self, offset: u16, value: u8);
}

const INTERRUPT_ENABLE: u16 = 1;
const LINE_CONTROL: u16 = 3;
const SCRATCH: u16 = 7;
const LINE_DIVISOR_LATCH: u8 = 1 << 7;

/// Is there a port? Its interrupts are off afterwards, and its scratch register is not what it was.
pub fn is_present(port: &mut impl Registers) -> bool {
    // The divisor may be where the interrupts' bits are otherwise.
    let line = port.read(LINE_CONTROL);
    port.write(LINE_CONTROL, line & !LINE_DIVISOR_LATCH);
    port.write(INTERRUPT_ENABLE, 0);
    // The oldest ports have no scratch register, but all keep these four bits. Those that raise an interrupt here are
    // off again before anybody could be interrupted.
    let found = holds(port, SCRATCH, [0x5a, 0xa5]) || holds(port, INTERRUPT_ENABLE, [0x0a, 0x05]);
    port.write(INTERRUPT_ENABLE, 0);
    found
}

/// Does a register keep both values while others are on the bus?
fn holds(port: &mut impl Registers, offset: u16, values: [u8; 2]) -> bool {
    values.into_iter().all(|value| {
        port.write(offset, value);
        port.write(if offset == SCRATCH { INTERRUPT_ENABLE } else { SCRATCH }, 0);
        port.read(offset) == value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What answers.
    #[derive(Clone, Copy)]
    enum Device {
        Uart {
            has_scratch: bool,
        },
        Always(u8),
        /// What was last on the bus.
        Echo,
    }

    struct Bus {
        device: Device,
        registers: [u8; 8],
        last: u8,
    }

    impl Registers for Bus {
        fn read(&mut self, offset: u16) -> u8 {
            match self.device {
                Device::Uart { .. } => self.registers[usize::from(offset)],
                Device::Always(value) => value,
                Device::Echo => self.last,
            }
        }

        fn write(&mut self, offset: u16, value: u8) {
            self.last = value;
            let is_latched = self.registers[usize::from(LINE_CONTROL)] & LINE_DIVISOR_LATCH != 0;
            match (self.device, offset) {
                (Device::Uart { has_scratch: false }, SCRATCH) => {}
                // The divisor.
                (_, INTERRUPT_ENABLE) if is_latched => {}
                (_, INTERRUPT_ENABLE) => self.registers[usize::from(offset)] = value & 15,
                _ => self.registers[usize::from(offset)] = value,
            }
        }
    }

    fn bus(device: Device) -> Bus {
        Bus { device, registers: [0, 1, 0, 0x83, 8, 0x60, 0, 0], last: 0xff }
    }

    #[test]
    fn a_port_is_found_as_firmware_left_it_and_its_interrupts_are_off() {
        for has_scratch in [true, false] {
            let mut port = bus(Device::Uart { has_scratch });
            assert!(is_present(&mut port));
            assert_eq!(port.registers[1], 0);
            assert_eq!(port.registers[3], 3, "bits of a character stay");
        }
    }

    #[test]
    fn nothing_is_no_port() {
        for device in [Device::Always(0xff), Device::Always(0), Device::Always(0x60), Device::Echo] {
            assert!(!is_present(&mut bus(device)));
        }
    }
}
