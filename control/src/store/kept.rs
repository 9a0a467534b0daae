//! A store that is asked once for what it tells of by itself.
//!
//! Each question costs two switches between processes, and who looks at everything whenever something happens asks the same again and again. What
//! is at or below a watch of the connection's own is kept until an event says that it has changed: the store sends that before it answers anything
//! that is asked later. What is not watched is asked each time. Of one thing the store does not tell: with a domain goes what belongs to it, which
//! is in its own directory. That a domain has ended and that one has gone it tells in the same words; so somebody else is asked then which are there.

use super::{Change, Client, Event, Store};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Tells that a domain has ended or gone.
const GOES: &str = "@releaseDomain";
/// Where domains' directories are.
const DOMAINS: &str = "/local/domain/";

/// A connection, and what is known by it.
pub struct Kept<S> {
    store: S,
    /// Whether a domain is there, and does not go. None comes back under its number before that was asked: numbers are used in turn.
    is_there: Box<dyn FnMut(u16) -> bool>,
    /// What is watched, with so many tokens.
    watched: BTreeMap<String, usize>,
    /// Below these nobody else writes.
    own: BTreeSet<String>,
    values: BTreeMap<String, Option<String>>,
    names: BTreeMap<String, Vec<String>>,
    /// Those that are heeded here, and that nobody has taken.
    events: VecDeque<Event>,
}

impl<S: Store> Kept<S> {
    /// Nothing is known yet. There are events of a token that nobody else uses.
    pub fn new(mut store: S, is_there: impl FnMut(u16) -> bool + 'static) -> Result<Self> {
        store.watch(GOES, "kept")?;
        Ok(Self {
            store,
            is_there: Box::new(is_there),
            watched: BTreeMap::new(),
            own: BTreeSet::new(),
            values: BTreeMap::new(),
            names: BTreeMap::new(),
            events: VecDeque::new(),
        })
    }

    /// Whether its changes are told, or made here.
    fn is_told(&self, path: &str) -> bool {
        is_in(path, |place| self.watched.contains_key(place) || self.own.contains(place))
    }

    /// Heeds the events that have come.
    fn catch_up(&mut self) -> Result<()> {
        while let Some(event) = self.store.next_event(Some(Duration::ZERO))? {
            self.forget(&event.path);
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Something is not any more what it was: what is below may have gone with it, and what is above may have come with it.
    fn forget(&mut self, path: &str) {
        if path == GOES {
            let known: BTreeSet<u16> =
                self.values.keys().chain(self.names.keys()).filter_map(|path| owner(path)).collect();
            for gone in known.into_iter().filter(|domain| !(self.is_there)(*domain)).collect::<Vec<u16>>() {
                self.forget(&format!("{DOMAINS}{gone}"));
            }
            return;
        }
        forget_in(&mut self.values, path);
        forget_in(&mut self.names, path);
    }
}

impl Kept<Client> {
    /// Waits until there is an event or `other` may be read, no longer than `limit`.
    pub fn wait(&self, other: BorrowedFd<'_>, limit: Duration) -> Result<()> {
        if !self.events.is_empty() {
            return Ok(());
        }
        self.store.wait(other, limit)
    }
}

impl<S: Store> Store for Kept<S> {
    fn read(&mut self, path: &str) -> Result<Option<String>> {
        if !self.is_told(path) {
            return self.store.read(path);
        }
        self.catch_up()?;
        if let Some(value) = self.values.get(path) {
            return Ok(value.clone());
        }
        let value = self.store.read(path)?;
        self.values.insert(path.into(), value.clone());
        Ok(value)
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        if !self.is_told(path) {
            return self.store.list(path);
        }
        self.catch_up()?;
        if let Some(names) = self.names.get(path) {
            return Ok(names.clone());
        }
        let names = self.store.list(path)?;
        self.names.insert(path.into(), names.clone());
        Ok(names)
    }

    fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
        let done = self.store.change(guard, changes);
        for change in changes {
            let (Change::Write(path, _)
            | Change::Make { path, .. }
            | Change::Repeat(path)
            | Change::Remove(path)
            | Change::Clear(path)) = change;
            self.forget(path);
        }
        done
    }

    fn is_introduced(&mut self, domain: u16) -> Result<bool> {
        self.store.is_introduced(domain)
    }

    fn resumed(&mut self, domain: u16) -> Result<()> {
        self.store.resumed(domain)
    }

    fn watch(&mut self, path: &str, token: &str) -> Result<()> {
        self.store.watch(path, token)?;
        *self.watched.entry(path.into()).or_default() += 1;
        Ok(())
    }

    fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
        if let Some(nr) = self.watched.get_mut(path) {
            *nr -= 1;
            if *nr == 0 {
                self.watched.remove(path);
            }
        }
        self.forget(path);
        self.store.unwatch(path, token)
    }

    fn own(&mut self, path: &str) {
        self.own.insert(path.into());
    }

