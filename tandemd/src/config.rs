//! What the operator says: the files `*.toml` in `/etc/tandem`, each with some of the services.
//!
//! ```toml
//! [service.net]                # guests say vif = ['backend=net']
//! driver-domain = "dd"         # its interface is the way out
//! hold-ms = 30000              # packets for outside wait so long for the next way out
//! offload = true               # sums and segments of packets are left to the driver domain
//! [service.disk]               # guests say disk = ['backend=disk,...']
//! kind = "disk"
//! driver-domain = "dd"         # it has the media, and stock back ends for them; the same domain or another
//! weights = { u1 = 512 }       # of what the driver domain does, the guest of this name has twice what others have
//! [service.net.supervise]      # it is started, and started again when it fails
//! config = "/etc/xen/dd.cfg"   # or what it is: device = "network", kernel = "/boot/...", ...
//!
//! [metrics]                    # Prometheus may ask by TCP too
//! address = "127.0.0.1:9740"
//! ```

use crate::supervisor::{
    candidate_of, foresee, image_of, missing_of, named_by, remains_of, standby_of, wants_of, words_for_missing, Choice,
    Given, Held, Settings, UNDRAINED_DISK_MS,
};
use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use xen_abi::channel_op::HOLD_MAX_MS;

/// How long packets wait for a way out, if nothing else is said, in ms: most driver domains have come back by then.
const HOLD_MS: u32 = 30_000;

/// Where it is looked for, if nothing else is said: a directory, whose files count as one.
pub const PATH: &str = "/etc/tandem";
/// How the names of those files end.
const ENDING: &str = "toml";

/// All that can be said.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Services by name: a switch each, and a domain of this name as the back end of guests' interfaces.
    #[serde(default)]
    pub service: BTreeMap<String, Service>,
    /// Where this was read, or would have been.
    #[serde(skip)]
    pub path: PathBuf,
    /// Whether there was such a file.
    #[serde(skip)]
    pub is_written: bool,
    /// Where else than at its socket metrics can be asked for.
    #[serde(default)]
    pub metrics: Option<Metrics>,
}

/// Who may ask for metrics by TCP. There is no password: it should be an address that only trusted machines reach.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Metrics {
    /// Address and port.
    pub address: SocketAddr,
}

/// What a service has for guests.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Network interfaces.
    #[default]
    Net,
    /// Disks, of media that the driver domain has.
    Disk,
}

/// Weights by names of guests.
pub type Weights = BTreeMap<String, u16>;

/// A service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Service {
    /// What it is.
    #[serde(default)]
    pub kind: Kind,
    /// Name of the domain whose interface is the way out.
    pub driver_domain: Option<String>,
    /// When the way out has gone, packets for outside wait for the next one for so long at most, in ms; 0: they are
    /// lost at once. At most ten minutes.
    #[serde(default)]
    pub hold_ms: Option<u32>,
    /// Whether sums and segments of packets are left to the driver domain, as it offers. If not, the hypervisor makes
    /// both, and whoever gets a packet that the driver domain has changed finds that its sum is wrong.
    #[serde(default)]
    pub offload: Option<bool>,
    /// Shares of guests, by their names, where they have a device in common; of others [`xen_abi::channel_op::WEIGHT`].
    #[serde(default)]
    pub weights: Weights,
    /// How it is looked after. Without it, it is not: who ends it has to start it again.
    pub supervise: Option<Settings>,
}

impl Config {
    /// Reads a file, or all of a directory, of which there has to be one. What else they name is not looked at:
    /// [`Self::troubles`].
    pub fn read(path: &Path) -> Result<Self> {
        let files = files_of(path)?;
        ensure!(!files.is_empty(), "there is no file *.{ENDING} in {}", path.display());
        let mut all = Self { service: BTreeMap::new(), path: path.into(), is_written: true, metrics: None };
        let mut said_in: BTreeMap<String, &Path> = BTreeMap::new();
        for file in &files {
            let place = || file.display().to_string();
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", place()))?;
            let part: Self = toml::from_str(&text).with_context(place)?;
            let sections = part.service.keys().map(|name| format!("service.{name}"));
            for section in sections.chain(part.metrics.is_some().then(|| "metrics".into())) {
                if let Some(first) = said_in.insert(section.clone(), file) {
                    bail!("{}: `[{section}]` is in {} too: one of them has to go", place(), first.display());
                }
            }
            all.service.extend(part.service);
            all.metrics = all.metrics.or(part.metrics);
        }
        all.checked().with_context(|| path.display().to_string())
    }

