#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::grants::Frames;
use crate::offload::checksum::{complete, is_right};
use crate::offload::segment::Cutter;
use crate::oracle::frames::{slow_sum, Shape};
use crate::oracle::memory::Memory;
use proptest::prelude::*;
use std::vec::Vec;

const FRAMES: u32 = 40;

/// A stream's segments: all with ACK alone, but for PSH on the last, with right checksums.
fn stream(shape: Shape, size: usize) -> Vec<Vec<u8>> {
    let mut segments = shape.segments(size);
    let count = segments.len();
    for (n, segment) in segments.iter_mut().enumerate() {
        let h = parse(&segment[..segment.len().min(HEADER_BYTES)]).expect("TCP");
        segment[h.l4 + 13] = if n + 1 == count { ACK | PSH } else { ACK };
        mend(segment);
    }
    segments
}

/// A stream's segments with so much payload each, all with ACK alone.
fn of_sizes(shape: Shape, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut sequence = 0u32;
    let headers = Shape { payload: 0, ..shape }.blank();
    let h = parse(&headers).expect("TCP");
    let one = |(n, size): (usize, &usize)| {
        let mut bytes = headers.clone();
        bytes.extend((0..*size).map(|i| (i * 7 + n) as u8));
        let len = (bytes.len() - if h.is_v6 { h.l4 } else { h.l3 }) as u16;
        let at = h.l3 + if h.is_v6 { 4 } else { 2 };
        bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
        if !h.is_v6 {
            bytes[h.l3 + 5] = n as u8;
        }
        bytes[h.l4 + 4..h.l4 + 8].copy_from_slice(&sequence.to_be_bytes());
        bytes[h.l4 + 13] = ACK;
        sequence += *size as u32;
        mend(&mut bytes);
        bytes
    };
    sizes.iter().enumerate().map(one).collect()
}

/// Makes the checksums of a packet right.
fn mend(bytes: &mut [u8]) {
    let Some(h) = parse(&bytes[..bytes.len().min(HEADER_BYTES)]) else { return };
    if !h.is_v6 {
        bytes[h.l3 + 10..h.l3 + 12].fill(0);
        let sum = !slow_sum(&[&bytes[h.l3..h.l4]]);
        bytes[h.l3 + 10..h.l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes[h.l4 + 16..h.l4 + 18].fill(0);
    let addresses = if h.is_v6 { h.l3 + 8..h.l3 + 40 } else { h.l3 + 12..h.l3 + 20 };
    let len = (bytes.len() - h.l4) as u32;
    let sum = !slow_sum(&[&bytes[addresses], &[0, 6], &len.to_be_bytes(), &bytes[h.l4..]]);
    let sum = if sum == 0 { 0xffff } else { sum };
    bytes[h.l4 + 16..h.l4 + 18].copy_from_slice(&sum.to_be_bytes());
}

fn all_bytes(memory: &Memory, view: &View<'_, u32>) -> Vec<u8> {
    let mut all = view.header.to_vec();
    for piece in view.pieces() {
        let mut part = std::vec![0; piece.len.into()];
        memory.read(piece.frame, piece.offset, &mut part);
        all.extend(part);
    }
    assert_eq!(all.len(), view.len() as usize);
    if let Some((at, checksum)) = complete(view, memory) {
        all[at..at + 2].copy_from_slice(&checksum);
    }
    all
}

/// What comes out, cut again.
struct Out<'a> {
    memory: &'a Memory,
    segments: Vec<Vec<u8>>,
    packets: usize,
}

impl Out<'_> {
    fn take(&mut self, merger: &mut Merger<u32>) {
        let Some(view) = merger.view() else { return };
        self.packets += 1;
        match Cutter::new(view) {
            Some(cutter) => {
                for n in 0..cutter.nr_segments() {
                    let mut buffer = [0; HEADER_BYTES];
                    self.segments.push(all_bytes(self.memory, &cutter.segment(n, &mut buffer)));
                }
            }
            None => self.segments.push(all_bytes(self.memory, &view)),
        }
        merger.clear();
    }
}

/// Passes frames through a merger as a receiver does; what comes out, cut again, and how many packets that were.
fn through(memory: &Memory, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
    let mut out = Out { memory, segments: Vec::new(), packets: 0 };
    let mut merger = Merger::default();
    for (frame, bytes) in (1..).zip(frames) {
        memory.write(frame, 64, bytes);
        let whole = Fragment { frame, offset: 64, len: bytes.len() as u16 };
        let header = &bytes[..bytes.len().min(HEADER_BYTES)];
        let is_right = |headers: &Headers| is_right(header, headers, &whole, memory);
        if merger.add(header, whole, |_| true, is_right) {
            continue;
        }
        out.take(&mut merger);
        if !merger.add(header, whole, |_| true, is_right) {
            out.segments.push(bytes.clone());
            out.packets += 1;
        }
    }
    out.take(&mut merger);
    (out.segments, out.packets)
}

