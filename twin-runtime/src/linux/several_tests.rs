//! Several lanes at one time, with one pool: what one does between any two steps of another.
//!
//! A step is one use of the pool, which the lock makes one, or one access to the domain's memory. A lane is stopped
//! after each of its steps in turn; another one does something from its beginning to its end meanwhile, or is stopped
//! after each of its own for a third.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::fake::{domain, Event, Fake, BUFFERS, DEVICE, SKBS, VMEMMAP};
use super::pool::{Pool, Use, USERS};
use super::skb::{Frame, Packet};
use super::{Foreign, Host, Routine, Stop, Support};
use crate::memory::{Fault, Memory};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// Objects of each kind.
const MANY: u64 = 4;

struct World {
    fake: RefCell<Fake>,
    support: Support,
    cookies: Cell<u64>,
}

/// A lane that is stopped after some steps, for another.
struct Lane<'w> {
    world: &'w World,
    steps: Cell<usize>,
    stops_after: usize,
    other: Cell<Option<&'w dyn Fn()>>,
}

impl<'w> Lane<'w> {
    /// One that is not stopped.
    fn new(world: &'w World) -> Self {
        Self { world, steps: Cell::new(0), stops_after: 0, other: Cell::new(None) }
    }

    fn stopped(world: &'w World, stops_after: usize, other: &'w dyn Fn()) -> Self {
        Self { stops_after, other: Cell::new(Some(other)), ..Self::new(world) }
    }

    /// Does one step.
    fn step<R>(&self, work: impl FnOnce(&mut Fake) -> R) -> R {
        let result = work(&mut self.world.fake.borrow_mut());
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() == self.stops_after {
            self.other.take().into_iter().for_each(|other| other());
        }
        result
    }

    fn call(&mut self, name: &str, args: &[u64]) -> u64 {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let result: Result<u64, Stop> = Routine::by_name(name).expect("known").call(&self.world.support, self, &all);
        result.unwrap_or_else(|stop| panic!("{name}: {stop:?}"))
    }
}

impl Memory for Lane<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.step(|f| f.read(address, into))
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.step(|f| f.write(address, from))
    }
    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        self.step(|f| f.exchange_u32(address, old, new))
    }
    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        self.step(|f| f.exchange_u64(address, old, new))
    }
}

impl Host for Lane<'_> {
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        self.step(|f| f.with_pool(work))
    }
    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        self.world.fake.borrow().machine_frame(pfn)
    }
    fn schedule_poll(&mut self, napi: u64) {
        self.step(|f| f.schedule_poll(napi));
    }
    fn receive(&mut self, frame: Frame<'_>) -> bool {
        self.step(|f| f.receive(frame))
    }
    fn transmitted(&mut self, skb: u64, cookie: u64) {
        self.step(|f| f.transmitted(skb, cookie));
    }
    fn free_in_domain(&mut self, what: Foreign) {
        self.step(|f| f.free_in_domain(what));
    }
    fn queue_event(&mut self, queue: u64) {
        self.step(|f| f.queue_event(queue));
    }
    fn lock_is_busy(&mut self, lock: u64, tries: u32) -> bool {
        self.step(|f| f.lock_is_busy(lock, tries))
    }
    fn note(&mut self, routine: Routine, args: &[u64; 6]) {
        self.step(|f| f.note(routine, args));
    }
}

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// A packet goes to the driver.
    Send,
    /// The driver is done with one that was sent.
    Sent,
    /// It takes a buffer to receive.
    Allocate,
    /// It makes an `sk_buff` around a buffer that it has.
    Build,
    /// It hands over what came: in a buffer, in one of its own, in one with a piece in a page; and what is too short.
    Receive,
    ReceiveBuilt,
    ReceivePieces,
    ReceiveShort,
    /// It frees what it had to receive: the same kinds.
    Free,
    FreeBuilt,
    FreePieces,
    /// It is looked what the domain has freed: nothing.
    Reclaim,
}

const ALL: [Act; 12] = [
    Act::Send,
    Act::Sent,
    Act::Allocate,
    Act::Build,
    Act::Receive,
    Act::ReceiveBuilt,
    Act::ReceivePieces,
    Act::ReceiveShort,
    Act::Free,
    Act::FreeBuilt,
    Act::FreePieces,
    Act::Reclaim,
];

