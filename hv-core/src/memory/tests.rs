//! Reservations and exchanges against the fake machine.

#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::*;
use crate::claims::{Claim, Claims};
use crate::frame::UsageState;
use crate::mmu::fake::{Machine, DOM1, DOM2};
use std::cell::{Cell, RefCell};
use std::vec;

/// Frames from 60 on are free, handed out in order; `released` and `freed` record what comes back.
struct Pool {
    next: Cell<u64>,
    end: u64,
    freed: RefCell<Vec<u64>>,
    released: RefCell<Vec<u64>>,
    /// What comes back, and is kept for a snapshot.
    away: RefCell<Vec<u64>>,
    claims: RefCell<Claims>,
    /// That of the domain whose memory it is.
    claim: Claim,
    /// Another domain's, who claims all that is left once so many extents were allocated.
    others: Claim,
    claimed_after: Cell<Option<u32>>,
}

impl Pool {
    fn new(free: u64) -> Self {
        Self {
            next: Cell::new(64),
            end: 64 + free,
            freed: RefCell::default(),
            released: RefCell::default(),
            away: RefCell::default(),
            claims: RefCell::default(),
            claim: Claim::none(),
            others: Claim::none(),
            claimed_after: Cell::new(None),
        }
    }

    fn available(&self) -> u64 {
        self.end - self.next.get()
    }

    /// Another domain claims so much of what is left.
    fn claim_for_another(&self, pages: u64) {
        assert!(self.claims.borrow_mut().set_aside(&self.others, pages, self.available()));
    }

    fn take(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        assert!(address_bits > 12);
        let first = self.next.get().next_multiple_of(1 << order);
        let after = first + (1 << order);
        (after <= self.end).then(|| {
            self.next.set(after);
            Mfn::new(first)
        })
    }

    fn take_by(&self, own: &Claim, order: u32, address_bits: u32) -> Option<Mfn> {
        let take = || self.take(order, address_bits);
        self.claims.borrow_mut().take(own, 1 << order, || self.available(), take)
    }
}

impl FrameSource for Pool {
    fn alloc(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        let first = self.take_by(&Claim::none(), order, address_bits)?;
        let left = self.claimed_after.get().map(|n| n.saturating_sub(1));
        self.claimed_after.set(left.filter(|n| *n != 0));
        if left == Some(0) {
            self.claim_for_another(self.available());
        }
        Some(first)
    }
    fn alloc_more(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        self.take_by(&self.claim, order, address_bits)
    }
    fn free(&self, mfn: Mfn, order: u32) {
        self.freed.borrow_mut().extend((0..1 << order).map(|n| mfn.raw() + n));
    }
    fn release(&self, mfn: Mfn, gone: Gone) {
        match gone {
            Gone::Free => self.released.borrow_mut().push(mfn.raw()),
            Gone::Away => self.away.borrow_mut().push(mfn.raw()),
        }
    }
}

struct Book {
    pages: Cell<u64>,
    max: u64,
}

impl Account for Book {
    fn owner(&self) -> DomId {
        DOM1
    }
    fn charge(&self, pages: u64) -> bool {
        let sum = self.pages.get() + pages;
        let ok = sum <= self.max;
        if ok {
            self.pages.set(sum);
        }
        ok
    }
    fn uncharge(&self, pages: u64) {
        self.pages.set(self.pages.get() - pages);
    }
}

fn reservation(count: u64, order: u32) -> MemoryReservation {
    MemoryReservation { nr_extents: count, extent_order: order, ..MemoryReservation::default() }
}

fn m2p(m: &Machine, n: u64) -> u64 {
    m.m2p[n as usize].load(std::sync::atomic::Ordering::SeqCst)
}

/// Domain 1 has frames 16..32.
fn machine() -> Machine {
    let m = Machine::new(128);
    m.populate(DOM1, 16, 16);
    m.populate(DOM2, 40, 4);
    m
}

