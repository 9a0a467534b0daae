//! Gives a network driver of the driver domain that it runs in a twin in the hypervisor: finds the live driver, rewrites it, has the
//! kernel module `tandem` load it and lend it buffers, and gives it the card while the interface is up.

use std::process::ExitCode;
use std::time::Duration;
use twin_kernel::driver;
use twind::device::{Device, State, Status};
use twind::interface::Interface;
use twind::making::{self, Found};

const HELP: &str = "\
usage: twind --interface NAME [OPTIONS]
  --mode mirror     how the twin reaches the driver's data; there is one mode so far
  --vif NUMBER      which interface of this domain's is plugged into the hypervisor's switch as its way out (0)
  --loaded          loads the twin and does not give it the card
  --try COUNT       calls its interrupt handler so often, says what came of it, and ends";

struct Arguments {
    interface: String,
    vif: u32,
    is_loaded_only: bool,
    tries: Option<u32>,
}

fn arguments() -> Result<Arguments, String> {
    use lexopt::{Arg, ValueExt};
    let mut out = Arguments { interface: String::new(), vif: 0, is_loaded_only: false, tries: None };
    let mut parser = lexopt::Parser::from_env();
    let mut parse = || -> Result<(), lexopt::Error> {
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("interface") | Arg::Short('i') => out.interface = parser.value()?.string()?,
                Arg::Long("vif") => out.vif = parser.value()?.parse()?,
                Arg::Long("loaded") => out.is_loaded_only = true,
                Arg::Long("try") => out.tries = Some(parser.value()?.parse()?),
                Arg::Long("mode") => match parser.value()?.string()?.as_str() {
                    "mirror" => {}
                    other => return Err(format!("there is no mode {other} but mirror").into()),
                },
                Arg::Long("help") | Arg::Short('h') => return Err(HELP.into()),
                other => return Err(other.unexpected()),
            }
        }
        Ok(())
    };
    parse().map_err(|e| e.to_string())?;
    if out.interface.is_empty() {
        return Err(HELP.into());
    }
    Ok(out)
}

fn load(device: &mut Device, interface: &Interface, found: &Found) -> Result<Status, String> {
    making::load_image(device, &interface.name, found, &found.output.image)?;
    let status = device.status()?;
    println!("twind: loaded as twin {}: {} functions, {} buffers lent", status.twin, status.functions, status.lent);
    Ok(status)
}

/// Calls the twin's interrupt handlers, and says what it wanted of the kernel.
fn try_out(device: &mut Device, found: &Found, count: u32, mut status: Status) -> Result<(), String> {
    for n in 0..count {
        for (number, handler, argument) in &found.live.net.irqs {
            device.call(*handler, *number, [u64::from(*number), *argument, 0, 0, 0, 0])?;
        }
        status = device.status()?;
        if status.is_disabled {
            let place = found.module.describe(status.call.original);
            return Err(format!(
                "call {n} was aborted: reason {}, {:#x}, at {place}",
                status.call.reason, status.call.detail
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("twind: {} invocations, {} aborts", status.invocations, status.aborts);
    for line in called(found, &status) {
        println!("twind: it had {line} called");
    }
    Ok(())
}

/// Names of the kernel functions that a twin had called, and how often.
fn called(found: &Found, status: &Status) -> Vec<String> {
    let name = |(function, count): &(u64, u64)| format!("{} {count} times", found.module.describe(*function));
    status.called.iter().map(name).collect()
}

/// From one try to the next while the card is not given to the twin.
const AGAIN: Duration = Duration::from_secs(1);

/// Gives the twin the card whenever the interface is up; ends when the interface goes or the twin is disabled.
fn stay(
    device: &mut Device,
    arguments: &Arguments,
    interface: &Interface,
    found: &mut Found,
    mut status: Status,
) -> Result<(), String> {
    let (mut said, mut is_new) = (String::new(), false);
    loop {
        if status.state == State::Empty {
            return Err(format!("interface {} is gone", interface.name));
        }
        if status.is_disabled {
            if status.state == State::Attached {
                device.detach()?;
            }
            return Err("the twin is disabled; the hypervisor's console says why".into());
        }
        let words = match (status.state, status.is_up) {
            (State::Attached, _) => "attached".into(),
            (_, true) if arguments.is_loaded_only => "not attached, as asked for".into(),
            (_, true) => {
                // Interrupts are asked for when an interface comes up.
                if is_new {
                    found.live = driver::live(&found.kernel, &interface.name, &interface.interrupts())?;
                }
                match device.attach(arguments.vif, &found.live.net.irqs) {
                    Ok(()) => "attached".into(),
                    Err(why) => format!("not attached: {why}"),
                }
            }
            (_, false) => format!("not attached: {} is down", interface.name),
        };
        if words != said {
            println!("twind: {words}");
            said = words;
        }
        let next = device.status_within(AGAIN)?;
        is_new = next.is_some();
        status = next.unwrap_or(status);
    }
}

fn run() -> Result<(), String> {
    let arguments = arguments()?;
    let interface = Interface::named(&arguments.interface)?;
    let mut device = Device::open()?;
    let mut found = making::find(&interface)?;
    let status = load(&mut device, &interface, &found)?;
    match arguments.tries {
        Some(count) => try_out(&mut device, &found, count, status),
        None => stay(&mut device, &arguments, &interface, &mut found, status),
    }
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
