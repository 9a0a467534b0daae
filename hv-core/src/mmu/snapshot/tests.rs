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

struct World {
    machine: Machine,
    copies: Copies,
    lock: Deferred,
    roots: Vec<RootRef>,
    gdts: Vec<GdtFrames>,
    /// What domain 0 holds for writing.
    held: Vec<Mfn>,
}

/// All that can be seen of the domain's memory.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// References, type, type count, whether it is pinned.
    frames: Vec<(u32, FrameType, u32, bool)>,
    contents: Vec<u64>,
    m2p: Vec<u64>,
}

fn frame_near(level: u8, choice: u8) -> Mfn {
    let (first, count) = [(11, 9), (7, 4), (4, 3), (2, 2), (0, 2)][usize::from(level)];
    let n = u64::from(choice >> 2);
    Mfn::new(FIRST + if choice & 3 == 0 { n % (OWN + MORE) } else { first + n % count })
}

/// Gives the domain a frame of the allocator's, if there is one.
fn grow(machine: &Machine) -> Option<Mfn> {
    let all = (FIRST..FIRST + OWN + MORE).map(Mfn::new);
    let mfn = all.into_iter().find(|mfn| machine.at(*mfn).count() == CountWord::FREE)?;
    machine.mmu().flush_before_reuse(mfn);
    machine.clear_page(mfn);
    machine.at(mfn).assign(DOM1);
    Some(mfn)
}

impl World {
    fn new() -> Self {
        let machine = Machine::new(FRAMES);
        machine.log.store(false, Ordering::Relaxed);
        machine.populate(DOM1, FIRST, OWN);
        machine.spare.lock().unwrap().extend((FIRST + OWN + MORE..FRAMES).map(Mfn::new));
        let entry = |n: u64| Pte((FIRST + n) << 12 | 7);
        for (table, index, to) in
            [(0, 0, 2), (2, 0, 4), (2, 1, 5), (4, 0, 7), (4, 1, 8), (5, 0, 9), (7, 0, 12), (8, 0, 13)]
        {
            machine.poke(Slot::new(Mfn::new(FIRST + table), index), entry(to));
        }
        for n in 0..OWN {
            machine.m2p[usize::try_from(FIRST + n).unwrap()].store(n, Ordering::SeqCst);
        }
        Self { machine, copies: Copies::new(), lock: Deferred::new(), roots: vec![], gdts: vec![], held: vec![] }
    }

    /// One operation of the kernel's; those that are refused change nothing.
    fn step(&mut self, [op, a, b, c, e]: [u8; 5]) {
        let mmu = self.machine.mmu();
        let fuel = if op & 0x80 != 0 { i64::from(e >> 5) } else { -1 };
        self.machine.fuel.store(fuel, Ordering::SeqCst);
        let lock = &mut self.lock;
        match op & 0x7f {
            0..=49 => {
                let level = 1 + (a & 3);
                let slot = Slot::new(frame_near(level, b), INDICES[usize::from(a >> 2) % INDICES.len()]);
                let new = frame_near(level - 1, c).raw() << 12 | u64::from(e & 7) | u64::from(e >> 3 & 3) << 5;
                let _ = mmu.mmu_update(slot.addr(), new, Owners::both(DOM1), lock);
            }
            50..=64 => {
                let _ = mmu.pin(DOM1, frame_near(1 + (a & 3), b), LEVELS[usize::from(a & 3)], lock);
            }
            65..=79 => {
                let _ = mmu.unpin(DOM1, frame_near(1 + (a & 3), b), lock);
            }
            80..=89 => {
                if let Ok(root) = mmu.acquire_root(DOM1, frame_near(4, b), lock) {
                    self.roots.push(root);
                }
            }
            90..=97 => {
                if !self.roots.is_empty() && mmu.drain(lock).is_ok() {
                    let root = self.roots.swap_remove(usize::from(a) % self.roots.len());
                    mmu.release_root(root, lock).unwrap();
                }
            }
            98..=103 => {
                if let Ok(gdt) = mmu.take_gdt(DOM1, &[frame_near(0, b)]) {
                    self.gdts.push(gdt);
                }
            }
            104..=107 => {
                if let Some(mut gdt) = self.gdts.pop() {
                    mmu.drop_gdt(&mut gdt);
                }
            }
            108..=109 => self.machine.m2p[frame_near(0, b).index()].store(c.into(), Ordering::SeqCst),
            110..=111 => {
                let _ = mmu.give_up(DOM1, frame_near(a & 3, b));
            }
            112..=114 => {
                let _ = grow(&self.machine);
            }
            115..=117 => {
                let mfn = frame_near(a & 3, b);
                if mmu.steal(DOM1, mfn).is_ok() {
                    if e & 1 == 0 {
                        mmu.unsteal(DOM1, mfn);
                    } else {
                        let gone = mmu.let_go(mfn);
                        self.machine.frame_gone(mfn, gone);
                        let _ = grow(&self.machine);
                    }
                }
            }
            _ => {
                // It writes to what it may write to: now and then what looks like an entry.
                let page = frame_near(a & 3, b);
                if let Ok(page) = mmu.get_writable(page, DOM1) {
                    let value = if e & 1 == 0 { c.into() } else { frame_near(a >> 2 & 3, c).raw() << 12 | 7 };
                    self.machine.poke(Slot::new(page.mfn(), INDICES[usize::from(e >> 1) % INDICES.len()]), Pte(value));
                }
            }
        }
        self.machine.fuel.store(-1, Ordering::SeqCst);
    }

