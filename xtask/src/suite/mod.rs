//! `./tandem test`: the levels of tests and the count at the end.
//!
//! `unit` runs the crates' own tests on the host; `twin` makes and runs twins of a captured driver there; then `boot`,
//! `guests`, `linux` and `xl` boot machines, several side by side. Each boot test is named after what a user would
//! notice, has a log, sockets and disks of its own (a machine's name is in all of theirs, so no two tests may share
//! one), and a time limit, which is far above what it takes alone.

mod beside;
mod deaths;
mod driving;
mod firmware;
mod host;
mod hostile;
mod iommu;
mod linux;
mod meanwhile;
mod nmis;
mod passthrough;
mod quiet;
mod reboots;
mod refusals;
mod refused;
mod screen;
mod side_by_side;
mod smap;
mod steady;
mod took;
mod turns;
mod twins;
mod unit;
mod xl;

use crate::options::Options;
use crate::run::{ended, relative};
use anyhow::{anyhow, bail, ensure, Result};
use host::Ticks;
use std::sync::Mutex;
use std::time::Instant;
use testbed::images::{self, Images};
use testbed::machine::{Ending, Hypervisor, Outcome, Qemu};
use took::Took;
use turns::When;

/// What a boot test gets.
pub struct Bed {
    pub images: Images,
    pub hypervisor: Hypervisor,
    /// Mebibytes per device and direction.
    pub mib: u64,
    /// Seconds for each of stress-ng's stressors.
    pub stress_s: u64,
    /// The long versions were asked for.
    pub full: bool,
    /// Operations of a hostile domain, and where its random numbers start.
    pub operations: Option<u64>,
    pub seed: Option<u64>,
    /// What the checks of `xl` came to, by name, where tests run one after the other.
    pub checks: Mutex<Vec<(String, String)>>,
    /// What [`Bed::toolstack`] gives, once somebody has asked.
    toolstack: Mutex<Option<Images>>,
}

impl Bed {
    /// dom0 with stock `xl`: made by whoever asks first, while others wait.
    pub fn toolstack(&self) -> Result<Images> {
        let mut kept = self.toolstack.lock().map_err(|_| anyhow!("dom0's image with xl could not be made"))?;
        match &*kept {
            Some(images) => Ok(images.clone()),
            None => Ok(kept.insert(images::toolstack()?).clone()),
        }
    }
}

/// A test that boots something.
pub struct Test {
    pub level: &'static str,
    /// What a user would notice, in words joined by dashes.
    pub name: String,
    /// Only with `--full`.
    pub long: bool,
    pub run: Body,
}

/// Runs a test; gives a remark for the report.
pub type Body = Box<dyn Fn(&Bed) -> Result<String> + Send + Sync>;

/// Runs what was asked for; false if anything failed.
pub fn run(options: &Options) -> Result<bool> {
    let level = options.words.first().map(String::as_str);
    if let Some(level) = level {
        if !["unit", "twin", "boot", "guests", "linux", "xl"].contains(&level) {
            bail!("no test level `{level}`; there are unit, twin, boot, guests, linux and xl");
        }
    }
    let name = options.words.get(1).map(String::as_str);
    let everything = level.is_some() || options.full;
    ensure!(!everything || options.turn.is_none(), "--turn is for the tests of all levels; of one level all run");
    let turn = if everything { None } else { turns::turn(options.turn)? };
    let (mut chosen, left): (Vec<Test>, Vec<Test>) = all()
        .into_iter()
        .filter(|t| level.is_none_or(|l| l == t.level) && name.is_none_or(|n| t.name.contains(n)))
        .filter(|t| (options.full || !t.long) && (everything || turns::when(&t.name) != When::Never))
        .partition(|t| match turns::when(&t.name) {
            When::InTurn(its) => turn.is_none_or(|turn| turn == its),
            When::Always | When::Never => true,
        });
    // Which unit tests there are only cargo knows.
    let twins = if level.is_none_or(|l| l == "twin") { twins::list(name) } else { Vec::new() };
    let is_none = chosen.is_empty() && left.is_empty() && twins.is_empty();
    ensure!(!is_none || level == Some("unit"), "no test has that name; {}, with --full all", who_names_them(level));
    if options.list {
        if level == Some("unit") {
            println!("{}", who_names_them(level));
        }
        for name in twins {
            println!("{:<7} {name}", "twin");
        }
        for test in chosen.iter().chain(&left) {
            let when = if everything { String::new() } else { turns::when(&test.name).words() };
            println!("{:<7} {}{when}", test.level, test.name);
        }
        return Ok(true);
    }
    let mut score = Score::default();
    if options.table {
        ensure!(level == Some("xl"), "--table is for the level xl: the same checks on stock Xen and here");
        let tandem = Options { hypervisor: None, ..options.clone() };
        let xen = Options { hypervisor: Some("xen".into()), ..options.clone() };
        let [xen, tandem] = [bed(&xen)?, bed(&tandem)?];
        return beside::table(&chosen, &xen, &tandem, &mut score);
    }
    std::thread::scope(|scope| {
        // What boots is made meanwhile: neither keeps all CPUs busy all the time.
        let make = || {
            let bed = bed(options)?;
            // If this cannot be made, the tests that need it will say so.
            let _ = bed.toolstack();
            anyhow::Ok(bed)
        };
        let meanwhile = (level.is_none() && !chosen.is_empty()).then(|| scope.spawn(make));
        if level.is_none_or(|l| l == "unit") {
            if options.lint {
                unit::lints(&mut score);
            }
            unit::run(name, &mut score)?;
        }
        // Most of a twin's tests is one busy CPU and a machine that is captured: others need not wait for that.
        let twins = level.is_none_or(|l| l == "twin").then(|| scope.spawn(|| twins::run(name)));
        if !chosen.is_empty() {
            let bed = match meanwhile {
                Some(thread) => thread.join().map_err(|_| anyhow!("making what boots panicked"))??,
                None => bed(options)?,
            };
            boot(&bed, options.jobs, &mut chosen, &mut score);
        }
        if let Some(thread) = twins {
            score.add(&thread.join().map_err(|_| anyhow!("the tests of twins panicked"))??);
        }
        anyhow::Ok(())
    })?;
    if score.passed + score.failed == 0 {
        bail!("no test has that name; {}", who_names_them(level));
    }
    if let (Some(turn), false) = (turn, left.is_empty()) {
        let names: Vec<&str> = left.iter().map(|t| t.name.as_str()).collect();
        println!("It was turn {turn} of {}. Left to the others: {}", turns::TURNS, names.join(", "));
    }
    println!("{} passed, {} failed", score.passed, score.failed);
    Ok(score.failed == 0)
}

