use super::*;
use proptest::prelude::*;
use sim::*;
use std::vec;

mod delay;
mod latency;
mod sim;

#[test]
fn idle_cpu_takes_the_first_vcpu_and_stays_without_a_timer() {
    let mut sim = Sim::new(2, &[hog(256)]);
    assert_eq!(sim.slice.iter().filter(|s| **s != u64::MAX).count(), 0, "alone: no timer needed");
    sim.until(SECOND);
    assert_eq!(sim.time(0), SECOND);
    assert_eq!(sim.s.idle_time(0, sim.now) + sim.s.idle_time(1, sim.now), SECOND);
}

#[test]
fn shares_of_a_minute_follow_weights() {
    let mut sim = Sim::new(1, &[hog(256), hog(512), hog(1024), hog(64)]);
    sim.until(60 * SECOND);
    for (i, w) in [256, 512, 1024, 64].into_iter().enumerate() {
        near("share", sim.time(i), 60 * SECOND * w / 1856, 3);
    }
}

#[test]
fn shares_on_two_pcpus() {
    let mut sim = Sim::new(2, &[hog(256), hog(256), hog(512), hog(512)]);
    sim.until(60 * SECOND);
    for (i, w) in [256, 256, 512, 512].into_iter().enumerate() {
        near("share", sim.time(i), 120 * SECOND * w / 1536, 3);
    }
}

#[test]
fn a_weight_that_cannot_be_used_does_not_become_a_debt() {
    // The heavy one can use one pCPU only; once it is made light it must share at once.
    let mut sim = Sim::new(2, &[hog(60000), hog(256), hog(256)]);
    sim.until(10 * SECOND);
    near("heavy", sim.time(0), 10 * SECOND, 1);
    sim.s.set_weight(sim.ids[0], 256, sim.now);
    let before = sim.time(1) + sim.time(2);
    sim.until(12 * SECOND);
    let gained = sim.time(1) + sim.time(2) - before;
    near("the others", gained, 2 * 2 * SECOND * 2 / 3, 15);
}

/// What it ran while nobody else wanted its pCPU was at nobody's expense.
#[test]
fn one_that_had_a_pcpu_for_itself_does_not_owe_that_to_heavier_ones() {
    let heavy = (HOG, 2048, Warp::NONE, 2);
    let mut sim = Sim::new(2, &[(HOG, 256, Warp::NONE, 1), heavy, heavy, heavy]);
    sim.until(20 * SECOND);
    for i in 0..4 {
        sim.affinity[i] = ANY_PCPU;
        let kick = sim.s.set_affinity(sim.ids[i], ANY_PCPU, sim.now);
        sim.kicks(kick);
    }
    let mut before = sim.time(0);
    for second in 21..30 {
        sim.until(second * SECOND);
        let ran = sim.time(0) - before;
        before += ran;
        assert!(ran > 2 * SECOND * 256 / 6400 / 3, "{ran} ns in second {second}");
    }
}

#[test]
fn a_pinned_sleeper_is_not_starved_by_a_foreign_level() {
    // vCPU 2 races ahead alone on pCPU 1; 0 and 1 share pCPU 0 and 1 sleeps often.
    let mut sim = Sim::new(
        2,
        &[(HOG, 256, Warp::NONE, 1), (Load { busy: 20 * MS, away: MS }, 256, Warp::NONE, 1), (HOG, 256, Warp::NONE, 2)],
    );
    sim.until(10 * SECOND);
    assert!(sim.time(1) > 4 * SECOND, "{}", sim.time(1));
    assert!(sim.worst(1) < 20 * MS);
}

#[test]
fn a_warped_vcpu_runs_at_once_when_woken() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::DRIVER, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), hog(1024), io]);
    sim.until(10 * SECOND);
    assert_eq!(sim.worst(3), 0, "an event for a driver domain preempts whoever runs");
    let wakes = sim.s.wakes(sim.ids[3]);
    assert!(wakes.count > 3000 && (wakes.late, wakes.worst_ns) == (0, 0), "{wakes:?}");
    near("it gets what it asks for", sim.time(3), 10 * SECOND * 200 / 3200, 3);
}

