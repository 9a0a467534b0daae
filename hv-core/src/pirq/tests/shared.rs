//! Who shares a line waits for others, but not for ever.

use super::*;

/// Domains 0 and 5 share line 19, which has just fired at time 0.
fn shared() -> Ints {
    let mut i = two_domains();
    for dom in [0, 5] {
        i.map_gsi(dom, 19, Some(19)).unwrap();
        i.bind(dom, 19, 7, true).unwrap();
    }
    assert_eq!(i.fired(19, 0).wake_ns, Some(100 * MS));
    i
}

#[test]
fn a_domain_that_does_not_answer_does_not_keep_a_shared_line() {
    let mut i = shared();
    i.eoi(0, 19, 0).unwrap();
    assert!(i.expire(99 * MS).is_none() && !open(&mut i, 19));
    assert!(i.expire(100 * MS).is_some() && open(&mut i, 19), "domain 5 is late");
    assert!(i.expire(100 * MS).is_none());
    assert_eq!(i.next_wake(), None);
    let look = i.look(0).expect("a line");
    let seen: Vec<_> = look.sharers().map(|s| (s.to.dom, s.is_waited_for, s.is_late)).collect();
    assert_eq!((look.irq, look.is_level, look.is_message, look.fired), (19, true, false, 1));
    assert_eq!(seen, [(0, false, false), (5, false, true)]);
    assert!(i.look(20).is_none());
    // Its device goes on asking. Both are told, one is waited for, and the line fires no more than a hundred times a
    // second.
    let told = i.fired(19, 101 * MS);
    assert_eq!((told.iter().count(), told.wake_ns), (2, Some(111 * MS)));
    assert!(i.look(0).unwrap().sharers().map(|s| s.is_waited_for).eq([true, false]));
    i.eoi(0, 19, 0).unwrap();
    assert_eq!(i.look(0).unwrap().held_until, Some(111 * MS));
    assert!(!open(&mut i, 19));
    assert!(i.expire(111 * MS).is_some() && open(&mut i, 19));
    // The living domain is slow this time: the throttle's time has passed before its answer.
    i.next_wake();
    i.fired(19, 120 * MS);
    assert!(i.expire(130 * MS).is_none());
    assert_eq!(i.next_wake(), Some(220 * MS));
    i.eoi(0, 19, 0).unwrap();
    assert!(open(&mut i, 19));
    // The late one answers after all: it is waited for again.
    i.eoi(5, 19, 0).unwrap();
    assert!(!i.look(19).unwrap().sharers().any(|s| s.is_late));
    i.fired(19, 300 * MS);
    i.eoi(0, 19, 0).unwrap();
    assert!(!open(&mut i, 19));
    i.eoi(5, 19, 0).unwrap();
    assert!(open(&mut i, 19));
}

/// Who is alone on a line may keep it masked as long as he likes, and nobody looks; but not if another comes.
#[test]
fn who_joins_a_line_does_not_wait_for_ever_for_who_was_alone_on_it() {
    let mut i = two_domains();
    for dom in [0, 5] {
        i.map_gsi(dom, 19, Some(19)).unwrap();
    }
    assert_eq!(i.bind(5, 19, 7, true), Ok(None));
    assert_eq!(i.fired(19, 0).wake_ns, None);
    assert_eq!(i.bind(0, 19, 7, true), Ok(Some(100 * MS)));
    assert!(i.expire(99 * MS).is_none() && !open(&mut i, 19));
    assert!(i.expire(100 * MS).is_some() && open(&mut i, 19));
    assert_eq!(i.next_wake(), None);
    assert_eq!(i.fired(19, 101 * MS).iter().count(), 2);
}

#[test]
fn a_line_whose_sharers_are_all_late_still_opens() {
    let mut i = shared();
    for n in 1..5 {
        assert!(i.expire(n * 100 * MS).is_some() && open(&mut i, 19), "round {n}");
        i.next_wake();
        i.fired(19, n * 100 * MS);
    }
    i.eoi(0, 19, 0).unwrap();
    i.eoi(5, 19, 0).unwrap();
    assert!(open(&mut i, 19));
}

/// A device that asks whenever it may, for `ns`: how often dom0 is told, if it answers at once.
fn told_of_an_asserted_line(i: &mut Ints, from: u64, ns: u64) -> usize {
    told_of(i, from, ns, |_| true)
}