/// Where the names of tests are. Of unit tests only cargo knows them.
fn who_names_them(level: Option<&str>) -> &'static str {
    match level {
        Some("unit") => "`cargo test -- --list` names unit tests",
        _ => "./tandem test --list names them",
    }
}

/// Passed and failed so far.
#[derive(Default)]
pub struct Score {
    pub passed: u64,
    pub failed: u64,
}

impl Score {
    /// What others came to counts, too.
    pub fn add(&mut self, others: &Self) {
        self.passed += others.passed;
        self.failed += others.failed;
    }

    /// Notes one result and says it.
    pub fn note(&mut self, level: &str, name: &str, seconds: f32, result: &Result<String>) {
        match result {
            Ok(detail) => {
                self.passed += 1;
                println!("ok   {level:<7} {name:<44} {seconds:>6.1} s  {detail}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAIL {level:<7} {name:<44} {seconds:>6.1} s  {error:#}");
            }
        }
    }
}

fn all() -> Vec<Test> {
    let mut tests = refusals::tests();
    tests.extend(guests());
    tests.extend(nmis::tests());
    tests.extend(smap::tests());
    tests.extend(iommu::tests());
    tests.extend(linux::tests());
    tests.extend(firmware::tests());
    tests.extend(screen::tests());
    tests.extend(passthrough::tests());
    tests.extend(driving::tests());
    tests.extend(reboots::tests());
    tests.extend(deaths::tests());
    tests.extend(meanwhile::tests());
    tests.extend(quiet::tests());
    tests.extend(steady::tests());
    tests.extend(hostile::tests());
    tests.extend(xl::tests());
    tests
}

/// One test for each tiny kernel under `guests/`.
fn guests() -> Vec<Test> {
    let found = testbed::guests::all().unwrap_or_default();
    let test = |guest: testbed::guests::Guest| Test {
        level: "guests",
        name: format!("guest-{}", guest.name),
        long: false,
        run: Box::new(move |bed| guest.judge(&bed.hypervisor, Qemu::chosen())),
    };
    found.into_iter().map(test).collect()
}

/// Runs `tests` side by side; they are told of as they end.
fn boot(bed: &Bed, jobs: Option<usize>, tests: &mut [Test], score: &mut Score) {
    let workers = jobs.unwrap_or_else(side_by_side::fitting).min(tests.len());
    print!("Boot tests on {}", bed.hypervisor.name());
    if workers > 1 {
        print!(", {workers} side by side, the long ones first");
        tests.sort_by_key(rank);
    }
    println!();
    let (start, mut took) = (Instant::now(), Took::default());
    side_by_side::run(
        tests,
        workers,
        |test| {
            let before = Ticks::now();
            (test.run)(bed).map_err(|error| match before.and_then(|before| Ticks::now()?.stolen_since(before)) {
                Some(words) => anyhow!("{error:#} ({words})"),
                None => error,
            })
        },
        |test, seconds, result| {
            took.note(test.level, &test.name, seconds);
            score.note(test.level, &test.name, seconds, result);
        },
    );
    println!("     boot tests took {:.0} s: {took}", start.elapsed().as_secs_f32());
}