/// What a lane needs before it acts, and has afterwards: an `sk_buff`, or a receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Has {
    skb: Option<u64>,
    data: Option<u64>,
}

impl World {
    fn new() -> Self {
        let (mut fake, support) = domain(MANY);
        for n in 0..MANY {
            fake.pool.locate(SKBS + n * 512, 0x10_0000 + n * 4096);
        }
        Self { fake: RefCell::new(fake), support, cookies: Cell::new(0) }
    }

    fn send(&self, lane: &mut Lane<'_>) -> Has {
        let cookie = self.cookies.get() + 1;
        self.cookies.set(cookie);
        let skb = lane.with_pool(|pool| pool.reserve(100, 0)).expect("free").skb;
        let packet = Packet {
            device: DEVICE,
            header: &[],
            fragments: &[],
            checksum: None,
            segmentation: None,
            queue: 0,
            cookie,
        };
        assert_eq!(self.support.prepare_reserved(lane, skb, (60, 0), packet), Ok(true));
        Has { skb: Some(skb), data: None }
    }

    fn allocate(lane: &mut Lane<'_>) -> Has {
        Has { skb: Some(lane.call("__netdev_alloc_skb", &[DEVICE, 1000, 0])), data: None }
    }

    fn build(lane: &mut Lane<'_>, data: u64) -> Has {
        let skb = lane.call("napi_build_skb", &[data, 2048]);
        Has { skb: Some(skb), data: Some(data) }
    }

    /// What was there before the lane acts.
    fn prepare(&self, act: Act) -> Has {
        let mut lane = Lane::new(self);
        let mut fragment = || lane.call("__netdev_alloc_frag_align", &[2048, u64::MAX]);
        match act {
            Act::Send | Act::Allocate | Act::Reclaim => Has::default(),
            Act::Sent => self.send(&mut lane),
            Act::Build => Has { skb: None, data: Some(fragment()) },
            Act::Receive | Act::ReceiveShort | Act::Free => Self::allocate(&mut lane),
            Act::ReceiveBuilt | Act::FreeBuilt => {
                let data = fragment();
                Self::build(&mut lane, data)
            }
            Act::ReceivePieces | Act::FreePieces => {
                let data = fragment();
                let has = Self::allocate(&mut lane);
                Has { data: Some(data), ..has }
            }
        }
    }

    /// Writes what the driver writes before it hands a packet over.
    fn fill_in(&self, act: Act, has: Has) {
        let (mut lane, o) = (Lane::new(self), self.support.offsets);
        let Some(skb) = has.skb else { return };
        let len = if act == Act::ReceiveShort { 5 } else { 100 };
        lane.call("skb_put", &[skb, len]);
        lane.call("eth_type_trans", &[skb, DEVICE]);
        if matches!(act, Act::ReceivePieces | Act::FreePieces) {
            let data = has.data.expect("a piece");
            let page = VMEMMAP + (data - self.support.kernel.page_offset) / 4096 * 64;
            let info =
                lane.u64(skb + o.skb_head).expect("mapped") + u64::from(lane.u32(skb + o.skb_end).expect("mapped"));
            lane.put_u8(info + o.info_nr_frags, 1).expect("mapped");
            lane.put_u64(info + o.info_frags, page).expect("mapped");
            lane.put_u32(info + o.info_frags + 8, 50).expect("mapped");
            lane.put_u32(skb + o.skb_data_len, 50).expect("mapped");
            lane.put_u32(skb + o.skb_len, 136).expect("mapped");
        }
    }

    /// The lane acts; what it has then.
    fn act(&self, lane: &mut Lane<'_>, act: Act, has: Has) -> Has {
        let skb = has.skb.unwrap_or(0);
        match act {
            Act::Send => self.send(lane),
            Act::Allocate => Self::allocate(lane),
            Act::Build => Self::build(lane, has.data.expect("a buffer")),
            Act::Receive | Act::ReceiveBuilt | Act::ReceivePieces | Act::ReceiveShort => {
                lane.call("napi_gro_receive", &[DEVICE, skb]);
                Has::default()
            }
            Act::Sent | Act::Free | Act::FreeBuilt | Act::FreePieces => {
                lane.call("napi_consume_skb", &[skb, 1]);
                Has::default()
            }
            Act::Reclaim => {
                let found = lane.step(|f| f.reclaim(&self.support.offsets));
                assert_eq!(found, Ok(0), "the domain has freed nothing");
                Has::default()
            }
        }
    }