#[test]
fn populating_charges_first_and_sets_the_m2p() {
    let m = machine();
    let pool = Pool::new(8);
    let book = Book { pages: Cell::new(16), max: 20 };
    let extents = Extents::new(&reservation(2, 2), GUEST_MAX_ORDER).unwrap();
    let first = populate(m.mmu(), &pool, &book, &extents, Some(100)).unwrap();
    assert_eq!((first, book.pages.get()), (Mfn::new(64), 20));
    for n in 0..4 {
        assert_eq!(m2p(&m, 64 + n), 100 + n);
        assert_eq!((m.at(Mfn::new(64 + n)).owner(), m.at(Mfn::new(64 + n)).count().refs()), (DOM1, 1));
    }
    assert_eq!(populate(m.mmu(), &pool, &book, &extents, Some(104)), Err(Errno::ENOMEM), "over the limit");
    assert_eq!((pool.next.get(), book.pages.get()), (68, 20));
    let book = Book { pages: Cell::new(0), max: 100 };
    let extents = Extents::new(&reservation(1, 3), GUEST_MAX_ORDER).unwrap();
    assert_eq!(populate(m.mmu(), &pool, &book, &extents, None), Err(Errno::ENOMEM), "no memory");
    assert_eq!(book.pages.get(), 0);
}

/// A builder tries large extents first, and small ones if there are none.
#[test]
fn an_extent_that_is_not_there_leaves_the_claim_to_the_next_ones() {
    let m = machine();
    let (pool, book) = (Pool::new(32), Book { pages: Cell::new(16), max: 2000 });
    assert!(pool.claims.borrow_mut().set_aside(&pool.claim, 1024, 2000));
    let extents = |order| Extents::new(&reservation(1, order), GUEST_MAX_ORDER).unwrap();
    assert_eq!(populate(m.mmu(), &pool, &book, &extents(9), None), Err(Errno::ENOMEM));
    assert_eq!((pool.claim.frames(), pool.claims.borrow().outstanding(), book.pages.get()), (1024, 1024, 16));
    populate(m.mmu(), &pool, &book, &extents(1), None).unwrap();
    assert_eq!((pool.claim.frames(), pool.claims.borrow().outstanding(), book.pages.get()), (1022, 1022, 18));
    // What others have claimed is not to be had, though it is free.
    let other = Claim::none();
    pool.claims.borrow_mut().give_up(&pool.claim);
    assert!(pool.claims.borrow_mut().set_aside(&other, 29, 30));
    assert_eq!(populate(m.mmu(), &pool, &book, &extents(1), None), Err(Errno::ENOMEM));
    assert_eq!((pool.next.get(), book.pages.get(), other.frames()), (66, 18, 29));
}

#[test]
fn extents_are_limited() {
    assert_eq!(Extents::new(&reservation(1, 10), GUEST_MAX_ORDER), Err(Errno::EPERM));
    assert_eq!(Extents::new(&reservation(1, 64), DEVICE_MAX_ORDER), Err(Errno::EPERM));
    assert_eq!(Extents::new(&reservation(u64::MAX, 0), GUEST_MAX_ORDER), Err(Errno::E2BIG));
    let limited = MemoryReservation { mem_flags: 32, ..reservation(1, 0) };
    assert_eq!(Extents::new(&limited, GUEST_MAX_ORDER).unwrap().address_bits, 32);
}

#[test]
fn decreasing_stops_at_the_first_page_that_is_not_its_own() {
    let m = machine();
    let extents = Extents::new(&reservation(1, 1), GUEST_MAX_ORDER).unwrap();
    decrease(m.mmu(), DOM1, &extents, Mfn::new(16)).unwrap();
    assert_eq!(decrease(m.mmu(), DOM1, &extents, Mfn::new(31)), Err(Errno::EINVAL));
    assert_eq!(decrease(m.mmu(), DOM1, &extents, Mfn::new(40)), Err(Errno::EINVAL));
    assert_eq!(decrease(m.mmu(), DOM1, &extents, Mfn::new(u64::MAX)), Err(Errno::EINVAL));
    let freed: Vec<u64> = m.freed.lock().unwrap().iter().map(|(mfn, _)| mfn.raw()).collect();
    assert_eq!(freed, [16, 17, 31]);
}

