//! What a domain is told of the wall clock: UTC, or as many seconds away from that as its configuration says
//! (`rtc_timeoffset=`, `localtime=`).

const NS: u64 = 1_000_000_000;

/// Seconds since 1970 and ns at system time 0, when UTC is `utc_ns`, for a domain whose clock is `offset_s` seconds
/// ahead. It adds its system time, so what is before 1970 wraps, and is right again as soon as the sum is behind it.
pub const fn at_zero(utc_ns: u64, offset_s: i64) -> (u64, u64) {
    ((utc_ns / NS).wrapping_add_signed(offset_s), utc_ns % NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domains_clock_is_as_far_from_utc_as_it_is_told() {
        let utc_ns = 1_700_000_000 * NS + 5;
        assert_eq!(at_zero(utc_ns, 0), (1_700_000_000, 5));
        assert_eq!(at_zero(utc_ns, 3600), (1_700_003_600, 5));
        assert_eq!(at_zero(utc_ns, -7200), (1_699_992_800, 5), "west of Greenwich");
        let (seconds, ns) = at_zero(10 * NS, -60);
        assert_eq!((seconds.wrapping_add(100), ns), (50, 0), "after 100 s, when the clock of the machine was not set");
        at_zero(u64::MAX, i64::MAX);
        at_zero(0, i64::MIN);
    }
}
