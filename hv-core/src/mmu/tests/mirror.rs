//! A root of the hypervisor's that shares tables of a domain.

use super::*;
use crate::mmu::mirror::{self, END_SLOT, FIRST_SLOT};
use std::vec::Vec;

/// The mirror's table.
const MIRROR: u64 = 60;

/// The pinned tree with its L3 table in slot 273 too, and a reference to its root.
fn rooted() -> (Machine, Deferred, RootRef) {
    let (m, mut lock) = machine();
    m.poke(slot(L4, 273), pte(L3, P | RW | US));
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    let root = m.mmu().acquire_root(DOM1, mfn(L4), &mut lock).unwrap();
    (m, lock, root)
}

/// Makes entry `at` of the mirror.
fn share(m: &Machine, root: &RootRef, at: usize, lock: &mut Deferred) -> Result<(), MmuError> {
    m.mmu().share(DOM1, root, mfn(MIRROR), at, lock)
}

/// Empties the mirror.
fn unshare_all(m: &Machine, lock: &mut Deferred) {
    while m.mmu().unshare(mfn(MIRROR), lock).unwrap() {}
}

#[test]
fn an_entry_is_the_supervisors_and_not_executable() {
    let (m, mut lock, root) = rooted();
    share(&m, &root, 17, &mut lock).unwrap();
    assert_eq!(m.read(slot(MIRROR, 17)), pte(L3, P | RW | A | NX));
    assert_eq!(counts(&m, L3), (FrameType::L3, 3, 4));
    share(&m, &root, 17, &mut lock).unwrap();
    assert_eq!(counts(&m, L3), (FrameType::L3, 3, 4), "what is there is there");
    assert_eq!(m.mmu().unshare(mfn(MIRROR), &mut lock), Ok(true));
    assert_eq!((m.read(slot(MIRROR, 17)), counts(&m, L3)), (Pte::EMPTY, (FrameType::L3, 2, 3)));
    assert_eq!(m.mmu().unshare(mfn(MIRROR), &mut lock), Ok(false));
    m.mmu().release_root(root, &mut lock).unwrap();
}

#[test]
fn slots_without_a_counterpart_share_nothing() {
    let (m, mut lock, root) = rooted();
    for at in [0, 1, FIRST_SLOT - 1, END_SLOT, 300, usize::MAX] {
        share(&m, &root, at, &mut lock).unwrap();
    }
    for at in (FIRST_SLOT..END_SLOT).filter(|at| *at != 17) {
        share(&m, &root, at, &mut lock).unwrap();
    }
    assert!((0..512).all(|at| !m.read(slot(MIRROR, at)).is_present()));
    assert_eq!(counts(&m, L3), (FrameType::L3, 2, 3), "the domain's own");
    m.mmu().release_root(root, &mut lock).unwrap();
}

#[test]
fn what_is_shared_stays_a_table_when_the_domain_takes_it_out() {
    let (m, mut lock, root) = rooted();
    share(&m, &root, 17, &mut lock).unwrap();
    update(&m, &mut lock, slot(L4, 273), Pte::EMPTY).unwrap();
    update(&m, &mut lock, slot(L4, 0), Pte::EMPTY).unwrap();
    assert_eq!(counts(&m, L3), (FrameType::L3, 1, 2), "the mirror's");
    assert!(m.mmu().get_writable(mfn(L3), DOM1).is_err());
    unshare_all(&m, &mut lock);
    assert_eq!(counts(&m, L3), (FrameType::None, 0, 1));
    assert!(m.mmu().get_writable(mfn(L1), DOM1).is_ok(), "the tree is taken down");
    m.mmu().release_root(root, &mut lock).unwrap();
}

/// Two CPUs that fault in one empty slot: who comes second finds the entry there, and asks this.
#[test]
fn a_mirror_shows_what_all_entries_on_the_way_allow() {
    let (m, mut lock, root) = rooted();
    let at = |page: u64| VirtAddr::new(17 << 39 | page << 12).unwrap();
    let may = |m: &Machine, lock: &Deferred, page| {
        [false, true].map(|is_write| m.mmu().shows(mfn(MIRROR), at(page), is_write, lock.locked()))
    };
    assert_eq!(may(&m, &lock, 0), [false, false], "the slot is empty");
    share(&m, &root, 17, &mut lock).unwrap();
    assert_eq!(may(&m, &lock, 0), [true, true]);
    assert_eq!(may(&m, &lock, 1), [true, false], "a page that may be read");
    assert_eq!(may(&m, &lock, 2), [false, false], "no page");
    assert_eq!(may(&m, &lock, 512), [false, false], "no table");
    m.poke(slot(L3, 0), pte(L2, P | US));
    assert_eq!(may(&m, &lock, 0), [true, false], "tables take rights away");
    m.poke(slot(L3, 0), pte(L2, P | RW | US));
    unshare_all(&m, &mut lock);
    m.mmu().release_root(root, &mut lock).unwrap();
}

