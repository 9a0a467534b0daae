//! `./tandem bench net` and `disk`: what a packet, a page or a request costs on native Linux, in dom0 and in a guest that
//! dom0 serves, on stock Xen and on Tandem, in instructions and divided by component.
//!
//! The loads are images/src/traffic.c and blocks.c, in the order of images/init/load.sh. The other end of the wire is in
//! virtual time (`peer::Wire`), and so is the disk, QEMU's null device behind nvme (bench/plugin/disk.c): figures repeat.

use super::{systems, System, BASELINE};
use crate::options::Options;
use crate::run;
use anyhow::{ensure, Context, Result};
use bench::profile::{self, Event, Map, Part, DOM0};
use bench::stacked::{self, Group};
use bench::table::Table;
use std::fmt::Write;
use std::path::Path;
use testbed::counter::Profiler;
use testbed::host;
use testbed::images::{self, Images};
use testbed::machine::{field, Ending, Hypervisor, Machine, Outcome};
use testbed::peer::Wire;
use testbed::progress::step;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Net,
    Disk,
}

impl Kind {
    /// In jobs and in files' names.
    fn word(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Disk => "disk",
        }
    }
}

/// A load on one system.
pub struct Cost {
    /// `native`, `xen`, `tandem`.
    pub system: &'static str,
    /// Where the load ran.
    pub place: Place,
    /// Its name.
    pub load: String,
    /// Instructions per unit, in the order of [`Part::ALL`].
    pub parts: Vec<f64>,
    /// What happened per unit, in the order of [`Event::ALL`].
    pub events: Vec<f64>,
}

/// Which domain ran a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Dom0,
    Guest,
    /// A guest whose interface or disk a driver domain serves.
    Driven,
    /// A guest whose interface the hypervisor's switch serves, and the way out is a driver domain.
    Switched,
    /// The same, and the way out is a twin.
    Twinned(Mode),
}

/// How a twin sees its domain's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Mirror,
}

impl Mode {
    /// In jobs.
    fn word(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
        }
    }
}

impl Place {
    const ALL: [Self; 5] = [Self::Dom0, Self::Guest, Self::Driven, Self::Switched, Self::Twinned(Mode::Mirror)];

    fn name(self) -> &'static str {
        match self {
            Self::Dom0 => "dom0",
            Self::Guest => "guest through dom0",
            Self::Driven => "guest through a driver domain",
            Self::Switched => "guest through switch and domain",
            Self::Twinned(Mode::Mirror) => "guest through a twin, mirror",
        }
    }

    /// Under a bar of a picture.
    fn short(self) -> &'static str {
        match self {
            Self::Dom0 => "dom0",
            Self::Guest => "guest",
            Self::Driven => "driven",
            Self::Switched => "switched",
            Self::Twinned(Mode::Mirror) => "mirror",
        }
    }

    /// As the domain is called in reports.
    fn domain(self) -> &'static str {
        match self {
            Self::Dom0 => DOM0,
            _ => "guest",
        }
    }
}

impl Cost {
    /// Of all components.
    pub fn total(&self) -> f64 {
        self.parts.iter().sum()
    }

    /// Of one.
    pub fn part(&self, part: Part) -> f64 {
        Part::ALL.iter().position(|p| *p == part).and_then(|at| self.parts.get(at)).copied().unwrap_or(0.0)
    }
}

/// Measures and shows; false if a system could not be measured.
pub fn run(kind: Kind, options: &Options) -> Result<bool> {
    let (costs, failures) = measure_all(kind, options, &Boot::STOCK)?;
    report(kind, &costs)?;
    for failure in &failures {
        println!("FAIL: {failure:#}");
    }
    Ok(failures.is_empty())
}

