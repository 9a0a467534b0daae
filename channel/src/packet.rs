//! A packet on its way: a copy of its beginning, and the rest where the sender has it.
//!
//! Everything that is decided about a packet (where it goes, whether its sender may use this address, how it is cut) is
//! decided on the copy, and it is the copy that is passed on: a sender who changes the packet meanwhile changes payload
//! only.

/// Bytes of a packet that are copied. Enough for two VLAN tags, IPv4 and TCP with all their options (142), and IPv6
/// and TCP with some extension headers.
pub const HEADER_BYTES: usize = 192;

/// Pieces that a packet has at most: one for each slot that is accepted, [`crate::vif::tx::MAX_SLOTS`].
pub const MAX_FRAGMENTS: usize = 19;

/// A piece of a packet in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment<F> {
    /// Where it is.
    pub frame: F,
    /// First byte in the frame.
    pub offset: u16,
    /// Bytes; not 0.
    pub len: u16,
}

/// What is known of a packet's protocol checksum (TCP's or UDP's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: the receiver has to look.
    #[default]
    Unknown,
    /// Somebody has checked it.
    Validated,
    /// It is to be completed. Its field holds the sum of the pseudo header; `start` is where the sum over the packet
    /// begins, `field` where the checksum is (bytes from the packet's begin; both are inside the copied part).
    Blank {
        /// Begin of the TCP or UDP header.
        start: u16,
        /// Place of the checksum.
        field: u16,
    },
}

/// The protocol of a packet that is to be cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over either: datagrams of their own. It comes by cards only, and neither a guest nor a card takes it whole.
    Udp,
}

/// How a packet is to be cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocol.
    pub kind: GsoKind,
    /// Payload of a segment, in bytes; not 0.
    pub size: u16,
}

/// A packet. Made once for each queue and filled again and again.
#[derive(Clone, Debug)]
pub struct Packet<F> {
    header: [u8; HEADER_BYTES],
    header_len: u8,
    nr_fragments: u8,
    fragments: [Fragment<F>; MAX_FRAGMENTS],
    len: u32,
    /// Its protocol checksum.
    pub checksum: Checksum,
    /// Whether it is one for many.
    pub gso: Option<Gso>,
}

impl<F: Copy + Default> Default for Packet<F> {
    fn default() -> Self {
        Packet {
            header: [0; HEADER_BYTES],
            header_len: 0,
            nr_fragments: 0,
            fragments: [Fragment::default(); MAX_FRAGMENTS],
            len: 0,
            checksum: Checksum::Unknown,
            gso: None,
        }
    }
}

impl<F: Copy> Packet<F> {
    /// Makes it empty.
    #[inline]
    pub fn clear(&mut self) {
        (self.header_len, self.nr_fragments, self.len) = (0, 0, 0);
        (self.checksum, self.gso) = (Checksum::Unknown, None);
    }

    /// Room for `n` more bytes of the copied part, which is not full yet and has no fragment behind it. Shorter if
    /// there is not so much room.
    #[inline]
    pub fn extend_header(&mut self, n: usize) -> &mut [u8] {
        let from = usize::from(self.header_len).min(HEADER_BYTES);
        let to = (from + n).min(HEADER_BYTES);
        #[allow(clippy::cast_possible_truncation, reason = "HEADER_BYTES fits")]
        {
            self.header_len = to as u8;
            self.len += (to - from) as u32;
        }
        &mut self.header[from..to]
    }

    /// Adds a piece. One that is empty, or does not fit, is left out; the latter cannot be, see [`MAX_FRAGMENTS`].
    #[inline]
    pub fn push(&mut self, fragment: Fragment<F>) {
        if fragment.len == 0 {
            return;
        }
        let Some(place) = self.fragments.get_mut(usize::from(self.nr_fragments)) else {
            debug_assert!(false, "more fragments than slots");
            return;
        };
        *place = fragment;
        self.nr_fragments += 1;
        self.len += u32::from(fragment.len);
    }

    /// The copied part.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len).min(HEADER_BYTES)]
    }

    /// The copied part.
    #[inline]
    pub fn header_mut(&mut self) -> &mut [u8] {
        &mut self.header[..usize::from(self.header_len).min(HEADER_BYTES)]
    }

    /// The rest.
    #[inline]
    pub fn fragments(&self) -> &[Fragment<F>] {
        &self.fragments[..usize::from(self.nr_fragments).min(MAX_FRAGMENTS)]
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, as it is.
    #[inline]
    pub fn view(&self) -> View<'_, F> {
        let header = self.header();
        #[allow(clippy::cast_possible_truncation, reason = "HEADER_BYTES fits")]
        let body = self.len - header.len() as u32;
        View { header, fragments: self.fragments(), skip: 0, body, checksum: self.checksum, gso: self.gso }
    }
}

/// What a packet is for whoever sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its length.
    pub bytes: u32,
    /// Packets that it goes out as.
    pub segments: u32,
}

impl Size {
    /// Of a packet that goes out as it is.
    pub const fn whole(bytes: u32) -> Self {
        Self { bytes, segments: 1 }
    }
}

/// A packet to deliver: `header`, then `body` bytes of `fragments` from byte `skip` of them on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, F> {
    /// First bytes.
    pub header: &'a [u8],
    /// Where the others are.
    pub fragments: &'a [Fragment<F>],
    /// Bytes of `fragments` that do not belong to it.
    pub skip: u32,
    /// Bytes of `fragments` that do, after these.
    pub body: u32,
    /// Its protocol checksum.
    pub checksum: Checksum,
    /// Whether it is one for many.
    pub gso: Option<Gso>,
}

impl<F: Copy> View<'_, F> {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "headers are short")]
        let header = self.header.len() as u32;
        header + self.body
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is for whoever sends it.
    #[inline]
    pub fn size(&self) -> Size {
        let bytes = self.len();
        // One too many perhaps, since its headers are in each.
        let segments = self.gso.map_or(1, |gso| bytes.div_ceil(gso.size.max(1).into()).max(1));
        Size { bytes, segments }
    }

    /// The body's pieces, in order.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = Fragment<F>> + '_ {
        let (mut skip, mut left) = (self.skip, self.body);
        self.fragments.iter().filter_map(move |f| {
            let len = u32::from(f.len);
            let off = skip.min(len);
            skip -= off;
            let take = (len - off).min(left);
            left -= take;
            #[allow(clippy::cast_possible_truncation, reason = "both are at most f.len")]
            (take > 0).then_some(Fragment { frame: f.frame, offset: f.offset + off as u16, len: take as u16 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_for_many_is_as_many_for_the_sender() {
        let mut packet = Packet::<u32>::default();
        packet.extend_header(54).fill(0);
        assert_eq!(packet.view().size(), Size::whole(54));
        packet.push(Fragment { frame: 1, offset: 0, len: 4000 });
        assert_eq!(packet.view().size(), Size::whole(4054));
        for (size, segments) in [(1448, 3), (1, 4054), (4054, 1), (u16::MAX, 1), (0, 4054)] {
            packet.gso = Some(Gso { kind: GsoKind::TcpV4, size });
            assert_eq!(packet.view().size(), Size { bytes: 4054, segments }, "segments of {size} bytes");
        }
    }
}
