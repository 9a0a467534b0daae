//! DMA addresses. In a PV domain the bus address is the machine address. What the device does not reach, or what lies
//! in frames that are apart, the domain's kernel has the device access in a copy, its *bounce* buffers: that is left to
//! it.

use super::{Done, Host, Stop, Support};

/// What the mapping functions return for an error.
pub const MAPPING_ERROR: u64 = u64::MAX;

const PAGE: u64 = 4096;

/// For routines that have nothing to do.
#[inline(always)]
pub fn nothing<H: Host>(_: &Support, _: &mut H, _: &[u64; 6]) -> Done {
    Ok(0)
}

/// `is_vmalloc_addr(address)`.
pub fn is_vmalloc_addr<H: Host>(s: &Support, _: &mut H, args: &[u64; 6]) -> Done {
    Ok(u64::from((s.kernel.vmalloc_start..s.kernel.vmalloc_end).contains(&args[0])))
}

/// `dma_map_page_attrs(device, page, offset, size, direction, attributes)`: the machine address of a buffer that is
/// contiguous in machine memory and below the device's limit. For others the domain has copies, if the invocation can
/// wait for that.
#[inline(always)]
pub fn map_page<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [_, page, offset, size, ..] = *args;
    match machine_range(s, host, page, offset, size) {
        Some(address) => Ok(address),
        None if host.may_wait() => Err(Stop::Upcall),
        None => Ok(MAPPING_ERROR),
    }
}

/// `dma_unmap_page_attrs(device, address, …)`, and `dma_sync_single_for_cpu` and `_device`: nothing, but for a copy.
#[inline(always)]
pub fn end_access<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if host.is_bounced(args[1]) {
        return Err(Stop::Upcall);
    }
    Ok(0)
}

#[inline(always)]
fn machine_range<H: Host>(s: &Support, host: &H, page: u64, offset: u64, size: u64) -> Option<u64> {
    let into_map = page.checked_sub(s.kernel.vmemmap)?;
    if s.offsets.page_size == 0 || into_map % s.offsets.page_size != 0 {
        return None;
    }
    let first = (into_map / s.offsets.page_size).checked_add(offset / PAGE)?;
    let start = offset % PAGE;
    let pages = start.checked_add(size.max(1))?.div_ceil(PAGE);
    // Nothing that a driver maps at once is larger than the largest socket buffer.
    if pages > 64 {
        return None;
    }
    let frame = host.machine_frame(first)?;
    for n in 1..pages {
        if host.machine_frame(first + n)? != frame + n {
            return None;
        }
    }
    let address = frame.checked_mul(PAGE)?.checked_add(start)?;
    let end = address.checked_add(size)?;
    (s.dma_limit == 0 || end <= s.dma_limit).then_some(address)
}
