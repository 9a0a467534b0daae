//! A run: what is spoilt, and what comes of it.

use crate::recovery::Way;
use crate::Arguments;
use std::time::{Duration, Instant};
use twin_faults::live::{Data, Spoilt};
use twin_faults::mutate::{self, DataFault, DATA_FAULTS, TEXT_FAULTS};
use twin_faults::random::Random;
use twin_faults::spent::{Spent, Step};
use twin_faults::text::{inject, undo};
use twin_kernel::btf::Btf;
use twin_kernel::{driver, net, path};
use twin_rewrite::module::Module;
use twin_rewrite::program;
use twin_rewrite::variant::Base;
use twind::device::{Device, State, Status};
use twind::interface::Interface;
use twind::making::{self, Found};

/// Of so many runs, one has its fault in the finished image; and of so many again, one has its faults in data if that
/// is spoilt at all. A quarter of those end with the driver domain, for its own kernel uses what is spoilt.
const ONE_IN: u64 = 4;

/// How long the first packet may take to come to a twin. Guests ask all the time, so that it comes at once.
const FIRST_PACKET: Duration = Duration::from_secs(1);
/// So long a twin that was aborted may have its card; what it waits for may have to be done first.
const LEAVES: Duration = Duration::from_secs(10);
/// From one look at a twin to the next.
const LOOK: Duration = Duration::from_millis(1);
/// So many packets that were sent, and polls for what came, are enough for a run.
const ENOUGH: (u64, u64) = (24, 12);
/// How often another place is chosen for a class of faults.
const TRIES: u32 = 64;

