//! One that waits is noted by the hypervisor, and what is left of one that has died becomes that again.
//!
//! The hypervisor makes of the domain what it was: its memory, its vCPUs, its ends of everything. What others know of
//! it is put right here: xenstore has its watches, which are those of a later life then, and what was written there. So
//! when it is noted, nothing is under way in its rings, and its watches are learned: all that it may watch is written
//! once more, and what comes is read in its place. On the way back xenstore forgets all its watches, and gets those.
//!
//! Both may be done again from the beginning wherever somebody was killed.

mod front_ends;
mod stand_in;

use super::remains_of;
use super::standby::name_of;
use crate::hypercall::foreign::Foreign;
use crate::hypercall::{Hypervisor, Snapshots, Trouble};
use crate::store::{Change, Store};
use anyhow::{bail, ensure, Context, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stand_in::{Fired, Heard, StandIn, Words, READ, RESET_WATCHES, WATCH};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xen_abi::channel_op::{ChannelSnapshot, SNAPSHOT_UNSETTLED};

/// What goes back in xenstore: what the domain writes. The rest is the tools' to change.
const PARTS: [&str; 3] = ["data", "device", "error"];
/// What it does not watch, and others do.
const NOT_WATCHED: [&str; 2] = ["console", "store"];
/// Linux watches that, and toolstacks make it when it is needed. When it is noted there are none, since they have what
/// is others' in use; so those of a later life are nothing to it.
const BACK_ENDS: &str = "backend";
/// Nodes of a domain's that are looked at, at most.
const MOST_NODES: usize = 1000;
/// So often it is tried to find it with nothing under way; so long it runs between two tries, and so long is waited in
/// one.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 200 });
const LIMIT: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 100 });

/// What is to be known of a domain besides what the hypervisor notes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Noted {
    /// What was in xenstore, below its own directory.
    nodes: BTreeMap<String, String>,
    /// What it watched, and the tokens.
    watches: Vec<(String, String)>,
    /// Of that: what was there, and may have changed when it goes back. As it sees it.
    seen: Vec<String>,
}

/// The rings of a domain's that others are at.
pub trait Rings {
    type Page: AsRef<Words>;
    fn page(&self, domain: u16, frame: u64) -> Result<Self::Page, Errno>;
}

impl AsRef<Words> for Foreign {
    fn as_ref(&self) -> &Words {
        self.words()
    }
}

impl Rings for Hypervisor {
    type Page = Foreign;
    fn page(&self, domain: u16, frame: u64) -> Result<Foreign, Errno> {
        self.map(domain, frame)
    }
}

/// What is behind the last dot while it is written.
const NEW: &str = "new";

/// Where that is.
pub fn path(records: &Path, service: &str, domain: u16) -> PathBuf {
    records.join(format!("{service}.snapshot.{domain}"))
}

/// Forgets what is known of others than these. A service may be called as what was noted of another one is: its record
/// stays.
pub fn keep_only(notes: &Path, service: &str, domains: &[u16]) -> Result<()> {
    let kept: Vec<PathBuf> = domains.iter().map(|domain| path(notes, service, *domain)).collect();
    of(notes, service)?.into_iter().filter(|file| !kept.contains(file)).try_for_each(std::fs::remove_file)?;
    Ok(())
}

/// Brings what is noted of a service's in one directory to another one, where what is there is newer.
pub fn bring(from: &Path, to: &Path, service: &str) -> Result<()> {
    let files = match of(from, service) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        files => files?,
    };
    for file in files {
        let Some(new) = file.file_name().map(|name| to.join(name)) else { continue };
        if !new.exists() {
            std::fs::copy(&file, &new)?;
        }
        std::fs::remove_file(file)?;
    }
    Ok(())
}

