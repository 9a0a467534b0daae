//! Fault injection: what goes wrong in the driver must stay in the sandbox.
//!
//! Every run starts from the same captured state, does the same small piece of work (packets out and in), and ends
//! quietly, or with an abort, or with a refusal before it began. It must never reach for anything that is not the
//! driver domain's: the interpreter knows every address that the twin may reach, and calls anything else an escape.

use crate::device::{Arrival, Device};
use crate::emulate::{Original, TwinEmulator};
use crate::lab::{Class, Ended, Executor, Lab, Outgoing};
use crate::mutate::{self, DataFault, TextFault, DATA_FAULTS, TEXT_FAULTS};
use crate::random::Random;
use crate::rig::{make, policy, Rig, HOLE, STLB_LIMIT};
use crate::scenario::frame;
use crate::world::Deed;
use std::collections::BTreeMap;
use twin_abi::Image;
use twin_rewrite::module::Module;
use twin_rewrite::options::Options;
use twin_runtime::gate::Twin;
use twin_runtime::linux::Support;
use twin_verify::verify;

/// What injected faults came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Faults injected.
    pub faults: u64,
    /// Runs (a run may carry several faults).
    pub runs: u64,
    /// Functions that the rewriter refused, counted by runs that had one.
    pub refused_rewriter: u64,
    /// Images that the verifier refused.
    pub refused_verifier: u64,
    /// Runs that did their work.
    pub survived: u64,
    /// Runs that were aborted, by class.
    pub aborted: BTreeMap<Class, u64>,
    /// Escapes. Any is a failure.
    pub escapes: Vec<String>,
    /// The last abort's place, as an example.
    pub example: String,
}

impl Tally {
    fn note(&mut self, result: Result<(), Ended>) {
        self.runs += 1;
        match result {
            Ok(()) => self.survived += 1,
            Err(e) if e.class == Class::Escape => self.escapes.push(format!("{} at {}", e.reason, e.at)),
            Err(e) => {
                *self.aborted.entry(e.class).or_default() += 1;
                self.example = format!("{} at {}", e.reason, e.at);
            }
        }
    }
}

/// The totals by class of fault.
pub type Totals = BTreeMap<String, Tally>;

/// Instructions that one call may take before its time is over.
const CALL_LIMIT: u64 = 60_000;
/// Faults in one text or in one domain's data at a time.
const AT_ONCE: u64 = 10;
/// Runs of one faulty text.
const PACKETS: usize = 2;

/// A lab that can be brought back to its first state.
struct Bench {
    lab: Lab,
    support: Support,
    device: Box<dyn Device>,
}

impl Bench {
    fn new(lab: Lab) -> Self {
        let support = lab.support.clone();
        let device = lab.world.device.borrow().copy();
        lab.world.ram.mark();
        Self { lab, support, device }
    }

    fn reset(&mut self) {
        self.lab.world.ram.rewind();
        self.lab.support = self.support.clone();
        *self.lab.world.device.borrow_mut() = self.device.copy();
        self.lab.world.told = Default::default();
    }

    /// The piece of work.
    fn work(&mut self, e: &mut dyn Executor, r: &mut Random) -> Result<(), Ended> {
        for n in 0..PACKETS {
            let len = 60 + r.below(1455) as usize;
            let cuts = if n == 0 && len > 400 { vec![64, 300, 1600] } else { Vec::new() };
            let out = Outgoing { frame: frame(r, len, [2, 1, 1, 1, 1, 1]), cuts, checksum: n == 0 };
            self.lab.transmit(e, &out)?;
            self.lab.settle(e)?;
        }
        for n in 0..PACKETS {
            let f = frame(r, 60 + 900 * n, self.lab.live.net.mac);
            self.lab.arrive(&f, Arrival::default());
            self.lab.settle(e)?;
        }
        Ok(())
    }
}

/// The part of the module that the work runs through: executed instructions, and a module of only those functions.
struct Hot {
    module: Module,
    executed: Vec<u64>,
    touched: Vec<u64>,
}

fn hot(rig: &Rig) -> Result<Hot, String> {
    let (lab, mut original): (Lab, Original) = rig.original()?;
    let mut bench = Bench::new(lab);
    *bench.lab.world.deeds.borrow_mut() = Some(Vec::new());
    bench.work(&mut original, &mut Random::new(1)).map_err(|e| format!("{e:?}"))?;
    let mut touched: Vec<u64> = bench
        .lab
        .world
        .deeds
        .borrow_mut()
        .take()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|d| if let Deed::Write(pa, ..) = d { Some(pa & !7) } else { None })
        .collect();
    touched.sort_unstable();
    touched.dedup();
    let executed = original.visited();
    let mut module = (*rig.module).clone();
    let functions = module.functions.clone();
    let is_hot = |name: &str, from: u64, len: u64| {
        name.contains(".cold") || executed.iter().any(|a| (from..from + len).contains(a))
    };
    module.functions.retain(|f| is_hot(&f.name, f.address, f.len));
    // Functions left out are called where they are; they keep their names as symbols outside.
    for f in functions.iter().filter(|f| !module.functions.contains(f)) {
        module.externs.add(f.address, &f.name);
    }
    Ok(Hot { module, executed, touched })
}