/// What came of a run.
pub enum Came {
    /// The rewriter refused a function.
    NotRewritten,
    /// The hypervisor refused the image, or to give it the card.
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

/// The twin has sent so many packets and polled so often.
fn has(status: &Status, (packets, polls): (u64, u64)) -> bool {
    status.stats.packets >= packets && status.stats.polls >= polls
}

/// The module takes the card from a twin that was disabled, though nobody asks for it.
fn goes_by_itself(device: &mut Device) -> Result<(), String> {
    let end = Instant::now() + LEAVES;
    while device.status()?.state == State::Attached {
        if Instant::now() > end {
            return Err("a twin that was aborted keeps its card".into());
        }
        std::thread::sleep(LOOK);
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
    way: Way,
    found: Found,
    module: Module,
    /// The kernel's, which are long to read.
    types: Btf,
    /// The instructions on the way of packets.
    hot: Vec<u64>,
    /// The image without a fault, and what it imports.
    whole: Vec<u8>,
    imports: Vec<(String, u64)>,
    /// Where the time goes.
    pub spent: Spent,
}

impl Runs {
    /// Of the driver that was found, of whose twin `base` makes variants.
    pub fn new(arguments: Arguments, interface: Interface, found: Found, base: &Base) -> Result<Self, String> {
        let module = found.module.clone();
        let reached = path::reached(&module, &path::entries(&found.live));
        let program = program::recover(&module);
        let bodies = reached.iter().filter_map(|function| program.bodies.get(function));
        let hot = bodies.flat_map(|body| body.nodes.keys().copied()).collect();
        let types = net::types(&found.kernel)?;
        let way = Way::new(&interface.name, arguments.vif)?;
        Ok(Self {
            arguments,
            interface,
            way,
            found,
            module,
            types,
            hot,
            whole: base.image()?,
            imports: base.imports().to_vec(),
            spent: Spent::default(),
        })
    }

    /// Run `number`. `None`: nothing on the way of packets can have such faults.
    pub fn run(&mut self, base: &mut Base, number: u64) -> Result<Option<(usize, String, Came)>, String> {
        self.spent.begin();
        let mut r = Random::new(Random::new(self.arguments.seed).draw() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match r.below(ONE_IN) {
            0 => self.image(number, &mut r).map(Some),
            1 if self.arguments.data && r.one_in(ONE_IN) => self.data(number, r),
            _ => self.text(base, number, &mut r),
        }
    }

    fn image(&mut self, number: u64, r: &mut Random) -> Result<(usize, String, Came), String> {
        let mut image = self.whole.clone();
        mutate::image(&mut image, r);
        begin(number, 1, "Image");
        Ok((1, "Image".into(), self.try_out(&image, None)?))
    }

    fn data(&mut self, number: u64, mut r: Random) -> Result<Option<(usize, String, Came)>, String> {
        let fault = DATA_FAULTS[r.below(DATA_FAULTS.len() as u64) as usize];
        let data = Data::of(&self.found.kernel, &self.found.live, &self.module);
        let places: Vec<u64> =
            (0..1 + r.below(self.arguments.at_once)).filter_map(|_| data.choose(fault, &mut r)).collect();
        if places.is_empty() {
            return Ok(None);
        }
        let (class, count) = (format!("Data{fault:?}"), places.len());
        begin(number, count, &class);
        let came = self.try_out(&self.whole.clone(), Some(DataFaults { fault, places, r }))?;
        Ok(Some((count, class, came)))
    }

    fn text(&mut self, base: &mut Base, number: u64, r: &mut Random) -> Result<Option<(usize, String, Came)>, String> {
        let k = r.below(TEXT_FAULTS.len() as u64) as usize;
        // Not every function has what a class is about.
        let mut tries = (0..TRIES).map(|_| inject(&mut self.module, &self.hot, k, self.arguments.at_once, r));
        let Some(changed) = tries.find(|changed| !changed.is_empty()) else { return Ok(None) };
        let ranges: Vec<_> = changed.iter().map(|(range, _)| range.clone()).collect();
        let (class, faults) = (format!("{:?}", TEXT_FAULTS[k]), changed.len());
        begin(number, faults, &class);
        let came = match base.variant(&self.module, &ranges) {
            Err(_) => {
                self.spent.on(Step::Make);
                Ok(Came::NotRewritten)
            }
            Ok(image) => self.try_out(&image, None),
        };
        undo(&mut self.module, &changed);
        Ok(Some((faults, class, came?)))
    }

    /// Runs the twin of this image until packets have gone by it for a while, or it is aborted.
    fn try_out(&mut self, image: &[u8], faults: Option<DataFaults>) -> Result<Came, String> {
        let mut spoilt = faults.is_some().then(Spoilt::nothing).transpose()?;
        self.spent.on(Step::Make);
        let mut device = Device::open()?;
        if let Err(words) =
            making::load_image(&mut device, &self.arguments.interface, &self.found, image, &self.imports)
        {
            let is_refused = device.status()?.refused.is_some();
            self.spent.on(Step::Load);
            return if is_refused { Ok(Came::Refused) } else { Err(words) };
        }
        self.spent.on(Step::Load);
        // An image may lack what the card needs of it.
        let attached = device.attach(self.arguments.vif, self.interface.number, &self.found.live.net.irqs);
        self.spent.on(Step::Attach);
        if let Err(refused) = attached {
            println!("faults: refused: {}", refused.why);
            return Ok(Came::Refused);
        }
        let (mut end, mut is_idle) = (Instant::now() + FIRST_PACKET, true);
        let mut faults = faults;
        let mut status = device.status()?;
        let mut enough = ENOUGH;
        while !status.is_disabled && Instant::now() < end && (is_idle || !has(&status, enough)) {
            if is_idle && status.stats.packets != 0 {
                is_idle = false;
                self.spent.on(Step::Wait);
                end = Instant::now() + self.arguments.time;
                enough = (status.stats.packets + ENOUGH.0, status.stats.polls + ENOUGH.1);
                if let (Some(spoilt), Some(DataFaults { fault, places, r })) = (&mut spoilt, &mut faults) {
                    spoilt.spoil(&self.found.kernel, *fault, places, r);
                }
            }
            std::thread::sleep(LOOK);
            status = device.status()?;
        }
        self.spent.on(if is_idle { Step::Wait } else { Step::Watch });
        if let Some(spoilt) = &mut spoilt {
            spoilt.undo(&self.found.kernel);
        }
        if status.is_disabled {
            goes_by_itself(&mut device)?;
        } else if status.state == State::Attached {
            device.detach()?;
        }
        let is_disabled = device.status()?.is_disabled;
        drop(device);
        self.spent.on(Step::Leave);
        Ok(match is_disabled {
            true => Came::Aborted,
            false if is_idle => Came::Idle,
            false => Came::Survived,
        })
    }

    /// After a run of which this came Linux drives the card again. Its driver may have begun anew.
    pub fn settle(&mut self, came: &Came) -> Result<(), String> {
        if matches!(came, Came::NotRewritten | Came::Refused) {
            return Ok(());
        }
        // Nothing could be handed to a twin that was idle: its driver's queue is stopped, or locked.
        let is_new = self.way.comes_back(matches!(came, Came::Idle))?;
        let name = self.interface.name.clone();
        if is_new || matches!(came, Came::Aborted) {
            // Interrupts are asked for when an interface comes up.
            self.interface = Interface::named(&name)?;
        }
        let (kernel, irqs) = (&self.found.kernel, self.interface.interrupts());
        if is_new {
            self.found.live = driver::live_of(kernel, &self.types, &name, &irqs)?;
        } else if matches!(came, Came::Aborted) {
            self.found.live.net = net::net_device(kernel, &self.types, &name, &irqs)?;
        }
        self.spent.on(Step::Settle);
        Ok(())
    }
}
