//! A run: what is spoilt, and what comes of it.

use crate::Arguments;
use std::process::Command;
use std::time::{Duration, Instant};
use twin_faults::live::{Data, Spoilt};
use twin_faults::mutate::{self, DataFault, DATA_FAULTS, TEXT_FAULTS};
use twin_faults::random::Random;
use twin_faults::text::{inject, undo, AT_ONCE};
use twin_kernel::path;
use twin_rewrite::module::Module;
use twin_rewrite::program;
use twin_rewrite::variant::Base;
use twind::device::{Device, State};
use twind::interface::Interface;
use twind::making::{self, Found};

/// Of so many runs, one has its fault in the finished image, and one its faults in data if that is spoilt at all.
const ONE_IN: u64 = 4;

/// How long the link may take.
const LINK: Duration = Duration::from_secs(20);
/// How long the first packet may take to come to a twin: a stream that was interrupted is silent for a while.
const FIRST_PACKET: Duration = Duration::from_secs(3);
/// From one look at a twin to the next.
const LOOK: Duration = Duration::from_millis(5);
/// How often another place is chosen for a class of faults.
const TRIES: u32 = 64;

/// What came of a run.
pub enum Came {
    /// The rewriter refused a function.
    NotRewritten,
    /// The hypervisor refused the image.
    Refused,
    /// The twin was aborted.
    Aborted,
    /// It did its work, or what looks like it.
    Survived,
    /// No packet came to it.
    Idle,
}

impl Came {
    /// For who counts.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotRewritten => "not-rewritten",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Survived => "survived",
            Self::Idle => "idle",
        }
    }
}

/// What is done to a driver's data, at so many places.
struct DataFaults {
    fault: DataFault,
    places: Vec<u64>,
    r: Random,
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

/// What all runs share.
pub struct Runs {
    arguments: Arguments,
    interface: Interface,
    found: Found,
    module: Module,
    /// The instructions on the way of packets.
    hot: Vec<u64>,
    /// The image without a fault, and what it imports.
    whole: Vec<u8>,
    imports: Vec<(String, u64)>,
}

impl Runs {
    /// Of the driver that was found, of whose twin `base` makes variants.
    pub fn new(arguments: Arguments, interface: Interface, found: Found, base: &Base) -> Result<Self, String> {
        let module = found.module.clone();
        let reached = path::reached(&module, &path::entries(&found.live));
        let program = program::recover(&module);
        let bodies = reached.iter().filter_map(|function| program.bodies.get(function));
        let hot = bodies.flat_map(|body| body.nodes.keys().copied()).collect();
        let (whole, imports) = (base.image()?, base.imports().to_vec());
        Ok(Self { arguments, interface, found, module, hot, whole, imports })
    }

    /// Run `number`. `None`: nothing on the way of packets can have such faults.
    pub fn run(&mut self, base: &mut Base, number: u64) -> Result<Option<(usize, String, Came)>, String> {
        let mut r = Random::new(Random::new(self.arguments.seed).draw() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match r.below(ONE_IN) {
            0 => self.image(number, &mut r).map(Some),
            1 if self.arguments.data => self.data(number, r),
            _ => self.text(base, number, &mut r),
        }
    }

    fn image(&self, number: u64, r: &mut Random) -> Result<(usize, String, Came), String> {
        let mut image = self.whole.clone();
        mutate::image(&mut image, r);
        begin(number, 1, "Image");
        Ok((1, "Image".into(), self.try_out(&image, None)?))
    }

    fn data(&self, number: u64, mut r: Random) -> Result<Option<(usize, String, Came)>, String> {
        let fault = DATA_FAULTS[r.below(DATA_FAULTS.len() as u64) as usize];
        let data = Data::of(&self.found.kernel, &self.found.live, &self.module);
        let places: Vec<u64> = (0..1 + r.below(AT_ONCE)).filter_map(|_| data.choose(fault, &mut r)).collect();
        if places.is_empty() {
            return Ok(None);
        }
        let (class, count) = (format!("Data{fault:?}"), places.len());
        begin(number, count, &class);
        let came = self.try_out(&self.whole, Some(DataFaults { fault, places, r }))?;
        Ok(Some((count, class, came)))
    }

    fn text(&mut self, base: &mut Base, number: u64, r: &mut Random) -> Result<Option<(usize, String, Came)>, String> {
        let k = r.below(TEXT_FAULTS.len() as u64) as usize;
        // Not every function has what a class is about.
        let mut tries = (0..TRIES).map(|_| inject(&mut self.module, &self.hot, k, r));
        let Some(changed) = tries.find(|changed| !changed.is_empty()) else { return Ok(None) };
        let ranges: Vec<_> = changed.iter().map(|(range, _)| range.clone()).collect();
        let (class, faults) = (format!("{:?}", TEXT_FAULTS[k]), changed.len());
        begin(number, faults, &class);
        let came = match base.variant(&self.module, &ranges) {
            Err(_) => Ok(Came::NotRewritten),
            Ok(image) => self.try_out(&image, None),
        };
        undo(&mut self.module, &changed);
        Ok(Some((faults, class, came?)))
    }

    /// Runs the twin of this image until packets have gone by it for a while, or it is aborted.
    fn try_out(&self, image: &[u8], faults: Option<DataFaults>) -> Result<Came, String> {
        let mut spoilt = faults.is_some().then(Spoilt::nothing).transpose()?;
        let mut device = Device::open()?;
        if let Err(words) = making::load_image(&mut device, &self.arguments.interface, &self.found, image, &self.imports) {
            let is_refused = device.status()?.refused.is_some();
            return if is_refused { Ok(Came::Refused) } else { Err(words) };
        }
        device.attach(self.arguments.vif, &self.found.live.net.irqs)?;
        let (mut end, mut is_idle) = (Instant::now() + FIRST_PACKET, true);
        let mut faults = faults;
        let mut status = device.status()?;
        while !status.is_disabled && Instant::now() < end {
            if is_idle && status.stats.packets != 0 {
                is_idle = false;
                end = Instant::now() + self.arguments.time;
                if let (Some(spoilt), Some(DataFaults { fault, places, r })) = (&mut spoilt, &mut faults) {
                    spoilt.spoil(&self.found.kernel, *fault, places, r);
                }
            }
            std::thread::sleep(LOOK);
            status = device.status()?;
        }
        if let Some(spoilt) = &mut spoilt {
            spoilt.undo(&self.found.kernel);
        }
        if status.state == State::Attached {
            device.detach()?;
        }
        Ok(match device.status()?.is_disabled {
            true => Came::Aborted,
            false if is_idle => Came::Idle,
            false => Came::Survived,
        })
    }

    /// After a run that may have left the driver in a state of which it does not get out by itself.
    pub fn settle(&mut self, came: &Came) -> Result<(), String> {
        let name = &self.interface.name;
        match came {
            Came::Aborted => {}
            Came::Idle => ["down", "up"].into_iter().try_for_each(|state| set_link(name, state))?,
            _ => return Ok(()),
        }
        has_link(name)?;
        self.found.live = twin_kernel::driver::live(&self.found.kernel, name, &self.interface.interrupts())?;
        Ok(())
    }
}

/// Takes the interface down or up.
fn set_link(interface: &str, state: &str) -> Result<(), String> {
    let ended = Command::new("ip").args(["link", "set", interface, state]).status();
    let is_done = ended.map_err(|e| format!("ip link set: {e}"))?.success();
    is_done.then_some(()).ok_or(format!("ip link set {interface} {state} fails"))
}
