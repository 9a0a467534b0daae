use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// What a simulated vCPU does: run for `busy`, then sleep for `away` (0: never sleeps).
#[derive(Clone, Copy, Debug)]
struct Load {
    busy: u64,
    away: u64,
}
const HOG: Load = Load { busy: u64::MAX, away: 0 };

struct Sim {
    s: Scheduler,
    now: u64,
    cpus: usize,
    slice: Vec<u64>,
    ids: Vec<VcpuId>,
    loads: Vec<Load>,
    left: Vec<u64>,
    wake_at: Vec<u64>,
    woken: Vec<Option<u64>>,
    worst_latency: Vec<u64>,
    affinity: Vec<u64>,
    run: Vec<Option<usize>>,
    /// Somebody has a cap, so a pCPU may idle while somebody waits.
    capped: bool,
}

impl Sim {
    fn new(cpus: usize, loads: &[(Load, u32, Warp, u64)]) -> Sim {
        let mut s = Scheduler::new(64, Params::DEFAULT);
        for c in 0..cpus {
            s.online(c, 0);
        }
        let n = loads.len();
        let mut sim = Sim {
            s,
            now: 0,
            cpus,
            slice: vec![u64::MAX; cpus],
            ids: vec![],
            loads: loads.iter().map(|l| l.0).collect(),
            left: loads.iter().map(|l| l.0.busy).collect(),
            wake_at: vec![u64::MAX; n],
            woken: vec![None; n],
            worst_latency: vec![0; n],
            affinity: loads.iter().map(|l| l.3).collect(),
            run: vec![None; cpus],
            capped: false,
        };
        for l in loads {
            let id = sim.s.add(0).unwrap();
            sim.s.set_weight(id, l.1, 0);
            sim.s.set_warp(id, l.2);
            sim.s.set_affinity(id, l.3, 0);
            sim.ids.push(id);
        }
        for i in 0..n {
            sim.wake(i);
        }
        sim
    }

    fn wake(&mut self, i: usize) {
        self.woken[i] = Some(self.now);
        let kick = self.s.wake(self.ids[i], self.now);
        self.kicks(kick);
    }

