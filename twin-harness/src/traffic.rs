//! Many packets through the native twin, with every content checked.

use crate::device::Arrival;
use crate::lab::{Executor, Lab, Outgoing, Sent};
use crate::random::Random;
use crate::scenario::frame;

/// What went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets sent and found correct at the device.
    pub sent: u64,
    /// Packets received and found correct by the caller.
    pub received: u64,
}

fn packet(r: &mut Random) -> Outgoing {
    let len = 60 + r.below(1455) as usize;
    let frame = frame(r, len, [2, 1, 1, 1, 1, 1]);
    let cuts = if len > 400 && r.one_in(4) { vec![64, 300, 1600] } else { Vec::new() };
    Outgoing { frame, cuts, checksum: r.one_in(2) }
}

/// Sends and receives `count` packets each.
pub fn run(lab: &mut Lab, e: &mut dyn Executor, count: u64, seed: u64) -> Result<Passed, String> {
    let mut r = Random::new(seed);
    let mut passed = Passed::default();
    let mut waiting: Option<Outgoing> = None;
    while passed.sent < count {
        let batch = (1 + r.below(32)).min(count - passed.sent);
        let mut expected = Vec::new();
        while (expected.len() as u64) < batch {
            let out = waiting.take().unwrap_or_else(|| packet(&mut r));
            match lab.transmit(e, &out).map_err(|x| format!("transmit: {x:?}"))? {
                Sent::Taken => expected.push(out.frame),
                // The queue is as full as its byte limit allows: what is in it has to be completed first.
                Sent::Stopped if !expected.is_empty() => {
                    waiting = Some(out);
                    break;
                }
                other => return Err(format!("packet {} was not taken: {other:?}", passed.sent)),
            }
        }
        let batch = expected.len() as u64;
        lab.settle(e).map_err(|x| format!("completion: {x:?}"))?;
        let sent = lab.world.device.borrow_mut().sent();
        if sent != expected {
            return Err(format!("the device saw other packets after {}", passed.sent));
        }
        if lab.world.told.transmitted.len() != sent.len() {
            return Err(format!("{} packets were sent but {} completed", sent.len(), lab.world.told.transmitted.len()));
        }
        lab.world.told.transmitted.clear();
        passed.sent += batch;
    }
    while passed.received < count {
        let batch = (1 + r.below(32)).min(count - passed.received);
        let mut expected = Vec::new();
        for _ in 0..batch {
            let len = 60 + r.below(1455) as usize;
            let f = frame(&mut r, len, lab.live.net.mac);
            if !lab.arrive(&f, Arrival::default()) {
                return Err(format!("no receive buffer after {}", passed.received));
            }
            expected.push(f);
        }
        lab.settle(e).map_err(|x| format!("reception: {x:?}"))?;
        let got = std::mem::take(&mut lab.world.told.received);
        if got != expected {
            return Err(format!("other packets were received after {}", passed.received));
        }
        passed.received += batch;
    }
    match lab.world.device.borrow().bad_dma() {
        0 => Ok(passed),
        n => Err(format!("{n} DMA addresses were outside of memory")),
    }
}
