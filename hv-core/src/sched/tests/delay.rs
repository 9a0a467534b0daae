//! Delayed preemption.

use super::*;

const BOUND: u64 = Params::DEFAULT.preempt_delay_ns;

fn always() -> bool {
    true
}

#[test]
fn one_that_must_not_be_interrupted_goes_on_until_it_may_be() {
    let (mut s, guest, driver) = guest_and_driver();
    assert_eq!(s.wake(driver, MS), Some(0));
    let d = s.pick(0, MS, false, always);
    assert_eq!((d.next, d.is_delayed, d.slice_until_ns), (Some(guest), true, MS + BOUND));
    let d = s.pick(0, MS + 10, false, always);
    assert_eq!((d.next, d.is_delayed, d.slice_until_ns), (Some(guest), true, MS + BOUND), "it does not get longer");
    let d = s.pick(0, MS + 20, false, never);
    assert_eq!((d.next, d.is_delayed, d.save), (Some(driver), false, Some(guest)));
    assert_eq!(s.delays(guest), Delays { count: 1, to_bound: 0, cut_off: 0 });
    assert_eq!(s.wakes(driver).worst_ns, 20);
}

#[test]
fn one_that_never_may_be_is_preempted_at_the_bound() {
    let (mut s, guest, driver) = guest_and_driver();
    s.wake(driver, MS);
    assert!(s.pick(0, MS, false, always).is_delayed);
    assert!(s.pick(0, MS + BOUND - 1, false, always).is_delayed);
    assert_eq!(s.pick(0, MS + BOUND, false, always).next, Some(driver));
    s.context_saved(0, MS + BOUND);
    assert_eq!(s.delays(guest), Delays { count: 1, to_bound: 1, cut_off: 1 });
    // In its next turn it gets another one; that it had its interrupts on again was not noticed.
    s.sleep(driver, Sleep::Blocked, 2 * MS);
    assert_eq!(s.pick(0, 2 * MS, true, always).next, Some(guest));
    s.wake(driver, 9 * MS);
    assert!(s.pick(0, 9 * MS, false, always).is_delayed);
    assert_eq!(s.pick(0, 9 * MS + BOUND, false, never).next, Some(driver));
    assert_eq!(s.delays(guest), Delays { count: 2, to_bound: 2, cut_off: 1 });
}

#[test]
fn one_that_may_be_interrupted_is_preempted_at_once_and_so_is_everybody_without_a_bound() {
    let (mut s, guest, driver) = guest_and_driver();
    s.wake(driver, MS);
    assert_eq!(s.pick(0, MS, false, never).next, Some(driver));
    let (mut s, _, driver) = guest_and_driver();
    s.set_preempt_delay(0);
    s.wake(driver, MS);
    assert_eq!(s.pick(0, MS, false, always).next, Some(driver));
    assert_eq!(s.delays(guest), Delays::default());
}

#[test]
fn nobody_is_asked_who_is_not_to_be_preempted() {
    let (mut s, guest, _) = guest_and_driver();
    let unasked = || panic!("it stays in any case");
    assert_eq!(s.pick(0, MS, false, unasked).next, Some(guest));
    s.sleep(guest, Sleep::Blocked, MS);
    assert_eq!(s.pick(0, MS, false, unasked).next, None);
}

#[test]
fn one_that_sleeps_is_paused_yields_or_has_to_move_leaves_as_always() {
    let leaves = |end: fn(&mut Scheduler, VcpuId)| {
        let (mut s, guest, driver) = guest_and_driver();
        s.wake(driver, MS);
        assert!(s.pick(0, MS, false, always).is_delayed);
        end(&mut s, guest);
        let d = s.pick(0, MS + 1, false, always);
        assert_eq!((d.next, d.save), (Some(driver), Some(guest)));
        assert_eq!(s.delays(guest), Delays { count: 1, to_bound: 0, cut_off: 0 });
        s.context_saved(0, MS + 1);
        (s, guest)
    };
    for why in [Sleep::Blocked, Sleep::Offline] {
        let (mut s, guest) = match why {
            Sleep::Blocked => leaves(|s, guest| assert_eq!(s.sleep(guest, Sleep::Blocked, MS + 1), Some(0))),
            Sleep::Offline => leaves(|s, guest| assert_eq!(s.sleep(guest, Sleep::Offline, MS + 1), Some(0))),
        };
        assert!(s.is_asleep(guest) && s.remove(guest), "a domain that is destroyed meanwhile");
    }
    leaves(|s, guest| s.yield_(guest));
    let (s, guest) = leaves(|s, guest| assert_eq!(s.set_affinity(guest, 2, MS + 1), Some(0)));
    assert_eq!(s.running_on(guest), None);
}

