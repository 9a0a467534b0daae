//! Segments of TCP that come again although nothing of them was lost: whoever waits too long for an answer sends once
//! more.

use smoltcp::wire::{EthernetFrame, IpProtocol, Ipv4Address, Ipv4Packet, TcpPacket, TcpSeqNumber};
use std::collections::HashMap;

/// Pieces of a flow that came before what is missing. Linux sends no more than a window of them; of more the first are
/// forgotten.
const MOST_PIECES: usize = 256;

/// Sender, its port, and ours.
type Flow = (Ipv4Address, u16, u16);

/// What came of each flow.
#[derive(Default)]
pub(super) struct Again {
    flows: HashMap<Flow, Came>,
    begun: Option<Begun>,
    /// Segments that had something, and brought nothing that had not come before.
    pub(super) count: u64,
}

/// The first fragment of a segment.
struct Begun {
    ident: u16,
    flow: Flow,
    from: TcpSeqNumber,
    /// Bytes of TCP's header.
    header: usize,
    fin: bool,
}

struct Came {
    begin: TcpSeqNumber,
    /// All before that came.
    next: TcpSeqNumber,
    /// And these pieces.
    pieces: Vec<(TcpSeqNumber, TcpSeqNumber)>,
}

impl Again {
    /// Takes a frame; whether it asks once more for a connection that was asked for before. Fragments of a packet come
    /// one behind the other, as QEMU's e1000e sends what the driver leaves to it to segment.
    pub(super) fn take(&mut self, frame: &[u8]) -> bool {
        let Some((flow, is_syn, from, to)) = self.segment(frame) else { return false };
        let came = self.flows.entry(flow).or_insert(Came::begin(from));
        if is_syn && came.begin != from {
            // The port is used again.
            *came = Came::begin(from);
        }
        let is_news = from == to || came.is_news(from, to);
        self.count += u64::from(!is_news);
        is_syn && !is_news
    }

    /// The segment that this frame completes: its flow, whether a connection begins, and its numbers.
    fn segment(&mut self, frame: &[u8]) -> Option<(Flow, bool, TcpSeqNumber, TcpSeqNumber)> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
        let begun = self.begun.take();
        if packet.next_header() != IpProtocol::Tcp {
            return None;
        }
        if packet.frag_offset() == 0 {
            let tcp = TcpPacket::new_checked(packet.payload()).ok()?;
            let flow = (packet.src_addr(), tcp.src_port(), tcp.dst_port());
            let from = tcp.seq_number();
            if !packet.more_frags() {
                return Some((flow, tcp.syn(), from, from + tcp.segment_len()));
            }
            let header = usize::from(tcp.header_len());
            self.begun = Some(Begun { ident: packet.ident(), flow, from, header, fin: tcp.fin() });
            return None;
        }
        let begun = begun.filter(|begun| begun.ident == packet.ident())?;
        if packet.more_frags() {
            self.begun = Some(begun);
            return None;
        }
        let len = usize::from(packet.frag_offset()) + packet.payload().len();
        Some((begun.flow, false, begun.from, begun.from + len.checked_sub(begun.header)? + usize::from(begun.fin)))
    }
}

impl Came {
    fn begin(at: TcpSeqNumber) -> Came {
        Came { begin: at, next: at, pieces: Vec::new() }
    }

    /// Notes what is between these numbers. Is there something that had not come?
    fn is_news(&mut self, from: TcpSeqNumber, to: TcpSeqNumber) -> bool {
        if to <= self.next || self.pieces.iter().any(|(begin, end)| *begin <= from && to <= *end) {
            return false;
        }
        self.pieces.push((from, to));
        while let Some(at) = self.pieces.iter().position(|(begin, _)| *begin <= self.next) {
            self.next = self.next.max(self.pieces.swap_remove(at).1);
        }
        if self.pieces.len() > MOST_PIECES {
            self.pieces.remove(0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many of these segments, given by their first and last number, come again.
    fn again(begin: i32, segments: &[(i32, i32)]) -> usize {
        let number = |n: i32| TcpSeqNumber(begin.wrapping_add(n));
        let mut came = Came::begin(number(0));
        segments.iter().filter(|(from, to)| !came.is_news(number(*from), number(*to))).count()
    }

    #[test]
    fn what_was_lost_does_not_come_again() {
        for begin in [0, -15, i32::MAX - 15] {
            assert_eq!(again(begin, &[(0, 10), (10, 20), (10, 20), (20, 30), (5, 30)]), 2);
            assert_eq!(
                again(begin, &[(0, 10), (20, 30), (10, 20), (10, 20), (30, 40)]),
                1,
                "one was lost and sent again twice"
            );
            assert_eq!(
                again(begin, &[(0, 10), (20, 30), (20, 30), (20, 35), (10, 20), (30, 35)]),
                2,
                "ahead of what is missing"
            );
            assert_eq!(again(begin, &[(0, 10), (5, 15), (0, 15)]), 1, "half of the second is news");
        }
    }
}