/// Without what the stream does not depend on: an identification that says nothing.
fn meant(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(h) = parse(&bytes[..bytes.len().min(HEADER_BYTES)]).filter(|h| !h.is_v6 && h.protocol == L4::Tcp) {
        if bytes[h.l3 + 6] & 0x40 != 0 {
            bytes[h.l3 + 4..h.l3 + 6].fill(0);
            mend(&mut bytes);
        }
    }
    bytes
}

proptest! {
    /// A stream comes out as it was, in few packets; with tags in as many.
    #[test]
    fn a_stream_is_put_together(
        segments in 1usize..33, last in 1usize..1400, is_v6: bool, options in 0u8..3, tags in 0u8..3, seed: u32,
    ) {
        let options = options * if is_v6 { 4 } else { 12 };
        let options = if is_v6 { options % 8 } else { options };
        let payload = (segments - 1) * 1400 + last;
        let shape = Shape { to: [2; 6], from: [4; 6], tags, is_v6, is_tcp: true, options, payload, seed };
        let frames = stream(shape, 1400);
        prop_assert_eq!(frames.len(), segments);
        let memory = Memory::new(FRAMES as usize);
        let (out, packets) = through(&memory, &frames);
        prop_assert_eq!(out, frames);
        // The last has PSH: alone it is no beginning.
        let expected = if tags == 0 { 1..=segments.div_ceil(MAX_FRAGMENTS) + 1 } else { segments..=segments };
        prop_assert!(expected.contains(&packets), "{} of {}", packets, segments);
    }

    /// Segments of any sizes: with the same bounds they come out.
    #[test]
    fn bounds_of_segments_stay(
        sizes in prop::collection::vec((prop_oneof![1usize..1400, 900usize..901], prop::bool::weighted(0.1)), 1..33),
        is_v6: bool,
    ) {
        let shape = Shape { is_v6, ..Shape::tcp([2; 6], [4; 6], 0) };
        let (sizes, pushes): (Vec<_>, Vec<_>) = sizes.into_iter().unzip();
        let mut frames = of_sizes(shape, &sizes);
        for (frame, _) in frames.iter_mut().zip(pushes).filter(|(_, push)| *push) {
            frame[14 + if is_v6 { 40 } else { 20 } + 13] |= PSH;
            mend(frame);
        }
        let (out, _) = through(&Memory::new(FRAMES as usize), &frames);
        prop_assert_eq!(out, frames);
    }

    /// Whatever is wrong with some of them, or in which order they come: cut again they are the same.
    #[test]
    fn what_is_put_together_can_be_cut(
        payload in 1usize..20_000, size in 600usize..1400, is_v6: bool, may_be_cut: bool, options in 0u8..3,
        flips in prop::collection::vec((0usize..40, 0usize..80, 1u8..=255), 0..4),
        swaps in prop::collection::vec((0usize..40, 0usize..40), 0..3),
        cuts in prop::collection::vec((0usize..40, 1usize..700), 0..2),
    ) {
        let shape = Shape { to: [2; 6], from: [4; 6], tags: 0, is_v6, is_tcp: true, options: options * 4, payload, seed: 7 };
        let mut frames = stream(shape, size);
        let count = frames.len();
        for frame in frames.iter_mut().filter(|_| may_be_cut && !is_v6) {
            frame[20] &= !0x40;
            mend(frame);
        }
        for (n, at, bits) in flips {
            let frame = &mut frames[n % count];
            let at = at % frame.len();
            frame[at] ^= bits;
            // The card has found it right.
            mend(frame);
        }
        for (a, b) in swaps {
            frames.swap(a % count, b % count);
        }
        for (n, less) in cuts {
            let frame = &mut frames[n % count];
            frame.truncate(frame.len().saturating_sub(less).max(60));
        }
        let memory = Memory::new(FRAMES as usize);
        let (out, packets) = through(&memory, &frames);
        prop_assert!(packets <= count);
        let meant_all = |frames: Vec<Vec<u8>>| frames.into_iter().map(meant).collect::<Vec<_>>();
        prop_assert_eq!(meant_all(out), meant_all(frames));
    }
}

/// What came with a wrong checksum goes on with it: the receiver has to see that.
#[test]
fn what_is_damaged_stays_so() {
    for at in [14 + 20 + 20 + 5, 14 + 20 + 20 + 999, 14 + 20 + 16] {
        for n in 0..4 {
            let mut frames = of_sizes(Shape::tcp([2; 6], [4; 6], 0), &[1000; 4]);
            frames[n][at] ^= 0x20;
            let (out, packets) = through(&Memory::new(FRAMES as usize), &frames);
            assert_eq!(out, frames);
            assert_eq!(packets, if n % 3 == 0 { 2 } else { 3 });
        }
    }
}

#[test]
fn only_what_is_taken_is_put_together() {
    let memory = Memory::new(4);
    let frames = stream(Shape::tcp([2; 6], [4; 6], 2000), 1000);
    let mut merger = Merger::default();
    for (frame, bytes) in (1..).zip(&frames) {
        memory.write(frame, 0, bytes);
        let whole = Fragment { frame, offset: 0, len: bytes.len() as u16 };
        assert!(!merger.add(&bytes[..100], whole, |kind| kind == GsoKind::TcpV6, |_| true));
        assert!(merger.is_empty());
    }
}