#[test]
fn without_warp_a_waking_vcpu_that_is_owed_time_runs_at_once() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::NONE, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), io]);
    sim.until(10 * SECOND);
    assert_eq!(percentile(&sim.waits[2].to_run, 990), 0);
    near("it gets what it asks for", sim.time(2), 10 * SECOND * 200 / 3200, 3);
}

#[test]
fn without_warp_a_waking_vcpu_that_wants_more_than_its_share_waits_for_a_turn() {
    let greedy = (Load { busy: 5 * MS, away: MS }, 256, Warp::NONE, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), greedy]);
    sim.until(10 * SECOND);
    assert!(sim.worst(2) <= 4 * Params::DEFAULT.allowance_ns, "{}", sim.worst(2));
    let wakes = sim.s.wakes(sim.ids[2]);
    assert!(wakes.late > wakes.count / 2 && wakes.worst_ns == sim.worst(2), "{wakes:?}");
    assert!(sim.time(2) <= 10 * SECOND / 3 + 20 * MS, "{}", sim.time(2));
}

/// How long a vCPU may have run on borrowed time by `now`.
fn most_borrowed(warp: Warp, now: u64) -> u64 {
    let most = |loan: Loan| (now / loan.window_ns.max(1) + 2) * loan.limit_ns;
    most(warp.usual) + most(warp.urgent)
}

#[test]
fn borrowed_time_is_bounded_and_paid_back() {
    // A driver domain that never stops once woken: it must end up with its share, no more.
    let greedy = (Load { busy: 30 * MS, away: 1000 }, 256, Warp::DRIVER, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), greedy]);
    sim.until(20 * SECOND);
    assert!(sim.s.warped_time(sim.ids[1]) <= most_borrowed(Warp::DRIVER, sim.now));
    // It gives up what is left of its turn each time it sleeps, so a little less than half is right; more never is.
    assert!(sim.time(1) <= 10 * SECOND + 50 * MS, "{}", sim.time(1));
    assert!(sim.time(1) >= 8 * SECOND, "{}", sim.time(1));
}

/// Caps the domain of the vCPUs `who`.
fn cap(sim: &mut Sim, who: &[usize], percent: u32) {
    let first = sim.ids[who[0]];
    who.iter().for_each(|i| sim.s.set_domain(sim.ids[*i], first));
    sim.s.set_cap(first, percent, sim.now);
    sim.capped = true;
    (0..sim.cpus).for_each(|c| sim.kicks(Some(c)));
}

#[test]
fn a_cap_holds_on_an_idle_machine() {
    let mut sim = Sim::new(1, &[hog(256)]);
    cap(&mut sim, &[0], 30);
    sim.until(10 * SECOND);
    near("capped", sim.time(0), 3 * SECOND, 1);
    cap(&mut sim, &[0], 0);
    sim.until(11 * SECOND);
    near("free again", sim.time(0), 4 * SECOND, 1);
}

#[test]
fn a_cap_is_for_all_vcpus_of_a_domain_together() {
    let mut sim = Sim::new(4, &[hog(256), hog(256), hog(256)]);
    cap(&mut sim, &[0, 1, 2], 150);
    sim.until(10 * SECOND);
    near("the three", sim.time(0) + sim.time(1) + sim.time(2), 15 * SECOND, 1);
}

#[test]
fn what_a_capped_domain_leaves_goes_to_others() {
    let mut sim = Sim::new(1, &[hog(1024), hog(256)]);
    cap(&mut sim, &[0], 20);
    sim.until(10 * SECOND);
    near("capped", sim.time(0), 2 * SECOND, 1);
    near("the other", sim.time(1), 8 * SECOND, 1);
}

#[test]
fn a_capped_sleeper_below_its_cap_does_not_notice() {
    let io = (Load { busy: MS, away: 9 * MS }, 256, Warp::INTERACTIVE, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), io]);
    cap(&mut sim, &[1], 40);
    sim.until(10 * SECOND);
    near("it gets what it asks for", sim.time(1), SECOND, 3);
    assert!(sim.worst(1) <= MS, "{}", sim.worst(1));
}