    /// As when a domain has run on and all its operations have ended.
    fn settle(&mut self) {
        self.machine.mmu().abandon(&mut self.lock).unwrap();
    }

    fn seen(&self) -> Seen {
        let own = FIRST..FIRST + OWN;
        let frames = own.clone().map(|n| {
            let frame = self.machine.at(Mfn::new(n));
            let usage = frame.usage();
            // Without references the last type is only of interest to TLBs.
            let ty = if usage.state() == UsageState::Idle { FrameType::None } else { usage.ty() };
            (frame.count().refs(), ty, usage.count(), usage.is_pinned())
        });
        let words = own.clone().flat_map(|n| (0..ENTRIES).map(move |i| Slot::new(Mfn::new(n), i)));
        Seen {
            frames: frames.collect(),
            contents: words.map(|slot| self.machine.read(slot).0).collect(),
            m2p: own.map(|n| self.machine.pfn(Mfn::new(n))).collect(),
        }
    }

    /// The same frames as ever are the domain's, and it has no others.
    fn has_its_own(&self) -> bool {
        let is_part = |n: u64| self.machine.at(Mfn::new(n)).count().is_part_of(DOM1);
        (FIRST..FIRST + OWN).all(is_part) && !(FIRST + OWN..FRAMES).any(is_part)
    }

    fn audit(&self) {
        let mut table = Table::new(self.machine.frames.len()).unwrap();
        let mut audit = Audit::new(self.machine.mmu(), &mut table);
        audit.deferred(&self.lock);
        self.roots.iter().for_each(|root| audit.root(root.mfn()));
        self.gdts.iter().flat_map(GdtFrames::frames).filter(|mfn| mfn.raw() != 0).for_each(|mfn| audit.segdesc(*mfn));
        self.held.iter().for_each(|mfn| audit.writable(*mfn));
        audit.finish(|mfn, frame, found, agrees| assert!(agrees, "{mfn:?}: {frame:?}, but {found:?}"));
    }

    /// Repeats `step` as long as it is preempted, which is after `fuel` steps each time.
    fn until_done(
        &mut self,
        fuel: i64,
        mut step: impl FnMut(&Machine, &mut Deferred) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        for _ in 0..10_000 {
            self.machine.fuel.store(fuel, Ordering::SeqCst);
            let result = step(&self.machine, &mut self.lock);
            self.machine.fuel.store(-1, Ordering::SeqCst);
            if result != Err(Stop::Preempted) {
                return result;
            }
        }
        panic!("it never ends");
    }

    fn keep(&mut self, fuel: i64) -> Result<Memory, Stop> {
        self.keep_as(Form::Whole, fuel)
    }