#[test]
fn who_waits_for_the_bound_is_not_announced_again_and_takes_an_idle_pcpu() {
    let (mut s, guest, driver) = guest_and_driver();
    s.wake(driver, MS);
    assert!(s.pick(0, MS, false, always).is_delayed);
    let third = s.add(0).unwrap();
    s.set_warp(third, Warp::DRIVER, 0);
    assert_eq!(s.wake(third, MS + 1), None, "the pCPU picks at the bound in any case");
    s.online(1, MS + 2);
    let d = s.pick(0, MS + 2, false, always);
    assert_eq!((d.next, d.kick), (Some(guest), Some(1)));
    assert_eq!(s.pick(1, MS + 2, false, never).next, Some(driver));
}

#[test]
fn a_delay_that_nobody_waits_for_any_more_is_over_for_the_turn() {
    let (mut s, guest, driver) = guest_and_driver();
    s.wake(driver, MS);
    assert!(s.pick(0, MS, false, always).is_delayed);
    s.sleep(driver, Sleep::Offline, MS + 1);
    let d = s.pick(0, MS + 2, false, always);
    assert_eq!((d.next, d.is_delayed, d.slice_until_ns), (Some(guest), false, u64::MAX));
    s.wake(driver, 5 * MS);
    assert_eq!(s.pick(0, 5 * MS, false, always).next, Some(driver));
    assert_eq!(s.delays(guest), Delays { count: 1, to_bound: 0, cut_off: 0 });
}

#[test]
fn a_cap_is_overdrawn_by_the_bound_at_most_and_paid_back() {
    let mut sim = Sim::new(1, &[hog(256), hog(256)]);
    sim.masks[0] = Mask::ALWAYS;
    cap(&mut sim, &[0], 30);
    sim.until(10 * SECOND);
    near("capped", sim.time(0), 3 * SECOND, 1);
    assert!(sim.delays.len() > 500, "{}", sim.delays.len());
}

/// A driver domain whose loans are used up runs with interrupts off, and another vCPU waits; with an event or without.
fn ends_with(event: bool) -> (Scheduler, VcpuId, VcpuId, u64) {
    let (mut s, guest, driver) = guest_and_driver();
    s.wake(driver, MS);
    assert_eq!(s.pick(0, MS, false, never).next, Some(driver));
    s.context_saved(0, MS);
    let mut now = 10 * MS;
    while !s.pick(0, now, false, always).is_delayed {
        now += MS;
    }
    if event {
        s.wake_delayed(driver, now + 1);
    }
    (s, guest, driver, now + 1)
}

#[test]
fn one_for_which_an_event_came_meanwhile_is_as_urgent_as_if_it_waited_for_its_turn() {
    let (mut s, guest, driver, now) = ends_with(false);
    assert_eq!(s.pick(0, now, false, never).next, Some(guest));
    assert_eq!(s.context_saved(0, now), None);
    assert_eq!(s.wake(driver, now), Some(0));
    let as_always = s.pick(0, now, false, never);
    assert_eq!(as_always.next, Some(driver));
    s.context_saved(0, now);

    let (mut s, guest, driver, now) = ends_with(true);
    let d = s.pick(0, now, false, never);
    assert_eq!((d.next, d.is_delayed, d.slice_until_ns), (Some(driver), false, as_always.slice_until_ns));
    // It has borrowed for one event, and the delay is over.
    let borrowed = s.warped_time(driver);
    s.wake_delayed(driver, now + 10);
    assert_eq!(s.warped_time(driver), borrowed);
    let mut until = d.slice_until_ns;
    while s.pick(0, until, false, always).next == Some(driver) {
        until += 10_000;
    }
    assert_eq!(s.current(0), Some(guest));
    assert!(until - now <= Warp::DRIVER.urgent.limit_ns + Warp::DRIVER.usual.limit_ns, "{}", until - now);
    // Nobody else borrows by that.
    s.wake_delayed(guest, until);
    assert_eq!(s.warped_time(guest), 0);
}

/// How long each of the vCPUs runs of a minute.
fn minute(who: &[Spec], masks: &[Mask]) -> (Vec<u64>, Sim) {
    let mut sim = Sim::new(1, who);
    sim.masks = masks.to_vec();
    sim.until(60 * SECOND);
    ((0..who.len()).map(|i| sim.time(i)).collect(), sim)
}

