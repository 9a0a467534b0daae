//! A log of the frames of a domain that were written, by pseudo-physical number: for live migration. Who writes, and
//! where that is noted, the shell knows.
//!
//! Anybody may mark a frame at any time, while another reads; so the words are atomics. Only one reads at a time, and a
//! reading that takes long is preempted, as making a long log is: [`Place`] knows where that goes on.

use crate::room::Room;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xen_abi::errno::Errno;

/// Most frames a log is kept of: 1 TiB.
pub const MAX_PFNS: u64 = 1 << 28;

/// What a reading found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that the logging has cost.
    pub faults: u32,
    /// Frames written.
    pub dirty: u32,
}

/// The log.
#[derive(Debug)]
pub struct Log {
    /// One bit for each frame.
    words: Vec<AtomicU64>,
    /// Faults and newly written frames since the last reading.
    faults: AtomicU32,
    dirty: AtomicU32,
}

impl Log {
    /// One that has room for nothing.
    pub const fn none() -> Self {
        Self { words: Vec::new(), faults: AtomicU32::new(0), dirty: AtomicU32::new(0) }
    }

    fn bit(&self, pfn: u64) -> Option<(&AtomicU64, u64)> {
        let word = usize::try_from(pfn / 64).ok()?;
        Some((self.words.get(word)?, 1 << (pfn % 64)))
    }