/// All figures of these boots, and why some are missing.
pub fn measure_all(kind: Kind, options: &Options, boots: &[Boot]) -> Result<(Vec<Cost>, Vec<anyhow::Error>)> {
    let images = images::toolstack()?;
    let profiler = Profiler::build()?;
    let mut costs = Vec::new();
    let mut failures = Vec::new();
    for system in systems(options)? {
        for boot in boots.iter().copied().filter(|b| b.is_for(&system)) {
            let what = format!("measuring {}{}", system.name, boot.remark());
            match step(&what, || measure(kind, boot, options, &system, &images, &profiler)) {
                Ok(found) => costs.extend(found),
                Err(error) => failures.push(error),
            }
        }
    }
    Ok((costs, failures))
}

/// What a machine is booted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// dom0's own loads and, if there is a hypervisor, those of a guest that dom0 serves.
    Dom0,
    /// Those of a guest that a driver domain serves.
    DriverDomain,
    /// Those of a guest at the hypervisor's switch, with a driver domain as its way out.
    Switch,
    /// The same with a twin.
    Twin(Mode),
}

impl Boot {
    /// Those that stock Xen has as well.
    const STOCK: [Self; 2] = [Self::Dom0, Self::DriverDomain];

    fn is_for(self, system: &System) -> bool {
        match self {
            Self::Dom0 => true,
            Self::DriverDomain => system.hypervisor != Hypervisor::None,
            Self::Switch | Self::Twin(_) => system.name == "tandem",
        }
    }

    /// Where its guest's loads run.
    fn place(self) -> Place {
        match self {
            Self::Dom0 => Place::Guest,
            Self::DriverDomain => Place::Driven,
            Self::Switch => Place::Switched,
            Self::Twin(mode) => Place::Twinned(mode),
        }
    }

    /// Is the NIC a driver domain's?
    fn gives_away(self) -> bool {
        self != Self::Dom0
    }

    fn remark(self) -> &'static str {
        match self {
            Self::Dom0 => "",
            Self::DriverDomain => " with a driver domain",
            Self::Switch => " with a switch and a driver domain",
            Self::Twin(Mode::Mirror) => " with a twin, mirror",
        }
    }

    /// Behind the kind of bench, in files' names.
    fn suffix(self) -> &'static str {
        match self {
            Self::Dom0 => "",
            Self::DriverDomain => "-driver",
            Self::Switch => "-switch",
            Self::Twin(Mode::Mirror) => "-mirror",
        }
    }

    /// What dom0 does. Its own loads come first, while there is no other domain.
    fn jobs(self, kind: Kind, native: bool, count: u64) -> String {
        match (self, kind, native) {
            (Self::DriverDomain, ..) => format!("toolstack+driven_loads:{}:{count}+poweroff", kind.word()),
            (Self::Switch, ..) => format!("toolstack+switched_loads:{count}:switch+poweroff"),
            (Self::Twin(mode), ..) => format!("toolstack+switched_loads:{count}:{}+poweroff", mode.word()),
            (_, Kind::Net, true) => format!("nic:e1000+loads:dom0:net:{count}+poweroff"),
            (_, Kind::Disk, true) => format!("nvme+loads:dom0:disk:{count}:/dev/nvme0n1+poweroff"),
            (_, Kind::Net, false) => {
                format!("toolstack+nic:e1000+loads:dom0:net:{count}+bridge:e1000+guest_loads:net:{count}+poweroff")
            }
            (_, Kind::Disk, false) => {
                format!("toolstack+nvme+loads:dom0:disk:{count}:/dev/nvme0n1+guest_loads:disk:{count}+poweroff")
            }
        }
    }
}