    /// Lets every kicked pCPU pick.
    fn kicks(&mut self, first: Option<PcpuId>) {
        let mut todo: VecDeque<PcpuId> = first.into_iter().collect();
        let mut rounds = 0;
        while let Some(cpu) = todo.pop_front() {
            rounds += 1;
            assert!(rounds < 1000, "pCPUs kick each other for ever");
            let d = self.s.pick(cpu, self.now);
            todo.extend(d.kick);
            if d.save.is_some() {
                todo.extend(self.s.context_saved(cpu, self.now));
            }
            assert!(d.slice_until_ns > self.now, "a slice of no length");
            self.slice[cpu] = d.slice_until_ns;
            self.run[cpu] = d.next.map(|id| self.ids.iter().position(|x| *x == id).unwrap());
            if let Some(i) = self.run[cpu] {
                assert!(self.affinity[i] & bit(cpu) != 0, "runs where it may not");
                if let Some(t) = self.woken[i].take() {
                    self.worst_latency[i] = self.worst_latency[i].max(self.now - t);
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        for a in 0..self.cpus {
            for b in 0..a {
                assert!(self.run[a].is_none() || self.run[a] != self.run[b], "one vCPU on two pCPUs");
            }
        }
        for c in (0..self.cpus).filter(|c| self.run[*c].is_none() && !self.capped) {
            for (i, id) in self.ids.iter().enumerate() {
                let waits = self.s.is_runnable(*id) && self.s.running_on(*id).is_none();
                assert!(!(waits && self.affinity[i] & bit(c) != 0), "pCPU {c} is idle while vCPU {i} waits");
            }
        }
    }

    fn until(&mut self, end: u64) {
        while self.now < end {
            // The next thing that happens.
            let mut at = end;
            for c in 0..self.cpus {
                at = at.min(self.slice[c]);
                if let Some(i) = self.run[c] {
                    at = at.min(self.now.saturating_add(self.left[i]));
                }
            }
            at = self.wake_at.iter().fold(at, |a, w| a.min(*w));
            let step = at - self.now;
            self.now = at;
            for c in 0..self.cpus {
                if let Some(i) = self.run[c] {
                    if self.left[i] != u64::MAX {
                        self.left[i] -= step;
                    }
                }
            }
            for c in 0..self.cpus {
                let Some(i) = self.run[c] else {
                    if self.slice[c] <= self.now {
                        self.kicks(Some(c));
                    }
                    continue;
                };
                if self.left[i] == 0 {
                    self.left[i] = self.loads[i].busy;
                    self.wake_at[i] = self.now + self.loads[i].away;
                    let kick = self.s.sleep(self.ids[i], Sleep::Blocked, self.now);
                    assert_eq!(kick, Some(c));
                    self.kicks(kick);
                } else if self.slice[c] <= self.now {
                    self.kicks(Some(c));
                }
            }
            for i in 0..self.ids.len() {
                if self.wake_at[i] <= self.now {
                    self.wake_at[i] = u64::MAX;
                    self.wake(i);
                }
            }
        }
    }

    fn time(&self, i: usize) -> u64 {
        self.s.run_time(self.ids[i], self.now)
    }
}

fn hog(weight: u32) -> (Load, u32, Warp, u64) {
    (HOG, weight, Warp::NONE, ANY_PCPU)
}

fn near(what: &str, got: u64, want: u64, percent: u64) {
    assert!(got.abs_diff(want) * 100 <= want * percent, "{what}: {got}, wanted {want} within {percent} %");
}

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

#[test]
fn a_pinned_sleeper_is_not_starved_by_a_foreign_level() {
    // vCPU 2 races ahead alone on pCPU 1; 0 and 1 share pCPU 0 and 1 sleeps often.
    let mut sim = Sim::new(
        2,
        &[(HOG, 256, Warp::NONE, 1), (Load { busy: 20 * MS, away: MS }, 256, Warp::NONE, 1), (HOG, 256, Warp::NONE, 2)],
    );
    sim.until(10 * SECOND);
    assert!(sim.time(1) > 4 * SECOND, "{}", sim.time(1));
    assert!(sim.worst_latency[1] < 20 * MS);
}

#[test]
fn a_warped_vcpu_runs_at_once_when_woken() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::DRIVER, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), hog(1024), io]);
    sim.until(10 * SECOND);
    assert_eq!(sim.worst_latency[3], 0, "an event for a driver domain preempts whoever runs");
    let wakes = sim.s.wakes(sim.ids[3]);
    assert!(wakes.count > 3000 && (wakes.late, wakes.worst_ns) == (0, 0), "{wakes:?}");
    near("it gets what it asks for", sim.time(3), 10 * SECOND * 200 / 3200, 3);
}

#[test]
fn without_warp_a_waking_vcpu_waits_for_a_turn() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::NONE, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), io]);
    sim.until(10 * SECOND);
    assert!(sim.worst_latency[2] <= 2 * Params::DEFAULT.allowance_ns, "{}", sim.worst_latency[2]);
    let wakes = sim.s.wakes(sim.ids[2]);
    assert!(wakes.late > wakes.count / 2 && wakes.worst_ns == sim.worst_latency[2], "{wakes:?}");
}

#[test]
fn borrowed_time_is_bounded_and_paid_back() {
    // A driver domain that never stops once woken: it must end up with its share, no more.
    let greedy = (Load { busy: 30 * MS, away: 1000 }, 256, Warp::DRIVER, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), greedy]);
    sim.until(20 * SECOND);
    let w = Warp::DRIVER;
    let windows = 20 * SECOND / w.window_ns + 1;
    assert!(sim.s.warped_time(sim.ids[1]) <= windows * w.limit_ns);
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
    assert!(sim.worst_latency[1] <= MS, "{}", sim.worst_latency[1]);
}

