//! NMIs while twins run: they come on a stack of their own, whatever the twin has done with its own, and it goes on.

use super::{Bed, Test};
use anyhow::{ensure, Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testbed::guests::{self, Verdict, Wishes};

/// The test kernel that runs twins of its own.
const KERNEL: &str = "twins";
/// So often one comes.
const EACH: Duration = Duration::from_millis(1);
/// So many have to interrupt a twin's own code.
const LEAST: u64 = 8;

pub fn tests() -> Vec<Test> {
    let run = Box::new(interrupted);
    vec![Test { level: "guests", name: "nmis-interrupt-twins".into(), long: false, run }]
}

/// The kernel finds what it finds without NMIs.
fn interrupted(bed: &Bed) -> Result<String> {
    let guest = guests::named(KERNEL)?;
    let mut machine = guest.machine(&bed.hypervisor, Wishes::default())?;
    machine.name = format!("nmis-{KERNEL}");
    let running = machine.start()?;
    let monitor = running.monitor();
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let closing = format!("Test {KERNEL}: ");
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                // A machine that has ended takes none, and says why it has.
                let _ = begins.load(Ordering::Relaxed).then(|| monitor.send("nmi"));
                std::thread::sleep(EACH);
            }
        });
        let outcome = running.finish(|line| {
            // The kernel's first, after a first twin.
            begins.fetch_or(line.contains("Frame audit"), Ordering::Relaxed);
            line.contains(&closing)
        });
        ends.store(true, Ordering::Relaxed);
        outcome
    })?;
    let verdict = Verdict::of(&outcome.lines, KERNEL);
    let complaints = guests::complaints(&outcome.lines).unwrap_or_default();
    ensure!(verdict == Verdict::Success, "{}: {complaints} (log {})", verdict.word(), outcome.log.display());
    let told = outcome.lines.iter().rev().find(|line| line.contains("NMI of the machine")).context("no NMI came")?;
    let said = told.split_once("; ").map_or("", |(_, said)| said.trim());
    let in_twins = said.split_whitespace().nth(3).and_then(|count| count.parse::<u64>().ok());
    ensure!(in_twins.is_some_and(|count| count >= LEAST), "too few came while a twin ran: {said}");
    Ok(said.into())
}
