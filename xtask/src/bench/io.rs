//! `./tandem bench net`, `disk` and `files`: what a packet, a page, a request or a C file that is compiled costs on
//! native Linux, in dom0 and in a guest that dom0 serves, on stock Xen and on Tandem, in instructions and divided by
//! component. Disks, and files on them, also by the hypervisor's device channels with a driver domain behind them:
//! `./tandem bench disk vm` measures only that, beside a driver domain's own back end.
//!
//! The loads are images/src/traffic.c and blocks.c, in the order of images/init/load.sh. The other end of the wire is
//! in virtual time (`peer::Wire`), and so is the disk behind nvme (bench/plugin/disk.c), QEMU's null device or, for
//! files, a copy of the extended image: figures repeat, those of files to about one in a hundred.

pub mod bytes;
mod report;

use super::{systems, System};
use crate::options::Options;
use crate::run;
use anyhow::{ensure, Context, Result};
use bench::profile::{self, Map, Names, Part, Window, DOM0};
pub use report::{channel_aims, loads, per_component, per_event};
use std::path::Path;
use testbed::counter::Profiler;
use testbed::host;
use testbed::images::{self, elf, Images};
use testbed::kallsyms;
use testbed::machine::{field, Ending, Hypervisor, Machine, Outcome};
use testbed::peer::Wire;
use testbed::progress::step;
use testbed::symbols;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Net,
    /// Four of the loads of [`Kind::Net`].
    Few,
    Disk,
    /// A compiler's work, and a file that is written and read, on a disk's file system.
    Files,
}

impl Kind {
    /// In jobs and in files' names.
    fn word(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Few => "few",
            Self::Disk => "disk",
            Self::Files => "files",
        }
    }

    /// Is its device a disk?
    fn is_of_disks(self) -> bool {
        matches!(self, Self::Disk | Self::Files)
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
    /// What happened per unit, in the order of [`profile::Event::ALL`].
    pub events: Vec<f64>,
    /// Component, function and instructions per unit, those of most first.
    pub functions: Vec<(Part, String, f64)>,
}

/// Which domain ran a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Dom0,
    Guest,
    /// A guest whose interface or disk a driver domain serves.
    Driven,
    /// A guest whose interface or disk is the hypervisor's, and behind that is a driver domain.
    Switched,
    /// The same, and the way out is a twin.
    Twinned(Mode),
}

/// How a twin sees its domain's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Mirror,
    Stlb,
}

impl Mode {
    /// In jobs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
            Self::Stlb => "stlb",
        }
    }
}

impl Place {
    const ALL: [Self; 6] =
        [Self::Dom0, Self::Guest, Self::Driven, Self::Switched, Self::Twinned(Mode::Mirror), Self::Twinned(Mode::Stlb)];

    fn name(self) -> &'static str {
        match self {
            Self::Dom0 => "dom0",
            Self::Guest => "guest through dom0",
            Self::Driven => "guest through a driver domain",
            Self::Switched => "guest through channel and domain",
            Self::Twinned(Mode::Mirror) => "guest through a twin, mirror",
            Self::Twinned(Mode::Stlb) => "guest through a twin, stlb",
        }
    }

    /// Under a bar of a picture.
    fn short(self) -> &'static str {
        match self {
            Self::Dom0 => "dom0",
            Self::Guest => "guest",
            Self::Driven => "driven",
            Self::Switched => "switched",
            Self::Twinned(mode) => mode.word(),
        }
    }

    /// As the domain is called in reports.
    pub fn domain(self) -> &'static str {
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
    let (costs, failures) = match (kind, options.words.get(1).map(String::as_str)) {
        (Kind::Disk | Kind::Files, Some("vm")) => {
            options.takes_words(2)?;
            let options = Options { words: vec![kind.word().into(), "tandem".into()], ..options.clone() };
            measure_all(kind, &options, &[Boot::DriverDomain, Boot::Switch])?
        }
        (Kind::Disk | Kind::Files, _) => measure_all(kind, options, &[Boot::Dom0, Boot::DriverDomain, Boot::Switch])?,
        _ => measure_all(kind, options, &Boot::STOCK)?,
    };
    report::report(kind, &costs)?;
    for failure in &failures {
        println!("FAIL: {failure:#}");
    }
    Ok(failures.is_empty())
}