/// The same of one that asks at certain times, until it is served.
fn told_of(i: &mut Ints, from: u64, ns: u64, asks_at: impl Fn(u64) -> bool) -> usize {
    let (mut told, mut wake, mut asks) = (0, i.next_wake(), false);
    for now in (from..from + ns).step_by(20_000) {
        if wake.is_some_and(|at| now >= at) {
            while i.expire(now).is_some() {}
            wake = i.next_wake();
        }
        asks |= asks_at(now);
        if asks && open(i, 19) {
            asks = false;
            let deliveries = i.fired(19, now);
            wake = deliveries.wake_ns.or(wake);
            told += deliveries.iter().count();
            i.eoi(0, 19, now).unwrap();
        }
    }
    told
}

/// Who answers as soon as he is not waited for any more, and never before, costs the others as much as who never
/// answers.
#[test]
fn a_domain_that_is_late_each_time_keeps_a_shared_line_for_no_longer() {
    let mut i = shared();
    i.eoi(0, 19, 0).unwrap();
    let (mut fired, mut wake) = (0, i.next_wake().or(Some(100 * MS)));
    for now in (0..2000 * MS).step_by(20_000) {
        if wake.is_some_and(|at| now >= at) {
            while i.expire(now).is_some() {}
            wake = i.next_wake();
        }
        if i.look(19).unwrap().sharers().any(|s| s.is_late) {
            i.eoi(5, 19, 0).unwrap();
        }
        if open(&mut i, 19) {
            wake = i.fired(19, now).wake_ns.or(wake);
            fired += usize::from(now >= 1000 * MS);
            i.eoi(0, 19, 0).unwrap();
        }
    }
    assert!((90..=210).contains(&fired), "in a second it fires {fired} times");
    // Another who comes in its place is waited for as anybody is.
    i.remove_domain(5);
    i.add_domain(5, Kind::Guest).unwrap();
    i.map_gsi(5, 19, Some(19)).unwrap();
    i.bind(5, 19, 7, true).unwrap();
    i.expire(2100 * MS);
    i.next_wake();
    i.fired(19, 2200 * MS);
    i.eoi(0, 19, 0).unwrap();
    i.expire(2250 * MS);
    assert!(!i.look(19).unwrap().sharers().any(|s| s.is_late));
}

/// How often the line fires in the second second, while domain 0 answers at once and 5 does as `answer` says, which is
/// told since when it is waited for.
fn fires_while(mut answer: impl FnMut(&mut Ints, u64, u64)) -> usize {
    let mut i = shared();
    i.eoi(0, 19, 0).unwrap();
    let (mut fired, mut wake, mut told) = (0, Some(100 * MS), 0);
    for now in (0..2000 * MS).step_by(100_000) {
        if wake.is_some_and(|at| now >= at) {
            while i.expire(now).is_some() {}
            wake = i.next_wake();
        }
        answer(&mut i, told, now);
        if open(&mut i, 19) {
            wake = i.fired(19, now).wake_ns.or(wake);
            told = now;
            fired += usize::from(now >= 1000 * MS);
            i.eoi(0, 19, now).unwrap();
        }
    }
    fired
}

#[test]
fn a_domain_that_answers_just_in_time_keeps_a_shared_line_for_no_longer() {
    for after in [11, 50, 99] {
        let fired = fires_while(|i, told, now| {
            if now >= told + after * MS {
                i.eoi(5, 19, now).unwrap();
            }
        });
        assert!(fired >= 90, "if it takes {after} ms: {fired} times");
    }
    // A quick one costs nobody anything.
    assert!(fires_while(|i, _, now| i.eoi(5, 19, now).map(|_| ()).unwrap()) >= 9000);
}

#[test]
fn a_domain_that_binds_a_shared_line_anew_keeps_it_for_no_longer() {
    // When it is given up, or before.
    for after in [99, 101] {
        let fired = fires_while(|i, told, now| {
            let is_late = i.look(19).unwrap().sharers().any(|s| s.is_late);
            if now >= told + after * MS || after > 100 && is_late {
                i.unbind(5, 19, 7);
                i.unmap(5, 19).unwrap();
                i.map_gsi(5, 19, Some(19)).unwrap();
                i.bind(5, 19, 7, true).unwrap();
            }
        });
        assert!(fired >= 90, "after {after} ms: {fired} times");
    }
}

