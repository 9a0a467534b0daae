//! How often is done, and told, what guests and driver domains bring about as often as they like: for each device so
//! many times at once, and then one at a time. One that only ever begins again does not keep the daemon from others,
//! nor the log from what else there is to say: journald takes so many lines of one unit in a while, and none at all
//! after that.

use crate::device::Device;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Looks at a device at which there was something to do. A device comes up with some five, and so many happen when
/// driver domains go and come.
const LOOKS: Limit = Limit { most: 50, every: Duration::from_millis(100) };
/// Lines.
const LINES: Limit = Limit { most: 20, every: Duration::from_secs(3) };

#[derive(Clone, Copy)]
struct Limit {
    /// At once.
    most: u32,
    /// Then one of these.
    every: Duration,
}

/// What devices have had of it.
struct Had {
    limit: Limit,
    /// When each may have all of it again. Of those that may now nothing is known.
    whole: BTreeMap<Device, Instant>,
}

impl Had {
    fn new(limit: Limit) -> Self {
        Self { limit, whole: BTreeMap::new() }
    }

    /// How long it is until it may have another one; nothing if it may now.
    fn wait(&self, device: Device, now: Instant) -> Duration {
        let owed = self.whole.get(&device).map_or(Duration::ZERO, |whole| whole.saturating_duration_since(now));
        (owed + self.limit.every).saturating_sub(self.limit.every * self.limit.most)
    }

    fn count(&mut self, device: Device, now: Instant) {
        self.whole.retain(|_, whole| *whole > now);
        *self.whole.entry(device).or_insert(now) += self.limit.every;
    }
}

/// Work for devices.
pub struct Looks(Had);

impl Looks {
    /// Nobody had any.
    pub fn new() -> Self {
        Self(Had::new(LOOKS))
    }

    /// For how long a device is not looked at, if others come first.
    pub fn wait(&self, device: Device, now: Instant) -> Option<Duration> {
        Some(self.0.wait(device, now)).filter(|wait| !wait.is_zero())
    }

    /// There was something to do.
    pub fn count(&mut self, device: Device, now: Instant) {
        self.0.count(device, now);
    }
}

/// Lines about devices, for the operator.
pub struct Lines {
    had: Had,
    /// Of those that tell of what others have done to it.
    warned: Had,
    /// Since lines were left out: how many, and the last of them.
    left_out: BTreeMap<Device, (u64, String)>,
    /// Whoever says something does so now.
    now: Instant,
    #[cfg(test)]
    pub said: Vec<String>,
}

impl Lines {
    /// Nothing was said.
    pub fn new() -> Self {
        Self {
            had: Had::new(LINES),
            warned: Had::new(LINES),
            left_out: BTreeMap::new(),
            now: Instant::now(),
            #[cfg(test)]
            said: Vec::new(),
        }
    }

    /// It is so late. What was left out of devices about which there may be a line again is said: how it ended.
    pub fn pass(&mut self, now: Instant) {
        self.now = now;
        let is_quiet = |device: &Device| self.had.wait(*device, now).is_zero();
        for device in self.left_out.keys().copied().filter(is_quiet).collect::<Vec<Device>>() {
            let Some((count, line)) = self.left_out.remove(&device) else { continue };
            self.had.count(device, now);
            self.write(format!("{line} (the last of {count} lines about it that were left out)"));
        }
    }

    /// When that has something to say.
    pub fn due(&self) -> Option<Instant> {
        self.left_out.keys().map(|device| self.now + self.had.wait(*device, self.now)).min()
    }

    /// Says it, or leaves it out.
    pub fn say(&mut self, device: Device, line: &str) {
        if !self.had.wait(device, self.now).is_zero() {
            let (count, last) = self.left_out.entry(device).or_default();
            (*count, *last) = (*count + 1, line.into());
            return;
        }
        self.had.count(device, self.now);
        let left_out = match self.left_out.remove(&device) {
            None => String::new(),
            Some((count, _)) => format!(" ({count} lines about it were left out)"),
        };
        let is_last = !self.had.wait(device, self.now).is_zero();
        let more = if is_last && left_out.is_empty() { " (what follows at once is left out)" } else { "" };
        self.write(format!("{line}{left_out}{more}"));
    }

    /// Says it also if there were many lines of what the guest brings about: it is none of that.
    pub fn warn(&mut self, device: Device, line: &str) {
        if self.warned.wait(device, self.now).is_zero() {
            self.warned.count(device, self.now);
            self.write(line.into());
        } else {
            self.say(device, line);
        }
    }

    #[cfg(not(test))]
    fn write(&mut self, line: String) {
        eprintln!("{line}");
    }

    #[cfg(test)]
    fn write(&mut self, line: String) {
        self.said.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device { guest: 7, number: 0 };
    const OTHER: Device = Device { guest: 8, number: 0 };

    #[test]
    fn each_device_has_some_at_once_and_then_one_at_a_time() {
        let (mut looks, begin) = (Looks::new(), Instant::now());
        let mut taken = |device: Device, after: Duration| {
            let is_free = |looks: &Looks| looks.wait(device, begin + after).is_none();
            (0..1000).filter(|_| is_free(&looks).then(|| looks.count(device, begin + after)).is_some()).count()
        };
        assert_eq!((taken(DEVICE, Duration::ZERO), taken(OTHER, Duration::ZERO)), (50, 50));
        assert_eq!(taken(DEVICE, LOOKS.every / 2), 0);
        assert_eq!(taken(DEVICE, LOOKS.every), 1);
        assert_eq!((taken(DEVICE, 11 * LOOKS.every), taken(OTHER, 11 * LOOKS.every)), (10, 11));
        assert_eq!(taken(DEVICE, 100 * LOOKS.every), 50);
        assert_eq!(looks.wait(DEVICE, begin + 100 * LOOKS.every), Some(LOOKS.every));
        assert_eq!(looks.0.whole.len(), 1, "of who was quiet nothing is known");
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let mut lines = Lines::new();
        (0..50).for_each(|_| lines.say(DEVICE, "x"));
        lines.say(OTHER, "y");
        assert_eq!(lines.said.len(), 21);
        assert_eq!(lines.said[18..], ["x", "x (what follows at once is left out)", "y"]);
        let begin = lines.now;
        lines.pass(begin);
        assert_eq!((lines.said.len(), lines.due()), (21, Some(begin + LINES.every)));
        lines.now += LINES.every;
        (0..5).for_each(|n| lines.say(DEVICE, &n.to_string()));
        assert_eq!(lines.said[21..], ["0 (30 lines about it were left out)"]);
        // Also if nobody says anything any more.
        lines.pass(begin + 2 * LINES.every);
        assert_eq!(lines.said[22..], ["4 (the last of 4 lines about it that were left out)"]);
        lines.pass(begin + 100 * LINES.every);
        assert_eq!((lines.said.len(), lines.due(), lines.left_out.len()), (23, None, 0));
    }

    #[test]
    fn who_only_begins_again_does_not_hide_what_others_do() {
        let mut lines = Lines::new();
        (0..50).for_each(|_| lines.say(DEVICE, "x"));
        (0..50).for_each(|_| lines.warn(DEVICE, "y"));
        assert_eq!((lines.said.len(), lines.said[20..].iter().all(|line| line == "y")), (40, true));
        assert_eq!(lines.left_out[&DEVICE], (60, "y".into()));
    }
}
