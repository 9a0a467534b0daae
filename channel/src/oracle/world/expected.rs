//! What has to arrive, where, and in which order.

use super::card::CARD_TAKES;
use super::{World, ACCEPTS, GUESTS, HOSTILE, UPLINK};
use crate::oracle::netfront::Received;
use std::collections::VecDeque;
use std::vec::Vec;

/// What is to arrive of one packet.
pub(super) struct Expected {
    pub(super) packet: u32,
    pub(super) parts: VecDeque<Received>,
}

impl World {
    /// What `guest` is to see of a packet.
    pub(super) fn expect(&mut self, sender: usize, guest: usize, number: u32) {
        let (shape, how) = self.shapes[number as usize];
        let accepts = ACCEPTS.get(guest).copied().unwrap_or(CARD_TAKES.accepts);
        let (takes_csum, takes_gso) =
            if shape.is_v6 { (accepts.csum_v6, accepts.gso_v6) } else { (accepts.csum_v4, accepts.gso_v4) };
        // What has a tag is finished for everybody.
        let (takes_csum, takes_gso) = (takes_csum && shape.tags == 0, takes_gso && shape.tags == 0);
        let received = |bytes: Vec<u8>, is_blank: bool, gso| {
            let is_validated = how.is_validated || how.is_blank;
            Received { bytes, is_blank, is_validated, gso }
        };
        let parts: VecDeque<Received> = match how.gso {
            Some((size, _)) if !takes_gso => {
                let segments = shape.segments(size.into()).into_iter();
                assert!(!takes_csum || guest == usize::from(UPLINK), "no such guest here");
                segments.map(|s| received(s, false, None)).collect()
            }
            gso if how.is_blank && takes_csum && guest != usize::from(UPLINK) => {
                [received(shape.blank(), true, gso)].into()
            }
            _ => [received(shape.complete(), false, None)].into(),
        };
        self.expected.entry((sender, guest)).or_default().push_back(Expected { packet: number, parts });
    }

    /// A packet will not arrive, or not all of it.
    pub(super) fn forget(&mut self, sender: usize, guest: usize, number: u32) {
        if let Some(flow) = self.expected.get_mut(&(sender, guest)) {
            flow.retain(|e| e.packet != number);
        }
    }

    pub(super) fn check_received(&mut self, guest: usize, packet: Received) {
        let source: [u8; 6] = packet.bytes[6..12].try_into().expect("an Ethernet header");
        let sender = match source {
            [0, 0x16, 0x3e, 0, 0, n] if usize::from(n) < GUESTS => n.into(),
            _ => usize::from(UPLINK),
        };
        if sender == HOSTILE {
            return;
        }
        let flow = self.expected.get_mut(&(sender, guest)).expect("a packet that nobody sent");
        let first = flow.front_mut().expect("a packet too many");
        let part = first.parts.pop_front().expect("not empty");
        assert_eq!(packet, part, "packet {} from {sender} to {guest}", first.packet);
        if first.parts.is_empty() {
            flow.pop_front();
        }
    }

    /// A frame is on the wire, with its checksum.
    pub(super) fn check_sent(&mut self, sender: usize, bytes: &[u8]) {
        let flow = self.expected.get_mut(&(sender, UPLINK.into())).expect("a packet that nobody sent");
        let first = flow.front_mut().expect("a packet too many");
        let part = first.parts.pop_front().expect("not empty");
        assert_eq!(bytes, part.bytes, "packet {} from {sender} to the card", first.packet);
        if first.parts.is_empty() {
            flow.pop_front();
        }
    }
}