fn measure(
    kind: Kind,
    boot: Boot,
    options: &Options,
    system: &System,
    images: &Images,
    profiler: &Profiler,
) -> Result<Vec<Cost>> {
    let name = format!("bench-{}-{}{}", system.name, kind.word(), boot.suffix());
    let count = options.operations.unwrap_or(2000);
    ensure!((200..=1_000_000).contains(&count), "--operations is to be from 200 to 1000000");
    let jobs = boot.jobs(kind, system.hypervisor == Hypervisor::None, count);
    let profile = host::target("logs")?.join(format!("{name}.profile"));
    let wire = Wire::start(&name)?;
    let mut machine = Machine::new(&name, &system.hypervisor, images, 1, &jobs);
    machine.hypervisor_args = "dom0_mem=768M,max:768M dom0_max_vcpus=1 loglvl=warning".into();
    machine.kernel_args = format!("quiet nokaslr norandmaps {}", machine.kernel_args);
    machine.memory_mib = 2048;
    machine.cpu_model = Some("qemu64".into());
    machine.timeout_s = 3000;
    machine.accel = profiler.accel(&profile, wire.socket());
    let clock = ["-icount", "shift=0,sleep=off", "-rtc", "base=2024-01-01,clock=vm", "-seed", "1"];
    machine.accel.extend(clock.map(String::from));
    if boot.gives_away() {
        // xl gives no device away without an IOMMU.
        machine.chipset = "q35";
        machine.devices.push("intel-iommu,intremap=off");
    }
    machine.devices.push("e1000,netdev=wire,mac=52:54:00:74:61:6e,romfile=");
    if kind == Kind::Disk {
        machine.accel.extend(profiler.disk("disk"));
        machine.devices.push("nvme,drive=disk,serial=null");
    }
    let outcome = machine.start()?.finish(|_| false)?;
    costs(system, boot, &outcome, &profile)
        .with_context(|| format!("{}{} (log {})", system.name, boot.remark(), run::relative(&outcome.log)))
}

/// Matches the windows of the profile with the loads that were reported, both in the order in which they ran.
fn costs(system: &System, boot: Boot, outcome: &Outcome, file: &Path) -> Result<Vec<Cost>> {
    let reports: Vec<&str> =
        outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: ").map(|(_, report)| report.trim())).collect();
    if let Some(failed) = reports.iter().find(|r| r.contains("FAIL")) {
        anyhow::bail!("{failed}");
    }
    ensure!(outcome.ending == Ending::PowerOff, "it did not get to its end: {}", run::ended(&outcome.ending));
    let windows = profile::read(file)?;
    let map = Map::read(reports.iter().copied());
    let mut place = Place::Dom0;
    let mut windows = windows.iter();
    let mut found = Vec::new();
    for report in &reports {
        let Some((subject, rest)) = report.split_once(' ') else { continue };
        match subject {
            "loads" => {
                place = if rest == DOM0 { Place::Dom0 } else { boot.place() };
            }
            "load" => {
                let window = windows.next().context("a load without a window")?;
                let units: u32 = field(rest, "units").and_then(|u| u.parse().ok()).context("a load without units")?;
                ensure!(map.knows(place.domain()), "nothing is known of the modules of {}", place.domain());
                found.push(Cost {
                    system: system.name,
                    place,
                    load: rest.split(' ').next().unwrap_or_default().into(),
                    parts: per_unit(&map.divide(window, place.domain()), units.max(1)),
                    events: per_unit(&map.events(window, place.domain()), units.max(1)),
                });
            }
            _ => {}
        }
    }
    ensure!(windows.next().is_none(), "a window without a load");
    ensure!(!found.is_empty(), "no load ran");
    Ok(found)
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn per_unit(sums: &[u64], units: u32) -> Vec<f64> {
    sums.iter().map(|s| *s as f64 / f64::from(units)).collect()
}

/// Tables on the terminal, all figures as CSV, pictures.
fn report(kind: Kind, costs: &[Cost]) -> Result<()> {
    let stem = kind.word();
    let title = match kind {
        Kind::Net => "Network",
        Kind::Disk => "Disk",
    };
    for place in Place::ALL.into_iter().filter(|p| costs.iter().any(|c| c.place == *p)) {
        let mut total = Table {
            title: format!("{title}, {}: all components", place.name()),
            unit: "instructions".into(),
            ..Table::default()
        };
        let mut own = Table { title: format!("{title}, {}: the hypervisor", place.name()), ..total.clone() };
        for cost in costs.iter().filter(|c| c.place == place || c.system == "native") {
            total.set(cost.system, &cost.load, cost.total());
            if cost.system != "native" {
                own.set(cost.system, &cost.load, cost.part(Part::Hypervisor));
            }
        }
        println!("\n{}\n{}", total.text("tandem", BASELINE), own.text("tandem", BASELINE));
    }
    print!("{}", per_component(costs));
    print!("{}", aims(costs));
    let dir = host::target("bench")?;
    let csv = dir.join(format!("{stem}.csv"));
    std::fs::write(&csv, as_csv(costs))?;
    let mut written = vec![run::relative(&csv)];
    for (name, heading, loads) in pictures(kind) {
        let picture = dir.join(format!("{name}.svg"));
        let groups: Vec<Group> = loads.iter().map(|load| group(costs, load)).collect();
        let parts: Vec<&str> = Part::ALL.iter().map(|p| p.name()).collect();
        stacked::bars(heading, "instructions", &parts, &groups, &picture)?;
        written.push(run::relative(&picture));
    }
    println!("Written: {}", written.join(" "));
    Ok(())
}

/// Name, heading, and loads of each picture.
type Picture = (&'static str, &'static str, &'static [&'static str]);

