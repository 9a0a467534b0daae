//! Stacks of the CPUs, at addresses of their own, with holes below each of them.

use crate::cpu::percpu::{CPU_INFO_FROM_TOP, MAPPED, MAX_CPUS, STACK_SIZE};
use crate::mem::{frames, layout, paging, vmap};
use x86::PAGE_SIZE;

/// Makes the stack block of CPU `cpu`, zeroed, for good. `None` when out of memory.
pub fn map(cpu: usize) -> Option<*mut u8> {
    let block = layout::STACKS + (cpu * STACK_SIZE) as u64;
    for (offset, bytes) in MAPPED {
        for page in (offset..offset + bytes).step_by(PAGE_SIZE) {
            vmap::map_at(block + page as u64, &[frames::alloc_zeroed()?], paging::READ_WRITE)?;
        }
    }
    Some(block as *mut u8)
}

/// Does `va` lie in a hole of some CPU's stack block? An access there means that the stack above was too small.
pub fn is_hole(va: u64) -> bool {
    let Some(at) = va.checked_sub(layout::STACKS).filter(|&at| at < (MAX_CPUS * STACK_SIZE) as u64) else {
        return false;
    };
    let at = at as usize % STACK_SIZE;
    !MAPPED.iter().any(|&(offset, bytes)| (offset..offset + bytes).contains(&at))
}

/// The words of the stack from `sp` on, if it is a stack pointer of the CPU that runs on the stack block of `own`.
pub fn words(sp: u64, own: u64) -> Option<&'static [u64]> {
    let block = own & !(STACK_SIZE as u64 - 1);
    let from = usize::try_from(sp.checked_sub(block)?).ok()?.next_multiple_of(8);
    let (offset, bytes) = *MAPPED.iter().find(|&&(offset, bytes)| (offset..offset + bytes).contains(&from))?;
    let end = (offset + bytes).min(STACK_SIZE - CPU_INFO_FROM_TOP);
    let count = end.checked_sub(from)? / 8;
    // SAFETY: this part of the block that this CPU runs on is mapped for ever; what is above the stack pointer changes
    // only when this CPU returns, and the report that reads it does not.
    Some(unsafe { core::slice::from_raw_parts((block as usize + from) as *const u64, count) })
}
