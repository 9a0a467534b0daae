//! The oracle: original and twin, from the same state, must do the same to memory, device and the world outside.
//!
//! First cases that follow each other, with what the domain answers to upcalls varied. Then cases in which a function
//! that is served natively otherwise is one of the domain's, with answers of all kinds; each of those starts from the
//! first state. A driver that does not survive an answer must fail in both, in the same way.

use crate::emulate::{Original, TwinEmulator};
use crate::lab::{Checkpoint, Ended, Lab};
use crate::random::Random;
use crate::rig::{Made, Rig};
use crate::scenario::{self, Result1, Step};
use crate::world::Deed;
use twin_runtime::linux::Routine;

/// What a run showed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Cases run.
    pub cases: u64,
    /// Of those, cases with a function left to the domain.
    pub forced: u64,
    /// Of those, cases that neither original nor twin survived.
    pub ended: u64,
    /// Deeds compared.
    pub deeds: u64,
    /// Packets that the device sent, and packets received.
    pub packets: (u64, u64),
    /// Calls that no native routine served.
    pub upcalls: u64,
}

/// Original and twin, side by side.
struct Pair<'a> {
    original: (Lab, Original),
    twin: (Lab, TwinEmulator<'a>),
    out: Outcome,
}

/// Runs `cases` generated cases, and a quarter as many with a function left to the domain. An error describes the first
/// difference.
pub fn run(rig: &Rig, made: &Made, cases: u64, seed: u64) -> Result<Outcome, String> {
    let mut pair = Pair { original: rig.original()?, twin: rig.twin(made.verified()?)?, out: Outcome::default() };
    let start = (Checkpoint::of(&pair.original.0), Checkpoint::of(&pair.twin.0));
    let native: Vec<String> =
        made.output.imports.iter().map(|i| i.0.clone()).filter(|n| Routine::by_name(n).is_some()).collect();
    let mut r = Random::new(seed);
    for case in 0..cases + cases / 4 {
        let forced =
            (case >= cases && !native.is_empty()).then(|| native[r.below(native.len() as u64) as usize].clone());
        let answers = scenario::answers(&mut r);
        for lab in [&mut pair.original.0, &mut pair.twin.0] {
            lab.world.answers = answers.clone();
            lab.world.forced = forced.iter().cloned().collect();
        }
        let mut ended = false;
        for (n, step) in scenario::case(&mut r, rig.live.net.mac).iter().enumerate() {
            let about = |e: String| {
                let step: String = format!("{step:?}").chars().take(60).collect();
                format!("case {case} step {n} ({step}..., upcall {forced:?}): {e}")
            };
            let Some(how) = pair.step(step).map_err(about)? else { continue };
            if pair.original.0.world.told.upcalls.is_empty() {
                return Err(about(format!("both ended: {how:?}")));
            }
            ended = true;
            break;
        }
        pair.compare().map_err(|e| format!("case {case}, upcall {forced:?}: {e}"))?;
        pair.out.cases += 1;
        if forced.is_some() || ended || case + 1 == cases {
            if let Some(page) = pair.original.0.world.ram.difference(&pair.twin.0.world.ram) {
                return Err(format!("case {case}, upcall {forced:?}: memory differs in page {page:#x}"));
            }
            start.0.restore(&mut pair.original.0);
            start.1.restore(&mut pair.twin.0);
        }
        pair.out.forced += u64::from(forced.is_some());
        pair.out.ended += u64::from(ended);
    }
    Ok(pair.out)
}

impl Pair<'_> {
    /// Takes a step on both sides; how both ended, if they did.
    fn step(&mut self, step: &Step) -> Result<Option<Ended>, String> {
        let (result_a, deeds_a) = observe(&mut self.original.0, &mut self.original.1, step);
        let (result_b, deeds_b) = observe(&mut self.twin.0, &mut self.twin.1, step);
        self.out.deeds += deeds_a.len() as u64;
        if let Some(k) = (0..deeds_a.len().max(deeds_b.len())).find(|k| deeds_a.get(*k) != deeds_b.get(*k)) {
            let (a, b) = (deeds_a.get(k), deeds_b.get(k));
            return Err(format!("deed {k}: original {a:x?}, twin {b:x?}; results {result_a:?}, {result_b:?}"));
        }
        match (result_a, result_b) {
            (Result1::Ended(a), Result1::Ended(b)) if a.class == b.class => Ok(Some(a)),
            (a, b) if a == b => Ok(None),
            (a, b) => Err(format!("original {a:?}, twin {b:?}")),
        }
    }

    /// Compares what the outside saw.
    fn compare(&mut self) -> Result<(), String> {
        let (a, b) = (&mut self.original.0.world, &mut self.twin.0.world);
        let (sent_a, sent_b) = (a.device.borrow_mut().sent(), b.device.borrow_mut().sent());
        if sent_a != sent_b {
            return Err("different packets were sent".into());
        }
        let (told_a, told_b) = (std::mem::take(&mut a.told), std::mem::take(&mut b.told));
        if told_a.received != told_b.received || told_a.upcalls != told_b.upcalls {
            return Err("different packets were received or different calls made".into());
        }
        if told_a.transmitted != told_b.transmitted || told_a.foreign != told_b.foreign {
            return Err("different buffers were given back".into());
        }
        if a.device.borrow().registers() != b.device.borrow().registers() {
            return Err("device registers differ".into());
        }
        self.out.packets.0 += sent_a.len() as u64;
        self.out.packets.1 += told_a.received.len() as u64;
        self.out.upcalls += told_a.upcalls.len() as u64;
        Ok(())
    }
}

fn observe(lab: &mut Lab, e: &mut dyn crate::lab::Executor, step: &Step) -> (Result1, Vec<Deed>) {
    *lab.world.deeds.borrow_mut() = Some(Vec::new());
    let result = scenario::take(lab, e, step);
    let deeds = lab.world.deeds.borrow_mut().take().unwrap_or_default();
    (result, deeds)
}
