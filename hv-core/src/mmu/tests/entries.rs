//! Changing entries: `mmu_update`, `update_va_mapping`, writable page tables, descriptors, grants.

use super::*;
use xen_abi::layout::DomId;

#[test]
fn a_supervisor_page_becomes_a_marked_user_page() {
    let (m, mut lock) = pinned();
    update(&m, &mut lock, slot(L1, 2), pte(22, P | RW | A | D | NX)).unwrap();
    assert_eq!(m.mmu().env.read(slot(L1, 2)), pte(22, P | RW | US | A | D | KERNEL | NX));
    update(&m, &mut lock, slot(L1, 3), pte(23, P | US | G)).unwrap();
    assert_eq!(m.mmu().env.read(slot(L1, 3)), pte(23, P | US));
    update(&m, &mut lock, slot(L2, 3), pte(30, P | RW)).unwrap();
    assert_eq!(m.mmu().env.read(slot(L2, 3)), pte(30, P | RW | US));
}

#[test]
fn entries_take_and_give_references() {
    let (m, mut lock) = pinned();
    update(&m, &mut lock, slot(L1, 0), pte(22, P | RW | US)).unwrap();
    assert_eq!((counts(&m, 20), counts(&m, 22)), ((FrameType::None, 0, 1), (FrameType::Writable, 1, 2)));
    update(&m, &mut lock, slot(L1, 0), pte(22, P | US)).unwrap();
    assert_eq!(counts(&m, 22), (FrameType::None, 0, 2), "read-only now");
    update(&m, &mut lock, slot(L1, 0), pte(22, P | RW | US)).unwrap();
    assert_eq!(counts(&m, 22), (FrameType::Writable, 1, 2), "writable again");
    update(&m, &mut lock, slot(L1, 0), Pte(0xdead_0000)).unwrap();
    assert_eq!(counts(&m, 22), (FrameType::None, 0, 1));
    assert_eq!(m.mmu().env.read(slot(L1, 0)), Pte(0xdead_0000), "a swap entry is the guest's own");
}

#[test]
fn write_access_to_a_table_is_refused() {
    let (m, mut lock) = pinned();
    for table in [L4, L3, L2, L1] {
        update(&m, &mut lock, slot(L1, 2), pte(table, P | US)).unwrap();
        let refused = update(&m, &mut lock, slot(L1, 2), pte(table, P | RW | US));
        assert_eq!(refused, Err(MmuError::Unmappable), "by changing the flag alone");
        update(&m, &mut lock, slot(L1, 2), Pte::EMPTY).unwrap();
        assert_eq!(update(&m, &mut lock, slot(L1, 2), pte(table, P | RW)), Err(MmuError::Unmappable));
    }
}

#[test]
fn superpages_never_pass() {
    let (m, mut lock) = pinned();
    for value in [pte(L1, P | RW | US | PSE), pte(30, P | PSE)] {
        assert_eq!(update(&m, &mut lock, slot(L2, 0), value), Err(MmuError::BadFlags));
        assert_eq!(update(&m, &mut lock, slot(L3, 0), value), Err(MmuError::BadFlags));
        assert_eq!(update(&m, &mut lock, slot(L4, 0), value), Err(MmuError::BadFlags));
    }
    assert!(m.writes.lock().unwrap().is_empty());
}

#[test]
fn hypervisor_slots_cannot_be_written() {
    let (m, mut lock) = pinned();
    for index in [256, 260, 271] {
        assert_eq!(update(&m, &mut lock, slot(L4, index), Pte::EMPTY), Err(MmuError::ReservedSlot));
    }
    update(&m, &mut lock, slot(L4, 255), Pte::EMPTY).unwrap();
    update(&m, &mut lock, slot(L4, 272), pte(L3, P)).unwrap();
    assert_eq!(counts(&m, L3), (FrameType::L3, 2, 3));
}