/// A capped hog on pCPU 0 and a hog on pCPU 1 that has that for itself, at `now`. The cap is a fifth.
fn capped_beside_one_alone(now: u64) -> Sim {
    let mut sim = Sim::new(2, &[(HOG, 256, Warp::NONE, 1), (HOG, 256, Warp::NONE, 2)]);
    cap(&mut sim, &[0], 20);
    sim.until(now);
    assert_eq!(sim.slice[1], u64::MAX, "pCPU 1 has nothing to look for");
    sim
}

/// Moves vCPU 0 to pCPU 1.
fn move_over(sim: &mut Sim) -> Option<PcpuId> {
    sim.affinity[0] = 2;
    sim.s.set_affinity(sim.ids[0], 2, sim.now)
}

#[test]
fn a_capped_vcpu_that_is_moved_while_it_is_parked_runs_there() {
    let mut sim = capped_beside_one_alone(SECOND + 5 * MS);
    assert!(sim.s.is_runnable(sim.ids[0]) && sim.run[0].is_none(), "it is parked");
    let before = sim.time(0);
    let kick = move_over(&mut sim);
    sim.kicks(kick);
    sim.until(2 * SECOND + 5 * MS);
    near("moved while it was parked", sim.time(0) - before, 200 * MS, 5);
}

#[test]
fn a_capped_vcpu_that_is_moved_when_it_has_used_its_budget_up_runs_there() {
    let mut sim = capped_beside_one_alone(SECOND + 2 * MS - 1);
    assert_eq!(sim.run[0], Some(0), "it runs");
    let before = sim.time(0);
    // pCPU 0 is told, and picks when the budget is used up.
    let kick = move_over(&mut sim);
    sim.now += 1;
    sim.kicks(kick);
    sim.until(2 * SECOND + 2 * MS);
    near("moved while it ran", sim.time(0) - before, 200 * MS, 5);
}

#[test]
fn a_capped_vcpu_that_is_woken_while_it_leaves_is_looked_for_when_it_may_run() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let a = s.add(0).unwrap();
    s.set_cap(a, 20, 0);
    s.wake(a, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(a));
    assert_eq!(s.sleep(a, Sleep::Offline, 2 * MS), Some(0));
    let d = s.pick(0, 2 * MS, false, never);
    assert_eq!((d.next, d.save, d.slice_until_ns), (None, Some(a), u64::MAX), "it sleeps");
    assert_eq!(s.wake(a, 2 * MS), None);
    assert_eq!(s.context_saved(0, 2 * MS), Some(0), "it is parked, and nobody would look");
    assert_eq!(s.pick(0, 2 * MS, false, never).slice_until_ns, CAP_PERIOD_NS);
    assert_eq!(s.pick(0, CAP_PERIOD_NS, false, never).next, Some(a));
}

#[test]
fn one_that_sleeps_and_is_saved_leaves_at_once() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let a = s.add(0).unwrap();
    s.wake(a, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(a));
    assert_eq!(s.sleep(a, Sleep::Blocked, MS), Some(0));
    // Woken between being saved and the choice: it goes on, and is loaded again.
    assert_eq!(s.wake(a, MS), None);
    let d = s.pick(0, MS, true, never);
    assert_eq!((d.next, d.save), (Some(a), None));
    assert!(!s.remove(a));
    // Woken meanwhile, but another one goes first: it waits to be queued.
    let b = s.add(0).unwrap();
    s.wake(b, MS);
    s.yield_(a);
    let d = s.pick(0, 2 * MS, true, never);
    assert_eq!((d.next, d.save), (Some(b), Some(a)));
    assert_eq!(s.context_saved(0, 2 * MS), None);
    // Nobody is needed to call it asleep.
    assert_eq!(s.sleep(b, Sleep::Blocked, 3 * MS), Some(0));
    let d = s.pick(0, 3 * MS, true, never);
    assert_eq!((d.next, d.save), (Some(a), None));
    assert_eq!(s.runstate(b, 4 * MS).unwrap().0, Runstate::Blocked);
    assert!(s.remove(b));
}

