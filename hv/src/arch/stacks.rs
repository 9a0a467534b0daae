//! Stacks of the CPUs, at addresses of their own, with holes below each of them.

use crate::arch::percpu::{MAPPED, MAX_CPUS, STACK_SIZE};
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
