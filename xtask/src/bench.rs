//! `./tandem bench boot|lmbench|memory|net|disk|files|twin-net|scaling|drivers`: the same images on native Linux,
//! Debian's Xen 4.17 and Tandem, in instructions. `./tandem bench restart` counts none: see `restart`. `scaling` has
//! several CPUs. `drivers` is about one of them, and memory too.
//!
//! QEMU runs with one CPU and `-icount shift=0,sleep=off`, so its clock is the count of instructions and a run repeats
//! exactly; the plugin of bench/plugin counts between marks. Halted CPUs count nothing.

mod drivers;
pub mod io;
mod restart;
mod scaling;
mod twin_net;

use crate::options::Options;
use crate::run;
use anyhow::{bail, ensure, Context, Result};
use bench::figures::{announced, costs};
use bench::marks::Marks;
use bench::table::Table;
use std::path::Path;
use testbed::counter::{Counter, USERSPACE};
use testbed::host;
use testbed::images::{self, Images};
use testbed::machine::{field, Ending, Hypervisor, Machine, Outcome};
use testbed::progress::step;

/// Marks of a boot, beside that of the first user program.
const ENTRY: u8 = 10;
const FIRST_OF_LINUX: u8 = 11;
const BASELINE: &str = "xen";

/// Measures one system into a column of the table.
type Measure = fn(&Bench, &System, &mut Table) -> Result<()>;

/// A system to measure.
pub struct System {
    pub name: &'static str,
    pub hypervisor: Hypervisor,
}

/// Measures and shows; false if a system could not be measured.
pub fn run(options: &Options) -> Result<bool> {
    let kind = options.words.first().map(String::as_str);
    let (stem, measure): (&str, Measure) = match kind {
        Some("boot") => ("boot", boot),
        Some("lmbench") => ("lmbench", lmbench),
        Some("memory") => ("memory", memory),
        Some("net") => return io::run(io::Kind::Net, options),
        Some("disk") => return io::run(io::Kind::Disk, options),
        Some("files") => return io::run(io::Kind::Files, options),
        Some("twin-net") => return twin_net::run(options),
        Some("scaling") => return scaling::run(options),
        Some("drivers") => return options.takes_words(1).and_then(|()| drivers::run(options)),
        Some("restart") => return restart::run(options),
        _ => bail!("./tandem bench boot, lmbench, memory, net, disk, files, twin-net, scaling, drivers or restart"),
    };
    let systems = systems(options)?;
    let bench = Bench { images: images::basic()?, counter: Counter::build()? };
    let (title, unit) = match kind {
        Some("boot") => ("Boot with 2 GiB, one CPU, Debian's kernel", "instructions"),
        Some("memory") => ("RAM that neither dom0 has nor is free", "KiB"),
        _ => ("lmbench's operations in dom0, one CPU", "instructions"),
    };
    let mut table = Table { title: title.into(), unit: unit.into(), ..Table::default() };
    let mut failures = Vec::new();
    for system in systems {
        let done = step(&format!("measuring {}", system.name), || measure(&bench, &system, &mut table));
        failures.extend(done.err());
    }
    let dir = host::target("bench")?;
    let (csv, picture) = (dir.join(format!("{stem}.csv")), dir.join(format!("{stem}.svg")));
    std::fs::write(&csv, table.csv())?;
    bench::plot::relative_bars(&table, BASELINE, &picture)?;
    println!("\n{}", table.text("tandem", BASELINE));
    println!("Written: {} {}", run::relative(&csv), run::relative(&picture));
    for failure in &failures {
        println!("FAIL: {failure:#}");
    }
    Ok(failures.is_empty())
}