#[test]
fn a_parked_vcpu_can_be_put_to_sleep_and_removed() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let a = s.add(0).unwrap();
    s.set_cap(a, 10, 0);
    s.wake(a, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(a));
    let d = s.pick(0, 2 * MS, false, never);
    assert_eq!((d.next, d.save, d.slice_until_ns), (None, Some(a), CAP_PERIOD_NS));
    assert_eq!(s.context_saved(0, 2 * MS), None);
    assert_eq!(s.wake(a, 3 * MS), None);
    assert_eq!(s.sleep(a, Sleep::Offline, 3 * MS), None);
    assert_eq!(s.wake(a, 4 * MS), Some(0));
    assert_eq!(s.pick(0, 4 * MS, false, never).next, None, "parked again");
    assert!(s.remove(a));
    assert_eq!(s.pick(0, 5 * MS, false, never).slice_until_ns, u64::MAX);
}

#[test]
fn with_a_rate_limit_a_woken_vcpu_waits_for_it_and_no_longer() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::DRIVER, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), io]);
    // It wakes 3 ms after the other began to run.
    sim.s.set_min_run(4 * MS);
    sim.until(10 * SECOND);
    let worst = sim.worst(2);
    assert!((MS..=4 * MS).contains(&worst), "{worst}");
    near("shares stay", sim.time(0), sim.time(1), 3);
}

/// A guest that runs on `cpu` 0, and a driver domain's vCPU that is asleep.
fn guest_and_driver() -> (Scheduler, VcpuId, VcpuId) {
    let mut s = Scheduler::new(8, Params::DEFAULT);
    s.online(0, 0);
    let (guest, driver) = (s.add(0).unwrap(), s.add(0).unwrap());
    s.set_warp(driver, Warp::DRIVER, 0);
    s.wake(guest, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(guest));
    (s, guest, driver)
}

#[test]
fn a_sender_goes_on_for_a_while_and_no_longer() {
    let (mut s, guest, driver) = guest_and_driver();
    let run = Params::DEFAULT.sender_run_ns;
    assert_eq!(s.wake_from(0, driver, MS), Some(0));
    let d = s.pick(0, MS, false, never);
    assert_eq!((d.next, d.slice_until_ns), (Some(guest), MS + run));
    // Another event, or one to somebody else, does not lengthen it.
    let third = s.add(MS).unwrap();
    s.wake_from(0, driver, MS + run / 2);
    s.wake_from(0, third, MS + run / 2);
    assert_eq!(s.pick(0, MS + run, false, never).next, Some(driver));
    assert_eq!(s.wakes(driver), Wakes { count: 1, late: 0, behind_sender: 1, worst_ns: 0 }, "it is not late");
}

#[test]
fn one_that_comes_after_a_sender_is_late_from_then_on() {
    let run = Params::DEFAULT.sender_run_ns;
    let woken = |wakes: &[u64], runs: u64| {
        let (mut s, _, driver) = guest_and_driver();
        s.wake_from(0, driver, MS);
        // The pCPU was kicked, and has not picked since.
        wakes.iter().for_each(|at| assert_eq!(s.wake(driver, *at), None));
        assert_eq!(s.pick(0, runs, false, never).next, Some(driver));
        s.wakes(driver)
    };
    let waited = LATE_NS + 1;
    assert_eq!(woken(&[], MS + run + waited), Wakes { count: 1, late: 1, behind_sender: 0, worst_ns: waited });
    // An interrupt for it is no sender's event.
    let (at, count) = (MS + 1, 1);
    assert_eq!(woken(&[at], at + waited), Wakes { count, late: 1, behind_sender: 0, worst_ns: waited });
    assert_eq!(woken(&[at], at + 1), Wakes { count, late: 0, behind_sender: 0, worst_ns: 1 });
}

