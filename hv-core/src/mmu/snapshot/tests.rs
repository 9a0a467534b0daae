//! A random kernel: whatever it does after its memory was noted, it gets back what it had, or nothing changes.

use super::*;
use crate::frame::Gone;
use crate::mmu::fake::{Machine, DOM0, DOM1, IO_FRAMES};
use crate::mmu::{Audit, GdtFrames, Owners, PtMem, RootRef, Table};
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::vec;
use std::vec::Vec;
use x86::{Level, Pte, PteFlags};

mod same;
mod steps;
mod world;

use world::{grow, World};

/// Frames of the domain: two L4 tables, two L3, three L2, four L1 by inclination, and data.
const OWN: u64 = 20;
const FIRST: u64 = IO_FRAMES;
/// Frames that the allocator has for it, behind those.
const MORE: u64 = 6;
/// Frames for copies.
const SPARE: u64 = OWN;
const FRAMES: u64 = FIRST + OWN + MORE + SPARE;
const LEVELS: [Level; 4] = [Level::L1, Level::L2, Level::L3, Level::L4];
const INDICES: [usize; 6] = [0, 1, 2, 255, 300, 511];

/// What the random kernel's case is made of.
fn steps(most: usize) -> impl Strategy<Value = Vec<[u8; 5]>> {
    proptest::collection::vec(any::<[u8; 5]>(), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]
    #[test]
    fn a_kernel_gets_its_memory_back(before in steps(120), lives in proptest::collection::vec(steps(120), 1..4), fuel in 0i64..3, is_packed: bool,
        others in proptest::collection::vec(0u64..OWN, 0..3)) {
        let mut world = World::new();
        // What is noted is no more and no less than what it has.
        before.into_iter().filter(|[op, ..]| !(110..=117).contains(&(op & 0x7f))).for_each(|op| world.step(op));
        world.settle();
        world.audit();
        let then = world.seen();
        let form = if is_packed { Form::Packed } else { Form::Whole };
        let memory = world.keep_as(form, fuel).expect("nothing is in the way");
        prop_assert_eq!(&world.seen(), &then, "noting it changes nothing");
        prop_assert_eq!(memory.nr_frames(), OWN);
        let roots: Vec<Mfn> = world.roots.iter().map(RootRef::mfn).collect();
        let gdts: Vec<Mfn> = world.gdts.iter().map(|gdt| gdt.frames()[0]).collect();
        for life in lives {
            life.into_iter().for_each(|op| world.step(op));
            world.audit();
            world.check(&memory, fuel).expect("the kernel alone cannot keep its memory from going back");
            world.go_back(&memory, &roots, &gdts, fuel).expect("the decision was that it can");
            prop_assert_eq!(&world.seen(), &then);
            prop_assert!(world.has_its_own());
            world.audit();
        }
        // What others hold for writing keeps it, if that was a table or held descriptors; else it does not.
        for n in others {
            let mfn = Mfn::new(FIRST + n);
            let was = then.frames[usize::try_from(n).unwrap()].1;
            // The kernel lets it go, if it can, and domain 0 takes hold of it.
            world.settle();
            let mut next = 0;
            for root in core::mem::take(&mut world.roots) {
                world.machine.mmu().release_root(root, &mut world.lock).unwrap();
            }
            for mut gdt in core::mem::take(&mut world.gdts) {
                world.machine.mmu().drop_gdt(&mut gdt);
            }
            world.machine.mmu().take_down(DOM1, &mut next, &mut world.lock).unwrap();
            world.held.push(world.machine.mmu().get_writable(mfn, DOM1).expect("nothing is a table now").keep());
            let now = world.seen();
            let may_be = !matches!(was, FrameType::None | FrameType::Writable);
            let held: Vec<u64> = world.held.iter().map(|mfn| mfn.raw()).filter(|n| {
                !matches!(then.frames[usize::try_from(n - FIRST).unwrap()].1, FrameType::None | FrameType::Writable)
            }).collect();
            match world.check(&memory, fuel) {
                Ok(()) => prop_assert!(!may_be && held.is_empty(), "{:?} is held, and was {:?}", mfn, was),
                Err(why) => prop_assert!(matches!(why, Stop::Refused(Refusal::Held(n)) if held.contains(&n)), "{:?}", why),
            }
            prop_assert_eq!(&world.seen(), &now, "deciding changes nothing");
            let result = world.go_back(&memory, &roots, &gdts, fuel);
            prop_assert_eq!(result.is_ok(), held.is_empty(), "who did not ask is stopped on the way: {:?}", result);
            world.audit();
            if held.is_empty() {
                prop_assert_eq!(&world.seen().contents, &then.contents);
            }
        }
        world.end(memory);
    }
}

