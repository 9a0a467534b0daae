//! What is asked of the daemon at its socket: what there is, and to say something to a driver domain's twind.
//!
//! Each connection has a thread of its own, with its own connections to xenstore and to the hypervisor, so what the
//! daemon itself does (`service`) waits for nobody here. There is no state but the configuration.

use crate::config::{self, Config};
use crate::hypercall::{DiskList, Hypervisor, Switches};
use crate::look;
use crate::store::{Client, Store};
use crate::supervisor::{self, Wanted};
use ::control::request::Which;
use ::control::socket::Reply;
use ::control::told::{Service, Twin};
use ::control::{errand, socket, Answer, Image, Request, Told};
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// twind answers this at once, if it runs. All together wait no longer, whoever does not answer.
const UNTIL_TOLD: Duration = Duration::from_secs(3);
/// What it does takes longer: the driver is rewritten, the image verified.
const UNTIL_DONE: Duration = Duration::from_secs(100);
/// Of that, so long is waited until it has done what others want.
const UNTIL_TURN: Duration = Duration::from_secs(15);

/// Serves the socket from now on.
pub fn begin(config: &Arc<Config>) -> Result<()> {
    let config = Arc::clone(config);
    let listener = socket::listen(Path::new(::control::TANDEMD))?;
    socket::serve(listener, move |request| {
        let reload = matches!(request, Request::Reload { .. }).then(|| {
            let (mut store, mut hypervisor) = (Client::open()?, Hypervisor::open()?);
            reload(&config, &mut store, &mut hypervisor)
        });
        let begins_anew = reload.transpose();
        let told = match &begins_anew {
            Ok(_) => answer(&config, request),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let answer = told.map_err(|error| format!("{error:#}").replace('\n', " ")).into();
        match begins_anew {
            Ok(Some(program)) => Reply::and(answer, move || begin_anew(&program)),
            _ => Reply::from(answer),
        }
    });
    Ok(())
}

fn answer(config: &Config, request: Request) -> Result<Told> {
    let (mut store, mut hypervisor) = (Client::open()?, Hypervisor::open()?);
    match request {
        Request::Status { .. } | Request::Reload { .. } => {}
        Request::DriverDomain { order, .. } => {
            let service = only(config, &request, &mut store, &mut hypervisor)?;
            is_looked_after_here(config, &service.name)?;
            supervisor::ask(&service.name, Wanted::Order(order)).map_err(anyhow::Error::msg)?;
        }
        Request::Upgrade { ref image, as_configured, .. } => {
            check(image, as_configured)?;
            let service = only(config, &request, &mut store, &mut hypervisor)?;
            is_looked_after_here(config, &service.name)?;
            let wanted = Wanted::Upgrade(image.clone(), as_configured);
            supervisor::ask(&service.name, wanted).map_err(anyhow::Error::msg)?;
        }
        _ => pass_on(config, request.clone(), &mut store, &mut hypervisor)?,
    }
    services(config, request.which().service.as_deref(), &mut store, &mut hypervisor)
        .map(|services| Told::Tandemd { services })
}

/// The services of this name, or all, with what their driver domains' twinds say.
pub fn services(
    config: &Config,
    name: Option<&str>,
    store: &mut impl Store,
    switches: &mut (impl Switches + DiskList),
) -> Result<Vec<Service>> {
    let mut services = look::services(config, name, store, switches)?;
    for service in &mut services {
        service.looked_after = supervisor::look(&service.name);
    }
    let asked = services.iter_mut().filter(|service| service.driver_domain.is_some() && !service.is_of_disks);
    let mut asked: Vec<&mut Service> = asked.collect();
    let places = asked.iter().map(|service| place_of(service, store)).collect();
    for (service, said) in asked.iter_mut().zip(ask_twinds(places, UNTIL_TOLD, &Client::open)) {
        take(service, said, switches)?;
    }
    Ok(services)
}

/// What the twinds say of these interfaces of these domains, each at the end of `limit` at the latest. Who says nothing
/// keeps nobody from the others.
fn ask_twinds<S: Store>(
    places: Vec<Result<(u16, u32)>>,
    limit: Duration,
    open: &(impl Fn() -> Result<S> + Sync),
) -> Vec<Result<Told>> {
    let ask = |domain: u16, vif: u32| {
        let which = Which { vif: Some(vif), ..Which::default() };
        tell(domain, &Request::Status { which }, &mut open()?, limit)
    };
    let ask = &ask;
    std::thread::scope(|threads| {
        let begin = |place: Result<(u16, u32)>| {
            let (domain, vif) = place?;
            Ok(std::thread::Builder::new().spawn_scoped(threads, move || ask(domain, vif))?)
        };
        let begun: Vec<Result<_>> = places.into_iter().map(begin).collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<Told>>| {
            thread.join().unwrap_or_else(|_| bail!("what twind says cannot be read"))
        };
        begun.into_iter().map(|begun| begun.and_then(end)).collect()
    })
}

/// Makes what a twind has said part of what is told of its service.
fn take(service: &mut Service, said: Result<Told>, switches: &mut impl Switches) -> Result<()> {
    match said {
        Ok(Told::Twind { twins }) => service.twin = twins.into_iter().next(),
        Ok(Told::Tandemd { .. }) => service.twind_error = Some("the driver domain's answer is none of twind's".into()),
        Err(error) => service.twind_error = Some(format!("{error:#}")),
    }
    // Which of several it is, twind knows; what it did, the hypervisor.
    if let (Some(number), Some(way)) = (service.twin.as_ref().and_then(|twin| twin.number), service.way_out) {
        let is_it = |twin: &twin_abi::op::TwinStats| twin.twin == number && twin.domain == u32::from(way.domain);
        service.counts = look::twins(switches)?.into_iter().find(is_it).map(|twin| (&twin).into());
    }
    Ok(())
}

/// A service's driver domain, and the number of its own interface at the service's switch, by which its twind knows
/// which twin is meant. Errors: in words, if there is none: no other service's is to be told instead.
fn place_of(service: &Service, store: &mut impl Store) -> Result<(u16, u32)> {
    let name = &service.name;
    ensure!(!service.is_of_disks, "{name} is a service of disks, which have no twin");
    let domain = driver_domain(service, store)?;
    if let Some(way) = service.way_out.filter(|way| way.domain == domain) {
        return Ok((domain, way.vif));
    }
    let own = service.domain.with_context(|| format!("the service {name} has no domain yet"))?;
    let there = store.list(&format!("/local/domain/{own}/backend/vif/{domain}"))?;
    let first = there.iter().filter_map(|number| number.parse().ok()).min();
    let vif = first
        .with_context(|| format!("the driver domain of the service {name} has no interface with backend={name}"))?;
    Ok((domain, vif))
}

/// What only twind can do.
fn pass_on(
    config: &Config,
    request: Request,
    store: &mut impl Store,
    switches: &mut (impl Switches + DiskList),
) -> Result<()> {
    let service = only(config, &request, store, switches)?;
    let (domain, vif) = place_of(&service, store)?;
    let which = Which { service: None, vif: Some(vif), interface: request.which().interface.clone() };
    tell(domain, &request.about(which), store, UNTIL_DONE)?;
    Ok(())
}

/// Another configuration is to be taken up. If something is wrong with it the old one stays. Nothing is lost when the
/// daemon begins anew, so that is what it does, by this program, when whoever asked has his answer.
fn reload(config: &Config, store: &mut impl Store, switches: &mut (impl Switches + DiskList)) -> Result<PathBuf> {
    let next = config.read_again().and_then(Config::without_troubles);
    let next = next.and_then(|next| deserts_nobody(config, &next, store, switches));
    next.context("the configuration stays as it was")?;
    program(std::env::current_exe().context("the daemon's own file")?)
}

/// Fails if the next configuration lacks a service of which guests have devices: nobody would serve them, and they can
/// have none of another name while they live. What only its driver domain has of it does not count: that gets another
/// one with its next instance.
pub fn deserts_nobody(
    config: &Config,
    next: &Config,
    store: &mut impl Store,
    switches: &mut (impl Switches + DiskList),
) -> Result<()> {
    let is_left = |name: &str, kind| next.service.get(name).is_some_and(|service| service.kind == kind);
    for (name, of) in config.service.iter().filter(|(name, of)| !is_left(name, of.kind)) {
        let own = of.driver_domain.iter().flat_map(|driver| {
            let beside = [supervisor::standby_of, supervisor::candidate_of, supervisor::remains_of];
            beside.map(|of| of(driver)).into_iter().chain([driver.clone()])
        });
        let own: BTreeSet<String> = own.collect();
        let mut guests = BTreeSet::new();
        for service in look::services(config, Some(name), store, switches)? {
            guests.extend(service.vifs.into_iter().map(|vif| vif.guest));
            guests.extend(service.disks.into_iter().map(|disk| disk.guest));
        }
        let guests: Vec<&str> = guests.difference(&own).map(String::as_str).collect();
        ensure!(
            guests.is_empty(),
            "it has no service {name} any more, of which these have devices: {}; detach those first, or shut them down",
            guests.join(", ")
        );
    }
    Ok(())
}

fn begin_anew(program: &Path) {
    let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
    eprintln!("tandemd: {} cannot be started again: {error}", program.display());
}

/// What is to be started. Linux says of a program that has another one in its place by now that it is deleted.
fn program(own: PathBuf) -> Result<PathBuf> {
    let there = match own.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(path) if !own.exists() => PathBuf::from(OsStr::from_bytes(path)),
        _ => own,
    };
    ensure!(there.is_file(), "{} is not there, so the daemon stays as it is", there.display());
    Ok(there)
}

