//! Which bits of a PCI function's configuration space a domain may change.
//!
//! The hypervisor programs message-signalled interrupts itself: their address, data, enable and mask bits are never a
//! domain's, also not the hardware domain's. While a function belongs to another domain, its base address registers stay
//! where they are (they are in that domain's page tables) and it may not be told to report errors that would stop the
//! machine. All else goes through: the hardware domain is trusted with its devices.

/// What the filter must know about a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Offset of the MSI capability and its control register.
    pub msi: Option<(u16, u16)>,
    /// Offset of the MSI-X capability.
    pub msix: Option<u16>,
    /// Header layout: 0 device, 1 bridge.
    pub header: u8,
    /// Does it belong to a domain other than the one that writes?
    pub is_assigned: bool,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Written as it is.
    Pass,
    /// Not written.
    Drop,
    /// These bits of the value are replaced by what the register holds.
    Keep(u32),
}

const COMMAND_HIGH: u16 = 0x05;
/// Bit of the command register's upper byte: report system errors.
const SERR_ENABLE: u8 = 1 << 0;
const BAR_FIRST: u16 = 0x10;
const ROM: core::ops::Range<u16> = 0x30..0x34;

/// Bits of the MSI control register's lower byte: enable, and the number of messages in use.
const MSI_CONTROL: u8 = 0x71;
const MSI_64_BIT: u16 = 1 << 7;
const MSI_MASKABLE: u16 = 1 << 8;
/// Bits of the MSI-X control register's upper byte: enable, mask all.
const MSIX_CONTROL: u8 = 0xc0;

impl Function {
    /// Judges a write of `width` (1, 2 or 4) bytes at `offset`.
    pub fn filter(&self, offset: u16, width: u8) -> Verdict {
        let mut kept = 0;
        for i in 0..width {
            kept |= u32::from(self.protected(offset.saturating_add(i.into()))) << (8 * i);
        }
        let all = u32::MAX >> (32 - 8 * u32::from(width));
        match kept {
            0 => Verdict::Pass,
            _ if kept == all => Verdict::Drop,
            _ => Verdict::Keep(kept),
        }
    }

    /// The bits of the byte at `offset` that do not change.
    fn protected(&self, offset: u16) -> u8 {
        if let Some((msi, control)) = self.msi {
            match offset.wrapping_sub(msi) {
                2 => return MSI_CONTROL,
                n if (4..msi_len(control)).contains(&n) => return 0xff,
                _ => {}
            }
        }
        if self.msix.is_some_and(|msix| offset == msix.wrapping_add(3)) {
            return MSIX_CONTROL;
        }
        if !self.is_assigned {
            return 0;
        }
        let bars_end = if self.header == 0 { 0x28 } else { 0x18 };
        match offset {
            COMMAND_HIGH => SERR_ENABLE,
            _ if (BAR_FIRST..bars_end).contains(&offset) => 0xff,
            _ if self.header == 0 && ROM.contains(&offset) => 0xff,
            _ => 0,
        }
    }
}

/// Bytes of the MSI capability (PCI local bus specification 3.0, 6.8.1).
const fn msi_len(control: u16) -> u16 {
    match (control & MSI_64_BIT != 0, control & MSI_MASKABLE != 0) {
        (false, false) => 10,
        (true, false) => 14,
        (false, true) => 20,
        (true, true) => 24,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: Function = Function { msi: Some((0xd0, 0x0080)), msix: Some(0xa0), header: 0, is_assigned: false };

    #[test]
    fn the_hardware_domain_sets_up_its_devices() {
        for (offset, width) in [(4, 2), (4, 4), (0x10, 4), (0x30, 4), (0x3c, 1), (0x0c, 1), (0xe0, 4), (0x100, 4)] {
            assert_eq!(NIC.filter(offset, width), Verdict::Pass, "{offset:#x}");
        }
    }

    #[test]
    fn interrupt_messages_are_the_hypervisors() {
        assert_eq!(NIC.filter(0xd2, 2), Verdict::Keep(0x71), "enable and count stay");
        assert_eq!(NIC.filter(0xd0, 4), Verdict::Keep(0x71 << 16));
        for (offset, width) in [(0xd4, 4), (0xd8, 4), (0xdc, 2), (0xd4, 1), (0xdd, 1)] {
            assert_eq!(NIC.filter(offset, width), Verdict::Drop, "{offset:#x}");
        }
        assert_eq!(NIC.filter(0xdc, 4), Verdict::Keep(0xffff), "the next two bytes are not MSI's");
        assert_eq!(NIC.filter(0xa2, 2), Verdict::Keep(0xc000));
        assert_eq!(NIC.filter(0xa3, 1), Verdict::Keep(0xc0));
        assert_eq!(NIC.filter(0xa2, 1), Verdict::Pass);
    }

    #[test]
    fn masks_belong_to_the_capability_if_there_are_any() {
        let f = |control| Function { msi: Some((0x50, control)), ..Function::default() };
        let last = |control| (0..64).rev().find(|&n| f(control).filter(0x50 + n, 1) == Verdict::Drop);
        assert_eq!([0, 0x80, 0x100, 0x180].map(last), [Some(9), Some(13), Some(19), Some(23)]);
    }

    #[test]
    fn an_assigned_function_stays_where_it_is() {
        let f = Function { is_assigned: true, ..NIC };
        for offset in [0x10, 0x14, 0x24, 0x27, 0x30] {
            assert_eq!(f.filter(offset, 1), Verdict::Drop, "{offset:#x}");
        }
        assert_eq!(f.filter(0x28, 4), Verdict::Pass);
        assert_eq!(f.filter(4, 2), Verdict::Keep(0x100), "no SERR; bus master is for the new owner to ask");
        let bridge = Function { header: 1, is_assigned: true, ..Function::default() };
        assert_eq!((bridge.filter(0x14, 4), bridge.filter(0x18, 4)), (Verdict::Drop, Verdict::Pass));
    }

    #[test]
    fn offsets_at_the_end_do_not_wrap() {
        let f = Function { msi: Some((0xfff0, 0)), ..Function::default() };
        assert_eq!(f.filter(0xffff, 4), Verdict::Pass);
        assert_eq!(f.filter(0, 4), Verdict::Pass);
    }
}
