//! tandemd, in the control domain: plays the back end's part in xenstore for the hypervisor's own switches.
//!
//! A guest's interface or disk with `backend=NAME`, the name of a service, has its rings held by the hypervisor. What a
//! back end's kernel does beside moving packets and blocks is done here: it says what is offered, reads what the front
//! end has chosen, and tells the hypervisor. All of its state is in xenstore and in the hypervisor, so it may be killed
//! and started again at any moment.

/// A line of the log. Rust's own ends the program when it cannot be written.
#[cfg(not(test))]
macro_rules! eprintln {
    ($($line:tt)*) => { ::control::log::error(format_args!($($line)*)) };
}

mod config;
mod control;
mod departure;
mod device;
mod disk;
mod disks_up;
mod domain;
mod domains;
#[cfg(test)]
mod fake_store;
mod former;
mod hypercall;
mod kernel;
mod list;
mod look;
mod metrics;
mod often;
mod pulses;
mod service;
mod supervisor;

use ::control::store::{self, Client, Kept, Store};
use ::control::{log, watchdog};
use anyhow::{bail, Context, Result};
use config::{Config, Kind};
use disk::DiskService;
use domains::Domains;
use former::Former;
use hypercall::{news, Hypervisor};
use lexopt::Arg;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use service::{Fate, Service};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HELP: &str = "\
usage: tandemd [--config PATH] [--check | --list | --wait | --version]
Serves guests' network interfaces and disks that have one of its services as their back end (vif = ['backend=net']), and looks after
driver domains. Without --check, --list and --wait it is the daemon. Its log is its standard error; twinctl asks it, and orders it about.
  --config PATH   a file, or a directory with files *.toml, instead of /etc/tandem
  --check         reads the configuration, says what is wrong with it, and ends. If all is right it says which device a driver domain would get that asks for
                  a kind of device, and nothing else. That its device is not in the machine is a warning,
                  and so is that it has no interface at its service
  --list          says which interfaces and disks are plugged in and what went through them, and ends
  --wait          waits, half a minute at most, until all services' domains are there, and then 45 s at most until driver domains of disks are up that are
                  looked after, for whoever starts guests then, and ends";

/// So long whoever starts guests next waits until all services are served, but for one that cannot be.
const UNTIL_SERVED: Duration = Duration::from_secs(30);
/// And so long until the driver domains of disks are up.
const UNTIL_UP: Duration = Duration::from_secs(45);
/// So often is looked meanwhile who is there. Those that are there are served.
const A_MOMENT: Duration = Duration::from_millis(5);
/// It goes round so often at least, though nothing happens.
const ROUND: Duration = Duration::from_secs(20);
/// Held by the daemon that runs.
const LOCK: &str = "/run/tandem/tandemd.lock";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandemd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut named = None;
    let (mut is_check, mut is_list, mut is_wait) = (false, false, false);
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("config") => named = Some(PathBuf::from(parser.value()?)),
            Arg::Long("check") => is_check = true,
            Arg::Long("list") => is_list = true,
            Arg::Long("wait") => is_wait = true,
            Arg::Long("help") | Arg::Short('h') => {
                log::show(&format!("{HELP}\n"))?;
                return Ok(());
            }
            Arg::Long("version") => {
                log::show(&format!("{}\n", ::control::version("tandemd")))?;
                return Ok(());
            }
            other => bail!("{}\n{HELP}", other.unexpected()),
        }
    }
    let config = match &named {
        Some(path) => Config::read(path)?,
        None if is_check => Config::read(Path::new(config::PATH))?,
        None => Config::read_or_usual(Path::new(config::PATH))?,
    };
    if is_check {
        let config = config.without_troubles()?;
        let root = Path::new("/");
        // Without xenstore nobody has any.
        let held = Client::open().and_then(|mut store| supervisor::held(&mut store)).unwrap_or_default();
        log::show(&config.resolved(root, &held))?;
        let missing = config.missing(root, &held, supervisor::is_in_machine);
        missing.iter().chain(&config.warnings()).for_each(|line| eprintln!("tandemd: warning: {line}"));
        return Ok(());
    }
    if is_wait {
        let services = config.service.keys().map(String::as_str);
        domain::wait_for(services, UNTIL_SERVED, &mut Client::open()?, Hypervisor::census()?)?;
        let has_disks = config.service.values().any(|service| service.kind == Kind::Disk);
        return if has_disks { disks_up::wait(UNTIL_UP) } else { Ok(()) };
    }
    let config = Arc::new(config);
    let mut hypervisor = Hypervisor::open()?;
    if is_list {
        let plugged_in = list::show(&mut Client::open()?, &mut hypervisor)?;
        log::show(&(plugged_in + &remembered(&config, supervisor::describe)))?;
        return Ok(());
    }
    let _lock = alone()?;
    // Whoever was here before may have been watched.
    watchdog::begin(pulses::all_go_round, log::error);
    let records = Path::new(supervisor::RECORDS);
    config.says_usual(records).iter().for_each(|line| eprintln!("tandemd: {line}"));
    config.warnings().iter().for_each(|line| eprintln!("tandemd: warning: {line}"));
    supervisor::await_earlier_children();
    news::begin()?;
    // Who orders something as soon as the socket is there is heard.
    supervisor::open_desks(&config);
    control::begin(&config)?;
    metrics::begin(&config)?;
    if !config.is_lost(records) {
        supervisor::clear_orphans(&config)?;
    }
    let make = |name: &str| domain::find_or_make(&mut Client::open()?, Hypervisor::census()?, name);
    let mut domains = Domains::new(make, domain::destroy);
    loop {
        serve(&config, &mut hypervisor, &mut domains)?;
    }
}

