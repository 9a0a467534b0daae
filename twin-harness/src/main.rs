//! The commands on the twin: see `docs/twin.md`.

use std::process::ExitCode;
use std::time::Instant;
use testbed::cli::{self, choice, number, Known, Takes};
use testbed::images::kernel;
use twin_capture::snapshot::Snapshot;
use twin_capture::{guest, DEVICES};
use twin_harness::rig::{cache, make, Rig};
use twin_harness::{bench, corruption, equivalence, faults, measure, report, show, traffic};
use twin_kernel::{driver, path, LiveKernel};
use twin_rewrite::ko;
use twin_rewrite::module::Module;
use twin_rewrite::options::{Mode, Options, Reuse};

const HELP: &str = "\
usage: twin-harness COMMAND DRIVER [OPTIONS]
  capture DRIVER       take (once) a snapshot of the live driver
  twin DRIVER          rewrite and verify the driver, print the report
  equivalence DRIVER   compare original and twin on generated cases
  show DRIVER FUNCTION one function before and after
  faults DRIVER        inject faults, print what became of them; --class image needs no device model
  bench                instructions and cycles of all drivers with a device model: table and plot
  traffic DRIVER       packets through the twin on this processor, contents checked
options: --mode stlb|mirror   --count N   --seed S   --no-bmi   --counted   --reuse access|block|flow   --class text|data|code|image   --from N (first run)";

/// Where faults are injected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Text, data, and the twin's code, on the live driver's work.
    Live(faults::Into),
    /// The whole image, judged by the verifier and the adversary's machine.
    Image,
}

struct Arguments {
    command: String,
    driver: String,
    function: String,
    options: Options,
    count: Option<u64>,
    class: Class,
    from: u64,
    seed: u64,
}

const MODES: [(&str, Mode); 2] = [("stlb", Mode::Stlb), ("mirror", Mode::Mirror)];
const REUSES: [(&str, Reuse); 3] = [("access", Reuse::Access), ("block", Reuse::Block), ("flow", Reuse::Flow)];
const CLASSES: [(&str, Class); 4] = [
    ("text", Class::Live(faults::Into::Text)),
    ("data", Class::Live(faults::Into::Data)),
    ("code", Class::Live(faults::Into::Code)),
    ("image", Class::Image),
];

const KNOWN: [Known<Arguments>; 8] = [
    ("mode", Takes::Value(|a, value| choice(value, &MODES).map(|mode| a.options.mode = mode))),
    ("reuse", Takes::Value(|a, value| choice(value, &REUSES).map(|reuse| a.options.reuse = reuse))),
    ("class", Takes::Value(|a, value| choice(value, &CLASSES).map(|class| a.class = class))),
    ("from", Takes::Value(|a, value| number(value).map(|n| a.from = n))),
    ("count", Takes::Value(|a, value| number(value).map(|n| a.count = Some(n)))),
    ("seed", Takes::Value(|a, value| number(value).map(|n| a.seed = n))),
    ("no-bmi", Takes::Nothing(|a| a.options.bmi = false)),
    ("counted", Takes::Nothing(|a| a.options.counted = true)),
];

fn arguments() -> Result<Arguments, String> {
    let mut out = Arguments {
        command: String::new(),
        driver: String::new(),
        function: String::new(),
        options: Rig::options(Mode::Mirror),
        count: None,
        class: Class::Live(faults::Into::All),
        from: 0,
        seed: 1,
    };
    let words = cli::parse(std::env::args_os().skip(1), &mut out, &KNOWN).map_err(|e| format!("{e:#}"))?;
    let mut words = words.into_iter();
    out.command = words.next().ok_or(HELP)?;
    if out.command != "bench" {
        out.driver = words.next().ok_or(format!("which driver?\n{HELP}"))?;
    }
    if out.command == "show" {
        out.function = words.next().ok_or(format!("which function?\n{HELP}"))?;
    }
    words.next().map_or(Ok(out), |surplus| Err(format!("what is {surplus} for?\n{HELP}")))
}

/// The driver's module: live if there is a device for it, else from the package's file, relocated against the symbols
/// of a captured kernel.
fn module(driver: &str) -> Result<(Module, Option<Rig>), String> {
    if DEVICES.iter().any(|(name, _)| *name == driver) {
        let dir = guest::capture(driver, &cache())?;
        if let Ok(rig) = Rig::from_dir(&dir) {
            return Ok(((*rig.module).clone(), Some(rig)));
        }
        let s = Snapshot::open(&dir)?;
        let names = driver::modules_of(&s, &path::entries(&s.live()?))?;
        return Ok((driver::modules(&s, &names)?, None));
    }
    if driver.ends_with(".ko") {
        return Ok((from_file(std::path::Path::new(driver), driver)?, None));
    }
    let file = kernel::debian().and_then(|kernel| kernel.module(driver)).map_err(|e| format!("{e:#}"))?;
    Ok((from_file(&file, driver)?, None))
}