fn request(inputs: (u64, u32), outputs: (u64, u32)) -> MemoryExchange {
    MemoryExchange {
        input: reservation(inputs.0, inputs.1),
        output: reservation(outputs.0, outputs.1),
        nr_exchanged: 0,
    }
}

#[test]
fn exchanges_that_do_not_match_are_refused() {
    let bad = [
        request((0, 0), (0, 0)),
        request((8, 0), (1, 2)),
        request((3, 0), (1, 1)),
        MemoryExchange { nr_exchanged: 9, ..request((8, 0), (1, 3)) },
        MemoryExchange { nr_exchanged: 3, ..request((8, 0), (2, 2)) },
    ];
    for x in bad {
        assert_eq!(Exchange::new(&x, DEVICE_MAX_ORDER), Err(Errno::EINVAL), "{x:?}");
    }
    assert_eq!(Exchange::new(&request((1024, 0), (1, 10)), GUEST_MAX_ORDER), Err(Errno::EPERM));
    let plan = Exchange::new(&MemoryExchange { nr_exchanged: 4, ..request((8, 0), (2, 2)) }, GUEST_MAX_ORDER).unwrap();
    assert_eq!((plan.inputs_per_chunk, plan.outputs_per_chunk, plan.first_chunk, plan.chunks), (4, 1, 1, 2));
    let plan = Exchange::new(&request((1, 3), (8, 0)), GUEST_MAX_ORDER).unwrap();
    assert_eq!((plan.inputs_per_chunk, plan.outputs_per_chunk, plan.chunks), (1, 8, 1));
}

#[test]
fn single_pages_become_a_contiguous_extent() {
    let m = machine();
    let pool = Pool::new(8);
    let plan = Exchange::new(&request((4, 0), (1, 2)), GUEST_MAX_ORDER).unwrap();
    let inputs: Vec<Mfn> = (20..24).map(Mfn::new).collect();
    assert_eq!(plan.chunk(m.mmu(), &pool, DOM1, &inputs, &[500]), Ok(vec![Mfn::new(64)]));
    assert_eq!(*pool.released.borrow(), [20, 21, 22, 23]);
    for n in 0..4 {
        assert_eq!((m2p(&m, 20 + n), m2p(&m, 64 + n)), (INVALID_M2P_ENTRY, 500 + n));
        assert_eq!(m.at(Mfn::new(20 + n)).owner(), DomId::INVALID);
        assert_eq!(m.at(Mfn::new(64 + n)).owner(), DOM1);
    }
    assert!(m.freed.lock().unwrap().is_empty(), "the account is not touched");
}

#[test]
fn a_failed_exchange_changes_nothing() {
    let m = machine();
    let plan = Exchange::new(&request((4, 0), (1, 2)), GUEST_MAX_ORDER).unwrap();
    let inputs = |list: [u64; 4]| list.map(Mfn::new);
    let in_use = m.mmu().get_page(Mfn::new(22), DOM1).unwrap();
    for (list, why) in [
        ([20, 21, 22, 23], "a page in use"),
        ([20, 21, 40, 23], "another domain's page"),
        ([20, 21, 21, 23], "a page twice"),
        ([20, 21, u64::MAX, 23], "no page"),
    ] {
        let pool = Pool::new(8);
        assert_eq!(plan.chunk(m.mmu(), &pool, DOM1, &inputs(list), &[500]), Err(Errno::EINVAL), "{why}");
        assert_eq!(*pool.freed.borrow(), [64, 65, 66, 67], "{why}");
        assert!(pool.released.borrow().is_empty());
    }
    drop(in_use);
    let pool = Pool::new(3);
    assert_eq!(plan.chunk(m.mmu(), &pool, DOM1, &inputs([20, 21, 22, 23]), &[500]), Err(Errno::ENOMEM));
    for n in 16..32 {
        let frame = m.at(Mfn::new(n));
        assert_eq!((frame.owner(), frame.count().refs()), (DOM1, 1), "frame {n}");
        assert!(frame.count().is_allocated() && frame.usage().state() == UsageState::Idle);
    }
}

/// What goes is free afterwards, if no snapshot notes it; but until then the domain has both.
#[test]
fn what_is_claimed_is_not_exchanged() {
    exchange_beside_a_claim(false);
}

