//! I/O memory that a domain may not map any more.

use super::*;
use std::sync::atomic::Ordering;

/// An L1 table of domain 0's near the beginning of the frame table, and one near its end.
const NEAR: u64 = 50;
const FAR: u64 = 1900;
/// A register beyond all RAM.
const REGISTER: u64 = 0xfee00;

/// Domain 0 maps I/O frames 0, 1 and the register by both tables, and a page of its own.
fn with_registers() -> (Machine, Deferred) {
    let m = Machine::new(2048);
    let mut lock = Deferred::new();
    m.populate(DOM0, NEAR, 10);
    m.populate(DOM0, FAR, 10);
    m.populate(DOM2, 40, 1);
    for (table, page) in [(NEAR, NEAR + 5), (FAR, FAR + 5)] {
        m.mmu().pin(DOM0, mfn(table), Level::L1, &mut lock).unwrap();
        let entries = [(0, 0), (1, 1), (300, REGISTER), (511, 0), (8, page)];
        for (index, frame) in entries {
            let at = slot(table, index).addr();
            m.mmu().mmu_update(at, pte(frame, P | RW | US).0, Owners::both(DOM0), &mut lock).unwrap();
        }
    }
    (m, lock)
}

fn present(m: &Machine, table: u64) -> std::vec::Vec<usize> {
    (0..512).filter(|&index| m.read(slot(table, index)).is_present()).collect()
}

#[test]
fn entries_of_withdrawn_registers_go_and_others_stay() {
    let (m, lock) = with_registers();
    m.mmu().withdraw(DOM0, None, &mut Withdrawal::new(), &lock).unwrap();
    assert_eq!(present(&m, NEAR), [0, 1, 8, 300, 511], "it may map all of them");
    m.withdrawn.lock().unwrap().extend([mfn(0), mfn(REGISTER)]);
    m.mmu().withdraw(DOM2, None, &mut Withdrawal::new(), &Deferred::new()).unwrap();
    assert_eq!(present(&m, NEAR), [0, 1, 8, 300, 511], "another domain's");
    m.mmu().withdraw(DOM0, None, &mut Withdrawal::new(), &lock).unwrap();
    for table in [NEAR, FAR] {
        assert_eq!(present(&m, table), [1, 8]);
        assert_eq!(m.read(slot(table, 0)), Pte::EMPTY);
        assert_eq!(counts(&m, table + 5), (FrameType::Writable, 1, 2), "its own page is mapped still");
    }
    m.mmu().withdraw(DOM0, None, &mut Withdrawal::new(), &lock).unwrap();
    assert_eq!(present(&m, FAR), [1, 8]);
}

#[test]
fn no_entry_comes_behind_the_pass() {
    let (m, mut lock) = with_registers();
    let map = x86::PteFlags::from_bits_retain(RW | US);
    m.mmu().grant_map(slot(NEAR, 5), DOM0, DOM2, mfn(40), map, lock.locked()).unwrap();
    m.withdrawn.lock().unwrap().insert(mfn(0));
    let mut progress = Withdrawal::new();
    m.fuel.store(0, Ordering::SeqCst);
    assert_eq!(m.mmu().withdraw(DOM0, None, &mut progress, &lock), Err(MmuError::Preempted));
    assert_eq!(present(&m, NEAR), [1, 5, 8, 300], "the pass has been here");
    assert_eq!(present(&m, FAR), [0, 1, 8, 300, 511], "and not there");
    // A driver that would keep its registers moves them, maps them again, or brings them along in a new table.
    let moved = m.mmu().grant_replace(slot(NEAR, 5), slot(FAR, 0), DOM0, mfn(40), true, lock.locked());
    assert_eq!(moved, Err(MmuError::IoDenied));
    assert_eq!(m.read(slot(NEAR, 5)).mfn(), mfn(40), "nothing has changed");
    let own = Owners::both(DOM0);
    let again = m.mmu().mmu_update(slot(NEAR, 6).addr(), pte(0, P | RW | US).0, own, &mut lock);
    assert_eq!(again, Err(MmuError::IoDenied));
    m.poke(slot(NEAR + 1, 0), pte(0, P | RW | US));
    assert_eq!(m.mmu().pin(DOM0, mfn(NEAR + 1), Level::L1, &mut lock), Err(MmuError::IoDenied));
    // What it may still map moves.
    m.mmu().grant_replace(slot(NEAR, 5), slot(FAR, 300), DOM0, mfn(40), true, lock.locked()).unwrap();
    let mut rounds = 1;
    loop {
        m.fuel.store(0, Ordering::SeqCst);
        match m.mmu().withdraw(DOM0, None, &mut progress, &lock) {
            Ok(()) => break,
            Err(why) => assert_eq!(why, MmuError::Preempted),
        }
        rounds += 1;
    }
    assert!((3..10).contains(&rounds), "{rounds} rounds for 2048 frames");
    assert_eq!(present(&m, NEAR), [1, 5, 8, 300]);
    assert_eq!(present(&m, FAR), [1, 8]);
}