/// Whether an image can be one: what it names is there, and not empty.
fn check(image: &Image, as_configured: bool) -> Result<()> {
    image.check().map_err(anyhow::Error::msg)?;
    let is_something = image.parts().iter().any(|(_, value)| value.is_some());
    ensure!(
        is_something || as_configured,
        "nothing is new: name a kernel, a ramdisk or an extra, or say as-configured"
    );
    for (what, path) in [("kernel", &image.kernel), ("ramdisk", &image.ramdisk)] {
        let Some(path) = path else { continue };
        let file = File::open(path).and_then(|file| file.metadata()).with_context(|| format!("{what} {path}"))?;
        ensure!(file.is_file() && file.len() > 0, "{what} {path}: it is no file, or empty");
    }
    Ok(())
}

/// Fails if a service's driver domain is looked after for another one, and says for which.
fn is_looked_after_here(config: &Config, name: &str) -> Result<()> {
    let of = |name| config.service.get(name).and_then(|service| service.driver_domain.as_deref());
    let Some(driver) = of(name) else { return Ok(()) };
    let looks_after = |service: &config::Service| service.looked_after().is_some_and(|(other, _)| other == driver);
    if config.service.get(name).is_some_and(looks_after) {
        return Ok(());
    }
    match config.service.iter().find(|(_, service)| looks_after(service)) {
        Some((other, _)) => bail!("{driver}, the driver domain of {name}, is looked after for {other}: say {other}"),
        None => Ok(()),
    }
}

