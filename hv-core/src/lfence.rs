//! Whether LFENCE waits until all instructions before it are done, also on processors of AMD and Hygon: there it does
//! so only if the processor always does, or is told to (AMD, Software techniques for managing speculation, mitigation
//! G-2).

use crate::host_msr::HostMsrs;
use x86::cpuid::{feature, CpuidRegs};
use x86::msr;

/// Has LFENCE do so on the CPU that runs this, of such a maker. Whether it does. `leaf_21`: CPUID leaf 0x80000021,
/// zeroes if there is none.
pub fn serialise(leaf_21: CpuidRegs, cpu: &mut impl HostMsrs) -> bool {
    if leaf_21.eax & feature::LFENCE_DISPATCH.mask() != 0 {
        return true;
    }
    let Some(value) = cpu.read(msr::AMD64_DE_CFG) else { return false };
    if value & msr::DE_CFG_LFENCE_SERIALISE != 0 {
        return true;
    }
    cpu.write(msr::AMD64_DE_CFG, value | msr::DE_CFG_LFENCE_SERIALISE);
    // A hypervisor below this one may let the write pass and do nothing.
    cpu.read(msr::AMD64_DE_CFG).is_some_and(|value| value & msr::DE_CFG_LFENCE_SERIALISE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DE_CFG, if there is one, and which of its bits can be written.
    struct Cpu {
        de_cfg: Option<u64>,
        writable: u64,
        writes: u32,
    }

    impl HostMsrs for Cpu {
        fn read(&mut self, index: u32) -> Option<u64> {
            self.de_cfg.filter(|_| index == 0xc001_1029)
        }

        fn write(&mut self, index: u32, value: u64) -> bool {
            assert_eq!(index, 0xc001_1029);
            self.writes += 1;
            let Some(de_cfg) = &mut self.de_cfg else { return false };
            *de_cfg = *de_cfg & !self.writable | value & self.writable;
            true
        }
    }

    fn tried(eax: u32, de_cfg: Option<u64>, writable: u64) -> (bool, Option<u64>, u32) {
        let mut cpu = Cpu { de_cfg, writable, writes: 0 };
        let does = serialise(CpuidRegs { eax, ..CpuidRegs::ZERO }, &mut cpu);
        (does, cpu.de_cfg, cpu.writes)
    }

    #[test]
    fn it_is_made_to_serialise_where_that_can_be_done_and_nothing_else_changes() {
        assert_eq!(tried(0, Some(0x200), !0), (true, Some(0x202), 1));
        assert_eq!(tried(0, Some(0x202), !0), (true, Some(0x202), 0), "firmware has done it");
        assert_eq!(tried(4, None, 0), (true, None, 0), "it always does");
    }

    #[test]
    fn it_does_not_count_as_serialising_where_the_write_does_nothing() {
        assert_eq!(tried(0, Some(0), 0), (false, Some(0), 1));
        assert_eq!(tried(0, None, 0), (false, None, 0));
    }
}