#[test]
fn one_that_never_may_be_interrupted_gets_no_more_than_its_share() {
    let who = [hog(256), hog(256), hog(512)];
    let (ran, sim) = minute(&who, &[Mask::ALWAYS, Mask::NEVER, Mask::ALWAYS]);
    for (ran, share) in ran.iter().zip([15, 15, 30]) {
        assert!(ran.abs_diff(share * SECOND) < 20 * MS, "{ran} of {share} s");
    }
    let turns = sim.delays.len();
    assert!(turns > 1000 && sim.delays.iter().all(|ns| *ns == BOUND), "{turns}");
    let delays = sim.s.delays(sim.ids[0]);
    assert!(delays.count > 500 && delays.cut_off == delays.to_bound, "{delays:?}");
    assert_eq!(sim.s.delays(sim.ids[1]), Delays::default());
}

#[test]
fn others_wait_no_longer_than_the_bound_for_one_that_never_may_be_interrupted() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::DRIVER, ANY_PCPU);
    let (_, sim) = minute(&[hog(256), io], &[Mask::ALWAYS, Mask::NEVER]);
    assert_eq!(sim.worst(1), BOUND);
    let short = Mask { off: 5_000, period: 10_000, calls: true };
    let (_, sim) = minute(&[hog(256), io], &[short, Mask::NEVER]);
    assert!((1..=5_000).contains(&sim.worst(1)), "{}", sim.worst(1));
    assert_eq!(sim.s.delays(sim.ids[0]).to_bound, 0);
}

fn mask() -> impl Strategy<Value = Mask> {
    prop_oneof![
        Just(Mask::NEVER),
        Just(Mask::ALWAYS),
        (1u64..200_000, 1u64..200_000, any::<bool>()).prop_map(|(off, on, calls)| Mask {
            off,
            period: off + on,
            calls
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The simulator checks each delay; here that no time is lost, and that nobody is kept from a pCPU by them.
    #[test]
    fn random_machines_with_masks_keep_the_rules(
        cpus in 1usize..5,
        who in prop::collection::vec((load(), 16u32..2048, warp(), 0u64..16, mask(), prop_oneof![Just(0), 5u32..150]), 1..10),
    ) {
        let affinity = |a: u64| if a & ((1 << cpus) - 1) == 0 { ANY_PCPU } else { a & ((1 << cpus) - 1) };
        let specs: Vec<_> = who.iter().map(|w| (w.0, w.1, w.2, affinity(w.3))).collect();
        let mut sim = Sim::new(cpus, &specs);
        sim.masks = who.iter().map(|w| w.4).collect();
        for (i, w) in who.iter().enumerate().filter(|(_, w)| w.5 != 0) {
            cap(&mut sim, &[i], w.5);
        }
        sim.until(3 * SECOND);
        for (i, w) in who.iter().enumerate() {
            prop_assert!(sim.time(i) > 0, "vCPU {} starved", i);
            let most = if w.5 == 0 { u64::MAX } else { 3 * SECOND / 100 * u64::from(w.5) + CAP_PERIOD_NS + BOUND };
            prop_assert!(sim.time(i) <= most, "vCPU {} ran {} ns, with a cap of {} %", i, sim.time(i), w.5);
            let d = sim.s.delays(sim.ids[i]);
            prop_assert!(d.cut_off <= d.to_bound && d.to_bound <= d.count);
        }
        prop_assert!(sim.delays.iter().all(|ns| *ns <= BOUND));
        let used: u64 = (0..who.len()).map(|i| sim.time(i)).sum();
        let idle: u64 = (0..cpus).map(|c| sim.s.idle_time(c, sim.now)).sum();
        prop_assert_eq!(used + idle, sim.now * cpus as u64, "time is lost or made up");
    }

    /// Hogs get what they get without delays, whoever has its interrupts off.
    #[test]
    fn random_masks_change_no_share(who in prop::collection::vec((64u32..1024, mask()), 2..7)) {
        let specs: Vec<_> = who.iter().map(|w| hog(w.0)).collect();
        let (with, _) = minute(&specs, &who.iter().map(|w| w.1).collect::<Vec<_>>());
        let (without, _) = minute(&specs, &vec![Mask::NEVER; who.len()]);
        for (with, without) in with.iter().zip(&without) {
            prop_assert!(with.abs_diff(*without) < 60 * MS, "{} ns, {} without", with, without);
        }
    }
}
