//! Which of its receiver's queues a packet goes by.
//!
//! Packets of one connection go by the same queue, and so stay in order: it is chosen by addresses and ports, or by the
//! addresses alone of what has no ports or is a fragment, whose later ones have none. It is told by the packet's first
//! bytes only, so that whoever looks at them again finds the same one.

use crate::offload::headers::{self, Headers};

/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The queue, of so many, for a packet that begins with these bytes.
pub fn queue_of(header: &[u8], nr_queues: u8) -> u16 {
    let hash = hash(header);
    // The upper half, of which each bit depends on all of the packet's, as a share of all queues.
    #[allow(clippy::cast_possible_truncation, reason = "less than `nr_queues`")]
    {
        (((hash >> 32) * u64::from(nr_queues.max(1))) >> 32) as u16
    }
}

fn hash(header: &[u8]) -> u64 {
    let parts = match headers::parse(header) {
        Some(Headers { is_v6, l3, l4, .. }) => {
            let addresses = if is_v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
            [header.get(addresses), header.get(l4..l4 + 4)]
        }
        None => [header.get(..12), headers::addresses(header).and_then(|addresses| header.get(addresses))],
    };
    parts.into_iter().flatten().fold(0, mix)
}

fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(4).fold(hash, |hash, word| {
        let word = word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        (hash ^ word).wrapping_mul(FACTOR).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const MACS: [u8; 12] = [0, 0x16, 0x3e, 0, 0, 1, 0, 0x16, 0x3e, 0, 0, 2];

    /// A TCP packet over IPv4; `flags` are those of IP, with the fragment's offset.
    fn packet(addresses: [u8; 8], ports: [u8; 4], flags: u16) -> Vec<u8> {
        let (mut all, [high, low]) = (MACS.to_vec(), flags.to_be_bytes());
        all.extend([8, 0, 0x45, 0, 0, 40, 1, 2, high, low, 64, 6, 0, 0]);
        all.extend(addresses);
        all.extend(ports);
        all.extend([0; 8]);
        all.extend([0x50, 0, 0, 0, 0, 0, 0, 0]);
        all
    }

    fn over_v6(last: u8, ports: [u8; 4]) -> Vec<u8> {
        let mut all = MACS.to_vec();
        all.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 17, 64]);
        all.extend([0xfe; 31]);
        all.push(last);
        all.extend(ports);
        all.extend([0; 16]);
        all
    }

    const A: [u8; 8] = [10, 9, 0, 1, 10, 9, 0, 3];

    #[test]
    fn connections_are_spread() {
        let all = |of: &dyn Fn(u8) -> Vec<u8>| (0..64).map(|n| queue_of(&of(n), 4)).collect::<BTreeSet<u16>>().len();
        assert_eq!(all(&|n| packet(A, [0x80, n, 0, 80], 0)), 4, "by a port");
        assert_eq!(all(&|n| packet(A, [0, 80, n, 7], 0)), 4, "by the other one");
        assert_eq!(all(&|n| packet([10, 9, 0, n, 10, 9, 0, 3], [0, 80, 0, 7], 0)), 4, "by an address");
        assert_eq!(all(&|n| over_v6(n, [0; 4])), 4, "by one of IPv6");
        assert_eq!(all(&|n| over_v6(1, [n, 0, 0, 0])), 4, "by a port over IPv6");
        assert_eq!(all(&|n| packet([10, 9, 0, n, 10, 9, 0, 3], [0; 4], 0x2000)), 4, "fragments by an address");
    }

    #[test]
    fn queues_get_shares_that_are_alike() {
        let mut counts = [0; 8];
        for n in 0..8000_u16 {
            let [high, low] = n.to_be_bytes();
            counts[usize::from(queue_of(&packet(A, [high, low, 0, 80], 0), 8))] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn fragments_stay_together_and_what_is_behind_the_ports_does_not_count() {
        let first = packet(A, [1, 2, 3, 4], 0x2000);
        let next = packet(A, [9, 9, 9, 9], 0x0010);
        let mut later = packet(A, [1, 2, 3, 4], 0);
        let before = queue_of(&later, 200);
        assert_eq!(queue_of(&first, 200), queue_of(&next, 200));
        later[14 + 4] ^= 0xff;
        later[14 + 20 + 4] ^= 0xff;
        later.extend([7; 50]);
        assert_eq!(queue_of(&later, 200), before);
    }

    #[test]
    fn tags_are_looked_through() {
        let spread = |n: u8| {
            let mut tagged = packet(A, [n, 2, 3, 4], 0);
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            queue_of(&tagged, 4)
        };
        assert_eq!((0..64).map(spread).collect::<BTreeSet<u16>>().len(), 4);
    }

    proptest! {
        /// Whatever comes goes by a queue that there is.
        #[test]
        fn there_is_always_one(bytes in prop::collection::vec(any::<u8>(), 0..100), nr_queues in any::<u8>()) {
            let queue = queue_of(&bytes, nr_queues);
            prop_assert!(queue < u16::from(nr_queues.max(1)));
            prop_assert_eq!(queue, queue_of(&bytes, nr_queues));
        }
    }
}
