//! Which bits of a PCI function's configuration space a domain may change.
//!
//! The hypervisor programs message-signalled interrupts itself: their address, data, enable and mask bits are never a
//! domain's, also not the hardware domain's; but they may be turned off, as for a driver that falls back to the wire,
//! while somebody is there to answer that. While a function belongs to another domain, its base address registers stay
//! where they are (they are in that domain's page tables) and it may not be told to report errors that would stop the
//! machine. While it belongs to nobody it cannot become bus master or interrupt. All else goes through: the hardware
//! domain is trusted with its devices.

pub mod bridges;
pub mod layout;

use core::fmt;
use layout::{Layout, Msi, Range, Registers};

/// Segment, bus, device and function.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sbdf {
    /// PCI segment (host bridge domain).
    pub segment: u16,
    /// Bus.
    pub bus: u8,
    /// Device in the upper five bits, function in the lower three.
    pub devfn: u8,
}

impl Sbdf {
    /// From its parts.
    pub const fn new(segment: u16, bus: u8, devfn: u8) -> Self {
        Self { segment, bus, devfn }
    }
    /// From segment, bus and devfn in 32 bits, as the tools write it.
    pub const fn from_machine(sbdf: u32) -> Self {
        let [devfn, bus, low, high] = sbdf.to_le_bytes();
        Self { segment: u16::from_le_bytes([low, high]), bus, devfn }
    }
    /// The same in 32 bits.
    pub const fn to_machine(self) -> u32 {
        (self.segment as u32) << 16 | self.source_id() as u32
    }
    /// Bus and devfn in 16 bits: a DMA source id.
    pub const fn source_id(self) -> u16 {
        (self.bus as u16) << 8 | self.devfn as u16
    }
}

/// Where the register at `offset` (below 4096) of a function is, in a mapping of its bus's configuration space (1 MiB)
/// that begins at `bus`, the start of any page.
pub const fn ecam_register(bus: usize, devfn: u8, offset: u16) -> usize {
    bus + ((devfn as usize) << 12) + offset as usize
}

impl fmt::Display for Sbdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.segment, self.bus, self.devfn >> 3, self.devfn & 7)
    }
}

impl fmt::Debug for Sbdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Base address registers, as the hardware domain set them, or the firmware. Those of a function that has left it stay
/// so; a kernel that resets the function writes them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bars {
    /// Base addresses.
    pub words: [u32; 6],
    /// Base address of the expansion ROM.
    pub rom: u32,
}

/// What does not change of a function that is not the hardware domain's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// Its base addresses.
    pub bars: Bars,
    /// Does it belong to nobody?
    pub is_quarantined: bool,
    /// It may not become bus master, though it belongs to somebody.
    pub is_stopped: bool,
}

/// Where a device's registers begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// In memory, at this address.
    Memory(u64),
    /// At this I/O port.
    Port(u16),
}

impl Bars {
    /// Reads them; a bridge has two, and no other registers of a device's.
    pub fn read(registers: &impl Registers, header: u8) -> Self {
        const ROM_OFFSET: u16 = 0x30;
        let nr_bars = if header == 0 { 6 } else { 2 };
        let mut words = [0; 6];
        for (word, n) in words.iter_mut().zip(0u16..nr_bars) {
            *word = registers.read(BAR_FIRST + 4 * n);
        }
        Self { words, rom: if header == 0 { registers.read(ROM_OFFSET) } else { 0 } }
    }

    /// Does a write of `width` bytes at `offset` change one of them?
    pub fn are_at(offset: u16, width: u8) -> bool {
        let last = offset.saturating_add(u16::from(width.max(1)) - 1);
        offset < ROM.end && last >= BAR_FIRST && !(0x28..ROM.start).contains(&offset)
    }

    /// Where the memory begins that base address register `n` describes. `None`: it describes ports, or nothing.
    pub fn memory(&self, n: u8) -> Option<u64> {
        let low = *self.words.get(usize::from(n))?;
        if low & 1 != 0 {
            return None;
        }
        let high = if low & 6 == 4 { self.words.get(usize::from(n) + 1).copied().unwrap_or(0) } else { 0 };
        Some(u64::from(high) << 32 | u64::from(low & !15)).filter(|base| *base != 0)
    }

