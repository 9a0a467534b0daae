//! Copies: each content is kept once, and what is copied is what comes back.

use super::*;

#[test]
fn what_is_copied_again_is_what_it_is_then() {
    let mut world = World::new();
    let (was_zero, was_not) = (Slot::new(Mfn::new(FIRST + 18), 3), Slot::new(Mfn::new(FIRST + 2), 500));
    let mut memory = world.keep(-1).unwrap();
    let copies = memory.counts().copies;
    for slot in [was_zero, was_not] {
        world.machine.poke(slot, Pte(77));
        world.machine.mmu().keep_again(slot.page(), &mut memory, &mut world.copies).unwrap();
    }
    world.machine.mmu().keep_again(Mfn::new(FRAMES), &mut memory, &mut world.copies).unwrap();
    assert_eq!(memory.counts().copies, copies + 1);
    for slot in [was_zero, was_not] {
        world.machine.poke(slot, Pte(78));
    }
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert_eq!([was_zero, was_not].map(|slot| world.machine.read(slot).0), [77, 77]);
    world.end(memory);
}

#[test]
fn what_is_the_same_is_kept_once() {
    let mut world = World::new();
    // Pages of data: three hold the same, and one holds something else.
    let set = |world: &World, n: u64, word| world.machine.poke(Slot::new(Mfn::new(FIRST + n), 7), Pte(word));
    for n in [14, 16, 19] {
        set(&world, n, 6);
    }
    set(&world, 17, 8);
    let before = world.machine.spare.lock().unwrap().len();
    let one = world.keep(-1).unwrap();
    let taken = before - world.machine.spare.lock().unwrap().len();
    assert_eq!((one.counts().found, taken as u64), (2, one.counts().copies - 2));
    // As if another domain held the same.
    let mut other = Memory { next: Mfn::new(FIRST + 14).index(), ..Memory::new(Form::Whole) };
    for n in 14..OWN {
        world.machine.at(Mfn::new(FIRST + n)).forget();
    }
    world.machine.mmu().keep_memory(DOM1, &mut other, &mut world.copies, &mut world.lock).unwrap();
    assert_eq!((other.counts().copies, other.counts().found), (4, 4));
    assert_eq!(before - world.machine.spare.lock().unwrap().len(), taken, "the other one takes nothing");
    // What is written again, and who goes, leaves the others theirs.
    set(&world, 14, 2);
    world.machine.mmu().keep_again(Mfn::new(FIRST + 14), &mut other, &mut world.copies).unwrap();
    while !other.release(&mut world.copies, &world.machine, 1) {}
    for n in 0..OWN {
        world.machine.at(Mfn::new(FIRST + n)).note(DOM1);
    }
    (14..OWN).for_each(|n| set(&world, n, 4));
    world.go_back(&one, &[], &[], -1).unwrap();
    let seen = [14, 15, 16, 17, 19].map(|n| world.machine.read(Slot::new(Mfn::new(FIRST + n), 7)).0);
    assert_eq!(seen, [6, 0, 6, 8, 6]);
    world.end(one);
}

/// Whoever makes pages with the same sum does not get another's page back.
#[test]
fn pages_with_the_same_sum_are_not_the_same() {
    let mut world = World::new();
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let last = |first: u64| {
        // Words between are zero.
        let state = (1..ENTRIES - 1).fold(first.wrapping_mul(SPREAD), |sum, _| sum.rotate_left(5).wrapping_mul(SPREAD));
        state.rotate_left(5)
    };
    let pages = [14, 15].map(|n| Mfn::new(FIRST + n));
    for (page, first) in pages.into_iter().zip([2, 4]) {
        world.machine.poke(Slot::new(page, 0), Pte(first));
        world.machine.poke(Slot::new(page, ENTRIES - 1), Pte(last(first)));
    }
    let memory = world.keep(-1).unwrap();
    assert_eq!(memory.counts().found, 0);
    world.machine.poke(Slot::new(pages[0], 0), Pte(66));
    world.machine.poke(Slot::new(pages[1], 0), Pte(66));
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert_eq!(pages.map(|page| world.machine.read(Slot::new(page, 0)).0), [2, 4]);
    world.end(memory);
}