/// All figures of these boots, and why some are missing.
pub fn measure_all(kind: Kind, options: &Options, boots: &[Boot]) -> Result<(Vec<Cost>, Vec<anyhow::Error>)> {
    count(kind, options)?;
    let systems = systems(options)?;
    let images = images::toolstack()?;
    let profiler = Profiler::build()?;
    let mut costs = Vec::new();
    let mut failures = Vec::new();
    // All systems run the same kernel.
    let mut names = kernel_names(&images);
    for system in systems {
        if system.name == "tandem" {
            names.hypervisor = hypervisor_names(&system.hypervisor)?;
        } else {
            names.hypervisor.clear();
        }
        for boot in boots.iter().copied().filter(|b| b.is_for(&system)) {
            let what = format!("measuring {}{}", system.name, boot.remark());
            match step(&what, || measure(kind, boot, options, &system, (&images, &names), &profiler)) {
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
    /// Those of a guest whose device is the hypervisor's, with a driver domain behind it.
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
            Self::Switch => " with a channel and a driver domain",
            Self::Twin(Mode::Mirror) => " with a twin, mirror",
            Self::Twin(Mode::Stlb) => " with a twin, stlb",
        }
    }

    /// Behind the kind of bench, in files' names.
    fn suffix(self) -> &'static str {
        match self {
            Self::Dom0 => "",
            Self::DriverDomain => "-driver",
            Self::Switch => "-switch",
            Self::Twin(Mode::Mirror) => "-mirror",
            Self::Twin(Mode::Stlb) => "-stlb",
        }
    }

    /// What dom0 does. Its own loads come first, while there is no other domain.
    fn jobs(self, kind: Kind, native: bool, count: u64) -> String {
        let word = kind.word();
        match (self, kind, native) {
            (Self::DriverDomain, ..) => format!("toolstack+driven_loads:{word}:{count}+poweroff"),
            (Self::Switch, ..) => format!("toolstack+switched_loads:{count}:switch:{word}+poweroff"),
            (Self::Twin(mode), ..) => format!("toolstack+switched_loads:{count}:{}:{word}+poweroff", mode.word()),
            (_, Kind::Net | Kind::Few, true) => format!("nic:e1000+loads:dom0:{word}:{count}+poweroff"),
            (_, Kind::Disk | Kind::Files, true) => format!("nvme+loads:dom0:{word}:{count}:/dev/nvme0n1+poweroff"),
            (_, Kind::Net | Kind::Few, false) => {
                format!(
                    "toolstack+nic:e1000+loads:dom0:{word}:{count}+bridge:e1000+guest_loads:{word}:{count}+poweroff"
                )
            }
            (_, Kind::Disk | Kind::Files, false) => {
                format!("toolstack+nvme+loads:dom0:{word}:{count}:/dev/nvme0n1+guest_loads:{word}:{count}+poweroff")
            }
        }
    }
}

/// How many packets, requests or files of a load.
fn count(kind: Kind, options: &Options) -> Result<u64> {
    let (usual, least, most) = match kind {
        Kind::Net | Kind::Few | Kind::Disk => (2000, 200, 1_000_000),
        Kind::Files => (40, 4, 400),
    };
    let count = options.operations.unwrap_or(usual);
    ensure!((least..=most).contains(&count), "--operations is to be from {least} to {most}");
    Ok(count)
}

fn measure(
    kind: Kind,
    boot: Boot,
    options: &Options,
    system: &System,
    (images, names): (&Images, &Names),
    profiler: &Profiler,
) -> Result<Vec<Cost>> {
    let (loads, map) = record(kind, boot, count(kind, options)?, system, images, profiler)?;
    let cost = |load: Load| Cost {
        system: system.name,
        place: load.place,
        parts: per_unit(&map.divide(&load.window, load.place.domain()), load.units),
        events: per_unit(&map.events(&load.window, load.place.domain()), load.units),
        functions: functions(&map, &load, names),
        load: load.name,
    };
    Ok(loads.into_iter().map(cost).collect())
}

/// The functions of the domains' kernel.
pub fn kernel_names(images: &Images) -> Names {
    let kernel = elf::unpack_bzimage(&images.kernel).and_then(|kernel| kallsyms::functions(&kernel));
    let kernel = kernel.unwrap_or_else(|error| {
        println!("the kernel's functions have no names: {error:#}");
        Vec::new()
    });
    Names { kernel, ..Names::default() }
}

/// The functions of Tandem; of what is no image of it nothing is known.
pub fn hypervisor_names(hypervisor: &Hypervisor) -> Result<Vec<(u64, String)>> {
    match hypervisor {
        Hypervisor::Elf(image) => symbols::names(&std::fs::read(image)?),
        _ => Ok(Vec::new()),
    }
}

/// Component, function and instructions per unit of a load, those of most first.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn functions(map: &Map, load: &Load, names: &Names) -> Vec<(Part, String, f64)> {
    let all = map.functions(&load.window, load.place.domain(), names);
    all.into_iter().map(|f| (f.part, f.name, f.count as f64 / f64::from(load.units))).collect()
}

/// A load that ran, and what ran meanwhile.
pub struct Load {
    /// Where it ran.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Packets, requests or pages that it moved, at least 1.
    pub units: u32,
    /// What ran.
    pub window: Window,
}