/// The one service that is meant.
fn only(
    config: &Config,
    request: &Request,
    store: &mut impl Store,
    switches: &mut (impl Switches + DiskList),
) -> Result<Service> {
    let mut services = look::services(config, request.which().service.as_deref(), store, switches)?;
    let (Some(service), None) = (services.pop(), services.pop()) else {
        let names: Vec<&str> = config.service.keys().map(String::as_str).collect();
        bail!("say which service: {}", names.join(", "));
    };
    Ok(service)
}

fn driver_domain(service: &Service, store: &mut impl Store) -> Result<u16> {
    let name = &service.name;
    let wanted = service.driver_domain.as_deref().with_context(|| format!("service {name} has no driver domain"))?;
    for domain in store.list("/local/domain")? {
        if store.read(&format!("/local/domain/{domain}/name"))?.as_deref() == Some(wanted) {
            return domain.parse().context("the name of a domain");
        }
    }
    bail!("{wanted}, the driver domain of service {name}, does not run")
}

/// What one hears of a twind that is asked how it goes.
pub enum Heard {
    /// The twin of the interface, if it has one.
    Twin(Option<Box<Twin>>),
    /// None runs, or it does what somebody else has asked for.
    Other,
    /// It does not answer.
    Silence,
}

/// Asks a domain's twind how it goes, for who does so again and again.
pub fn hear_twind(domain: u16, vif: u32, limit: Duration) -> Result<Heard> {
    let mut store = Client::open()?;
    if store.read(&errand::up_of(domain))?.is_none() {
        return Ok(Heard::Other);
    }
    let request = Request::Status { which: Which { vif: Some(vif), ..Which::default() } };
    let ask = || errand::ask(&mut store, &errand::of_domain(domain), &request, limit);
    Ok(match TURNS.take(domain, Duration::ZERO, ask) {
        Some(Ok(Answer::Ok(Told::Twind { twins }))) => Heard::Twin(twins.into_iter().next().map(Box::new)),
        Some(Err(_)) => Heard::Silence,
        None | Some(Ok(Answer::Ok(Told::Tandemd { .. }) | Answer::Error(_))) => Heard::Other,
    })
}

