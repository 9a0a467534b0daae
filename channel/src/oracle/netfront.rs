//! A front end of a network interface that behaves as Linux's does, and believes its back end nothing.

use super::front_ring::FrontRing;
use super::memory::{Guest, Memory};
use crate::grants::Frames;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

const CSUM_BLANK: u16 = 1;
const VALIDATED: u16 = 2;
const MORE: u16 = 4;
const EXTRA: u16 = 8;

/// What is said of a packet that is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Send {
    /// `XEN_NETTXF_csum_blank`.
    pub is_blank: bool,
    /// `XEN_NETTXF_data_validated`.
    pub is_validated: bool,
    /// Segment size, and `XEN_NETIF_GSO_TYPE_*`.
    pub gso: Option<(u16, u8)>,
    /// Bytes in the first slot, and in each other one; 0: as many as fit.
    pub first: usize,
    /// See `first`.
    pub others: usize,
    /// Where in its page the first slot begins.
    pub offset: usize,
}

/// A packet that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// `XEN_NETRXF_csum_blank`.
    pub is_blank: bool,
    /// `XEN_NETRXF_data_validated`.
    pub is_validated: bool,
    /// Segment size, and `XEN_NETIF_GSO_TYPE_*`.
    pub gso: Option<(u16, u8)>,
}

/// The front end.
pub struct Netfront {
    /// Its transmit ring.
    pub tx: FrontRing<3, 256>,
    /// Its receive ring.
    pub rx: FrontRing<2, 256>,
    /// Its grants.
    pub guest: Guest,
    memory: Memory,
    /// Grants of requests under way, by id.
    pending: BTreeMap<u16, u32>,
    free_ids: VecDeque<u16>,
    /// Grants and frames of pages to receive into, by slot.
    posted: [Option<(u32, u32)>; 256],
    /// Statuses of answered slots: `[OKAY, ERROR, DROPPED, NULL]`.
    pub answers: [u32; 4],
}

impl Netfront {
    /// A front end whose rings begin at `at`.
    pub fn new(memory: &Memory, guest: Guest, at: u32) -> Netfront {
        Netfront {
            tx: FrontRing::new(at),
            rx: FrontRing::new(at.rotate_left(3)),
            guest,
            memory: memory.clone(),
            pending: BTreeMap::new(),
            free_ids: (0..256).collect(),
            posted: [None; 256],
            answers: [0; 4],
        }
    }

    /// Slots that a packet takes.
    pub fn slots(bytes: usize, how: Send) -> usize {
        Self::cut(bytes, how).len() + usize::from(how.gso.is_some())
    }