#[test]
fn a_page_takes_the_place_of_withdrawn_registers() {
    let (m, mut lock) = with_registers();
    let lent = mfn(70);
    m.at(lent).lend(DOM0, true);
    m.mmu().mmu_update(slot(NEAR, 2).addr(), pte(0, P | US).0, Owners::both(DOM0), &mut lock).unwrap();
    let uncached = m.read(slot(NEAR, 0));
    m.withdrawn.lock().unwrap().insert(mfn(0));
    m.mmu().withdraw(DOM0, Some(lent), &mut Withdrawal::new(), &lock).unwrap();
    assert_eq!(present(&m, NEAR), [0, 1, 2, 8, 300, 511]);
    for (table, index) in [(NEAR, 0), (NEAR, 511), (FAR, 0), (FAR, 511)] {
        let entry = m.read(slot(table, index));
        assert_eq!((entry.mfn(), entry.is_writable()), (lent, true));
        assert!(uncached.contains(x86::PteFlags::PCD) && !entry.contains(x86::PteFlags::PCD), "it is memory");
    }
    let only_read = m.read(slot(NEAR, 2));
    assert_eq!((only_read.mfn(), only_read.is_writable()), (lent, false), "no right comes with it");
    assert_eq!(m.read(slot(NEAR, 1)).mfn(), mfn(1), "it may map that");
    assert_eq!(counts(&m, 70), (FrameType::Writable, 5, 6), "the loan, four entries, and one that only reads");
    // As any page of its own it is mapped elsewhere, and let go.
    m.mmu().mmu_update(slot(NEAR, 6).addr(), pte(70, P | RW | US).0, Owners::both(DOM0), &mut lock).unwrap();
    for index in [0, 2, 6, 511] {
        m.mmu().mmu_update(slot(NEAR, index).addr(), 0, Owners::both(DOM0), &mut lock).unwrap();
    }
    assert_eq!(counts(&m, 70), (FrameType::Writable, 3, 3));
    assert_eq!(m.mmu().pin(DOM0, lent, Level::L1, &mut lock), Err(MmuError::WrongType), "it becomes no page table");
    m.mmu().end_loan(DOM0, lent).unwrap();
    assert_eq!(m.mmu().take_back(lent), Err(MmuError::NotOwned), "two entries have it still");
    for index in [0, 511] {
        m.mmu().mmu_update(slot(FAR, index).addr(), 0, Owners::both(DOM0), &mut lock).unwrap();
    }
    m.mmu().take_back(lent).unwrap();
}

#[test]
fn another_domains_page_takes_no_place() {
    let (m, lock) = with_registers();
    m.withdrawn.lock().unwrap().insert(mfn(0));
    m.mmu().withdraw(DOM0, Some(mfn(40)), &mut Withdrawal::new(), &lock).unwrap();
    assert_eq!(present(&m, NEAR), [1, 8, 300], "DOM2's");
    assert_eq!(m.at(mfn(40)).count().refs(), 1);
}

/// Frames of eight L1 tables of domain 0's, all entries of which map I/O memory, and of an L2 table above them.
const FULL: core::ops::Range<u64> = 100..108;
const ABOVE: u64 = 108;

fn with_full_tables() -> (Machine, Deferred) {
    let m = Machine::new(512);
    m.populate(DOM0, FULL.start, 9);
    for (index, table) in FULL.enumerate() {
        (0..512).for_each(|n| m.poke(slot(table, n), pte(0, P | RW | US)));
        m.poke(slot(ABOVE, index), pte(table, P | RW | US));
    }
    (m, Deferred::new())
}

/// Calls `f` until it has not been preempted any more, with so few steps each time that it asks for few entries.
fn a_few_questions_at_a_time(m: &Machine, mut f: impl FnMut() -> Result<(), MmuError>) {
    const STEPS: u32 = 4;
    // A table is looked through to its end, whatever it is worth.
    const MOST: u32 = STEPS * super::env::IO_ENTRIES_IN_STEP + 512;
    for round in 0.. {
        m.fuel.store(STEPS.into(), Ordering::SeqCst);
        m.nr_io_questions.store(0, Ordering::SeqCst);
        let result = f();
        let asked = m.nr_io_questions.load(Ordering::SeqCst);
        assert!(asked <= MOST, "{asked} questions in round {round}");
        match result {
            Ok(()) => return,
            Err(why) => assert_eq!((why, round < 100), (MmuError::Preempted, true)),
        }
    }
}

#[test]
fn tables_full_of_registers_are_looked_through_a_few_entries_at_a_time() {
    let (m, mut lock) = with_full_tables();
    a_few_questions_at_a_time(&m, || m.mmu().pin(DOM0, mfn(ABOVE), Level::L2, &mut lock));
    let mut progress = Withdrawal::new();
    m.withdrawn.lock().unwrap().insert(mfn(0));
    a_few_questions_at_a_time(&m, || m.mmu().withdraw(DOM0, None, &mut progress, &lock));
    FULL.for_each(|table| assert_eq!(present(&m, table), []));
}