    /// The same where the operator may have written none: then there is a service `net`, and no way out. Nobody who has
    /// named a file, or has had one, means that.
    pub fn read_or_usual(path: &Path) -> Result<Self> {
        // A link that leads nowhere is something that the operator has written.
        let is_none = match std::fs::symlink_metadata(path) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(_) => files_of(path)?.is_empty(),
        };
        if is_none {
            let service = BTreeMap::from([("net".into(), Service::default())]);
            return Ok(Self { service, path: path.into(), is_written: false, metrics: None });
        }
        Self::read(path)
    }

    /// What there is to say where none was written; nothing, if one was. `records`: where the daemon keeps what it
    /// knows of driver domains.
    pub fn says_usual(&self, records: &Path) -> Option<String> {
        if self.is_written {
            return None;
        }
        let place = self.path.display();
        let mut said = format!("there is no file *.{ENDING} in {place}: there is the service `net`, without a way out");
        let other = names_in(&self.path).into_iter().find(|name| !name.starts_with('.') && !name.ends_with('~'));
        if let Some(other) = other {
            said.push_str(&format!("; {other}, which is there, does not end with .{ENDING}"));
        }
        if self.is_lost(records) {
            let records = records.display();
            said.push_str(&format!(
                "; driver domains were looked after, as {records} shows: what waits for their places is left alone"
            ));
        }
        Some(said)
    }

    /// None was written, though driver domains were looked after, of which there are records: nobody knows what is
    /// wanted of them.
    pub fn is_lost(&self, records: &Path) -> bool {
        let ending = format!(".{ENDING}");
        !self.is_written && names_in(records).iter().any(|name| name.ends_with(&ending))
    }

    /// What a daemon that has this is to have next.
    pub fn read_again(&self) -> Result<Self> {
        if self.is_written {
            Self::read(&self.path)
        } else {
            Self::read_or_usual(&self.path)
        }
    }

    /// From a file's text.
    #[cfg(test)]
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str::<Self>(text)?.checked()
    }

    /// What does not fit together is an error.
    fn checked(self) -> Result<Self> {
        let mut config = self;
        for service in config.service.values_mut().filter(|service| service.kind == Kind::Disk) {
            let limit = service.supervise.as_mut().map(|settings| &mut settings.undrained_ms);
            limit.map(|limit| limit.get_or_insert(UNDRAINED_DISK_MS));
        }
        ensure!(!config.service.is_empty(), "there is no service; a section `[service.net]` makes one");
        for (name, service) in &config.service {
            ensure!(is_name(name), "`{name}` {NO_NAME}");
            if let Some(driver) = &service.driver_domain {
                ensure!(is_name(driver), "`{driver}` {NO_NAME}");
                ensure!(driver != name, "`{name}` cannot be its own driver domain");
                ensure!(
                    !config.service.contains_key(driver),
                    "`{driver}` is a service, whose domain never runs, and cannot be the driver domain of `{name}`"
                );
            }
            let beside =
                service.looked_after().map(|(driver, _)| [standby_of, candidate_of, remains_of].map(|of| of(driver)));
            for other in beside.into_iter().flatten() {
                let is_taken =
                    |(name, of): (&String, &Service)| *name == other || of.driver_domain.as_ref() == Some(&other);
                ensure!(
                    !config.service.iter().any(is_taken),
                    "`{other}` is the name of one that is to have, or had, the place of {name}'s driver domain"
                );
            }
            if let Some(ms) = service.hold_ms {
                ensure!(
                    service.kind == Kind::Net,
                    "[service.{name}]: `hold-ms` is for interfaces; requests to disks wait as long as it takes"
                );
                ensure!(
                    ms <= HOLD_MAX_MS,
                    "[service.{name}]: `hold-ms = {ms}`: packets wait for {HOLD_MAX_MS} ms at most"
                );
            }
            if service.offload.is_some() {
                ensure!(
                    service.kind == Kind::Net,
                    "[service.{name}]: `offload` is for interfaces; requests to disks have no sums"
                );
            }
            if let Some((guest, _)) = service.weights.iter().find(|(_, weight)| **weight == 0) {
                bail!("[service.{name}]: the weight of `{guest}` is 0: it is from 1 to {}", u16::MAX);
            }
            if let Some(settings) = &service.supervise {
                settings.check().with_context(|| format!("[service.{name}.supervise]"))?;
            }
            let is_whole = service.supervise.is_none() || service.driver_domain.is_some();
            let is_disks = service.kind == Kind::Disk;
            ensure!(
                !is_disks || service.driver_domain.is_some(),
                "[service.{name}]: there is no `driver-domain` that has the media"
            );
            let wants = |what: &dyn Fn(&Settings) -> bool| is_disks && service.supervise.as_ref().is_some_and(what);
            ensure!(
                !wants(&|settings| settings.twin),
                "[service.{name}.supervise]: `twin` is for driver domains of interfaces"
            );
            ensure!(
                !wants(&|settings| settings.silent_ms > 0),
                "[service.{name}.supervise]: `silent-ms` is for driver domains of interfaces"
            );
            ensure!(
                !wants(&|settings| settings.keep_link),
                "[service.{name}.supervise]: `keep-link` is for driver domains of interfaces"
            );
            let is_limited = service.supervise.as_ref().is_some_and(|settings| settings.overdue_ms.is_some());
            ensure!(
                is_disks || !is_limited,
                "[service.{name}.supervise]: `overdue-ms` is for driver domains of disks; packets are not answered"
            );
            let is_idle = service.supervise.as_ref().is_some_and(|settings| settings.compress && !settings.snapshot);
            ensure!(
                !is_idle,
                "[service.{name}.supervise]: `compress` without `snapshot = true`: there is nothing to be compressed"
            );
            ensure!(is_whole, "[service.{name}.supervise]: there is no `driver-domain` that could be looked after");
        }
        Ok(config)
    }

    /// Names of what is left of driver domains that have lost their places.
    pub fn remains(&self) -> BTreeSet<String> {
        self.service.values().filter_map(Service::looked_after).map(|(driver, _)| remains_of(driver)).collect()
    }

    /// Services whose way out is the interface of this driver domain: one of several cards may serve several.
    pub fn nets_of(&self, driver: &str) -> BTreeSet<String> {
        let is_one = |service: &Service| service.kind == Kind::Net && service.driver_domain.as_deref() == Some(driver);
        self.service.iter().filter(|(_, service)| is_one(service)).map(|(name, _)| name.clone()).collect()
    }

    /// Services whose driver domain is to be looked after and could not be started, and why: what its own configuration
    /// says is looked at now.
    pub fn troubles(&self) -> BTreeMap<String, String> {
        let (mut claims, mut drivers, mut troubles) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (name, service) in &self.service {
            let Some((driver, settings)) = service.looked_after() else { continue };
            drivers.push((driver.to_string(), name.clone()));
            match settings.claims(driver).with_context(|| format!("[service.{name}.supervise]")) {
                Ok(devices) => claims.extend(devices.into_iter().map(|device| (device.name, name.clone()))),
                Err(error) => {
                    troubles.insert(name.clone(), format!("{error:#}"));
                }
            }
        }
        // Each would destroy what the other one has made.
        troubles.extend(twice(&drivers, |driver, first, second| {
            format!(
                "`{driver}` is to be looked after twice: for `{first}` and for `{second}`; one `supervise` is enough"
            )
        }));
        troubles.extend(claimed_twice(&claims));
        troubles
    }

    /// Devices of driver domains that are to be looked after that are not in the machine, or not free. That is no
    /// error: one may come later.
    pub fn missing(&self, root: &Path, held: &Held, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        let choices = foresee(self, root, held);
        let of = |(name, service): (&String, &Service)| {
            let (driver, settings) = service.looked_after()?;
            let missing = match choices.get(name) {
                Some(choice) => missing_of(&wants_of(self, name), choice, &is_there),
                None => {
                    let claims = settings.claims(driver).ok()?;
                    claims.into_iter().map(|device| device.name).filter(|device| !is_there(device)).collect()
                }
            };
            let said = words_for_missing(&missing.join(", "), &named_by(name, settings.config.as_deref()));
            (!missing.is_empty()).then(|| format!("[service.{name}.supervise]: {said}"))
        };
        self.service.iter().filter_map(of).collect()
    }

    /// Which devices services would be given that ask for a kind, or for a vendor and a device: a line for each.
    pub fn resolved(&self, root: &Path, held: &Held) -> String {
        let choices = foresee(self, root, held);
        let of = |(name, choice): (&String, &Choice)| {
            let given = choice.given(&wants_of(self, name)).into_iter();
            let line = |given: Given| format!("{name}: `{}` is {}\n", given.want, given.device);
            given.filter(|given| given.want != given.device).map(line).collect::<String>()
        };
        choices.iter().map(of).collect()
    }

    /// Services whose driver domain could not be created, since a file is gone of which it is made: a driver domain
    /// that runs goes on, and is looked after, and one that is to be started waits for it.
    fn without_files(&self) -> BTreeMap<String, String> {
        let of = |(name, service): (&String, &Service)| {
            let (driver, settings) = service.looked_after()?;
            let has_files = settings.has_files(&image_of(name, driver));
            let why = has_files.with_context(|| format!("[service.{name}.supervise]")).err()?;
            Some((name.clone(), format!("{why:#}")))
        };
        self.service.iter().filter_map(of).collect()
    }

    /// What is no mistake, and most likely not meant: a driver domain whose configuration has no interface at a service
    /// of which it is to be the way out. It may get one later.
    pub fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, service) in &self.service {
            let Some((driver, settings)) = service.looked_after() else { continue };
            let (Some(config), Ok(back_ends)) = (&settings.config, settings.back_ends()) else { continue };
            let place = config.display();
            lines.extend(self.nets_of(driver).into_iter().filter(|net| !back_ends.contains(net)).map(|net| {
                format!(
                    "[service.{name}.supervise]: {place} has no interface at `{net}`, as `vif = ['backend={net}']`: it is not the way out, and fails after `ready-s`, unless it gets one (`xl network-attach`)"
                )
            }));
        }
        lines
    }

    /// Fails if there is one of those, and names all of them.
    pub fn without_troubles(self) -> Result<Self> {
        let troubles = self.troubles();
        let mut lines: Vec<String> = Vec::new();
        let files = self.without_files().into_iter().filter(|(name, _)| !troubles.contains_key(name));
        for why in troubles.values().cloned().chain(files.map(|(_, why)| why)) {
            if !lines.contains(&why) {
                lines.push(why);
            }
        }
        match lines.as_slice() {
            [] => Ok(self),
            lines => bail!("{}: {}", self.path.display(), lines.join("; ")),
        }
    }
}