#[test]
fn a_sender_that_sleeps_or_an_interrupt_ends_its_turn_at_once() {
    let (mut s, guest, driver) = guest_and_driver();
    s.wake_from(0, driver, MS);
    assert_eq!(s.pick(0, MS, false, never).next, Some(guest));
    assert_eq!(s.sleep(guest, Sleep::Blocked, MS + 1), Some(0));
    assert_eq!(s.pick(0, MS + 1, false, never).next, Some(driver));

    let (mut s, guest, driver) = guest_and_driver();
    s.wake_from(0, driver, MS);
    assert_eq!(s.pick(0, MS, false, never).next, Some(guest));
    assert_eq!(s.wake(driver, MS + 1), Some(0), "an interrupt for the one that waits");
    assert_eq!(s.pick(0, MS + 1, false, never).next, Some(driver));

    let (mut s, guest, driver) = guest_and_driver();
    let other = s.add(0).unwrap();
    s.wake_from(0, other, MS);
    assert_eq!(s.pick(0, MS, false, never).next, Some(guest));
    assert_eq!(s.wake(driver, MS + 1), Some(0), "an interrupt for another");
    assert_eq!(s.pick(0, MS + 1, false, never).next, Some(driver));
}

#[test]
fn one_that_shares_an_interrupt_goes_on_for_a_moment() {
    let run = Params::DEFAULT.sharer_run_ns;
    let (mut s, guest, driver) = guest_and_driver();
    s.wake_beside(0, driver, MS);
    let d = s.pick(0, MS, false, never);
    assert_eq!((d.next, d.slice_until_ns), (Some(guest), MS + run));
    assert_eq!(s.pick(0, MS + run, false, never).next, Some(driver));

    let (mut s, guest, driver) = guest_and_driver();
    let receiver = s.add(0).unwrap();
    s.wake_from(0, receiver, MS);
    assert_eq!(s.pick(0, MS, false, never).next, Some(guest));
    assert_eq!(s.wake_beside(0, driver, MS + 1), Some(0), "it is an interrupt: shorter than a sender's turn");
    let d = s.pick(0, MS + 1, false, never);
    assert_eq!((d.next, d.slice_until_ns), (Some(guest), MS + 1 + run));
}

#[test]
fn a_receiver_runs_at_once_on_an_idle_pcpu() {
    let (mut s, _, driver) = guest_and_driver();
    s.online(1, 0);
    assert_eq!(s.wake_from(0, driver, MS), Some(1));
    assert_eq!(s.pick(1, MS, false, never).next, Some(driver));
}

#[test]
fn yield_lets_the_next_one_go_first() {
    let mut sim = Sim::new(1, &[hog(256), hog(256)]);
    sim.until(MS);
    let first = sim.run[0].unwrap();
    sim.s.yield_(sim.ids[first]);
    sim.kicks(Some(0));
    assert_ne!(sim.run[0], Some(first));
}

#[test]
fn a_vcpu_that_leaves_is_not_started_elsewhere_before_it_is_saved() {
    let mut s = Scheduler::new(8, Params::DEFAULT);
    s.online(0, 0);
    s.online(1, 0);
    let (a, b) = (s.add(0).unwrap(), s.add(0).unwrap());
    s.set_affinity(b, 1, 0);
    assert_eq!(s.wake(a, 0), Some(0));
    assert_eq!(s.pick(0, 0, false, never).next, Some(a));
    s.yield_(a);
    s.wake(b, 1);
    let d = s.pick(0, 20 * MS, false, never);
    assert_eq!((d.next, d.save), (Some(b), Some(a)));
    assert_eq!(s.pick(1, 20 * MS, false, never).next, None, "registers of a are still on pCPU 0");
    assert!(!s.remove(a));
    assert_eq!(s.context_saved(0, 20 * MS), Some(1));
    assert_eq!(s.pick(1, 20 * MS, false, never).next, Some(a));
}

