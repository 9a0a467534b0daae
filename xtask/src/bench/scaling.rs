//! `./tandem bench scaling`: one to eight guests send, then receive at one time through the twin of an e1000, on one
//! CPU and on several: what a packet costs with many guests, and whether more CPUs move more packets in the same time.
//!
//! QEMU runs the CPUs in turns in one thread, so that each run repeats. What they do in one round they are taken to do
//! at the same time (bench/plugin/profile.c): the time of a window is the sum, over its rounds, of the longest turn.

use super::io::{counted, functions, give_away, hypervisor_names, kernel_names, loads_of, Load, Mode, Place, NIC};
use crate::options::Options;
use crate::run;
use anyhow::{bail, ensure, Context, Result};
use bench::profile::{Map, Names, Part};
use std::fmt::Write;
use testbed::counter::Profiler;
use testbed::host;
use testbed::images;
use testbed::machine::Hypervisor;
use testbed::peer::Wire;
use testbed::progress::step;

/// Numbers of CPUs.
const CPUS: [u32; 3] = [1, 2, 4];
/// Guests at the most: one, two, four and so on up to here.
const MOST: u32 = 8;
/// What a packet may cost with any number of guests, of what it costs with one.
const FLAT: f64 = 1.05;
/// As many guests as are enough to keep all CPUs busy: with them more CPUs are to move more packets in a time.
const MANY: u32 = 4;

/// A load of so many guests on so many CPUs.
struct Figure {
    cpus: u32,
    /// `send` or `receive`.
    load: String,
    guests: u32,
    /// Instructions per packet, in the order of [`Part::ALL`].
    parts: Vec<f64>,
    /// The same by component and function, those of most first.
    functions: Vec<(Part, String, f64)>,
    /// Packets in a million instructions of each CPU's time.
    rate: f64,
    /// The share of the time that each CPU was busy, in the order of the CPUs.
    busy: Vec<f64>,
    /// The share of all CPUs' time in which they waited for a lock of the hypervisor's.
    waited: f64,
}

impl Figure {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn new(cpus: u32, load: &Load, map: &Map, names: &Names) -> Result<Self> {
        let (way, guests) = load.name.rsplit_once('-').context("a load without a number of guests")?;
        let (units, window) = (f64::from(load.units), &load.window);
        let divided = map.divide(window, load.place.domain());
        ensure!(window.time != 0, "a window without a time");
        let time = window.time as f64;
        let executed = |n| window.cpus.iter().find(|cpu| cpu.number == n).map_or(0, |cpu| cpu.executed);
        let waited: u64 = window.cpus.iter().map(|cpu| cpu.waited).sum();
        Ok(Self {
            cpus,
            load: way.into(),
            guests: guests.parse()?,
            parts: divided.iter().map(|sum| *sum as f64 / units).collect(),
            functions: functions(map, load, names),
            rate: units * 1e6 / time,
            busy: (0..cpus).map(|n| executed(n) as f64 / time).collect(),
            waited: waited as f64 / (time * f64::from(cpus)),
        })
    }

    fn all(&self) -> f64 {
        self.parts.iter().sum()
    }

    fn part(&self, part: Part) -> f64 {
        Part::ALL.iter().zip(&self.parts).find(|(p, _)| **p == part).map_or(0.0, |(_, figure)| *figure)
    }
}

/// Measures and shows; false if something could not be measured.
pub fn run(options: &Options) -> Result<bool> {
    let count = options.operations.unwrap_or(2000);
    ensure!((200..=1_000_000).contains(&count), "--operations is to be from 200 to 1000000");
    let mut wanted = Vec::new();
    for word in options.words.get(1..).unwrap_or_default() {
        match CPUS.into_iter().find(|cpus| cpus.to_string() == *word) {
            Some(cpus) => wanted.push(cpus),
            None => bail!("`{word}` is no number of CPUs here; there are {CPUS:?}"),
        }
    }
    if wanted.is_empty() {
        wanted = CPUS.into();
    }
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    let (mut figures, mut failures) = (Vec::new(), Vec::new());
    for cpus in wanted {
        match step(&format!("measuring on {cpus} CPUs"), || measure(&hypervisor, cpus, count)) {
            Ok(found) => figures.extend(found),
            Err(error) => failures.push(error),
        }
    }
    print!("\n{}\n{}", table(&figures), aims(&figures));
    let csv = host::target("bench")?.join("scaling.csv");
    std::fs::write(&csv, as_csv(&figures))?;
    let functions = host::target("bench")?.join("scaling-functions.csv");
    std::fs::write(&functions, functions_as_csv(&figures))?;
    println!("Written: {}, {}", run::relative(&csv), run::relative(&functions));
    for failure in &failures {
        println!("FAIL: {failure:#}");
    }
    Ok(failures.is_empty())
}

