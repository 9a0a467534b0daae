//! The hypervisor's console ring: what `xl dmesg` and xenconsoled read.
//!
//! Bytes are numbered by a 32-bit index that only grows (and wraps); the ring keeps the last ones. A reader that
//! follows the ring passes the index it stopped at and gets the next; one that fell behind continues with the oldest
//! byte kept.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// Most bytes that a ring keeps.
pub const MAX_BYTES: u32 = 1 << 20;

/// What a reader asks for (`XEN_SYSCTL_readconsole`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// Forget what is read, and what was before.
    pub clear: bool,
    /// Start at `index` instead of at the oldest byte.
    pub incremental: bool,
    /// Where an incremental reader stopped.
    pub index: u32,
}

/// See the module's documentation.
pub struct ConRing {
    bytes: Vec<u8>,
    /// Index of the next byte to be written.
    produced: u32,
    /// Index of the oldest byte kept.
    consumed: u32,
}

impl ConRing {
    /// A ring of `size` bytes, rounded up to a power of two, at most [`MAX_BYTES`].
    pub fn new(size: u32) -> ConRing {
        let size = size.clamp(64, MAX_BYTES).next_power_of_two();
        ConRing { bytes: vec![0; size as usize], produced: 0, consumed: 0 }
    }

    /// Appends text; the oldest bytes go. Zero bytes are left out.
    pub fn write(&mut self, text: &[u8]) {
        let size = self.size();
        for byte in text.iter().copied().filter(|b| *b != 0) {
            let at = self.slot(self.produced);
            self.bytes[at] = byte;
            self.produced = self.produced.wrapping_add(1);
            if self.produced.wrapping_sub(self.consumed) > size {
                self.consumed = self.produced.wrapping_sub(size);
            }
        }
    }

    /// Where a read with `request` starts, and how many bytes there are from there.
    fn span(&self, request: ReadRequest) -> (u32, u32) {
        let kept = self.produced.wrapping_sub(self.consumed);
        let start = if request.incremental && self.produced.wrapping_sub(request.index) <= kept {
            request.index
        } else {
            self.consumed
        };
        (start, self.produced.wrapping_sub(start))
    }