#[test]
fn upper_entries_hand_over() {
    let (m, mut lock) = pinned();
    m.poke(slot(30, 0), pte(24, P | RW));
    update(&m, &mut lock, slot(L2, 0), pte(30, P | RW)).unwrap();
    assert_eq!(counts(&m, L1), (FrameType::None, 0, 1));
    assert_eq!((counts(&m, 20), counts(&m, 24)), ((FrameType::None, 0, 1), (FrameType::Writable, 1, 2)));
    update(&m, &mut lock, slot(L2, 0), pte(30, P | RW | A | NX)).unwrap();
    assert_eq!(counts(&m, 30), (FrameType::L1, 1, 2), "harmless flags take no references");
}

#[test]
fn plain_memory_is_just_written() {
    let (m, mut lock) = pinned();
    update(&m, &mut lock, slot(30, 9), Pte(!0)).unwrap();
    assert_eq!(*m.writes.lock().unwrap(), [(slot(30, 9), Pte(!0))]);
    assert_eq!(counts(&m, 30), (FrameType::None, 0, 1));
    assert_eq!(update(&m, &mut lock, slot(40, 0), Pte(1)), Err(MmuError::NotOwned));
    assert_eq!(update(&m, &mut lock, slot(0, 0), Pte(1)), Err(MmuError::BadFrame));
    m.mmu().take_segdesc(DOM1, mfn(31)).unwrap();
    assert_eq!(update(&m, &mut lock, slot(31, 0), Pte(1)), Err(MmuError::WrongType));
}

#[test]
fn another_domains_table_is_out_of_reach() {
    let (m, _) = pinned();
    let mut lock2 = Deferred::new();
    for at in [slot(L1, 2), slot(L2, 2), slot(L4, 2)] {
        let refused = m.mmu().mmu_update(at.addr(), 0, Owners::both(DOM2), &mut lock2);
        assert_eq!(refused, Err(MmuError::NotOwned));
    }
    assert!(m.writes.lock().unwrap().is_empty());
}

#[test]
fn who_says_self_means_his_own_frames_whoever_has_the_table() {
    let own = 0x7ff0;
    let of = |word| ForeignDom::from_word(word, DOM0);
    assert_eq!(of(own), ForeignDom { table: None, frame: DOM0 });
    assert_eq!(of(2 << 16 | own), ForeignDom { table: Some(1), frame: DOM0 }, "domain 1 has the table");
    assert_eq!(of(2 << 16 | 1), ForeignDom { table: Some(1), frame: DOM1 });
    assert_eq!(of(0x7ff1), ForeignDom { table: None, frame: DomId::IO });
    assert_eq!(of(!0), ForeignDom { table: Some(0xfffe), frame: DomId(0xffff) });
    // So domain 0 maps a page of its own in a table of domain 1, and none of that.
    let (m, mut lock) = pinned();
    let foreign = of(2 << 16 | own);
    let who = Owners { table: DomId(foreign.table.unwrap()), frame: foreign.frame };
    let mut map = |n| m.mmu().mmu_update(slot(L1, 2).addr(), pte(n, P).0, who, &mut lock);
    assert_eq!(map(50), Ok(()));
    assert!(map(22).is_err());
}

#[test]
fn accessed_and_dirty_survive_where_asked() {
    let (m, mut lock) = pinned();
    m.poke(slot(L1, 0), pte(20, P | RW | US | A | D));
    let ptr = slot(L1, 0).addr();
    m.mmu().mmu_update(ptr | 2, pte(20, P | US).0, Owners::both(DOM1), &mut lock).unwrap();
    assert_eq!(m.mmu().env.read(slot(L1, 0)), pte(20, P | US | A | D));
    m.mmu().mmu_update(ptr, pte(20, P | US).0, Owners::both(DOM1), &mut lock).unwrap();
    assert_eq!(m.mmu().env.read(slot(L1, 0)), pte(20, P | US));
    assert_eq!(m.mmu().mmu_update(ptr | 5, 0, Owners::both(DOM1), &mut lock), Err(MmuError::UnknownCommand));
}