#[test]
fn a_wake_between_sleep_and_pick_is_not_lost() {
    let mut s = Scheduler::new(8, Params::DEFAULT);
    s.online(0, 0);
    let a = s.add(0).unwrap();
    s.wake(a, 0);
    s.pick(0, 0, false, never);
    assert_eq!(s.sleep(a, Sleep::Blocked, 5), Some(0));
    assert_eq!(s.wake(a, 6), None);
    assert_eq!(s.pick(0, 7, false, never).next, Some(a));
    // And between pick and save.
    s.sleep(a, Sleep::Blocked, 8);
    assert_eq!(s.pick(0, 9, false, never).save, Some(a));
    s.wake(a, 10);
    assert_eq!(s.context_saved(0, 11), Some(0));
    assert_eq!(s.pick(0, 12, false, never).next, Some(a));
    let (state, since, times) = s.runstate(a, 20).unwrap();
    assert_eq!((state, since), (Runstate::Running, 12));
    assert_eq!(times.iter().sum::<u64>(), 20);
    assert_eq!(times[Runstate::Blocked as usize], 1);
}

#[test]
fn who_leaves_is_seen_in_the_state_that_it_leaves_for() {
    let mut s = Scheduler::new(8, Params::DEFAULT);
    s.online(0, 0);
    let (a, b) = (s.add(0).unwrap(), s.add(0).unwrap());
    s.wake(a, 0);
    assert_eq!(s.pick(0, 10, false, never).next, Some(a));
    // Before the pCPU picks.
    s.sleep(a, Sleep::Blocked, 30);
    assert_eq!(s.runstate_left(a, 50), Some((Runstate::Blocked, 50, [40, 10, 0, 0])));
    assert_eq!(s.runstate(a, 50).unwrap().0, Runstate::Running);
    s.pick(0, 50, true, never);
    assert_eq!(s.runstate_left(a, 60), Some((Runstate::Blocked, 50, [40, 10, 10, 0])));
    s.wake(a, 70);
    assert_eq!(s.pick(0, 80, false, never).next, Some(a));
    s.sleep(a, Sleep::Offline, 90);
    assert_eq!(s.runstate_left(a, 100).unwrap().0, Runstate::Offline);
    s.wake(a, 110);
    // Behind it: it is preempted.
    s.wake(b, MS);
    s.yield_(a);
    assert_eq!(s.runstate_of_leaver(0), None);
    assert_eq!(s.pick(0, 2 * MS, false, never).save, Some(a));
    assert_eq!(s.runstate_of_leaver(0), Some((Runstate::Runnable, 2 * MS, [2 * MS - 40, 20, 20, 0])));
    assert_eq!(s.runstate_left(a, 3 * MS), Some((Runstate::Runnable, 2 * MS, [2 * MS - 40, MS + 20, 20, 0])));
}

#[test]
fn a_slot_is_reused_after_removal_and_capacity_is_kept() {
    let mut s = Scheduler::new(2, Params::DEFAULT);
    s.online(0, 0);
    let (a, b) = (s.add(0).unwrap(), s.add(0).unwrap());
    assert!(s.add(0).is_none());
    s.wake(a, 0);
    s.wake(b, 0);
    assert!(s.remove(b), "queued");
    assert!(!s.remove(b));
    assert_eq!(s.pick(0, 0, false, never).next, Some(a));
    let c = s.add(1).unwrap();
    assert_eq!(c.index(), b.index());
    assert!(!s.is_runnable(c));
}

#[test]
fn the_name_of_a_removed_vcpu_is_not_that_of_the_next_in_its_slot() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let old = s.add(0).unwrap();
    assert!(s.remove(old));
    let new = s.add(0).unwrap();
    assert_eq!(new.index(), old.index());
    assert!(!s.remove(old), "a sleeping vCPU is removed by its predecessor's name");
    assert_eq!(s.wake(old, MS), None);
    assert_eq!(s.wake_from(0, old, MS), None);
    assert_eq!(s.wake_beside(0, old, MS), None);
    assert!(s.is_asleep(new) && s.is_asleep(old));
    assert_eq!(s.wake(new, MS), Some(0));
    assert_eq!(s.sleep(old, Sleep::Blocked, MS), None);
    // Nobody runs, whatever is set for a vCPU that is no more.
    s.set_weight(old, 1, MS);
    s.set_cap(old, 1, MS);
    s.set_domain(old, new);
    s.set_warp(old, Warp::DRIVER, MS);
    assert_eq!(s.set_affinity(old, 0, MS), None);
    assert_eq!(s.pick(0, MS, false, never).next, Some(new));
    s.yield_(old);
    assert_eq!((s.running_on(old), s.running_on(new)), (None, Some(0)));
    assert_eq!(s.sleep(old, Sleep::Blocked, MS), None);
    let d = s.pick(0, 20 * MS, false, never);
    assert_eq!((d.next, d.slice_until_ns), (Some(new), u64::MAX), "its weight, cap and place are its own");
    assert_eq!((s.runstate(old, 20 * MS), s.run_time(old, 20 * MS)), (None, 0));
    assert_eq!(s.run_time(new, 20 * MS), 19 * MS);
    assert!(!s.is_runnable(old) && s.is_runnable(new));
}

