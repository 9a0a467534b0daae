//! How much a guest may send: so many bytes in each interval, from `rate=` in its configuration.

/// What may be saved up, so that the longest packet gets through whatever the rate is (as netback has it).
const MIN_BURST: u64 = 128 * 1024;

/// Credit of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Bytes of an interval; `None`: without limit.
    per_interval: Option<u64>,
    interval_ns: u64,
    remaining: u64,
    /// When the last interval began.
    since: u64,
}

impl Credit {
    /// No limit.
    pub const UNLIMITED: Credit = Credit { per_interval: None, interval_ns: 0, remaining: 0, since: 0 };

    /// `bytes` in each `interval_us`, from time `now` (ns) on. Without limit if either is 0, or nobody could send at
    /// all.
    pub fn new(bytes: u64, interval_us: u64, now: u64) -> Credit {
        if bytes == 0 || interval_us == 0 {
            return Credit::UNLIMITED;
        }
        let interval_ns = interval_us.saturating_mul(1000);
        Credit { per_interval: Some(bytes), interval_ns, remaining: bytes, since: now }
    }

    /// Reads what the toolstack writes as the key `rate` of a back end: bytes, a comma, microseconds. `None`: that is
    /// not it; netback then has no limit, and says so.
    pub fn parse(rate: &str, now: u64) -> Option<Credit> {
        let (bytes, interval) = rate.split_once(',')?;
        Some(Credit::new(bytes.trim().parse().ok()?, interval.trim().parse().ok()?, now))
    }

    /// Pays for a packet of `bytes` at time `now` (ns). An error says when there is more credit (ns); nothing is paid
    /// then.
    #[inline]
    pub fn charge(&mut self, bytes: u16, now: u64) -> Result<(), u64> {
        let Some(per_interval) = self.per_interval else { return Ok(()) };
        let bytes = u64::from(bytes);
        if bytes > self.remaining {
            let next = self.since.saturating_add(self.interval_ns);
            if now < next {
                return Err(next);
            }
            // Who asks late, as a timer does on a busy machine, has lost nothing of what is to come; only whole
            // intervals are.
            self.since = if now - next < self.interval_ns { next } else { now };
            self.remaining = self.remaining.saturating_add(per_interval).min(per_interval.max(MIN_BURST));
            if bytes > self.remaining {
                return Err(self.since.saturating_add(self.interval_ns));
            }
        }
        self.remaining -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_time() {
        // 1,000,000 bytes in each 50 ms, as xl writes 20 MB/s.
        let mut credit = Credit::parse("1000000,50000", 0).unwrap();
        let (mut now, mut sent) = (0u64, 0u64);
        while now < 1_000_000_000 {
            match credit.charge(1514, now) {
                Ok(()) => sent += 1514,
                Err(until) => {
                    assert!(until > now);
                    now = until;
                }
            }
        }
        assert!((19_900_000..=20_100_000).contains(&sent), "{sent}");
    }

    /// Whoever sends then is late, by whatever the machine has to do meanwhile.
    #[test]
    fn a_rate_is_kept_by_late_timers_too() {
        // 1 Mb/s, as xl writes it.
        let mut credit = Credit::parse("6250,50000", 0).unwrap();
        let (mut now, mut sent, mut late) = (0u64, 0u64, 0u64);
        while now < 10_000_000_000 {
            match credit.charge(1500, now) {
                Ok(()) => sent += 1500,
                Err(until) => {
                    assert!(until > now);
                    late = (late + 7_000_000) % 20_000_000;
                    now = until + late;
                }
            }
        }
        assert!((1_240_000..=1_260_000).contains(&sent), "{sent}");
    }

    #[test]
    fn the_longest_packet_gets_through_a_small_rate() {
        let mut credit = Credit::new(1000, 1000, 0);
        let mut now = 0;
        let mut waits = 0;
        while let Err(until) = credit.charge(65535, now) {
            assert!(until > now);
            (now, waits) = (until, waits + 1);
        }
        assert_eq!(waits, 65, "as many intervals as it costs");
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut credit = Credit::new(10_000, 1000, 0);
        assert_eq!(credit.charge(10_000, 0), Ok(()));
        for later in [3_600_000_000_000, 7_200_000_700_000] {
            assert_eq!(credit.charge(10_000, later), Ok(()));
            assert_eq!(credit.charge(1, later), Err(later + 1_000_000));
        }
    }

    #[test]
    fn what_is_no_rate_is_no_limit() {
        for rate in ["", "1000", "a,b", "1000,", ",1", "-5,7"] {
            assert_eq!(Credit::parse(rate, 0), None, "{rate}");
        }
        let mut credit = Credit::parse("0,50000", 0).unwrap();
        assert!((0..1000).all(|_| credit.charge(u16::MAX, 0).is_ok()));
        let mut credit = Credit::new(u64::MAX, u64::MAX, 5);
        assert!((0..1000).all(|_| credit.charge(u16::MAX, 5).is_ok()));
    }
}