/// Long tests get low numbers. With the short ones last no CPU is idle while another does one long test at the end.
fn rank(test: &Test) -> usize {
    ["xl", "linux", "guests"].iter().position(|level| *level == test.level).unwrap_or(3)
}

fn bed(options: &Options) -> Result<Bed> {
    let default = if options.full { 1024 } else { 8 };
    Ok(Bed {
        hypervisor: Hypervisor::choose(options.hypervisor.as_deref())?,
        images: images::basic()?,
        mib: options.mib.unwrap_or(default),
        stress_s: options.seconds.unwrap_or(60),
        full: options.full,
        operations: options.operations,
        seed: options.seed,
        checks: Mutex::default(),
        toolstack: Mutex::default(),
    })
}

/// What the hypervisor says when it is about to run something.
const STARTED: &str = "us since the start";

/// Nothing on the console that a user would worry about, and the right end.
fn clean(outcome: &Outcome, ending: &Ending) -> Result<()> {
    clean_but(outcome, ending, &[])
}

/// The warning of the hypervisor's that a line has. That it ended a domain by itself is one, too, though it is said as
/// an error.
fn warning(line: &str) -> Option<&str> {
    let said = line.split_once("(TDM) ")?.1.trim();
    let is_crash = said.split(' ').nth(1) == Some("crashed:");
    said.strip_prefix("Warning: ").or(is_crash.then_some(said))
}

/// As [`clean`], but warnings of the hypervisor that contain one of `expected` are part of the test.
fn clean_but(outcome: &Outcome, ending: &Ending, expected: &[&str]) -> Result<()> {
    const WORRIES: &[&str] = &[
        "Kernel panic",
        "BUG:",
        "WARNING: CPU",
        "Oops",
        "Call Trace",
        "soft lockup",
        "rcu_preempt detected stalls",
        "hypervisor panic",
        "Xen BUG",
        "nobody cared",
        "transmit queue 0 timed out",
        "I/O error",
    ];
    // What it says about the machine before it runs anything is no worry; what it says later is.
    let mut running = outcome.lines.iter().skip_while(|l| !(l.contains("(TDM)") && l.contains(STARTED)));
    let unexpected = |l: &&String| warning(l).is_some_and(|said| !expected.iter().any(|e| said.contains(e)));
    // Of a death that took long it is told what the domain that had died had said, which may be anything.
    let worry = |l: &&String| !l.contains("TANDEM: told ") && WORRIES.iter().any(|w| l.contains(w));
    if let Some(line) = outcome.lines.iter().find(worry).or_else(|| running.find(unexpected)) {
        bail!("on the console: {} (log {})", line.trim(), relative(&outcome.log));
    }
    ensure!(outcome.ending == *ending, "it should have ended by {ending:?}, but: {}", ended(&outcome.ending));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn warnings_and_domains_that_the_hypervisor_ends_are_noticed_unless_they_are_expected() {
        let said = |lines: &[&str], expected: &[&str]| {
            let lines = ["(TDM) Warning: of the machine", "(TDM) 5 us since the start"].iter().chain(lines);
            let lines = lines.map(|line| line.to_string()).collect();
            clean_but(&Outcome { ending: Ending::PowerOff, lines, log: "x.log".into() }, &Ending::PowerOff, expected)
        };
        assert!(said(&["(TDM) d1 destroyed", "crash 1 | crashed: noticed 1 ms"], &[]).is_ok());
        for line in ["(TDM) d12v0 crashed: vector 14 cannot be delivered", "[ 1.0] x(TDM) Warning: d1 is crashed: y"] {
            assert!(said(&[line], &["stopped"]).unwrap_err().to_string().contains(line));
            assert!(said(&[line], &["stopped", "crashed"]).is_ok());
        }
        let worry = "[ 2.0] Call Trace:";
        assert!(said(&[worry], &[]).unwrap_err().to_string().contains(worry));
        assert!(said(&["TANDEM: told < 2.0> Call Trace:"], &[]).is_ok(), "what has died has said that");
    }

    #[test]
    fn who_names_unit_tests_is_cargo() {
        assert!(
            [Some("unit"), Some("xl"), None].map(|level| who_names_them(level).contains("cargo"))
                == [true, false, false]
        );
    }

    #[test]
    fn the_hypervisor_says_that_it_has_started() {
        let words = format!("{{}} {STARTED}\"");
        assert!(include_str!("../../../hv/src/arch/mod.rs").contains(&words), "or no warning of its is ever noticed");
    }

    #[test]
    fn no_two_tests_have_one_name_and_every_level_has_a_rank_of_its_own() {
        let mut tests = all();
        let names: BTreeSet<&str> = tests.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names.len(), tests.len());
        tests.sort_by_key(rank);
        let mut levels: Vec<&str> = tests.iter().map(|t| t.level).collect();
        levels.dedup();
        assert_eq!(levels, ["xl", "linux", "guests", "boot"]);
    }
}
