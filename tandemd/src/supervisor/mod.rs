//! The supervisor: a driver domain that dies is started again, and its guests only wait.
//!
//! It has a thread of its own for each service with a `supervise` section, with its own connection to xenstore, so that
//! guests are served whatever it waits for. What happens is told by xenstore (a domain comes or goes) and by the
//! hypervisor (the driver domain ends, or is wedged), and seen by looking now and then; what is
//! to be done is decided in [`machine`], which is all that the tests need; [`shell`] looks and acts.

mod answered;
mod assign;
mod boot;
mod cause;
mod choice;
mod departing;
mod driver;
mod files;
mod given;
mod health;
mod identity;
mod last_words;
mod look;
mod machine;
mod openers;
mod options;
mod orphans;
mod ours;
mod paper;
mod passthrough;
mod pci;
mod pulse;
mod record;
mod repeated;
mod settings;
mod shell;
mod snapshot;
mod standby;
#[cfg(test)]
mod tests;
mod toolstack;
mod words;
mod xl_config;

pub use cause::NAMES as CAUSES;
pub use choice::{Choice, Given};
pub use given::{foresee, held, wants_of, Held};
pub use machine::upgrade::name_of as candidate_of;
pub use orphans::begin as clear_orphans;
#[cfg(test)]
pub use ours::uuid as uuid_of_standby;
pub use pci::{backs as pci_backs, is_in_backs as is_in_pci_backs, is_there as is_in_machine};
pub use record::Record;
pub use settings::{Settings, UNDRAINED_DISK_MS};
pub use shell::choosing::{by as named_by, missing as missing_of};
pub use shell::missing::of as words_for_missing;
pub use shell::{link_of, link_of_one, said_of_link, taken_by, waits_for};
pub use standby::{name_of as standby_of, remains_of};
pub use toolstack::children::await_earlier as await_earlier_children;
pub use toolstack::run_to_its_end;

use crate::config::{self, Config};
use crate::domain::RUN;
use crate::pulses;
use crate::service::name_of;
use crate::store::{Client, Store};
use anyhow::{bail, Context, Result};
use control::told::{GivenDevice, LookedAfter};
use control::{Image, Order};
use look::Act;
use machine::drain::OFTEN;
use machine::{Machine, PARKED};
use paper::{Paper, Place};
use repeated::Repeated;
use shell::Shell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a driver domain does at which nobody has looked yet.
const NOT_LOOKED: &str = "unknown";
/// Where records are.
pub const RECORDS: &str = "/var/lib/tandem";
/// Told by Linux; another one after each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// So often is looked at what is under way, and at one that is neither up nor on its way.
const BUSY: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(500);
/// Looks at one that is up within the time in which it may be wedged.
const LOOKS: u32 = 5;
const SELDOM: Duration = Duration::from_secs(1);
/// So long others let a driver domain alone that has lost its place, at most: what they would do takes time from who
/// takes it.
const AT_WORK: Duration = Duration::from_millis(100);
/// So long somebody who orders something waits until it is heard. Then it is not to be done any more.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };
/// What is heard is answered in this time, or is being done.
const UNTIL_ANSWERED: Duration = Duration::from_secs(60);

/// What is wanted of a supervisor.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// What it has orders for.
    Order(Order),
    /// One of this image takes the place; whether what earlier upgrades have said is forgotten first.
    Upgrade(Image, bool),
}

/// Somebody's wish, and where the answer goes.
type Wish = (Wanted, Tell);

/// Where the answer to a wish goes.
struct Tell {
    /// No other wish has it.
    number: u64,
    to: mpsc::Sender<Result<(), String>>,
}

impl Tell {
    fn send(&self, answer: Result<(), String>) -> Result<(), mpsc::SendError<Result<(), String>>> {
        self.to.send(answer)
    }
}

/// What a supervisor and others have to say to each other.
#[derive(Default)]
struct Desk {
    /// Name of the driver domain.
    driver: String,
    /// Somebody looks after it, and hears what is ordered.
    has_begun: bool,
    /// Since when one thing after the other is done with it.
    at_work: Option<Instant>,
    /// Wishes that were not heard yet.
    wishes: Vec<Wish>,
    /// How many there were.
    nr_wishes: u64,
    /// How it goes.
    told: LookedAfter,
}

/// By service; there is one for each that is looked after.
static DESKS: Mutex<BTreeMap<String, Desk>> = Mutex::new(BTreeMap::new());

fn desks() -> MutexGuard<'static, BTreeMap<String, Desk>> {
    DESKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Orders something. The error says why it cannot be.
