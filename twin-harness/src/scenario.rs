//! Generated cases: packets of all sizes and shapes, full rings, errors that the device reports.

use crate::device::Arrival;
use crate::embed::Answers;
use crate::lab::{Ended, Executor, Lab, Outgoing, Sent};
use crate::random::Random;

/// One step of a case.
#[derive(Debug, Clone)]
pub enum Step {
    /// Send.
    Transmit(Outgoing),
    /// A packet arrives.
    Arrive(Vec<u8>, Arrival),
    /// The device stops sending, or goes on.
    Hold(bool),
    /// Handle interrupts and polls.
    Settle,
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Result1 {
    /// The packet's fate.
    Sent(Sent),
    /// Whether there was a buffer.
    Arrived(bool),
    /// Nothing to say.
    Done,
    /// It ended early.
    Ended(Ended),
}

/// A frame of `len` bytes with an Ethernet and, where it fits, an IPv4 and UDP header.
pub fn frame(r: &mut Random, len: usize, to: [u8; 6]) -> Vec<u8> {
    let mut f = r.bytes(len.max(14));
    f[..6].copy_from_slice(&to);
    f[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
    f[12..14].copy_from_slice(&[8, 0]);
    if f.len() >= 42 {
        f[14] = 0x45;
        f[23] = 17;
    }
    f
}

/// The next steps of a run: one case.
pub fn case(r: &mut Random, mac: [u8; 6]) -> Vec<Step> {
    let mut steps = Vec::new();
    match r.below(16) {
        0 => {
            // Fill the transmit ring while the device does not send.
            steps.push(Step::Hold(true));
            for _ in 0..r.below(300) {
                steps.push(Step::Transmit(outgoing(r)));
            }
            steps.push(Step::Hold(false));
        }
        1 => {
            // More arrives than there are buffers for.
            for _ in 0..r.below(300) {
                steps.push(arrival(r, mac));
            }
        }
        2..=8 => {
            for _ in 0..1 + r.below(4) {
                steps.push(Step::Transmit(outgoing(r)));
            }
        }
        _ => {
            for _ in 0..1 + r.below(4) {
                steps.push(arrival(r, mac));
            }
        }
    }
    steps.push(Step::Settle);
    steps
}

fn outgoing(r: &mut Random) -> Outgoing {
    let len = match r.below(4) {
        0 => 14 + r.below(60) as usize,
        1 => 1514,
        _ => 60 + r.below(1455) as usize,
    };
    let frame = frame(r, len, [0x52, 0x54, 0, 1, 2, 3]);
    let mut cuts = Vec::new();
    // Short ones in pieces are padded by the domain, if its answer says so.
    if len > 20 && r.one_in(3) {
        cuts.push(14 + r.below(128) as usize);
        for _ in 0..1 + r.below(6) {
            cuts.push(1 + r.below(600) as usize);
        }
        cuts.push(1600);
    }
    Outgoing { frame, cuts, checksum: r.one_in(2) }
}

fn arrival(r: &mut Random, mac: [u8; 6]) -> Step {
    let len = match r.below(4) {
        0 => 60 + r.below(140) as usize,
        1 => 1514,
        _ => 60 + r.below(1455) as usize,
    };
    let to = if r.one_in(8) { [0xff; 6] } else { mac };
    let how = Arrival { errors: if r.one_in(24) { 1 << r.below(8) } else { 0 }, partial: r.one_in(64) };
    Step::Arrive(frame(r, len, to), how)
}

/// What the domain answers to the next upcalls: nothing, a number, errors as `int` and as pointer.
pub fn answers(r: &mut Random) -> Answers {
    const ANSWERS: [u64; 6] = [0, 0, 1, 0xffff_fff4, u64::MAX - 11, u64::MAX];
    Answers((0..r.below(12)).map(|_| ANSWERS[r.below(6) as usize]).collect())
}

/// Takes one step.
pub fn take(lab: &mut Lab, e: &mut dyn Executor, step: &Step) -> Result1 {
    match step {
        Step::Transmit(out) => match lab.transmit(e, out) {
            Ok(sent) => Result1::Sent(sent),
            Err(ended) => Result1::Ended(ended),
        },
        Step::Arrive(frame, how) => Result1::Arrived(lab.arrive(frame, *how)),
        Step::Hold(hold) => {
            lab.world.device.borrow_mut().hold(*hold, &lab.world.ram);
            Result1::Done
        }
        Step::Settle => match lab.settle(e) {
            Ok(()) => Result1::Done,
            Err(ended) => Result1::Ended(ended),
        },
    }
}