#[test]
fn an_event_for_a_driver_domain_that_waits_for_its_turn_makes_it_urgent() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let (driver, busy) = (s.add(0).unwrap(), s.add(0).unwrap());
    s.set_warp(driver, Warp::DRIVER, 0);
    s.wake(driver, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(driver));
    s.wake(busy, 0);
    // It computes until the other has its turn.
    let mut now = 0;
    while s.current(0) != Some(busy) {
        let d = s.pick(0, now, false, never);
        now = d.slice_until_ns;
        assert!(d.save.is_none() || s.context_saved(0, now).is_none());
    }
    assert_eq!(s.wake(driver, now), Some(0));
    assert_eq!(s.pick(0, now, false, never).next, Some(driver));
    s.context_saved(0, now);
    assert_eq!(s.wakes(driver), Wakes { count: 2, late: 0, behind_sender: 0, worst_ns: 0 });
}

#[test]
fn a_waking_vcpu_does_not_inherit_the_debt_of_the_one_that_runs() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let (debtor, busy, third) = (s.add(0).unwrap(), s.add(0).unwrap(), s.add(0).unwrap());
    s.set_warp(debtor, Warp::DRIVER, 0);
    s.wake(debtor, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(debtor));
    s.wake(busy, 0);
    let now = 100_000;
    s.entries[debtor.index()].actual += 40 * MS;
    s.cpus[0].level += 40 * MS;
    s.wake(third, now);
    assert_eq!(s.entries[third.index()].actual, s.entries[busy.index()].actual);
}

#[test]
fn a_pcpu_that_was_alone_gets_a_slice_when_somebody_waits() {
    let mut sim = Sim::new(2, &[hog(60000), hog(256)]);
    sim.until(SECOND);
    assert_eq!(sim.slice, [u64::MAX; 2]);
    let mut sim = Sim::new(2, &[hog(60000), hog(256), hog(256)]);
    sim.until(SECOND);
    assert!(sim.slice.iter().all(|end| *end <= SECOND + Params::DEFAULT.max_slice_ns), "{:?}", sim.slice);
}

#[test]
fn narrowing_the_affinity_moves_a_running_vcpu() {
    let mut sim = Sim::new(2, &[hog(256)]);
    let on = sim.s.running_on(sim.ids[0]).unwrap();
    sim.affinity[0] = bit(1 - on);
    let kick = sim.s.set_affinity(sim.ids[0], bit(1 - on), 5);
    assert_eq!(kick, Some(on));
    sim.now = 5;
    sim.kicks(kick);
    assert_eq!(sim.s.running_on(sim.ids[0]), Some(1 - on));
}

fn load() -> impl Strategy<Value = Load> {
    prop_oneof![
        2 => Just(HOG),
        3 => (10_000u64..30 * MS, 1_000u64..30 * MS).prop_map(|(busy, away)| Load { busy, away }),
    ]
}