#[test]
fn machphys_update_sets_only_own_frames() {
    let (m, mut lock) = pinned();
    let owners = Owners::both(DOM1);
    m.mmu().mmu_update(mfn(20).addr().raw() | 1, 77, owners, &mut lock).unwrap();
    assert_eq!(m.m2p[20].load(std::sync::atomic::Ordering::SeqCst), 77);
    assert!(m.mmu().mmu_update(mfn(40).addr().raw() | 1, 77, owners, &mut lock).is_err());
    assert!(m.mmu().mmu_update(mfn(1 << 30).addr().raw() | 1, 77, owners, &mut lock).is_err());
}

#[test]
fn update_va_mapping_walks_the_given_root() {
    let (m, lock) = pinned();
    let owners = Owners::both(DOM1);
    let at = |va: u64| VirtAddr::new(va).unwrap();
    m.mmu().update_va_mapping(mfn(L4), at(0x3000), pte(23, P | RW | US), owners, lock.locked()).unwrap();
    assert_eq!(m.mmu().env.read(slot(L1, 3)), pte(23, P | RW | US));
    for (va, why) in [
        (0x20_0000, MmuError::NotMapped),
        (0x4000_0000, MmuError::NotMapped),
        (0x80_0000_0000, MmuError::NotMapped),
        (0xffff_8000_0000_0000, MmuError::ReservedSlot),
        (0xffff_87ff_ffff_f000, MmuError::ReservedSlot),
        (0xffff_8800_0000_0000, MmuError::NotMapped),
    ] {
        let refused = m.mmu().update_va_mapping(mfn(L4), at(va), Pte::EMPTY, owners, lock.locked());
        assert_eq!(refused, Err(why), "{va:#x}");
    }
}

#[test]
fn foreign_frames_are_mapped_under_their_owners_name() {
    let (m, mut lock) = machine();
    m.mmu().pin(DOM0, mfn(50), Level::L1, &mut lock).unwrap();
    let as_owner = |frame| Owners { table: DOM0, frame };
    let at = slot(50, 0).addr();
    assert_eq!(m.mmu().mmu_update(at, pte(20, P | RW).0, as_owner(DOM0), &mut lock), Err(MmuError::Unmappable));
    assert_eq!(m.mmu().mmu_update(at, pte(20, P | RW).0, as_owner(DOM2), &mut lock), Err(MmuError::Unmappable));
    m.mmu().mmu_update(at, pte(20, P | RW).0, as_owner(DOM1), &mut lock).unwrap();
    assert_eq!(counts(&m, 20), (FrameType::Writable, 1, 2));
    // Read-only and back: getting write access again takes the owner's name again.
    m.mmu().mmu_update(at, pte(20, P).0, as_owner(DOM0), &mut lock).unwrap();
    assert_eq!(counts(&m, 20), (FrameType::None, 0, 2));
    assert_eq!(m.mmu().mmu_update(at, pte(20, P | RW).0, as_owner(DOM0), &mut lock), Err(MmuError::Unmappable));
    // The page outlives its owner's use of it.
    m.mmu().give_up(DOM1, mfn(20)).unwrap();
    assert!(m.freed.lock().unwrap().is_empty());
    m.mmu().mmu_update(at, 0, as_owner(DOM0), &mut lock).unwrap();
    assert_eq!(*m.freed.lock().unwrap(), [(mfn(20), DOM1)]);
}