fn pictures(kind: Kind) -> &'static [Picture] {
    match kind {
        Kind::Net => &[
            ("net-transmit", "Instructions for a packet that is sent", &["send-1500", "tcp-send"]),
            ("net-receive", "Instructions for a packet that is received", &["receive-1500", "tcp-receive"]),
            ("net-ping", "Instructions for a ping's round trip", &["ping"]),
            ("net-web", "Instructions for a web page", &["web-1k", "web-16k", "web-fork-1k", "web-fork-16k"]),
        ],
        Kind::Disk => &[
            ("disk-read", "Instructions for a request", &["random-read-32", "sequential-read-32", "random-read-1"]),
            ("disk-write", "Instructions for a request", &["random-write-32", "sequential-write-32", "random-write-1"]),
        ],
    }
}

fn group(costs: &[Cost], load: &str) -> Group {
    let bar = |cost: &Cost| {
        let place = if cost.system == "native" { "" } else { cost.place.short() };
        (format!("{} {place}", cost.system).trim_end().into(), cost.parts.clone())
    };
    let mut found: Vec<&Cost> = costs.iter().filter(|c| c.load == load).collect();
    found.sort_by_key(|c| (c.system != "native", Place::ALL.iter().position(|p| *p == c.place)));
    Group { name: load.into(), bars: found.into_iter().map(bar).collect() }
}

/// What happens beside instructions, for a unit of each load.
pub fn per_event(costs: &[Cost]) -> String {
    let mut out = format!("{:<22}{:<8}{:<30}", "events", "", "");
    for event in Event::ALL {
        let _ = write!(out, "{:>20}", event.name());
    }
    out.push('\n');
    for load in loads(costs) {
        for place in Place::ALL {
            for cost in costs.iter().filter(|c| c.load == load && c.place == place) {
                let place = if cost.system == "native" { "" } else { place.name() };
                let _ = write!(out, "{load:<22}{:<8}{place:<30}", cost.system);
                for count in &cost.events {
                    let _ = write!(out, "{count:>20.2}");
                }
                out.push('\n');
            }
        }
    }
    out
}

/// What each load costs, by component.
pub fn per_component(costs: &[Cost]) -> String {
    let mut out = format!("{:<22}{:<8}{:<30}", "by component", "", "");
    for part in Part::ALL {
        let _ = write!(out, "{:>18}", part.name());
    }
    out.push_str(&format!("{:>10}\n", "all"));
    for load in loads(costs) {
        for place in Place::ALL {
            for cost in costs.iter().filter(|c| c.load == load && c.place == place) {
                let place = if cost.system == "native" { "" } else { place.name() };
                let _ = write!(out, "{load:<22}{:<8}{place:<30}", cost.system);
                for part in &cost.parts {
                    let _ = write!(out, "{:>18}", if *part < 0.5 { "-".into() } else { format!("{part:.0}") });
                }
                let _ = writeln!(out, "{:>10.0}", cost.total());
            }
        }
    }
    out
}

