//! All of it is done a few steps at a time.

use super::*;

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
