//! So many lines in a while: what a device or a guest can cause at will must not fill the console, which is slow.

/// So many in each window of time; the rest is counted.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    most: u32,
    window_ns: u64,
    start_ns: u64,
    count: u32,
}

/// What becomes of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// It may be said.
    pub is_said: bool,
    /// A new window begins with it.
    pub is_first: bool,
    /// So many of the window before were not said.
    pub unsaid: u32,
}

impl Rate {
    /// `most` in every `window_ns` nanoseconds.
    pub const fn new(most: u32, window_ns: u64) -> Self {
        Self { most, window_ns, start_ns: 0, count: 0 }
    }

    /// One more, at `now_ns`.
    pub fn count(&mut self, now_ns: u64) -> Turn {
        let is_first = self.count == 0 || now_ns.saturating_sub(self.start_ns) > self.window_ns;
        let unsaid = if is_first { self.count.saturating_sub(self.most) } else { 0 };
        if is_first {
            (self.start_ns, self.count) = (now_ns, 0);
        }
        self.count = self.count.saturating_add(1);
        Turn { is_said: self.count <= self.most, is_first, unsaid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_window_is_counted_and_told_in_the_next() {
        let mut rate = Rate::new(2, 1000);
        assert_eq!(rate.count(5000), Turn { is_said: true, is_first: true, unsaid: 0 });
        let said: std::vec::Vec<bool> = (0..4).map(|n| rate.count(5001 + n).is_said).collect();
        assert_eq!(said, [true, false, false, false]);
        assert_eq!(rate.count(6001), Turn { is_said: true, is_first: true, unsaid: 3 });
        assert_eq!(rate.count(9000), Turn { is_said: true, is_first: true, unsaid: 0 });
    }
}
