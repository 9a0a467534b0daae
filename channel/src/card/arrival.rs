//! What a network card has received.

use crate::grants::Frames;
use crate::offload::{checksum, headers};
use crate::packet::{Checksum, Fragment, Gso, GsoKind, View, HEADER_BYTES, MAX_FRAGMENTS};

/// Room for a frame that has arrived in one piece, as most do: a copy of its beginning, and where the rest is.
#[derive(Clone)]
pub struct Whole<F> {
    header: [u8; HEADER_BYTES],
    rest: [Fragment<F>; 1],
    /// All of it.
    piece: Fragment<F>,
    checksum: Checksum,
}

/// Room for a frame in any number of pieces.
pub struct Arrival<F> {
    header: [u8; HEADER_BYTES],
    fragments: [Fragment<F>; MAX_FRAGMENTS],
}

impl<F: Copy + Default> Default for Arrival<F> {
    fn default() -> Self {
        Arrival { header: [0; HEADER_BYTES], fragments: [Fragment::default(); MAX_FRAGMENTS] }
    }
}

impl<F: Copy + Default> Default for Whole<F> {
    fn default() -> Self {
        let (rest, piece) = ([Fragment::default()], Fragment::default());
        Whole { header: [0; HEADER_BYTES], rest, piece, checksum: Checksum::Unknown }
    }
}

impl<F: Copy> Whole<F> {
    /// [`Arrival::open`] of a frame that lies in one piece.
    #[inline]
    pub fn open(&mut self, piece: Fragment<F>, frames: &impl Frames<F>, is_verified: bool) -> View<'_, F> {
        let Fragment { frame, offset, len } = piece;
        let copied = copied_of(len);
        frames.read(frame, offset, &mut self.header[..copied.into()]);
        self.rest = [Fragment { frame, offset: offset + copied, len: len - copied }];
        self.piece = piece;
        self.checksum = if is_verified { Checksum::Validated } else { Checksum::Unknown };
        self.view()
    }

    /// The frame that was opened last, with the bytes that were copied then.
    #[inline]
    pub fn view(&self) -> View<'_, F> {
        let copied = copied_of(self.piece.len);
        let body = self.piece.len - copied;
        let (header, fragments) = (&self.header[..copied.into()], &self.rest[..usize::from(body > 0)]);
        View { header, fragments, skip: 0, body: body.into(), checksum: self.checksum, gso: None }
    }

    /// Finds out whether its checksum is right, if nobody has said so: each of its receivers would have to.
    #[inline]
    pub fn check(&mut self, frames: &impl Frames<F>) {
        if self.checksum == Checksum::Unknown && self.is_right(frames) {
            self.checksum = Checksum::Validated;
        }
    }

    #[inline(never)]
    fn is_right(&self, frames: &impl Frames<F>) -> bool {
        let header = self.view().header;
        let is = |headers: &_| checksum::is_right(header, headers, &self.piece, frames);
        match headers::plain(header) {
            Some(headers) => is(&headers),
            None => headers::parse(header).is_some_and(|headers| is(&headers)),
        }
    }

    /// Where all of it lies.
    #[inline]
    pub fn piece(&self) -> Fragment<F> {
        self.piece
    }
}

/// How many of so many bytes are copied.
#[inline]
fn copied_of(len: u16) -> u16 {
    #[allow(clippy::cast_possible_truncation, reason = "HEADER_BYTES fits")]
    len.min(HEADER_BYTES as u16)
}

