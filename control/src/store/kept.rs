//! A store that is asked once for what it tells of by itself.
//!
//! Each question costs two switches between processes, and who looks at everything whenever something happens asks the
//! same again and again. What is at or below a watch of the connection's own is kept until an event says that it has
//! changed: the store sends that before it answers anything that is asked later. What is not watched is asked each
//! time, and so is all else while more events have come than are heeded at once: the store's own answer is never older
//! than what is kept. Of one thing the store does not tell: with a domain goes what belongs to it, which is in its own
//! directory. That a domain has ended and that one has gone it tells in the same words; so somebody else is asked then
//! which are there.

use super::{Change, Client, Event, Store, PORTION};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Tells that a domain has ended or gone.
const GOES: &str = "@releaseDomain";
/// Where domains' directories are.
const DOMAINS: &str = "/local/domain/";

/// A connection, and what is known by it.
pub struct Kept<S> {
    store: S,
    /// Whether a domain is there, and does not go. None comes back under its number before that was asked: numbers are
    /// used in turn.
    is_there: Box<dyn FnMut(u16) -> bool>,
    /// What is watched, with so many tokens.
    watched: BTreeMap<String, usize>,
    /// Below these nobody else writes.
    own: BTreeSet<String>,
    values: BTreeMap<String, Option<String>>,
    names: BTreeMap<String, Vec<String>>,
    /// Bytes of the longest path of which something was ever kept.
    longest: usize,
    /// Those that are heeded here, and that nobody has taken.
    events: VecDeque<Event>,
    /// So many of them at most.
    room: usize,
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
            longest: 0,
            events: VecDeque::new(),
            room: PORTION,
        })
    }

    /// Whether its changes are told, or made here.
    fn is_told(&self, path: &str) -> bool {
        is_in(path, |place| self.watched.contains_key(place) || self.own.contains(place))
    }

    /// Heeds the events that have come. `false`: there may be more, and what is kept may not be true any more.
    fn has_caught_up(&mut self) -> Result<bool> {
        while self.events.len() < self.room {
            let Some(event) = self.store.next_event(Some(Duration::ZERO))? else { return Ok(true) };
            self.forget(&event.path);
            self.events.push_back(event);
        }
        Ok(false)
    }

    /// Something is not any more what it was: what is below may have gone with it, and what is above may have come with
    /// it.
    fn forget(&mut self, path: &str) {
        if path == GOES {
            let known: BTreeSet<u16> =
                self.values.keys().chain(self.names.keys()).filter_map(|path| owner(path)).collect();
            for gone in known.into_iter().filter(|domain| !(self.is_there)(*domain)).collect::<Vec<u16>>() {
                self.forget(&format!("{DOMAINS}{gone}"));
            }
            return;
        }
        forget_in(&mut self.values, path, self.longest);
        forget_in(&mut self.names, path, self.longest);
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
        if !self.is_told(path) || !self.has_caught_up()? {
            return self.store.read(path);
        }
        if let Some(value) = self.values.get(path) {
            return Ok(value.clone());
        }
        let value = self.store.read(path)?;
        self.longest = self.longest.max(path.len());
        self.values.insert(path.into(), value.clone());
        Ok(value)
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        if !self.is_told(path) || !self.has_caught_up()? {
            return self.store.list(path);
        }
        if let Some(names) = self.names.get(path) {
            return Ok(names.clone());
        }
        let names = self.store.list(path)?;
        self.longest = self.longest.max(path.len());
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

/// The directories that a path is in, the farthest first, as far as their paths have no more than so many bytes. How
/// many others there are costs nothing.
fn above_within(path: &str, longest: usize) -> impl Iterator<Item = &str> {
    path.match_indices('/').take_while(move |(n, _)| *n <= longest).filter_map(|(n, _)| path.get(..n))
}

/// Takes what is at a path, below it and above it. No path in `known` has more than so many bytes; how deep the other
/// one is may be a guest's choice.
fn forget_in<T>(known: &mut BTreeMap<String, T>, path: &str, longest: usize) {
    for above in above_within(path, longest) {
        known.remove(above);
    }
    if path.len() > longest {
        return;
    }
    known.remove(path);
    // '0' follows '/'.
    let below: Vec<String> =
        known.range(format!("{path}/")..format!("{path}0")).map(|(path, _)| path.clone()).collect();
    for path in below {
        known.remove(&path);
    }
}
