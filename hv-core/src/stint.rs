//! How long a CPU works for others, as for the network cards of driver domains, before its own guests go on, and how
//! long they go on then.
//!
//! Such work asks for more of itself: a poll may schedule another one, and that the first. So what counts is the time
//! since a guest has run on the CPU, however often it is asked for. What guests have between two pieces of work counts
//! as they would have after it, so work that leaves them their part never has to rest.

/// So long a CPU works before its guests go on, in ns: well above what a card's turn takes.
pub const STINT_NS: u64 = 2_000_000;
/// After a stint guests have one part of so many of the time that it took, so of a CPU on which there is always work
/// they have a fifth.
const SHARE: u64 = 4;

/// Who else wants the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guests {
    /// Nobody.
    Absent,
    /// Guests, of which none has run since there was work.
    Waiting,
    /// Guests, which have run since.
    HaveRun,
}

/// What a CPU has worked. All zero: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stint {
    /// Of the stint that is under way, in ns.
    worked_ns: u64,
    /// Until when that was.
    ended_ns: u64,
    /// Guests go on until then.
    rests_until_ns: u64,
}

impl Stint {
    /// There is work at `now_ns`. Until when it may go on; the error: not before then.
    ///
    /// # Errors
    /// See above.
    pub fn begin(&mut self, now_ns: u64, guests: Guests) -> Result<u64, u64> {
        match guests {
            Guests::Absent => *self = Self::default(),
            _ if now_ns < self.rests_until_ns => return Err(self.rests_until_ns),
            Guests::Waiting => {}
            Guests::HaveRun => {
                let theirs_ns = now_ns.saturating_sub(self.ended_ns);
                self.worked_ns = self.worked_ns.saturating_sub(theirs_ns.saturating_mul(SHARE));
            }
        }
        Ok(now_ns.saturating_add(STINT_NS.saturating_sub(self.worked_ns)))
    }

    /// There was work from `began_ns` to `now_ns`, while there were guests. Until when it rests, if that was a whole
    /// stint, or more.
    pub fn end(&mut self, began_ns: u64, now_ns: u64) -> Option<u64> {
        self.ended_ns = now_ns;
        self.worked_ns = self.worked_ns.saturating_add(now_ns.saturating_sub(began_ns));
        if self.worked_ns < STINT_NS {
            return None;
        }
        self.rests_until_ns = now_ns.saturating_add(core::mem::take(&mut self.worked_ns) / SHARE);
        Some(self.rests_until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU that works in pieces of `piece_ns` whenever it may, and whose guests go on for `gap_ns` between them. Of a
    /// second, what its guests had, and the longest that they waited.
    fn guests_have(piece_ns: u64, gap_ns: u64, after_work: Guests) -> (u64, u64) {
        let (mut stint, mut now, mut theirs, mut waits, mut longest) = (Stint::default(), 5_000_000_000, 0, 0, 0);
        let (end, mut guests) = (now + 1_000_000_000, Guests::HaveRun);
        while now < end {
            let began = now;
            let until = match stint.begin(now, guests) {
                Err(until) => {
                    (theirs, waits, guests) = (theirs + until - now, 0, Guests::HaveRun);
                    now = until;
                    continue;
                }
                Ok(until) => until,
            };
            assert!(until > now);
            now += piece_ns;
            waits += now - began;
            longest = longest.max(waits);
            guests = Guests::Waiting;
            if stint.end(began, now).is_none() && after_work == Guests::HaveRun {
                (now, theirs, waits, guests) = (now + gap_ns, theirs + gap_ns, 0, Guests::HaveRun);
            }
        }
        (theirs, longest)
    }

    #[test]
    fn work_that_makes_work_leaves_guests_their_share() {
        for piece in [100, 2_000, 50_000, STINT_NS - 1] {
            let (theirs, longest) = guests_have(piece, 0, Guests::Waiting);
            assert!(theirs >= 190_000_000, "pieces of {piece} ns: {theirs} ns");
            assert!(longest < STINT_NS + piece, "pieces of {piece} ns: {longest} ns at once");
        }
    }

    #[test]
    fn the_longer_it_took_the_longer_it_rests() {
        for piece in [3_000_000, 10_000_000, 150_000_000] {
            let (theirs, _) = guests_have(piece, 0, Guests::Waiting);
            assert!(theirs >= 180_000_000, "pieces of {piece} ns: {theirs} ns");
        }
    }

    #[test]
    fn a_moment_between_two_pieces_is_no_rest() {
        // An interrupt lets a guest go on for a microsecond, again and again.
        let (theirs, longest) = guests_have(20_000, 1_000, Guests::HaveRun);
        assert!(theirs >= 180_000_000, "{theirs} ns");
        assert!(longest <= STINT_NS + 20_000, "{longest} ns at once");
    }

    #[test]
    fn work_that_leaves_guests_their_share_does_not_rest() {
        let mut stint = Stint::default();
        for n in 0..10_000 {
            let now = 1_000_000_000 + n * 1_000_000;
            assert_eq!(stint.begin(now, Guests::HaveRun), Ok(now + STINT_NS));
            assert_eq!(stint.end(now, now + 800_000), None);
        }
    }

    #[test]
    fn who_is_alone_does_not_rest() {
        let mut stint = Stint::default();
        assert_eq!(stint.begin(100, Guests::HaveRun), Ok(100 + STINT_NS));
        let until = stint.end(100, 4_000_100).expect("a whole stint");
        assert_eq!(until, 5_000_100);
        assert_eq!(stint.begin(4_000_101, Guests::HaveRun), Err(until));
        assert_eq!(stint.begin(4_000_102, Guests::Absent), Ok(4_000_102 + STINT_NS));
        assert_eq!(stint.begin(4_000_103, Guests::HaveRun), Ok(4_000_103 + STINT_NS));
    }

    #[test]
    fn after_a_rest_a_stint_begins() {
        let mut stint = Stint::default();
        let until = stint.end(0, STINT_NS).expect("a whole stint");
        assert_eq!(until, STINT_NS + STINT_NS / 4);
        assert_eq!(stint.begin(until - 1, Guests::Waiting), Err(until));
        assert_eq!(stint.begin(until, Guests::Waiting), Ok(until + STINT_NS));
        assert_eq!(stint.end(until, until + STINT_NS - 1), None);
        assert_eq!(stint.begin(until + STINT_NS - 1, Guests::Waiting), Ok(until + STINT_NS));
    }
}