impl<F: Copy> Arrival<F> {
    /// The frame that lies in `pieces`, of which each is in one frame of memory. Whoever writes there meanwhile changes
    /// payload only. Of one that was on a wire, and was put together, all sums are made: it is one long frame. `None`:
    /// it is in too many pieces, its checksum is behind what is copied of it, or it is datagrams that were put
    /// together: one long one would be something else.
    #[inline(never)]
    pub fn open(
        &mut self,
        pieces: impl IntoIterator<Item = Fragment<F>>,
        frames: &impl Frames<F>,
        checksum: Checksum,
        gso: Option<Gso>,
    ) -> Option<View<'_, F>> {
        let (mut copied, mut nr, mut body) = (0, 0, 0);
        for Fragment { frame, offset, len } in pieces {
            let room = &mut self.header[copied..];
            #[allow(clippy::cast_possible_truncation, reason = "HEADER_BYTES fits")]
            let n = len.min(room.len() as u16);
            if n > 0 {
                frames.read(frame, offset, &mut room[..n.into()]);
                copied += usize::from(n);
            }
            if len > n {
                *self.fragments.get_mut(nr)? = Fragment { frame, offset: offset + n, len: len - n };
                nr += 1;
                body += u32::from(len - n);
            }
        }
        let (header, fragments) = (&self.header[..copied], &self.fragments[..nr]);
        let gso = match checksum {
            Checksum::Blank { start, field } if start > field || usize::from(field) + 2 > copied => return None,
            Checksum::Blank { .. } => gso.filter(|gso| gso.size != 0),
            Checksum::Unknown | Checksum::Validated if gso.is_some_and(|gso| gso.kind == GsoKind::Udp) => return None,
            Checksum::Unknown | Checksum::Validated => None,
        };
        Some(View { header, fragments, skip: 0, body, checksum, gso })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "small numbers")]

    use super::*;
    use crate::oracle::frames::{slow_sum, Shape};
    use crate::oracle::memory::Memory;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        /// However it is cut, it is the same frame; its beginning is a copy.
        #[test]
        fn frames_in_pieces_are_opened(lens in prop::collection::vec(0u16..600, 0..24), is_verified: bool) {
            let memory = Memory::new(lens.len() + 1);
            let (mut bytes, mut pieces) = (Vec::new(), Vec::new());
            for (frame, len) in (1..).zip(&lens) {
                let part: Vec<u8> = (0..*len).map(|n| (n * 3 + frame as u16 * 7) as u8).collect();
                memory.write(frame, 100, &part);
                bytes.extend(part);
                pieces.push(Fragment { frame, offset: 100, len: *len });
            }
            let mut arrival = Arrival::default();
            let said = if is_verified { Checksum::Validated } else { Checksum::Unknown };
            let view = arrival.open(pieces, &memory, said, None);
            // Pieces behind the copied part.
            let mut at = 0;
            let behind = lens.iter().filter(|len| { at += usize::from(**len); at > HEADER_BYTES && **len > 0 }).count();
            prop_assert_eq!(view.is_some(), behind <= MAX_FRAGMENTS);
            let Some(view) = view else { return Ok(()) };
            prop_assert_eq!(view.header, &bytes[..bytes.len().min(HEADER_BYTES)]);
            prop_assert_eq!(view.len() as usize, bytes.len());
            prop_assert_eq!(view.checksum == Checksum::Validated, is_verified);
            let mut got = view.header.to_vec();
            for piece in view.pieces() {
                let mut part = std::vec![0; piece.len.into()];
                memory.read(piece.frame, piece.offset, &mut part);
                got.extend(part);
            }
            prop_assert_eq!(got, bytes);
        }

        /// The short way for a frame in one piece comes to the same.
        #[test]
        fn a_frame_in_one_piece_is_opened_alike(len in 0u16..600, is_verified: bool) {
            let memory = Memory::new(2);
            let bytes: Vec<u8> = (0..len).map(|n| (n * 3) as u8).collect();
            memory.write(1, 100, &bytes);
            let piece = Fragment { frame: 1, offset: 100, len };
            let (mut first, mut second) = (Whole::default(), Arrival::default());
            let one = first.open(piece, &memory, is_verified);
            let said = if is_verified { Checksum::Validated } else { Checksum::Unknown };
            let any = second.open([piece], &memory, said, None).unwrap();
            prop_assert_eq!(one.header, any.header);
            prop_assert_eq!(one.fragments, any.fragments);
            prop_assert_eq!((one.skip, one.body, one.checksum, one.gso), (any.skip, any.body, any.checksum, any.gso));
            // What is written there later changes nothing of what was copied.
            let copied = one.header.to_vec();
            memory.write(1, 100, &std::vec![0xff; copied.len()]);
            let again = first.view();
            prop_assert_eq!(again.header, &copied[..]);
            prop_assert_eq!((again.fragments, again.body, again.checksum), (any.fragments, any.body, any.checksum));
            prop_assert_eq!(first.piece(), piece);
        }
    }

    proptest! {
        /// A checksum is found right whatever the headers are and whatever a short frame is filled up with, and wrong
        /// by any byte of what it is of.
        #[test]
        fn what_nobody_has_said_of_a_checksum_is_found_out(
            tags in 0u8..3, is_v6: bool, is_tcp: bool, options in 0u8..5, payload in 0usize..1200, seed: u32,
            behind in prop::collection::vec(any::<u8>(), 0..20), spoilt: prop::sample::Index, by: u8,
        ) {
            let options = if is_tcp && !is_v6 { options * 4 } else { 0 };
            let shape = Shape { to: [2; 6], from: [4; 6], tags, is_v6, is_tcp, options, payload, seed };
            let bytes = shape.complete();
            let l4 = 14 + 4 * usize::from(tags) + if is_v6 { 40 } else { 20 };
            prop_assert_eq!(checked(&[&bytes[..], &behind].concat(), false), Checksum::Validated);
            let mut wrong = bytes.clone();
            wrong[l4 + spoilt.index(bytes.len() - l4)] ^= by.max(1);
            prop_assert_eq!(checked(&[&wrong[..], &behind].concat(), false), Checksum::Unknown);
            // Who has said so is believed.
            prop_assert_eq!(checked(&wrong, true), Checksum::Validated);
        }
    }

    /// What is known of the checksum of a frame after the look.
    fn checked(bytes: &[u8], is_verified: bool) -> Checksum {
        let memory = Memory::new(2);
        memory.write(1, 100, bytes);
        let mut whole = Whole::default();
        whole.open(Fragment { frame: 1, offset: 100, len: bytes.len() as u16 }, &memory, is_verified);
        whole.check(&memory);
        whole.view().checksum
    }

    /// Of a frame that has no checksum, or of which it is not certain what it is over, the receiver finds it out.
    #[test]
    fn what_may_have_another_meaning_is_left_to_the_receiver() {
        let udp = Shape { is_tcp: false, ..Shape::tcp([2; 6], [4; 6], 300) }.complete();
        let (said, own, field) = (16, 38, 40);
        let with = |at: usize, word: u16| {
            let mut bytes = udp.clone();
            let old = bytes[at..at + 2].to_vec();
            bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
            // Were it not for what it says, the sum would be right.
            if at == own {
                let sum = slow_sum(&[&bytes[field..field + 2], &old, &(!word).to_be_bytes()]);
                bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            }
            checked(&bytes, false)
        };
        assert_eq!(with(said, 328), Checksum::Validated);
        // None; an own length; a frame that ends before IP does, or IP before UDP; of IP's fragments; of neither TCP
        // nor UDP; no IP.
        for (at, word) in
            [(40, 0), (own, 307), (own, 309), (said, 329), (said, 27), (20, 0x2000), (22, 0x4001), (12, 0x0806)]
        {
            assert_eq!(with(at, word), Checksum::Unknown, "{word:#x} at {at}");
        }
        for len in 0..udp.len() {
            assert_eq!(checked(&udp[..len], false), Checksum::Unknown, "{len} bytes");
        }
    }

    /// What is left to do lies in what is copied of a frame; and one whose sum is made is not cut.
    #[test]
    fn frames_that_were_on_no_wire_say_what_is_left_to_do() {
        let memory = Memory::new(2);
        let open = |len: u16, checksum: Checksum, gso: Option<Gso>| {
            let mut arrival = Arrival::default();
            let view = arrival.open([Fragment { frame: 1, offset: 0, len }], &memory, checksum, gso);
            view.map(|view| (view.checksum, view.gso))
        };
        let (many, none) = (Some(Gso { kind: GsoKind::TcpV4, size: 500 }), Some(Gso { kind: GsoKind::TcpV4, size: 0 }));
        let blank = |start, field| Checksum::Blank { start, field };
        assert_eq!(open(1000, blank(34, 50), None), Some((blank(34, 50), None)));
        assert_eq!(open(1000, blank(34, 50), many), Some((blank(34, 50), many)));
        assert_eq!(open(1000, blank(34, 50), none), Some((blank(34, 50), None)));
        assert_eq!(open(1000, Checksum::Validated, many), Some((Checksum::Validated, None)));
        let datagrams = Some(Gso { kind: GsoKind::Udp, size: 500 });
        assert_eq!(open(1000, blank(34, 40), datagrams), Some((blank(34, 40), datagrams)));
        assert_eq!(open(1000, Checksum::Validated, datagrams), None);
        assert_eq!(open(1000, Checksum::Unknown, datagrams), None);
        assert_eq!(open(1000, blank(34, 190), None), Some((blank(34, 190), None)));
        for (len, start, field) in [(1000, 34, 191), (1000, 34, u16::MAX), (1000, 51, 50), (51, 34, 50), (0, 0, 0)] {
            assert_eq!(open(len, blank(start, field), None), None, "{len} bytes, from {start} to {field}");
        }
    }
}