/// Has a domain's twind load the twin of this interface again.
pub fn load_twin(domain: u16, vif: u32) -> Result<()> {
    let request = Request::Load { which: Which { vif: Some(vif), ..Which::default() } };
    tell(domain, &request, &mut Client::open()?, UNTIL_DONE).map(|_| ())
}

/// Domains to which somebody says something.
static TURNS: Turns = Turns::new();

/// Says something to a domain's twind, when that has answered others. The answer is there after `limit`, or there is
/// none.
fn tell(domain: u16, request: &Request, store: &mut impl Store, limit: Duration) -> Result<Told> {
    let end = Instant::now() + limit;
    let left = || end.saturating_duration_since(Instant::now());
    let ask = || errand::ask(store, &errand::of_domain(domain), request, left());
    let answer = TURNS.take(domain, limit.min(UNTIL_TURN), ask);
    match answer.context("the driver domain's twind is busy with something else")?? {
        Answer::Ok(told) => Ok(told),
        Answer::Error(why) => bail!("{why}"),
    }
}

/// Domains with which somebody does something.
struct Turns {
    taken: Mutex<BTreeSet<u16>>,
    ends: Condvar,
}

/// Somebody's turn.
struct Turn<'a>(&'a Turns, u16);

impl Turns {
    const fn new() -> Self {
        Self { taken: Mutex::new(BTreeSet::new()), ends: Condvar::new() }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does this when nobody else does something with the same domain. `None`: for so long somebody did.
    fn take<T>(&self, domain: u16, limit: Duration, what: impl FnOnce() -> T) -> Option<T> {
        let waited = self.ends.wait_timeout_while(self.taken(), limit, |taken| taken.contains(&domain));
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        taken.insert(domain);
        drop(taken);
        let _turn = Turn(self, domain);
        Some(what())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.taken().remove(&self.1);
        self.0.ends.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_store::Nodes;
    use ::control::told::WayOut;

    #[test]
    fn a_program_that_was_replaced_is_the_new_one() {
        let place = std::env::temp_dir().join(format!("tandemd-program-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let [program, deleted] = ["tandemd", "tandemd (deleted)"].map(|name| place.join(name));
        assert!(super::program(deleted.clone()).unwrap_err().to_string().contains("is not there"));
        std::fs::write(&program, "").unwrap();
        assert_eq!(super::program(program.clone()).unwrap(), program);
        assert_eq!(super::program(deleted.clone()).unwrap(), program);
        std::fs::write(&deleted, "").unwrap();
        assert_eq!(super::program(deleted.clone()).unwrap(), deleted, "that is its name");
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn who_says_something_to_a_domain_waits_for_others_and_leaves_nothing() {
        let turns = Turns::new();
        let inside = Mutex::new(());
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    let done = turns.take(7, UNTIL_DONE, || {
                        let _inside = inside.try_lock().expect("one after the other");
                        std::thread::yield_now();
                    });
                    assert!(done.is_some());
                });
            }
        });
        assert_eq!(turns.take(8, UNTIL_DONE, || 5), Some(5));
        assert!(turns.taken().is_empty());
    }

