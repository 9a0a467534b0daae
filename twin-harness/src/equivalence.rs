//! The oracle: original and twin, from the same state, must do the same to memory, device and the world outside.

use crate::lab::{Executor, Lab};
use crate::random::Random;
use crate::rig::{Made, Rig};
use crate::scenario::{self, Result1};
use crate::world::Deed;

/// What a run showed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Cases run.
    pub cases: u64,
    /// Deeds compared.
    pub deeds: u64,
    /// Packets that the device sent, and packets received.
    pub packets: (u64, u64),
    /// Calls that no native routine served.
    pub upcalls: u64,
}

/// Runs `cases` generated cases. An error describes the first difference.
pub fn run(rig: &Rig, made: &Made, cases: u64, seed: u64) -> Result<Outcome, String> {
    let (mut lab_a, mut original) = rig.original()?;
    let (mut lab_b, mut twin) = rig.twin(made.verified()?)?;
    let mut r = Random::new(seed);
    let mut out = Outcome::default();
    for case in 0..cases {
        for (n, step) in scenario::case(&mut r, rig.live.net.mac).iter().enumerate() {
            let (result_a, deeds_a) = observe(&mut lab_a, &mut original, step);
            let (result_b, deeds_b) = observe(&mut lab_b, &mut twin, step);
            let here = || format!("case {case} step {n} ({step:.60?})");
            if result_a != result_b {
                return Err(format!("{}: original {result_a:?}, twin {result_b:?}", here()));
            }
            if let Some(k) = (0..deeds_a.len().max(deeds_b.len())).find(|k| deeds_a.get(*k) != deeds_b.get(*k)) {
                let (a, b) = (deeds_a.get(k), deeds_b.get(k));
                return Err(format!("{}: deed {k}: original {a:x?}, twin {b:x?}", here()));
            }
            if matches!(result_a, Result1::Ended(_)) {
                return Err(format!("{}: both ended: {result_a:?}", here()));
            }
            out.deeds += deeds_a.len() as u64;
        }
        compare(&mut lab_a, &mut lab_b, &mut out).map_err(|e| format!("case {case}: {e}"))?;
        out.cases += 1;
    }
    if lab_a.world.ram.bytes() != lab_b.world.ram.bytes() {
        return Err("memory differs at the end".into());
    }
    Ok(out)
}

fn observe(lab: &mut Lab, e: &mut dyn Executor, step: &scenario::Step) -> (Result1, Vec<Deed>) {
    *lab.world.deeds.borrow_mut() = Some(Vec::new());
    let result = scenario::take(lab, e, step);
    let deeds = lab.world.deeds.borrow_mut().take().unwrap_or_default();
    (result, deeds)
}

fn compare(a: &mut Lab, b: &mut Lab, out: &mut Outcome) -> Result<(), String> {
    let (sent_a, sent_b) = (a.world.device.borrow_mut().sent(), b.world.device.borrow_mut().sent());
    if sent_a != sent_b {
        return Err("different packets were sent".into());
    }
    let (told_a, told_b) = (std::mem::take(&mut a.world.told), std::mem::take(&mut b.world.told));
    if told_a.received != told_b.received || told_a.upcalls != told_b.upcalls {
        return Err("different packets were received or different calls made".into());
    }
    if told_a.transmitted != told_b.transmitted || told_a.foreign != told_b.foreign {
        return Err("different buffers were given back".into());
    }
    if a.world.device.borrow().registers() != b.world.device.borrow().registers() {
        return Err("device registers differ".into());
    }
    out.packets.0 += sent_a.len() as u64;
    out.packets.1 += told_a.received.len() as u64;
    out.upcalls += told_a.upcalls.len() as u64;
    Ok(())
}
