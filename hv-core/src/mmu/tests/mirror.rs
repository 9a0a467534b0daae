//! A root of the hypervisor's that shares tables of a domain.

use super::*;
use crate::mmu::mirror::{self, END_SLOT, FIRST_SLOT};

/// The pinned tree with its L3 table in slot 273 too, and a reference to its root.
fn rooted() -> (Machine, Deferred, RootRef) {
    let (m, mut lock) = machine();
    m.poke(slot(L4, 273), pte(L3, P | RW | US));
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    let root = m.mmu().acquire_root(DOM1, mfn(L4), &mut lock).unwrap();
    (m, lock, root)
}

#[test]
fn an_entry_is_the_supervisors_and_not_executable() {
    let (m, mut lock, root) = rooted();
    let shared = m.mmu().share(DOM1, &root, 17, &mut lock).unwrap().unwrap();
    assert_eq!(shared.mfn(), mfn(L3));
    assert_eq!(shared.entry(), pte(L3, P | RW | A | NX));
    assert_eq!(counts(&m, L3), (FrameType::L3, 3, 4));
    m.mmu().unshare(shared, &mut lock).unwrap();
    assert_eq!(counts(&m, L3), (FrameType::L3, 2, 3));
    m.mmu().release_root(root, &mut lock).unwrap();
}

#[test]
fn slots_without_a_counterpart_share_nothing() {
    let (m, mut lock, root) = rooted();
    for slot in [0, 1, FIRST_SLOT - 1, END_SLOT, 300, usize::MAX] {
        assert_eq!(m.mmu().share(DOM1, &root, slot, &mut lock).unwrap(), None, "slot {slot}");
    }
    for slot in (FIRST_SLOT..END_SLOT).filter(|slot| *slot != 17) {
        assert_eq!(m.mmu().share(DOM1, &root, slot, &mut lock).unwrap(), None, "slot {slot} is empty");
    }
    assert_eq!(counts(&m, L3), (FrameType::L3, 2, 3), "the domain's own");
    m.mmu().release_root(root, &mut lock).unwrap();
}

#[test]
fn what_is_shared_stays_a_table_when_the_domain_takes_it_out() {
    let (m, mut lock, root) = rooted();
    let shared = m.mmu().share(DOM1, &root, 17, &mut lock).unwrap().unwrap();
    update(&m, &mut lock, slot(L4, 273), Pte::EMPTY).unwrap();
    update(&m, &mut lock, slot(L4, 0), Pte::EMPTY).unwrap();
    assert_eq!(counts(&m, L3), (FrameType::L3, 1, 2), "the mirror's");
    assert!(m.mmu().get_writable(mfn(L3), DOM1).is_err());
    m.mmu().unshare(shared, &mut lock).unwrap();
    assert_eq!(counts(&m, L3), (FrameType::None, 0, 1));
    assert!(m.mmu().get_writable(mfn(L1), DOM1).is_ok(), "the tree is taken down");
    m.mmu().release_root(root, &mut lock).unwrap();
}

/// Two CPUs that fault in one empty slot: who comes second finds the entry there, and asks this.
#[test]
fn a_mirror_shows_what_all_entries_on_the_way_allow() {
    const MIRROR: u64 = 60;
    let (m, mut lock, root) = rooted();
    let at = |page: u64| VirtAddr::new(17 << 39 | page << 12).unwrap();
    let may = |m: &Machine, lock: &Deferred, page| {
        [false, true].map(|is_write| m.mmu().shows(mfn(MIRROR), at(page), is_write, lock.locked()))
    };
    assert_eq!(may(&m, &lock, 0), [false, false], "the slot is empty");
    let shared = m.mmu().share(DOM1, &root, 17, &mut lock).unwrap().unwrap();
    m.poke(slot(MIRROR, 17), shared.entry());
    assert_eq!(may(&m, &lock, 0), [true, true]);
    assert_eq!(may(&m, &lock, 1), [true, false], "a page that may be read");
    assert_eq!(may(&m, &lock, 2), [false, false], "no page");
    assert_eq!(may(&m, &lock, 512), [false, false], "no table");
    m.poke(slot(L3, 0), pte(L2, P | US));
    assert_eq!(may(&m, &lock, 0), [true, false], "tables take rights away");
    m.poke(slot(L3, 0), pte(L2, P | RW | US));
    m.mmu().unshare(shared, &mut lock).unwrap();
    m.mmu().release_root(root, &mut lock).unwrap();
}

/// What another vCPU began to take down comes first. Who shares or gives back loses nothing over it, and has it go on each time.
#[test]
fn sharing_waits_for_what_is_taken_down() {
    let (m, mut lock, root) = rooted();
    let refuel = |steps| m.fuel.store(steps, std::sync::atomic::Ordering::SeqCst);
    let begin = |lock: &mut Deferred| {
        refuel(-1);
        (0..4).for_each(|n| m.poke(slot(30, n), pte(31 + n as u64, P | RW | US)));
        m.mmu().pin(DOM1, mfn(30), Level::L2, lock).unwrap();
        refuel(0);
        let _ = m.mmu().unpin(DOM1, mfn(30), lock);
        assert!(!lock.is_empty(), "it is not all taken down");
    };
    begin(&mut lock);
    let mut rounds = 0;
    let mut shared = loop {
        refuel(0);
        match m.mmu().share(DOM1, &root, 17, &mut lock) {
            Ok(table) => break table.unwrap(),
            Err(error) => assert_eq!(error, MmuError::Preempted),
        }
        rounds += 1;
    };
    assert!((1..10).contains(&rounds), "{rounds}");
    assert_eq!((counts(&m, 30), counts(&m, L3)), ((FrameType::None, 0, 1), (FrameType::L3, 3, 4)));
    begin(&mut lock);
    rounds = 0;
    loop {
        refuel(0);
        let Err((table, error)) = m.mmu().unshare(shared, &mut lock) else { break };
        assert_eq!((error, table.mfn()), (MmuError::Preempted, mfn(L3)));
        shared = table;
        rounds += 1;
    }
    assert!((1..10).contains(&rounds), "{rounds}");
    assert_eq!((counts(&m, 30), counts(&m, L3)), ((FrameType::None, 0, 1), (FrameType::L3, 2, 3)));
    refuel(-1);
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
