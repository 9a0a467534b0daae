//! What a driver domain says of itself, which nobody has to believe.

use super::super::look::{Domain, Twind, Way};
use super::super::pulse::Pulse;
use super::super::settings::Settings;
use super::super::{files, last_words};
use super::Shell;
use crate::store::Store;
use anyhow::Result;
use std::path::Path;
use std::time::Duration;
use xen_abi::sched as reason;

/// So often it is looked how much memory it tells of.
const MEMORY: Duration = Duration::from_secs(1);

/// The log of a console, which is on domain 0's disk, is waited for no longer.
const LOG: Duration = Duration::from_millis(100);

/// Where a driver domain may say how much memory it has left, in KiB.
pub fn available_of(domain: u16) -> String {
    format!("/local/domain/{domain}/data/available-kib")
}

/// Its twind is asked so often, at most and at least, and so many times until it has been silent for too long.
const SELDOM: Duration = Duration::from_secs(10);
const OFTEN: Duration = Duration::from_secs(1);
const TIMES: u32 = 4;

impl Shell {
    /// Who asks its twind, if that is wanted.
    pub(super) fn pulse(service: &str, settings: &Settings) -> Result<Option<Pulse>> {
        let every = match settings.silent_twind_s() {
            0 if settings.most_aborts() == 0 => return Ok(None),
            0 => SELDOM,
            limit => (Duration::from_secs(limit) / TIMES).clamp(OFTEN, SELDOM),
        };
        Pulse::begin(service, every, Self::now).map(Some)
    }

    /// What is known of its twind. One that is no way, or is paused, is not asked.
    pub(super) fn hear_twind(&self, domain: Option<&Domain>, way: Option<&Way>) -> Option<Twind> {
        let pulse = self.pulse.as_ref()?;
        let asked = domain.zip(way).filter(|(domain, _)| !domain.is_paused && domain.end.is_none());
        pulse.follow(asked.map(|(domain, way)| (domain.id, self.vif.1, way.is_card)));
        pulse.twind(Self::now())
    }

    /// How much memory it says that it has left, as of a moment ago.
    pub(super) fn available_kib(&mut self, domain: u16) -> Result<Option<u64>> {
        if !self.asks_for_memory {
            return Ok(None);
        }
        let now = Self::now();
        match self.available {
            Some((of, said, at)) if of == domain && now < at + MEMORY => Ok(said),
            _ => {
                let said = self.store.read(&available_of(domain))?.and_then(|said| said.trim().parse().ok());
                self.available = Some((domain, said, now));
                Ok(said)
            }
        }
    }

    /// Notes of one that has panicked whether its kernel was out of memory. Its console is read once.
    pub(super) fn hear_last_words(&mut self, domain: Option<&mut Domain>) -> Result<()> {
        let Some(domain) = domain.filter(|d| d.end == Some((reason::SHUTDOWN_CRASH, false)) && !d.is_dying) else {
            self.died = None;
            return Ok(());
        };
        let known = self.died.filter(|(id, _)| *id == domain.id).map(|(_, known)| known);
        let is_out_of_memory = match known {
            Some(known) => known,
            None => self.ran_out_of_memory(domain.id)?,
        };
        self.died = Some((domain.id, is_out_of_memory));
        domain.is_out_of_memory = is_out_of_memory;
        Ok(())
    }

    /// Whether its console says so. One that cannot be read says nothing.
    fn ran_out_of_memory(&mut self, domain: u16) -> Result<bool> {
        let frame = self.store.read(&format!("/local/domain/{domain}/console/ring-ref"))?;
        let page = frame.and_then(|frame| frame.parse().ok()).map(|frame| self.hypervisor.map(domain, frame));
        let said = match page {
            Some(Ok(page)) => last_words::read(page.words()),
            _ => Vec::new(),
        };
        if last_words::is_out_of_memory(&said) || last_words::has_panic(&said) {
            return Ok(last_words::is_out_of_memory(&said));
        }
        let driver = self.driver.clone();
        let log = files::within(LOG, move || last_words::of_log(Path::new(last_words::LOGS), &driver));
        let log = log.unwrap_or_default();
        Ok(last_words::has_panic(&log) && last_words::is_out_of_memory(&log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_driver_domain_tells_its_memory_where_it_is_looked_for() {
        let place = std::env::temp_dir().join(format!("tandemd-memory-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let [meminfo, tool] = ["meminfo", "xenstore-write"].map(|name| place.join(name));
        std::fs::write(&meminfo, "MemTotal:  262144 kB\nMemFree: 5 kB\nMemAvailable:   40000 kB\nBuffers: 1 kB\n")
            .unwrap();
        std::fs::write(&tool, "#!/bin/sh\necho \"$@\"\n").unwrap();
        std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/xen/tell-memory.sh");
        let run = || {
            let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
            let shell =
                Command::new("sh").arg(&script).arg("--once").env("PATH", path).env("MEMINFO", &meminfo).output();
            let output = shell.unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let (is_done, said) = run();
        assert!(is_done);
        let (node, kib) = said.trim().split_once(' ').unwrap();
        assert_eq!((format!("/local/domain/5/{node}"), kib), (available_of(5), "40000"));
        std::fs::write(&meminfo, "MemTotal:  262144 kB\n").unwrap();
        assert_eq!(run(), (false, String::new()), "a kernel that does not say so");
        std::fs::remove_dir_all(place).unwrap();
    }
}
