//! Allocation, giving up, stealing, loans, the end of a domain.

use super::*;
use crate::frame::Gone;

fn all_free(m: &Machine, range: core::ops::Range<u64>) {
    for n in range {
        let frame = m.at(mfn(n));
        assert_eq!((frame.count().refs(), frame.usage().state()), (0, UsageState::Idle), "frame {n}: {frame:?}");
        assert_eq!(frame.owner(), xen_abi::layout::DomId::INVALID);
    }
}

/// What has to be read again since the last time.
fn changed(m: &Machine) -> std::vec::Vec<u64> {
    std::mem::take(&mut *m.changed.lock().unwrap()).into_iter().map(Mfn::raw).collect()
}

#[test]
fn who_copies_a_domain_reads_again_what_becomes_a_table_or_is_none_any_more() {
    let (m, mut lock) = machine();
    m.mmu().pin(DOM1, mfn(L1), Level::L1, &mut lock).unwrap();
    assert_eq!(changed(&m), [L1], "a page is a table, though nobody has written to it");
    let root = m.mmu().acquire_root(DOM1, mfn(L4), &mut lock).unwrap();
    assert_eq!(changed(&m), [L4, L3, L2], "and those that it leads to");
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    assert_eq!(changed(&m), [L4], "a table is pinned");
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    assert_eq!(changed(&m), [L4], "and is not any more");
    m.mmu().release_root(root, &mut lock).unwrap();
    m.mmu().drain(&mut lock).unwrap();
    assert_eq!(changed(&m), [L4, L3, L2], "none is left but the one that is pinned");
    m.mmu().unpin(DOM1, mfn(L1), &mut lock).unwrap();
    assert_eq!(changed(&m), [L1]);
    m.poke(slot(30, 0), Pte(u64::MAX));
    assert!(m.mmu().pin(DOM1, mfn(30), Level::L1, &mut lock).is_err());
    assert_eq!(changed(&m), [30], "it has been one for a moment");
}

#[test]
fn a_reference_gives_itself_back() {
    let (m, _) = machine();
    {
        let _page = m.mmu().get_page(mfn(20), DOM1).unwrap();
        let _writable = m.mmu().get_writable(mfn(20), DOM1).unwrap();
        assert_eq!(counts(&m, 20), (FrameType::Writable, 1, 3));
    }
    assert_eq!(counts(&m, 20), (FrameType::None, 0, 1));
    assert!(m.mmu().get_page(mfn(20), DOM2).is_err());
    assert!(m.mmu().get_page(mfn(60), xen_abi::layout::DomId::INVALID).is_err());
}

#[test]
fn a_reference_becomes_one_for_writing_and_back() {
    let (m, _) = pinned();
    let page = m.mmu().get_page(mfn(22), DOM1).unwrap();
    let page = page.into_writable(DOM1).unwrap();
    assert_eq!(counts(&m, 22), (FrameType::Writable, 1, 2));
    let page = page.into_page();
    assert_eq!(counts(&m, 22), (FrameType::None, 0, 2));
    drop(page);
    assert_eq!(counts(&m, 22), (FrameType::None, 0, 1));
    let table = m.mmu().get_page(mfn(L1), DOM1).unwrap();
    let table = table.into_writable(DOM1).unwrap_err();
    assert_eq!(counts(&m, L1), (FrameType::L1, 1, 3), "a page table stays one, and the reference what it was");
    drop(table);
    assert_eq!(counts(&m, L1), (FrameType::L1, 1, 2));
}

#[test]
fn a_page_is_given_up_once() {
    let (m, _) = machine();
    let page = m.mmu().get_page(mfn(20), DOM1).unwrap();
    m.mmu().give_up(DOM1, mfn(20)).unwrap();
    assert_eq!(m.mmu().give_up(DOM1, mfn(20)), Err(MmuError::NotOwned), "twice");
    assert_eq!(m.mmu().give_up(DOM1, mfn(40)), Err(MmuError::NotOwned), "another's");
    assert!(m.freed.lock().unwrap().is_empty());
    drop(page);
    assert_eq!(*m.freed.lock().unwrap(), [(mfn(20), DOM1)]);
}

