//! Promotion, demotion, pins, preemption.

use super::*;

#[test]
fn pinning_takes_references_down_the_tree() {
    let (m, _) = pinned();
    assert!(m.at(mfn(L4)).usage().is_pinned());
    assert_eq!(counts(&m, L4), (FrameType::L4, 1, 2));
    assert_eq!(counts(&m, L3), (FrameType::L3, 1, 2));
    assert_eq!(counts(&m, L2), (FrameType::L2, 1, 2));
    assert_eq!(counts(&m, L1), (FrameType::L1, 1, 2));
    assert_eq!(counts(&m, 20), (FrameType::Writable, 1, 2));
    assert_eq!(counts(&m, 21), (FrameType::None, 0, 2));
    assert_eq!(m.mmu().env.read(slot(L4, 256)), HYPERVISOR_ENTRY);
    assert_eq!(m.mmu().env.read(slot(L4, 271)), HYPERVISOR_ENTRY);
    assert_eq!(m.mmu().env.read(slot(L4, 272)), Pte::EMPTY);
}

#[test]
fn unpinning_gives_all_of_them_back() {
    let (m, mut lock) = pinned();
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    for n in [L4, L3, L2, L1, 20, 21] {
        assert_eq!(counts(&m, n), (FrameType::None, 0, 1), "frame {n}");
    }
    assert_eq!(m.mmu().unpin(DOM1, mfn(L4), &mut lock), Err(MmuError::Pinning));
}

#[test]
fn a_table_is_pinned_once() {
    let (m, mut lock) = pinned();
    assert_eq!(m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock), Err(MmuError::Pinning));
    assert_eq!(counts(&m, L4), (FrameType::L4, 1, 2));
    m.mmu().pin(DOM1, mfn(L1), Level::L1, &mut lock).unwrap();
    assert_eq!(counts(&m, L1), (FrameType::L1, 2, 3));
}

#[test]
fn a_failed_promotion_leaves_no_trace() {
    let refused = [
        (slot(L4, 1), pte(L4, P | US), "an L4 that refers to itself"),
        (slot(L4, 1), pte(30, P | US | PSE), "a superpage flag in L4"),
        (slot(L4, 1), pte(30, P | US | G), "a global flag in L4"),
        (slot(L4, 511), pte(40, P | US), "a table of another domain"),
        (slot(L3, 7), pte(30, P | PSE), "a 1 GiB page"),
        (slot(L2, 7), pte(30, P | RW | PSE), "a 2 MiB page"),
        (slot(L2, 7), pte(L3, P), "a table of the wrong level"),
        (slot(L2, 7), pte(63, P), "a frame that nobody owns"),
        (slot(L2, 7), pte(1 << 39, P), "a frame far beyond memory"),
        (slot(L1, 7), pte(40, P), "a page of another domain"),
        (slot(L1, 7), pte(L1, P | RW), "a writable mapping of the table itself"),
        (slot(L1, 7), pte(L4, P | RW), "a writable mapping of its root"),
        (slot(L1, 7), pte(22, P | 0x10), "a cache attribute without a device"),
        (slot(L1, 7), pte(0, P), "I/O memory without the right"),
        (slot(L1, 511), pte(0xff_ffff_ffff, P), "the number that means no frame"),
    ];
    for (at, value, what) in refused {
        let (m, mut lock) = machine();
        m.poke(at, value);
        assert!(m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).is_err(), "{what} was accepted");
        assert!(lock.is_empty());
        for n in (10..40).chain(40..60) {
            assert_eq!(counts(&m, n), (FrameType::None, 0, 1), "{what}: frame {n}");
        }
    }
}

#[test]
fn entries_that_are_not_present_may_hold_anything() {
    let (m, mut lock) = machine();
    for (table, index) in [(L4, 5), (L3, 5), (L2, 5), (L1, 5)] {
        m.poke(slot(table, index), Pte(!1));
    }
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    assert_eq!(m.mmu().env.read(slot(L1, 5)), Pte(!1), "left as it was");
}

#[test]
fn hypervisor_slots_are_not_looked_at() {
    let (m, mut lock) = machine();
    m.poke(slot(L4, 260), pte(L4, P | RW | PSE));
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    assert_eq!(counts(&m, L4), (FrameType::L4, 1, 2));
    assert_eq!(m.mmu().env.read(slot(L4, 260)), HYPERVISOR_ENTRY);
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    assert_eq!(counts(&m, L4), (FrameType::None, 0, 1));
}

#[test]
fn another_domains_table_cannot_be_pinned() {
    let (m, mut lock) = machine();
    assert_eq!(m.mmu().pin(DOM2, mfn(L4), Level::L4, &mut lock), Err(MmuError::NotOwned));
    assert_eq!(m.mmu().pin(DOM1, mfn(0), Level::L1, &mut lock), Err(MmuError::BadFrame));
    assert_eq!(m.mmu().pin(DOM1, mfn(1 << 40), Level::L1, &mut lock), Err(MmuError::BadFrame));
}

