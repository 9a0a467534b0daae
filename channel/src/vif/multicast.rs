//! The groups that a guest wants frames of, if it says so (`request-multicast-control`).

use crate::switch::{is_group, Mac};
use alloc::vec::Vec;

/// Groups of one interface at most (as many as netback has).
const MAX: usize = 64;

/// The list of an interface.
#[derive(Debug, Default)]
pub struct Groups {
    list: Vec<Mac>,
    /// The guest has asked to be spared all other groups.
    pub is_filtering: bool,
}

impl Groups {
    /// An empty list, with room for all that it may hold.
    pub fn new(is_filtering: bool) -> Groups {
        Groups { list: Vec::with_capacity(MAX), is_filtering }
    }

    /// Adds a group. `false`: the list is full. A group that is added twice is there twice.
    pub fn add(&mut self, mac: Mac) -> bool {
        let is_room = self.list.len() < MAX;
        if is_room {
            self.list.push(mac);
        }
        is_room
    }

    /// Removes a group, once.
    pub fn remove(&mut self, mac: Mac) {
        if let Some(at) = self.list.iter().position(|m| *m == mac) {
            self.list.remove(at);
        }
    }

    /// Whether the guest wants a frame to `to`: to itself, to all, or to a group that it has not excluded.
    #[inline]
    pub fn wants(&self, to: Mac) -> bool {
        !self.is_filtering || !is_group(to) || to == [0xff; 6] || self.list.contains(&to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_filters_gets_its_groups_and_broadcasts() {
        let group = |n: u8| [1, 0, 0x5e, 0, 0, n];
        let mut groups = Groups::new(true);
        assert!(groups.add(group(1)) && groups.add(group(1)));
        let wants = |g: &Groups| [group(1), group(2), [0xff; 6], [2; 6]].map(|m| g.wants(m));
        assert_eq!(wants(&groups), [true, false, true, true]);
        groups.remove(group(1));
        assert_eq!(wants(&groups), [true, false, true, true], "it was added twice");
        groups.remove(group(1));
        groups.remove(group(9));
        assert_eq!(wants(&groups), [false, false, true, true]);
        groups.is_filtering = false;
        assert_eq!(wants(&groups), [true; 4]);
        assert!((0..64).all(|n| groups.add(group(n))));
        assert!(!groups.add(group(64)));
    }
}
