//! Gives a network driver of the driver domain that it runs in a twin in the hypervisor: finds the live driver,
//! rewrites it, has the kernel module `tandem` load it and lend it buffers, and gives it the card while the interface
//! is up.
//!
//! A daemon: `twinctl` and domain 0's tandemd tell it what is wanted (`control.rs`).

/// A line of the log. Rust's own ends the program when it cannot be written.
#[cfg(not(test))]
macro_rules! println {
    ($($line:tt)*) => { ::control::log::output(format_args!($($line)*)) };
}

/// The same, of what ends it.
#[cfg(not(test))]
macro_rules! eprintln {
    ($($line:tt)*) => { ::control::log::error(format_args!($($line)*)) };
}

mod control;
mod live;
mod tell;
mod twin;

use ::control::request::Mode;
use ::control::{log, socket, watchdog};
use control::Twins;
use live::Live;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use twin::Twin;
use twind::device::Device;
use twind::interface;
use twind::making::{Ahead, Found};

const HELP: &str = "\
usage: twind --interface NAME[:VIF]... [OPTIONS]
Gives the drivers of these interfaces twins in the hypervisor. It needs root, and the kernel module tandem. VIF is the number of the interface of this domain's that is plugged
into the hypervisor's switch as its way out (0).
  --vif NUMBER      the same, of all interfaces that are named without
  --mode MODE       twin-mirror, twin-stlb: gives the twins the cards; vm: loads them, and Linux has the cards until twinctl says otherwise
  --loaded          the same as --mode vm
  --wait DRIVER     the interfaces may come later; meanwhile the twin of this driver is made. It is a module, or several with commas
                    between them, which are loaded, and the first interface's
  --socket FILE     where twinctl asks, instead of /run/tandem/twind.sock
  --try COUNT       calls the twin's interrupt handlers so often, says what came of it, and ends
  --version         says which it is, and ends";

/// Said where none is named, into the journal at each try of systemd's.
const NO_INTERFACE: &str =
    "say which interface: --interface NAME (in /etc/default/twind: TWIND=--interface enp0s1); twind --help says more";

struct Arguments {
    interfaces: Vec<(String, Option<u32>)>,
    vif: u32,
    mode: Mode,
    socket: PathBuf,
    tries: Option<u32>,
    /// Modules of the driver whose interface is waited for.
    waits: Option<Vec<String>>,
}

/// `None`: what there is was asked for, and has been said.
fn arguments() -> Result<Option<Arguments>, String> {
    use lexopt::{Arg, ValueExt};
    let mut out = Arguments {
        interfaces: Vec::new(),
        vif: 0,
        mode: Mode::TwinMirror,
        socket: ::control::TWIND.into(),
        tries: None,
        waits: None,
    };
    let mut parser = lexopt::Parser::from_env();
    let mut parse = || -> Result<Option<String>, lexopt::Error> {
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("interface") | Arg::Short('i') => out.interfaces.push(named(&parser.value()?.string()?)?),
                Arg::Long("vif") => out.vif = parser.value()?.parse()?,
                Arg::Long("loaded") => out.mode = Mode::Vm,
                Arg::Long("socket") => out.socket = parser.value()?.into(),
                Arg::Long("wait") => {
                    out.waits = Some(parser.value()?.string()?.split(',').map(Into::into).collect());
                }
                Arg::Long("try") => out.tries = Some(parser.value()?.parse()?),
                Arg::Long("mode") => out.mode = Mode::named(&parser.value()?.string()?)?,
                Arg::Long("help") | Arg::Short('h') => return Ok(Some(HELP.into())),
                Arg::Long("version") => return Ok(Some(::control::version("twind"))),
                other => return Err(other.unexpected()),
            }
        }
        Ok(None)
    };
    if let Some(about) = parse().map_err(|e| e.to_string())? {
        println!("{about}");
        return Ok(None);
    }
    if out.interfaces.is_empty() {
        return Err(NO_INTERFACE.into());
    }
    Ok(Some(out))
}

/// `NAME` or `NAME:VIF`.
fn named(text: &str) -> Result<(String, Option<u32>), String> {
    match text.split_once(':') {
        Some((name, vif)) => {
            Ok((name.into(), Some(vif.parse().map_err(|_| format!("`{vif}` is no number of an interface"))?)))
        }
        None => Ok((text.into(), None)),
    }
}