    /// Copies to `out` (in at most two pieces) what `request` asks for, up to `max` bytes. Returns the number of bytes
    /// and the index to go on from. A piece that cannot be copied ends the read with its error; nothing is cleared
    /// then.
    pub fn read<E>(
        &mut self,
        request: ReadRequest,
        max: u32,
        mut out: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(u32, u32), E> {
        let (start, len) = self.span(request);
        let len = len.min(max);
        let end = start.wrapping_add(len);
        if len > 0 {
            let (from, to) = (self.slot(start), self.slot(end.wrapping_sub(1)));
            if from <= to {
                out(&self.bytes[from..=to])?;
            } else {
                out(&self.bytes[from..])?;
                out(&self.bytes[..=to])?;
            }
        }
        if request.clear {
            self.consumed = end;
        }
        Ok((len, end))
    }

    fn size(&self) -> u32 {
        // At most `MAX_BYTES`, see `new`.
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    fn slot(&self, index: u32) -> usize {
        index as usize & (self.bytes.len() - 1)
    }
}

/// What is written before there is memory for a ring: the first `N` bytes, and how many came behind them.
pub struct EarlyLog<const N: usize> {
    bytes: [u8; N],
    used: usize,
    lost: usize,
}

impl<const N: usize> EarlyLog<N> {
    /// Nothing.
    pub const fn new() -> Self {
        Self { bytes: [0; N], used: 0, lost: 0 }
    }

    /// Appends text, as far as there is room.
    pub fn write(&mut self, text: &[u8]) {
        let room = &mut self.bytes[self.used..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text[..count]);
        self.used += count;
        self.lost += text.len() - count;
    }

    /// Writes all of it to `ring`, and how much is missing, in a line that begins with `prefix`.
    pub fn pour(&self, ring: &mut ConRing, prefix: &str) {
        ring.write(&self.bytes[..self.used]);
        if self.lost != 0 {
            ring.write(format!("\n{prefix}{} bytes of messages are missing here\n", self.lost).as_bytes());
        }
    }
}

impl<const N: usize> Default for EarlyLog<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(r: &mut ConRing, request: ReadRequest, max: u32) -> (Vec<u8>, u32) {
        let mut got = Vec::new();
        let (n, next) = r
            .read(request, max, |piece| {
                got.extend_from_slice(piece);
                Ok::<(), ()>(())
            })
            .unwrap();
        assert_eq!(n as usize, got.len());
        (got, next)
    }

    #[test]
    fn readers_see_what_was_written_since() {
        let mut r = ConRing::new(64);
        r.write(b"hello\0 ");
        let (text, next) = read(&mut r, ReadRequest::default(), 100);
        assert_eq!(text, b"hello ");
        r.write(b"world");
        let follow = ReadRequest { incremental: true, index: next, ..Default::default() };
        assert_eq!(read(&mut r, follow, 3).0, b"wor");
        assert_eq!(read(&mut r, ReadRequest::default(), 100).0, b"hello world", "reading does not consume");
        read(&mut r, ReadRequest { clear: true, ..Default::default() }, 100);
        assert_eq!(read(&mut r, ReadRequest::default(), 100).0, b"");
    }

    #[test]
    fn a_failed_copy_clears_nothing() {
        let mut r = ConRing::new(64);
        r.write(b"abc");
        let clear = ReadRequest { clear: true, ..Default::default() };
        assert_eq!(r.read(clear, 10, |_| Err::<(), _>("fault")), Err("fault"));
        assert_eq!(read(&mut r, ReadRequest::default(), 10).0, b"abc");
    }

    #[test]
    fn who_reads_and_clears_in_portions_gets_everything() {
        let mut r = ConRing::new(64);
        let text: Vec<u8> = (b'!'..).take(50).collect();
        r.write(&text);
        let (mut got, mut request) = (Vec::new(), ReadRequest { clear: true, incremental: true, index: 0 });
        loop {
            let (portion, next) = read(&mut r, request, 20);
            if portion.is_empty() {
                break;
            }
            got.extend(portion);
            request.index = next;
        }
        assert_eq!(got, text);
        assert_eq!(read(&mut r, ReadRequest::default(), 100).0, b"", "all of it is cleared");
    }

    #[test]
    fn a_reader_that_fell_behind_goes_on_with_the_oldest() {
        let mut r = ConRing::new(64);
        let (_, start) = read(&mut r, ReadRequest::default(), 10);
        r.write(&[b'a'; 100]);
        r.write(b"end");
        let (text, next) = read(&mut r, ReadRequest { incremental: true, index: start, clear: false }, 1000);
        assert_eq!(text.len(), 64);
        assert!(text.ends_with(b"end"));
        // An index that was never produced is treated like one that was lost.
        let ahead = ReadRequest { incremental: true, index: next.wrapping_add(1), clear: false };
        assert_eq!(read(&mut r, ahead, 1000).0.len(), 64);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_also_when_the_index_wraps(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 70)],
            writes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..20),
            max in 0u32..200,
        ) {
            let mut r = ConRing::new(64);
            r.produced = start;
            r.consumed = start;
            let mut all = Vec::new();
            let mut at = start;
            let mut followed = Vec::new();
            for w in writes {
                r.write(&w);
                all.extend(w.iter().copied().filter(|b| *b != 0));
                let (got, _) = read(&mut r, ReadRequest::default(), max);
                let kept = &all[all.len().saturating_sub(64)..];
                prop_assert_eq!(&got[..], &kept[..kept.len().min(max as usize)]);
                let (got, next) = read(&mut r, ReadRequest { incremental: true, index: at, clear: false }, 1000);
                at = next;
                followed.extend(got);
            }
            prop_assert_eq!(followed, all, "each write fits the ring, so a follower misses nothing");
        }
    }

    #[test]
    fn what_came_before_the_ring_is_in_it_and_what_had_no_room_is_told() {
        let (mut log, mut r) = (EarlyLog::<16>::default(), ConRing::new(128));
        log.write(b"first\n");
        log.write(b"second\n");
        log.pour(&mut r, "(P) ");
        assert_eq!(read(&mut r, ReadRequest::default(), 200).0, b"first\nsecond\n");
        log.write(b"third\n");
        let mut r = ConRing::new(128);
        log.pour(&mut r, "(P) ");
        r.write(b"next\n");
        let text = b"first\nsecond\nthi\n(P) 3 bytes of messages are missing here\nnext\n";
        assert_eq!(read(&mut r, ReadRequest::default(), 200).0, text);
    }
}
