//! Where a service's record is kept: on domain 0's disk, and beside that, in memory, as it is just now.
//!
//! A disk may take long, or not answer for minutes. No recovery waits until its record is there: a change is written to
//! memory, where the next daemon reads it, and a thread brings it to the disk, where the next start of the machine
//! finds it. Memory counts as long as it is of what is on the disk: that may be deleted, or changed by people.

use super::record::Record;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Where a record is.
#[derive(Clone, Debug)]
pub struct Place {
    /// On the disk.
    pub disk: PathBuf,
    /// In memory.
    pub memory: PathBuf,
}

/// What is in memory.
#[derive(Deserialize, Serialize)]
struct Newer {
    /// Marks of what may be on the disk meanwhile.
    of: Vec<String>,
    record: Record,
}

/// Tells texts apart (FNV-1a).
fn mark(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// Nothing, if there is no file.
fn text_of(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// What is renamed when it is whole.
fn new_of(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

fn write(path: &Path, text: &str, is_to_last: bool) -> Result<()> {
    let new = new_of(path);
    let write = || {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(text.as_bytes())?;
        if is_to_last {
            file.sync_all()?;
        }
        std::fs::rename(&new, path)
    };
    let done = match (write(), path.parent()) {
        // Somebody has removed the directory.
        (Err(error), Some(place)) if is_to_last && error.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(place).and_then(|()| write())
        }
        (done, _) => done,
    };
    done.with_context(|| format!("cannot write {}", path.display()))
}

fn text(record: &Record) -> Result<String> {
    toml::to_string(record).context("a record cannot be written down")
}

impl Place {
    /// Reads it. One of an earlier start of the machine says what is wanted and what was counted; its times mean
    /// nothing any more.
    pub fn read(&self, boot: &str) -> Result<Record> {
        let on_disk = text_of(&self.disk)?;
        let newer = text_of(&self.memory).ok().and_then(|text| toml::from_str::<Newer>(&text).ok());
        let newer = newer.filter(|newer| newer.of.contains(&mark(&on_disk))).map(|newer| newer.record);
        let mut record = match newer {
            Some(record) => record,
            None => toml::from_str(&on_disk).with_context(|| format!("{}", self.disk.display()))?,
        };
        if record.boot != boot {
            record.begin_anew(boot);
        }
        Ok(record)
    }

    /// Writes it to the disk, and waits for that: who reads finds the old one or this one.
    pub fn write(&self, record: &Record) -> Result<()> {
        write(&self.disk, &text(record)?, true)?;
        // It is of what was there before.
        let _ = std::fs::remove_file(&self.memory);
        Ok(())
    }
}

/// What is to be written to disks, by whoever looks after the driver domains of this daemon.
#[derive(Default)]
struct Desk {
    is_begun: bool,
    wanted: BTreeMap<PathBuf, String>,
    /// What is being written, and where.
    under_way: BTreeMap<PathBuf, String>,
    /// How it went, the last time.
    done: BTreeMap<PathBuf, Result<(), String>>,
}

static DESK: Mutex<Desk> =
    Mutex::new(Desk { is_begun: false, wanted: BTreeMap::new(), under_way: BTreeMap::new(), done: BTreeMap::new() });
static COMES: Condvar = Condvar::new();

fn desk() -> MutexGuard<'static, Desk> {
    DESK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes what is wanted, for ever.
fn scribe() {
    let mut its = desk();
    loop {
        let Some((path, text)) = its.wanted.pop_first() else {
            its = COMES.wait(its).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        its.under_way.insert(path.clone(), text.clone());
        drop(its);
        let done = write(&path, &text, true).map_err(|error| format!("{error:#}"));
        its = desk();
        its.under_way.remove(&path);
        its.done.insert(path, done);
    }
}

impl Desk {
    /// What may come to the disk yet, of what was asked for there.
    fn coming(&self, path: &Path) -> Vec<String> {
        let all = [self.under_way.get(path), self.wanted.get(path)];
        all.into_iter().flatten().map(|text| mark(text)).collect()
    }

    fn is_busy(&self, path: &Path) -> bool {
        !self.coming(path).is_empty()
    }

    /// Has it written by a thread.
    fn ask(&mut self, path: &Path, text: String) -> Result<()> {
        if !self.is_begun {
            std::thread::Builder::new().name("records".into()).spawn(scribe).context("no thread for records")?;
            self.is_begun = true;
        }
        self.done.remove(path);
        self.wanted.insert(path.into(), text);
        COMES.notify_one();
        Ok(())
    }
}

/// A record that changes, where it is kept.
pub struct Paper {
    place: Place,
    /// What is in memory.
    written: Record,
    /// Marks of what is on the disk, or may come there.
    of: Vec<String>,
    /// There is something newer than what was last asked for.
    is_newer: bool,
    /// What is on the disk is an older one: the last could not be written.
    is_old: bool,
    /// The same of memory.
    is_lost: bool,
}

impl Paper {
    /// With what was read there.
    pub fn new(place: Place, written: Record) -> Self {
        // First: what comes to the disk in between is not there yet then, and is not coming any more.
        let coming = desk().coming(&place.disk);
        let on_disk = text_of(&place.disk).unwrap_or_default();
        let is_newer = text(&written).is_ok_and(|text| text != on_disk);
        let of = [mark(&on_disk)].into_iter().chain(coming).collect();
        Self { place, written, of, is_newer, is_old: false, is_lost: false }
    }

    /// Writes it down if it is another one. A file system on which that cannot be done is no reason to do nothing for a
    /// driver domain. What there is to say of that.
    fn keep(&mut self, record: &Record) -> Vec<String> {
        let (mut said, mut desk) = (Vec::new(), desk());
        let is_changed = *record != self.written;
        match desk.done.remove(&self.place.disk) {
            Some(Ok(())) => {
                self.of = self.of.pop().into_iter().collect();
                if std::mem::take(&mut self.is_old) {
                    said.push(format!("{} is written again", self.place.disk.display()));
                }
            }
            Some(Err(error)) => {
                self.of.pop();
                if !std::mem::replace(&mut self.is_old, true) {
                    said.push(format!("{error}; that is tried again, and all is done without"));
                }
            }
            None => {}
        }
        self.is_newer |= is_changed;
        let asks = self.is_newer && !desk.is_busy(&self.place.disk);
        if !is_changed && !asks {
            return said;
        }
        let done = text(record).and_then(|text| {
            if asks {
                self.of.push(mark(&text));
            }
            let newer = Newer { of: self.of.clone(), record: record.clone() };
            let newer = toml::to_string(&newer).context("a record cannot be written down")?;
            // Before it comes to the disk: who reads then knows that this is it.
            let in_memory = write(&self.place.memory, &newer, false);
            if asks {
                self.is_newer = false;
                desk.ask(&self.place.disk, text)?;
            }
            in_memory
        });
        self.written.clone_from(record);
        let was_lost = std::mem::replace(&mut self.is_lost, done.is_err());
        said.extend(done.err().filter(|_| !was_lost).map(|error| format!("{error:#}")));
        said
    }

    /// Says what there is to say, and then writes it down: what a daemon has written that is killed in between is said
    /// by nobody any more, and what it has only said the next one does and says again.
    pub fn say_and_keep(&mut self, said: impl IntoIterator<Item = String>, record: &Record, mut say: impl FnMut(&str)) {
        said.into_iter().for_each(|line| say(&line));
        self.keep(record).iter().for_each(|line| say(line));
    }
}

#[cfg(test)]
mod tests;
