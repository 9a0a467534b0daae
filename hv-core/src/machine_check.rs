//! Machine checks: which errors raise one, and what a CPU's banks say of those that it found (SDM vol. 3B, chapter 16;
//! AMD APM vol. 2, chapter 9).
//!
//! After a reset no bank reports anything: whoever runs the machine has to say which errors it wants to hear of.
//! Firmware need not.

use crate::host_msr::HostMsrs;
use core::fmt;
use x86::cpuid::Vendor;
use x86::msr;

/// MCG_CAP: how many banks there are.
const CAP_COUNT: u64 = 0xff;
/// MCG_CAP: MCG_CTL exists.
const CAP_CTL: u64 = 1 << 8;
/// Registers of a bank, behind those of the one before.
const BANK: u32 = 4;
/// Banks that have registers there; the next ones belong to something else.
const MAX_BANKS: u32 = 32;
const STATUS: u32 = 1;
const ADDRESS: u32 = 2;
const MISC: u32 = 3;

const STATUS_VALID: u64 = 1 << 63;
const STATUS_OVERFLOW: u64 = 1 << 62;
const STATUS_UNCORRECTED: u64 = 1 << 61;
const STATUS_MISC_VALID: u64 = 1 << 59;
const STATUS_ADDRESS_VALID: u64 = 1 << 58;
const STATUS_CONTEXT_CORRUPT: u64 = 1 << 57;

/// An error that a bank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manuals' names")]
pub struct Logged {
    pub bank: u32,
    pub status: u64,
    pub address: Option<u64>,
    pub misc: Option<u64>,
}

impl fmt::Display for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bank {}: status {:#018x}", self.bank, self.status)?;
        for (bit, words) in [
            (STATUS_UNCORRECTED, ", uncorrected"),
            (STATUS_CONTEXT_CORRUPT, ", context corrupt"),
            (STATUS_OVERFLOW, ", others were lost"),
        ] {
            if self.status & bit != 0 {
                f.write_str(words)?;
            }
        }
        for (name, value) in [("address", self.address), ("misc", self.misc)] {
            if let Some(value) = value {
                write!(f, ", {name} {value:#018x}")?;
            }
        }
        Ok(())
    }
}

fn nr_banks(cap: u64) -> u32 {
    (cap & CAP_COUNT) as u32
}

const fn register(bank: u32, which: u32) -> u32 {
    msr::MC0_CTL + BANK * bank + which
}

/// Gives `found` each error that the CPU's banks hold.
pub fn look(cpu: &mut impl HostMsrs, mut found: impl FnMut(Logged)) {
    let Some(cap) = cpu.read(msr::MCG_CAP) else { return };
    for bank in 0..nr_banks(cap).min(MAX_BANKS) {
        let Some(status) = cpu.read(register(bank, STATUS)).filter(|status| status & STATUS_VALID != 0) else {
            continue;
        };
        let mut further = |bit, which| if status & bit != 0 { cpu.read(register(bank, which)) } else { None };
        let (address, misc) = (further(STATUS_ADDRESS_VALID, ADDRESS), further(STATUS_MISC_VALID, MISC));
        found(Logged { bank, status, address, misc });
    }
}

/// Has the banks of a CPU of this `model` report errors. What they hold from earlier goes to `found`, and then from the
/// banks: the next error is to be told from it. That an error raises #MC is CR4.MCE's affair, which is set after this.
pub fn enable(cpu: &mut impl HostMsrs, model: Model, found: impl FnMut(Logged)) {
    let Some(cap) = cpu.read(msr::MCG_CAP) else { return };
    look(cpu, found);
    if cap & CAP_CTL != 0 {
        cpu.write(msr::MCG_CTL, u64::MAX);
    }
    for bank in 0..nr_banks(cap).min(MAX_BANKS) {
        if let Some((mask, errors)) = model.masked(bank) {
            // Firmware may have masked others.
            let _ = cpu.read(mask).is_some_and(|others| cpu.write(mask, others | errors));
        }
        cpu.write(register(bank, STATUS), 0);
        if let Some(control) = model.control(bank) {
            cpu.write(register(bank, 0), control);
        }
    }
}

/// Which processor it is.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its maker.
    pub vendor: Vendor,
    /// EAX of CPUID leaf 1.
    pub signature: u32,
}

/// AMD's bank 4, a table walk of the GART: it is reported where nothing is wrong, as when a processor guesses an
/// address.
const GART: u64 = 1 << 10;

impl Model {
    /// Its family, as the manuals count them.
    const fn family(self) -> u32 {
        let family = self.signature >> 8 & 15;
        family + if family == 15 { self.signature >> 20 & 0xff } else { 0 }
    }

    /// What the control register of `bank` is to be: a bit for each error that is reported, and all of them as a rule.
    /// `None`: it is the firmware's.
    const fn control(self, bank: u32) -> Option<u64> {
        let model = self.signature >> 4 & 15 | self.signature >> 12 & 0xf0;
        match (self.vendor, self.family(), bank) {
            // Another name of a register of the bus, which the firmware has set (SDM vol. 3B, 16.3.2.1).
            (Vendor::Intel, 6, 0) if model < 0x1a => None,
            // AMD's guides for firmware have it off (BKDG for family 0Fh and family 10h, MC4_CTL).
            (Vendor::Amd, 0x0f..=0x16, 4) => Some(!GART),
            _ => Some(u64::MAX),
        }
    }