    /// Where its registers begin; base addresses that are not set are left out.
    pub fn bases(&self) -> impl Iterator<Item = Base> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            while let Some(&bar) = self.words.get(next) {
                let is_wide = bar & 7 == 4;
                let high = if is_wide { self.words.get(next + 1).copied().unwrap_or(0) } else { 0 };
                next += if is_wide { 2 } else { 1 };
                let [low, more, ..] = (bar & !3).to_le_bytes();
                match (bar & 1, u16::from_le_bytes([low, more]), u64::from(high) << 32 | u64::from(bar & !15)) {
                    (1, port, _) if port != 0 => return Some(Base::Port(port)),
                    (0, _, addr) if addr != 0 => return Some(Base::Memory(addr)),
                    _ => {}
                }
            }
            None
        })
    }
}

/// What the filter must know about a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// MSI capability.
    pub msi: Option<Msi>,
    /// Offset of the MSI-X capability.
    pub msix: Option<u16>,
    /// Offset of the PCI Express capability.
    pub express: Option<u16>,
    /// Extended capabilities that change where the function answers.
    pub moving: [Option<Range>; 3],
    /// Header layout: 0 device, 1 bridge.
    pub header: u8,
    /// Of a bridge behind which a function is not the hardware domain's: the numbers of its own bus and of the first
    /// one behind it, which stay, since by them the IOMMU's unit is found.
    pub buses: Option<[u8; 2]>,
    /// It has left the hardware domain, with these registers.
    pub fixed: Option<Fixed>,
    /// The hypervisor drives it.
    pub is_ours: bool,
    /// Its domain has stopped, or is paused. What the function would raise on its wire instead of messages would be for
    /// those that share it, and would not end.
    pub is_abandoned: bool,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Written as it is.
    Pass,
    /// Not written.
    Drop,
    /// These bits of the value are replaced by what the register holds.
    Keep {
        /// Which.
        bits: u32,
        /// Those among them that may be cleared, though not set.
        clearable: u32,
        /// Those that may be set, though not cleared.
        settable: u32,
    },
}

impl Verdict {
    /// What to write; `held` reads what the register holds. `None`: nothing.
    pub fn written(self, value: u32, held: impl FnOnce() -> u32) -> Option<u32> {
        match self {
            Self::Pass => Some(value),
            Self::Drop => None,
            Self::Keep { bits, clearable, settable } => {
                Some(value & !bits | held() & bits & (value | !clearable) | value & bits & settable)
            }
        }
    }
}

const COMMAND: u16 = 0x04;
/// Bits of the command register's lower byte: answer at the ports, and in the memory, that base addresses say.
const DECODE: u8 = 0x03;
/// Bit of the command register's lower byte: access memory.
const BUS_MASTER: u8 = 1 << 2;
/// Bits of its upper byte: report system errors; do not interrupt.
const SERR_ENABLE: u8 = 1 << 0;
const INTX_DISABLE: u8 = 1 << 2;
const COMMAND_HIGH: u16 = COMMAND + 1;
/// Register of the PCI Express capability that controls the device; bits of its lower byte: report correctable, other,
/// fatal errors, and requests that nobody supports; a bit of its upper one: access memory under numbers of functions
/// that are nobody's, too (Phantom Functions Enable).
const EXPRESS_CONTROL: u16 = 8;
const EXPRESS_REPORTS: u8 = 0x0f;
const EXPRESS_PHANTOMS: u8 = 1 << 1;
const BAR_FIRST: u16 = 0x10;
const ROM: core::ops::Range<u16> = 0x30..0x34;
/// A bridge's register of bus numbers.
const BUSES: u16 = 0x18;

/// Bits of the MSI control register's lower byte: enable, and the number of messages in use.
const MSI_CONTROL: u8 = 0x71;
const MSI_ENABLE: u8 = 0x01;
/// Bits of the MSI-X control register's upper byte: enable, mask all.
const MSIX_CONTROL: u8 = 0xc0;
const MSIX_ENABLE: u8 = 0x80;

/// The command with which a function answers in its memory and does nothing by itself, on its way to this `command`.
pub const fn answering(command: u16) -> u16 {
    const MEMORY: u8 = 1 << 1;
    let [low, high] = command.to_le_bytes();
    u16::from_le_bytes([low & !BUS_MASTER | MEMORY, high])
}