pub fn ask(service: &str, wanted: Wanted) -> Result<(), String> {
    let (to, answer) = mpsc::channel();
    let number = match desks().get_mut(service) {
        Some(desk) => {
            desk.nr_wishes += 1;
            desk.wishes.push((wanted, Tell { number: desk.nr_wishes, to }));
            desk.nr_wishes
        }
        None => {
            return Err(format!(
                "nobody looks after the driver domain of {service}: see `supervise` in the configuration"
            ))
        }
    };
    if let Ok(answer) = answer.recv_timeout(PATIENCE) {
        return answer;
    }
    // Whoever is told that it was not heard does not count on it.
    if desks().get_mut(service).is_some_and(|desk| desk.take_back(number)) {
        return Err("the supervisor does not answer: nothing is done".into());
    }
    let is_heard = "the supervisor has heard it, and does not answer: `twinctl status` says how it goes";
    answer.recv_timeout(UNTIL_ANSWERED).unwrap_or(Err(is_heard.into()))
}

impl Desk {
    /// A wish is none any more, unless it was heard.
    fn take_back(&mut self, number: u64) -> bool {
        let before = self.wishes.len();
        self.wishes.retain(|(_, tell)| tell.number != number);
        self.wishes.len() < before
    }
}

/// How it goes with the driver domain of this service, if it is looked after.
pub fn look(service: &str) -> Option<LookedAfter> {
    desks().get(service).map(|desk| desk.told.clone())
}

/// Whether the driver domain of this name is looked after, by whichever service, and is parked.
pub fn is_parked(driver: &str) -> bool {
    desks().values().any(|desk| desk.driver == driver && desk.told.state == PARKED)
}

/// Whether the driver domain of this name is looked after, and its place changes hands just now: it is soon known by
/// whom it is taken.
pub fn is_at_work(driver: &str) -> bool {
    desks().values().any(|desk| desk.driver == driver && desk.at_work.is_some_and(|since| since.elapsed() < AT_WORK))
}

fn set_at_work(service: &str, since: Option<Instant>) {
    if let Some(desk) = desks().get_mut(service) {
        desk.at_work = since;
    }
}

/// What is remembered of a service's driver domain.
fn record(service: &str, driver: &str) -> Result<Record> {
    Ok(place(service).read(&boot()?)?.of(driver))
}

/// What it is started with instead of what is configured.
pub fn image_of(service: &str, driver: &str) -> Image {
    place(service).read("").map(|record| record.of(driver).image).unwrap_or_default()
}

/// That for people.
pub fn describe(service: &str, driver: &str) -> Result<String> {
    let record = record(service, driver)?;
    let mode = match record.mode {
        record::Mode::Run => "is to run".to_string(),
        record::Mode::Off if record.with_all => "was shut down with all other domains".into(),
        record::Mode::Off => "was shut down".into(),
        record::Mode::Parked => format!("is parked: {}", record.why),
    };
    let counts: Vec<String> = record.counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
    let given: String = record.given.iter().map(|given| format!("  {}, as `{}`\n", given.device, given.want)).collect();
    let last: String = record.last.iter().map(|line| format!("  {line}\n")).collect();
    Ok(format!("{service}: {driver} {mode}; {}\n{given}{last}", counts.join(", ")))
}

/// Where a service's record is.
fn place(service: &str) -> Place {
    let disk = Path::new(RECORDS).join(format!("{service}.toml"));
    Place { disk, memory: Path::new(RUN).join(format!("{service}.record")) }
}

fn boot() -> Result<String> {
    let id = std::fs::read_to_string(BOOT_ID).with_context(|| format!("cannot read {BOOT_ID}"))?;
    Ok(id.trim().into())
}

/// What is ordered for driver domains that are to be looked after waits from now on until somebody does.
pub fn open_desks(config: &Config) {
    for (name, service) in &config.service {
        if let Some((driver, _)) = service.looked_after() {
            open_desk(name, driver);
        }
    }
}

/// Unless it is open.
fn open_desk(service: &str, driver: &str) {
    if desks().contains_key(service) {
        return;
    }
    // Who asks before it has looked is not to hear that nothing was counted.
    let told = record(service, driver).map(|record| told_of(&record)).unwrap_or_default();
    let told = LookedAfter { state: NOT_LOOKED.into(), ..told };
    desks().insert(service.into(), Desk { driver: driver.into(), told, ..Desk::default() });
}

