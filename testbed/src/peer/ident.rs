//! Numbers packets of TCP as Linux does: those of a flow count up. smoltcp gives each the number 0, which is allowed
//! since they may not be cut on their way; but a Linux that joins such segments and forwards what came of it has to cut
//! it again, as few network cards repeat a number.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Address, Ipv4Packet, TcpPacket};
use std::collections::HashMap;

/// The next number of each flow: where it goes, by which ports.
#[derive(Default)]
pub(super) struct Idents(HashMap<(Ipv4Address, u16, u16), u16>);

impl Idents {
    /// Numbers the packet in `frame`, if it is one of TCP.
    pub(super) fn number(&mut self, frame: &mut [u8]) {
        let Ok(mut frame) = EthernetFrame::new_checked(frame) else { return };
        if frame.ethertype() != EthernetProtocol::Ipv4 {
            return;
        }
        let Ok(mut packet) = Ipv4Packet::new_checked(frame.payload_mut()) else { return };
        if packet.next_header() != IpProtocol::Tcp {
            return;
        }
        let to = packet.dst_addr();
        let Ok(tcp) = TcpPacket::new_checked(packet.payload_mut()) else { return };
        let next = self.0.entry((to, tcp.src_port(), tcp.dst_port())).or_default();
        *next = next.wrapping_add(1);
        packet.set_ident(*next);
        packet.fill_checksum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::frame;

    /// A packet of this protocol to this port.
    fn packet(protocol: u8, port: u16) -> Vec<u8> {
        let mut out = frame::ethernet([2, 0, 0, 0, 0, 1], [8, 0]);
        out.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        out.extend(7001u16.to_be_bytes());
        out.extend(port.to_be_bytes());
        out.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        out
    }

    #[test]
    fn packets_of_a_flow_count_up() {
        let mut idents = Idents::default();
        let mut number = |port| {
            let mut frame = packet(6, port);
            idents.number(&mut frame);
            assert_eq!(frame::internet_checksum(0, &frame[14..34]), 0, "the header's checksum");
            u16::from_be_bytes([frame[18], frame[19]])
        };
        let numbers: Vec<_> = [4000, 4000, 4001, 4000, 4001].map(&mut number).into();
        assert_eq!(numbers, [1, 2, 1, 3, 2]);
    }

    #[test]
    fn what_is_not_of_tcp_stays_as_it_is() {
        let mut idents = Idents::default();
        let arp = frame::ethernet([2, 0, 0, 0, 0, 1], [8, 6]);
        for frame in [packet(17, 4000), packet(6, 4000)[..40].to_vec(), arp, Vec::new()] {
            let mut numbered = frame.clone();
            idents.number(&mut numbered);
            assert_eq!(numbered, frame);
        }
    }
}
