//! Events that have come and that nobody has taken. Guests bring them about, as many as they like, so their number has
//! a bound.

use super::super::{Event, PORTION};
use std::collections::{BTreeSet, VecDeque};

/// So many wait at most beside one of each watch.
const MOST: usize = 2 * PORTION;

/// What waits. Whoever takes an event looks at what is there then, so none that waits already waits twice. When there
/// are too many, all are forgotten, and each watch has an event as it has when it begins: its token's owner looks at
/// all that is below.
#[derive(Default)]
pub struct Queue {
    events: VecDeque<Event>,
    /// Those, to be found.
    waiting: BTreeSet<(String, String)>,
    /// Paths and tokens that the store tells of.
    watches: BTreeSet<(String, String)>,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub fn push(&mut self, event: Event) {
        if !self.waiting.insert((event.path.clone(), event.token.clone())) {
            return;
        }
        self.events.push_back(event);
        if self.events.len() > MOST + self.watches.len() {
            self.waiting = self.watches.clone();
            self.events = self.waiting.iter().cloned().map(|(path, token)| Event { path, token }).collect();
        }
    }

    pub fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.waiting.remove(&(event.path.clone(), event.token.clone()));
        Some(event)
    }

    /// The store tells of this from now on.
    pub fn watch(&mut self, path: &str, token: &str) {
        self.watches.insert((path.into(), token.into()));
    }

    /// It does not any more.
    pub fn unwatch(&mut self, path: &str, token: &str) {
        self.watches.remove(&(path.into(), token.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(path: &str) -> Event {
        Event { path: path.into(), token: "t".into() }
    }

    #[test]
    fn what_waits_already_does_not_wait_twice() {
        let mut queue = Queue::default();
        for path in ["/a", "/b", "/a", "/b"] {
            queue.push(event(path));
        }
        queue.push(Event { path: "/a".into(), token: "other".into() });
        assert_eq!((queue.pop(), queue.events.len()), (Some(event("/a")), 2));
        // It has changed since it was taken.
        queue.push(event("/a"));
        let rest: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|event| event.path + &event.token).collect();
        assert_eq!(rest, ["/bt", "/aother", "/at"]);
        assert!(queue.is_empty() && queue.waiting.is_empty());
    }

    #[test]
    fn of_too_many_events_one_of_each_watch_is_left() {
        let mut queue = Queue::default();
        for path in ["/a", "/b", "/c"] {
            queue.watch(path, "t");
        }
        queue.unwatch("/b", "t");
        let most = MOST + 2;
        for n in 0..5 * most {
            queue.push(event(&format!("/a/{n}")));
            assert!(queue.events.len() <= most && queue.waiting.len() == queue.events.len());
        }
        let left: Vec<Event> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left[..2], [event("/a"), event("/c")], "all below is to be looked at");
        assert_eq!(left.last(), Some(&event(&format!("/a/{}", 5 * most - 1))));
        assert!(left.len() <= most && queue.waiting.is_empty());
    }
}