/// Looks after a service's driver domain from now on.
pub fn begin(config: &Arc<Config>, service: &str) -> Result<()> {
    let Some((driver, settings)) = config.service.get(service).and_then(config::Service::looked_after) else {
        return Ok(());
    };
    open_desk(service, driver);
    if desks().get_mut(service).is_none_or(|desk| std::mem::replace(&mut desk.has_begun, true)) {
        return Ok(());
    }
    // Without it nothing is remembered, and all else is done.
    if let Err(error) = std::fs::create_dir_all(RECORDS) {
        eprintln!("{service}: cannot make {RECORDS}: {error}");
    }
    let (config, service) = (Arc::clone(config), service.to_string());
    let (driver, settings) = (driver.to_string(), settings.clone());
    let mut repeated = Repeated::default();
    let run = move || loop {
        pulses::pass(&service);
        let done = until_startable(&config, &service, &driver)
            .and_then(|()| until_read(&service, &driver, &place(&service), &boot()?))
            .and_then(|()| look_after(&config, &service, &driver, &settings));
        if let Some(why) =
            done.err().map(|error| format!("{error:#}")).filter(|why| repeated.is_due(why, Instant::now()))
        {
            eprintln!("tandemd: {service}: {driver}: {why}; it is tried again each second");
        }
        std::thread::sleep(SELDOM);
    };
    std::thread::Builder::new().name("supervisor".into()).spawn(run).context("no thread")?;
    Ok(())
}

/// A service whose driver domain could not be started is parked until the operator has mended that and says so. What
/// runs is let alone, and so are other services.
fn until_startable(config: &Config, service: &str, driver: &str) -> Result<()> {
    let trouble = || config.troubles().remove(service);
    let Some(why) = trouble() else { return Ok(()) };
    let (place, boot) = (place(service), boot()?);
    let park = || {
        let record = place.read(&boot)?.of(driver);
        let why = machine::BY_OPERATOR.into();
        place.write(&Record { mode: record::Mode::Parked, why, with_all: false, ..record })?;
        none_runs(driver, named(driver, &mut Client::open()?)?)
    };
    let tell = until_mended(service, driver, why, |_| trouble(), park);
    let _ = tell.send(forgive(&place, &boot).map_err(|error| format!("{error:#}")));
    Ok(())
}

/// A service whose record cannot be read is parked, too: nobody knows what was wanted of its driver domain. Who lets it
/// run again has the record set aside if it cannot be read still.
fn until_read(service: &str, driver: &str, place: &Place, boot: &str) -> Result<()> {
    let trouble = || place.read(boot).err().map(|error| format!("{error:#}"));
    let Some(why) = trouble() else { return Ok(()) };
    let advise = |why| format!("{why}; `twinctl unpark {service}` begins a new record");
    let mend = |order| match trouble()? {
        why if order == Order::Restart => Some(advise(why)),
        why => set_aside(&place.disk).err().map(|error| format!("{why}; {error:#}")),
    };
    let park = || none_runs(driver, named(driver, &mut Client::open()?)?);
    let tell = until_mended(service, driver, advise(why), mend, park);
    let _ = tell.send(forgive(place, boot).map_err(|error| format!("{error:#}")));
    Ok(())
}

/// A record that cannot be read is kept for people, and there is none.
fn set_aside(path: &Path) -> Result<()> {
    let aside = path.with_extension("unread");
    std::fs::rename(path, &aside).with_context(|| format!("cannot rename it to {}", aside.display()))?;
    eprintln!("{} is {} now", path.display(), aside.display());
    Ok(())
}

/// It is wanted, and what it did before is forgiven.
fn forgive(place: &Place, boot: &str) -> Result<()> {
    let mut record = place.read(boot)?;
    record.wake();
    place.write(&record)
}

/// It is parked, and not looked after. `mend` says what is wrong still when somebody orders it to run. When that is
/// nothing any more it is returned where the answer goes, and whoever has ordered something else at the same time is
/// heard by who looks after it then.
fn until_mended(
    service: &str,
    driver: &str,
    mut why: String,
    mut mend: impl FnMut(Order) -> Option<String>,
    park: impl Fn() -> Result<()>,
) -> Tell {
    eprintln!("{service}: {driver}: parked: {why}");
    loop {
        pulses::pass(service);
        let mut wishes = Vec::new();
        if let Some(desk) = desks().get_mut(service) {
            (desk.told.state, desk.told.why) = (PARKED.into(), Some(why.clone()));
            wishes = std::mem::take(&mut desk.wishes);
        }
        let mut wishes = wishes.into_iter();
        while let Some((wanted, tell)) = wishes.next() {
            let answer = match wanted {
                Wanted::Upgrade(..) => Err(why.clone()),
                Wanted::Order(Order::Park) => park().map_err(|error| format!("{error:#}")),
                Wanted::Order(order @ (Order::Restart | Order::Unpark)) => match mend(order) {
                    Some(still) => {
                        why = still;
                        Err(why.clone())
                    }
                    None => {
                        if let Some(desk) = desks().get_mut(service) {
                            desk.wishes.splice(..0, wishes);
                        }
                        return tell;
                    }
                },
            };
            let _ = tell.send(answer);
        }
        std::thread::sleep(BUSY);
    }
}