#[test]
fn only_an_unused_page_is_stolen() {
    let (m, mut lock) = pinned();
    for n in [L4, L1, 20, 21] {
        assert_eq!(m.mmu().steal(DOM1, mfn(n)), Err(MmuError::WrongType), "frame {n} is in use");
    }
    assert_eq!(m.mmu().steal(DOM1, mfn(40)), Err(MmuError::NotOwned));
    update(&m, &mut lock, slot(L1, 0), Pte::EMPTY).unwrap();
    m.mmu().steal(DOM1, mfn(20)).unwrap();
    assert!(m.mmu().get_page(mfn(20), DOM1).is_err(), "it is nobody's to refer to");
    assert_eq!(m.mmu().let_go(mfn(20)), Gone::Free);
    all_free(&m, 20..21);
    let flushes = m.flushes();
    assert!(m.dma_remembered.lock().unwrap().contains(&mfn(20)));
    m.mmu().flush_before_reuse(mfn(20));
    assert_eq!(m.flushes(), flushes.map(|n| n + 1), "of all CPUs");
    assert!(m.dma_remembered.lock().unwrap().is_empty(), "a device of the old owner reaches it");
}

/// The fake machine refuses to give devices a page whose type others may change meanwhile.
#[test]
fn a_page_that_comes_back_is_its_devices_before_it_is_its_owners() {
    let (m, _) = machine();
    drop(m.mmu().get_writable(mfn(20), DOM1).unwrap());
    m.mmu().steal(DOM1, mfn(20)).unwrap();
    assert!(!m.dma.lock().unwrap().contains(&(DOM1.0, mfn(20))));
    m.mmu().unsteal(DOM1, mfn(20));
    assert!(m.dma.lock().unwrap().contains(&(DOM1.0, mfn(20))));
    assert_eq!(counts(&m, 20), (FrameType::None, 0, 1));
}

#[test]
fn a_lent_page_is_never_a_table_and_never_given_up() {
    let (m, mut lock) = pinned();
    m.at(mfn(60)).lend(DOM1, true);
    m.at(mfn(61)).lend(DOM1, false);
    update(&m, &mut lock, slot(L1, 2), pte(60, P | RW)).unwrap();
    update(&m, &mut lock, slot(L1, 3), pte(61, P)).unwrap();
    assert_eq!(update(&m, &mut lock, slot(L1, 3), pte(61, P | RW)), Err(MmuError::Unmappable));
    for n in [60, 61] {
        assert_eq!(m.mmu().pin(DOM1, mfn(n), Level::L1, &mut lock), Err(MmuError::WrongType));
        assert_eq!(m.mmu().give_up(DOM1, mfn(n)), Err(MmuError::NotOwned));
        assert_eq!(m.mmu().steal(DOM1, mfn(n)), Err(MmuError::NotOwned));
        m.mmu().end_loan(DOM1, mfn(n)).unwrap();
        assert_eq!(m.mmu().end_loan(DOM1, mfn(n)), Err(MmuError::NotOwned), "once");
    }
    assert!(m.freed.lock().unwrap().is_empty(), "still mapped");
    assert_eq!(m.mmu().take_back(mfn(60)), Err(MmuError::NotOwned), "still mapped");
    update(&m, &mut lock, slot(L1, 2), Pte::EMPTY).unwrap();
    update(&m, &mut lock, slot(L1, 3), Pte::EMPTY).unwrap();
    assert_eq!(m.freed.lock().unwrap()[..], [(mfn(60), DOM1), (mfn(61), DOM1)], "nobody refers to them");
    for n in [60, 61] {
        // The hypervisor may still be using it.
        assert!(m.mmu().get_page(mfn(n), DOM1).is_err());
        assert_eq!(update(&m, &mut lock, slot(L1, 2), pte(n, P)), Err(MmuError::Unmappable));
        m.mmu().take_back(mfn(n)).unwrap();
        assert_eq!(m.mmu().take_back(mfn(n)), Err(MmuError::NotOwned), "once");
    }
    all_free(&m, 60..62);
}