/// Which of the two comes first decides what a copy is; either finds it, and both get their pages back.
#[test]
fn what_is_the_same_is_kept_once_whether_it_is_packed_or_not() {
    for (first, second) in [(Form::Packed, Form::Whole), (Form::Whole, Form::Packed)] {
        let mut world = World::new();
        let set = |world: &World, n: u64, word| world.machine.poke(Slot::new(Mfn::new(FIRST + n), 7), Pte(word));
        (14..OWN).for_each(|n| set(&world, n, 2 * n));
        let before = world.machine.spare.lock().unwrap().len();
        let taken = |world: &World| (before - world.machine.spare.lock().unwrap().len()) as u64;
        let one = world.keep_as(first, -1).unwrap();
        let then = world.seen();
        let counts = one.counts();
        if first == Form::Packed {
            assert_eq!((counts.packed, world.copies.nr_packs()), (counts.copies, 1), "all of them shrink");
            assert_eq!((counts.packed_bytes, taken(&world)), (64 * counts.copies, 1));
        } else {
            assert_eq!((counts.packed, counts.packed_bytes, taken(&world)), (0, 0, counts.copies));
        }
        (0..OWN).for_each(|n| assert!(!world.machine.at(Mfn::new(FIRST + n)).forget()));
        let was_taken = taken(&world);
        let mut other = world.keep_as(second, -1).unwrap();
        let found = Counts { found: counts.copies, packed: 0, packed_bytes: 0, ..counts };
        assert_eq!((other.counts(), taken(&world)), (found, was_taken));
        // What is copied again is neither.
        set(&world, 14, 3);
        world.machine.mmu().keep_again(Mfn::new(FIRST + 14), &mut other, &mut world.copies).unwrap();
        assert_eq!(other.counts(), Counts { found: found.found - 1, ..found });
        (14..OWN).for_each(|n| set(&world, n, 1));
        world.go_back(&other, &[], &[], -1).unwrap();
        assert_eq!(world.machine.read(Slot::new(Mfn::new(FIRST + 14), 7)), Pte(3));
        set(&world, 14, 28);
        assert_eq!(world.seen(), then);
        // Who made them goes first.
        let mut one = one;
        while !one.release(&mut world.copies, &world.machine, 1) {}
        (0..OWN).for_each(|n| assert!(world.machine.at(Mfn::new(FIRST + n)).note(DOM1)));
        (14..OWN).for_each(|n| set(&world, n, 1));
        world.go_back(&other, &[], &[], -1).unwrap();
        set(&world, 14, 28);
        assert_eq!(world.seen(), then);
        world.end(other);
    }
}

/// Damaged memory of the hypervisor's is no reason for a panic, nor for letting the domain run with something else.
#[test]
fn what_cannot_be_unpacked_ends_the_way_back() {
    let mut world = World::new();
    world.machine.poke(Slot::new(Mfn::new(FIRST + 14), 7), Pte(2));
    let memory = world.keep_as(Form::Packed, -1).unwrap();
    let packed = world.machine.spare.lock().unwrap().len() as u64;
    let frame = Mfn::new(FIRST + OWN + MORE + packed);
    for index in 0..ENTRIES {
        let slot = Slot::new(frame, index);
        world.machine.poke(slot, Pte(!world.machine.read(slot).0));
    }
    let first = (0..OWN)
        .map(|n| FIRST + n)
        .find(|n| (0..ENTRIES).any(|index| world.machine.read(Slot::new(Mfn::new(*n), index)).0 != 0));
    assert_eq!(world.go_back(&memory, &[], &[], -1), Err(Refusal::Copy(first.unwrap()).into()));
    world.end(memory);
}