#[test]
fn what_is_claimed_is_not_exchanged_for_what_a_snapshot_keeps() {
    exchange_beside_a_claim(true);
}

fn exchange_beside_a_claim(is_noted: bool) {
    let m = machine();
    let plan = Exchange::new(&request((4, 0), (1, 2)), GUEST_MAX_ORDER).unwrap();
    let inputs: Vec<Mfn> = (20..24).map(Mfn::new).collect();
    if is_noted {
        assert!(m.at(inputs[1]).note(DOM1) && m.at(inputs[2]).note(DOM1));
    }
    let pool = Pool::new(8);
    pool.claim_for_another(5);
    assert_eq!(plan.chunk(m.mmu(), &pool, DOM1, &inputs, &[500]), Err(Errno::ENOMEM));
    assert_eq!((pool.next.get(), pool.away.borrow().len(), pool.released.borrow().len()), (64, 0, 0));
    let pool = Pool::new(8);
    pool.claim_for_another(4);
    assert_eq!(plan.chunk(m.mmu(), &pool, DOM1, &inputs, &[500]), Ok(vec![Mfn::new(64)]));
    assert_eq!((pool.others.frames(), pool.claims.borrow().outstanding()), (4, 4), "nothing of it is used up");
    let (away, released) = if is_noted { (vec![21, 22], vec![20, 23]) } else { (vec![], vec![20, 21, 22, 23]) };
    assert_eq!((&*pool.away.borrow(), &*pool.released.borrow()), (&away, &released));
}

/// Also by another exchange of the same domain's.
#[test]
fn what_is_claimed_while_an_exchange_allocates_stays_claimed() {
    let m = machine();
    let plan = Exchange::new(&request((1, 2), (4, 0)), GUEST_MAX_ORDER).unwrap();
    let pool = Pool::new(8);
    pool.claimed_after.set(Some(2));
    let pfns = [500, 501, 502, 503];
    assert_eq!(plan.chunk(m.mmu(), &pool, DOM1, &[Mfn::new(20)], &pfns), Err(Errno::ENOMEM));
    assert_eq!((&*pool.freed.borrow(), pool.others.frames()), (&vec![64, 65], 6));
    assert!(pool.released.borrow().is_empty() && pool.away.borrow().is_empty());
    for n in 20..24 {
        let frame = m.at(Mfn::new(n));
        assert_eq!((frame.owner(), frame.count().refs(), frame.usage().state()), (DOM1, 1, UsageState::Idle));
        assert!(frame.count().is_allocated(), "frame {n} is not stolen");
    }
}

#[test]
fn a_page_that_came_back_is_flushed_before_it_becomes_a_table() {
    let m = machine();
    let mut lock = crate::mmu::Deferred::new();
    drop(m.mmu().get_writable(Mfn::new(20), DOM1).unwrap());
    m.mmu().steal(DOM1, Mfn::new(20)).unwrap();
    m.mmu().unsteal(DOM1, Mfn::new(20));
    m.mmu().pin(DOM1, Mfn::new(20), x86::Level::L1, &mut lock).unwrap();
    assert_eq!(m.flushes(), [0, 1, 0]);
}

#[test]
fn nobody_has_more_than_16_mib_wiped_or_exchanged_at_once() {
    for (is_privileged, has_io, order) in [(true, true, 12), (true, false, 12), (false, true, 12), (false, false, 9)] {
        let max = max_order(is_privileged, has_io);
        assert_eq!(max, order);
        assert!(Extents::new(&reservation(1, max), max).is_ok());
        assert_eq!(Extents::new(&reservation(1, max + 1), max), Err(Errno::EPERM));
        let side = |count, order| reservation(count, order);
        let exchange = |order| MemoryExchange {
            input: side(1u64 << order, 0),
            output: side(1, order),
            ..MemoryExchange::default()
        };
        let plan = Exchange::new(&exchange(max), max).unwrap();
        assert_eq!((plan.chunks, plan.inputs_per_chunk), (1, 1 << max));
        assert_eq!(Exchange::new(&exchange(max + 1), max), Err(Errno::EPERM));
    }
}
