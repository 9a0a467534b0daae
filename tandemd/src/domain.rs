//! The domain that a service's interfaces are granted to: permanent, never run, of 4 MiB (what the toolstack maps for a
//! kernel at least).
//!
//! Guests' front ends keep its domid for life, so it outlives this process. It is made by the toolstack itself, so
//! `xl list`, `xl destroy` and everything else know it as they know any domain; it is told from others of its name by
//! its UUID.

use crate::departure::{self, Answer, UnderWay};
use crate::hypercall::{GRANT_FRAMES, SERVICE_MIB};
use crate::kernel;
use crate::service::name_of;
use crate::store::Store;
use crate::supervisor::run_to_its_end;
use anyhow::{ensure, Context, Result};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So often is looked whether they are there that are waited for.
const OFTEN: Duration = Duration::from_millis(100);

/// Files of the daemon's while it runs.
pub const RUN: &str = "/run/tandem";

/// One that makes or destroys a domain is ended after so long: that takes a second, and others wait for it.
const LONGEST: Duration = Duration::from_secs(60);

/// The domid of a service's domain, which is made if there is none. That takes as long as xl is given. `is_there`: what
/// the hypervisor says of a domain.
/// Errors: another domain has the name; the toolstack refuses, or does not end.
pub fn find_or_make(store: &mut impl Store, mut is_there: impl FnMut(u16) -> bool, service: &str) -> Result<u16> {
    let found = find(store, &mut is_there, service)?;
    if let Some(found) = found.as_ref().filter(|found| found.is_built) {
        return Ok(found.id);
    }
    // Whoever ends them waits until none of its name is there.
    match departure::is_under_way() {
        Answer::No => {}
        Answer::Yes => return Err(UnderWay.into()),
        Answer::Unknown => return Err(UnderWay).context("systemd has not said yet, so perhaps"),
    }
    if let Some(half_built) = found {
        // xl was ended when it made it, or is at work for an earlier daemon, and nobody knows whether it ends.
        destroy(service, half_built.id)?;
    }
    make(service)?;
    let made = find(store, &mut is_there, service)?.filter(|made| made.is_built);
    let made = made.with_context(|| format!("the toolstack has made the domain {service}, and it is not there"))?;
    Ok(made.id)
}

/// Waits until these services have their domains: for who starts guests. Errors: which have not, so long after.
pub fn wait_for<'a>(
    services: impl Iterator<Item = &'a str> + Clone,
    limit: Duration,
    store: &mut impl Store,
    mut is_there: impl FnMut(u16) -> bool,
) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let mut missing = Vec::new();
        for service in services.clone() {
            if !find(store, &mut is_there, service)?.is_some_and(|found| found.is_built) {
                missing.push(service);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "not there after {} s: the domain of {}", limit.as_secs(), missing.join(", "));
        std::thread::sleep(OFTEN);
    }
}

/// A service's domain.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    id: u16,
    /// The toolstack has told xenstore of it, which it does when all is as it should be.
    is_built: bool,
}

/// The toolstack is not asked: whatever it is at, who has a domain is served.
fn find(store: &mut impl Store, mut is_there: impl FnMut(u16) -> bool, service: &str) -> Result<Option<Found>> {
    for domain in store.list("/local/domain")?.iter().filter_map(|domain| domain.parse().ok()) {
        // Who is killed while it destroys one leaves its directory.
        if store.read(&name_of(domain))?.as_deref() != Some(service) || !is_there(domain) {
            continue;
        }
        let is_ours = store.read(&format!("/local/domain/{domain}/vm"))? == Some(format!("/vm/{}", uuid(service)));
        ensure!(is_ours, "there is a domain {service} (domid {domain}) already, and it is not this service's");
        return Ok(Some(Found { id: domain, is_built: store.is_introduced(domain)? }));
    }
    Ok(None)
}

fn make(service: &str) -> Result<()> {
    // One after the other: all have the same image. xl has a lock, too, and who would wait for that with a limit of his
    // own might be ended when the one before is, each time.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let place = |name: String| Path::new(RUN).join(name);
    let (image, configuration) = (place("backend.elf".into()), place(format!("{service}.cfg")));
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&image, &kernel::image())?;
    let text = format!(
        "# Made by tandemd. The guests of the service {service} grant to this domain; it never runs.\n\
         type=\"pv\"\nname=\"{service}\"\nuuid=\"{}\"\nkernel=\"{}\"\nmemory={SERVICE_MIB}\nvcpus=1\n\
         max_grant_frames={GRANT_FRAMES}\n\
         on_poweroff=\"destroy\"\non_reboot=\"destroy\"\non_crash=\"destroy\"\n",
        uuid(service),
        image.display()
    );
    write(&configuration, text.as_bytes())?;
    xl(service, &["create", "-q", "-p", "-e", &configuration.to_string_lossy()])
}

