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
    candidate_of, foresee, missing_of, named_by, remains_of, standby_of, wants_of, words_for_missing, Choice, Given,
    Settings, UNDRAINED_DISK_MS,
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
    /// When the way out has gone, packets for outside wait for the next one for so long at most, in ms; 0: they are lost at once. At most
    /// ten minutes.
    #[serde(default)]
    pub hold_ms: Option<u32>,
    /// Whether sums and segments of packets are left to the driver domain, as it offers. If not, the hypervisor makes both, and whoever gets a packet
    /// that the driver domain has changed finds that its sum is wrong.
    #[serde(default)]
    pub offload: Option<bool>,
    /// Shares of guests, by their names, where they have a device in common; of others [`xen_abi::channel_op::WEIGHT`].
    #[serde(default)]
    pub weights: Weights,
    /// How it is looked after. Without it, it is not: who ends it has to start it again.
    pub supervise: Option<Settings>,
}

impl Config {
    /// Reads a file, or all of a directory, of which there has to be one. What else they name is not looked at: [`Self::troubles`].
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

    /// The same where the operator may have written none: then there is a service `net`, and no way out. Nobody who has named a file, or
    /// has had one, means that.
    pub fn read_or_usual(path: &Path) -> Result<Self> {
        let is_none = match std::fs::metadata(path) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(_) => files_of(path)?.is_empty(),
        };
        if is_none {
            let service = BTreeMap::from([("net".into(), Service::default())]);
            return Ok(Self { service, path: path.into(), is_written: false, metrics: None });
        }
        Self::read(path)
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
            ensure!(is_name(name), "`{name}` cannot be a domain's name: letters, digits and -_.+ are");
            if let Some(driver) = &service.driver_domain {
                ensure!(is_name(driver), "`{driver}` cannot be a domain's name: letters, digits and -_.+ are");
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

    /// Services whose driver domain is to be looked after and could not be started, and why: what its own configuration says is
    /// looked at now.
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

    /// Devices of driver domains that are to be looked after that are not in the machine, or not free. That is no error: one may come later.
    pub fn missing(&self, root: &Path, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        let choices = foresee(self, root);
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
    pub fn resolved(&self, root: &Path) -> String {
        let choices = foresee(self, root);
        let of = |(name, choice): (&String, &Choice)| {
            let given = choice.given(&wants_of(self, name)).into_iter();
            let line = |given: Given| format!("{name}: `{}` is {}\n", given.want, given.device);
            given.filter(|given| given.want != given.device).map(line).collect::<String>()
        };
        choices.iter().map(of).collect()
    }

    /// Fails if there is one of those.
    pub fn without_troubles(self) -> Result<Self> {
        match self.troubles().into_values().next() {
            Some(why) => bail!("{}: {why}", self.path.display()),
            None => Ok(self),
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

/// Services whose driver domains claim a device that another one claims too, and words for that: nobody can say whose it is.
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

/// Whether a domain can be called so; it is written into a configuration of the toolstack's.
fn is_name(name: &str) -> bool {
    let is_number = name.bytes().all(|b| b.is_ascii_digit());
    !is_number && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn services_have_driver_domains_or_not() {
        let config = Config::parse("[service.net]\ndriver-domain = \"dd\"\n[service.lab]\n").unwrap();
        assert_eq!(config.service["net"].driver_domain.as_deref(), Some("dd"));
        assert_eq!((&config.service["lab"].driver_domain, &config.metrics), (&None, &None));
        let config = Config::parse("[service.net.weights]\nu1 = 1\nu-2 = 768\n").unwrap();
        assert_eq!(config.service["net"].weights, Weights::from([("u1".into(), 1), ("u-2".into(), 768)]));
        let config = Config::parse("[service.net]\n[metrics]\naddress = \"127.0.0.1:9740\"\n").unwrap();
        assert_eq!(config.metrics.map(|metrics| metrics.address.port()), Some(9740));
    }

    #[test]
    fn where_no_file_was_written_there_is_net() {
        let nowhere = Path::new("/nowhere/tandemd.toml");
        let config = Config::read_or_usual(nowhere).unwrap();
        assert_eq!(config.service.keys().collect::<Vec<_>>(), ["net"]);
        assert_eq!(config.service["net"].hold_ms(), 30_000);
        assert_eq!(config.read_again().unwrap(), config);
        let said = format!("{:#}", Config::read(nowhere).unwrap_err());
        assert!(said.contains("/nowhere/tandemd.toml") && said.contains("No such file"), "{said}");
    }

    /// The example with all that it has as comments: lines that begin with `#` and no blank.
    fn example() -> String {
        let of = |line: &str| match line.strip_prefix('#') {
            Some(said) if said.starts_with(|c: char| c == '[' || c.is_ascii_alphanumeric()) => format!("{said}\n"),
            _ => format!("{line}\n"),
        };
        include_str!("../tandemd.toml").lines().map(of).collect()
    }

    /// The keys of a table that is read as `T`, as the error about another one lists them.
    fn keys_of<T: serde::de::DeserializeOwned + std::fmt::Debug>() -> BTreeSet<String> {
        let said = toml::from_str::<T>("no-such-key = 0").unwrap_err().to_string();
        let list = said.split("expected").nth(1).unwrap();
        list.split('`').skip(1).step_by(2).map(String::from).collect()
    }

    #[test]
    fn the_example_has_every_key() {
        let example: toml::Table = toml::from_str(&example()).unwrap();
        let table = |path: &[&str]| path.iter().fold(&example, |table, name| table[*name].as_table().unwrap()).clone();
        let keys = |path: &[&str]| table(path).keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(&[]), keys_of::<Config>());
        assert_eq!(keys(&["metrics"]), keys_of::<Metrics>());
        assert_eq!(&keys(&["service", "net"]) | &keys(&["service", "disk"]), keys_of::<Service>());
        let supervise = |of: &str| keys(&["service", of, "supervise"]);
        assert_eq!(&supervise("net") | &supervise("disk"), keys_of::<Settings>());
    }

    #[test]
    fn what_the_example_says_in_comments_is_usual() {
        let config = Config::parse(&example()).unwrap();
        let net = &config.service["net"];
        let usual = Config::parse("[service.net]\n").unwrap();
        assert_eq!((net.hold_ms(), net.offload()), (usual.service["net"].hold_ms(), usual.service["net"].offload()));
        let said = net.supervise.as_ref().unwrap();
        let usual: Settings = toml::from_str("config = \"/etc/xen/dd.cfg\"").unwrap();
        assert_eq!(said.undrained_ms(), usual.undrained_ms());
        assert_eq!(said.assigns(), usual.assigns());
        assert_eq!(Settings { undrained_ms: None, assign: None, ..said.clone() }, usual);
        let said = config.service["disk"].supervise.as_ref().unwrap();
        assert_eq!(said.overdue_ms(), usual.overdue_ms());
        let usual: Settings = toml::from_str("device = \"nvme\"\nkernel = \"/boot/vmlinuz\"").unwrap();
        assert!(said.is_as(&usual));
    }

    #[test]
    fn a_file_that_is_gone_is_not_taken_for_none() {
        let path = std::env::temp_dir().join(format!("tandemd-gone-{}.toml", std::process::id()));
        assert!(!Config::read_or_usual(&path).unwrap().is_written);
        std::fs::write(&path, "[service.lab]\n").unwrap();
        let config = Config::read_or_usual(&path).unwrap();
        assert_eq!(config.read_again().unwrap(), config);
        std::fs::remove_file(&path).unwrap();
        assert!(config.read_again().is_err());
    }

    /// A directory of its own for a test, which goes with it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(of: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tandemd-{of}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.join(name), text).unwrap();
        }
    }

    impl std::ops::Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_of_a_directory_count_as_one() {
        let directory = Directory::new("parts");
        assert!(!Config::read_or_usual(&directory.0).unwrap().is_written);
        let said = format!("{:#}", Config::read(&directory.0).unwrap_err());
        assert!(said.contains("there is no file *.toml in"), "{said}");
        directory.write("net.toml", "[service.net]\ndriver-domain = \"dd\"\n");
        directory.write("disks.toml", "[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd-disk\"\n");
        directory.write("metrics.toml", "[metrics]\naddress = \"127.0.0.1:9740\"\n");
        for none in [".net.toml.swp", ".hidden.toml", "net.toml~", "README"] {
            directory.write(none, "what is no configuration");
        }
        let config = Config::read_or_usual(&directory.0).unwrap();
        assert_eq!(config.service.keys().collect::<Vec<_>>(), ["disk", "net"]);
        assert!(config.is_written && config.metrics.is_some());
        assert_eq!(config.read_again().unwrap(), config);
    }

    #[test]
    fn files_that_contradict_each_other_are_refused() {
        let directory = Directory::new("contradictions");
        let said = || format!("{:#}", Config::read(&directory.0).unwrap_err());
        directory.write("a.toml", "[service.net]\n");
        directory.write("b.toml", "[service.net]\ndriver-domain = \"dd\"\n");
        let twice = said();
        assert!(twice.contains("b.toml: `[service.net]` is in ") && twice.contains("a.toml too"), "{twice}");
        directory.write("b.toml", "[service.lab]\ndriver-domain = \"net\"\n");
        assert!(said().contains("`net` is a service"), "{}", said());
        directory.write("b.toml", "[service.lab]\ndriver_domain = \"dd\"\n");
        assert!(said().contains("b.toml") && said().contains("driver_domain"), "{}", said());
        // The last of them takes its services with it, but none are not what the operator means.
        let _ = ["a.toml", "b.toml"].map(|name| std::fs::remove_file(directory.0.join(name)).unwrap());
        assert!(said().contains("there is no file"), "{}", said());
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let said = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        let unknown = said("[service.net]\ndriver_domain = \"dd\"\n");
        assert!(unknown.contains("driver_domain") && unknown.contains("driver-domain"), "{unknown}");
        assert!(said("[services.net]\n").contains("`service`"));
        assert!(said("[service.net]\nhold-ms = 600001\n").contains("600000 ms at most"));
        assert!(
            said("[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\nhold-ms = 1\n").contains("for interfaces")
        );
        assert!(said("[service.net]\nweights = { u1 = 0 }\n").contains("from 1 to 65535"));
        let own_sums = "[service.net]\noffload = false\ndriver-domain = \"dd\"\n";
        assert!(!Config::parse(own_sums).unwrap().service["net"].offload());
        assert!(
            said("[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\noffload = true\n").contains("have no sums")
        );
        assert!(said("[service.net.weights]\nu1 = 65536\n").contains("u1 = 65536"));
        assert!(said("[service]\n").contains("[service.net]"));
        for empty in ["", "[metrics]\naddress = \"127.0.0.1:9740\"\n"] {
            assert!(said(empty).contains("there is no service"));
        }
        assert!(said("[service.net]\ndriver-domain = 5\n").contains("string"));
        assert!(said("[service.\"a b\"]\n").contains("a b"));
        assert!(said("[service.7]\n").contains('7'));
        assert!(said("[service.net]\n[metrics]\naddress = \"here\"\n").contains("address"));
        assert!(said("[service.net]\n[metrics]\nport = 1\n").contains("port"));
        assert!(said("[service.net]\ndriver-domain = \"net\"\n").contains("its own"));
        for services in ["[service.net]\n[service.lan]\n", "[service.net]\ndriver-domain = \"dd\"\n[service.lan]\n"] {
            assert!(said(&format!("{services}driver-domain = \"net\"\n")).contains("`net` is a service"));
        }
        assert!(said("[service.net.supervise]\nconfig = \"/dd.cfg\"\n").contains("no `driver-domain`"));
        let disk =
            "[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\n[service.disk.supervise]\nconfig = \"/d\"\n";
        let usual = Config::parse(disk).unwrap();
        assert_eq!(usual.service["disk"].supervise.as_ref().unwrap().undrained_ms(), UNDRAINED_DISK_MS);
        for of_interfaces in ["twin = true\n", "silent-ms = 5000\n", "keep-link = true\n"] {
            assert!(said(&format!("{disk}{of_interfaces}")).contains("driver domains of interfaces"));
        }
        for way_back in ["standby = 1\n", "snapshot = true\n", "standby = 1\nsnapshot = true\n"] {
            assert!(Config::parse(&format!("{disk}{way_back}")).is_ok());
        }
        assert!(said(&format!("{disk}compress = true\n")).contains("`compress` without `snapshot = true`"));
        let noted = Config::parse(&format!("{disk}snapshot = true\ncompress = true\n")).unwrap();
        assert!(noted.service["disk"].supervise.as_ref().unwrap().compress);
        let limits = |of: &Config| {
            let settings = of.service["disk"].supervise.as_ref().unwrap();
            (settings.undrained_ms(), settings.overdue_ms())
        };
        assert_eq!(limits(&usual), (60_000, 300_000));
        assert_eq!(limits(&Config::parse(&format!("{disk}undrained-ms = 0\n")).unwrap()), (0, 300_000));
        assert_eq!(limits(&Config::parse(&format!("{disk}overdue-ms = 0\n")).unwrap()), (60_000, 0));
        let net = "[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\n";
        assert!(said(&format!("{net}overdue-ms = 5000\n")).contains("driver domains of disks"));
        let taken =
            "[service.dd-standby]\n[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\n";
        // Whatever the settings are: they may be others tomorrow.
        for name in ["dd-standby", "dd-upgrade", "dd-remains"] {
            for settings in ["", "standby = 1\n", "snapshot = true\n"] {
                let taken = format!("{}{settings}", taken.replace("dd-standby", name));
                assert!(said(&taken).contains(&format!("`{name}`")), "{taken}");
            }
        }
        let another = taken.replace("[service.dd-standby]", "[service.lab]\ndriver-domain = \"dd-standby\"");
        assert!(said(&another).contains("`dd-standby`"));
        assert!(Config::parse(&taken.replace("[service.net.supervise]\nconfig = \"/d\"\n", "")).is_ok());
        let both = taken.replace("[service.dd-standby]\n", "") + "standby = 1\nsnapshot = true\n";
        assert!(Config::parse(&both).is_ok());
        assert!(Config::parse(&format!("{both}twin = true\n")).is_ok());
        let unknown =
            said("[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\ncrash = 1\n");
        assert!(unknown.contains("`crash`") && unknown.contains("`crashes`"), "{unknown}");
    }

    #[test]
    fn a_driver_domain_that_could_not_be_started_is_an_error() {
        let text = "[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/nowhere/dd.cfg\"\n";
        let said = format!("{:#}", Config::parse(text).unwrap().without_troubles().unwrap_err());
        assert!(said.contains("[service.net.supervise]") && said.contains("/nowhere/dd.cfg"), "{said}");
        // The daemon's directory is not that of who looks whether the configuration is right.
        let relative = text.replace("/nowhere/dd.cfg", "Cargo.toml");
        let said = format!("{:#}", Config::parse(&relative).unwrap().without_troubles().unwrap_err());
        assert!(said.contains("`Cargo.toml` is no whole path"), "{said}");
    }

    #[test]
    fn what_one_service_lacks_is_no_trouble_of_the_others() {
        let text = "[service.lab]\n[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/nowhere/dd.cfg\"\n";
        let path = std::env::temp_dir().join(format!("tandemd-config-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        // The daemon starts with it.
        let config = Config::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(config.troubles().into_keys().collect::<Vec<_>>(), ["net"]);
    }

    #[test]
    fn one_driver_domain_is_looked_after_for_one_service() {
        let dir = std::env::temp_dir().join(format!("tandemd-twice-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // Each is right by itself, and they have no device in common.
        for (file, device) in [("one.cfg", "03"), ("two.cfg", "04")] {
            std::fs::write(dir.join(file), format!("name = \"dd\"\npci = [\"00:{device}.0\"]\n")).unwrap();
        }
        let service = |name: &str, driver: &str, file: &str| {
            let config = dir.join(file);
            format!(
                "[service.{name}]\ndriver-domain = \"{driver}\"\n[service.{name}.supervise]\nconfig = \"{}\"\n",
                config.display()
            )
        };
        let troubles = |text: String| Config::parse(&text).unwrap().troubles();
        let both = troubles(service("lab", "dd", "one.cfg") + &service("net", "dd", "two.cfg"));
        assert_eq!(both.keys().collect::<Vec<_>>(), ["lab", "net"], "{both:?}");
        assert!(both["lab"].contains("`dd` is to be looked after twice") && both["lab"] == both["net"], "{both:?}");
        // The other one of them only has its way out by it.
        let one = troubles(service("lab", "dd", "one.cfg") + "[service.net]\ndriver-domain = \"dd\"\n");
        assert!(one.is_empty(), "{one:?}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn several_services_may_have_their_ways_out_by_one_driver_domain() {
        let service = |name: &str, driver: &str| format!("[service.{name}]\ndriver-domain = \"{driver}\"\n");
        let disk = service("disk", "dd") + "kind = \"disk\"\n";
        let config = Config::parse(&(service("far", "dd") + &service("net", "dd") + &service("lab", "x") + &disk));
        let nets = config.unwrap().nets_of("dd");
        assert_eq!(nets.iter().map(String::as_str).collect::<Vec<_>>(), ["far", "net"]);
    }

    #[test]
    fn a_device_belongs_to_one_driver_domain() {
        let claim = |device: &str, service: &str| (device.to_string(), service.to_string());
        let (one, two) = ("0000:00:03.0", "0000:00:04.0");
        assert!(claimed_twice(&[claim(one, "lab"), claim(two, "net")]).is_empty());
        let troubles = claimed_twice(&[claim(one, "lab"), claim(two, "net"), claim(two, "far"), claim(one, "lab2")]);
        assert_eq!(troubles.keys().collect::<Vec<_>>(), ["far", "lab", "lab2", "net"]);
        let said = &troubles["lab"];
        assert!(said.contains(one) && said.contains("`lab`") && said.contains("`lab2`"), "{said}");
    }
}