    /// Pieces of a packet: offset in the page, and length.
    fn cut(bytes: usize, how: Send) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let (offset, want) = if pieces.is_empty() { (how.offset, how.first) } else { (0, how.others) };
            let most = 4096 - offset;
            let n = left.min(if want == 0 { most } else { want.min(most) });
            pieces.push((offset, n));
            left -= n;
        }
        pieces
    }

    /// Sends a packet, if there is room in the ring and memory for it. It is pushed with [`Netfront::kick`].
    pub fn send(&mut self, bytes: &[u8], how: Send) -> bool {
        let pieces = Self::cut(bytes.len(), how);
        if (self.tx.free() as usize) < Self::slots(bytes.len(), how) || self.guest.nr_free() < pieces.len() {
            return false;
        }
        let mut at = 0;
        for (i, (offset, len)) in pieces.iter().enumerate() {
            let (gref, frame) = self.guest.grant(false).expect("counted before");
            self.memory.write(frame, *offset as u16, &bytes[at..at + len]);
            at += len;
            let id = self.free_ids.pop_front().expect("as many as slots");
            self.pending.insert(id, gref);
            let mut flags = if at < bytes.len() { MORE } else { 0 };
            let mut size = *len;
            if i == 0 {
                size = bytes.len();
                flags |= if how.is_blank { CSUM_BLANK } else { 0 };
                flags |= if how.is_validated { VALIDATED } else { 0 };
                flags |= if how.gso.is_some() { EXTRA } else { 0 };
            }
            self.tx.put([gref, *offset as u32 | u32::from(flags) << 16, u32::from(id) | (size as u32) << 16]);
            if let (0, Some((size, kind))) = (i, how.gso) {
                self.tx.put([1 | u32::from(size) << 16, kind.into(), 0]);
            }
        }
        true
    }

    /// Shows the back end what is new in both rings. Returns whether it wants an event: of the transmit ring, of the
    /// receive ring.
    pub fn kick(&mut self) -> (bool, bool) {
        (self.tx.push(), self.rx.push())
    }

    /// Takes the answers to what was sent. Panics where Linux's front end would be "disabled for further use".
    pub fn collect(&mut self) -> usize {
        let mut n = 0;
        loop {
            while let Some((_, [word, ..])) = self.tx.take() {
                n += 1;
                let (id, status) = (word as u16, (word >> 16) as i16);
                match status {
                    1 => {
                        self.answers[3] += 1;
                        continue;
                    }
                    0 => self.answers[0] += 1,
                    -1 => self.answers[1] += 1,
                    -2 => self.answers[2] += 1,
                    _ => panic!("status {status}"),
                }
                let gref = self.pending.remove(&id).expect("an answer to what is not pending");
                self.guest.end_access(gref).expect("grant still in use by the back end");
                self.free_ids.push_back(id);
            }
            if !self.tx.ask_for_event() {
                return n;
            }
        }
    }

    /// Packets' slots that were not answered.
    pub fn nr_pending(&self) -> usize {
        self.pending.len()
    }

    /// Posts up to `n` pages to receive into.
    pub fn post(&mut self, n: u32) {
        for _ in 0..n.min(self.rx.free()) {
            let slot = self.rx.next_slot();
            let Some((gref, frame)) = self.guest.grant(true) else { return };
            self.memory.write(frame, 0, &[0xee; 4096]);
            assert!(self.posted[slot as usize].replace((gref, frame)).is_none());
            self.rx.put([slot, gref]);
        }
    }

    /// The next response of the receive ring and the page it is about.
    fn response(&mut self) -> Option<([u32; 2], u32, u32)> {
        let (slot, words) = self.rx.take()?;
        let (gref, frame) = self.posted[slot as usize].take().expect("a response where nothing was asked");
        Some((words, gref, frame))
    }

    /// Takes what was received, and asks for an event at the next. Packets with an error in one of their slots are
    /// counted only.
    pub fn receive(&mut self) -> (Vec<Received>, usize) {
        let (mut packets, mut errors) = self.receive_some(usize::MAX);
        while self.rx.ask_for_event() {
            let (more, bad) = self.receive_some(usize::MAX);
            packets.extend(more);
            errors += bad;
        }
        (packets, errors)
    }

    /// The same, of so many packets at most, and asks for no event.
    pub fn receive_some(&mut self, most: usize) -> (Vec<Received>, usize) {
        let (mut packets, mut errors) = (Vec::new(), 0);
        while packets.len() + errors < most {
            let Some((mut words, mut gref, mut frame)) = self.response() else { break };
            let mut flags = (words[1] & 0xffff) as u16;
            let mut packet =
                Received { bytes: Vec::new(), is_blank: flags & 2 != 0, is_validated: flags & 1 != 0, gso: None };
            let (mut is_bad, mut has_extra, mut slots) = (false, flags & 8 != 0, 0);
            loop {
                let (id, offset) = (words[0] & 0xffff, words[0] >> 16);
                let status = (words[1] >> 16) as i16;
                assert_eq!(id, self.rx.rsp_cons.wrapping_sub(1) % 256, "a response in another's slot");
                if status < 0 {
                    is_bad = true;
                } else {
                    let len = status.unsigned_abs();
                    assert!(len > 0 && offset + u32::from(len) <= 4096);
                    let mut bytes = std::vec![0; len.into()];
                    self.memory.read(frame, offset as u16, &mut bytes);
                    packet.bytes.extend(bytes);
                }
                self.guest.end_access(gref).expect("grant still in use by the back end");
                slots += 1;
                while has_extra {
                    let ([a, b], gref, _) = self.response().expect("missing extra info");
                    assert_eq!(a as u8, 1, "only segments are told of");
                    packet.gso = Some(((a >> 16) as u16, b as u8));
                    has_extra = a >> 8 & 1 != 0;
                    self.guest.end_access(gref).expect("grant still in use by the back end");
                }
                if flags & 4 == 0 {
                    break;
                }
                (words, gref, frame) = self.response().expect("need more slots");
                flags = (words[1] & 0xffff) as u16;
            }
            assert!(slots <= 18, "too many slots");
            let is_tagged = matches!(packet.bytes.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
            let has_more_to_do = packet.is_blank || packet.gso.is_some();
            assert!(is_bad || !is_tagged || !has_more_to_do, "Linux throws it away");
            if is_bad {
                errors += 1;
            } else {
                packets.push(packet);
            }
        }
        (packets, errors)
    }
}