#[test]
fn a_device_that_a_domain_left_behind_does_not_flood_the_others() {
    for was_late in [false, true] {
        let mut i = shared();
        i.eoi(0, 19, 0).unwrap();
        if was_late {
            i.expire(100 * MS);
        }
        i.remove_domain(5);
        assert!(open(&mut i, 19), "the dead are not waited for");
        let told = told_of_an_asserted_line(&mut i, 101 * MS, 1000 * MS);
        assert!((90..=101).contains(&told), "told {told} times");
    }
}

#[test]
fn a_line_that_a_domain_left_in_order_is_soon_as_before() {
    let mut i = shared();
    i.eoi(0, 19, 0).unwrap();
    i.eoi(5, 19, 0).unwrap();
    i.unbind(5, 19, 7);
    i.next_wake();
    // dom0's own device: it asks again a while after the line was opened.
    let mut now = 200 * MS;
    for n in 0..9 {
        assert!(open(&mut i, 19) && i.look(19).unwrap().is_abandoned, "round {n}");
        assert_eq!(i.fired(19, now).wake_ns, None);
        i.eoi(0, 19, now).unwrap();
        now += 10 * MS;
    }
    assert!(open(&mut i, 19) && !i.look(19).unwrap().is_abandoned, "it was silent often enough");
    i.fired(19, now);
    assert_eq!(i.next_wake(), None, "a domain alone on a line keeps it as long as it likes");
}

/// What waits while the line is held asks as soon as it is opened: that alone does not make it a device that nobody
/// serves.
#[test]
fn a_line_that_a_domain_left_is_its_others_also_if_they_are_busy() {
    for was_left_asking in [false, true] {
        let mut i = shared();
        i.eoi(0, 19, 0).unwrap();
        i.eoi(5, 19, 0).unwrap();
        i.unbind(5, 19, 7);
        if was_left_asking {
            let told = told_of_an_asserted_line(&mut i, MS, 200 * MS);
            assert!((18..=22).contains(&told), "told {told} times");
        }
        let each_2_ms = |now: u64| now.is_multiple_of(2 * MS);
        told_of(&mut i, 202 * MS, 200 * MS, each_2_ms);
        assert!(!i.look(19).unwrap().is_abandoned);
        let told = told_of(&mut i, 402 * MS, 1000 * MS, each_2_ms);
        assert!((499..=501).contains(&told), "told {told} times");
    }
}

#[test]
fn what_was_left_behind_is_forgotten_with_the_last() {
    let mut i = shared();
    i.remove_domain(5);
    i.unbind(0, 19, 7);
    i.bind(0, 19, 7, true).unwrap();
    i.next_wake();
    assert_eq!(i.fired(19, 10 * MS).wake_ns, None);
}

#[test]
fn one_line_does_not_put_off_another() {
    let mut i = shared();
    for dom in [0, 5] {
        i.map_gsi(dom, 20, Some(20)).unwrap();
        i.bind(dom, 20, 8, true).unwrap();
    }
    assert_eq!(i.fired(20, 50 * MS).wake_ns, None, "the time asked for is earlier");
    assert!(i.expire(100 * MS).is_some());
    assert_eq!(i.next_wake(), Some(150 * MS));
}

#[test]
fn the_hardware_domain_waits_for_a_sharer_that_runs() {
    let mut i = shared();
    let turns = |i: &mut Ints, running: Option<DomId>| {
        for dom in [0, 5] {
            i.eoi(dom, 19, 0).unwrap();
        }
        let told = i.fired(19, 0);
        let turns: Vec<_> = told.turns(|dom| running == Some(dom)).map(|(x, turn)| (x.dom, turn)).collect();
        turns
    };
    const BOTH_NOW: [(DomId, Turn); 2] = [(0, Turn::Now), (5, Turn::Now)];
    assert_eq!(turns(&mut i, Some(5)), [(0, Turn::AfterRunning), (5, Turn::Now)]);
    assert_eq!(turns(&mut i, Some(0)), BOTH_NOW, "a driver domain waits for nobody");
    assert_eq!(turns(&mut i, Some(9)), BOTH_NOW, "it has nothing to do with the line");
    assert_eq!(turns(&mut i, None), BOTH_NOW);
    i.unbind(5, 19, 7);
    let alone: Vec<_> = i.fired(19, 0).turns(|dom| dom == 5).map(|(x, turn)| (x.dom, turn)).collect();
    assert_eq!(alone, [(0, Turn::Now)]);
}