/// The files of what is noted of a service's.
fn of(notes: &Path, service: &str) -> std::io::Result<Vec<PathBuf>> {
    let start = format!("{service}.snapshot.");
    let is_domain = |rest: &str| rest == NEW || rest.parse::<u16>().is_ok();
    let is_its = |name: &OsStr| name.to_str().and_then(|name| name.strip_prefix(&start)).is_some_and(is_domain);
    let all = std::fs::read_dir(notes)?.flatten();
    Ok(all.filter(|entry| is_its(&entry.file_name())).map(|entry| entry.path()).collect())
}

/// A domain's directory in xenstore.
fn own(domain: u16) -> String {
    format!("/local/domain/{domain}")
}

/// All nodes at and below a path, with their values.
fn nodes_in(path: &str, store: &mut impl Store, found: &mut BTreeMap<String, String>) -> Result<()> {
    ensure!(found.len() < MOST_NODES, "it has too many nodes in xenstore");
    let Some(value) = store.read(path)? else { return Ok(()) };
    found.insert(path.into(), value);
    for name in store.list(path)? {
        nodes_in(&format!("{path}/{name}"), store, found)?;
    }
    Ok(())
}

/// What of a domain's goes back, by paths below its own directory.
fn parts_of(domain: u16, store: &mut impl Store) -> Result<BTreeMap<String, String>> {
    let own = own(domain);
    let mut found = BTreeMap::new();
    for part in PARTS {
        nodes_in(&format!("{own}/{part}"), store, &mut found)?;
    }
    let below = |path: String| path.strip_prefix(&format!("{own}/")).map(Into::into);
    Ok(found.into_iter().filter_map(|(path, value)| Some((below(path)?, value))).collect())
}

/// All that it may watch: what is its own, and the states of the other ends of its devices.
fn watchable(domain: u16, store: &mut impl Store) -> Result<BTreeSet<String>> {
    let own = own(domain);
    let mut found = BTreeMap::from([(own.clone(), String::new())]);
    for name in store.list(&own)? {
        if !NOT_WATCHED.contains(&name.as_str()) {
            nodes_in(&format!("{own}/{name}"), store, &mut found)?;
        }
    }
    // It says itself where they are; nobody else's directories are touched for that.
    let is_other_end = |far: &&String| {
        far.starts_with("/local/domain/") && far.contains("/backend/") && far.contains(&format!("/{domain}/"))
    };
    let says = |path: &str| path.ends_with("/backend") && path.contains("/device/");
    let ends = found.iter().filter(|(path, _)| says(path)).map(|(_, far)| far).filter(is_other_end);
    let ends: Vec<String> = ends.flat_map(|far| [far.clone(), format!("{far}/state")]).collect();
    Ok(found.into_keys().chain(ends).collect())
}

/// Of what has come in a domain's ring, that which may be for it. Nobody has to be xenstored who writes there: what is
/// anybody else's is not touched for that. `all` is what it may watch; of its own there may be more by now.
fn its(domain: u16, mut fired: Vec<Fired>, all: &BTreeSet<String>) -> Result<Vec<Fired>> {
    let own = own(domain);
    let is_own = |path: &str| {
        let below = path.strip_prefix(&own).and_then(|below| below.strip_prefix('/'));
        below.is_some_and(|below| NOT_WATCHED.iter().all(|part| below.split('/').next() != Some(part)))
    };
    fired.retain(|fired| {
        let path = absolute(domain, &fired.path);
        all.contains(&path) || is_own(&path)
    });
    let paths: BTreeSet<&str> = fired.iter().map(|fired| fired.path.as_str()).collect();
    ensure!(paths.len() <= 2 * MOST_NODES, "xenstore tells it of too much");
    Ok(fired)
}

/// What is watched, by what has come of all that could be: a watch is the shortest of what it told of.
fn watches_in(fired: &[Fired]) -> Vec<(String, String)> {
    let mut shortest: BTreeMap<&str, &str> = BTreeMap::new();
    for Fired { path, token } in fired {
        let of = shortest.entry(token).or_insert(path);
        if path.len() < of.len() {
            *of = path;
        }
    }
    shortest.into_iter().map(|(token, path)| (path.into(), token.into())).collect()
}

