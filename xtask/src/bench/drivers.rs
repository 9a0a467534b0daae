//! `./tandem bench drivers`: how much memory a small driver domain holds, for each kind of device, and what one to
//! eight of them execute while nobody wants anything of them; in how much of that memory they work, and what could be
//! had of the rest (`memory`); and how much it takes to have driver domains noted, so that they can be rolled back.
//!
//! The clock is the count of instructions, one a nanosecond, so instructions in a second are a share of the processor.
//! What dom0 and the hypervisor execute while there is no driver domain is measured first, and taken off.

mod memory;

use super::io::{counted, give_away};
use crate::options::Options;
use crate::run;
use anyhow::{ensure, Context, Result};
use bench::profile::{self, Window};
use bench::working;
use memory::Sets;
use std::fmt::Write;
use std::path::Path;
use testbed::counter::Profiler;
use testbed::machine::{field, Ending, Hypervisor, Outcome};
use testbed::peer::Wire;
use testbed::progress::step;
use testbed::{host, images};

/// Network cards, one for each driver domain at the most. The first is at the wire.
const CARDS: usize = 8;
/// RAM of the machine, in one piece.
const MACHINE_MIB: u32 = 2800;
/// What a driver domain may hold, in KiB.
const MEMORY_KIB: u64 = 48 * 1024;
/// How often the timer of an idle one may interrupt it in a second.
const TICKS: f64 = 1.0;
/// What an idle one may take of a processor, in percent: what the paper on driver reuse in virtual machines says of its
/// own.
const SHARE: f64 = 0.12;
/// The first line of the file of all figures.
const HEADER: &str = "what,of,figure\n";
/// Instructions that a processor executes in a second, as the clock has it.
const SECOND: f64 = 1e9;

/// Memory of a kind of driver domain, in KiB.
struct Memory {
    kind: String,
    held: u64,
    total: u64,
    free: u64,
}

/// So many idle driver domains.
struct Idle {
    domains: u32,
    /// Instructions of the whole machine, in a second.
    instructions: f64,
    /// Interrupts by the timer of the first, in a second.
    ticks: f64,
}

/// A driver domain that is noted beside those before it, in MiB.
struct Noted {
    kind: String,
    /// What its copies take.
    takes: u64,
    /// Those that were there.
    found: u64,
}

/// What was measured.
#[derive(Default)]
struct Figures {
    memory: Vec<Memory>,
    noted: Vec<Noted>,
    idle: Vec<Idle>,
}