/// Where faults are injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Into {
    /// Text before rewriting (each image is made anew, so this is the slow one).
    Text,
    /// Data of the driver.
    Data,
    /// Finished images.
    Image,
    /// A tenth into text, four tenths into data, half into images.
    All,
}

/// Injects about `count` faults.
pub fn run(
    rig: &Rig,
    options: &Options,
    into: Into,
    count: u64,
    seed: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Totals, String> {
    let hot = hot(rig)?;
    let mut totals = Totals::new();
    let mut r = Random::new(seed);
    let (text, data, image) = match into {
        Into::Text => (count, 0, 0),
        Into::Data => (0, count, 0),
        Into::Image => (0, 0, count),
        Into::All => (count / 10, count * 4 / 10, count - count / 10 - count * 4 / 10),
    };
    in_text(rig, options, &hot, text, &mut r, &mut totals, progress)?;
    in_data(rig, options, &hot, data, &mut r, &mut totals, progress)?;
    in_image(rig, options, &hot, image, &mut r, &mut totals, progress)?;
    Ok(totals)
}

fn twin_of<'a>(rig: &Rig, verified: twin_verify::Verified<'a>, code: Option<Vec<u8>>) -> TwinEmulator<'a> {
    let image = *verified.image();
    let twin = Twin::new(verified, STLB_LIMIT, HOLE);
    let mut e = TwinEmulator::with_code(twin, rig.live.percpu, code.unwrap_or_else(|| image.code().to_vec()));
    e.set_budget(CALL_LIMIT);
    e
}

fn bench(rig: &Rig) -> Result<Bench, String> {
    let mut world = rig.world()?;
    TwinEmulator::prepare(&mut world);
    Ok(Bench::new(Lab::new(world, &rig.live)?))
}

fn in_text(
    rig: &Rig,
    options: &Options,
    hot: &Hot,
    count: u64,
    r: &mut Random,
    totals: &mut Totals,
    progress: &mut dyn FnMut(u64),
) -> Result<(), String> {
    let mut bench = bench(rig)?;
    let mut done = 0;
    while done < count {
        let fault: TextFault = TEXT_FAULTS[r.below(TEXT_FAULTS.len() as u64) as usize];
        let tally = totals.entry(format!("text {fault:?}")).or_default();
        let mut module = hot.module.clone();
        let mut injected = 0;
        for _ in 0..AT_ONCE * 40 {
            let address = hot.executed[r.below(hot.executed.len() as u64) as usize];
            injected += u64::from(mutate::text(&mut module, address, fault, r));
            if injected >= AT_ONCE {
                break;
            }
        }
        done += injected.max(1);
        tally.faults += injected;
        progress(injected);
        let made = match make(&module, options) {
            Ok(made) => made,
            Err(_) => {
                tally.refused_rewriter += 1;
                continue;
            }
        };
        if !made.output.refused.is_empty() {
            tally.refused_rewriter += 1;
        }
        let Ok(verified) = made.verified() else {
            tally.refused_verifier += 1;
            continue;
        };
        let mut twin = twin_of(rig, verified, None);
        tally.note(bench.work(&mut twin, r));
        bench.reset();
    }
    Ok(())
}

fn in_data(
    rig: &Rig,
    options: &Options,
    hot: &Hot,
    count: u64,
    r: &mut Random,
    totals: &mut Totals,
    progress: &mut dyn FnMut(u64),
) -> Result<(), String> {
    let made = make(&hot.module, options)?;
    if let Some(refused) = made.output.refused.first() {
        return Err(format!("{}: {}", refused.function, refused.reason));
    }
    let verified = made.verified()?;
    let mut bench = bench(rig)?;
    let places = places(&bench, hot, rig);
    let mut twin = twin_of(rig, verified, None);
    let mut done = 0;
    while done < count {
        let fault: DataFault = DATA_FAULTS[r.below(DATA_FAULTS.len() as u64) as usize];
        let tally = totals.entry(format!("data {fault:?}")).or_default();
        let mut injected = 0;
        for _ in 0..AT_ONCE {
            injected += u64::from(spoil(&bench, &places, fault, r));
        }
        done += injected.max(1);
        tally.faults += injected;
        progress(injected);
        tally.note(bench.work(&mut twin, r));
        bench.reset();
    }
    Ok(())
}

/// Words worth spoiling, by what they look like.
struct Places {
    words: Vec<u64>,
    pointers: Vec<u64>,
    functions: Vec<u64>,
    small: Vec<u64>,
}