/// Begins to take a tree of several tables down.
fn begin_a_long_one(m: &Machine, lock: &mut Deferred) {
    refuel(m, -1);
    (0..4).for_each(|n| m.poke(slot(30, n), pte(31 + n as u64, P | RW | US)));
    m.mmu().pin(DOM1, mfn(30), Level::L2, lock).unwrap();
    refuel(m, 0);
    let _ = m.mmu().unpin(DOM1, mfn(30), lock);
    assert!(!lock.is_empty(), "it is not all taken down");
}

fn refuel(m: &Machine, steps: i64) {
    m.fuel.store(steps, std::sync::atomic::Ordering::SeqCst);
}

/// What another vCPU began to take down comes first. Who shares or gives back loses nothing over it, and has it go on
/// each time.
#[test]
fn sharing_waits_for_what_is_taken_down() {
    let (m, mut lock, root) = rooted();
    begin_a_long_one(&m, &mut lock);
    let mut rounds = 0;
    loop {
        refuel(&m, 0);
        match share(&m, &root, 17, &mut lock) {
            Ok(()) => break,
            Err(error) => assert_eq!(error, MmuError::Preempted),
        }
        rounds += 1;
    }
    assert!((1..10).contains(&rounds), "{rounds}");
    assert_eq!((counts(&m, 30), counts(&m, L3)), ((FrameType::None, 0, 1), (FrameType::L3, 3, 4)));
    begin_a_long_one(&m, &mut lock);
    rounds = 0;
    loop {
        refuel(&m, 0);
        match m.mmu().unshare(mfn(MIRROR), &mut lock) {
            Ok(was_one) => break assert!(was_one),
            Err(error) => assert_eq!(error, MmuError::Preempted),
        }
        assert_eq!(m.mmu().shared(mfn(MIRROR)).collect::<Vec<_>>(), [mfn(L3)], "it is still there");
        rounds += 1;
    }
    assert!((1..10).contains(&rounds), "{rounds}");
    assert_eq!((counts(&m, 30), counts(&m, L3)), ((FrameType::None, 0, 1), (FrameType::L3, 2, 3)));
    refuel(&m, -1);
    m.mmu().release_root(root, &mut lock).unwrap();
}

/// The domain has taken its tables out of its root, and giving back is preempted over and over: who looks at the mirror
/// in between, or goes on with it, finds no entry without a reference.
#[test]
fn a_mirror_that_is_given_back_in_part_refers_to_nothing_that_it_does_not_hold() {
    let (m, mut lock) = machine();
    (1..6).for_each(|n| m.poke(slot(L2, n), pte(30 + n as u64, P | RW | US)));
    m.poke(slot(36, 0), pte(37, P | RW | US));
    for (at, table) in [(273, L3), (300, 36)] {
        m.poke(slot(L4, at), pte(table, P | RW | US));
    }
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    let root = m.mmu().acquire_root(DOM1, mfn(L4), &mut lock).unwrap();
    (FIRST_SLOT..END_SLOT).for_each(|at| share(&m, &root, at, &mut lock).unwrap());
    for at in [0, 273, 300] {
        update(&m, &mut lock, slot(L4, at), Pte::EMPTY).unwrap();
    }
    let mut rounds = 0;
    loop {
        refuel(&m, 0);
        let result = m.mmu().unshare(mfn(MIRROR), &mut lock);
        for table in m.mmu().shared(mfn(MIRROR)) {
            assert_eq!(counts(&m, table.raw()), (FrameType::L3, 1, 2), "after {rounds} rounds");
            assert!(m.mmu().get_writable(table, DOM1).is_err(), "after {rounds} rounds");
        }
        match result {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => assert_eq!(error, MmuError::Preempted),
        }
        rounds += 1;
    }
    assert!(rounds > 4, "{rounds}");
    assert!([L3, 36].iter().all(|table| m.mmu().get_writable(mfn(*table), DOM1).is_ok()), "all are the domain's again");
    refuel(&m, -1);
    m.mmu().release_root(root, &mut lock).unwrap();
}

#[test]
fn a_page_is_shown_where_the_slot_of_its_table_is() {
    assert_eq!(mirror::place_of(0xffff_8800_0000_0000), Some((FIRST_SLOT as u64) << 39), "the first");
    assert_eq!(mirror::place_of(0xffff_ffff_ffff_f000), Some(((END_SLOT as u64) << 39) - 4096), "the last");
    assert_eq!(mirror::place_of(0xffff_c123_4567_8000), Some(0x4123_4567_8000));
    for page in
        [0, 0x1000, 0x7fff_ffff_f000, 1 << 47, 0xffff_7fff_ffff_f000, 0xffff_8000_0000_0000, 0xffff_87ff_ffff_f000]
    {
        assert_eq!(mirror::place_of(page), None, "{page:#x} is not the domain's to show");
    }
}