#[test]
fn io_memory_needs_the_right_and_loses_caching() {
    let (m, mut lock) = machine();
    m.mmu().pin(DOM0, mfn(50), Level::L1, &mut lock).unwrap();
    let own = Owners::both(DOM0);
    let cases = [
        (pte(0, P | RW), pte(0, P | RW | US | KERNEL | 0x18), "cached becomes uncached"),
        (pte(0, P | RW | 0x80), pte(0, P | RW | US | KERNEL | 0x80), "write-combining stays"),
        (pte(1, P | RW | 0x10), pte(1, P | US | KERNEL | 0x10), "a watched frame is read-only"),
        (pte(0xfee00, P | RW | 0x18), pte(0xfee00, P | RW | US | KERNEL | 0x18), "beyond all RAM"),
        (pte(51, P | RW | 0x18), pte(51, P | RW | US | KERNEL), "RAM stays cached"),
    ];
    assert_eq!(READ_ONLY_IO, mfn(1));
    for (value, stored, what) in cases {
        m.mmu().mmu_update(slot(50, 1).addr(), value.0, own, &mut lock).unwrap();
        assert_eq!(m.mmu().env.read(slot(50, 1)), stored, "{what}");
    }
    let io = Owners { table: DOM0, frame: xen_abi::layout::DomId::IO };
    m.mmu().mmu_update(slot(50, 1).addr(), pte(0, P).0, io, &mut lock).unwrap();
    let on_behalf = Owners { table: DOM0, frame: DOM1 };
    let refused = m.mmu().mmu_update(slot(50, 1).addr(), pte(0xfee00, P).0, on_behalf, &mut lock);
    assert_eq!(refused, Err(MmuError::IoDenied));
}

#[test]
fn writable_page_tables_commit_atomically() {
    let (m, mut lock) = pinned();
    let va = VirtAddr::new(0x2010).unwrap();
    assert_eq!(m.mmu().ptwr_target(mfn(L4), va, DOM1, lock.locked()), None, "nothing mapped there");
    update(&m, &mut lock, slot(L1, 2), pte(L1, P | US)).unwrap();
    let target = m.mmu().ptwr_target(mfn(L4), va, DOM1, lock.locked()).unwrap();
    assert_eq!(target, slot(L1, 2));
    assert_eq!(m.mmu().ptwr_target(mfn(L4), va, DOM2, lock.locked()), None);
    assert_eq!(m.mmu().ptwr_target(mfn(L4), VirtAddr::new(0).unwrap(), DOM1, lock.locked()), None, "mapped writable");
    let target = Slot::at(slot(L1, 1).addr());
    let old = m.mmu().ptwr_read(target, lock.locked());
    m.poke(target, old.with(x86::PteFlags::A));
    let raced = m.mmu().ptwr_commit(target, old, pte(24, P | RW | US), DOM1, lock.locked());
    assert_eq!(raced, Err(MmuError::Changed));
    assert_eq!(counts(&m, 24), (FrameType::None, 0, 1));
    let old = m.mmu().ptwr_read(target, lock.locked());
    m.mmu().ptwr_commit(target, old, pte(24, P | RW | US), DOM1, lock.locked()).unwrap();
    assert_eq!((counts(&m, 21), counts(&m, 24)), ((FrameType::None, 0, 1), (FrameType::Writable, 1, 2)));
    let refused = m.mmu().ptwr_commit(slot(L2, 0), pte(L1, P | RW | US), Pte::EMPTY, DOM1, lock.locked());
    assert_eq!(refused, Err(MmuError::WrongType), "only L1 tables");
}

#[test]
fn a_grant_mapping_is_destroyed_only_if_it_is_that_mapping() {
    let (m, mut lock) = pinned();
    let rw_user = x86::PteFlags::RW | x86::PteFlags::US;
    m.mmu().grant_map(slot(L1, 5), DOM1, DOM2, mfn(40), rw_user, lock.locked()).unwrap();
    assert_eq!(counts(&m, 40), (FrameType::Writable, 1, 2));
    let unmap =
        |at, frame, writable, lock: &Deferred| m.mmu().grant_unmap(at, DOM1, mfn(frame), writable, lock.locked());
    assert_eq!(unmap(slot(L1, 5), 41, true, &mut lock), Err(MmuError::Changed));
    assert_eq!(unmap(slot(L1, 5), 40, false, &mut lock), Err(MmuError::Changed));
    assert_eq!(unmap(slot(L2, 5), 40, true, &mut lock), Err(MmuError::WrongType));
    assert_eq!(unmap(slot(30, 5), 40, true, &mut lock), Err(MmuError::WrongType));
    unmap(slot(L1, 5), 40, true, &mut lock).unwrap();
    assert_eq!(counts(&m, 40), (FrameType::None, 0, 1));
    assert_eq!(unmap(slot(L1, 5), 40, true, &mut lock), Err(MmuError::Changed));
}

