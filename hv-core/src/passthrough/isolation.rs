//! Who can reach whom past the IOMMU.
//!
//! What a function reads or writes goes up to the root, where the IOMMU sees it; but a bridge on the way may turn it
//! round to another function below, and functions of one device may reach each other inside it, unless access control
//! services (PCI Express base specification, 6.12) forbid it. Functions that can do so are in one isolation group.

use crate::pcicfg::layout::kind;
use crate::pcicfg::Sbdf;

/// Bits of the register of control, and of that of capabilities: the source is checked; requests, and completions, go
/// up; and what comes from above is not sent up again.
const SOURCE_VALIDATION: u16 = 1 << 0;
const REQUESTS_UP: u16 = 1 << 2;
const COMPLETIONS_UP: u16 = 1 << 3;
const FORWARDED_UP: u16 = 1 << 4;
const ALL: u16 = SOURCE_VALIDATION | REQUESTS_UP | COMPLETIONS_UP | FORWARDED_UP;

/// What to write into the register of control of a bridge that has these capabilities.
pub const fn wanted(capabilities: u16) -> u16 {
    capabilities & ALL
}

/// Where a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function.
    pub at: Sbdf,
    /// The bridge to its bus, unless that is a root bus.
    pub bridge: Option<Sbdf>,
    /// Is it a bridge itself?
    pub is_bridge: bool,
    /// What it is on its link, if that is PCI Express.
    pub kind: Option<u8>,
    /// Its register of control, if it has access control services.
    pub control: Option<u16>,
}

impl Place {
    /// Does everything that comes from below go up?
    const fn separates(&self) -> bool {
        let is_port = matches!(self.kind, Some(kind::ROOT_PORT | kind::DOWNSTREAM));
        match self.control {
            Some(control) => is_port && control & (REQUESTS_UP | FORWARDED_UP) == REQUESTS_UP | FORWARDED_UP,
            None => false,
        }
    }

    /// Do the functions of its device not reach each other?
    const fn is_alone_in_its_device(&self) -> bool {
        matches!(self.control, Some(control) if control & REQUESTS_UP != 0)
    }

    fn is_of_device(&self, at: Sbdf) -> bool {
        (self.at.segment, self.at.bus, self.at.devfn >> 3) == (at.segment, at.bus, at.devfn >> 3)
    }
}

/// The bridge highest up that turns round what comes from below; all below it are in one group.
fn turning_point(of: &Place, places: &[Place]) -> Option<Sbdf> {
    let find = |at: Option<Sbdf>| places.iter().find(|p| Some(p.at) == at);
    let (mut found, mut next) = (None, find(of.bridge));
    // No way is longer than there are buses.
    for _ in 0..256 {
        let Some(bridge) = next.filter(|bridge| !bridge.separates()) else { break };
        // Only behind a port with others beside it, or a switch, is there anybody else; but that is for the caller to
        // see.
        found = Some(bridge.at);
        next = find(bridge.bridge);
    }
    found
}

fn is_below<'a>(mut place: &'a Place, bridge: Sbdf, places: &'a [Place]) -> bool {
    for _ in 0..256 {
        if place.bridge == Some(bridge) {
            return true;
        }
        match places.iter().find(|p| Some(p.at) == place.bridge) {
            Some(above) => place = above,
            None => return false,
        }
    }
    false
}

/// The other functions, bridges left out, in the isolation group of the function at `at`.
pub fn group(at: Sbdf, places: &[Place]) -> impl Iterator<Item = Sbdf> + '_ {
    let own = places.iter().find(|p| p.at == at);
    let top = own.and_then(|own| turning_point(own, places));
    let is_together = own.is_some_and(|own| !own.is_alone_in_its_device());
    let others = places.iter().filter(move |p| p.at != at && !p.is_bridge);
    let near = others
        .filter(move |p| is_together && p.is_of_device(at) || top.is_some_and(|bridge| is_below(p, bridge, places)));
    near.map(|p| p.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const fn at(bus: u8, device: u8, function: u8) -> Sbdf {
        Sbdf::new(0, bus, device << 3 | function)
    }
    const fn plain(at: Sbdf, bridge: Option<Sbdf>) -> Place {
        Place { at, bridge, is_bridge: false, kind: Some(0), control: None }
    }
    const fn port(at: Sbdf, bridge: Option<Sbdf>, kind: u8, control: Option<u16>) -> Place {
        Place { at, bridge, is_bridge: true, kind: Some(kind), control }
    }
    fn near(of: Sbdf, places: &[Place]) -> Vec<Sbdf> {
        group(of, places).collect()
    }

    #[test]
    fn functions_of_one_device_are_together_unless_it_keeps_them_apart() {
        let two = [plain(at(0, 3, 0), None), plain(at(0, 3, 1), None), plain(at(0, 4, 0), None)];
        assert_eq!(near(at(0, 3, 0), &two), [at(0, 3, 1)]);
        assert_eq!(near(at(0, 4, 0), &two), []);
        let apart = two.map(|p| Place { control: Some(REQUESTS_UP), ..p });
        assert_eq!(near(at(0, 3, 0), &apart), []);
        assert_eq!(near(at(0, 9, 0), &two), [], "nobody");
    }

    #[test]
    fn a_switch_turns_round_what_its_ports_do_not_send_up() {
        let root = at(0, 1, 0);
        let up = at(1, 0, 0);
        let (left, right) = (at(2, 0, 0), at(2, 1, 0));
        let tree = |control| {
            [
                port(root, None, kind::ROOT_PORT, Some(ALL)),
                port(up, Some(root), 5, None),
                port(left, Some(up), kind::DOWNSTREAM, control),
                port(right, Some(up), kind::DOWNSTREAM, control),
                plain(at(3, 0, 0), Some(left)),
                plain(at(4, 0, 0), Some(right)),
                plain(at(0, 5, 0), None),
            ]
        };
        assert_eq!(near(at(3, 0, 0), &tree(None)), [at(4, 0, 0)]);
        assert_eq!(near(at(3, 0, 0), &tree(Some(SOURCE_VALIDATION))), [at(4, 0, 0)], "off");
        assert_eq!(near(at(3, 0, 0), &tree(Some(wanted(0x5f)))), []);
    }

    #[test]
    fn a_circle_of_bridges_ends() {
        let (a, b) = (at(0, 1, 0), at(1, 1, 0));
        let circle = [port(a, Some(b), 5, None), port(b, Some(a), 5, None), plain(at(2, 0, 0), Some(a))];
        assert_eq!(near(at(2, 0, 0), &circle), []);
    }
}