/// Where a path is that the domain sees so.
fn absolute(domain: u16, path: &str) -> String {
    if path.starts_with('/') {
        path.into()
    } else {
        format!("{}/{path}", own(domain))
    }
}

/// Has all of these told of once more, if they are there.
fn repeat(domain: u16, paths: impl IntoIterator<Item = String>, store: &mut impl Store) -> Result<()> {
    let changes: Vec<Change> = paths.into_iter().map(Change::Repeat).collect();
    store.change(&format!("{}/name", own(domain)), &changes).map(|_| ())
}

/// What one that was noted takes, for people.
pub fn takes(taken: &ChannelSnapshot) -> String {
    let mib = |frames: u64| frames / 256;
    let ChannelSnapshot { copies, found, packed, packed_bytes, .. } = *taken;
    let whole = copies.saturating_sub(found).saturating_sub(packed);
    let takes = mib(whole + packed_bytes.div_ceil(4096));
    let mut text =
        format!("that takes {takes} MiB, beside {} MiB that are the same as what was noted before", mib(found));
    if packed != 0 {
        text += &format!("; {} MiB of it are packed into {} MiB", mib(packed), packed_bytes >> 20);
    }
    text
}

/// The pages of a domain's xenstore ring and of its console.
fn rings_of<R: Rings>(domain: u16, store: &mut impl Store, rings: &R) -> Result<(R::Page, R::Page)> {
    let own = own(domain);
    let mut page = |of: &str| -> Result<R::Page> {
        let frame = stand_in::frame(store.read(&format!("{own}/{of}/ring-ref"))?)?;
        rings.page(domain, frame).with_context(|| format!("no {of}"))
    };
    Ok((page("store")?, page("console")?))
}

/// Its port to xenstored.
fn port_of(domain: u16, store: &mut impl Store) -> Result<u32> {
    let port = store
        .read(&format!("{}/store/port", own(domain)))?
        .context("xenstore does not say by which port it is called")?;
    port.parse().context("no port to xenstored")
}

/// Its ring of xenstore, and its port to xenstored.
#[derive(Clone, Copy)]
struct Ring<'a> {
    page: &'a Words,
    port: u32,
}

impl Ring<'_> {
    /// Has xenstored look at it. xenstored looks at all rings whenever anybody asks it for anything, oxenstored only at
    /// that of who calls it.
    fn wake<'h, H: Snapshots>(self, domain: u16, hypervisor: &'h mut H) -> impl FnMut() -> Result<()> + 'h {
        let port = self.port;
        move || hypervisor.notify(domain, port).context("xenstored cannot be called in its name")
    }
}

/// Notes one that runs and waits; `flags` are for TAKE, and `nets` the domains of services whose driver domain it waits
/// to be. An error says why that cannot be; it runs all the same, and has no snapshot.
pub fn note<H: Snapshots + Rings>(
    domain: u16,
    flags: u16,
    nets: &[u16],
    file: &Path,
    store: &mut impl Store,
    hypervisor: &mut H,
) -> Result<ChannelSnapshot> {
    let done = try_note(domain, flags, nets, file, store, hypervisor);
    if done.is_err() {
        let _ = hypervisor.forget(domain);
    }
    hypervisor.let_run(domain).context("it does not run again")?;
    done
}