#[test]
fn descriptor_pages_hold_only_harmless_descriptors() {
    const CODE64: u64 = 0x00af_9b00_0000_ffff;
    const TSS: u64 = 0x0000_8900_0000_0067;
    let (m, _) = machine();
    m.poke(slot(30, 2), Pte(CODE64));
    m.poke(slot(30, 3), Pte(TSS & !(1 << 47)));
    let mut gdt = m.mmu().take_gdt(DOM1, &[mfn(30)]).unwrap();
    assert_eq!(m.mmu().env.read(slot(30, 2)), Pte(CODE64 | 3 << 45), "ring 3 now");
    assert!(m.mmu().get_writable(mfn(30), DOM1).is_err());
    assert_eq!(m.mmu().update_descriptor(DOM1, slot(30, 4).addr(), TSS), Err(MmuError::BadDescriptor));
    assert_eq!(m.mmu().update_descriptor(DOM1, slot(30, 4).addr() + 4, 0), Err(MmuError::BadArgument));
    assert_eq!(m.mmu().update_descriptor(DOM2, slot(30, 4).addr(), CODE64), Err(MmuError::NotOwned));
    m.mmu().update_descriptor(DOM1, slot(30, 4).addr(), CODE64).unwrap();
    assert_eq!(m.mmu().env.read(slot(30, 4)), Pte(CODE64 | 3 << 45));
    m.poke(slot(31, 511), Pte(TSS));
    assert_eq!(m.mmu().take_gdt(DOM1, &[mfn(30), mfn(31)]), Err(MmuError::BadDescriptor));
    assert_eq!(counts(&m, 30), (FrameType::SegDesc, 1, 2), "all or none");
    m.mmu().drop_gdt(&mut gdt);
    assert_eq!(counts(&m, 30), (FrameType::None, 0, 1));
    assert!(m.mmu().take_gdt(DOM1, &[mfn(30); 15]).is_err());
}

#[test]
fn an_entry_moves_where_a_grant_was_with_its_references() {
    let (m, mut lock) = pinned();
    let (grant, other) = (slot(L1, 5), slot(L1, 0));
    m.mmu().grant_map(grant, DOM1, DOM2, mfn(40), x86::PteFlags::from_bits_retain(RW | US), lock.locked()).unwrap();
    let moved = m.read(other);
    let before = counts(&m, moved.mfn().raw());
    let replace = |slot, with, lock: &Deferred| m.mmu().grant_replace(slot, with, DOM1, mfn(40), true, lock.locked());
    assert_eq!(replace(grant, grant, &mut lock), Err(MmuError::Changed), "by itself");
    assert_eq!(replace(other, grant, &mut lock), Err(MmuError::Changed), "no grant is there");
    assert_eq!(replace(grant, slot(40, 0), &mut lock), Err(MmuError::WrongType), "not from a page table");
    assert_eq!((m.read(grant).mfn(), m.read(other)), (mfn(40), moved), "nothing has changed");
    replace(grant, other, &mut lock).unwrap();
    assert_eq!((m.read(grant), m.read(other)), (moved, Pte::EMPTY));
    assert_eq!(counts(&m, moved.mfn().raw()), before);
    assert_eq!(counts(&m, 40), (FrameType::None, 0, 1), "the grant's reference is gone");
}