/// What it has given up and exchanged comes back, and what it got goes, whatever it was used for.
#[test]
fn frames_that_left_come_back_and_those_that_came_go() {
    let mut world = World::new();
    world.machine.mmu().pin(DOM1, Mfn::new(FIRST), Level::L4, &mut world.lock).unwrap();
    let then = world.seen();
    let memory = world.keep(-1).unwrap();
    let [given, exchanged, data] = [15, 16, 17].map(|n| Mfn::new(FIRST + n));
    drop(world.machine.mmu().get_writable(given, DOM1).unwrap());
    world.machine.mmu().give_up(DOM1, given).unwrap();
    world.machine.mmu().steal(DOM1, exchanged).unwrap();
    let gone = world.machine.mmu().let_go(exchanged);
    assert_eq!(gone, Gone::Away);
    world.machine.frame_gone(exchanged, gone);
    assert_eq!(memory.nr_away(&world.machine), 2);
    let [table, page] = [(), ()].map(|()| grow(&world.machine).unwrap());
    assert!(![table, page].contains(&given) && ![table, page].contains(&exchanged), "nobody else gets them");
    // A new table maps a new page, and one of then for writing.
    for (index, to) in [(1, page), (2, data)] {
        world.machine.poke(Slot::new(table, index), Pte(to.raw() << 12 | 7));
    }
    world.machine.mmu().pin(DOM1, table, Level::L1, &mut world.lock).unwrap();
    world.audit();
    world.check(&memory, -1).unwrap();
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert_eq!(world.seen(), then);
    assert!(world.has_its_own());
    assert_eq!(*world.machine.returned.lock().unwrap(), [(given, DOM1), (exchanged, DOM1)]);
    world.end(memory);
}

/// The new tables are the domain's own, too: what they hold is no reason not to go back.
#[test]
fn what_a_new_table_maps_is_held_by_nobody_else() {
    let mut world = World::new();
    let was_table = Mfn::new(FIRST + 7);
    world.machine.mmu().pin(DOM1, was_table, Level::L1, &mut world.lock).unwrap();
    let memory = world.keep(-1).unwrap();
    world.machine.mmu().unpin(DOM1, was_table, &mut world.lock).unwrap();
    let table = grow(&world.machine).unwrap();
    world.machine.poke(Slot::new(table, 0), Pte(was_table.raw() << 12 | 7));
    world.machine.mmu().pin(DOM1, table, Level::L1, &mut world.lock).unwrap();
    // Given up, and a table all the same.
    world.machine.mmu().give_up(DOM1, table).unwrap();
    world.check(&memory, -1).unwrap();
    world.go_back(&memory, &[], &[], -1).unwrap();
    world.end(memory);
}

#[test]
fn what_others_still_map_is_taken_back_from_its_way_out() {
    let mut world = World::new();
    let memory = world.keep(-1).unwrap();
    let given = Mfn::new(FIRST + 15);
    let page = world.machine.mmu().get_page(given, DOM1).unwrap().keep();
    world.machine.mmu().give_up(DOM1, given).unwrap();
    assert!(world.machine.freed.lock().unwrap().is_empty(), "it is in the account as long as somebody maps it");
    world.check(&memory, -1).unwrap();
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert!(world.machine.returned.lock().unwrap().is_empty(), "it has not been out of it");
    drop(world.machine.mmu().page_from_kept(page));
    assert!(world.has_its_own());
    world.end(memory);
}

#[test]
fn frames_that_are_away_are_free_when_the_snapshot_is_dropped() {
    let mut world = World::new();
    let mut memory = world.keep(-1).unwrap();
    let [away, later, stolen, kept] = [15, 16, 17, 18].map(|n| Mfn::new(FIRST + n));
    world.machine.mmu().give_up(DOM1, away).unwrap();
    world.machine.mmu().steal(DOM1, stolen).unwrap();
    world.machine.mmu().steal(DOM1, kept).unwrap();
    while !memory.release(&mut world.copies, &world.machine, 1) {}
    assert_eq!(world.machine.at(away).count(), CountWord::FREE);
    world.machine.mmu().give_up(DOM1, later).unwrap();
    assert_eq!(world.machine.at(later).count(), CountWord::FREE);
    // Between a theft and its end.
    assert_eq!(world.machine.mmu().let_go(stolen), Gone::Free);
    world.machine.mmu().unsteal(DOM1, kept);
    world.end(memory);
}