    /// Notes a write to frame `pfn`. One that has come since the log was made has no place in it: all its writes count.
    /// Frames that have no number in the domain, or a strange one, are not the tools' to send.
    pub fn mark(&self, pfn: u64) {
        let is_new = match self.bit(pfn) {
            Some((word, bit)) => word.fetch_or(bit, Ordering::AcqRel) & bit == 0,
            None => pfn < MAX_PFNS,
        };
        if is_new {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Need a write to frame `pfn` not be noted (again)?
    pub fn is_marked(&self, pfn: u64) -> bool {
        match self.bit(pfn) {
            Some((word, bit)) => word.load(Ordering::Acquire) & bit != 0,
            None => pfn >= MAX_PFNS,
        }
    }

    /// Counts a fault that only logging caused.
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// What happened since the last reading that cleared the log.
    pub fn counts(&self) -> Counts {
        Counts { faults: self.faults.load(Ordering::Relaxed), dirty: self.dirty.load(Ordering::Relaxed) }
    }

    /// The same, and starts counting anew.
    pub fn take_counts(&self) -> Counts {
        Counts { faults: self.faults.swap(0, Ordering::Relaxed), dirty: self.dirty.swap(0, Ordering::Relaxed) }
    }

    /// Frames that have a place in it are below.
    pub fn pfns(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    /// Reads word `index`, clears it if `clear`.
    pub fn read(&self, index: u64, clear: bool) -> u64 {
        let word = usize::try_from(index).ok().and_then(|i| self.words.get(i));
        match word {
            Some(word) if clear => word.swap(0, Ordering::AcqRel),
            Some(word) => word.load(Ordering::Acquire),
            None => 0,
        }
    }

    /// Puts back what [`Self::read`] cleared and nobody got.
    pub fn put_back(&self, index: u64, bits: u64) {
        if let Some(word) = usize::try_from(index).ok().and_then(|i| self.words.get(i)) {
            word.fetch_or(bits, Ordering::AcqRel);
        }
    }
}

/// A log that is being made: of a page more each time, for 32 MiB take milliseconds.
#[derive(Debug)]
pub struct Making {
    /// Has room for all words.
    log: Log,
    /// So many.
    all: usize,
}

impl Making {
    /// Words in a page.
    const PORTION: usize = 512;

    /// Begins one for frames below `pfns`, which is the guest's to say; `room` is asked. ENOMEM.
    pub fn begin(pfns: u64, room: Room) -> Result<Self, Errno> {
        if pfns > MAX_PFNS {
            return Err(Errno::ENOMEM);
        }
        let mut words = Vec::new();
        let all = usize::try_from(pfns.div_ceil(64)).map_err(|_| Errno::ENOMEM)?;
        if !room(all.saturating_mul(size_of::<AtomicU64>()), &mut || words.try_reserve_exact(all).is_ok()) {
            return Err(Errno::ENOMEM);
        }
        Ok(Self { log: Log { words, ..Log::none() }, all })
    }

    /// Makes a page of it. The log, if it is whole, in which nothing is written.
    pub fn go_on(mut self) -> Result<Log, Self> {
        let words = &mut self.log.words;
        // There is room for all.
        words.resize_with(self.all.min(words.len() + Self::PORTION), || AtomicU64::new(0));
        if words.len() == self.all {
            Ok(self.log)
        } else {
            Err(self)
        }
    }
}

/// A reading, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Clears what it reads.
    pub clear: bool,
    /// Where to.
    pub target: u64,
    /// So many bits.
    pub pages: u64,
}

/// Where that goes on which was preempted.
#[derive(Debug)]
pub struct Place {
    reading: Option<(Reading, u64)>,
    /// A log that is not whole yet. It is nobody's who reads.
    pub making: Option<Making>,
}

impl Place {
    /// Nothing was.
    pub const fn new() -> Self {
        Self { reading: None, making: None }
    }

    /// The word that `reading` begins or goes on with. EBUSY: another one was preempted, and has to end first: what it
    /// has cleared, only it knows.
    pub fn begin(&mut self, reading: Reading) -> Result<u64, Errno> {
        match self.reading {
            Some((preempted, _)) if preempted != reading => Err(Errno::EBUSY),
            _ => Ok(self.reading.take().map_or(0, |(_, next)| next)),
        }
    }

    /// `reading` was preempted before word `next`.
    pub fn preempt(&mut self, reading: Reading, next: u64) {
        self.reading = Some((reading, next));
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::boundless;

    /// And how often others could do something meanwhile.
    fn made(pfns: u64) -> (Log, u32) {
        let (mut making, mut stops) = (Making::begin(pfns, boundless).unwrap(), 0);
        loop {
            match making.go_on() {
                Ok(log) => return (log, stops),
                Err(rest) => (making, stops) = (rest, stops + 1),
            }
        }
    }

    fn log(pfns: u64) -> Log {
        made(pfns).0
    }

    #[test]
    fn a_frame_is_written_once_until_it_is_read() {
        let log = log(100);
        assert!(!log.is_marked(70));
        log.mark(70);
        log.mark(70);
        assert!(log.is_marked(70) && !log.is_marked(71));
        assert_eq!(
            (log.read(0, true), log.read(1, false), log.read(1, true), log.read(1, true)),
            (0, 1 << 6, 1 << 6, 0)
        );
        assert!(!log.is_marked(70));
        log.put_back(1, 1 << 6);
        assert!(log.is_marked(70));
        log.count_fault();
        assert_eq!(log.counts(), Counts { faults: 1, dirty: 1 });
        assert_eq!(log.take_counts(), Counts { faults: 1, dirty: 1 });
        assert_eq!(log.counts(), Counts::default());
    }

    #[test]
    fn what_has_no_place_in_the_log_is_never_taken_for_noted() {
        let log = log(64);
        log.mark(64);
        assert!(!log.is_marked(64), "its next write would not be seen");
        log.mark(64);
        assert_eq!((log.counts().dirty, log.read(1, true)), (2, 0));
        log.mark(u64::MAX);
        assert!(log.is_marked(u64::MAX), "nobody sends it");
        assert_eq!(log.take_counts().dirty, 2);
    }

    #[test]
    fn a_log_is_as_large_as_it_is_asked_for_or_there_is_none() {
        let log = log(129);
        log.mark(128);
        assert_eq!((log.read(2, false), log.pfns()), (1, 192));
        assert_eq!(Making::begin(MAX_PFNS + 1, boundless).err(), Some(Errno::ENOMEM));
        // Who has no room takes nothing.
        let full: Room = |bytes, _take| {
            assert_eq!(bytes, 8 * 3);
            false
        };
        assert_eq!(Making::begin(129, full).err(), Some(Errno::ENOMEM));
        let none = Log::none();
        none.mark(0);
        assert_eq!(none.read(0, true), 0);
    }

    #[test]
    fn a_log_is_made_in_pages() {
        const PAGE: u64 = 4096 * 8;
        for (pfns, stops) in [(0, 0), (1, 0), (PAGE, 0), (PAGE + 1, 1), (5 * PAGE - 1, 4)] {
            let (log, stopped) = made(pfns);
            assert_eq!(stopped, stops, "{pfns}");
            if let Some(last) = pfns.checked_sub(1) {
                log.mark(last);
                assert_eq!(log.read(last / 64, false), 1 << (last % 64));
                assert_eq!(log.read(last / 64 + 1, false), 0);
            }
        }
    }

    #[test]
    fn a_preempted_reading_is_gone_on_with_by_nobody_else() {
        let mut place = Place::new();
        let clean = Reading { clear: true, target: 0x1000, pages: 1 << 20 };
        let others =
            [Reading { clear: false, ..clean }, Reading { target: 0x2000, ..clean }, Reading { pages: 64, ..clean }];
        assert_eq!(place.begin(clean), Ok(0));
        place.preempt(clean, 4096);
        for other in others {
            assert_eq!(place.begin(other), Err(Errno::EBUSY));
        }
        assert_eq!(place.begin(clean), Ok(4096), "another one that was refused has taken its place");
        assert_eq!(place.begin(others[0]), Ok(0), "it has come to its end");
    }
}