#[test]
fn a_dying_domain_gives_everything_back_in_small_steps() {
    let (m, mut lock) = pinned();
    m.poke(slot(30, 0), pte(31, P | RW));
    m.mmu().pin(DOM1, mfn(30), Level::L1, &mut lock).unwrap();
    let root = m.mmu().acquire_root(DOM1, mfn(L4), &mut lock).unwrap();
    let mut progress = Relinquish::new();
    m.mmu().release_root(root, &mut lock).unwrap();
    let mut steps = 0;
    loop {
        m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
        match m.mmu().relinquish(DOM1, &mut progress, &mut lock) {
            Ok(()) => break,
            Err(e) => assert_eq!(e, MmuError::Preempted),
        }
        steps += 1;
        assert!(steps < 100);
    }
    all_free(&m, 10..40);
    assert_eq!(m.freed.lock().unwrap().len(), 30);
    assert!(lock.is_empty());
    assert_eq!(counts(&m, 40), (FrameType::None, 0, 1), "other domains are not touched");
}

#[test]
fn a_foreign_mapping_keeps_a_dead_domains_page() {
    let (m, mut lock) = machine();
    let foreign = m.mmu().get_writable(mfn(20), DOM1).unwrap();
    m.mmu().relinquish(DOM1, &mut Relinquish::new(), &mut lock).unwrap();
    assert_eq!(m.freed.lock().unwrap().len(), 29);
    drop(foreign);
    all_free(&m, 10..40);
}

#[test]
fn roots_keep_their_tables() {
    let (m, mut lock) = pinned();
    let root = m.mmu().acquire_root(DOM1, mfn(L4), &mut lock).unwrap();
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    assert_eq!(counts(&m, L4), (FrameType::L4, 1, 2));
    m.mmu().release_root(root, &mut lock).unwrap();
    assert_eq!(counts(&m, L4), (FrameType::None, 0, 1));
    assert_eq!(m.mmu().acquire_root(DOM1, mfn(20), &mut lock).map(|r| r.mfn()), Ok(mfn(20)), "an empty root is one");
    assert_eq!(m.mmu().acquire_root(DOM1, mfn(40), &mut lock).map(|r| r.mfn()), Err(MmuError::NotOwned));
}

#[test]
fn what_a_list_cut_off_is_ordinary_memory_when_its_error_is_told() {
    let (m, mut lock) = machine();
    (1..9).for_each(|i| m.poke(slot(L2, i), pte(30 + i as u64, P | RW | US)));
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
    update(&m, &mut lock, slot(L4, 0), Pte::EMPTY).unwrap();
    assert!(!lock.is_settled(), "there was no time for all of what was below");
    // Neither another's frame nor a request that cannot be read leads to what an earlier one has left.
    let refused = |lock: &mut Deferred| {
        let why = m.mmu().mmu_update(mfn(40).addr().raw() | 1, 0, Owners::both(DOM1), lock).unwrap_err();
        m.mmu().settle_after(why, lock)
    };
    let unreadable = |lock: &mut Deferred| m.mmu().settle_after(MmuError::BadArgument, lock);
    let mut rounds = 0;
    let why = loop {
        match if rounds % 2 == 0 { refused(&mut lock) } else { unreadable(&mut lock) } {
            MmuError::Preempted => assert!(!lock.is_settled(), "the guest is not kept without need"),
            why => break why,
        }
        rounds += 1;
        assert!(rounds < 100);
    };
    assert!(rounds != 0 && matches!(why, MmuError::NotOwned | MmuError::BadArgument));
    assert!(lock.is_settled());
    for table in [L3, L2, L1, 31, 38] {
        assert_eq!(counts(&m, table), (FrameType::None, 0, 1), "frame {table}");
    }
}