/// It cannot come about, but is no reason to believe it: another's frame is not taken.
#[test]
fn a_frame_of_anothers_is_named() {
    let mut world = World::new();
    let memory = world.keep(-1).unwrap();
    let gone = Mfn::new(FIRST + 15);
    world.machine.mmu().give_up(DOM1, gone).unwrap();
    assert!(world.machine.at(gone).forget());
    world.machine.set_free(gone);
    world.machine.at(gone).assign(DOM0);
    assert_eq!(world.check(&memory, -1), Err(Refusal::Frames(gone.raw()).into()));
    assert_eq!(world.go_back(&memory, &[], &[], -1), Err(Refusal::Frames(gone.raw()).into()));
    assert_eq!(world.machine.at(gone).owner(), DOM0);
}

/// Domain 0 gives a frame up for the domain when all had been taken again. The next time it comes back with the others.
#[test]
fn a_frame_that_goes_behind_the_taking_is_missed_at_the_end() {
    let mut world = World::new();
    let memory = world.keep(-1).unwrap();
    world.check(&memory, -1).unwrap();
    world.go_back(&memory, &[], &[], -1).unwrap();
    let gone = Mfn::new(FIRST + 15);
    world.machine.mmu().give_up(DOM1, gone).unwrap();
    let mut next = 0;
    let end = world.until_done(0, |m, _| m.mmu().check_types(DOM1, &memory, &mut next));
    assert_eq!(end, Err(Refusal::Frames(gone.raw()).into()));
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert!(world.has_its_own());
    world.end(memory);
}

/// Another CPU has dropped the last reference, and has not come to its end.
#[test]
fn a_frame_on_its_way_out_is_waited_for() {
    let mut world = World::new();
    let memory = world.keep(-1).unwrap();
    let going = Mfn::new(FIRST + 15);
    let frame = world.machine.at(going);
    let last = frame.drop_allocation(DOM1, false).unwrap().unwrap();
    assert!(last.noted);
    let mut check = Check::new();
    let result = world.machine.mmu().check_memory(DOM1, &memory, &mut check, &world.lock);
    assert_eq!(result, Err(Stop::Preempted));
    assert_eq!(world.machine.mmu().take_again(DOM1, &memory, &mut 15), Err(Stop::Preempted));
    world.machine.mmu().freed(going, frame, last);
    world.machine.mmu().check_memory(DOM1, &memory, &mut check, &world.lock).unwrap();
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert!(world.has_its_own());
    world.end(memory);
}

/// The same between the look at it and the hold.
#[test]
fn a_frame_that_is_let_go_while_it_is_taken_is_waited_for() {
    let mut world = World::new();
    let memory = world.keep(-1).unwrap();
    let going = Mfn::new(FIRST + 15);
    let mmu = world.machine.mmu();
    let frame = world.machine.at(going);
    mmu.get_page(going, DOM1).unwrap().keep();
    assert_eq!(frame.drop_allocation(DOM1, false), Ok(None), "given up, and held");
    let held = frame.count();
    let last = frame.put().unwrap();
    let take = |seen| mmu.take_frame_again(DOM1, going, frame, seen);
    assert_eq!(take(held), Err(Stop::Preempted), "it is on its way");
    mmu.freed(going, frame, last);
    assert_eq!(frame.count(), CountWord::AWAY);
    assert_eq!(take(held), Err(Stop::Preempted), "TLBs that may know it were not flushed");
    assert_eq!(take(CountWord::AWAY), Ok(()));
    assert_eq!(world.machine.returned.lock().unwrap().last(), Some(&(going, DOM1)));
    assert_eq!(take(held), Ok(()), "it is its own again");
    let others = Mfn::new(FIRST + OWN);
    world.machine.at(others).assign(DOM0);
    let refused = mmu.take_frame_again(DOM1, others, world.machine.at(others), held);
    assert_eq!(refused, Err(Refusal::Frames(others.raw()).into()));
    mmu.give_up(DOM0, others).unwrap();
    world.go_back(&memory, &[], &[], -1).unwrap();
    assert!(world.has_its_own());
    world.end(memory);
}

