//! The bridges between a function and the root.

use super::Sbdf;

/// No way to the root is longer than there are buses.
const LONGEST_WAY: usize = 256;

/// The bridge to the bus of the function at `at`, from `bridges` with the buses right behind them. `None`: it is on a
/// root bus. A bus behind a bridge has a higher number than the bridge's own: what says otherwise is not set up, or a
/// circle.
pub fn bridge_to(at: Sbdf, bridges: impl IntoIterator<Item = (Sbdf, u8)>) -> Option<Sbdf> {
    let leads_there = |(bridge, secondary): &(Sbdf, u8)| {
        bridge.segment == at.segment && *secondary == at.bus && *secondary > bridge.bus
    };
    bridges.into_iter().find(leads_there).map(|(bridge, _)| bridge)
}

/// The bridges above a function, whose own is `nearest`, up to the root. `bridge_of` says which one is above another.
/// It ends even if they are in a circle.
pub fn above(nearest: Option<Sbdf>, bridge_of: impl Fn(Sbdf) -> Option<Sbdf>) -> impl Iterator<Item = Sbdf> {
    core::iter::successors(nearest, move |at| bridge_of(*at)).take(LONGEST_WAY)
}

/// What counts as a bridge's register of bus numbers, of which `known` was read before and `read` now: all ones are
/// nobody's answer.
pub const fn learned(known: u32, read: u32) -> u32 {
    if read == u32::MAX {
        known
    } else {
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const fn at(bus: u8, device: u8) -> Sbdf {
        Sbdf::new(0, bus, device << 3)
    }

    #[test]
    fn a_bridge_leads_to_a_higher_bus_of_its_segment() {
        let bridges = [(at(0, 1), 0), (at(0, 2), 1), (at(1, 0), 2), (at(2, 0), 1), (at(3, 0), 3), (at(4, 0), 0)];
        let to = |bus| bridge_to(at(bus, 9), bridges);
        assert_eq!([0, 1, 2, 3, 9].map(to), [None, Some(at(0, 2)), Some(at(1, 0)), None, None]);
        assert_eq!(bridge_to(Sbdf::new(1, 1, 0), bridges), None, "another segment's");
    }

    #[test]
    fn the_way_to_the_root_ends_in_a_circle_too() {
        let line = |bridge| match bridge {
            Sbdf { bus: 2, .. } => Some(at(1, 0)),
            Sbdf { bus: 1, .. } => Some(at(0, 2)),
            _ => None,
        };
        assert_eq!(above(Some(at(2, 5)), line).collect::<Vec<_>>(), [at(2, 5), at(1, 0), at(0, 2)]);
        assert_eq!(above(None, line).count(), 0);
        let circle = |bridge: Sbdf| Some(at(3 - bridge.bus, 0));
        assert_eq!(above(Some(at(1, 0)), circle).count(), 256);
    }

    #[test]
    fn a_bridge_that_was_pulled_out_leads_where_it_led() {
        assert_eq!([learned(0x0004_0301, u32::MAX), learned(0x0004_0301, 0x0005_0501)], [0x0004_0301, 0x0005_0501]);
    }
}