    /// What `bank` must not log either, and the register that says so.
    const fn masked(self, bank: u32) -> Option<(u32, u64)> {
        match (self.vendor, self.family(), bank) {
            // The same guides, MC4_CTL_MASK. Bank 4 is something else from family 17h on.
            (Vendor::Amd, 0x10..=0x16, 4) => Some((msr::AMD64_MC4_MASK, GART)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::string::ToString;
    use alloc::vec;
    use alloc::vec::Vec;

    /// Registers, and what was written, in order. Others are not there.
    struct Cpu {
        registers: BTreeMap<u32, u64>,
        written: Vec<(u32, u64)>,
    }

    impl Cpu {
        /// As after a reset: every bank is off and empty.
        fn with(banks: u32, cap: u64) -> Self {
            let mut registers: BTreeMap<u32, u64> =
                (0x400..0x400 + 4 * banks.min(32)).map(|index| (index, 0)).collect();
            registers.insert(0x179, u64::from(banks) | cap);
            if cap & 1 << 8 != 0 {
                registers.insert(0x17b, 0);
            }
            Self { registers, written: Vec::new() }
        }

        fn enable(&mut self, model: Model) -> Vec<Logged> {
            let mut found = Vec::new();
            enable(self, model, |logged| found.push(logged));
            found
        }
    }

    impl HostMsrs for Cpu {
        fn read(&mut self, index: u32) -> Option<u64> {
            self.registers.get(&index).copied()
        }

        fn write(&mut self, index: u32, value: u64) -> bool {
            self.written.push((index, value));
            self.registers.get_mut(&index).map(|register| *register = value).is_some()
        }
    }

    const NEW: Model = Model { vendor: Vendor::Intel, signature: 0x1_06a5 };

    #[test]
    fn banks_that_a_reset_left_off_are_switched_on() {
        let mut cpu = Cpu::with(3, 1 << 8);
        assert_eq!(cpu.enable(NEW), vec![]);
        let all = [(0x17b, !0), (0x401, 0), (0x400, !0), (0x405, 0), (0x404, !0), (0x409, 0), (0x408, !0)];
        assert_eq!(cpu.written, all);
        let mut cpu = Cpu::with(1, 0);
        cpu.enable(NEW);
        assert_eq!(cpu.written, [(0x401, 0), (0x400, !0)], "there is no global control");
    }

    #[test]
    fn a_bank_that_is_the_firmwares_is_only_emptied() {
        let mut cpu = Cpu::with(2, 0);
        cpu.enable(Model { vendor: Vendor::Intel, signature: 0x1_0676 });
        assert_eq!(cpu.written, [(0x401, 0), (0x405, 0), (0x404, !0)], "family 6, model 0x17");
    }

    #[test]
    fn all_errors_are_reported_but_those_that_are_none() {
        let control = |vendor, signature, bank| Model { vendor, signature }.control(bank);
        assert_eq!(control(Vendor::Intel, 0xf43, 0), Some(!0));
        assert_eq!(control(Vendor::Amd, 0xf12, 4), Some(!0x400));
        assert_eq!(control(Vendor::Amd, 0xf12, 3), Some(!0));
        assert_eq!(control(Vendor::Amd, 0x10_0f43, 4), Some(!0x400), "family 10h");
        assert_eq!(control(Vendor::Amd, 0x73_0f01, 4), Some(!0x400), "family 16h");
        assert_eq!(control(Vendor::Amd, 0x80_0f82, 4), Some(!0), "family 17h");
        assert_eq!(control(Vendor::Intel, 0x10_0f43, 4), Some(!0));
    }

    #[test]
    fn what_the_gart_finds_wrong_is_not_logged_either() {
        let mask_after = |vendor, signature, before: Option<u64>| {
            let mut cpu = Cpu::with(6, 1 << 8);
            cpu.registers.extend(before.map(|mask| (0xc001_0048, mask)));
            cpu.enable(Model { vendor, signature });
            let masked = cpu.written.iter().position(|(index, _)| *index == 0xc001_0048);
            let enabled = cpu.written.iter().position(|(index, _)| *index == 0x410);
            assert!(masked.is_none() || masked < enabled, "masked before it is on");
            (masked.is_some(), cpu.registers.get(&0xc001_0048).copied())
        };
        assert_eq!(mask_after(Vendor::Amd, 0x10_0f43, Some(0x8_0000)), (true, Some(0x8_0400)));
        assert_eq!(mask_after(Vendor::Amd, 0x10_0f43, None), (false, None), "an emulator may not have it");
        assert_eq!(mask_after(Vendor::Amd, 0x80_0f82, Some(0)), (false, Some(0)));
        assert_eq!(mask_after(Vendor::Amd, 0xf12, Some(0)), (false, Some(0)));
        assert_eq!(mask_after(Vendor::Intel, 0x1_06a5, Some(0)), (false, Some(0)));
    }

    #[test]
    fn what_banks_hold_from_before_is_told_before_it_goes() {
        let mut cpu = Cpu::with(2, 0);
        cpu.registers.extend([(0x405, 0xb400_0000_0000_0151), (0x406, 0x1234), (0x407, 9)]);
        let found = cpu.enable(NEW);
        let (status, address) = (0xb400_0000_0000_0151, Some(0x1234));
        assert_eq!(found, [Logged { bank: 1, status, address, misc: None }]);
        assert_eq!(cpu.registers[&0x405], 0);
        assert_eq!(found[0].to_string(), "bank 1: status 0xb400000000000151, uncorrected, address 0x0000000000001234");
    }

    #[test]
    fn registers_behind_those_of_banks_are_left_alone() {
        let mut cpu = Cpu::with(64, 0);
        cpu.enable(NEW);
        assert!(cpu.written.iter().all(|(index, _)| (0x400..0x480).contains(index)));
        let mut none = Cpu { registers: BTreeMap::new(), written: Vec::new() };
        none.enable(NEW);
        assert!(none.written.is_empty());
    }
}