    /// Whatever the lanes have is theirs, and is what they made it; all else is in the pool.
    fn check(&self, lanes: &[Has]) {
        let (o, mut f) = (self.support.offsets, self.fake.borrow_mut());
        assert_eq!(f.reclaim(&o), Ok(0), "the domain has freed nothing");
        let skbs: Vec<u64> = lanes.iter().filter_map(|has| has.skb).collect();
        let data: Vec<u64> = lanes.iter().filter_map(|has| has.data).collect();
        for list in [&skbs, &data] {
            assert!(list.iter().enumerate().all(|(n, one)| !list[..n].contains(one)), "two have one: {lanes:x?}");
        }
        let out = |is_bare: bool| skbs.iter().filter(|skb| (*skb & 256 != 0) == is_bare).count();
        let all = MANY as usize;
        assert_eq!(f.pool.free(), (all - out(false), all - out(true), all - data.len()), "{lanes:x?}");
        for Has { skb, data } in lanes {
            let Some(skb) = *skb else { continue };
            let head = data.unwrap_or(BUFFERS + (skb - SKBS) / 512 * 4096);
            assert_eq!((f.u64(skb + o.skb_head), f.u32(skb + o.skb_users)), (Ok(head), Ok(USERS)), "{lanes:x?}");
            let is_out = f.pool.is_with(skb).is_some_and(|with| matches!(with, Use::Driver | Use::Transmit(_)));
            assert!(is_out, "{lanes:x?}");
        }
        drop(f);
        // All of it comes home, and each sender has heard of its packet once.
        let mut lane = Lane::new(self);
        for Has { skb, data } in lanes {
            match (skb, data) {
                (Some(skb), _) => lane.call("napi_consume_skb", &[*skb, 1]),
                (None, Some(data)) => lane.call("page_frag_free", &[*data]),
                (None, None) => 0,
            };
        }
        let f = self.fake.borrow();
        assert_eq!(f.pool.free(), (all, all, all));
        let cookie = |event: &Event| match event {
            Event::Transmitted(_, cookie) => Some(*cookie),
            _ => None,
        };
        let mut cookies: Vec<u64> = f.events.iter().filter_map(cookie).collect();
        assert_eq!(cookies.len() as u64, self.cookies.get());
        cookies.sort_unstable();
        cookies.dedup();
        assert_eq!((cookies.len() as u64, f.pool.transmitting()), (self.cookies.get(), 0));
    }
}

/// The first of `acts` is stopped after so many steps for the second, and that after so many for it to be looked what
/// was freed, or not at all. Which of them were stopped.
fn run(acts: [Act; 2], stops_after: [usize; 2]) -> [bool; 2] {
    let world = World::new();
    let before = acts.map(|act| {
        let has = world.prepare(act);
        (act, has)
    });
    before.iter().for_each(|(act, has)| {
        if !matches!(act, Act::Sent | Act::Build) {
            world.fill_in(*act, *has);
        }
    });
    let reclaim = || {
        world.act(&mut Lane::new(&world), Act::Reclaim, Has::default());
    };
    let (theirs, was_stopped) = (Cell::new(Has::default()), Cell::new(false));
    let second = || {
        let mut lane = Lane::stopped(&world, stops_after[1], &reclaim);
        theirs.set(world.act(&mut lane, before[1].0, before[1].1));
        was_stopped.set(lane.other.take().is_none());
    };
    let mut lane = Lane::stopped(&world, stops_after[0], &second);
    let ours = world.act(&mut lane, before[0].0, before[0].1);
    let is_stopped = lane.other.take().is_none();
    if !is_stopped {
        second();
    }
    world.check(&[ours, theirs.get()]);
    [is_stopped, was_stopped.get()]
}

/// Between any two steps of a lane another may do anything, and between any two of that it may be looked what the
/// domain has freed.
#[test]
fn what_lanes_do_comes_between_any_two_steps_of_others() {
    let mut nr_runs = 0;
    for acts in ALL.iter().flat_map(|first| ALL.map(|second| [*first, second])) {
        for step in 1.. {
            let was_stopped = |other: &usize| run(acts, [step, *other]) == [true, true];
            nr_runs += (1..).take_while(was_stopped).count();
            if !run(acts, [step, 0])[0] {
                break;
            }
        }
    }
    assert!(nr_runs > 10_000, "{nr_runs}");
}