    fn keep_as(&mut self, form: Form, fuel: i64) -> Result<Memory, Stop> {
        let (mut memory, mut copies) = (Memory::new(form), core::mem::replace(&mut self.copies, Copies::new()));
        let kept = self.until_done(fuel, |m, lock| m.mmu().keep_memory(DOM1, &mut memory, &mut copies, lock));
        self.copies = copies;
        kept.map(|()| memory)
    }

    fn check(&mut self, memory: &Memory, fuel: i64) -> Result<(), Stop> {
        let mut check = Check::new();
        self.until_done(fuel, |m, lock| m.mmu().check_memory(DOM1, memory, &mut check, lock))?;
        Ok(check.finish()?)
    }

    /// Goes back to `memory`, in which the vCPUs had `roots` and descriptor tables `gdts`.
    fn go_back(&mut self, memory: &Memory, roots: &[Mfn], gdts: &[Mfn], fuel: i64) -> Result<(), Stop> {
        for root in core::mem::take(&mut self.roots) {
            let mut root = Some(root);
            self.until_done(fuel, |m, lock| {
                m.mmu().drain(lock).map_err(|_| Stop::Preempted)?;
                if let Some(root) = root.take() {
                    m.mmu().release_root(root, lock).unwrap();
                }
                Ok(())
            })?;
        }
        for mut gdt in core::mem::take(&mut self.gdts) {
            self.machine.mmu().drop_gdt(&mut gdt);
        }
        let mut next = 0;
        self.until_done(fuel, |m, lock| m.mmu().take_down(DOM1, &mut next, lock))?;
        let mut next = 0;
        self.until_done(fuel, |m, _| m.mmu().take_again(DOM1, memory, &mut next))?;
        let mut next = 0;
        let mut copies = core::mem::replace(&mut self.copies, Copies::new());
        let copied = self.until_done(fuel, |m, _| m.mmu().copy_back(DOM1, memory, &mut copies, &mut next));
        self.copies = copies;
        copied?;
        let mut next = 0;
        self.until_done(fuel, |m, lock| m.mmu().pin_again(DOM1, memory, &mut next, lock))?;
        for &mfn in roots {
            let mut taken = None;
            self.until_done(fuel, |m, lock| match m.mmu().acquire_root(DOM1, mfn, lock) {
                Ok(root) => {
                    taken = Some(root);
                    Ok(())
                }
                Err(MmuError::Preempted) => Err(Stop::Preempted),
                Err(_) => Err(Refusal::Held(mfn.raw()).into()),
            })?;
            self.roots.extend(taken);
        }
        for &mfn in gdts {
            self.gdts.push(self.machine.mmu().take_gdt(DOM1, &[mfn]).map_err(|_| Refusal::Held(mfn.raw()))?);
        }
        let mut next = 0;
        self.until_done(fuel, |m, _| m.mmu().check_types(DOM1, memory, &mut next))
    }

    fn end(mut self, mut memory: Memory) {
        while !memory.release(&mut self.copies, &self.machine, 1) {}
        assert_eq!(memory.counts(), Counts::default());
        assert_eq!((self.copies.count(), self.copies.nr_packs()), (0, 0));
        assert!(self.machine.away.lock().unwrap().is_empty(), "frames are away for nobody");
        assert!(self.machine.frames.iter().all(|frame| !frame.count().is_noted()), "noted by nobody");
        assert_eq!(self.machine.spare.lock().unwrap().len() as u64, SPARE, "copies are lost");
        let holds = core::mem::take(&mut self.held);
        holds.into_iter().for_each(|mfn| drop(self.machine.mmu().writable_from_kept(mfn)));
        self.audit();
    }
}

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

