//! Requests of a guest's to its disk, for counting instructions:
//! `valgrind --tool=callgrind --toggle-collect='*Disk*serve*'` of this program; what is counted is what a disk does,
//! divided by requests. Frames, grants and the back end cost nothing here: what is left is the rings, the journal and
//! the elevator.
//!
//! Usage: requests [requests] [at one time, at most 32] [sectors from one request to the next; 8 is the next one] [1:
//! shares are counted]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use channel::grants::{Frames, GntStatus, Grants};
use channel::offload::checksum::Eights;
use channel::vbd::disk::{Disk, Page};
use channel::vbd::shares::{Belief, Member, Shares, Turns};
use channel::vbd::Offers;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;
use xen_abi::io::blkif::BLKIF_OP_WRITE;

type Words = Arc<hv_core::evtchn::PageWords>;

struct Free;

impl Grants for Free {
    type Frame = u32;
    fn pin(&mut self, gref: u32, _: bool) -> Result<u32, GntStatus> {
        Ok(black_box(gref))
    }
    fn unpin(&mut self, gref: u32, _: bool) {
        black_box(gref);
    }
}

impl Frames<u32> for Free {
    fn read(&self, _: u32, _: u16, to: &mut [u8]) {
        to.fill(0);
    }
    fn write(&self, _: u32, _: u16, from: &[u8]) {
        black_box(from);
    }
    fn copy(&self, from: u32, _: u16, to: u32, _: u16, len: u16) {
        black_box((from, to, len));
    }
    fn sum(&self, _: u32, _: u16, _: u16) -> Eights {
        Eights::default()
    }
}

/// The turns of a disk that has its back end's domain for itself, or whose share is counted.
struct Counted(Option<(Shares<u32>, Member)>);

impl Turns for Counted {
    fn belief(&self) -> Belief {
        Belief::Yes
    }
    fn is_counted(&self) -> bool {
        self.0.is_some()
    }
    fn may_begin(&mut self) -> bool {
        self.0.as_mut().is_none_or(|(shares, member)| shares.may_begin(*member, 0))
    }
    fn began(&mut self, cost: u32) {
        if let Some((shares, member)) = &mut self.0 {
            shares.began(*member, cost, 0);
        }
    }
    fn ended(&mut self, cost: u32) {
        if let Some((shares, member)) = &mut self.0 {
            _ = shares.ended(*member, cost, 0);
        }
    }
    fn abandoned(&mut self) {}
}

/// Words of slot `index` of a ring.
fn slot(page: &Words, index: u32) -> &[AtomicU32] {
    let at = 16 + (index % 32) as usize * 28;
    &page[at..at + 28]
}

/// Answers all that a back end was asked; the number of its answers so far.
fn answer(back: &Words, mut nr_answered: u32) -> u32 {
    while nr_answered != back[0].load(Relaxed) {
        let words = slot(back, nr_answered);
        let (low, high) = (words[2].load(Relaxed), words[3].load(Relaxed));
        words[2].store(u32::from(BLKIF_OP_WRITE), Relaxed);
        words[0].store(low, Relaxed);
        words[1].store(high, Relaxed);
        nr_answered += 1;
    }
    back[2].store(nr_answered, Relaxed);
    back[1].store(nr_answered + 1, Relaxed);
    nr_answered
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let nr_requests: u32 = args.next().unwrap_or(100_000);
    let (at_once, step): (u32, u32) = (args.next().unwrap_or(1), args.next().unwrap_or(8));
    let is_shared = args.next() == Some(1);
    let page = || -> Words { Arc::new(std::array::from_fn(|_| AtomicU32::new(0))) };
    let (front, back) = (page(), page());
    let offers = Offers { write: true, flush: true, barrier: true, discard: true };
    let mut disk = Disk::connect(front.clone(), offers, 1).expect("a fresh ring");
    let pages = (1..=64).map(|n| Page { gref: n, frame: n }).collect();
    disk.attach(back.clone(), pages, 32, &mut Free, &Free, 0).expect("good pages");
    let mut shares = Shares::default();
    let member = shares.join(1, 1).expect("memory");
    let mut turns = Counted(is_shared.then_some((shares, member)));
    let (mut asked, mut answered, mut passed_on) = (0, 0, 0);
    while asked < nr_requests {
        for _ in 0..at_once {
            let words = slot(&front, asked);
            words[0].store(u32::from(BLKIF_OP_WRITE) | 1 << 8, Relaxed);
            words[2].store(asked, Relaxed);
            words[3].store(0, Relaxed);
            words[4].store(asked.wrapping_mul(step), Relaxed);
            words[5].store(0, Relaxed);
            words[6].store(1, Relaxed);
            words[7].store(7 << 8, Relaxed);
            asked += 1;
        }
        front[0].store(asked, Relaxed);
        _ = black_box(disk.serve(&mut Free, &Free, &mut turns, &|| 0, &mut 1_000_000, &|| true));
        passed_on = answer(&back, passed_on);
        _ = black_box(disk.serve(&mut Free, &Free, &mut turns, &|| 0, &mut 1_000_000, &|| true));
        answered += at_once;
        assert_eq!(front[2].load(Relaxed), answered);
        front[3].store(answered + 1, Relaxed);
    }
    assert_eq!(disk.stats.writes, u64::from(asked));
    println!("{asked} requests, {passed_on} passed on");
}