fn as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,place");
    for part in Part::ALL {
        let _ = write!(out, ",{}", part.name());
    }
    out.push_str(",all\n");
    for cost in costs {
        let place = if cost.system == "native" { "" } else { cost.place.name() };
        let _ = write!(out, "{},{},{place}", cost.load, cost.system);
        for part in &cost.parts {
            let _ = write!(out, ",{part:.1}");
        }
        let _ = writeln!(out, ",{:.1}", cost.total());
    }
    out
}

/// The loads in the order in which they ran.
pub fn loads(costs: &[Cost]) -> Vec<&str> {
    let mut loads: Vec<&str> = Vec::new();
    for cost in costs {
        if !loads.contains(&cost.load.as_str()) {
            loads.push(&cost.load);
        }
    }
    loads
}

/// What is aimed at, as a share of stock Xen's figure: of all, and of the hypervisor's own instructions.
fn aim(load: &str) -> (f64, f64) {
    match load {
        "ping" => (0.75, 0.75),
        // Most of a page from a server of one process is Linux' own.
        _ if load.starts_with("web-fork") => (0.8, 0.75),
        _ => (1.0, 0.75),
    }
}

/// Which aims are missed, and how many there are.
fn aims(costs: &[Cost]) -> String {
    let mut out = String::new();
    let (mut met, mut all) = (0, 0);
    for load in loads(costs) {
        for place in Place::ALL {
            let of = |system| costs.iter().find(|c| c.system == system && c.load == load && c.place == place);
            let (Some(ours), Some(xen)) = (of("tandem"), of(BASELINE)) else { continue };
            let (total, own) = aim(load);
            let pairs = [
                ("all", ours.total() / xen.total(), total),
                ("hypervisor", ours.part(Part::Hypervisor) / xen.part(Part::Hypervisor), own),
            ];
            for (what, ratio, aim) in pairs {
                all += 1;
                if ratio <= aim {
                    met += 1;
                } else {
                    let _ = writeln!(out, "missed: {load}, {}, {what}: {ratio:.3} of Xen's, aim {aim}", place.name());
                }
            }
        }
    }
    if all == 0 {
        return out;
    }
    format!("{out}{met} of {all} aims met\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(system: &'static str, place: Place, hypervisor: f64) -> Cost {
        let mut parts = vec![100.0; Part::ALL.len()];
        parts[7] = hypervisor;
        Cost { system, place, load: "ping".into(), parts, events: Vec::new() }
    }

    #[test]
    fn an_aim_that_is_missed_is_named() {
        let costs = [cost(BASELINE, Place::Guest, 1000.0), cost("tandem", Place::Guest, 700.0)];
        let said = aims(&costs);
        assert!(said.contains("missed: ping, guest through dom0, all: 0.833"), "{said}");
        assert!(said.ends_with("1 of 2 aims met\n"), "{said}");
        assert_eq!(aims(&costs[..1]), "");
    }

    #[test]
    fn both_kinds_have_a_boot_with_a_driver_domain() {
        let system = |hypervisor| System { name: "any", hypervisor };
        assert!(!Boot::DriverDomain.is_for(&system(Hypervisor::None)));
        assert!(Boot::DriverDomain.is_for(&system(Hypervisor::Elf("xen.elf".into()))));
        let jobs = |kind| Boot::DriverDomain.jobs(kind, false, 200);
        assert_eq!(jobs(Kind::Net), "toolstack+driven_loads:net:200+poweroff");
        assert_eq!(jobs(Kind::Disk), "toolstack+driven_loads:disk:200+poweroff");
    }

    #[test]
    fn the_csv_has_every_component() {
        let text = as_csv(&[cost("native", Place::Dom0, 0.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        assert_eq!(lines[1], "ping,native,,100.0,100.0,100.0,100.0,100.0,100.0,100.0,0.0,100.0,800.0");
    }
}
