//! A connection to xenstored: by its socket, or through the kernel if it runs elsewhere.

use super::{above, Change, Event, Store};
use anyhow::{bail, ensure, Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

mod queue;
#[cfg(test)]
mod tests;

use queue::Queue;

/// Where it is looked for.
const SOCKET: &str = "/run/xenstored/socket";
const DEVICE: &str = "/dev/xen/xenbus";

/// Kinds of messages (public/io/xs_wire.h).
mod kind {
    pub const DIRECTORY: u32 = 1;
    pub const READ: u32 = 2;
    pub const WATCH: u32 = 4;
    pub const UNWATCH: u32 = 5;
    pub const TRANSACTION_START: u32 = 6;
    pub const TRANSACTION_END: u32 = 7;
    pub const WRITE: u32 = 11;
    pub const MAKE: u32 = 12;
    pub const REMOVE: u32 = 13;
    pub const SET_RIGHTS: u32 = 14;
    pub const EVENT: u32 = 15;
    pub const ERROR: u32 = 16;
    pub const IS_INTRODUCED: u32 = 17;
    pub const RESUME: u32 = 18;
    /// Xen 4.9 and later.
    pub const DIRECTORY_PART: u32 = 22;
}

/// Bytes of a message's head: kind, request, transaction, bytes that follow.
const HEAD: usize = 16;
/// Bytes that follow at most.
const MAX_BODY: usize = 4096;
/// So many requests are under way at a socket at most: less than it holds of the longest.
const AT_ONCE: usize = 16;
/// And at Linux' device: it keeps what was written where the next write goes, and sends it later.
const ONE_BY_ONE: usize = 1;
/// As a guard: it is always there.
const ALWAYS: &str = "/local";
/// How often a transaction is tried, or a long directory read, that others' changes disturb.
const TRIES: usize = 100;

/// A connection.
pub struct Client {
    stream: File,
    /// So many requests are under way at most.
    at_once: usize,
    /// Events that came between a request and its answer.
    events: Queue,
}

/// What xenstored answered.
enum Answer {
    Value(Vec<u8>),
    /// The name of the error.
    Refused(String),
}

impl Client {
    /// Connects. The error says what was tried.
    pub fn open() -> Result<Self> {
        let first = match UnixStream::connect(SOCKET) {
            Ok(socket) => return Ok(Self::over(OwnedFd::from(socket).into(), AT_ONCE)),
            Err(error) => error,
        };
        let device = File::options().read(true).write(true).open(DEVICE);
        let device = device.with_context(|| format!("xenstore is neither at {SOCKET} ({first}) nor at {DEVICE}"))?;
        Ok(Self::over(device, ONE_BY_ONE))
    }

    fn over(stream: File, at_once: usize) -> Self {
        Self { stream, at_once, events: Queue::default() }
    }

    /// Waits until there is an event or `other` may be read, no longer than `limit`.
    pub fn wait(&self, other: BorrowedFd<'_>, limit: Duration) -> Result<()> {
        if !self.events.is_empty() {
            return Ok(());
        }
        let mut ready = [PollFd::new(&self.stream, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        match poll(&mut ready, Some(&Timespec::try_from(limit)?)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("xenstore cannot be waited for"),
        }
    }

    fn ask(&mut self, kind: u32, transaction: u32, body: &[u8]) -> Result<Answer> {
        self.send(kind, transaction, body)?;
        self.answer(kind)
    }

    fn send(&mut self, kind: u32, transaction: u32, body: &[u8]) -> Result<()> {
        self.put(&message(kind, transaction, body)?)
    }

    fn put(&mut self, messages: &[u8]) -> Result<()> {
        self.stream.write_all(messages).context("xenstore does not listen")
    }

    /// The answer to the first request that has none.
    fn answer(&mut self, kind: u32) -> Result<Answer> {
        loop {
            match self.receive()? {
                (kind::EVENT, body) => self.keep(&body),
                (kind::ERROR, body) => return Ok(Answer::Refused(text(&body))),
                (got, body) if got == kind => return Ok(Answer::Value(body)),
                (got, _) => bail!("xenstore answered a request of kind {kind} with {got}"),
            }
        }
    }

    fn receive(&mut self) -> Result<(u32, Vec<u8>)> {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head).context("xenstore has gone")?;
        let word = |n: usize| head.get(n * 4..n * 4 + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        let length = usize::try_from(word(3))?;
        ensure!(length <= MAX_BODY, "xenstore sent a message of {length} bytes");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).context("xenstore has gone")?;
        Ok((word(0), body))
    }

    fn keep(&mut self, body: &[u8]) {
        let mut parts = body.split(|byte| *byte == 0).map(text);
        if let (Some(path), Some(token)) = (parts.next(), parts.next()) {
            self.events.push(Event { path, token });
        }
    }

    /// The answer's value; `None` if what was asked for is not there.
    fn find(&mut self, kind: u32, transaction: u32, path: &str) -> Result<Option<Vec<u8>>> {
        match self.ask(kind, transaction, &terminated(&[path]))? {
            Answer::Value(value) => Ok(Some(value)),
            Answer::Refused(error) if error == "ENOENT" => Ok(None),
            Answer::Refused(error) => bail!("xenstore refuses {path}: {error}"),
        }
    }

    /// Whether a directory is there and has nothing in it. Whoever has rights there may have made more than can be told
    /// at once.
    fn is_empty(&mut self, transaction: u32, path: &str) -> Result<bool> {
        match self.ask(kind::DIRECTORY, transaction, &terminated(&[path]))? {
            Answer::Value(names) => Ok(names.is_empty()),
            Answer::Refused(error) if ["ENOENT", "E2BIG"].contains(&error.as_str()) => Ok(false),
            Answer::Refused(error) => bail!("xenstore refuses {path}: {error}"),
        }
    }

    /// The names in a directory that has more than fit into a message, each with a NUL behind it. `/local/domain` has
    /// with some 700 domains.
    fn list_long(&mut self, path: &str) -> Result<Vec<u8>> {
        for _ in 0..TRIES {
            if let Some(names) = self.list_in_parts(path)? {
                return Ok(names);
            }
        }
        bail!("others always change what is in {path}")
    }

    /// Reads these names in parts. `None`: the directory has changed meanwhile, and the parts do not fit together. Each
    /// begins with a number that says of which state of the directory it is; behind the last name there is one NUL
    /// more. Source: docs/misc/xenstore.txt, DIRECTORY_PART.
    fn list_in_parts(&mut self, path: &str) -> Result<Option<Vec<u8>>> {
        let (mut names, mut first) = (Vec::new(), None);
        loop {
            let body = terminated(&[path, &names.len().to_string()]);
            let part = match self.ask(kind::DIRECTORY_PART, 0, &body)? {
                Answer::Value(part) => part,
                Answer::Refused(error) if error == "ENOENT" => return Ok(Some(Vec::new())),
                Answer::Refused(error) => bail!("xenstore refuses a part of {path}: {error}"),
            };
            let mut halves = part.splitn(2, |byte| *byte == 0);
            let (state, more) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
            ensure!(!more.is_empty(), "xenstore sends a part of {path} in which there is nothing");
            if first.get_or_insert_with(|| state.to_vec()) != state {
                return Ok(None);
            }
            names.extend_from_slice(more);
            if names == [0] || names.ends_with(&[0, 0]) {
                names.pop();
                return Ok(Some(names));
            }
        }
    }

    fn must(&mut self, kind: u32, transaction: u32, body: &[u8]) -> Result<Vec<u8>> {
        match self.ask(kind, transaction, body)? {
            Answer::Value(value) => Ok(value),
            Answer::Refused(error) => bail!("xenstore refuses {}: {error}", text(body).replace('\0', " ")),
        }
    }

    /// Writes these values. Each answer that is waited for costs two switches between processes, and so may each
    /// request that is sent by itself; so several are sent at a time where that is possible.
    fn write(&mut self, transaction: u32, values: &[(&str, &[u8])]) -> Result<()> {
        for values in values.chunks(self.at_once) {
            let mut messages = Vec::new();
            for (path, value) in values {
                let body = [terminated(&[path]), value.to_vec()].concat();
                messages.extend(message(kind::WRITE, transaction, &body)?);
            }
            self.put(&messages)?;
            let mut refused = None;
            for (path, _) in values {
                if let Answer::Refused(error) = self.answer(kind::WRITE)? {
                    refused.get_or_insert(format!("{path}: {error}"));
                }
            }
            if let Some(why) = refused {
                bail!("xenstore refuses {why}");
            }
        }
        Ok(())
    }

    /// Ends a transaction; `false`: others' changes came in between.
    fn end(&mut self, transaction: u32, is_wanted: bool) -> Result<bool> {
        let flag = if is_wanted { "T" } else { "F" };
        match self.ask(kind::TRANSACTION_END, transaction, &terminated(&[flag]))? {
            Answer::Value(_) => Ok(true),
            Answer::Refused(error) if error == "EAGAIN" => Ok(false),
            Answer::Refused(error) => bail!("xenstore refuses a transaction: {error}"),
        }
    }

    /// `false`: there is nothing at `guard`, or as below.
    fn make_all(&mut self, transaction: u32, guard: &str, changes: &[Change]) -> Result<bool> {
        let mut is_wanted = guard == ALWAYS || self.find(kind::READ, transaction, guard)?.is_some();
        for changes in changes.chunk_by(|one, next| written(one).is_some() && written(next).is_some()) {
            let values: Vec<(&str, &[u8])> = changes.iter().filter_map(written).collect();
            is_wanted = is_wanted
                && match changes {
                    [change] => self.make(transaction, change)?,
                    _ => self.write(transaction, &values).map(|()| true)?,
                };
        }
        Ok(is_wanted)
    }

    /// `false`: a domain that gets rights is gone. The store refuses them as soon as the hypervisor has ended it, and
    /// the toolstack removes its name later.
    fn make(&mut self, transaction: u32, change: &Change) -> Result<bool> {
        match change {
            Change::Write(path, value) => self.write(transaction, &[(path, value.as_bytes())])?,
            Change::Repeat(path) => {
                let value = self.find(kind::READ, transaction, path)?;
                // Whoever wrote it may have named the node by a shorter path, so that it fits for him alone.
                if let Some(value) = value.filter(|value| path.len() + 1 + value.len() <= MAX_BODY) {
                    self.write(transaction, &[(path, &value)])?;
                }
            }
            Change::Make { path, owner, reader } => {
                self.must(kind::MAKE, transaction, &terminated(&[path]))?;
                let rights = [path.clone(), format!("n{owner}"), format!("r{reader}")];
                return match self.ask(
                    kind::SET_RIGHTS,
                    transaction,
                    &terminated(&rights.each_ref().map(String::as_str)),
                )? {
                    Answer::Value(_) => Ok(true),
                    Answer::Refused(error) if error == "ENOENT" => Ok(false),
                    Answer::Refused(error) => bail!("xenstore refuses {}: {error}", rights.join(" ")),
                };
            }
            Change::Clear(path) => {
                self.find(kind::REMOVE, transaction, path)?;
            }
            Change::Remove(path) => {
                let mut gone = path.as_str();
                while self.find(kind::REMOVE, transaction, gone)?.is_some() {
                    let Some(next) = above(gone) else { break };
                    if !self.is_empty(transaction, next)? {
                        break;
                    }
                    gone = next;
                }
            }
        }
        Ok(true)
    }
}

impl Store for Client {
    fn read(&mut self, path: &str) -> Result<Option<String>> {
        Ok(self.find(kind::READ, 0, path)?.map(|value| text(&value)))
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        let names = match self.ask(kind::DIRECTORY, 0, &terminated(&[path]))? {
            Answer::Value(names) => names,
            Answer::Refused(error) if error == "ENOENT" => Vec::new(),
            Answer::Refused(error) if error == "E2BIG" => self.list_long(path)?,
            Answer::Refused(error) => bail!("xenstore refuses {path}: {error}"),
        };
        Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(text).collect())
    }

    fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
        if let (ALWAYS, [Change::Write(path, value)]) = (guard, changes) {
            return self.write(0, &[(path, value.as_bytes())]).map(|()| true);
        }
        for _ in 0..TRIES {
            let transaction = text(&self.must(kind::TRANSACTION_START, 0, &terminated(&[""]))?);
            let transaction = transaction.trim_end_matches('\0').parse().context("the name of a transaction")?;
            let is_wanted = self.make_all(transaction, guard, changes);
            // Also after an error, or the store would keep it for as long as the connection lasts.
            let has_ended = self.end(transaction, matches!(is_wanted, Ok(true)));
            let is_wanted = is_wanted?;
            if has_ended? {
                return Ok(is_wanted);
            }
        }
        bail!("others always change what is at {guard}")
    }

    fn is_introduced(&mut self, domain: u16) -> Result<bool> {
        Ok(text(&self.must(kind::IS_INTRODUCED, 0, &terminated(&[&domain.to_string()]))?) == "T")
    }

    fn resumed(&mut self, domain: u16) -> Result<()> {
        self.must(kind::RESUME, 0, &terminated(&[&domain.to_string()])).map(|_| ())
    }

    fn watch(&mut self, path: &str, token: &str) -> Result<()> {
        // Its first event may come before the answer.
        self.events.watch(path, token);
        self.must(kind::WATCH, 0, &terminated(&[path, token])).map(|_| ())
    }

    fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
        self.events.unwatch(path, token);
        self.must(kind::UNWATCH, 0, &terminated(&[path, token])).map(|_| ())
    }

    fn next_event(&mut self, limit: Option<Duration>) -> Result<Option<Event>> {
        if self.events.is_empty() {
            let limit = limit.map(Timespec::try_from).transpose()?;
            let mut ready = [PollFd::new(&self.stream, PollFlags::IN)];
            match poll(&mut ready, limit.as_ref()) {
                Ok(0) | Err(Errno::INTR) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error).context("xenstore cannot be waited for"),
            }
            let (got, body) = self.receive()?;
            ensure!(got == kind::EVENT, "xenstore answered {got} without a question");
            self.keep(&body);
        }
        Ok(self.events.pop())
    }
}

/// A request, as it goes over the connection.
fn message(kind: u32, transaction: u32, body: &[u8]) -> Result<Vec<u8>> {
    ensure!(body.len() <= MAX_BODY, "a message to xenstore is too long");
    let length = u32::try_from(body.len()).context("length")?;
    let head = [kind, 0, transaction, length];
    Ok(head.iter().flat_map(|word| word.to_le_bytes()).chain(body.iter().copied()).collect())
}

/// Path and value of a change that writes.
fn written(change: &Change) -> Option<(&str, &[u8])> {
    match change {
        Change::Write(path, value) => Some((path, value.as_bytes())),
        _ => None,
    }
}

fn terminated(parts: &[&str]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().chain([0])).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string()
}