/// Lets the toolstack end a service's domain. That takes as long as xl is given.
pub fn destroy(service: &str, domain: u16) -> Result<()> {
    xl(service, &["destroy", &domain.to_string()])
}

/// Waits for the toolstack, which is ended if it takes too long.
fn xl(service: &str, arguments: &[&str]) -> Result<()> {
    run_to_its_end(service, arguments, LONGEST)?.map_err(|why| anyhow::format_err!("xl {}: {why}", arguments[0]))
}

/// With what the UUIDs of services' domains begin, and no others: people recognise it.
pub const OF_SERVICES: &str = "74616e64-656d-8000-";

/// The UUID of a service's domain: the same each time, so that it is found again.
pub fn uuid(service: &str) -> String {
    let hash = hash(service);
    // Of the kind whose bits mean nothing.
    format!("{OF_SERVICES}{:04x}-{:012x}", 0x8000 | (hash >> 48 & 0x3fff), hash & 0xffff_ffff_ffff)
}

/// FNV-1a of a name.
pub fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Change, Event};

    /// Domains by name and UUID; xenstore was not told of number 3.
    struct Nodes(Vec<(&'static str, String)>);

    impl Store for Nodes {
        fn read(&mut self, path: &str) -> Result<Option<String>> {
            let Some((domain, key)) = path.strip_prefix("/local/domain/").and_then(|rest| rest.split_once('/')) else {
                return Ok(None);
            };
            let (name, uuid) = &self.0[domain.parse::<usize>()?];
            Ok(Some(if key == "name" { (*name).into() } else { format!("/vm/{uuid}") }))
        }

        fn list(&mut self, _: &str) -> Result<Vec<String>> {
            Ok((0..self.0.len()).map(|domain| domain.to_string()).collect())
        }

        fn change(&mut self, _: &str, _: &[Change]) -> Result<bool> {
            panic!("nothing is changed here")
        }

        fn is_introduced(&mut self, domain: u16) -> Result<bool> {
            Ok(domain != 3)
        }

        fn watch(&mut self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }

        fn unwatch(&mut self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }

        fn next_event(&mut self, _: Option<Duration>) -> Result<Option<Event>> {
            Ok(None)
        }
    }

    #[test]
    fn who_is_there_is_found_without_the_toolstack() {
        let own = uuid("net");
        let mut store = Nodes(vec![("net", own.clone()), ("lan", own.clone()), ("net", own.clone()), ("net", own)]);
        let mut found = |service: &str, first: u16| find(&mut store, |domain| domain >= first, service);
        let built = |id, is_built| Some(Found { id, is_built });
        assert_eq!(found("net", 1).unwrap(), built(2, true), "of the first only its directory is left");
        assert_eq!(found("net", 3).unwrap(), built(3, false));
        assert_eq!((found("net", 4).unwrap(), found("disk", 0).unwrap()), (None, None));
        assert!(found("lan", 0).unwrap_err().to_string().contains("not this service's"));
    }

    #[test]
    fn who_starts_guests_waits_for_all_of_them() {
        let mut store = Nodes(vec![("net", uuid("net")), ("disk", uuid("disk")), ("lan", uuid("lan"))]);
        let mut looks = 0;
        // The second one is there from the fourth look on.
        let mut wait = |services: &[&str], limit: u64| {
            let is_there = |domain| {
                looks += u32::from(domain == 0);
                domain != 1 || looks >= 4
            };
            wait_for(services.iter().copied(), Duration::from_millis(limit), &mut store, is_there)
        };
        assert!(wait(&["net", "lan"], 0).is_ok());
        assert!(wait(&["net", "disk", "lab"], 0).unwrap_err().to_string().ends_with("the domain of disk, lab"));
        assert!(wait(&["net", "disk"], 60_000).is_ok());
        assert_eq!(looks, 4);
    }

    #[test]
    fn services_have_uuids_of_their_own() {
        assert_eq!(uuid("net"), uuid("net"));
        assert_ne!(uuid("net"), uuid("lab"));
        assert_eq!(uuid("net").len(), 36);
    }
}