#[test]
fn promotion_flushes_by_what_the_page_was() {
    let (m, mut lock) = machine();
    let page = m.mmu().get_writable(mfn(L1), DOM1).unwrap();
    assert_eq!(m.mmu().pin(DOM1, mfn(L1), Level::L1, &mut lock), Err(MmuError::WrongType));
    drop(page);
    m.mmu().pin(DOM1, mfn(L1), Level::L1, &mut lock).unwrap();
    assert_eq!(m.flushes(), [0, 1, 0]);
    m.mmu().unpin(DOM1, mfn(L1), &mut lock).unwrap();
    m.mmu().pin(DOM1, mfn(L1), Level::L1, &mut lock).unwrap();
    assert_eq!(m.flushes(), [0, 1, 0], "the same type again needs none");
    m.mmu().unpin(DOM1, mfn(L1), &mut lock).unwrap();
    m.flush(DOM1);
    drop(m.mmu().get_writable(mfn(L1), DOM1).unwrap());
    assert_eq!(m.flushes(), [0, 2, 0], "flushed since: none either");
}

#[test]
fn a_domain_that_pins_and_unpins_disturbs_no_cpu_of_others() {
    let (m, mut lock) = machine();
    for _ in 0..10 {
        drop(m.mmu().get_writable(mfn(L1), DOM1).unwrap());
        m.mmu().pin(DOM1, mfn(L1), Level::L1, &mut lock).unwrap();
        m.mmu().unpin(DOM1, mfn(L1), &mut lock).unwrap();
        let gdt = m.mmu().take_gdt(DOM1, &[mfn(30)]);
        m.mmu().drop_gdt(&mut gdt.unwrap());
        drop(m.mmu().get_writable(mfn(30), DOM1).unwrap());
    }
    let [of_0, of_1, of_2] = m.flushes();
    assert_eq!((of_0, of_2), (0, 0));
    assert!(of_1 >= 20);
}

/// Domain 0 maps a page of domain 1's, and forgets it. Its CPUs may still write to the page, until they have flushed.
#[test]
fn a_page_that_another_domain_could_write_to_is_a_table_when_its_cpus_have_flushed_too() {
    let (m, mut lock) = machine();
    m.poke(slot(50, 0), Pte::EMPTY);
    let own = &mut Deferred::new();
    m.mmu().pin(DOM0, mfn(50), Level::L1, own).unwrap();
    let who = Owners { table: DOM0, frame: DOM1 };
    m.mmu().mmu_update(slot(50, 0).addr(), pte(30, P | RW).0, who, own).unwrap();
    m.mmu().mmu_update(slot(50, 0).addr(), 0, who, own).unwrap();
    // The same use again, by the owner: nothing is flushed, and nothing forgotten.
    drop(m.mmu().get_writable(mfn(30), DOM1).unwrap());
    m.mmu().pin(DOM1, mfn(30), Level::L1, &mut lock).unwrap();
    assert_eq!(m.flushes()[0], 1);
    // After that it is a page as any other.
    m.mmu().unpin(DOM1, mfn(30), &mut lock).unwrap();
    drop(m.mmu().get_writable(mfn(30), DOM1).unwrap());
    m.mmu().pin(DOM1, mfn(30), Level::L1, &mut lock).unwrap();
    assert_eq!(m.flushes()[0], 1);
}

#[test]
fn a_preempted_pin_goes_on_where_it_stopped() {
    let (m, mut lock) = machine();
    for index in 1..6 {
        m.poke(slot(L2, index), pte(29 + index as u64, P | RW | US));
    }
    let mut rounds = 0;
    loop {
        m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
        match m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock) {
            Ok(()) => break,
            Err(e) => assert_eq!(e, MmuError::Preempted),
        }
        rounds += 1;
        assert_eq!(m.at(mfn(L4)).usage().state(), UsageState::Partial);
    }
    assert_eq!(rounds, 5, "one entry of the L2 table at a time");
    assert!(lock.is_empty());
    assert_eq!(counts(&m, L2), (FrameType::L2, 1, 2));
    assert_eq!(counts(&m, 34), (FrameType::L1, 1, 2));
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    while m.mmu().drain(&mut lock).is_err() {}
    for n in 10..40 {
        assert_eq!(counts(&m, n), (FrameType::None, 0, 1), "frame {n}");
    }
}

#[test]
fn an_abandoned_pin_is_taken_back() {
    let (m, mut lock) = machine();
    m.poke(slot(L2, 1), pte(30, P));
    m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock), Err(MmuError::Preempted));
    assert_eq!(m.mmu().pin(DOM1, mfn(L2), Level::L2, &mut lock), Err(MmuError::Contended));
    assert_eq!(m.mmu().pin(DOM1, mfn(L4), Level::L3, &mut lock), Err(MmuError::WrongType), "resumed as something else");
    while m.mmu().abandon(&mut lock).is_err() {}
    assert!(lock.is_empty());
    for n in 10..40 {
        assert_eq!(counts(&m, n), (FrameType::None, 0, 1), "frame {n}");
    }
}

