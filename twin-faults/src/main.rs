//! For tests only: gives a network driver of the driver domain that this runs in one faulty twin after the other, while
//! packets go by it.
//!
//! A run: one to four faults (`--at-once`) in the driver's text, which is rewritten then, or one in the finished image,
//! or with `--data` as many in the driver's data while its twin runs; the twin is loaded, gets the card until some
//! packets have gone by it, and goes. Then Linux carries packets again, before the next run. What run N does to text
//! and image depends on the seed and N alone; to data, also on what is there. A line for each says what came of it.

mod recovery;
mod runs;

use runs::Runs;
use std::num::NonZero;
use std::process::ExitCode;
use std::time::Duration;
use twin_faults::text::AT_ONCE;
use twin_rewrite::options::Mode;
use twin_rewrite::variant::Base;
use twind::interface::Interface;
use twind::making;

const HELP: &str =
    "usage: twin-faults --interface NAME [--seed S] [--from N] [--count N] [--milliseconds N] [--vif NUMBER] [--at-once N] [--data]";
/// After so many runs it says where the time has gone.
const TOLD: u64 = 20;

/// What it was told.
struct Arguments {
    interface: String,
    seed: u64,
    from: u64,
    count: u64,
    time: Duration,
    vif: u32,
    /// Most faults of one run.
    at_once: u64,
    /// Data is spoilt, too.
    data: bool,
}

fn arguments() -> Result<Arguments, String> {
    use lexopt::{Arg, ValueExt};
    let time = Duration::from_millis(100);
    let mut out = Arguments {
        interface: String::new(),
        seed: 1,
        from: 0,
        count: 100,
        time,
        vif: 0,
        at_once: AT_ONCE,
        data: false,
    };
    let mut parser = lexopt::Parser::from_env();
    let mut parse = || -> Result<(), lexopt::Error> {
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("interface") => out.interface = parser.value()?.string()?,
                Arg::Long("seed") => out.seed = parser.value()?.parse()?,
                Arg::Long("from") => out.from = parser.value()?.parse()?,
                Arg::Long("count") => out.count = parser.value()?.parse()?,
                Arg::Long("milliseconds") => out.time = Duration::from_millis(parser.value()?.parse()?),
                Arg::Long("vif") => out.vif = parser.value()?.parse()?,
                Arg::Long("at-once") => out.at_once = parser.value()?.parse::<NonZero<u64>>()?.get(),
                Arg::Long("data") => out.data = true,
                other => return Err(other.unexpected()),
            }
        }
        Ok(())
    };
    parse().map_err(|e| format!("{e}\n{HELP}"))?;
    if out.interface.is_empty() {
        return Err(HELP.into());
    }
    Ok(out)
}

fn run() -> Result<(), String> {
    let arguments = arguments()?;
    let interface = Interface::named(&arguments.interface)?;
    let found = making::find(&interface, Mode::Mirror)?;
    let module = found.module.clone();
    let mut base = Base::new(&module, &making::options(Mode::Mirror))?;
    let numbers = arguments.from..arguments.from + arguments.count;
    let mut runs = Runs::new(arguments, interface, found, &base)?;
    for number in numbers {
        if let Some((faults, class, came)) = runs.run(&mut base, number)? {
            println!("faults: run {number}: {faults} {class} {}", came.word());
            runs.settle(&came)?;
        }
        if (number + 1) % TOLD == 0 {
            println!("faults: ms {}, {} written as a whole", runs.spent, base.whole);
        }
    }
    println!("faults: ms {}, {} written as a whole", runs.spent, base.whole);
    println!("faults: over");
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            println!("faults: ended: {words}");
            ExitCode::FAILURE
        }
    }
}