#[test]
fn what_is_half_done_is_not_noted() {
    let mut world = World::new();
    world.machine.fuel.store(0, Ordering::SeqCst);
    assert_eq!(world.machine.mmu().pin(DOM1, Mfn::new(FIRST), Level::L4, &mut world.lock), Err(MmuError::Preempted));
    assert!(matches!(world.keep(-1), Err(Stop::Refused(Refusal::Unsettled))));
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

/// A machine of which domain 1 has many frames, which are noted.
const MANY: u64 = 1000;
/// Steps that a pass has each time, and frames that may move in them.
const STEPS: i64 = 4;
const MOVES: usize = 64;

fn large() -> (Machine, Memory) {
    let machine = Machine::new(FIRST + 2 * MANY);
    machine.log.store(false, Ordering::Relaxed);
    machine.populate(DOM1, FIRST, MANY);
    let mut memory = Memory::new(Form::Whole);
    machine.mmu().keep_memory(DOM1, &mut memory, &mut Copies::new(), &mut Deferred::new()).unwrap();
    (machine, memory)
}

/// Calls `f` until it was not preempted; what `count` counts grows by a few each time, to `all`.
fn a_few_at_a_time(m: &Machine, all: u64, count: impl Fn() -> usize, mut f: impl FnMut() -> Result<(), Stop>) {
    let mut before = count();
    for _ in 0..MANY {
        m.fuel.store(STEPS, Ordering::SeqCst);
        let result = f();
        let now = count();
        assert!(now - before <= MOVES, "{} at once", now - before);
        before = now;
        match result {
            Ok(()) => break,
            Err(why) => assert_eq!(why, Stop::Preempted),
        }
    }
    assert_eq!(before as u64, all);
}

#[test]
fn frames_go_and_come_back_a_few_at_a_time() {
    let (m, mut memory) = large();
    (FIRST..FIRST + MANY).for_each(|n| m.mmu().give_up(DOM1, Mfn::new(n)).unwrap());
    m.freed.lock().unwrap().clear();
    m.populate(DOM1, FIRST + MANY, MANY);
    let (mut next, mut lock) = (0, Deferred::new());
    let freed = || m.freed.lock().unwrap().len();
    a_few_at_a_time(&m, MANY, freed, || m.mmu().take_down(DOM1, &mut next, &mut lock));
    let mut next = 0;
    let returned = || m.returned.lock().unwrap().len();
    a_few_at_a_time(&m, MANY, returned, || m.mmu().take_again(DOM1, &memory, &mut next));
    while !memory.release(&mut Copies::new(), &m, 100) {}
}

#[test]
fn a_table_whose_entries_are_sought_among_the_suspects_is_several_steps() {
    let m = Machine::new(FIRST + 64);
    m.populate(DOM1, FIRST, 16);
    let (tables, data, special) = (FIRST..FIRST + 4, FIRST + 8, Mfn::new(FIRST + 9));
    let mut lock = Deferred::new();
    for table in tables.clone() {
        (0..ENTRIES).for_each(|n| m.poke(Slot::new(Mfn::new(table), n), Pte(data << 12 | 7)));
        m.mmu().pin(DOM1, Mfn::new(table), Level::L1, &mut lock).unwrap();
    }
    m.mmu().pin(DOM1, special, Level::L1, &mut lock).unwrap();
    m.spare.lock().unwrap().extend((FIRST + 16..FIRST + 64).map(Mfn::new));
    let (mut memory, mut copies) = (Memory::new(Form::Whole), Copies::new());
    m.mmu().keep_memory(DOM1, &mut memory, &mut copies, &mut lock).unwrap();
    let steps_of_check = |lock: &Deferred| {
        let mut check = Check::new();
        m.nr_steps.store(0, Ordering::SeqCst);
        m.mmu().check_memory(DOM1, &memory, &mut check, lock).unwrap();
        (m.nr_steps.load(Ordering::SeqCst), check.finish())
    };
    assert_eq!(steps_of_check(&lock), (0, Ok(())), "nothing is sought");
    m.mmu().unpin(DOM1, special, &mut lock).unwrap();
    let held = m.mmu().get_writable(special, DOM1).unwrap();
    let (steps, decision) = steps_of_check(&lock);
    assert_eq!(decision, Err(Refusal::Held(special.raw())));
    assert!(steps >= 4 * 4, "{steps} steps for 2048 entries");
    drop(held);
    while !memory.release(&mut copies, &m, 100) {}
}
