//! How many requests for disks an instance of the driver domain has answered. The hypervisor counts them by disk,
//! whoever answers.

use std::collections::{BTreeMap, BTreeSet};
use xen_abi::channel_op::ChannelDiskStatus;

/// What is known of it.
#[derive(Debug, Default)]
pub struct Answered {
    /// How many had been answered at the last look, as long as the instance of then had no disk.
    without: Option<u64>,
    /// Who has disks, and how many had been answered before.
    by: Option<(u16, u64)>,
}

impl Answered {
    /// A look at which the driver domain has no disk, and `all` were answered so far.
    pub fn see_none(&mut self, all: u64) {
        *self = Self { without: Some(all), by: None };
    }

    /// A look at which this instance has disks: how many it has answered. Those before the first look are not known,
    /// unless there was a look at which it had none.
    pub fn see(&mut self, domain: u16, all: u64) -> u64 {
        let known = self.by.filter(|(by, _)| *by == domain).map(|(_, before)| before);
        // Disks go, and what they had answered with them.
        let before = known.or(self.without).unwrap_or(all).min(all);
        *self = Self { without: None, by: Some((domain, before)) };
        all - before
    }

    /// This instance becomes another one, which has answered nothing.
    pub fn forget(&mut self, domain: u16) {
        if self.is_of(domain) {
            *self = Self::default();
        }
    }

    /// It had disks at the last look.
    pub fn is_of(&self, domain: u16) -> bool {
        self.by.is_some_and(|(by, _)| by == domain)
    }
}

/// Disks of which something was answered between the last two looks, by the one whose back end they had at both.
#[derive(Debug, Default)]
pub struct Heard {
    /// By its name, who a disk's back end is, and how much was answered of it.
    seen: BTreeMap<u32, (u16, u64)>,
    of: BTreeSet<u32>,
}

impl Heard {
    /// A look.
    pub fn look(&mut self, all: &[ChannelDiskStatus]) {
        let seen: BTreeMap<u32, (u16, u64)> = all.iter().map(|disk| (disk.disk, (disk.back, disk.answered))).collect();
        let is_heard = |(disk, (back, answered)): (&u32, &(u16, u64))| {
            let before = self.seen.get(disk).filter(|(by, before)| by == back && before < answered);
            before.map(|_| *disk)
        };
        self.of = seen.iter().filter_map(is_heard).collect();
        self.seen = seen;
    }

    /// Whether this is one of them.
    pub fn has(&self, disk: &ChannelDiskStatus) -> bool {
        self.of.contains(&disk.disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_comes_with_what_others_have_answered_is_no_answer() {
        let mut heard = Heard::default();
        let mut look = |all: &[(u32, u16, u64)]| {
            let status = |&(disk, back, answered)| ChannelDiskStatus { disk, back, answered, ..Default::default() };
            let all: Vec<ChannelDiskStatus> = all.iter().map(status).collect();
            heard.look(&all);
            all.iter().filter(|disk| heard.has(disk)).map(|disk| disk.disk).collect::<Vec<_>>()
        };
        assert_eq!(look(&[(1, 5, 100)]), [0; 0]);
        assert_eq!(look(&[(1, 5, 100), (2, 5, 7)]), [0; 0]);
        assert_eq!(look(&[(1, 5, 100), (2, 5, 8)]), [2]);
        assert_eq!(look(&[(1, 6, 101), (2, 5, 8)]), [0; 0], "another one has it now");
        assert_eq!(look(&[(1, 6, 102)]), [1]);
        assert_eq!((look(&[]), look(&[(1, 6, 103)])), (vec![], vec![]));
    }

    #[test]
    fn what_an_instance_has_answered_before_anybody_looked_counts() {
        let mut answered = Answered::default();
        assert_eq!(answered.see(5, 100), 0, "nobody knows who answered these");
        assert_eq!((answered.see(5, 130), answered.is_of(5)), (30, true));
        answered.see_none(140);
        assert!(!answered.is_of(5));
        answered.see_none(150);
        assert_eq!(answered.see(6, 190), 40, "all of it since nobody had disks");
        assert_eq!(answered.see(6, 200), 50);
        assert_eq!(answered.see(7, 210), 0);
    }

    #[test]
    fn who_is_rolled_back_has_answered_nothing_and_others_have_still() {
        let mut answered = Answered::default();
        answered.see_none(100);
        assert_eq!(answered.see(5, 110), 10);
        answered.forget(6);
        assert_eq!(answered.see(5, 120), 20);
        answered.forget(5);
        assert_eq!((answered.is_of(5), answered.see(5, 130)), (false, 0));
    }

    #[test]
    fn a_disk_that_goes_takes_its_count_with_it() {
        let mut answered = Answered::default();
        answered.see_none(100);
        assert_eq!((answered.see(5, 60), answered.see(5, 70)), (0, 10));
    }
}