/// Native Linux, stock Xen, and ours: what `--hypervisor` names, else the built image. Names after the kind of bench
/// choose among them.
fn systems(options: &Options) -> Result<Vec<System>> {
    let names = options.words.get(1..).unwrap_or_default();
    if let Some(other) = names.iter().find(|n| !["native", BASELINE, "tandem"].contains(&n.as_str())) {
        bail!("there is no system `{other}`; there are native, {BASELINE} and tandem");
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let mut systems = Vec::new();
    if wanted("native") {
        systems.push(System { name: "native", hypervisor: Hypervisor::None });
    }
    let xen = Hypervisor::choose(Some("xen"))?;
    if wanted(BASELINE) {
        systems.push(System { name: BASELINE, hypervisor: xen.clone() });
    }
    if wanted("tandem") {
        let ours = Hypervisor::choose(options.hypervisor.as_deref())?;
        if ours != xen {
            systems.push(System { name: "tandem", hypervisor: ours });
        }
    }
    Ok(systems)
}

struct Bench {
    images: Images,
    counter: Counter,
}

impl Bench {
    /// Boots `system` to do `jobs`, counting into marks.
    fn run(&self, system: &System, memory_mib: u32, jobs: &str) -> Result<(Outcome, Marks)> {
        let name = format!("bench-{}-{}", system.name, jobs.split(['+', ':']).next().unwrap_or(jobs));
        let counts = host::target("logs")?.join(format!("{name}.count"));
        let mut machine = Machine::new(&name, &system.hypervisor, &self.images, 1, jobs);
        machine.hypervisor_args = "dom0_mem=640M,max:640M dom0_max_vcpus=1 loglvl=warning".into();
        machine.kernel_args = format!("quiet nokaslr norandmaps {}", machine.kernel_args);
        machine.memory_mib = memory_mib;
        machine.cpu_model = Some("qemu64".into());
        machine.timeout_s = 900;
        machine.accel = self.counter.accel(&counts, &self.places(system)?);
        let clock = ["-icount", "shift=0,sleep=off", "-rtc", "base=2024-01-01,clock=vm", "-seed", "1"];
        machine.accel.extend(clock.map(String::from));
        let outcome = machine.start()?.finish(|_| false)?;
        ensure!(
            outcome.report("up").is_some() && outcome.ending == Ending::PowerOff,
            "{} did not get to its end: {} (log {})",
            system.name,
            run::ended(&outcome.ending),
            run::relative(&outcome.log)
        );
        Ok((outcome, Marks::read(&counts)?))
    }

    /// Where the loader enters the system, and where Linux proper begins.
    fn places(&self, system: &System) -> Result<[(u64, u8); 2]> {
        Ok(match &system.hypervisor {
            // The boot protocol's 32-bit entry of a bzImage, and the start of the unpacked kernel.
            Hypervisor::None => [(0x10_0000, ENTRY), (0x100_0000, FIRST_OF_LINUX)],
            Hypervisor::Elf(elf) => {
                let entry = images::elf::entry(&std::fs::read(elf)?)?;
                [(entry, ENTRY), (images::elf::xen_entry_of_bzimage(&self.images.kernel)?, FIRST_OF_LINUX)]
            }
        })
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn boot(bench: &Bench, system: &System, table: &mut Table) -> Result<()> {
    let (_, marks) = bench.run(system, 2048, "poweroff")?;
    let mark = |number, what: &str| marks.first(number).with_context(|| format!("{}: no mark at {what}", system.name));
    let entry = mark(ENTRY, "the loader's entry point")?;
    let linux = mark(FIRST_OF_LINUX, "the kernel's first instruction")?;
    let user = mark(USERSPACE, "userspace")?;
    let mut set = |row, figure: u64| table.set(system.name, row, figure as f64);
    set("entry to Linux' first instruction", linux.since(&entry).total());
    set("Linux' first instruction to userspace", user.since(&linux).total());
    set("of these in the hypervisor", user.since(&linux).hypervisor);
    set("entry to userspace", user.since(&entry).total());
    Ok(())
}

fn lmbench(bench: &Bench, system: &System, table: &mut Table) -> Result<()> {
    let (outcome, marks) = bench.run(system, 2048, "lmb+poweroff")?;
    let rows: Vec<_> = outcome.lines.iter().filter_map(|l| announced(l.split_once("TANDEM: lmb ")?.1)).collect();
    ensure!(!rows.is_empty(), "{}: lmb reported nothing (log {})", system.name, run::relative(&outcome.log));
    let mut details = String::from("operation,instructions,in hypervisor,half spread %\n");
    for cost in costs(&rows, &marks)? {
        table.set(system.name, &cost.name, cost.instructions);
        details.push_str(&format!(
            "{},{:.1},{:.1},{:.2}\n",
            cost.name, cost.instructions, cost.in_hypervisor, cost.spread
        ));
    }
    let file: &Path = &host::target("bench")?.join(format!("lmbench-{}.csv", system.name));
    Ok(std::fs::write(file, details)?)
}

/// How much RAM the hypervisor keeps, with two sizes of the machine, and what each further GiB costs.
fn memory(bench: &Bench, system: &System, table: &mut Table) -> Result<()> {
    if system.hypervisor == Hypervisor::None {
        return Ok(());
    }
    let mut kept = Vec::new();
    for gib in [1u32, 3] {
        let jobs = format!("hvmem:{}+poweroff", gib * 1024 * 1024);
        let (outcome, _) = bench.run(system, gib * 1024, &jobs)?;
        let report = outcome.report("hvmem ok").with_context(|| {
            format!("{}: {}", system.name, outcome.report("hvmem FAIL").unwrap_or("no answer about memory"))
        })?;
        let kib: f64 = field(report, "kept_kib").and_then(|v| v.parse().ok()).context("not a number")?;
        table.set(system.name, &format!("kept of {gib} GiB"), kib);
        kept.push(kib);
    }
    if let [one, three] = kept[..] {
        table.set(system.name, "for each further GiB", (three - one) / 2.0);
    }
    Ok(())
}
