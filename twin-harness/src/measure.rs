//! Instructions of driver text per packet, original against twin.

use crate::device::Arrival;
use crate::lab::{Executor, Lab, Outgoing};
use crate::random::Random;
use crate::rig::{Made, Rig};
use crate::scenario::frame;

/// Instructions of one kind of traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// Packets.
    pub packets: u64,
    /// Of the original text.
    pub original: u64,
    /// Of the twin.
    pub twin: u64,
    /// Accesses of the twin to the domain's memory and device.
    pub accesses: u64,
}

impl Share {
    /// Twin over original.
    pub fn ratio(&self) -> f64 {
        self.twin as f64 / self.original.max(1) as f64
    }
}

/// Both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// Sending: transmit, interrupt, completion.
    pub transmit: Share,
    /// Receiving: interrupt, poll, refill.
    pub receive: Share,
}

/// Packets of each direction.
const PACKETS: u64 = 256;

/// Measures one driver: packets one by one, each with its interrupt, of all sizes, a quarter in fragments, half with
/// checksums by the device.
pub fn run(rig: &Rig, made: &Made) -> Result<Measured, String> {
    let (mut lab, mut original) = rig.original()?;
    let before = traffic(&mut lab, &mut original, &mut |_| {})?;
    let (mut lab, mut twin) = rig.twin(made.verified()?)?;
    let mut half = 0;
    let after = traffic(&mut lab, &mut twin, &mut |e| half = e.accesses())?;
    let share = |a: u64, b: u64, accesses| Share { packets: PACKETS, original: a, twin: b, accesses };
    let receiving = twin.accesses() - half;
    Ok(Measured { transmit: share(before.0, after.0, half), receive: share(before.1, after.1, receiving) })
}

/// Instructions of both directions; `between` is called between them.
fn traffic<E: Executor>(lab: &mut Lab, e: &mut E, between: &mut dyn FnMut(&E)) -> Result<(u64, u64), String> {
    let mut r = Random::new(7);
    let start = e.instructions();
    for _ in 0..PACKETS {
        let len = 60 + r.below(1455) as usize;
        let cuts = if len > 400 && r.one_in(4) { vec![64, 300, 1600] } else { Vec::new() };
        let out = Outgoing { frame: frame(&mut r, len, [2, 1, 1, 1, 1, 1]), cuts, checksum: r.one_in(2) };
        lab.transmit(e, &out).map_err(|x| format!("{x:?}"))?;
        lab.settle(e).map_err(|x| format!("{x:?}"))?;
    }
    let middle = e.instructions();
    between(e);
    for _ in 0..PACKETS {
        let len = 60 + r.below(1455) as usize;
        let f = frame(&mut r, len, lab.live.net.mac);
        lab.arrive(&f, Arrival::default());
        lab.settle(e).map_err(|x| format!("{x:?}"))?;
    }
    Ok((middle - start, e.instructions() - middle))
}