#[test]
fn half_done_tables_cannot_be_changed_or_loaded() {
    let (m, mut lock) = machine();
    m.poke(slot(L2, 1), pte(30, P));
    m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock), Err(MmuError::Preempted));
    assert_eq!(update(&m, &mut lock, slot(L4, 2), pte(30, P)), Err(MmuError::WrongType));
    assert_eq!(update(&m, &mut lock, slot(L2, 2), pte(30, P)), Err(MmuError::WrongType));
    assert!(m.mmu().get_writable(mfn(L2), DOM1).is_err());
}

#[test]
fn an_entry_whose_table_took_two_attempts_is_adjusted_too() {
    let (m, mut lock) = machine();
    m.poke(slot(L3, 0), pte(L2, P | RW));
    m.poke(slot(L2, 1), pte(30, P));
    m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock), Err(MmuError::Preempted));
    m.fuel.store(-1, std::sync::atomic::Ordering::SeqCst);
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    assert_eq!(m.mmu().env.read(slot(L3, 0)), pte(L2, P | RW | US));
}

#[test]
fn a_table_that_is_on_its_way_down_is_not_updated() {
    let (m, mut lock) = machine();
    // An L3 table with two L2 tables; unpinning it is preempted after the second, so the first is still a table.
    m.poke(slot(L3, 1), pte(30, P));
    m.mmu().pin(DOM1, mfn(L3), Level::L3, &mut lock).unwrap();
    m.fuel.store(0, std::sync::atomic::Ordering::SeqCst);
    m.mmu().unpin(DOM1, mfn(L3), &mut lock).unwrap();
    assert_eq!(counts(&m, L2), (FrameType::L2, 1, 2));
    m.fuel.store(-1, std::sync::atomic::Ordering::SeqCst);
    update(&m, &mut lock, slot(L2, 0), Pte::EMPTY).unwrap();
    for n in 10..40 {
        assert_eq!(counts(&m, n), (FrameType::None, 0, 1), "frame {n}");
    }
}

#[test]
fn who_expects_a_valid_table_validates_none() {
    let (m, mut lock) = pinned();
    let take = |table, dom| m.mmu().take_valid_table(m.at(mfn(table)), mfn(table), FrameType::L1, dom);
    assert_eq!(take(L1, DOM2), Err(MmuError::NotOwned));
    assert_eq!(take(L2, DOM1), Ok(false), "a table, and no such one");
    assert_eq!(counts(&m, L1), (FrameType::L1, 1, 2));
    assert_eq!(take(L1, DOM1), Ok(true));
    assert_eq!(counts(&m, L1), (FrameType::L1, 2, 3));
    m.mmu().drop_table(mfn(L1), &mut lock);
    // At the look it was another domain's, which unpinned it and gave it away.
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    m.writes.lock().unwrap().clear();
    assert_eq!(take(L1, DOM1), Ok(false));
    assert_eq!(counts(&m, L1), (FrameType::None, 0, 1), "it is ordinary memory still");
    assert_eq!(*m.writes.lock().unwrap(), [], "nobody has looked at its entries");
}

#[test]
fn each_table_is_a_step_whoever_asks_for_it() {
    let (m, mut lock) = machine();
    let steps = || m.nr_steps.swap(0, std::sync::atomic::Ordering::SeqCst);
    m.mmu().pin(DOM1, mfn(30), Level::L1, &mut lock).unwrap();
    assert_eq!(steps(), 1, "one that has no table below it");
    m.mmu().unpin(DOM1, mfn(30), &mut lock).unwrap();
    assert_eq!(steps(), 1, "and is none any more");
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    assert_eq!(steps(), 4, "one of each level");
    m.mmu().pin(DOM1, mfn(L3), Level::L3, &mut lock).unwrap();
    update(&m, &mut lock, slot(L1, 5), pte(22, P | RW | US)).unwrap();
    assert_eq!(steps(), 0, "a table that is one already, and a page");
    update(&m, &mut lock, slot(L2, 1), pte(30, P)).unwrap();
    update(&m, &mut lock, slot(L2, 2), pte(30, P)).unwrap();
    assert_eq!(steps(), 1, "an entry that makes a table of a page");
    update(&m, &mut lock, slot(L2, 1), Pte::EMPTY).unwrap();
    assert_eq!(steps(), 0);
    update(&m, &mut lock, slot(L2, 2), pte(31, P)).unwrap();
    assert_eq!(steps(), 2, "one comes and one goes");
    m.mmu().unpin(DOM1, mfn(L4), &mut lock).unwrap();
    m.mmu().unpin(DOM1, mfn(L3), &mut lock).unwrap();
    assert_eq!(steps(), 5);
    m.mmu().take_segdesc(DOM1, mfn(30)).unwrap();
    m.mmu().take_segdesc(DOM1, mfn(30)).unwrap();
    assert_eq!(steps(), 1, "descriptors, which are looked at once");
    (0..2).for_each(|_| m.mmu().drop_segdesc(mfn(30)));
    // One that is refused in the end was read, too, and what it had taken goes back.
    m.poke(slot(30, 511), pte(40, P));
    assert_eq!(m.mmu().pin(DOM1, mfn(30), Level::L1, &mut lock), Err(MmuError::Unmappable));
    assert_eq!(steps(), 2);
}
