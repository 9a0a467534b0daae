//! A xenstore for tests, and a connection to it: what xenstored does for who asks by a
//! [`Client`](crate::store::Client).
//!
//! [`Nodes`] is a store with one connection. Where others write there too, or look on, or the daemon is killed between
//! two operations, all that is a [`World`], and the daemon has it as [`Shared`].

use crate::store::{above, Change, Event, Store};
use anyhow::{ensure, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Index;
use std::rc::Rc;
use std::time::Duration;

/// As a guard: it is always there.
const ALWAYS: &str = "/local";
/// Bytes of a path and a value that fit into a message, with what is between them.
const MAX_BODY: usize = 4096;

/// Nodes, and the watches of one connection.
#[derive(Debug, Default)]
pub struct Nodes {
    values: BTreeMap<String, String>,
    /// Owner and reader of those that were made with rights.
    rights: BTreeMap<String, (u16, u16)>,
    /// Paths and tokens.
    watches: BTreeSet<(String, String)>,
    events: VecDeque<Event>,
}

impl Nodes {
    /// The value there.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.values.get(path).map(String::as_str)
    }

    /// Somebody writes this, and makes what is above it.
    pub fn set(&mut self, path: &str, value: &str) {
        let mut at = path;
        while let Some((above, _)) = at.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
            self.values.entry(above.into()).or_default();
            at = above;
        }
        self.values.insert(path.into(), value.into());
        self.fire(path, false);
    }

    /// Somebody removes it with all that is in it. Whether it was there.
    pub fn remove(&mut self, path: &str) -> bool {
        let is_there = self.values.contains_key(path);
        let stays = |at: &str| at != path && !is_in(at, path);
        self.values.retain(|at, _| stays(at));
        self.rights.retain(|at, _| stays(at));
        if is_there {
            self.fire(path, true);
        }
        is_there
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// All paths and values.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(path, value)| (path.as_str(), value.as_str()))
    }

    /// Names in a directory.
    pub fn names(&self, path: &str) -> Vec<String> {
        let names = self.paths().filter_map(|at| at.strip_prefix(path)?.strip_prefix('/'));
        names.filter(|name| !name.contains('/')).map(String::from).collect()
    }

    /// Who owns a directory that was made with rights, and who may read it.
    pub fn rights(&self, path: &str) -> Option<(u16, u16)> {
        self.rights.get(path).copied()
    }

    /// What is watched.
    pub fn watched(&self) -> impl Iterator<Item = &str> {
        self.watches.iter().map(|(path, _)| path.as_str())
    }

    /// Whether there is an event that nobody has taken.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The connection ends, and there is another one.
    pub fn connect_again(&mut self) {
        self.watches.clear();
        self.events.clear();
    }

    /// A watch tells of what is at and below it, and of its own removal with what it is in.
    fn fire(&mut self, path: &str, is_removal: bool) {
        for (watched, token) in &self.watches {
            let is_below = path == watched || is_in(path, watched);
            if is_below || (is_removal && is_in(watched, path)) {
                let path = if is_below { path } else { watched };
                self.events.push_back(Event { path: path.into(), token: token.clone() });
            }
        }
    }

    fn make(&mut self, change: &Change) {
        match change {
            Change::Write(path, value) => self.set(path, value),
            Change::Make { path, owner, reader } => {
                let value = self.values.get(path).cloned().unwrap_or_default();
                self.set(path, &value);
                self.rights.insert(path.clone(), (*owner, *reader));
            }
            Change::Repeat(path) => {
                if let Some(value) = self.values.get(path).cloned() {
                    self.set(path, &value);
                }
            }
            Change::Remove(path) => {
                let mut gone = path.as_str();
                while self.remove(gone) {
                    let Some(next) = above(gone).filter(|next| self.names(next).is_empty()) else { break };
                    gone = next;
                }
            }
            Change::Clear(path) => drop(self.remove(path)),
        }
    }
}

impl Index<&str> for Nodes {
    type Output = str;