fn try_note<H: Snapshots + Rings>(
    domain: u16,
    flags: u16,
    nets: &[u16],
    file: &Path,
    store: &mut impl Store,
    hypervisor: &mut H,
) -> Result<ChannelSnapshot> {
    let place = format!("{}/{BACK_ENDS}", own(domain));
    if store.read(&place)?.is_none() {
        let make = Change::Make { path: place.clone(), owner: 0, reader: domain };
        store.change(&format!("{}/name", own(domain)), &[make])?;
    }
    ensure!(store.list(&place)?.is_empty(), "it is somebody's back end already");
    front_ends::check(domain, nets, store)?;
    let (ring, console) = rings_of(domain, store, hypervisor)?;
    let ring = Ring { page: ring.as_ref(), port: port_of(domain, store)? };
    let mut tries = 0;
    loop {
        match hypervisor.forget(domain) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).context("an earlier snapshot stays"),
        }
        let error = match note_once(domain, flags, file, (ring, console.as_ref()), store, hypervisor) {
            Ok(taken) => return Ok(taken),
            Err(error) => error,
        };
        tries += 1;
        // What the hypervisor refuses stays so, but for what is half done.
        let is_for_good = error.downcast_ref().is_some_and(|told: &Trouble| told.told.why != SNAPSHOT_UNSETTLED);
        if tries == TRIES || is_for_good {
            return Err(error);
        }
        hypervisor.let_run(domain)?;
        std::thread::sleep(BETWEEN);
    }
}