/// The command with which a function neither accesses memory nor interrupts on its wire, and is otherwise as by this
/// `command`: as by none if that is all ones, which is nobody's answer.
pub const fn silent(command: u16) -> u16 {
    let [low, high] = if command == u16::MAX { [0; 2] } else { command.to_le_bytes() };
    u16::from_le_bytes([low & !BUS_MASTER, high | INTX_DISABLE])
}

impl Function {
    /// Of a function with this layout, which is the hardware domain's.
    pub fn of(layout: &Layout) -> Self {
        Self {
            msi: layout.msi,
            msix: layout.msix.map(|m| m.cap),
            express: layout.express.map(|e| e.cap),
            moving: layout.moving,
            header: layout.header,
            ..Self::default()
        }
    }

    /// Judges a write of `value`, `width` (1, 2 or 4) bytes, at `offset`.
    pub fn filter(&self, offset: u16, width: u8, value: u32) -> Verdict {
        if self.is_ours {
            return Verdict::Drop;
        }
        if width == 4 && self.fixed_register(offset) == Some(value) {
            return Verdict::Pass;
        }
        let (mut bits, mut clearable, mut settable) = (0, 0, 0);
        for i in 0..width {
            let byte = offset.saturating_add(i.into());
            let protected =
                if self.renumbers(byte, value.to_le_bytes()[usize::from(i)]) { 0xff } else { self.protected(byte) };
            bits |= u32::from(protected) << (8 * i);
            clearable |= u32::from(self.clearable(byte)) << (8 * i);
            settable |= u32::from(self.settable(byte)) << (8 * i);
        }
        let all = u32::MAX >> (32 - 8 * u32::from(width));
        match bits {
            0 => Verdict::Pass,
            _ if bits == all && clearable == 0 && settable == 0 => Verdict::Drop,
            _ => Verdict::Keep { bits, clearable, settable },
        }
    }

    /// Would `value` in the byte at `offset` change the number of a bus that stays? The same is written again after a
    /// reset.
    fn renumbers(&self, offset: u16, value: u8) -> bool {
        let place = usize::from(offset.wrapping_sub(BUSES));
        self.buses.and_then(|buses| buses.get(place).copied()).is_some_and(|number| number != value)
    }

    /// What the base-address register at `offset` must stay.
    fn fixed_register(&self, offset: u16) -> Option<u32> {
        let fixed = self.fixed?;
        match (offset, self.header) {
            (0x30, 0) => Some(fixed.bars.rom),
            (BAR_FIRST..=0x24, 0) if offset.is_multiple_of(4) => {
                fixed.bars.words.get(usize::from(offset - BAR_FIRST) / 4).copied()
            }
            _ => None,
        }
    }

    /// The protected bits of the byte at `offset` that may be cleared: a function without messages uses its wire again,
    /// or nothing, if that is off.
    fn clearable(&self, offset: u16) -> u8 {
        if self.fixed.is_some() {
            match self.express_control(offset) {
                0 => {}
                bits => return bits,
            }
        }
        if self.is_abandoned {
            return 0;
        }
        if self.msi.is_some_and(|msi| offset == msi.control()) {
            return MSI_ENABLE;
        }
        if self.msix.is_some_and(|msix| offset == msix.wrapping_add(3)) {
            return MSIX_ENABLE;
        }
        0
    }

    /// The protected bits of the byte at `offset` that may be set. Whoever has the function's registers mapped reads
    /// them in vain, or is told of an error, when it does not answer.
    fn settable(&self, offset: u16) -> u8 {
        match self.fixed {
            Some(fixed) if offset == COMMAND && !fixed.is_quarantined => DECODE,
            _ => 0,
        }
    }

    /// The bits of the byte at `offset` that say which errors the function reports, and under which names it accesses
    /// memory.
    fn express_control(&self, offset: u16) -> u8 {
        match self.express.map(|cap| offset.wrapping_sub(cap.wrapping_add(EXPRESS_CONTROL))) {
            Some(0) => EXPRESS_REPORTS,
            Some(1) => EXPRESS_PHANTOMS,
            _ => 0,
        }
    }

