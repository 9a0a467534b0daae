//! NMIs while code runs that may have lost its ground by then: a twin's, whatever it has done with its stack, and a
//! guest's on a segment that another vCPU takes away. They come on a stack of their own, and it goes on.

use super::{Bed, Test};
use anyhow::{ensure, Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testbed::guests::{self, Verdict, Wishes};

/// So often one comes.
const EACH: Duration = Duration::from_millis(1);
/// So many have to interrupt what they are to interrupt.
const LEAST: u64 = 8;

pub fn tests() -> Vec<Test> {
    vec![
        Test { level: "guests", name: "nmis-interrupt-twins".into(), long: false, run: Box::new(twins) },
        Test {
            level: "guests",
            name: "nmis-interrupt-code-that-goes-away".into(),
            long: false,
            run: Box::new(segments),
        },
    ]
}

fn twins(bed: &Bed) -> Result<String> {
    // The kernel's first, after a first twin.
    let told = interrupted(bed, "twins", "Frame audit")?;
    ensure!(told.in_twins >= LEAST, "too few came while a twin ran: {}", told.said);
    Ok(told.said)
}

fn segments(bed: &Bed) -> Result<String> {
    let told = interrupted(bed, "vanishing-segments", "Test vanishing-segments")?;
    ensure!(told.faulted >= LEAST, "too few came on a segment that was gone by then: {}", told.said);
    Ok(told.said)
}

/// What is said of the last NMI that is told of.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    said: String,
    /// So many of those before it interrupted a twin.
    in_twins: u64,
    /// So many of those before it interrupted a guest on a segment that was gone when the guest was to go on.
    faulted: u64,
}

impl Told {
    /// "8 so far, 3 of them in twins, 2 with no way back to their guest's segment"
    fn parse(said: &str) -> Result<Self> {
        let number = |n: usize| said.split_whitespace().nth(n).and_then(|word| word.parse::<u64>().ok());
        let in_twins = number(3).with_context(|| format!("no number of NMIs in twins: {said}"))?;
        let faulted = number(8).with_context(|| format!("no number of NMIs on segments that were gone: {said}"))?;
        Ok(Self { said: said.into(), in_twins, faulted })
    }
}

/// The test kernel `kernel` finds what it finds without NMIs, which come from a line on that has `begin` in it.
fn interrupted(bed: &Bed, kernel: &str, begin: &str) -> Result<Told> {
    let guest = guests::named(kernel)?;
    let mut machine = guest.machine(&bed.hypervisor, Wishes::default())?;
    machine.name = format!("nmis-{kernel}");
    let running = machine.start()?;
    let monitor = running.monitor();
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let closing = format!("Test {kernel}: ");
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                // A machine that has ended takes none, and says why it has.
                let _ = begins.load(Ordering::Relaxed).then(|| monitor.send("nmi"));
                std::thread::sleep(EACH);
            }
        });
        let outcome = running.finish(|line| {
            begins.fetch_or(line.contains(begin), Ordering::Relaxed);
            line.contains(&closing)
        });
        ends.store(true, Ordering::Relaxed);
        outcome
    })?;
    let verdict = Verdict::of(&outcome.lines, kernel);
    let complaints = guests::complaints(&outcome.lines).unwrap_or_default();
    ensure!(verdict == Verdict::Success, "{}: {complaints} (log {})", verdict.word(), outcome.log.display());
    let told = outcome.lines.iter().rev().find(|line| line.contains("NMI of the machine")).context("no NMI came")?;
    Told::parse(told.split_once("; ").map_or("", |(_, said)| said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nmis_that_met_nothing_of_interest_are_not_counted() {
        let said = "64 so far, 3 of them in twins, 2 with no way back to their guest's segment";
        assert_eq!(Told::parse(said).unwrap(), Told { said: said.into(), in_twins: 3, faulted: 2 });
        assert!(Told::parse("64 so far, 3 of them in twins").is_err());
    }
}