fn note_once<H: Snapshots>(
    domain: u16,
    flags: u16,
    file: &Path,
    (ring, console): (Ring<'_>, &Words),
    store: &mut impl Store,
    hypervisor: &mut H,
) -> Result<ChannelSnapshot> {
    be_idle(domain, ring, store, hypervisor)?;
    let fired = learn(domain, ring, store, hypervisor)?;
    let seen: BTreeSet<String> = fired.iter().map(|fired| fired.path.clone()).collect();
    let noted =
        Noted { nodes: parts_of(domain, store)?, watches: watches_in(&fired), seen: seen.iter().cloned().collect() };
    ensure!(!noted.watches.is_empty(), "it watches nothing in xenstore");
    write(file, &noted)?;
    stand_in::until_read(console)?;
    let taken = hypervisor.take(domain, flags)?;
    // What comes while the page is copied may be in the copy by half.
    ensure!(stand_in::is_idle(ring.page), "xenstore has told it something meanwhile");
    // What came before was read in its place.
    repeat(domain, seen.iter().map(|path| absolute(domain, path)), store)?;
    Ok(taken)
}

/// It is paused, and has nothing under way in xenstore.
///
/// Linux writes the head of a request and what follows it one after the other, and tells xenstored in between, which
/// takes the head at once: then both rings are empty, and what is sent in its name would be taken for the rest. One
/// whose vCPUs all wait has written all of it.
fn be_idle<H: Snapshots>(domain: u16, ring: Ring<'_>, store: &mut impl Store, hypervisor: &mut H) -> Result<()> {
    hypervisor.hold(domain).context("it cannot be paused")?;
    ensure!(hypervisor.is_waiting(domain)?, "it always has something to do");
    let heard = {
        let mut wake = ring.wake(domain, hypervisor);
        let mut stand_in = StandIn::new(ring.page, &mut wake);
        stand_in.until_idle(LIMIT)?;
        stand_in.ask(READ, &["name"])?
    };
    if heard == Heard::default() {
        return Ok(());
    }
    let all = watchable(domain, store)?;
    let missed: BTreeSet<String> =
        its(domain, heard.fired, &all)?.iter().map(|fired| absolute(domain, &fired.path)).collect();
    repeat(domain, missed, store)?;
    bail!("xenstore has just told it something")
}

/// What it watches tells of all that it could.
fn learn<H: Snapshots>(domain: u16, ring: Ring<'_>, store: &mut impl Store, hypervisor: &mut H) -> Result<Vec<Fired>> {
    let all = watchable(domain, store)?;
    repeat(domain, all.iter().cloned(), store)?;
    let mut wake = ring.wake(domain, hypervisor);
    let fired = StandIn::new(ring.page, &mut wake).ask(READ, &["name"])?.fired;
    its(domain, fired, &all)
}

/// Makes of what is left of one that had waited what it was then. An error says why that cannot be; then it is to be
/// destroyed.
pub fn roll_back<H: Snapshots + Rings>(
    domain: u16,
    driver: &str,
    file: &Path,
    store: &mut impl Store,
    hypervisor: &mut H,
) -> Result<()> {
    let noted: Noted = toml::from_str(&std::fs::read_to_string(file)?).context("what was noted of it")?;
    hypervisor.hold(domain).context("it cannot be paused")?;
    let (ring, console) = rings_of(domain, store, hypervisor)?;
    let port = port_of(domain, store)?;
    {
        let mut wake = Ring { page: ring.as_ref(), port }.wake(domain, hypervisor);
        // It may have died with something under way: that is not for whom it becomes.
        StandIn::new(ring.as_ref(), &mut wake).begin_anew()?;
    }
    stand_in::until_read(console.as_ref())?;
    drop((ring, console));
    hypervisor.roll_back(domain)?;
    let (ring, _) = rings_of(domain, store, hypervisor)?;
    store.resumed(domain)?;
    restore(domain, driver, &noted, store)?;
    {
        let mut wake = Ring { page: ring.as_ref(), port }.wake(domain, hypervisor);
        let mut stand_in = StandIn::new(ring.as_ref(), &mut wake);
        // If an earlier daemon was killed here, some are there already.
        stand_in.ask(RESET_WATCHES, &[""])?;
        for (path, token) in &noted.watches {
            stand_in.ask(WATCH, &[path, token])?;
        }
    }
    drop(ring);
    hypervisor.let_run(domain).context("it does not run again")?;
    // Its devices are what they were; what else there is may not be.
    let other = |path: &&String| PARTS.iter().all(|part| !path.starts_with(part));
    repeat(domain, noted.seen.iter().filter(other).map(|path| absolute(domain, path)), store)
}

/// What it had written is what it was, and it has the name of one that waits, at once.
fn restore(domain: u16, driver: &str, noted: &Noted, store: &mut impl Store) -> Result<()> {
    let own = own(domain);
    let now = parts_of(domain, store)?;
    let mut changes = changes_to(&own, &now, &noted.nodes);
    let back_ends = format!("{own}/{BACK_ENDS}");
    changes.extend(store.list(&back_ends)?.iter().map(|kind| Change::Clear(format!("{back_ends}/{kind}"))));
    let name = store.read(&format!("{own}/name"))?.unwrap_or_default();
    ensure!([remains_of(driver), name_of(driver)].contains(&name), "its name is {name}");
    let names = [Some(own.clone()), store.read(&format!("{own}/vm"))?];
    changes.extend(names.into_iter().flatten().map(|at| Change::Write(format!("{at}/name"), name_of(driver))));
    ensure!(store.change(&format!("{own}/name"), &changes)?, "it has gone");
    Ok(())
}

/// What makes of the nodes `now` those of `then`.
fn changes_to(own: &str, now: &BTreeMap<String, String>, then: &BTreeMap<String, String>) -> Vec<Change> {
    // What is in a directory goes with it.
    let is_first = |path: &str| path.rsplit_once('/').is_none_or(|(above, _)| then.contains_key(above));
    let gone = now.keys().filter(|path| !then.contains_key(*path) && is_first(path));
    let gone = gone.map(|path| Change::Clear(format!("{own}/{path}")));
    let other = then.iter().filter(|(path, value)| now.get(*path) != Some(value));
    gone.chain(other.map(|(path, value)| Change::Write(format!("{own}/{path}"), value.clone()))).collect()
}

/// Who reads it finds all of it.
fn write(file: &Path, noted: &Noted) -> Result<()> {
    let text = toml::to_string(noted).context("what is noted cannot be written down")?;
    let new = file.with_extension(NEW);
    let write = || {
        let mut out = std::fs::File::create(&new)?;
        out.write_all(text.as_bytes())?;
        std::fs::rename(&new, file)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests;