impl Service {
    /// Whether sums and segments of packets are left to the driver domain.
    pub fn offload(&self) -> bool {
        self.offload.unwrap_or(true)
    }

    /// How long packets wait for a way out that has gone, in ms.
    pub fn hold_ms(&self) -> u32 {
        self.hold_ms.unwrap_or(HOLD_MS)
    }

    /// Name of the driver domain that is looked after, if it is, and how.
    pub fn looked_after(&self) -> Option<(&str, &Settings)> {
        Some((self.driver_domain.as_deref()?, self.supervise.as_ref()?))
    }
}

/// What is in a directory, if it is one.
fn names_in(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The file, or those of a directory, in the order of their names; without what editors leave there.
fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries = entries.with_context(|| format!("cannot list {}", path.display()))?;
    let is_one = |file: &PathBuf| {
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        file.extension().is_some_and(|ending| ending == ENDING) && !is_hidden
    };
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_one).collect();
    files.sort_unstable();
    Ok(files)
}

/// Services whose driver domains claim a device that another one claims too, and words for that: nobody can say whose
/// it is.
fn claimed_twice(claims: &[(String, String)]) -> BTreeMap<String, String> {
    twice(claims, |device, first, second| {
        format!("{device} is claimed twice: by the driver domains of `{first}` and of `{second}`")
    })
}

/// Services that name something that another one names, too, and words for that.
fn twice(all: &[(String, String)], words: impl Fn(&str, &str, &str) -> String) -> BTreeMap<String, String> {
    let (mut seen, mut troubles): (BTreeMap<&str, &str>, _) = (BTreeMap::new(), BTreeMap::new());
    for (named, service) in all {
        if let Some(first) = seen.insert(named, service) {
            let why = words(named, first, service);
            troubles.extend([first, service].map(|name| (name.to_string(), why.clone())));
        }
    }
    troubles
}

/// Said of what is none by [`is_name`].
const NO_NAME: &str =
    "cannot be a domain's name: letters, digits and -_.+ are, and not digits alone: xl takes those for a domid";

/// Whether a domain can be called so; it is written into a configuration of the toolstack's.
fn is_name(name: &str) -> bool {
    let is_number = name.bytes().all(|b| b.is_ascii_digit());
    !is_number && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b))
}

#[cfg(test)]
mod tests;
