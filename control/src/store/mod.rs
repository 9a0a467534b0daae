//! xenstore, as far as a back end needs it.

mod client;
mod kept;

pub use client::Client;
pub use kept::Kept;

use anyhow::Result;
use std::time::Duration;

/// So many events are taken at once at most.
const PORTION: usize = 1000;

/// Something that happened below a watched path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What changed.
    pub path: String,
    /// As the watch was given.
    pub token: String,
}

/// One change of several that are made at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes a value.
    Write(String, String),
    /// Makes a directory, which is `owner`'s and may be read by `reader`; and so is what is made in it.
    Make {
        /// Where.
        path: String,
        /// Domid.
        owner: u16,
        /// Domid.
        reader: u16,
    },
    /// Writes what is there once more, so that those who watch it look again.
    Repeat(String),
    /// Removes a directory if it is there, and those above it that have become empty.
    Remove(String),
    /// Removes what is there with all that is in it, and nothing above it.
    Clear(String),
}

/// What is asked of xenstore. Errors are those of the connection; that something is not there is none.
pub trait Store {
    /// The value at a path, if there is one. Bytes that are no text are replaced.
    fn read(&mut self, path: &str) -> Result<Option<String>>;

    /// The names in a directory; none if it is not there.
    fn list(&mut self, path: &str) -> Result<Vec<String>>;

    /// Makes changes at once, if there is something at `guard`: nothing is made below a directory that has been
    /// removed. `/local` always is. `false`: there was nothing, or a domain that gets a directory is gone; and nothing
    /// was changed.
    fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool>;

    /// The store knows this domain: rights that it gets before that mean nothing.
    fn is_introduced(&mut self, domain: u16) -> Result<bool> {
        let _ = domain;
        Ok(true)
    }

    /// A domain that had shut down runs again: its next end is told of as its first was.
    fn resumed(&mut self, domain: u16) -> Result<()> {
        let _ = domain;
        Ok(())
    }

    /// From now on changes at and below the path, and its removal, are events. There is one at once.
    fn watch(&mut self, path: &str, token: &str) -> Result<()>;

    /// Ends that.
    fn unwatch(&mut self, path: &str, token: &str) -> Result<()>;

    /// Nobody but this connection writes at and below this path, so what is known of it stays true.
    fn own(&mut self, path: &str) {
        let _ = path;
    }

    /// The next event, if there is one within `limit`; without a limit it is waited for.
    fn next_event(&mut self, limit: Option<Duration>) -> Result<Option<Event>>;

    /// The events that are there, no more than a portion of them; the first is waited for as above. Others may bring
    /// about as many as they like, and faster than they are taken: whoever asks does something else between two
    /// portions.
    fn next_events(&mut self, limit: Option<Duration>) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut limit = limit;
        while events.len() < PORTION {
            let Some(event) = self.next_event(limit)? else { break };
            events.push(event);
            limit = Some(Duration::ZERO);
        }
        Ok(events)
    }
}

/// The directory above, unless that is a domain's own or the root.
pub fn above(path: &str) -> Option<&str> {
    /// Slashes in `/local/domain/N`.
    const OF_A_DOMAIN: usize = 3;
    let (above, _) = path.rsplit_once('/')?;
    (above.matches('/').count() > OF_A_DOMAIN).then_some(above)
}
