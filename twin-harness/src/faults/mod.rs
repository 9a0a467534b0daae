//! Fault injection: what goes wrong in the driver must stay in the sandbox.
//!
//! Every run starts from the same captured state, does the same small piece of work (packets out and in), and ends
//! quietly, or with an abort, or with a refusal before it began. Runs alternate between the host's own processor, where
//! the page tables, the entry code and the fault handler watch, and the interpreter, which knows every address that a
//! twin may reach and calls anything else an escape. Twins charge themselves to a budget, so that endless loops end.
//!
//! What run `n` of a class does depends on the seed and `n` only: `--class C --seed S --from n --count 1` repeats it.

mod code;
mod data;
mod stage;
mod text;

use crate::lab::{Class, Ended};
use crate::random::Random;
use crate::rig::Rig;
use stage::{hot, Hot, Stage};
use std::collections::BTreeMap;
use twin_rewrite::options::Options;
use twin_verify::Verified;

/// What injected faults came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Faults injected.
    pub faults: u64,
    /// Runs, refused ones included (a run may carry several faults).
    pub runs: u64,
    /// Of those, runs on the host's own processor.
    pub native: u64,
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
    /// Aborts that do not say where. Any is a failure.
    pub nowhere: Vec<String>,
    /// The last abort's place, as an example.
    pub example: String,
}

impl Tally {
    fn note(&mut self, result: Result<(), Ended>, is_native: bool, run: u64) {
        self.runs += 1;
        self.native += u64::from(is_native);
        match result {
            Ok(()) => self.survived += 1,
            Err(e) if e.class == Class::Escape => self.escapes.push(format!("run {run}: {} at {}", e.reason, e.at)),
            Err(e) => {
                *self.aborted.entry(e.class).or_default() += 1;
                if e.at.starts_with('?') || e.at.is_empty() {
                    self.nowhere.push(format!("run {run}: {}", e.reason));
                }
                self.example = format!("{} at {}", e.reason, e.at);
            }
        }
    }
}

/// The totals by class of fault.
pub type Totals = BTreeMap<String, Tally>;

/// Where faults are injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Into {
    /// Text before rewriting.
    Text,
    /// Data of the driver.
    Data,
    /// The twin's code, after rewriting.
    Code,
    /// Two tenths into text, five into data, three into code.
    All,
}

/// Class of the runs without the verifier: what it is for.
pub const UNVERIFIED: &str = "code, verifier off";

/// What is to be injected.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Where.
    pub into: Into,
    /// How many faults.
    pub count: u64,
    /// Seed of all choices.
    pub seed: u64,
    /// Number of the first run of each class.
    pub first: u64,
}

/// What all classes of faults share.
struct Injection<'a> {
    rig: &'a Rig,
    options: Options,
    hot: Hot,
    order: Order,
    interpreted: Stage,
    native: Stage,
    totals: Totals,
    progress: &'a mut dyn FnMut(u64),
}

impl Injection<'_> {
    /// The choices of a run.
    fn dice(&self, class: u64, run: u64) -> Random {
        let mut mixed = Random::new(self.order.seed ^ class << 56);
        Random::new(mixed.draw() ^ run.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn stage(&mut self, run: u64) -> &mut Stage {
        if run.is_multiple_of(2) {
            &mut self.native
        } else {
            &mut self.interpreted
        }
    }

    fn count(&mut self, class: &str, faults: u64) -> &mut Tally {
        (self.progress)(faults);
        let tally = self.totals.entry(class.into()).or_default();
        tally.faults += faults;
        tally
    }

    /// Runs an accepted image on the stage of `run`, and notes what came of it.
    fn run(&mut self, class: &str, verified: Verified<'_>, r: &mut Random, run: u64) -> Result<(), String> {
        let stage = self.stage(run);
        let (result, is_native) = (stage.run(verified, r, run)?, stage.is_native());
        self.totals.entry(class.into()).or_default().note(result, is_native, run);
        Ok(())
    }
}

/// Injects about as many faults as ordered.
pub fn run(rig: &Rig, options: &Options, order: Order, progress: &mut dyn FnMut(u64)) -> Result<Totals, String> {
    let options = Options { counted: true, ..options.clone() };
    let mode = twin_kernel::image::policy(&options).mode;
    let mut x = Injection {
        rig,
        hot: hot(rig)?,
        order,
        interpreted: Stage::interpreted(rig)?,
        native: Stage::native(rig, mode, 1 << 20)?,
        options,
        totals: Totals::new(),
        progress,
    };
    let count = order.count;
    let (text, data, code) = match order.into {
        Into::Text => (count, 0, 0),
        Into::Data => (0, count, 0),
        Into::Code => (0, 0, count),
        Into::All => (count * 2 / 10, count * 5 / 10, count - count * 2 / 10 - count * 5 / 10),
    };
    x.text(text)?;
    x.data(data)?;
    x.code(code)?;
    Ok(x.totals)
}

/// The totals as a table; `false` if there was an escape behind the verifier, or an abort that does not say where.
pub fn table(totals: &Totals) -> (String, bool) {
    use std::fmt::Write;
    let mut out = format!(
        "{:<27} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>8} {:>7}\n",
        "class", "faults", "runs", "natively", "rewriter", "verifier", "survived", "aborted", "escapes"
    );
    let (mut faults, mut runs, mut native, mut escapes, mut nowhere) = (0, 0, 0, 0, 0);
    for (class, t) in totals {
        let aborted: u64 = t.aborted.values().sum();
        let _ = writeln!(
            out,
            "{class:<27} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {aborted:>8} {:>7}",
            t.faults,
            t.runs,
            t.native,
            t.refused_rewriter,
            t.refused_verifier,
            t.survived,
            t.escapes.len()
        );
        if class != UNVERIFIED {
            faults += t.faults;
            runs += t.runs;
            native += t.native;
            escapes += t.escapes.len();
            nowhere += t.nowhere.len();
            for e in t.escapes.iter().take(5) {
                let _ = writeln!(out, "  ESCAPE {e}");
            }
            for e in t.nowhere.iter().take(5) {
                let _ = writeln!(out, "  WITHOUT A PLACE {e}");
            }
        }
        if !t.example.is_empty() {
            let _ = writeln!(out, "  {:?}; last: {}", t.aborted, t.example);
        }
    }
    let _ = write!(out, "{faults} faults in {runs} runs ({native} of them natively), {escapes} escapes");
    (out, escapes == 0 && nowhere == 0)
}