/// What is remembered of each driver domain that is looked after. A record that cannot be read hides no other one.
fn remembered(config: &Config, describe: impl Fn(&str, &str) -> Result<String>) -> String {
    let of = |(name, service): (&String, &config::Service)| {
        let (driver, _) = service.looked_after()?;
        Some(describe(name, driver).unwrap_or_else(|error| format!("{name}: {driver}: {error:#}\n")))
    };
    config.service.iter().filter_map(of).collect()
}

/// Two daemons would take each other's interfaces for old ones. The lock goes with the process.
fn alone() -> Result<File> {
    std::fs::create_dir_all(domain::RUN).with_context(|| format!("cannot make {}", domain::RUN))?;
    let lock = File::create(LOCK).with_context(|| format!("cannot make {LOCK}"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => {
            bail!("another tandemd runs, and holds {LOCK}; `systemctl status tandemd` shows that of systemd")
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {LOCK}")),
    }
}

/// Serves until one of the services has lost its domain; then all is to be taken up again.
fn serve(config: &Arc<Config>, hypervisor: &mut Hypervisor, domains: &mut Domains) -> Result<()> {
    let mut store = Kept::new(Client::open()?, Hypervisor::census()?)?;
    let (mut services, mut disks) = (Vec::new(), Vec::new());
    let mut formers = Vec::new();
    for (name, domain) in former::find(config.service.keys().map(String::as_str), &mut store, Hypervisor::census()?)? {
        formers.push(Former::start(&name, domain, &mut store)?);
    }
    config.service.keys().try_for_each(|name| domains.want(name))?;
    // Their driver domains are looked after whatever becomes of that.
    for (name, _) in config.service.iter().filter(|(_, service)| service.looked_after().is_some()) {
        supervisor::begin(config, name)?;
    }
    let begin = Instant::now();
    let mut is_ready = false;
    loop {
        pulses::pass("the daemon's own loop");
        if !is_ready && (!domains.are_asked_for() || begin.elapsed() >= UNTIL_SERVED) {
            domains.tell_who_is_late();
            notify_ready();
            is_ready = true;
        }
        let now = Instant::now();
        let due = services.iter().filter_map(Service::due).chain(disks.iter().filter_map(DiskService::due));
        let due = due.chain(domains.due(now)).chain((!is_ready).then(|| now + A_MOMENT)).chain([now + ROUND]).min();
        let events = store.next_events(due.map(|due| due.saturating_duration_since(Instant::now())))?;
        take_up(config, domains, (&mut services, &mut disks), &mut store, hypervisor)?;
        for service in &mut services {
            service.set_changing(service.driver_domain().is_some_and(supervisor::is_at_work));
            let fate = service.handle(&events, Instant::now(), &mut store, hypervisor)?;
            if !goes_on(fate, service.name(), service.domain(), domains)? {
                return Ok(());
            }
        }
        for service in &mut disks {
            service.set_parked(service.driver_domain().is_some_and(supervisor::is_parked));
            service.set_changing(service.driver_domain().is_some_and(supervisor::is_at_work));
            let fate = service.handle(&events, Instant::now(), &mut store, hypervisor)?;
            if !goes_on(fate, service.name(), service.domain(), domains)? {
                return Ok(());
            }
        }
        let mut left = Vec::new();
        for mut former in formers.drain(..) {
            match former.handle(&events, &mut store)? {
                Fate::Lives => {}
                Fate::Gone => {
                    domains.forget(former.domain());
                    continue;
                }
                Fate::MayEnd => {
                    let why = "is destroyed: there is no such service any more, and nobody uses it";
                    domains.end(former.name(), former.domain(), why)?;
                }
            }
            left.push(former);
        }
        formers = left;
    }
}

/// Takes services up whose domains are there now.
fn take_up(
    config: &Config,
    domains: &mut Domains,
    (services, disks): (&mut Vec<Service>, &mut Vec<DiskService>),
    store: &mut impl Store,
    hypervisor: &mut Hypervisor,
) -> Result<()> {
    for (name, domain) in domains.found(Instant::now())? {
        let Some(service) = config.service.get(&name) else { continue };
        let driver_domain = service.driver_domain.clone();
        match service.kind {
            Kind::Net => {
                let hold_ms = service.hold_ms();
                let started = Service::start(&name, domain, driver_domain, hold_ms, store, hypervisor)?;
                let started = started.with_weights(service.weights.clone()).with_offload(service.offload());
                services.push(started.with_remains(config.remains()));
            }
            Kind::Disk => {
                let started = DiskService::start(&name, domain, driver_domain, store)?;
                disks.push(started.with_weights(service.weights.clone()));
            }
        }
        eprintln!("{name}: served, domain {domain}");
    }
    Ok(())
}

/// What became of a service is told, and done. `false`: it has no domain now.
fn goes_on(fate: Fate, name: &str, domain: u16, domains: &mut Domains) -> Result<bool> {
    match fate {
        Fate::Lives => {}
        Fate::Gone => {
            eprintln!("{name}: its domain {domain} is gone; a new one is made");
            domains.forget(domain);
            return Ok(false);
        }
        Fate::MayEnd => domains.end(name, domain, "was asked to shut down")?,
    }
    Ok(true)
}

/// Tells who started us, if that is systemd, that guests may come.
fn notify_ready() {
    if let Err(error) = watchdog::tell_ready() {
        eprintln!("tandemd: systemd cannot be told: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_hides_no_other_one() {
        let looked_after = |name: &str| {
            format!("[service.{name}]\ndriver-domain = \"dd-{name}\"\n[service.{name}.supervise]\nconfig = \"/etc/xen/{name}.cfg\"\n")
        };
        let text = format!("{}{}[service.alone]\n", looked_after("lab"), looked_after("net"));
        let config: Config = toml::from_str(&text).unwrap();
        let said = remembered(&config, |name, driver| match name {
            "lab" => bail!("{driver} is of another tandemd"),
            _ => Ok(format!("{name}: {driver} is to run\n")),
        });
        assert_eq!(said, "lab: dd-lab: dd-lab is of another tandemd\nnet: dd-net is to run\n");
    }

    #[test]
    fn it_is_started_again_however_often_it_has_ended() {
        let unit = include_str!("../tandemd.service");
        // By default systemd gives up after the fifth time in ten seconds.
        let (general, service) = unit.split_once("[Service]").unwrap();
        assert!(general.contains("\nStartLimitIntervalSec=0\n") && service.contains("\nRestart=always\n"));
    }

    #[test]
    fn one_that_hangs_is_started_again_but_not_one_that_only_takes_long() {
        let unit = include_str!("../tandemd.service");
        let service = unit.split_once("[Service]").unwrap().1;
        let said = service.lines().find_map(|line| line.strip_prefix("WatchdogSec=")).unwrap();
        let limit: u64 = said.parse().unwrap();
        // Who goes round seldom is told of in time, several times.
        assert!(limit >= 300 && UNTIL_SERVED.as_secs() < limit && 10 * ROUND.as_secs() < limit);
    }

    #[test]
    fn it_is_started_when_domain_0_has_brought_its_own_interfaces_up() {
        let unit = include_str!("../tandemd.service");
        let after = |line: &&str| line.starts_with("After=");
        let after: Vec<&str> = unit.lines().filter(after).flat_map(|line| line["After=".len()..].split(' ')).collect();
        let network = ["network.target", "networking.service", "NetworkManager.service", "systemd-networkd.service"];
        assert!(network.iter().all(|unit| after.contains(unit)), "{after:?}");
        // It needs none of them, and waits for no network: that may come by it.
        assert!(!unit.contains("Wants=") && !unit.contains("Requires=") && !unit.contains("network-online"));
    }

    #[test]
    fn it_rests_on_another_hypervisor() {
        let unit = include_str!("../tandemd.service");
        // It has Xen's files there, too. A condition that does not hold is no failure, so systemd leaves it alone.
        let condition = "\nExecCondition=/bin/grep -q tandem /sys/hypervisor/version/extra\n";
        assert!(unit.split_once("[Service]").unwrap().1.contains(condition));
        // What that file shows.
        let version = include_str!("../../hv/src/hypercall/xen_version.rs");
        assert!(version.contains("XENVER_EXTRAVERSION => arg.cast().write(&text::<16>(\".7-tandem\"))"));
    }

    #[test]
    fn who_starts_guests_waits_and_goes_on_if_that_is_in_vain() {
        let conf = include_str!("../xendomains.conf");
        assert!(conf.contains("\n[Service]\nExecStartPre=-/usr/sbin/tandemd --wait\n"));
        // It waits for less than systemd waits for a unit.
        assert!((super::UNTIL_SERVED + super::UNTIL_UP).as_secs() < 90 && super::HELP.contains("--wait "));
    }
}