fn warp() -> impl Strategy<Value = Warp> {
    prop_oneof![Just(Warp::NONE), Just(Warp::INTERACTIVE), Just(Warp::DRIVER)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Work conservation, exclusivity, affinity, no starvation, warp bound: checked at each step of a random machine.
    #[test]
    fn random_machines_keep_the_rules(
        cpus in 1usize..5,
        who in prop::collection::vec((load(), 16u32..2048, warp(), 0u64..16), 1..10),
    ) {
        let mask = (1 << cpus) - 1;
        let who: Vec<_> = who
            .into_iter()
            .map(|(l, w, b, a)| (l, w, b, if a & mask == 0 { ANY_PCPU } else { a & mask }))
            .collect();
        let mut sim = Sim::new(cpus, &who);
        sim.until(3 * SECOND);
        for (i, w) in who.iter().enumerate() {
            let ran = sim.time(i);
            prop_assert!(ran > 0, "vCPU {} starved", i);
            prop_assert!(sim.s.warped_time(sim.ids[i]) <= most_borrowed(w.2, sim.now));
            let (_, _, times) = sim.s.runstate(sim.ids[i], sim.now).unwrap();
            prop_assert_eq!(times.iter().sum::<u64>(), sim.now);
        }
        let used: u64 = (0..who.len()).map(|i| sim.time(i)).sum();
        let idle: u64 = (0..cpus).map(|c| sim.s.idle_time(c, sim.now)).sum();
        prop_assert_eq!(used + idle, sim.now * cpus as u64, "time is lost or made up");
    }

    /// Hogs on one pCPU share a minute by weight.
    #[test]
    fn random_weights_are_met(weights in prop::collection::vec(64u32..1024, 2..7)) {
        let mut sim = Sim::new(1, &weights.iter().map(|w| hog(*w)).collect::<Vec<_>>());
        sim.until(60 * SECOND);
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        for (i, w) in weights.iter().enumerate() {
            near("share", sim.time(i), 60 * SECOND * u64::from(*w) / sum, 3);
        }
    }
}

/// Between these a CPU has its state, or will have it at once, although the vCPU is loaded nowhere.
#[test]
fn who_was_chosen_or_is_not_stored_yet_does_not_sleep() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let (a, b) = (s.add(0).unwrap(), s.add(0).unwrap());
    assert!(s.is_asleep(a));
    s.wake(a, 0);
    assert!(!s.is_asleep(a), "it waits for a CPU");
    assert_eq!(s.pick(0, MS, false, never).next, Some(a));
    assert!(!s.is_asleep(a), "a CPU will load it");
    assert_eq!(s.sleep(a, Sleep::Offline, MS), Some(0));
    assert!(!s.is_asleep(a), "its CPU does not know yet");
    s.wake(b, MS);
    assert_eq!(s.pick(0, 2 * MS, false, never).next, Some(b));
    assert!(!s.is_asleep(a), "its registers are not stored");
    s.context_saved(0, 2 * MS);
    assert!(s.is_asleep(a));
}

/// Whoever stops a vCPU sets a bit, and tells the scheduler when he gets its lock.
#[test]
fn who_is_stored_and_stopped_is_not_picked_again_though_nobody_has_told() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let (a, b) = (s.add(0).unwrap(), s.add(0).unwrap());
    s.wake(a, 0);
    assert_eq!(s.pick(0, 0, false, never).next, Some(a));
    // Started again before it was looked at: it goes on.
    assert_eq!(s.sleep_untold(a, || false, MS), None);
    assert_eq!(s.pick(0, MS, true, never).next, Some(a));
    assert_eq!(s.sleep_untold(a, || true, 2 * MS), Some(0));
    let d = s.pick(0, 2 * MS, true, never);
    assert_eq!((d.next, d.save), (None, None));
    assert!(s.is_asleep(a));
    // He tells late.
    assert_eq!(s.sleep(a, Sleep::Offline, 3 * MS), None);
    assert!(s.is_asleep(a));
    assert_eq!(s.pick(0, 3 * MS, false, never).next, None);
    assert_eq!(s.wake(a, 4 * MS), Some(0));
    assert_eq!(s.pick(0, 4 * MS, false, never).next, Some(a));
    // One that waits for its turn sleeps at once.
    s.wake(b, 4 * MS);
    assert_eq!(s.sleep_untold(b, || true, 5 * MS), None);
    assert!(s.is_asleep(b));
    // One that sleeps already is not asked for.
    assert_eq!(s.sleep_untold(b, || unreachable!("it does not want to run"), 6 * MS), None);
}
