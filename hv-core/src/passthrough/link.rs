//! A link outlives its driver: a network interface that changes hands while its link is up need not negotiate it anew,
//! which takes two to three seconds on copper. Its PHY does not care who drives it; but each driver, when it begins,
//! resets the PHY, or has it negotiate anew. So of what the next driver writes to the interface's registers while it
//! begins, just that is left out.
//!
//! Known are Intel's gigabit controllers without a function-level reset (8254x, 8257x; software developer's manuals:
//! CTRL, STATUS, MDIC, RCTL, ICR, IMS, and register 0 of the PHY, which is IEEE 802.3's, clause 22).

use super::reset::{self, Kind};

/// All registers that matter are in the first page of the region of this base address register.
pub const BAR: u8 = 0;
/// Tells, by [`is_up`], whether there is a link.
pub const STATUS: u16 = 0x8;
const LINK_UP: u32 = 1 << 1;

/// CTRL, which is there twice, and its bit that resets the PHY.
const CTRL: [u16; 2] = [0x0, 0x4];
const PHY_RESET: u32 = 1 << 31;
/// MDIC: one register of the PHY is read or written.
const MDIC: u16 = 0x20;
const MDIC_WRITE: u32 = 1 << 26;
const MDIC_OP: u32 = 3 << 26;
const MDIC_REGISTER: u32 = 0x1f << 16;
/// Bits of the PHY's control register that take the link down: reset, power down, isolate, restart of the negotiation.
const PHY_CONTROL_DOWN: u32 = 1 << 15 | 1 << 11 | 1 << 10 | 1 << 9;
/// RCTL, and its bit that has the interface receive.
const RCTL: u16 = 0x100;
const RECEIVES: u32 = 1 << 1;
/// What the interface has to tell, and what of it it interrupts for.
const ICR: u16 = 0xc0;
const IMS: u16 = 0xd0;

/// Is it known how to keep the link of a function of this kind?
pub fn is_known(kind: Kind) -> bool {
    reset::method(kind) == Some(&reset::GIGABIT)
}

/// Is the link up?
pub const fn is_up(status: u32) -> bool {
    status != u32::MAX && status & LINK_UP != 0
}

/// How far a driver has come that begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begins {
    /// It has had the interface receive.
    receives: bool,
}

/// What becomes of a driver's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Before that, this value is written to the register at this offset.
    pub first: Option<(u16, u32)>,
    /// This is written.
    pub value: u32,
    /// The driver has begun: all that it writes after this is what somebody wants.
    pub is_last: bool,
}

impl Begins {
    /// What is written if the driver writes `value` to the register at `offset`. It has begun when it receives and lets
    /// the interface interrupt.
    ///
    /// What happened before it let it is forgotten then: with a link that is up packets come before there is room for
    /// them, and QEMU's e1000e (7.2) keeps for ever that some were lost, and does not interrupt for the state of the
    /// link any more.
    pub fn pass(&mut self, offset: u16, value: u32) -> Passed {
        let passed = match offset {
            _ if offset == CTRL[0] || offset == CTRL[1] => value & !PHY_RESET,
            MDIC if value & MDIC_OP == MDIC_WRITE && value & MDIC_REGISTER == 0 => value & !PHY_CONTROL_DOWN,
            _ => value,
        };
        if offset == RCTL {
            // 0 turns it off; a driver that sets it up changes other bits meanwhile.
            self.receives = value & RECEIVES != 0 || self.receives && value != 0;
        }
        let is_last = offset == IMS && value != 0 && self.receives;
        Passed { first: is_last.then_some((ICR, u32::MAX)), value: passed, is_last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The PHY at address 1: `value` is written to this register.
    const fn mdic(register: u32, value: u32) -> u32 {
        MDIC_WRITE | 1 << 21 | register << 16 | value
    }

    fn passed(offset: u16, value: u32) -> u32 {
        let passed = Begins::default().pass(offset, value);
        assert_eq!((passed.first, passed.is_last), (None, false), "{offset:#x} {value:#x}");
        passed.value
    }

    #[test]
    fn what_takes_the_link_down_is_left_out() {
        // Negotiation on and 1000 Mbit/s full duplex stay as they are wanted.
        assert_eq!(passed(MDIC, mdic(0, 0x1340)), mdic(0, 0x1140), "restart");
        assert_eq!(passed(MDIC, mdic(0, 0x9140)), mdic(0, 0x1140), "reset");
        assert_eq!(passed(MDIC, mdic(0, 0x1940)), mdic(0, 0x1140), "power down");
        for ctrl in CTRL {
            assert_eq!(passed(ctrl, PHY_RESET | 0x0400_0241), 0x0400_0241, "the interface itself is reset");
        }
    }

    #[test]
    fn all_else_passes_as_it_is() {
        let read = 2 << 26 | 1 << 21 | 0x8e00;
        for (offset, value) in [
            (MDIC, read),
            (MDIC, mdic(4, 0x9e01)),
            (MDIC, mdic(16, 0xffff)),
            (0x24, mdic(0, 0x8000)),
            (0xd8, u32::MAX),
            (0xffc, 1),
        ] {
            assert_eq!(passed(offset, value), value);
        }
    }

    /// Each write, and whether it is the last.
    fn begins(writes: &[(u16, u32, bool)]) {
        let mut driver = Begins::default();
        for &(offset, value, is_last) in writes {
            let first = is_last.then_some((ICR, u32::MAX));
            assert_eq!(driver.pass(offset, value), Passed { first, value, is_last }, "{offset:#x} {value:#x}");
        }
    }

    #[test]
    fn a_driver_that_receives_and_is_interrupted_has_begun() {
        begins(&[
            (IMS, 4, false),
            (RCTL, 0x0400_8002, false),
            (0xd8, u32::MAX, false),
            (IMS, 0, false),
            (IMS, 4, true),
        ]);
        begins(&[(RCTL, 0x0400_8002, false), (RCTL, 0x0400_8000, false), (IMS, 0x0157_0244, true)]);
        begins(&[(RCTL, 2, false), (RCTL, 0, false), (IMS, 4, false), (RCTL, 2, false), (IMS, 4, true)]);
        begins(&[(0x104, 2, false), (IMS, 4, false)]);
    }

    #[test]
    fn known_are_intels_gigabit_interfaces() {
        let kind = |vendor, device, class, has_function_reset| Kind { vendor, device, class, has_function_reset };
        assert!(is_known(kind(0x8086, 0x10d3, 0x02_0000, false)) && is_known(kind(0x8086, 0x100e, 0x02_0000, false)));
        // One of 10 Gbit/s, a 100 Mbit/s one, another vendor's, and a disk controller.
        assert!(!is_known(kind(0x8086, 0x10fb, 0x02_0000, true)) && !is_known(kind(0x8086, 0x1229, 0x02_0000, false)));
        assert!(!is_known(kind(0x10ec, 0x8139, 0x02_0000, false)) && !is_known(kind(0x8086, 0x2922, 0x01_0601, false)));
    }

    #[test]
    fn a_link_of_which_nothing_is_known_is_down() {
        assert!(is_up(0x0008_0083) && !is_up(0x0008_0080) && !is_up(u32::MAX));
    }
}