fn measure(hypervisor: &Hypervisor, cpus: u32, count: u64) -> Result<Vec<Figure>> {
    let (images, profiler) = (images::toolstack()?, Profiler::build()?);
    let names = Names { hypervisor: hypervisor_names(hypervisor)?, ..kernel_names(&images) };
    let name = format!("bench-scaling-{cpus}");
    let profile = host::target("logs")?.join(format!("{name}.profile"));
    let wire = Wire::start(&name)?;
    let jobs = format!("toolstack+scaling:{count}:{MOST}+poweroff");
    let mut machine = counted(&name, hypervisor, &images, cpus, &jobs);
    // All of it below 4 GiB, where an address in QEMU tells the frame.
    machine.memory_mib = 2800;
    machine.timeout_s = 6000;
    machine.accel.splice(0..0, profiler.accel_in_turns(&profile, wire.socket()));
    give_away(&mut machine);
    machine.devices.push(NIC);
    let outcome = machine.start()?.finish(|_| false)?;
    let place = Place::Twinned(Mode::Mirror);
    let (loads, map) = loads_of(place, &outcome, &profile)
        .with_context(|| format!("{cpus} CPUs (log {})", run::relative(&outcome.log)))?;
    loads.iter().map(|load| Figure::new(cpus, load, &map, &names)).collect()
}

/// Parts of a packet's cost that have a column of their own; all others are the rest.
const COLUMNS: [Part; 4] = [Part::Kernel, Part::FrontEnd, Part::Twin, Part::Hypervisor];

fn table(figures: &[Figure]) -> String {
    let mut out = format!("{:<10}{:>6}{:>8}", "load", "CPUs", "guests");
    for part in COLUMNS {
        let _ = write!(out, "{:>12}", part.name());
    }
    let _ = writeln!(
        out,
        "{:>8}{:>9}{:>8}{:>11}{:>8}{:>9}  busy",
        "rest", "all", "of 1's", "packets/M", "speed", "waiting"
    );
    for f in figures {
        let _ = write!(out, "{:<10}{:>6}{:>8}", f.load, f.cpus, f.guests);
        for part in COLUMNS {
            let _ = write!(out, "{:>12.0}", f.part(part));
        }
        let rest = f.all() - COLUMNS.map(|part| f.part(part)).iter().sum::<f64>();
        let speed = slower(figures, f, 1).map_or("-".into(), |one| format!("{:.2}", f.rate / one.rate));
        let share = of_one(figures, f).map_or("-".into(), |share| format!("{share:.3}"));
        let _ =
            write!(out, "{rest:>8.0}{:>9.0}{share:>8}{:>11.1}{speed:>8}{:>8.1}% ", f.all(), f.rate, f.waited * 100.0);
        for busy in &f.busy {
            let _ = write!(out, " {:.0}%", busy * 100.0);
        }
        out.push('\n');
    }
    out
}

fn as_csv(figures: &[Figure]) -> String {
    let mut out = String::from("load,cpus,guests,component,figure\n");
    for f in figures {
        let mut line = |what: &str, figure: f64| {
            let _ = writeln!(out, "{},{},{},{what},{figure:.4}", f.load, f.cpus, f.guests);
        };
        for (part, figure) in Part::ALL.iter().zip(&f.parts) {
            line(part.name(), *figure);
        }
        line("all", f.all());
        line("packets in a million", f.rate);
        line("waiting", f.waited);
        for (n, busy) in f.busy.iter().enumerate() {
            line(&format!("busy {n}"), *busy);
        }
    }
    out
}

/// A line for each load, numbers of CPUs and guests, and function that runs more than once in twenty packets. Names
/// have commas.
fn functions_as_csv(figures: &[Figure]) -> String {
    let mut out = String::from("load,cpus,guests,component,function,instructions\n");
    for f in figures {
        for (part, name, figure) in f.functions.iter().filter(|(.., figure)| *figure >= 0.05) {
            let _ = writeln!(out, "{},{},{},{},\"{name}\",{figure:.1}", f.load, f.cpus, f.guests, part.name());
        }
    }
    out
}

/// The same with so many CPUs.
fn slower<'a>(figures: &'a [Figure], f: &Figure, cpus: u32) -> Option<&'a Figure> {
    figures.iter().find(|other| other.load == f.load && other.guests == f.guests && other.cpus == cpus)
}

/// What a packet costs, as a share of what it costs if there is one guest.
fn of_one(figures: &[Figure], f: &Figure) -> Option<f64> {
    let one = figures.iter().find(|other| other.load == f.load && other.cpus == f.cpus && other.guests == 1)?;
    Some(f.all() / one.all())
}

