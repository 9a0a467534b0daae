//! The page-attribute table: which memory types the cache bits of page-table entries choose (SDM vol. 3A, 12.12).

use crate::cpu::{self, cr};
use x86::msr;

/// Gives the running CPU the table that guests are told they have: they choose their entries' bits by it. After a reset
/// a CPU has another one, by which memory that a guest takes for write-combining would be cached and written back.
pub fn init_cpu() {
    if cpu::rdmsr(msr::PAT) == msr::PAT_XEN {
        return;
    }
    let cr4 = cpu::read_cr4();
    // SAFETY: every processor with long mode has the register. The hypervisor's own entries have PCD and PWT both set
    // or both clear, which choose uncached and write-back memory in either table; so nothing that is mapped changes its
    // type. Entries that the TLB or the caches have under the old table go, as the manual asks, global ones by way of
    // CR4.PGE, which is as it was afterwards.
    unsafe {
        cpu::wrmsr(msr::PAT, msr::PAT_XEN);
        cpu::wbinvd();
        cpu::write_cr4(cr4 & !cr::CR4_PGE);
        cpu::write_cr4(cr4);
    }
}