/// Who has one parked is to know that it is not gone by that, if it is not looked after.
fn none_runs(driver: &str, there: Option<u16>) -> Result<()> {
    let Some(domain) = there else { return Ok(()) };
    bail!("it is not started again, but domain {domain} runs on with its devices, as its configuration is not known: `xl destroy {driver}` ends it")
}

/// The domain of this name.
fn named(name: &str, store: &mut impl Store) -> Result<Option<u16>> {
    for domain in store.list("/local/domain")?.iter().filter_map(|domain| domain.parse().ok()) {
        if store.read(&name_of(domain))?.as_deref() == Some(name) {
            return Ok(Some(domain));
        }
    }
    Ok(None)
}

fn look_after(config: &Config, service: &str, driver: &str, settings: &Settings) -> Result<()> {
    let words = words::of(config.service.get(service).map(|service| service.kind).unwrap_or_default());
    let record = record(service, driver)?;
    let mut shell = Shell::open(config, service, driver, settings, record.going)?;
    let mut machine = Machine::new(settings.clone(), words, record.clone());
    let mut paper = Paper::new(place(service), record);
    loop {
        pulses::pass(service);
        let mut look = shell.look(machine.waits_for_all(), &machine.record.image)?;
        machine.record.given = shell.given();
        let heard = if machine.hears(&look) {
            desks().get_mut(service).map(|desk| std::mem::take(&mut desk.wishes))
        } else {
            None
        };
        let mut act = None;
        for (wanted, tell) in heard.into_iter().flatten() {
            let answer = match wanted {
                _ if act.is_some() => Err("one thing after the other".into()),
                Wanted::Order(order) => machine.command(order, &look).map(|wanted| act = wanted),
                Wanted::Upgrade(image, as_configured) => {
                    let fits = settings.can_be_tried(&image).map_err(|error| format!("{error:#}"));
                    fits.and_then(|()| machine.upgrade(image, as_configured, &look))
                }
            };
            // Who asks how it goes from now on is to hear of this.
            save(&mut machine, &mut paper, service, driver);
            let _ = tell.send(answer);
        }
        while let Some(wanted) = act.take().or_else(|| machine.next(&look)) {
            // First: who is killed here has not done what the next one does not know of.
            save(&mut machine, &mut paper, service, driver);
            if matches!(wanted, Act::Quarantine(_)) {
                set_at_work(service, Some(Instant::now()));
            }
            shell.act(wanted, &machine.record)?;
            look = shell.look(machine.waits_for_all(), &machine.record.image)?;
        }
        set_at_work(service, None);
        save(&mut machine, &mut paper, service, driver);
        if let Some(desk) = desks().get_mut(service) {
            desk.told.age_s = machine.age(look.now).map(|age| age.as_secs());
            desk.told.available_kib = look.available_kib;
            desk.told.waits_for = shell.waits_for();
        }
        let limit = match machine.state() {
            _ if machine.is_draining() => OFTEN,
            _ if machine.is_busy(Shell::now()) => BUSY,
            "up" if settings.wedged_ms > 0 => (Duration::from_millis(settings.wedged_ms) / LOOKS).clamp(BUSY, SELDOM),
            "up" => SELDOM,
            _ => IDLE,
        };
        shell.wait(limit)?;
    }
}

/// Says what there is to say, and writes the record down if it has changed.
fn save(machine: &mut Machine, paper: &mut Paper, service: &str, driver: &str) {
    let record = &machine.record;
    paper.say_and_keep(machine.said.drain(..), record, |line| eprintln!("{service}: {driver}: {line}"));
    if let Some(desk) = desks().get_mut(service) {
        let (age_s, available_kib, waits_for) = (desk.told.age_s, desk.told.available_kib, desk.told.waits_for.take());
        desk.told = LookedAfter {
            age_s,
            available_kib,
            waits_for,
            twin_given_up: record.twin_given_up.is_some(),
            state: machine.state().into(),
            why: (machine.state() == PARKED).then(|| record.why.clone()),
            hindrance: machine.not_replaceable().map(Into::into),
            snapshot: machine.snapshot(),
            standby: machine.standby(),
            upgrade: machine.upgrading().map(Into::into),
            ..told_of(record)
        };
    }
}

/// What a record says of how it went.
fn told_of(record: &Record) -> LookedAfter {
    let of = |given: &Given| GivenDevice { device: given.device.clone(), rule: given.want.clone() };
    LookedAfter {
        devices: record.given.iter().map(of).collect(),
        counts: record.counts.clone(),
        recoveries: record.last.clone(),
        outage_ms: record.outage,
        last_outage_ms: record.last_outage,
        image: record.image.clone(),
        upgrades: record.upgrades,
        refused: Some(record.refused.clone()).filter(|why| !why.is_empty()),
        ..LookedAfter::default()
    }
}