    #[test]
    fn who_only_looks_does_not_wait_until_others_are_done() {
        let turns = Turns::new();
        let looked = turns.take(7, UNTIL_DONE, || {
            assert_eq!(turns.take(8, Duration::ZERO, || 5), Some(5), "that is another one");
            turns.take(7, Duration::from_millis(1), || panic!("at one time"))
        });
        assert_eq!(looked, Some(None));
        assert_eq!(turns.take(7, Duration::ZERO, || 5), Some(5));
    }

    #[test]
    fn what_is_for_a_service_without_a_way_out_reaches_no_other_ones_twin() {
        let mut store = Nodes::default();
        for (domain, name) in [(1, "net"), (2, "far"), (3, "lab"), (7, "dd")] {
            store.set(&format!("/local/domain/{domain}/name"), name);
        }
        for (service, vif) in [(1, 0), (2, 1)] {
            store.set(&format!("/local/domain/{service}/backend/vif/7/{vif}/frontend"), "");
        }
        // That of a guest is none of the driver domain's.
        store.set("/local/domain/3/backend/vif/8/0/frontend", "");
        let service = |name: &str, domain| Service {
            name: name.into(),
            domain,
            driver_domain: Some("dd".into()),
            ..Service::default()
        };
        let mut place = |service: &Service| place_of(service, &mut store).map_err(|error| error.to_string());
        let net = service("net", Some(1));
        assert_eq!(place(&net), Ok((7, 0)));
        let way_out = WayOut { domain: 7, vif: 4, ..WayOut::default() };
        assert_eq!(place(&Service { way_out: Some(way_out), ..net.clone() }), Ok((7, 4)));
        let others = WayOut { domain: 6, ..way_out };
        assert_eq!(place(&Service { way_out: Some(others), ..net }), Ok((7, 0)), "the one before has it still");
        assert_eq!(place(&service("far", Some(2))), Ok((7, 1)));
        assert!(place(&service("lab", Some(3))).unwrap_err().contains("no interface with backend=lab"));
        assert!(place(&service("new", None)).unwrap_err().contains("no domain yet"));
        let disks = Service { is_of_disks: true, ..service("disk", Some(1)) };
        assert!(place(&disks).unwrap_err().contains("no twin"));
    }

    #[test]
    fn who_is_looked_after_for_another_service_is_ordered_about_by_that_one() {
        let config = Config::parse(
            "[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\n\
             [service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\n[service.far]\ndriver-domain = \"other\"\n[service.lab]\n",
        );
        let config = config.unwrap();
        let said = |name| is_looked_after_here(&config, name).map_err(|error| error.to_string());
        assert!(said("disk").unwrap_err().ends_with("looked after for net: say net"));
        assert_eq!((said("net"), said("far"), said("lab")), (Ok(()), Ok(()), Ok(())), "nobody does, or it does");
    }

    /// A twind runs in each domain, and never answers.
    struct Silent;

    impl Store for Silent {
        fn read(&mut self, _: &str) -> Result<Option<String>> {
            Ok(None)
        }
        fn list(&mut self, _: &str) -> Result<Vec<String>> {
            Ok(Vec::new())
        }
        fn change(&mut self, _: &str, _: &[crate::store::Change]) -> Result<bool> {
            Ok(true)
        }
        fn watch(&mut self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }
        fn unwatch(&mut self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }
        fn next_event(&mut self, limit: Option<Duration>) -> Result<Option<crate::store::Event>> {
            std::thread::sleep(limit.expect("it is waited for ever"));
            Ok(None)
        }
    }

    #[test]
    fn those_who_do_not_answer_are_waited_for_together() {
        let limit = Duration::from_millis(500);
        // Two services have one driver domain, and one has none that runs.
        let places: Vec<Result<(u16, u32)>> = (1..=40)
            .map(|domain| Ok((domain, 0)))
            .chain([Ok((1, 1)), Err(anyhow::Error::msg("does not run"))])
            .collect();
        let begin = Instant::now();
        let said = ask_twinds(places, limit, &|| Ok(Silent));
        assert!(begin.elapsed() < 10 * limit, "{:?}", begin.elapsed());
        let said: Vec<String> = said.into_iter().map(|said| said.unwrap_err().to_string()).collect();
        assert!(said[..41].iter().all(|said| said.contains("does not answer") || said.contains("busy")), "{said:?}");
        assert_eq!(said[41], "does not run");
    }
}
