//! Resets by a device's own register.
//!
//! What its last owner told a device must not live on for the next one: a network interface that goes on receiving writes
//! into memory which belongs to somebody else by then, perhaps to the device's next owner. The hardware domain's driver for
//! such devices resets functions that offer a function-level reset. Many offer none, and their way from D3hot back to D0
//! resets nothing on some machines (QEMU's among them). For the kinds below the register that every driver of theirs uses
//! does it.

/// A change of one 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its offset in the base-address region.
    pub offset: u16,
    /// Bits that become 0.
    pub clear: u32,
    /// Bits that become 1.
    pub set: u32,
}

impl Step {
    const fn clear(offset: u16, clear: u32) -> Self {
        Self { offset, clear, set: 0 }
    }
    const fn set(offset: u16, set: u32) -> Self {
        Self { offset, clear: 0, set }
    }

    /// What to write over `held`.
    pub const fn written(self, held: u32) -> u32 {
        held & !self.clear | self.set
    }
}

/// How a device is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The base address register of the region that has the registers.
    pub bar: u8,
    /// What to write, in this order.
    pub steps: &'static [Step],
    /// The register and the bits of it that are 0 when the reset has ended.
    pub busy: (u16, u32),
}

/// Bytes of the region that a reset's registers lie in.
pub const WINDOW: usize = 4096;

const INTEL: u16 = 0x8086;
const CLASS_ETHERNET: u32 = 0x02_0000;
const CLASS_AHCI: u32 = 0x01_0601;
const CLASS_NVME: u32 = 0x01_0802;

/// Intel's gigabit controllers (8254x, 8257x; software developer's manuals, section "Software Initialization"): all
/// interrupts off, receiver and transmitter off, then CTRL.RST. Intel's faster ones have a function-level reset.
const GIGABIT: Reset = Reset {
    bar: 0,
    steps: &[Step::set(0xd8, !0), Step::clear(0x100, !0), Step::clear(0x400, !0), Step::set(0, 1 << 26)],
    busy: (0, 1 << 26),
};
/// Intel's 100 Mbit/s controllers (8255x open source software developer manual, "PORT"): a software reset, after which command
/// and receive unit are idle.
const FAST_ETHERNET: Reset = Reset { bar: 0, steps: &[Step::clear(8, !0)], busy: (0, 0xfc) };
/// GHC.IE off, then GHC.HR (AHCI 1.3.1, 10.4.3).
const AHCI: Reset = Reset { bar: 5, steps: &[Step::clear(4, 1 << 1), Step::set(4, 1)], busy: (4, 1) };
/// CC.EN off; CSTS.RDY follows (NVM Express 1.4, 7.3.2).
const NVME: Reset = Reset { bar: 0, steps: &[Step::clear(0x14, 1)], busy: (0x1c, 1) };

/// How to reset a function of this vendor, device and class (24 bits) that has no function-level reset; `None` if its kind is
/// not known.
pub fn method(vendor: u16, device: u16, class: u32) -> Option<&'static Reset> {
    match (vendor, class) {
        (INTEL, CLASS_ETHERNET) if is_fast_ethernet(device) => Some(&FAST_ETHERNET),
        (INTEL, CLASS_ETHERNET) => Some(&GIGABIT),
        (_, CLASS_AHCI) => Some(&AHCI),
        (_, CLASS_NVME) => Some(&NVME),
        _ => None,
    }
}

/// The 8255x and those in Intel's chipsets. There will be no more of them.
const fn is_fast_ethernet(device: u16) -> bool {
    matches!(
        device,
        0x1029..=0x103e | 0x1050..=0x1059 | 0x1064..=0x106b | 0x1091..=0x1095 | 0x10fe | 0x1209 | 0x1229 | 0x2449 | 0x2459 | 0x245d
            | 0x27dc
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    fn after(reset: &Reset, mut registers: BTreeMap<u16, u32>) -> Vec<(u16, u32)> {
        let mut written = Vec::new();
        for step in reset.steps {
            let register = registers.entry(step.offset).or_insert(0);
            *register = step.written(*register);
            written.push((step.offset, *register));
        }
        written
    }

    #[test]
    fn kinds_are_told_by_class_and_network_interfaces_by_vendor_and_device_too() {
        assert_eq!(method(0x8086, 0x100e, 0x02_0000), Some(&GIGABIT));
        assert_eq!(method(0x8086, 0x1209, 0x02_0000), Some(&FAST_ETHERNET));
        assert_eq!(method(0x8086, 0x105e, 0x02_0000), Some(&GIGABIT), "between two of 100 Mbit/s");
        assert_eq!(method(0x10ec, 0x8139, 0x02_0000), None);
        assert_eq!(method(0x1b36, 0x0010, 0x01_0802), Some(&NVME));
        assert_eq!(method(0x8086, 0x2922, 0x01_0601), Some(&AHCI));
        assert_eq!(method(0x8086, 0x7010, 0x01_0101), None, "IDE");
    }

    #[test]
    fn a_network_interface_is_silent_before_it_is_reset() {
        let running = BTreeMap::from([(0x100, 0x0400_8002), (0x400, 0x0103_f0fa), (0, 0x0018_0241)]);
        let written = after(&GIGABIT, running);
        assert_eq!(written, [(0xd8, !0), (0x100, 0), (0x400, 0), (0, 0x0418_0241)]);
    }

    #[test]
    fn other_bits_of_a_disk_controller_stay() {
        assert_eq!(after(&NVME, BTreeMap::from([(0x14, 0x0046_0001)])), [(0x14, 0x0046_0000)]);
        assert_eq!(after(&AHCI, BTreeMap::from([(4, 0x8000_0002)])), [(4, 0x8000_0000), (4, 0x8000_0001)]);
    }

    #[test]
    fn all_registers_lie_in_the_window() {
        for reset in [GIGABIT, FAST_ETHERNET, AHCI, NVME] {
            let mut offsets = reset.steps.iter().map(|s| s.offset).chain([reset.busy.0]);
            assert!(offsets.all(|o| o % 4 == 0 && usize::from(o) + 4 <= WINDOW));
        }
    }
}