fn from_file(path: &std::path::Path, name: &str) -> Result<Module, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let snapshot = Snapshot::open(&guest::capture("e1000", &cache())?)?;
    ko::check_release(&bytes, &snapshot.release).or_else(|e| ko::release(&bytes).map_or(Ok(()), |_| Err(e)))?;
    ko::load(&bytes, name, ko::DEFAULT_BASE, &|symbol| snapshot.symbol(symbol))
}

fn run() -> Result<bool, String> {
    let a = arguments()?;
    match a.command.as_str() {
        "capture" => {
            let dir = guest::capture(&a.driver, &cache())?;
            let s = Snapshot::open(&dir)?;
            let live = s.live()?;
            println!("snapshot {}: kernel {}, {} symbols", dir.display(), s.release, s.symbols.count());
            println!("{}: transmit {}", s.netdev, s.describe(live.net.start_xmit));
            for (irq, handler, _) in &live.net.irqs {
                println!("interrupt {irq}: {}", s.describe(*handler));
            }
            println!("capture {}: ready", a.driver);
            Ok(true)
        }
        "twin" => twin(&a),
        "bench" => {
            let dir = std::path::Path::new("target/bench");
            print!("{}", bench::run(dir)?);
            println!("bench twin: twin.csv, twin.svg and twin-cycles.svg in {}", dir.display());
            Ok(true)
        }
        "show" => {
            let (module, _) = module(&a.driver)?;
            let made = make(&module, &a.options)?;
            print!("{}", show::function(&module, &made, &a.function)?);
            Ok(true)
        }
        "faults" => inject(&a),
        "equivalence" => {
            let rig = Rig::open(&a.driver)?;
            let made = make(&rig.module, &a.options)?;
            let start = Instant::now();
            let out = equivalence::run(&rig, &made, a.count.unwrap_or(10_000), a.seed)?;
            println!(
                "equivalence {} {}: {} cases ({} of them with a routine left to the domain; {} ended by an answer, alike), {} deeds, \
                 {} upcalls, {} packets sent, {} received, no difference ({:.0} s)",
                a.driver,
                a.options.mode.name(),
                out.cases,
                out.forced,
                out.ended,
                out.deeds,
                out.upcalls,
                out.packets.0,
                out.packets.1,
                start.elapsed().as_secs_f64()
            );
            Ok(true)
        }
        "traffic" => {
            let rig = Rig::open(&a.driver)?;
            let made = make(&rig.module, &a.options)?;
            let (mut lab, mut native) = rig.native(made.verified()?)?;
            let start = Instant::now();
            let passed = traffic::run(&mut lab, &mut native, a.count.unwrap_or(1_000_000), a.seed)?;
            println!(
                "traffic {} {}: {} packets sent, {} received, all correct ({:.0} s)",
                a.driver,
                a.options.mode.name(),
                passed.sent,
                passed.received,
                start.elapsed().as_secs_f64()
            );
            Ok(true)
        }
        other => Err(format!("unknown command {other}\n{HELP}")),
    }
}

fn inject(a: &Arguments) -> Result<bool, String> {
    let start = Instant::now();
    let count = a.count.unwrap_or(100_000);
    let (mut done, mut shown) = (0, 0);
    let mut progress = |n| {
        done += n;
        if done * 20 / count.max(1) > shown {
            shown = done * 20 / count.max(1);
            eprintln!("{done} of {count} faults, {:.0} s", start.elapsed().as_secs_f64());
        }
    };
    let (table, ok) = match a.class {
        Class::Image => {
            let made = make(&module(&a.driver)?.0, &a.options)?;
            (corruption::table(&corruption::run(&made, a.seed, a.from, count, &mut progress)?), true)
        }
        Class::Live(into) => {
            let order = faults::Order { into, count, seed: a.seed, first: a.from };
            faults::table(&faults::run(&Rig::open(&a.driver)?, &a.options, order, &mut progress)?)
        }
    };
    println!("{table}");
    println!("faults {} {}: seed {}, {:.0} s", a.driver, a.options.mode.name(), a.seed, start.elapsed().as_secs_f64());
    Ok(ok)
}

fn twin(a: &Arguments) -> Result<bool, String> {
    let (module, rig) = module(&a.driver)?;
    let made = make(&module, &a.options)?;
    let verified = made.verified_in_portions();
    let measured = match (&rig, &verified) {
        (Some(rig), Ok(_)) => Some(measure::run(rig, &made)?),
        _ => None,
    };
    let path = rig.as_ref().map(|rig| path::reached(&module, &path::entries(&rig.live)));
    let (text, ok) = report::text(&a.driver, a.options.mode.name(), &module, &made, verified, measured, path.as_ref());
    println!("{text}");
    Ok(ok)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("FAIL: {e}");
            ExitCode::FAILURE
        }
    }
}
