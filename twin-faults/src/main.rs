//! For tests only: gives a network driver of the driver domain that this runs in one faulty twin after the other, while packets go by it.
//!
//! A run: one to four faults in the driver's text, which is rewritten then, or one in the finished image; the twin is loaded, gets the
//! card for a while, and goes. What run N does depends on the seed and N alone. A line for each says what came of it.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use twin_faults::mutate::{self, TEXT_FAULTS};
use twin_faults::random::Random;
use twin_faults::text::{inject, undo};
use twin_kernel::path;
use twin_rewrite::options::Mode;
use twin_rewrite::program;
use twin_rewrite::variant::Base;
use twind::device::{Device, State};
use twind::interface::Interface;
use twind::making::{self, Found};

const HELP: &str =
    "usage: twin-faults --interface NAME [--seed S] [--from N] [--count N] [--milliseconds N] [--vif NUMBER]";
/// Of so many runs, one has its fault in the finished image.
const IMAGES_ONE_IN: u64 = 4;

/// How long the link may take.
const LINK: Duration = Duration::from_secs(20);
/// How often another place is chosen for a class of faults.
const TRIES: u32 = 64;

struct Arguments {
    interface: String,
    seed: u64,
    from: u64,
    count: u64,
    time: Duration,
    vif: u32,
}

fn arguments() -> Result<Arguments, String> {
    use lexopt::{Arg, ValueExt};
    let time = Duration::from_millis(100);
    let mut out = Arguments { interface: String::new(), seed: 1, from: 0, count: 100, time, vif: 0 };
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

/// What came of a run.
enum Came {
    /// The rewriter refused a function.
    NotRewritten,
    /// The hypervisor refused the image.
    Refused,
    /// The twin was aborted.
    Aborted,
    /// It did its work, or what looks like it.
    Survived,
}

impl Came {
    fn word(&self) -> &'static str {
        match self {
            Self::NotRewritten => "not-rewritten",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Survived => "survived",
        }
    }
}

/// Runs the twin of this image for a while.
fn try_out(arguments: &Arguments, found: &Found, image: &[u8]) -> Result<Came, String> {
    let mut device = Device::open()?;
    if let Err(words) = making::load_image(&mut device, &arguments.interface, found, image) {
        let is_refused = device.status()?.refused.is_some();
        return if is_refused { Ok(Came::Refused) } else { Err(words) };
    }
    device.attach(arguments.vif, &found.live.net.irqs)?;
    let end = Instant::now() + arguments.time;
    let mut status = device.status()?;
    while !status.is_disabled && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        status = device.status()?;
    }
    if status.state == State::Attached {
        device.detach()?;
    }
    let status = device.status()?;
    Ok(if status.is_disabled { Came::Aborted } else { Came::Survived })
}

/// Waits until the link is there, as after an abort, which takes the interface down and up.
fn has_link(interface: &str) -> Result<(), String> {
    let end = Instant::now() + LINK;
    while std::fs::read_to_string(format!("/sys/class/net/{interface}/carrier")).ok().as_deref() != Some("1\n") {
        if Instant::now() > end {
            return Err(format!("{interface} has no link any more"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Says so first: the driver domain may not live to see the end.
fn begin(number: u64, faults: usize, class: &str) {
    println!("faults: try {number}: {faults} {class}");
}

fn run() -> Result<(), String> {
    let arguments = arguments()?;
    let interface = Interface::named(&arguments.interface)?;
    let mut found = making::find(&interface, Mode::Mirror)?;
    let mut module = found.module.clone();
    let mut base = Base::new(&module, &making::options(Mode::Mirror))?;
    let reached = path::reached(&module, &path::entries(&found.live));
    let program = program::recover(&module);
    let bodies = reached.iter().filter_map(|function| program.bodies.get(function));
    let hot: Vec<u64> = bodies.flat_map(|body| body.nodes.keys().copied()).collect();
    let whole = base.image()?;
    for number in arguments.from..arguments.from + arguments.count {
        let mut r = Random::new(Random::new(arguments.seed).draw() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (class, faults, came): (String, usize, _);
        if r.one_in(IMAGES_ONE_IN) {
            let mut image = whole.clone();
            mutate::image(&mut image, &mut r);
            (class, faults) = ("Image".into(), 1);
            begin(number, faults, &class);
            came = try_out(&arguments, &found, &image)?;
        } else {
            let k = r.below(TEXT_FAULTS.len() as u64) as usize;
            // Not every function has what a class is about.
            let mut tries = (0..TRIES).map(|_| inject(&mut module, &hot, k, &mut r));
            let Some(changed) = tries.find(|changed| !changed.is_empty()) else { continue };
            let ranges: Vec<_> = changed.iter().map(|(range, _)| range.clone()).collect();
            (class, faults) = (format!("{:?}", TEXT_FAULTS[k]), changed.len());
            begin(number, faults, &class);
            came = match base.variant(&module, &ranges) {
                Err(_) => Came::NotRewritten,
                Ok(image) => try_out(&arguments, &found, &image)?,
            };
            undo(&mut module, &changed);
        }
        println!("faults: run {number}: {faults} {class} {}", came.word());
        if matches!(came, Came::Aborted) {
            has_link(&arguments.interface)?;
            found.live = twin_kernel::driver::live(&found.kernel, &interface.name, &interface.interrupts())?;
        }
    }
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