impl Figures {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn read<'a>(reports: impl Iterator<Item = &'a str>, windows: &[Window]) -> Result<Self> {
        let mut found = Self::default();
        let mut windows = windows.iter();
        for report in reports {
            let number = |key: &str| {
                field(report, key).and_then(|v| v.parse::<u64>().ok()).with_context(|| format!("no {key} in: {report}"))
            };
            if let Some(rest) = report.strip_prefix("noted ") {
                let kind = rest.split(' ').next().unwrap_or_default().into();
                found.noted.push(Noted { kind, takes: number("takes_mib")?, found: number("found_mib")? });
            } else if let Some(rest) = report.strip_prefix("small ") {
                let kind = rest.split(' ').next().unwrap_or_default().into();
                let (held, total, free) = (number("held_kib")?, number("MemTotal")?, number("MemFree")?);
                found.memory.push(Memory { kind, held, total, free });
            } else if report.starts_with("idle ") {
                let window = windows.next().context("a rest without a window")?;
                let sum: u64 = window.blocks.iter().map(|block| block.count).sum();
                let ticks = number("timer")? as f64 / number("timer_seconds")?.max(1) as f64;
                let domains = u32::try_from(number("domains")?)?;
                found.idle.push(Idle { domains, instructions: sum as f64 / number("seconds")?.max(1) as f64, ticks });
            } else if report.starts_with("load ") {
                windows.next().context("a load without a window")?;
            }
        }
        ensure!(windows.next().is_none(), "a window without a rest");
        Ok(found)
    }

    /// Instructions that each of so many idle ones costs in a second.
    fn each(&self, idle: &Idle) -> Option<f64> {
        let none = self.idle.iter().find(|i| i.domains == 0)?;
        (idle.domains != 0).then(|| (idle.instructions - none.instructions) / f64::from(idle.domains))
    }

    fn table(&self) -> String {
        let mut out = format!("{:<10}{:>12}{:>18}{:>12}\n", "kind", "held KiB", "Linux has, KiB", "free KiB");
        for m in &self.memory {
            let _ = writeln!(out, "{:<10}{:>12}{:>18}{:>12}", m.kind, m.held, m.total, m.free);
        }
        let _ = writeln!(
            out,
            "\n{:<10}{:>16}{:>14}{:>14}{:>10}",
            "idle", "instructions/s", "each one's", "of a CPU", "ticks/s"
        );
        for i in &self.idle {
            let each = self.each(i);
            let (own, share) =
                each.map_or(("-".into(), "-".into()), |e| (format!("{e:.0}"), format!("{:.4} %", percent(e))));
            let _ = writeln!(out, "{:<10}{:>16.0}{own:>14}{share:>14}{:>10.2}", i.domains, i.instructions, i.ticks);
        }
        let _ = writeln!(out, "\n{:<10}{:>16}{:>24}", "noted", "takes, MiB", "was there already, MiB");
        for n in &self.noted {
            let _ = writeln!(out, "{:<10}{:>16}{:>24}", n.kind, n.takes, n.found);
        }
        out
    }

    fn csv(&self) -> String {
        let mut out = String::new();
        for m in &self.memory {
            for (what, figure) in [("held KiB", m.held), ("MemTotal KiB", m.total), ("MemFree KiB", m.free)] {
                let _ = writeln!(out, "{what},{},{figure}", m.kind);
            }
        }
        for i in &self.idle {
            let _ = writeln!(out, "idle instructions per second,{},{:.1}", i.domains, i.instructions);
            let _ = writeln!(out, "timer interrupts per second,{},{:.3}", i.domains, i.ticks);
            if let Some(each) = self.each(i) {
                let _ = writeln!(out, "idle instructions per second of each,{},{each:.1}", i.domains);
            }
        }
        for n in &self.noted {
            let _ = writeln!(out, "noted takes MiB,{},{}", n.kind, n.takes);
            let _ = writeln!(out, "noted found MiB,{},{}", n.kind, n.found);
        }
        out
    }

    /// Which aims are missed, and how many there are.
    fn aims(&self) -> String {
        let mut out = String::new();
        let (mut met, mut all) = (0, 0);
        let mut judge = |is_met: bool, missed: String| {
            all += 1;
            met += u32::from(is_met);
            if !is_met {
                let _ = writeln!(out, "missed: {missed}");
            }
        };
        for m in &self.memory {
            judge(
                m.held != 0 && m.held <= MEMORY_KIB,
                format!("{}: {} KiB are held, aim {MEMORY_KIB}", m.kind, m.held),
            );
        }
        for i in self.idle.iter().filter(|i| i.domains != 0) {
            judge(i.ticks <= TICKS, format!("{} idle: {:.2} ticks a second, aim {TICKS}", i.domains, i.ticks));
            let share = self.each(i).map_or(f64::INFINITY, percent);
            judge(share <= SHARE, format!("{} idle: {share:.4} % of a CPU each, aim {SHARE}", i.domains));
        }
        let _ = writeln!(out, "{met} of {all} aims met");
        out
    }
}

fn percent(instructions: f64) -> f64 {
    instructions / SECOND * 100.0
}

/// Measures and shows; false if it could not be measured.
pub fn run(options: &Options) -> Result<bool> {
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    let (figures, sets) = step("measuring small driver domains", || measure(&hypervisor))?;
    print!("\n{}\n{}\n{}", figures.table(), sets.table(), figures.aims());
    let folder = host::target("bench")?;
    let csv = folder.join("drivers.csv");
    std::fs::write(&csv, format!("{HEADER}{}{}", figures.csv(), sets.csv()))?;
    for written in [csv].iter().chain(&sets.draw(&folder)?) {
        println!("Written: {}", run::relative(written));
    }
    Ok(true)
}