/// Boots for loads of `count` units, and has everything counted that runs with them.
pub fn record(
    kind: Kind,
    boot: Boot,
    count: u64,
    system: &System,
    images: &Images,
    profiler: &Profiler,
) -> Result<(Vec<Load>, Map)> {
    let name = format!("bench-{}-{}{}", system.name, kind.word(), boot.suffix());
    let jobs = boot.jobs(kind, system.hypervisor == Hypervisor::None, count);
    let profile = host::target("logs")?.join(format!("{name}.profile"));
    let wire = Wire::start(&name)?;
    let mut machine = counted(&name, &system.hypervisor, images, 1, &jobs);
    if boot == Boot::Twin(Mode::Stlb) {
        machine.hypervisor_args += " twin-stlb";
    }
    machine.accel.splice(0..0, profiler.accel(&profile, wire.socket()));
    if boot.gives_away() {
        give_away(&mut machine);
    }
    machine.devices.push(NIC);
    // Each machine begins with the same files.
    let medium = host::target("images")?.join(format!("{name}.ext4"));
    if kind == Kind::Files {
        std::fs::copy(images::tree::build()?, &medium)?;
    }
    if kind.is_of_disks() {
        machine.accel.extend(profiler.disk("disk", Some(medium.as_path()).filter(|_| kind == Kind::Files)));
        machine.devices.push("nvme,drive=disk,serial=null");
    }
    let outcome = machine.start()?.finish(|_| false)?;
    if kind == Kind::Files {
        std::fs::remove_file(&medium)?;
    }
    loads_of(boot.place(), &outcome, &profile)
        .with_context(|| format!("{}{} (log {})", system.name, boot.remark(), run::relative(&outcome.log)))
}

/// The NIC at the wire.
pub const NIC: &str = "e1000,netdev=wire,mac=52:54:00:74:61:6e,romfile=";

/// A machine whose clock is the count of instructions, without plugins and devices.
pub fn counted(name: &str, hypervisor: &Hypervisor, images: &Images, cpus: u32, jobs: &str) -> Machine {
    let mut machine = Machine::new(name, hypervisor, images, cpus, jobs);
    machine.hypervisor_args = "dom0_mem=768M,max:768M dom0_max_vcpus=1 loglvl=warning".into();
    machine.kernel_args = format!("quiet nokaslr norandmaps {}", machine.kernel_args);
    machine.memory_mib = 2048;
    machine.cpu_model = Some("qemu64".into());
    machine.timeout_s = 3000;
    let clock = ["-icount", "shift=0,sleep=off", "-rtc", "base=2024-01-01,clock=vm", "-seed", "1"];
    machine.accel = clock.map(String::from).to_vec();
    machine
}

/// xl gives no device away without an IOMMU.
pub fn give_away(machine: &mut Machine) {
    machine.chipset = "q35";
    machine.devices.push("intel-iommu,intremap=off");
}

/// Matches the windows of the profile with the loads that were reported, both in the order in which they ran.
/// `guests` is where loads run that are not dom0's.
pub fn loads_of(guests: Place, outcome: &Outcome, file: &Path) -> Result<(Vec<Load>, Map)> {
    let reports: Vec<&str> =
        outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: ").map(|(_, report)| report.trim())).collect();
    if let Some(failed) = reports.iter().find(|r| r.contains("FAIL")) {
        anyhow::bail!("{failed}");
    }
    ensure!(outcome.ending == Ending::PowerOff, "it did not get to its end: {}", run::ended(&outcome.ending));
    let map = Map::read(reports.iter().copied());
    let mut place = Place::Dom0;
    let mut windows = profile::read(file)?.into_iter();
    let mut found = Vec::new();
    for report in &reports {
        let Some((subject, rest)) = report.split_once(' ') else { continue };
        match subject {
            "loads" => {
                place = if rest == DOM0 { Place::Dom0 } else { guests };
            }
            "load" => {
                let window = windows.next().context("a load without a window")?;
                let units: u32 = field(rest, "units").and_then(|u| u.parse().ok()).context("a load without units")?;
                ensure!(map.knows(place.domain()), "nothing is known of the modules of {}", place.domain());
                let name = rest.split(' ').next().unwrap_or_default().into();
                found.push(Load { place, name, units: units.max(1), window });
            }
            _ => {}
        }
    }
    ensure!(windows.next().is_none(), "a window without a load");
    ensure!(!found.is_empty(), "no load ran");
    Ok((found, map))
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn per_unit(sums: &[u64], units: u32) -> Vec<f64> {
    sums.iter().map(|s| *s as f64 / f64::from(units)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_have_a_boot_with_a_driver_domain() {
        let system = |hypervisor| System { name: "any", hypervisor };
        assert!(!Boot::DriverDomain.is_for(&system(Hypervisor::None)));
        assert!(Boot::DriverDomain.is_for(&system(Hypervisor::Elf("xen.elf".into()))));
        let jobs = |kind| Boot::DriverDomain.jobs(kind, false, 200);
        assert_eq!(jobs(Kind::Net), "toolstack+driven_loads:net:200+poweroff");
        assert_eq!(jobs(Kind::Disk), "toolstack+driven_loads:disk:200+poweroff");
        assert_eq!(jobs(Kind::Files), "toolstack+driven_loads:files:200+poweroff");
    }
}