/// Which aims are missed, and how many there are.
fn aims(figures: &[Figure]) -> String {
    let mut out = String::new();
    let (mut met, mut all) = (0, 0);
    let mut judge = |is_met: bool, missed: String| {
        all += 1;
        met += u32::from(is_met);
        if !is_met {
            let _ = writeln!(out, "missed: {missed}");
        }
    };
    for f in figures {
        let name = format!("{}, {} guests, {} CPUs", f.load, f.guests, f.cpus);
        if let Some(share) = of_one(figures, f).filter(|_| f.cpus == 1 && f.guests > 1) {
            judge(share <= FLAT, format!("{name}: a packet costs {share:.3} of one guest's, aim {FLAT}"));
        }
        let fewer = CPUS.into_iter().rfind(|cpus| *cpus < f.cpus).filter(|_| f.guests >= MANY);
        if let Some(slow) = fewer.and_then(|cpus| slower(figures, f, cpus)) {
            let growth = f.rate / slow.rate;
            judge(growth > 1.0, format!("{name}: {growth:.2} of the packets that {} CPUs move", slow.cpus));
        }
    }
    let _ = writeln!(out, "{met} of {all} aims met");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::profile::{Block, Cpu, Window};

    fn figure(cpus: u32, guests: u32, each: f64, rate: f64) -> Figure {
        let parts = vec![each / Part::ALL.len() as f64; Part::ALL.len()];
        let functions = vec![(Part::Hypervisor, "f<a, b>".into(), each), (Part::Kernel, "g".into(), 0.04)];
        Figure {
            cpus,
            load: "send".into(),
            guests,
            parts,
            functions,
            rate,
            busy: vec![1.0; cpus as usize],
            waited: 0.0,
        }
    }

    #[test]
    fn a_windows_time_is_that_of_all_cpus() {
        let cpu = |number, executed, waited| Cpu { number, executed, waited };
        let blocks = vec![Block { address: 0xffff_82d0_8020_0010, machine: 0x20_0010, count: 1500 }];
        let window = Window { time: 1000, blocks, cpus: vec![cpu(0, 900, 0), cpu(2, 600, 300)], ..Window::default() };
        let load = Load { place: Place::Dom0, name: "receive-8".into(), units: 10, window };
        let (map, names) =
            (Map::default(), Names { hypervisor: vec![(0xffff_82d0_8020_0000, "f".into())], ..Names::default() });
        let figure = Figure::new(4, &load, &map, &names).unwrap();
        assert_eq!((figure.load.as_str(), figure.guests, figure.all()), ("receive", 8, 150.0));
        assert_eq!(figure.functions, [(Part::Hypervisor, "f".into(), 150.0)]);
        assert_eq!((figure.rate, figure.busy, figure.waited), (10_000.0, vec![0.9, 0.0, 0.6, 0.0], 0.075));
        let untimed = Load { window: Window::default(), ..load };
        assert!(Figure::new(1, &untimed, &map, &names).is_err());
    }

    #[test]
    fn aims_are_that_it_is_flat_and_that_it_grows() {
        let flat = [figure(1, 1, 1000.0, 1.0), figure(1, 8, 1050.0, 1.0)];
        assert_eq!(aims(&flat), "1 of 1 aims met\n");
        let said = aims(&[figure(1, 1, 1000.0, 1.0), figure(1, 2, 1060.0, 1.0)]);
        assert!(said.contains("missed: send, 2 guests, 1 CPUs: a packet costs 1.060 of one guest's"), "{said}");
        assert!(said.ends_with("0 of 1 aims met\n"), "{said}");
        let grows = [figure(1, 8, 1.0, 100.0), figure(2, 8, 1.0, 150.0), figure(4, 8, 1.0, 140.0)];
        let said = aims(&grows);
        assert!(said.contains("missed: send, 8 guests, 4 CPUs: 0.93 of the packets that 2 CPUs move"), "{said}");
        assert!(said.ends_with("1 of 2 aims met\n"), "{said}");
        // One guest keeps one CPU busy, and no more.
        assert_eq!(aims(&[figure(1, 1, 1.0, 100.0), figure(2, 1, 1.0, 100.0)]), "0 of 0 aims met\n");
    }

    #[test]
    fn tables_have_a_line_for_each_figure() {
        let figures = [figure(1, 8, 900.0, 100.0), figure(2, 8, 900.0, 150.0)];
        let text = table(&figures);
        assert!(text.lines().nth(2).unwrap().contains("1.50"), "{text}");
        let csv = as_csv(&figures);
        assert_eq!(csv.lines().count(), 1 + 2 * (Part::ALL.len() + 3) + 3);
        assert!(csv.contains("send,2,8,packets in a million,150.0000\n"), "{csv}");
        let functions = functions_as_csv(&figures[1..]);
        assert_eq!(
            functions,
            "load,cpus,guests,component,function,instructions\nsend,2,8,hypervisor,\"f<a, b>\",900.0\n"
        );
    }
}