fn measure(hypervisor: &Hypervisor) -> Result<(Figures, Sets)> {
    let (images, profiler) = (images::toolstack()?, Profiler::build()?);
    let name = "bench-drivers";
    let file = |kind: &str| Ok::<_, anyhow::Error>(host::target("logs")?.join(format!("{name}.{kind}")));
    let (profile, touched, contents) = (file("profile")?, file("touched")?, file("contents")?);
    let wire = Wire::start(name)?;
    let mut machine = counted(name, hypervisor, &images, 1, "toolstack+drivers+poweroff");
    machine.memory_mib = MACHINE_MIB;
    machine.timeout_s = 3000;
    machine.accel.splice(0..0, profiler.accel(&profile, wire.socket()));
    machine.accel.extend(profiler.disk("disk", None));
    machine.accel.extend(profiler.touched(&touched, &contents, MACHINE_MIB));
    let medium = "driver=null-co,node-name=second,size=1073741824,read-zeroes=on";
    machine.accel.extend(["-blockdev", medium].map(String::from));
    give_away(&mut machine);
    machine.devices.push("e1000e,netdev=wire,romfile=");
    machine.devices.extend(["e1000e,romfile="; CARDS - 1]);
    machine.devices.extend(["nvme,drive=disk,serial=null", "ich9-ahci,id=second", "ide-hd,bus=second.0,drive=second"]);
    let outcome = machine.start()?.finish(|_| false)?;
    let found = read(&outcome, &profile::read(&profile)?, &working::read(&touched)?, &contents);
    // It is as large as the machine's memory.
    let _ = std::fs::remove_file(&contents);
    found.with_context(|| format!("log {}", run::relative(&outcome.log)))
}

fn read(
    outcome: &Outcome,
    windows: &[Window],
    touched: &[working::Window],
    contents: &Path,
) -> Result<(Figures, Sets)> {
    let reports = || outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: ").map(|(_, report)| report.trim()));
    if let Some(failed) = reports().find(|r| r.contains("FAIL")) {
        anyhow::bail!("{failed}");
    }
    ensure!(outcome.ending == Ending::PowerOff, "it did not get to its end: {}", run::ended(&outcome.ending));
    let figures = Figures::read(reports(), windows)?;
    ensure!(figures.idle.len() > 1 && !figures.memory.is_empty() && !figures.noted.is_empty(), "it reported nothing");
    let reports: Vec<&str> = reports().collect();
    Ok((figures, Sets::read(&reports, touched, contents)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::profile::Block;

    fn window(count: u64) -> Window {
        Window { blocks: vec![Block { address: 1, machine: 1, count }], ..Window::default() }
    }

    const REPORTS: [&str; 5] = [
        "small nvme held_kib=49152 MemTotal=20000 MemFree=3000 Slab=1",
        "idle domains=0 seconds=10 timer_seconds=0 timer=0",
        "load nvme/random-read units=10",
        "idle domains=2 seconds=10 timer_seconds=20 timer=10",
        "noted ahci takes_mib=60 found_mib=90",
    ];

    #[test]
    fn what_is_there_without_them_is_taken_off() {
        let figures = Figures::read(REPORTS.into_iter(), &[window(1000), window(5), window(21_000)]).unwrap();
        assert_eq!(figures.each(&figures.idle[0]), None);
        assert_eq!(figures.each(&figures.idle[1]), Some(1000.0));
        assert_eq!(figures.aims(), "3 of 3 aims met\n");
        assert!(figures.csv().starts_with("held KiB,nvme,49152\n"), "{}", figures.csv());
        assert!(figures.csv().contains("\nidle instructions per second of each,2,1000.0\n"), "{}", figures.csv());
        assert!(figures.csv().contains("\nnoted takes MiB,ahci,60\nnoted found MiB,ahci,90\n"), "{}", figures.csv());
        assert!(figures.table().contains("0.50"), "{}", figures.table());
    }

    #[test]
    fn too_much_is_said() {
        let busy = [
            "small ahci held_kib=49156 MemTotal=1 MemFree=1",
            REPORTS[1],
            "idle domains=1 seconds=1 timer_seconds=10 timer=11",
        ];
        let said = Figures::read(busy.into_iter(), &[window(0), window(1_300_000)]).unwrap().aims();
        assert!(
            said.contains("missed: ahci: 49156 KiB") && said.contains("1.10 ticks") && said.contains("0.1300 %"),
            "{said}"
        );
        assert!(said.ends_with("0 of 3 aims met\n"), "{said}");
    }

    #[test]
    fn windows_and_rests_are_as_many() {
        let windows = |count| vec![window(1); count];
        assert!(Figures::read(REPORTS.into_iter(), &windows(2)).is_err());
        assert!(Figures::read(REPORTS.into_iter(), &windows(4)).is_err());
        assert!(Figures::read(["small e1000e held_kib="].into_iter(), &[]).is_err());
    }
}