    /// Panics if there is nothing.
    fn index(&self, path: &str) -> &str {
        self.get(path).unwrap_or_else(|| panic!("there is no {path}"))
    }
}

/// Whether a path is in a directory.
fn is_in(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

impl Store for Nodes {
    fn read(&mut self, path: &str) -> Result<Option<String>> {
        Ok(self.values.get(path).cloned())
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        Ok(self.names(path))
    }

    fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
        if guard != ALWAYS && !self.values.contains_key(guard) {
            return Ok(false);
        }
        for change in changes {
            if let Change::Write(path, value) = change {
                ensure!(path.len() + 1 + value.len() <= MAX_BODY, "a message to xenstore is too long");
            }
        }
        changes.iter().for_each(|change| self.make(change));
        Ok(true)
    }

    fn watch(&mut self, path: &str, token: &str) -> Result<()> {
        assert!(self.watches.insert((path.into(), token.into())), "{path} is watched twice");
        self.events.push_back(Event { path: path.into(), token: token.into() });
        Ok(())
    }

    fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
        assert!(self.watches.remove(&(path.into(), token.into())), "{path} is not watched");
        Ok(())
    }

    fn next_event(&mut self, _: Option<Duration>) -> Result<Option<Event>> {
        Ok(self.events.pop_front())
    }
}

/// What the daemon is about to ask for.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// The value at this path.
    Read(&'a str),
    /// Names.
    List,
    /// Changes.
    Change,
    /// To watch, or to watch no longer.
    Watch,
}

/// All that a store is part of.
pub trait World {
    /// The store.
    fn nodes(&mut self) -> &mut Nodes;

    /// Before that is done. The error: the daemon is killed before.
    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        let _ = what;
        Ok(())
    }

    /// A change of the daemon's has been made.
    fn changed(&mut self, change: &Change) {
        let _ = change;
    }

    /// See [`Store::is_introduced`].
    fn is_introduced(&mut self, domain: u16) -> bool {
        let _ = domain;
        true
    }

    /// See [`Store::resumed`].
    fn resumed(&mut self, domain: u16) {
        let _ = domain;
    }
}

/// A world that the daemon has, and a test, and whoever else needs it.
#[derive(Default)]
pub struct Shared<W>(pub Rc<RefCell<W>>);

impl<W> Shared<W> {
    /// Of this world.
    pub fn of(world: W) -> Self {
        Self(Rc::new(RefCell::new(world)))
    }
}

impl<W> Clone for Shared<W> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<W: World> Store for Shared<W> {
    fn read(&mut self, path: &str) -> Result<Option<String>> {
        let mut world = self.0.borrow_mut();
        world.asked(Asked::Read(path))?;
        world.nodes().read(path)
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        let mut world = self.0.borrow_mut();
        world.asked(Asked::List)?;
        world.nodes().list(path)
    }

    fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
        let mut world = self.0.borrow_mut();
        world.asked(Asked::Change)?;
        let is_done = world.nodes().change(guard, changes)?;
        if is_done {
            changes.iter().for_each(|change| world.changed(change));
        }
        Ok(is_done)
    }

    fn is_introduced(&mut self, domain: u16) -> Result<bool> {
        Ok(self.0.borrow_mut().is_introduced(domain))
    }

    fn resumed(&mut self, domain: u16) -> Result<()> {
        self.0.borrow_mut().resumed(domain);
        Ok(())
    }

    fn watch(&mut self, path: &str, token: &str) -> Result<()> {
        let mut world = self.0.borrow_mut();
        world.asked(Asked::Watch)?;
        world.nodes().watch(path, token)
    }

    fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
        let mut world = self.0.borrow_mut();
        world.asked(Asked::Watch)?;
        world.nodes().unwatch(path, token)
    }

    fn next_event(&mut self, limit: Option<Duration>) -> Result<Option<Event>> {
        self.0.borrow_mut().nodes().next_event(limit)
    }
}