#[test]
fn a_few_frames_are_given_back_at_a_time() {
    const OWN: u64 = 1000;
    const STEPS: u32 = 4;
    let m = Machine::new(OWN + 100);
    m.populate(DOM1, 10, OWN);
    let (mut progress, mut lock) = (Relinquish::new(), Deferred::new());
    let mut freed = 0;
    while freed < OWN {
        m.fuel.store(STEPS.into(), std::sync::atomic::Ordering::SeqCst);
        let result = m.mmu().relinquish(DOM1, &mut progress, &mut lock);
        let now = m.freed.lock().unwrap().len() as u64;
        assert!(now - freed <= 16 * u64::from(STEPS), "{} frames at once", now - freed);
        assert!(result == Err(MmuError::Preempted) || now == OWN);
        freed = now;
    }
}

/// Frames that tables hold: the first, how many, the tables behind them, and the one that these are below.
const HELD: u64 = 10;
const NR_HELD: u64 = 4 * 512;
const TABLES: u64 = HELD + NR_HELD;
const ABOVE: u64 = TABLES + 4;

/// Domain 1 has four full L1 tables below an L2 table that is pinned.
fn held_by_tables() -> (Machine, Deferred) {
    let (m, mut lock) = (Machine::new(ABOVE + 1), Deferred::new());
    m.populate(DOM1, HELD, NR_HELD + 5);
    for (table, below) in (TABLES..ABOVE).enumerate() {
        m.poke(slot(ABOVE, table), pte(below, P | RW | US));
        for (index, held) in (HELD..TABLES).skip(table * 512).take(512).enumerate() {
            m.poke(slot(below, index), pte(held, P | RW | US));
        }
    }
    m.mmu().pin(DOM1, mfn(ABOVE), Level::L2, &mut lock).unwrap();
    (m, lock)
}

/// Calls `f` until it was not preempted. In each go frames go as few steps allow, or a table with all that it mapped.
fn a_table_at_a_time(m: &Machine, mut f: impl FnMut() -> Result<(), MmuError>) {
    const STEPS: u32 = 4;
    loop {
        let before = m.freed.lock().unwrap().len();
        m.fuel.store(STEPS.into(), std::sync::atomic::Ordering::SeqCst);
        let result = f();
        let went = m.freed.lock().unwrap().len() - before;
        assert!(went <= 16 * STEPS as usize + 512, "{went} frames at once");
        match result {
            Ok(()) => return,
            Err(why) => assert_eq!(why, MmuError::Preempted),
        }
    }
}

#[test]
fn frames_that_a_dying_domains_tables_hold_are_given_back_a_table_at_a_time() {
    let (m, mut lock) = held_by_tables();
    let mut progress = Relinquish::new();
    a_table_at_a_time(&m, || m.mmu().relinquish(DOM1, &mut progress, &mut lock));
    all_free(&m, HELD..ABOVE + 1);
    assert_eq!(m.freed.lock().unwrap().len() as u64, NR_HELD + 5);
}

#[test]
fn frames_that_were_given_up_before_go_with_their_tables_a_table_at_a_time() {
    let (m, mut lock) = held_by_tables();
    (HELD..TABLES).for_each(|n| m.mmu().give_up(DOM1, mfn(n)).unwrap());
    assert_eq!(*m.freed.lock().unwrap(), [], "they are mapped");
    let mut is_unpinned = false;
    a_table_at_a_time(&m, || {
        if is_unpinned {
            return m.mmu().drain(&mut lock);
        }
        is_unpinned = true;
        m.mmu().unpin(DOM1, mfn(ABOVE), &mut lock).and(Err(MmuError::Preempted))
    });
    all_free(&m, HELD..TABLES);
    assert_eq!(m.freed.lock().unwrap().len() as u64, NR_HELD);
}