/// The words that the work writes, and everything around them: the driver's own structures.
fn places(bench: &Bench, hot: &Hot, rig: &Rig) -> Places {
    const AROUND: u64 = 4096;
    let ram = &bench.lab.world.ram;
    let mut pages: Vec<u64> = hot.touched.iter().map(|pa| pa / AROUND).collect();
    pages
        .extend((0..2).filter_map(|k| rig.snapshot.translate(rig.live.net.private + k * AROUND)).map(|pa| pa / AROUND));
    pages.sort_unstable();
    pages.dedup();
    let mut out = Places { words: Vec::new(), pointers: Vec::new(), functions: Vec::new(), small: Vec::new() };
    for pa in pages.iter().flat_map(|p| (p * AROUND..(p + 1) * AROUND).step_by(8)) {
        let Some(value) = ram.int(pa, 8) else { continue };
        out.words.push(pa);
        match value {
            v if rig.module.is_text(v) => out.functions.push(pa),
            v if v >> 47 == 0x1_ffff => out.pointers.push(pa),
            1..0x1_0000 => out.small.push(pa),
            _ => {}
        }
    }
    out
}

fn spoil(bench: &Bench, places: &Places, fault: DataFault, r: &mut Random) -> bool {
    let ram = &bench.lab.world.ram;
    let from = match fault {
        DataFault::BitFlip | DataFault::DmaAddress => &places.words,
        DataFault::NullPointer | DataFault::WildPointer => &places.pointers,
        DataFault::FunctionPointer => &places.functions,
        DataFault::RingIndex => &places.small,
    };
    if from.is_empty() {
        return false;
    }
    let pa = from[r.below(from.len() as u64) as usize];
    let old = ram.int(pa, 8).unwrap_or(0);
    let wild = match r.below(4) {
        0 => r.next(),
        1 => r.next() | 0xffff_8000_0000_0000,
        2 => old ^ 1 << r.below(48),
        _ => r.below(1 << 47),
    };
    let new = match fault {
        DataFault::BitFlip => old ^ 1 << r.below(64),
        DataFault::NullPointer => 0,
        DataFault::WildPointer | DataFault::FunctionPointer | DataFault::DmaAddress => wild,
        DataFault::RingIndex => r.below(1 << 16),
    };
    ram.write(pa, &new.to_le_bytes())
}

fn in_image(
    rig: &Rig,
    options: &Options,
    hot: &Hot,
    count: u64,
    r: &mut Random,
    totals: &mut Totals,
    progress: &mut dyn FnMut(u64),
) -> Result<(), String> {
    let made = make(&hot.module, options)?;
    let original = made.output.image.clone();
    let policy = policy(options);
    let code = Image::parse(&original).map_err(|e| format!("{e:?}"))?.code_range();
    let mut bench = bench(rig)?;
    let mut bytes = original.clone();
    for n in 0..count {
        // Nine in ten in the code, the rest anywhere: headers, labels, states, tables.
        let range = if r.one_in(10) { 0..original.len() } else { code.clone() };
        mutate::image(&mut bytes[range.clone()], r);
        let tally = totals.entry("image verified".into()).or_default();
        tally.faults += 1;
        match verify(&bytes, &policy) {
            Err(_) => {
                tally.refused_verifier += 1;
                tally.runs += 1;
            }
            Ok(verified) => {
                let mut twin = twin_of(rig, verified, None);
                tally.note(bench.work(&mut twin, r));
                bench.reset();
            }
        }
        if n % 64 == 0 && bytes[code.clone()] != original[code.clone()] {
            // What the verifier is for: the same corruption without it.
            let unverified = made.verified()?;
            let mut twin = twin_of(rig, unverified, Some(bytes[code.clone()].to_vec()));
            let tally = totals.entry("image, verifier off".into()).or_default();
            tally.faults += 1;
            tally.note(bench.work(&mut twin, r));
            bench.reset();
        }
        bytes[range.clone()].copy_from_slice(&original[range]);
        progress(1);
    }
    Ok(())
}

/// The totals as a table; `false` if there was an escape behind the verifier.
pub fn table(totals: &Totals) -> (String, bool) {
    use std::fmt::Write;
    let mut out = format!(
        "{:<26} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}\n",
        "class", "faults", "runs", "rewriter", "verifier", "survived", "aborted", "escapes"
    );
    let (mut faults, mut escapes) = (0, 0);
    for (class, t) in totals {
        let aborted: u64 = t.aborted.values().sum();
        let _ = writeln!(
            out,
            "{class:<26} {:>9} {:>9} {:>9} {:>9} {:>9} {aborted:>8} {:>7}",
            t.faults,
            t.runs,
            t.refused_rewriter,
            t.refused_verifier,
            t.survived,
            t.escapes.len()
        );
        if class != "image, verifier off" {
            faults += t.faults;
            escapes += t.escapes.len();
            for e in t.escapes.iter().take(5) {
                let _ = writeln!(out, "  ESCAPE {e}");
            }
        }
        if !t.example.is_empty() {
            let _ = writeln!(out, "  {:?}; last: {}", t.aborted, t.example);
        }
    }
    let _ = write!(out, "{faults} faults, {escapes} escapes");
    (out, escapes == 0)
}