#[test]
fn what_is_not_its_own_is_not_noted() {
    let mut world = World::new();
    let table = Mfn::new(FIRST + 7);
    world.machine.mmu().pin(DOM1, table, Level::L1, &mut world.lock).unwrap();
    // A grant of domain 0's is mapped: by hand, as nobody may ask for it.
    let others = world.machine.spare.lock().unwrap().pop().unwrap();
    world.machine.at(others).assign(DOM0);
    world.machine.poke(Slot::new(table, 9), Pte(others.raw() << 12 | PteFlags::P.bits() | PteFlags::US.bits()));
    assert!(matches!(world.keep(-1), Err(Stop::Refused(Refusal::Foreign(n))) if n == others.raw()));
}

/// They are in its tables until it runs again, and its tables would not be validated with them.
#[test]
fn registers_that_were_withdrawn_are_not_noted() {
    let mut world = World::new();
    let table = Mfn::new(FIRST + 7);
    world.machine.mmu().pin(DOM1, table, Level::L1, &mut world.lock).unwrap();
    const REGISTER: u64 = 1 << 20;
    world.machine.poke(Slot::new(table, 9), Pte(REGISTER << 12 | PteFlags::P.bits() | PteFlags::US.bits()));
    assert!(matches!(world.keep(-1), Err(Stop::Refused(Refusal::Foreign(REGISTER)))));
}

#[test]
fn what_is_half_done_is_not_noted() {
    let mut world = World::new();
    world.machine.fuel.store(0, Ordering::SeqCst);
    assert_eq!(world.machine.mmu().pin(DOM1, Mfn::new(FIRST), Level::L4, &mut world.lock), Err(MmuError::Preempted));
    assert!(matches!(world.keep(-1), Err(Stop::Refused(Refusal::Unsettled))));
}

/// What a domain has made ordinary memory since may be as much as it has.
#[test]
fn suspects_leave_the_hypervisor_what_it_keeps_for_itself() {
    const TABLES: u64 = 300;
    let m = Machine::new(FIRST + TABLES);
    m.populate(DOM1, FIRST, TABLES);
    let (mut lock, tables) = (Deferred::new(), (FIRST..FIRST + TABLES).map(Mfn::new));
    tables.clone().for_each(|table| m.mmu().pin(DOM1, table, Level::L1, &mut lock).unwrap());
    let (mut memory, mut copies, mut check) = (Memory::new(Form::Whole), Copies::new(), Check::new());
    m.mmu().keep_memory(DOM1, &mut memory, &mut copies, &mut lock).unwrap();
    tables.clone().for_each(|table| m.mmu().unpin(DOM1, table, &mut lock).unwrap());
    let held: Vec<_> = tables.map(|table| m.mmu().get_writable(table, DOM1).unwrap()).collect();
    let (seen, refused) = (m.writes.lock().unwrap().len(), Err(Stop::NoMemory));
    m.room.store(0, Ordering::SeqCst);
    assert_eq!(m.mmu().check_memory(DOM1, &memory, &mut check, &lock), refused, "not one of them");
    // For the first page of them and what has the pages, then for another page, and so on.
    m.room.store(2 * 4096, Ordering::SeqCst);
    m.asked.store(0, Ordering::SeqCst);
    m.mmu().check_memory(DOM1, &memory, &mut check, &lock).unwrap();
    assert!(
        (3 * 4096 - 24..=3 * 4096).contains(&m.asked.load(Ordering::SeqCst)),
        "two pages, and one for what has them"
    );
    assert_eq!(m.writes.lock().unwrap().len(), seen, "nothing has changed");
    let last = Mfn::new(FIRST + TABLES - 1);
    (FIRST..last.raw()).for_each(|own| check.explain(Mfn::new(own)));
    assert_eq!(check.finish(), Err(Refusal::Held(last.raw())), "none was lost when there was no memory");
    drop(held);
    while !memory.release(&mut copies, &m, 100) {}
}

#[test]
fn too_little_memory_leaves_nothing() {
    let mut world = World::new();
    for n in 0..OWN {
        world.machine.poke(Slot::new(Mfn::new(FIRST + n), 500), Pte(n << 1));
    }
    let all = world.machine.spare.lock().unwrap().split_off(5);
    let mut memory = Memory::new(Form::Whole);
    let kept = world.machine.mmu().keep_memory(DOM1, &mut memory, &mut world.copies, &mut world.lock);
    assert_eq!((kept, memory.counts().copies), (Err(Stop::NoMemory), 5));
    assert!(memory.release(&mut world.copies, &world.machine, 100));
    world.machine.spare.lock().unwrap().extend(all);
    world.end(memory);
}
