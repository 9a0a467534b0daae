//! How long packets for outside wait for a way out that has gone.

/// The wait of a switch. Times are in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// So long they wait at most; 0: not at all.
    longest: u64,
    /// When the way out has gone, if there was one and there is none.
    since: Option<u64>,
}

impl Hold {
    /// None.
    pub const fn new() -> Self {
        Self { longest: 0, since: None }
    }

    /// They wait for so long at most, from now on; also those that wait already.
    pub fn set(&mut self, longest: u64) {
        self.longest = longest;
    }

    /// The switch had a way out, and has one now, or not. That it has gone may be said again.
    pub fn changed(&mut self, had: bool, has: bool, now: u64) {
        match (had, has) {
            (_, true) => self.since = None,
            (true, false) => self.since = self.since.or(Some(now)),
            (false, false) => {}
        }
    }

    /// Until when they wait, which may be over.
    pub fn until(&self) -> Option<u64> {
        self.since.map(|since| since.saturating_add(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::Hold;

    #[test]
    fn packets_wait_for_what_has_gone() {
        let mut hold = Hold::new();
        hold.set(50);
        hold.changed(false, false, 10);
        assert_eq!(hold.until(), None, "there never was one");
        hold.changed(false, true, 20);
        assert_eq!(hold.until(), None, "there is one");
        hold.changed(true, false, 30);
        assert_eq!(hold.until(), Some(80));
        hold.changed(true, false, 35);
        assert_eq!(hold.until(), Some(80), "said again by a table that could not be replaced");
        hold.changed(false, false, 40);
        assert_eq!(hold.until(), Some(80), "guests that come and go change nothing");
        hold.set(0);
        assert_eq!(hold.until(), Some(30), "those that wait do not wait any longer");
        hold.set(u64::MAX);
        assert_eq!(hold.until(), Some(u64::MAX));
        hold.changed(false, true, 90);
        assert_eq!(hold.until(), None);
    }
}