    /// The bits of the byte at `offset` that do not change.
    fn protected(&self, offset: u16) -> u8 {
        if let Some(msi) = self.msi {
            match offset.wrapping_sub(msi.cap) {
                2 => return MSI_CONTROL,
                n if (4..msi.len_bytes()).contains(&n) => return 0xff,
                _ => {}
            }
        }
        if self.msix.is_some_and(|msix| offset == msix.wrapping_add(3)) {
            return MSIX_CONTROL;
        }
        let Some(fixed) = self.fixed else { return 0 };
        let bars_end = if self.header == 0 { 0x28 } else { 0x18 };
        match offset {
            COMMAND if fixed.is_quarantined => BUS_MASTER,
            COMMAND if fixed.is_stopped => BUS_MASTER | DECODE,
            COMMAND => DECODE,
            COMMAND_HIGH if fixed.is_quarantined => SERR_ENABLE | INTX_DISABLE,
            COMMAND_HIGH => SERR_ENABLE,
            _ if (BAR_FIRST..bars_end).contains(&offset) => 0xff,
            _ if self.header == 0 && ROM.contains(&offset) => 0xff,
            _ if self.express_control(offset) != 0 => self.express_control(offset),
            _ if self.moving.iter().flatten().any(|(first, last)| (*first..=*last).contains(&offset)) => 0xff,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: Function = Function {
        msi: Some(Msi { cap: 0xd0, is_64_bit: true, is_maskable: false }),
        msix: Some(0xa0),
        express: Some(0xe0),
        moving: [Some((0x200, 0x20f)), None, None],
        header: 0,
        buses: None,
        fixed: None,
        is_ours: false,
        is_abandoned: false,
    };

    #[test]
    fn every_function_has_a_page_of_its_own_wherever_the_bus_is_mapped() {
        for page in [0, 1, 0x45, 0xff, 0x100, 0x202] {
            let bus = page << 12;
            for devfn in 0..=u8::MAX {
                let first = bus + usize::from(devfn) * 4096;
                assert_eq!(ecam_register(bus, devfn, 0), first, "page {page:#x}, function {devfn:#x}");
                assert_eq!(ecam_register(bus, devfn, 0xffc), first + 0xffc);
            }
        }
    }

    #[test]
    fn a_function_answers_before_it_may_access_memory() {
        assert_eq!([0x0407, 0x0406, 0x0000, 0x0507].map(answering), [0x0403, 0x0402, 0x0002, 0x0503]);
    }

    #[test]
    fn a_silent_function_is_no_bus_master_whatever_it_says() {
        assert_eq!([0x0007, 0x0403, 0x0547, 0x0000].map(silent), [0x0403, 0x0403, 0x0543, 0x0400]);
        assert_eq!(silent(0xffff), 0x0400, "nobody answered: no errors are to be reported either");
    }

    fn keep(bits: u32, clearable: u32) -> Verdict {
        Verdict::Keep { bits, clearable, settable: 0 }
    }

    #[test]
    fn the_hardware_domain_sets_up_its_devices() {
        for (offset, width) in [(4, 2), (4, 4), (0x10, 4), (0x30, 4), (0x3c, 1), (0x0c, 1), (0xe0, 4), (0x100, 4)] {
            assert_eq!(NIC.filter(offset, width, !0), Verdict::Pass, "{offset:#x}");
        }
    }

    #[test]
    fn interrupt_messages_are_the_hypervisors() {
        assert_eq!(NIC.filter(0xd2, 2, !0), keep(0x71, 1), "enable and count stay");
        assert_eq!(NIC.filter(0xd0, 4, !0), keep(0x71 << 16, 1 << 16));
        for (offset, width) in [(0xd4, 4), (0xd8, 4), (0xdc, 2), (0xd4, 1), (0xdd, 1)] {
            assert_eq!(NIC.filter(offset, width, !0), Verdict::Drop, "{offset:#x}");
        }
        assert_eq!(NIC.filter(0xdc, 4, !0), keep(0xffff, 0), "the next two bytes are not MSI's");
        assert_eq!(NIC.filter(0xa2, 2, !0), keep(0xc000, 0x8000));
        assert_eq!(NIC.filter(0xa3, 1, !0), keep(0xc0, 0x80));
        assert_eq!(NIC.filter(0xa2, 1, !0), Verdict::Pass);
    }

    #[test]
    fn messages_may_be_turned_off_but_not_on() {
        let written = |value, held| NIC.filter(0xa2, 2, value).written(value, || held);
        assert_eq!(written(0x0003, 0x8003), Some(0x0003));
        assert_eq!(written(0xc003, 0x0003), Some(0x0003));
        assert_eq!(written(0x8003, 0x8003), Some(0x8003));
        assert_eq!(written(0x0003, 0xc003), Some(0x4003), "the mask of all stays");
        assert_eq!(NIC.filter(0xd2, 2, 0x80).written(0x80, || 0xb1), Some(0xb0), "as does the number of messages");
        assert_eq!((Verdict::Pass.written(5, || 9), Verdict::Drop.written(5, || 9)), (Some(5), None));
    }

    #[test]
    fn messages_stay_on_when_nobody_would_take_the_wire() {
        let f = Function { is_abandoned: true, ..NIC };
        assert_eq!(f.filter(0xa2, 2, 0).written(0, || 0x8003), Some(0x8000));
        assert_eq!(f.filter(0xd2, 2, 0).written(0, || 0x31), Some(0x31));
    }

    #[test]
    fn masks_belong_to_the_capability_if_there_are_any() {
        let f = |is_64_bit, is_maskable| Function {
            msi: Some(Msi { cap: 0x50, is_64_bit, is_maskable }),
            ..Function::default()
        };
        let last = |f: Function| (0..64).rev().find(|&n| f.filter(0x50 + n, 1, !0) == Verdict::Drop);
        let all = [f(false, false), f(true, false), f(false, true), f(true, true)];
        assert_eq!(all.map(last), [Some(9), Some(13), Some(19), Some(23)]);
    }

    const AWAY: Fixed = Fixed {
        bars: Bars { words: [0xfebc_0000, 0xc001, 0, 0, 0, 0], rom: 0xfeb0_0001 },
        is_quarantined: false,
        is_stopped: false,
    };

    #[test]
    fn an_assigned_function_stays_where_it_is() {
        let f = Function { fixed: Some(AWAY), ..NIC };
        for offset in [0x10, 0x14, 0x24, 0x27, 0x30] {
            assert_eq!(f.filter(offset, 1, !0), Verdict::Drop, "{offset:#x}");
        }
        assert_eq!(f.filter(0x28, 4, !0), Verdict::Pass);
        let command = Verdict::Keep { bits: 0x103, clearable: 0, settable: 3 };
        assert_eq!(f.filter(4, 2, !0), command, "no SERR; bus master is for the new owner to ask");
        assert_eq!(f.filter(0x10, 4, 0xfebc_0000), Verdict::Pass, "written again after a reset");
        assert_eq!(f.filter(0x30, 4, 0xfeb0_0001), Verdict::Pass);
        assert_eq!(f.filter(0x14, 4, 0xfebc_0000), Verdict::Drop, "that was another register's");
        let bridge = Function { header: 1, fixed: Some(AWAY), ..Function::default() };
        assert_eq!((bridge.filter(0x14, 4, !0), bridge.filter(0x18, 4, !0)), (Verdict::Drop, Verdict::Pass));
    }

    #[test]
    fn a_function_that_was_stopped_does_not_become_bus_master_again() {
        let f = Function { fixed: Some(Fixed { is_stopped: true, ..AWAY }), ..NIC };
        let written = |value, held| f.filter(4, 2, value).written(value, || held);
        assert_eq!(written(0x0407, 0x0003), Some(0x0403), "the rest is its owner's");
        assert_eq!(f.filter(4, 1, 0x07).written(0x07, || 0x03), Some(0x03));
        let before = Function { fixed: Some(AWAY), ..NIC };
        assert_eq!(before.filter(4, 2, 0x0407).written(0x0407, || 0x0003), Some(0x0407));
    }

    #[test]
    fn bases_of_all_kinds() {
        let fixed = Bars { words: [0xfebc_000c, 0x1, 0xc001, 0, 0xfea0_0000, 0xfeb0_0004], rom: 0 };
        let found: [Option<Base>; 4] = {
            let mut it = fixed.bases();
            core::array::from_fn(|_| it.next())
        };
        assert_eq!(
            found,
            [
                Some(Base::Memory(0x1_febc_0000)),
                Some(Base::Port(0xc000)),
                Some(Base::Memory(0xfea0_0000)),
                Some(Base::Memory(0xfeb0_0000))
            ]
        );
        assert_eq!(Bars::default().bases().next(), None);
        let memory: [Option<u64>; 7] = core::array::from_fn(|n| fixed.memory(u8::try_from(n).unwrap()));
        let at = |addr| Some(addr);
        assert_eq!(memory, [at(0x1_febc_0000), None, None, None, at(0xfea0_0000), at(0xfeb0_0000), None]);
    }

    #[test]
    fn which_writes_move_a_function() {
        for (offset, width) in [(0x10, 4), (0x27, 1), (0x0c, 8), (0x30, 2), (0x33, 1), (0x24, 4)] {
            assert!(Bars::are_at(offset, width), "{offset:#x}");
        }
        for (offset, width) in [(0x04, 4), (0x0f, 1), (0x28, 4), (0x2c, 4), (0x34, 4), (0x110, 4)] {
            assert!(!Bars::are_at(offset, width), "{offset:#x}");
        }
    }

    #[test]
    fn an_owner_may_let_a_function_answer_but_not_fall_silent() {
        let f = Function { fixed: Some(AWAY), ..NIC };
        let written = |f: &Function, offset, value, held| f.filter(offset, 2, value).written(value, || held);
        assert_eq!(written(&f, 4, 0x0006, 0x0000), Some(0x0006));
        assert_eq!(written(&f, 4, 0x0000, 0x0007), Some(0x0003), "memory and ports stay; bus master goes");
        let waiting = Function { fixed: Some(Fixed { is_quarantined: true, ..AWAY }), ..NIC };
        assert_eq!(written(&waiting, 4, 0x0000, 0x0003), Some(0), "nobody's may");
        assert_eq!(written(&NIC, 4, 0x0000, 0x0007), Some(0), "and the hardware domain's");
    }

    #[test]
    fn an_owner_may_not_have_errors_reported() {
        let f = Function { fixed: Some(AWAY), ..NIC };
        let written = |value, held| f.filter(0xe8, 2, value).written(value, || held);
        assert_eq!(written(0x283f, 0x0000), Some(0x2830), "all else in that register is its owner's");
        assert_eq!(written(0x0000, 0x020f), Some(0x0000), "less is allowed");
        assert_eq!(written(0x2a10, 0x0000), Some(0x2810), "it has one name for its accesses to memory");
        assert_eq!(f.filter(0xe9, 1, 0x02).written(0x02, || 0), Some(0));
        assert_eq!(NIC.filter(0xe8, 2, !0), Verdict::Pass, "the hardware domain may");
    }

    #[test]
    fn an_owner_changes_neither_sizes_nor_virtual_functions() {
        let f = Function { fixed: Some(AWAY), ..NIC };
        assert_eq!(
            [0x1fc, 0x200, 0x20c, 0x210].map(|at| f.filter(at, 4, !0) == Verdict::Drop),
            [false, true, true, false]
        );
        assert_eq!(NIC.filter(0x200, 4, !0), Verdict::Pass);
    }

    #[test]
    fn a_bridge_with_a_function_away_behind_it_keeps_its_bus_numbers() {
        let port = Function { header: 1, ..Function::default() };
        assert_eq!(port.filter(0x18, 4, 0x0007_0400), Verdict::Pass, "all are the hardware domain's");
        let kept = Function { buses: Some([0, 3]), ..port };
        let written = |offset, width, value, held| kept.filter(offset, width, value).written(value, || held);
        assert_eq!(written(0x18, 4, 0x2007_0400, 0x4005_0300), Some(0x2007_0300), "what ends there may change");
        assert_eq!(written(0x18, 2, 0x0401, 0x0300), None);
        assert_eq!(written(0x19, 1, 4, 3), None);
        assert_eq!(written(0x1a, 1, 9, 5), Some(9));
        assert_eq!(written(0x18, 4, 0x0005_0300, 0), Some(0x0005_0300), "written again after a reset");
        assert_eq!(written(0x17, 1, 9, 0), Some(9));
    }

    #[test]
    fn offsets_at_the_end_do_not_wrap() {
        let f = Function { msi: Some(Msi { cap: 0xfff0, ..Msi::default() }), ..Function::default() };
        assert_eq!(f.filter(0xffff, 4, !0), Verdict::Pass);
        assert_eq!(f.filter(0, 4, !0), Verdict::Pass);
    }
}