    fn next_event(&mut self, limit: Option<Duration>) -> Result<Option<Event>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let event = self.store.next_event(limit)?;
        if let Some(event) = &event {
            self.forget(&event.path);
        }
        Ok(event)
    }
}

/// The domain in whose directory a path is.
fn owner(path: &str) -> Option<u16> {
    path.strip_prefix(DOMAINS)?.split('/').next()?.parse().ok()
}

/// The directories that a path is in, the nearest first.
fn all_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(path.rsplit_once('/'), |(above, _)| above.rsplit_once('/')).map(|(above, _)| above)
}

/// Whether a path is one of these places, or in one.
fn is_in(path: &str, is_one: impl Fn(&str) -> bool) -> bool {
    std::iter::once(path).chain(all_above(path)).any(is_one)
}

/// Takes what is at a path, below it and above it.
fn forget_in<T>(known: &mut BTreeMap<String, T>, path: &str) {
    known.remove(path);
    for above in all_above(path) {
        known.remove(above);
    }
    // '0' follows '/'.
    let below: Vec<String> =
        known.range(format!("{path}/")..format!("{path}0")).map(|(path, _)| path.clone()).collect();
    for path in below {
        known.remove(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A store that others write into, too. It counts what it is asked.
    #[derive(Default)]
    struct Shared {
        nodes: BTreeMap<String, String>,
        watches: Vec<(String, String)>,
        told: VecDeque<Event>,
        nr_asked: u32,
    }

    impl Shared {
        /// As xenstored has it: a watch tells of what is at and below it, and of its own removal with what it is in.
        fn tell(&mut self, path: &str, is_removal: bool) {
            for (watched, token) in &self.watches {
                let is_below = path == watched || path.starts_with(&format!("{watched}/"));
                if is_below || (is_removal && watched.starts_with(&format!("{path}/"))) {
                    let path = if is_below { path } else { watched };
                    self.told.push_back(Event { path: path.into(), token: token.clone() });
                }
            }
        }

        fn write(&mut self, path: &str, value: &str) {
            for above in all_above(path).filter(|above| !above.is_empty()) {
                self.nodes.entry(above.into()).or_default();
            }
            self.nodes.insert(path.into(), value.into());
            self.tell(path, false);
        }

        fn remove(&mut self, path: &str) {
            let below = format!("{path}/");
            if self.nodes.contains_key(path) {
                self.nodes.retain(|node, _| node != path && !node.starts_with(&below));
                self.tell(path, true);
            }
        }

        fn names(&self, path: &str) -> Vec<String> {
            let below = format!("{path}/");
            let names = self.nodes.keys().filter_map(|node| node.strip_prefix(&below));
            names.filter(|name| !name.contains('/')).map(Into::into).collect()
        }
    }

    impl Store for Shared {
        fn read(&mut self, path: &str) -> Result<Option<String>> {
            self.nr_asked += 1;
            Ok(self.nodes.get(path).cloned())
        }

        fn list(&mut self, path: &str) -> Result<Vec<String>> {
            self.nr_asked += 1;
            Ok(self.names(path))
        }

        fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
            if !self.nodes.contains_key(guard) {
                return Ok(false);
            }
            for change in changes {
                match change {
                    Change::Write(path, value) => self.write(path, value),
                    Change::Remove(path) => self.remove(path),
                    other => unreachable!("{other:?}"),
                }
            }
            Ok(true)
        }

        fn watch(&mut self, path: &str, token: &str) -> Result<()> {
            self.watches.push((path.into(), token.into()));
            self.told.push_back(Event { path: path.into(), token: token.into() });
            Ok(())
        }

        fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
            self.watches.retain(|watch| *watch != (path.into(), token.into()));
            Ok(())
        }

        fn next_event(&mut self, _: Option<Duration>) -> Result<Option<Event>> {
            Ok(self.told.pop_front())
        }
    }

    /// All domains are there.
    fn kept(nodes: &[&str]) -> Kept<Shared> {
        kept_but(nodes, |_| true)
    }

    fn kept_but(nodes: &[&str], is_there: impl FnMut(u16) -> bool + 'static) -> Kept<Shared> {
        let mut store = Shared::default();
        for node in nodes {
            store.write(node, "1");
        }
        let mut kept = Kept::new(store, is_there).unwrap();
        kept.next_event(None).unwrap();
        kept
    }

    #[test]
    fn what_is_watched_is_asked_once_and_all_else_each_time() {
        let mut store = kept(&["/a/state", "/b/state", "/c/x/y"]);
        store.watch("/a", "t").unwrap();
        store.own("/c");
        let mut asked = |path: &str| {
            let before = store.store.nr_asked;
            for _ in 0..3 {
                store.read(path).unwrap();
                store.list(path).unwrap();
            }
            store.store.nr_asked - before
        };
        assert_eq!(["/a/state", "/a", "/a/no", "/c/x/y", "/c/x"].map(&mut asked), [2; 5]);
        assert_eq!(["/b/state", "/ab", "/", "/d"].map(&mut asked), [6; 4]);
    }

    #[test]
    fn a_change_here_leaves_all_else_known() {
        let mut store = kept(&["/a", "/a/state", "/a/other/x", "/a/z"]);
        store.watch("/a", "t").unwrap();
        while store.next_event(None).unwrap().is_some() {}
        for path in ["/a/state", "/a/other/x", "/a/z"] {
            store.read(path).unwrap();
        }
        let changes = [Change::Write("/a/state".into(), "2".into()), Change::Remove("/a/other".into())];
        assert!(store.change("/a", &changes).unwrap());
        let before = store.store.nr_asked;
        assert_eq!(store.read("/a/z").unwrap().as_deref(), Some("1"));
        assert_eq!(store.store.nr_asked, before);
        assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("2"));
        assert_eq!(store.read("/a/other/x").unwrap(), None);
    }

    #[test]
    fn a_change_counts_before_its_event_is_taken_and_events_stay_in_order() {
        let mut store = kept(&["/a/state", "/a/other"]);
        store.watch("/a", "t").unwrap();
        assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("1"));
        store.store.write("/a/state", "2");
        store.store.write("/a/other", "3");
        assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("2"));
        store.store.remove("/a");
        assert_eq!(store.read("/a/state").unwrap(), None);
        let events = std::iter::from_fn(|| store.next_event(Some(Duration::ZERO)).unwrap());
        assert_eq!(events.map(|event| event.path).collect::<Vec<_>>(), ["/a", "/a/state", "/a/other", "/a"]);
    }

    #[test]
    fn what_is_not_watched_any_more_is_not_known_any_more() {
        let mut store = kept(&["/a/state"]);
        for token in ["t", "u"] {
            store.watch("/a/state", token).unwrap();
        }
        let read = |store: &mut Kept<Shared>| store.read("/a/state").unwrap().unwrap();
        assert_eq!(read(&mut store), "1");
        store.unwatch("/a/state", "u").unwrap();
        store.store.write("/a/state", "2");
        assert_eq!(read(&mut store), "2", "one token is left");
        store.unwatch("/a/state", "t").unwrap();
        store.store.write("/a/state", "3");
        assert_eq!(read(&mut store), "3");
    }

    #[test]
    fn what_went_with_a_domain_is_not_known_any_more_and_all_else_is() {
        let paths = ["/local/domain/7/x", "/local/domain/70/x", "/local/domain/1/serves/7", "/a/7"];
        // It ends first, and goes later.
        let (has_gone, seen) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let told = (Rc::clone(&has_gone), Rc::clone(&seen));
        let mut store = kept_but(&paths, move |domain| {
            told.1.set(told.1.get() + 1);
            domain != 7 || !told.0.get()
        });
        for path in ["/local/domain", "/a"] {
            store.watch(path, "t").unwrap();
        }
        while store.next_event(None).unwrap().is_some() {}
        for path in paths {
            assert_eq!(store.read(path).unwrap().as_deref(), Some("1"));
        }
        let asked = |store: &mut Kept<Shared>| {
            let before = store.store.nr_asked;
            let there = paths.map(|path| store.read(path).unwrap().is_some());
            (there, store.store.nr_asked - before)
        };
        store.store.tell(GOES, false);
        assert_eq!(asked(&mut store), ([true; 4], 0), "it has only ended");
        store.store.nodes.remove(paths[0]);
        has_gone.set(true);
        store.store.tell(GOES, false);
        assert_eq!(asked(&mut store), ([false, true, true, true], 1));
        assert_eq!(seen.get(), 6, "each domain of which something is known is looked at once for each event");
    }

    /// Whatever is written by whom, what is kept is what is there.
    #[test]
    fn what_is_kept_is_what_is_there() {
        let mut seed = 1_u32;
        let mut any = |n: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as usize % n
        };
        let paths = ["/a", "/a/b", "/a/b/c", "/a/b-c", "/a/b0", "/d", "/d/e", "/d/e/f", "/g/h"];
        let mut store = kept(&["/guard", "/a/b/c"]);
        store.own("/g");
        let mut watched = BTreeSet::new();
        for n in 0..20_000 {
            let path = paths[any(paths.len())];
            match any(8) {
                0 if watched.insert(path) => store.watch(path, "t").unwrap(),
                1 if watched.remove(path) => store.unwatch(path, "t").unwrap(),
                2 if !path.starts_with("/g") => store.store.write(path, &n.to_string()),
                3 if !path.starts_with("/g") => store.store.remove(path),
                4 => drop(store.change("/guard", &[Change::Write(path.into(), n.to_string())]).unwrap()),
                5 => drop(store.change("/guard", &[Change::Remove(path.into())]).unwrap()),
                6 => drop(store.next_event(Some(Duration::ZERO)).unwrap()),
                _ => {}
            }
            for path in paths {
                assert_eq!(store.read(path).unwrap(), store.store.nodes.get(path).cloned(), "{path} after {n}");
                assert_eq!(store.list(path).unwrap(), store.store.names(path), "in {path} after {n}");
            }
        }
    }
}
