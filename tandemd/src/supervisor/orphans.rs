//! What was made for driver domains that nobody looks after any more goes: the configuration may have lost a section,
//! or a service.

use super::ours::{self, Orphan};
use super::toolstack::{run_to_its_end, LONGEST};
use super::{passthrough, snapshot, RECORDS};
use crate::config::{Config, Service};
use crate::domain::RUN;
use crate::hypercall::{Hypervisor, Snapshots};
use crate::store::Client;
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// So often it is looked for such, and so long after each other: what an earlier daemon has asked the toolstack for may
/// come later.
const LOOKS: u32 = 5;
const EACH: Duration = Duration::from_secs(60);

/// Has them destroyed, beside all else.
pub fn begin(config: &Arc<Config>) -> Result<()> {
    let config = Arc::clone(config);
    let work = move || {
        for _ in 0..LOOKS {
            if let Err(error) = clear(&config) {
                eprintln!("tandemd: what waits for nobody's place stays: {error:#}");
            }
            std::thread::sleep(EACH);
        }
    };
    std::thread::Builder::new().name("orphans".into()).spawn(work).context("no thread").map(|_| ())
}

fn clear(config: &Config) -> Result<()> {
    if let Err(error) = forget_files(config, Path::new(RECORDS), Path::new(RUN)) {
        eprintln!("tandemd: what was noted for nobody stays: {error:#}");
    }
    let (mut store, mut hypervisor) = (Client::open()?, Hypervisor::open()?);
    let drivers: Vec<&str> =
        config.service.values().filter_map(Service::looked_after).map(|(driver, _)| driver).collect();
    let orphans = ours::orphans(|driver| drivers.contains(&driver), &mut store)?;
    each(&orphans, |orphan| end(orphan, &mut store, &mut hypervisor));
    Ok(())
}

/// Ends each of them. What is wrong with one is no reason to leave the others.
fn each(orphans: &[Orphan], mut end: impl FnMut(&Orphan) -> Result<()>) {
    for orphan in orphans {
        if let Err(error) = end(orphan) {
            eprintln!("tandemd: {}, domain {}, stays: {error:#}", orphan.name, orphan.domain);
        }
    }
}

fn end(orphan: &Orphan, store: &mut Client, hypervisor: &mut Hypervisor) -> Result<()> {
    let Orphan { domain, name, has_the_place } = orphan;
    if *has_the_place {
        return match hypervisor.forget(*domain) {
            Ok(()) => {
                eprintln!("tandemd: {name}: nobody looks after it any more, and it is not rolled back when it fails");
                Ok(())
            }
            Err(Errno::NOENT | Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("what was noted of it"),
        };
    }
    eprintln!("tandemd: domain {domain}, {name}, is of no use any more, as nobody looks after its driver domain: it is destroyed");
    passthrough::forget(*domain, store)?;
    let destroyed = run_to_its_end("tandemd", &["destroy", &domain.to_string()], LONGEST)?;
    destroyed.map_err(|why| anyhow::format_err!("xl destroy: {why}"))
}

/// Of services that are not looked after nobody is rolled back, so nothing need be known for that. What was counted
/// stays, and whether one is parked.
fn forget_files(config: &Config, records: &Path, notes: &Path) -> Result<()> {
    let there = match std::fs::read_dir(records) {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", records.display())),
    };
    for entry in there.flatten() {
        let name = entry.file_name();
        let Some(service) = name.to_str().and_then(|name| name.strip_suffix(".toml")) else { continue };
        if config.service.get(service).and_then(Service::looked_after).is_none() {
            // An earlier daemon has kept it where its records are.
            [records, notes].into_iter().try_for_each(|place| snapshot::keep_only(place, service, &[]))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_does_not_go_keeps_no_other_one() {
        let orphan = |domain| Orphan { domain, name: "dd-standby".into(), has_the_place: false };
        let mut tried = Vec::new();
        each(&[7, 8, 9].map(orphan), |orphan| {
            tried.push(orphan.domain);
            anyhow::ensure!(orphan.domain != 7, "it stays");
            Ok(())
        });
        assert_eq!(tried, [7, 8, 9]);
    }

    #[test]
    fn what_was_noted_for_a_service_that_is_not_looked_after_is_forgotten() {
        let place = std::env::temp_dir().join(format!("tandemd-orphans-{}", std::process::id()));
        let config = Config::parse(
            "[service.net]\n[service.lan]\ndriver-domain = \"dd\"\n[service.lan.supervise]\nconfig = \"/d\"\n",
        );
        let config = config.unwrap();
        let notes = place.join("run");
        assert!(forget_files(&config, &place, &notes).is_ok(), "there were never any");
        std::fs::create_dir_all(&notes).unwrap();
        let files = ["net.toml", "net.snapshot.7", "lan.toml", "lan.snapshot.8", "gone.toml", "gone.snapshot.9"];
        files.iter().for_each(|name| std::fs::write(place.join(name), "").unwrap());
        std::fs::write(notes.join("net.snapshot.7"), "").unwrap();
        std::fs::write(notes.join("lan.snapshot.8"), "").unwrap();
        forget_files(&config, &place, &notes).unwrap();
        assert!(!notes.join("net.snapshot.7").exists() && notes.join("lan.snapshot.8").exists());
        let left: Vec<&str> = files.into_iter().filter(|name| place.join(name).exists()).collect();
        assert_eq!(left, ["net.toml", "lan.toml", "lan.snapshot.8", "gone.toml"]);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
