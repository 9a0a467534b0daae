//! The allocator against a model that only knows which frames are free.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::vec::Vec;

/// Frames up to here exist.
const END: u64 = 1 << 21;

#[derive(Default, Debug)]
struct Fake {
    links: HashMap<u64, Links>,
    tags: HashMap<u64, u8>,
}

impl Storage for Fake {
    fn links(&self, frame: u64) -> Links {
        self.links[&frame]
    }
    fn set_links(&mut self, frame: u64, links: Links) {
        assert!(frame < END);
        self.links.insert(frame, links);
    }
    fn tag(&self, frame: u64) -> u8 {
        self.tags.get(&frame).copied().unwrap_or(0)
    }
    fn set_tag(&mut self, frame: u64, tag: u8) {
        assert!(frame < END);
        self.tags.insert(frame, tag);
    }
}

fn with_ranges(ranges: &[(u64, u64)]) -> Buddy<Fake> {
    let mut buddy = Buddy::new(Fake::default());
    for &(start, end) in ranges {
        buddy.free_range(start, end);
    }
    buddy
}

/// Walks every list: blocks are aligned, tagged, in the right zone, and counted.
fn check(buddy: &Buddy<Fake>) -> BTreeSet<u64> {
    let mut free = BTreeSet::new();
    for zone in 0..ZONES {
        let mut in_zone = 0;
        for order in 0..=MAX_ORDER {
            let (mut at, mut prev) = (buddy.heads[zone][order as usize], NONE);
            assert_eq!(at != NONE, buddy.nonempty[zone] >> order & 1 == 1);
            while at != NONE {
                assert_eq!(at % (1 << order), 0);
                assert_eq!(buddy.storage.tag(at), tag_of(order));
                assert_eq!(buddy.storage.links(at).prev, prev);
                assert_eq!((zone_of(at), zone_of(at + (1 << order) - 1)), (zone, zone));
                for frame in at..at + (1 << order) {
                    assert!(free.insert(frame), "frame {frame:#x} is in two blocks");
                }
                in_zone += 1 << order;
                prev = at;
                at = buddy.storage.links(at).next;
            }
        }
        assert_eq!(in_zone, buddy.free_in_zone[zone]);
    }
    free
}

#[test]
fn zones_by_address_width() {
    assert_eq!(zone_of(0), 0);
    assert_eq!(zone_of((16 << 20 >> 12) - 1), 0);
    assert_eq!(zone_of(16 << 20 >> 12), 1);
    assert_eq!(zone_of((4 << 30 >> 12) - 1), 8);
    assert_eq!(zone_of(4 << 30 >> 12), 9);
}

#[test]
fn high_memory_goes_first_and_limits_hold() {
    let mut buddy = with_ranges(&[(256, END)]);
    assert!(buddy.alloc(0, 64).unwrap() >= 1 << 20);
    assert!(buddy.alloc(0, 32).unwrap() < 1 << 20);
    assert!(buddy.alloc(3, 24).unwrap() < 1 << 12);
    assert_eq!(buddy.alloc(0, 23), None);
    assert_eq!(buddy.alloc(MAX_ORDER + 1, 64), None);
    assert_eq!(buddy.free_frames_below(24), (1 << 12) - 256 - 8);
}

#[test]
fn freed_halves_join_again() {
    let mut buddy = with_ranges(&[(1 << 14, 1 << 15)]);
    assert_eq!(buddy.largest_order(), Some(14));
    let blocks: Vec<u64> = (0..1 << 14).map(|_| buddy.alloc(0, 64).unwrap()).collect();
    assert_eq!((buddy.alloc(0, 64), buddy.largest_order()), (None, None));
    for block in blocks {
        buddy.free(block, 0);
    }
    assert_eq!(buddy.largest_order(), Some(14));
    assert_eq!(buddy.alloc(14, 64), Some(1 << 14));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn never_gives_a_frame_twice(
        ranges in prop::collection::btree_set(0u64..1 << 13, 2..8),
        steps in prop::collection::vec((any::<bool>(), 0u32..8, 24u32..36, any::<prop::sample::Index>()), 1..120),
    ) {
        let borders: Vec<u64> = ranges.into_iter().collect();
        let ranges: Vec<(u64, u64)> = borders.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let mut buddy = with_ranges(&ranges);
        let mut model: BTreeSet<u64> = ranges.iter().flat_map(|&(start, end)| start..end).collect();
        let mut held: Vec<(u64, u32)> = Vec::new();
        for (take, order, bits, pick) in steps {
            if take || held.is_empty() {
                let Some(frame) = buddy.alloc(order, bits) else { continue };
                prop_assert!((frame + (1 << order)) << 12 <= 1 << bits);
                for frame in frame..frame + (1 << order) {
                    prop_assert!(model.remove(&frame));
                }
                held.push((frame, order));
            } else {
                let (frame, order) = held.swap_remove(pick.index(held.len()));
                buddy.free(frame, order);
                model.extend(frame..frame + (1 << order));
            }
            prop_assert_eq!(buddy.free_frames(), model.len() as u64);
        }
        prop_assert_eq!(check(&buddy), model);
    }
}
