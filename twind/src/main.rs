//! Gives a network driver of the driver domain that it runs in a twin in the hypervisor: finds the live driver, rewrites it, has the
//! kernel module `tandem` load it and lend it buffers, and gives it the card while the interface is up.

mod device;
mod interface;
mod kernel;

use device::{Device, Load, State, Status};
use interface::Interface;
use kernel::Running;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use twin_kernel::driver::{self, Live};
use twin_kernel::{image, net, path, LiveKernel};
use twin_rewrite::module::Module;
use twin_rewrite::options::{Mode, Options};
use twin_rewrite::rewrite::Output;
use twin_runtime::linux::lock::Sleepers;
use twin_runtime::linux::offsets::{NEEDED, SIZED};
use twin_runtime::linux::Routine;

const HELP: &str = "\
usage: twind --interface NAME [OPTIONS]
  --mode mirror     how the twin reaches the driver's data; there is one mode so far
  --vif NUMBER      which interface of this domain's is plugged into the hypervisor's switch as its way out (0)
  --loaded          loads the twin and does not give it the card
  --try COUNT       calls its interrupt handler so often, says what came of it, and ends";

/// Bits of an address that the hypervisor's mirror keeps.
const MASK_BITS: u32 = 47;
/// Buffers of a kind that are lent beside what lies in the card's rings.
const BUFFERS: u32 = 512;

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

/// What was found in the running kernel.
struct Found {
    kernel: Running,
    live: Live,
    module: Module,
    output: Output,
}

/// Finds the driver of the interface and makes its twin.
fn find(interface: &Interface) -> Result<Found, String> {
    let begun = Instant::now();
    let mut kernel = Running::open()?;
    let live = driver::live(&kernel, &interface.name, &interface.interrupts())?;
    let entries = path::entries(&live);
    let names: Vec<String> = driver::modules_of(&kernel, &entries)?.into_iter().map(Into::into).collect();
    for name in &names {
        kernel.look_up(name)?;
    }
    let module = driver::modules(&kernel, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let options = Options { mask_bits: MASK_BITS, bmi: has_bmi(), ..Options::new(Mode::Mirror) };
    let output = image::make(&module, &options)?;
    let reached = path::reached(&module, &entries);
    if let Some(refused) = output.refused.iter().find(|refused| path::is_among(&module, refused, &reached)) {
        return Err(format!(
            "{} is on the way of packets and cannot be rewritten: {}: {}",
            refused.function,
            module.describe(refused.address),
            refused.reason
        ));
    }
    println!(
        "twind: {} of {}: {} functions, {} bytes of image, {} ms",
        module.name,
        interface.name,
        output.functions - output.refused.len(),
        output.image.len(),
        begun.elapsed().as_millis()
    );
    Ok(Found { kernel, live, module, output })
}

/// The processor has BMI1 and BMI2, and all that run this domain as well.
fn has_bmi() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = text.lines().filter(|line| line.starts_with("flags")).peekable();
    let has = |line: &str, flag| line.split_whitespace().any(|word| word == flag);
    flags.peek().is_some() && flags.all(|line| has(line, "bmi1") && has(line, "bmi2"))
}

/// Places of members and sizes, in the order in which the hypervisor wants them.
fn offsets(kernel: &Running) -> Result<Vec<u32>, String> {
    let types = net::types(kernel)?;
    let members = NEEDED.iter().map(|(structure, member)| types.offset(structure, member));
    let sizes = SIZED.iter().map(|structure| types.size(structure));
    let narrow = |place: u64| u32::try_from(place).map_err(|e| e.to_string());
    members.chain(sizes).map(|place| narrow(place?)).collect()
}

/// Buffers to lend: for packets to send, for the driver to build received ones around its own, and to receive into. What the driver
/// never asks for is not lent.
fn buffers(found: &Found) -> [u32; 3] {
    let imports = |routine| found.output.imports.iter().any(|(name, _)| Routine::by_name(name) == Some(routine));
    let count = |is_wanted: bool| if is_wanted { BUFFERS } else { 0 };
    [BUFFERS, count(imports(Routine::BuildSkb)), count(imports(Routine::AllocFragment))]
}

fn load(device: &mut Device, interface: &Interface, found: &Found) -> Result<Status, String> {
    let root = found.kernel.symbol("init_top_pgt").ok_or("the kernel has no symbol init_top_pgt")?;
    let offsets = offsets(&found.kernel)?;
    let Sleepers { table, count, stride } = found.live.kernel.sleepers;
    let load = Load {
        interface: &interface.name,
        root,
        offsets: &offsets,
        image: &found.output.image,
        sleepers: (table, count, stride),
        buffers: buffers(found),
    };
    device.load(&load)?;
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
    let mut found = find(&interface)?;
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