#[test]
fn a_parked_vcpu_can_be_put_to_sleep_and_removed() {
    let mut s = Scheduler::new(4, Params::DEFAULT);
    s.online(0, 0);
    let a = s.add(0).unwrap();
    s.set_cap(a, 10, 0);
    s.wake(a, 0);
    assert_eq!(s.pick(0, 0).next, Some(a));
    let d = s.pick(0, 2 * MS);
    assert_eq!((d.next, d.save, d.slice_until_ns), (None, Some(a), CAP_PERIOD_NS));
    assert_eq!(s.context_saved(0, 2 * MS), None);
    assert_eq!(s.wake(a, 3 * MS), None);
    assert_eq!(s.sleep(a, Sleep::Offline, 3 * MS), None);
    assert_eq!(s.wake(a, 4 * MS), Some(0));
    assert_eq!(s.pick(0, 4 * MS).next, None, "parked again");
    assert!(s.remove(a));
    assert_eq!(s.pick(0, 5 * MS).slice_until_ns, u64::MAX);
}

#[test]
fn with_a_rate_limit_a_woken_vcpu_waits_for_it_and_no_longer() {
    let io = (Load { busy: 200_000, away: 3 * MS }, 256, Warp::DRIVER, ANY_PCPU);
    let mut sim = Sim::new(1, &[hog(256), hog(256), io]);
    // It wakes 3 ms after the other began to run.
    sim.s.set_min_run(4 * MS);
    sim.until(10 * SECOND);
    let worst = sim.worst_latency[2];
    assert!((MS..=4 * MS).contains(&worst), "{worst}");
    near("shares stay", sim.time(0), sim.time(1), 3);
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
    assert_eq!(s.pick(0, 0).next, Some(a));
    s.yield_(a);
    s.wake(b, 1);
    let d = s.pick(0, 20 * MS);
    assert_eq!((d.next, d.save), (Some(b), Some(a)));
    assert_eq!(s.pick(1, 20 * MS).next, None, "registers of a are still on pCPU 0");
    assert!(!s.remove(a));
    assert_eq!(s.context_saved(0, 20 * MS), Some(1));
    assert_eq!(s.pick(1, 20 * MS).next, Some(a));
}

#[test]
fn a_wake_between_sleep_and_pick_is_not_lost() {
    let mut s = Scheduler::new(8, Params::DEFAULT);
    s.online(0, 0);
    let a = s.add(0).unwrap();
    s.wake(a, 0);
    s.pick(0, 0);
    assert_eq!(s.sleep(a, Sleep::Blocked, 5), Some(0));
    assert_eq!(s.wake(a, 6), None);
    assert_eq!(s.pick(0, 7).next, Some(a));
    // And between pick and save.
    s.sleep(a, Sleep::Blocked, 8);
    assert_eq!(s.pick(0, 9).save, Some(a));
    s.wake(a, 10);
    assert_eq!(s.context_saved(0, 11), Some(0));
    assert_eq!(s.pick(0, 12).next, Some(a));
    let (state, since, times) = s.runstate(a, 20).unwrap();
    assert_eq!((state, since), (Runstate::Running, 12));
    assert_eq!(times.iter().sum::<u64>(), 20);
    assert_eq!(times[Runstate::Blocked as usize], 1);
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
    assert_eq!(s.pick(0, 0).next, Some(a));
    let c = s.add(1).unwrap();
    assert_eq!(c.index(), b.index());
    assert!(!s.is_runnable(c));
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
            let windows = 3 * SECOND / w.2.window_ns.max(1) + 1;
            prop_assert!(sim.s.warped_time(sim.ids[i]) <= windows.saturating_mul(w.2.limit_ns));
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
