//! The page below 1 MiB in which CPUs begin when the first one starts them: in real mode they reach no other memory.

use x86::PAGE_SHIFT;

/// Where it is as a rule.
pub const USUAL: u64 = 0x8000;
/// Numbers of pages that it can have: the first one has the vectors of real mode and what a BIOS notes, and from
/// 640 KiB on there is no RAM on a PC.
const NUMBERS: core::ops::Range<u64> = 1..160;

/// The usual page if `is_ram` says that it is RAM which nobody has claimed, or else the highest other one: firmware may
/// have something of its own anywhere. `None`: there is none.
pub fn choose(is_ram: impl Fn(u64) -> bool) -> Option<u64> {
    let others = NUMBERS.rev().map(|number| number << PAGE_SHIFT);
    core::iter::once(USUAL).chain(others).find(|page| is_ram(*page))
}

/// An address inside code that was made for [`USUAL`], when that code is at `page`.
#[allow(clippy::cast_possible_truncation, reason = "pages are below 1 MiB")]
pub const fn moved(address: u32, page: u64) -> u32 {
    address.wrapping_sub(USUAL as u32).wrapping_add(page as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_start_where_there_is_ram() {
        assert_eq!(choose(|_| true), Some(0x8000));
        // Firmware has its data around the usual page, and behind what it leaves free.
        assert_eq!(choose(|page| page < 0x9_f000 && !(0x5000..0x1_0000).contains(&page)), Some(0x9_e000));
        assert_eq!(choose(|page| page == 0x1000), Some(0x1000));
        for nowhere in [|_| false, |page: u64| page == 0, |page: u64| page >= 0xa_0000] {
            assert_eq!(choose(nowhere), None);
        }
    }

    #[test]
    fn addresses_move_with_the_page() {
        assert_eq!(moved(0x8123, 0x8000), 0x8123, "nothing changes where it is as a rule");
        assert_eq!((moved(0x8123, 0x9_e000), moved(0x8123, 0x1000)), (0x9_e123, 0x1123));
    }
}