/// Takes the socket. One who was told to end may need a moment for it. Errors: in words.
fn listen(path: &Path) -> Result<UnixListener, String> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        if let Ok(listener) = socket::listen(path) {
            return Ok(listener);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    socket::listen(path).map_err(|error| format!("{error:#}"))
}

/// Calls the twin's interrupt handlers, and says what it wanted of the kernel.
fn try_out(device: &mut Device, found: &Found, count: u32) -> Result<(), String> {
    for n in 0..count {
        for (number, handler, argument) in &found.live.net.irqs {
            device.call(*handler, *number, [u64::from(*number), *argument, 0, 0, 0, 0])?;
        }
        let status = device.status()?;
        if status.is_disabled {
            let place = found.module.describe(status.call.original);
            let reason = tell::words(status.call.reason);
            return Err(format!("call {n} was aborted at {place}: {reason} ({:#x})", status.call.detail));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = device.status()?;
    println!("twind: {} invocations, {} aborts", status.stats.calls, status.stats.aborts);
    for upcall in tell::upcalls(&found.module, &status) {
        println!("twind: it had {} called {} times", upcall.function, upcall.count);
    }
    Ok(())
}

/// A twin that is made before the interface is there. Without one it is made then.
fn made_ahead(drivers: &[String], mode: Mode) -> Option<Ahead> {
    let made = Ahead::of(drivers, live::translation(mode));
    made.inspect_err(|why| println!("twind: no twin is made before the interface is there: {why}")).ok()
}

fn run() -> Result<(), String> {
    let Some(arguments) = arguments()? else { return Ok(()) };
    let twins = Twins::default();
    if arguments.tries.is_none() {
        control::not_yet(&arguments.socket);
        // What hangs is no more when the file of the kernel module is closed with the process: Linux has the card then,
        // and the next daemon makes the twin anew.
        let watched = twins.clone();
        let works = move || {
            watched.wait_for_all();
            true
        };
        watchdog::begin(works, log::output);
    }
    let is_alone = arguments.interfaces.len() == 1;
    let mut begun = Vec::new();
    let mut ahead = None;
    if let Some(drivers) = &arguments.waits {
        ahead = made_ahead(drivers, arguments.mode);
        arguments.interfaces.iter().try_for_each(|(name, _)| interface::wait_for(name))?;
    }
    // Who tries takes no requests, so another one may run beside it.
    let listener = match arguments.tries {
        Some(_) => None,
        None => Some(listen(&arguments.socket)?),
    };
    for (name, vif) in &arguments.interfaces {
        let label = if is_alone { String::new() } else { control::label(name) };
        let driver = Live::of_any(name, ahead.take())?;
        let mut twin = Twin::new(driver, name, vif.unwrap_or(arguments.vif), arguments.mode, label);
        if let Some(count) = arguments.tries {
            twin.load()?;
            let (device, found) = twin.driver().loaded().ok_or("the twin is gone")?;
            return try_out(device, found, count);
        }
        begun.push((name, twin));
    }
    twin::load_all(begun.iter_mut().map(|(_, twin)| twin))?;
    let Some(listener) = listener else { return Ok(()) };
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| format!("signals: {error}"))?;
    for (name, twin) in begun {
        twins.known_or_begun(name, || Ok(twin))?;
    }
    control::begin(&twins, listener);
    signals.forever().next();
    control::end(Path::new(&arguments.socket));
    twins.end();
    println!("twind: ended");
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("twind: {words}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_unit_starts_it_again_and_rests_on_another_hypervisor() {
        let unit = include_str!("../twind.service");
        let (general, service) = unit.split_once("[Service]").unwrap();
        assert!(general.contains("\nStartLimitIntervalSec=0\n") && service.contains("\nRestart=always\n"));
        assert!(service.contains("\nExecCondition=/bin/grep -q tandem /sys/hypervisor/version/extra\n"));
        // Who makes a twin does not answer meanwhile: whoever asks waits a hundred seconds for that.
        assert!(service.contains("\nWatchdogSec=180\n"));
        // It says what the daemon takes.
        assert!(service.contains("\"TWIND=--interface eth0\"") && HELP.contains("--interface NAME"));
        let file = "/etc/default/twind";
        assert!(service.contains(&format!("EnvironmentFile=-{file}\n")) && NO_INTERFACE.contains(file));
    }
}
