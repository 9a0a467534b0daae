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
