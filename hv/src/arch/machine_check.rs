//! Machine checks: what the CPU found broken in itself or in memory (SDM vol. 3B, chapter 16).
//!
//! None is survived: which memory it hit, and for whom, is known on few machines only, so going on could corrupt a
//! guest. The banks are reported for whoever replaces the part.

use crate::console::print_unlocked;
use crate::cpu::rdmsr_safe;

const MCG_CAP: u32 = 0x179;
const MCG_STATUS: u32 = 0x17a;
/// Bank n has its control, status, address and further information in the four registers from here + 4n on.
const MC0_CTL: u32 = 0x400;

const STATUS_VALID: u64 = 1 << 63;
const STATUS_OVERFLOW: u64 = 1 << 62;
const STATUS_UNCORRECTED: u64 = 1 << 61;
const STATUS_MISC_VALID: u64 = 1 << 59;
const STATUS_ADDRESS_VALID: u64 = 1 << 58;
const STATUS_CONTEXT_CORRUPT: u64 = 1 << 57;

/// Prints the banks that hold an error of the running CPU.
pub fn report() {
    let (Some(cap), Some(status)) = (rdmsr_safe(MCG_CAP), rdmsr_safe(MCG_STATUS)) else { return };
    print_unlocked(format_args!("  MCG_STATUS {status:#x}"));
    for bank in 0..(cap & 0xff) as u32 {
        let register = |n: u32| rdmsr_safe(MC0_CTL + 4 * bank + n);
        let Some(status) = register(1).filter(|status| status & STATUS_VALID != 0) else { continue };
        let word = |bit: u64, word: &'static str| if status & bit != 0 { word } else { "" };
        print_unlocked(format_args!(
            "  bank {bank}: status {status:#018x}{}{}{}",
            word(STATUS_UNCORRECTED, ", uncorrected"),
            word(STATUS_CONTEXT_CORRUPT, ", context corrupt"),
            word(STATUS_OVERFLOW, ", others were lost"),
        ));
        for (bit, n, name) in [(STATUS_ADDRESS_VALID, 2, "address"), (STATUS_MISC_VALID, 3, "misc")] {
            if let Some(value) = register(n).filter(|_| status & bit != 0) {
                print_unlocked(format_args!("    {name} {value:#018x}"));
            }
        }
    }
}
