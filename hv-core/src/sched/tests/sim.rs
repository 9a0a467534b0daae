//! A simulated machine: pCPUs that do what the scheduler says, in no time, and vCPUs with work to do.

use super::super::*;
use std::collections::VecDeque;
use std::vec;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// What a simulated vCPU does: run for `busy`, then sleep for `away` (0: never sleeps).
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub busy: u64,
    pub away: u64,
}
pub const HOG: Load = Load { busy: u64::MAX, away: 0 };
/// Has nothing to do but what a [`Source`] gives it.
pub const SERVER: Load = Load { busy: 0, away: u64::MAX };

/// Nobody has its interrupts off.
pub fn never() -> bool {
    false
}

/// When a vCPU has its interrupts off: for `off` ns of each `period` that it runs.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    pub off: u64,
    pub period: u64,
    /// It calls the hypervisor when it has them on again; else that is noticed when it is interrupted.
    pub calls: bool,
}

impl Mask {
    pub const NEVER: Mask = Mask { off: 0, period: 1, calls: false };
    pub const ALWAYS: Mask = Mask { off: 1, period: 1, calls: false };

    fn is_off(&self, ran: u64) -> bool {
        ran % self.period < self.off
    }

    /// How long it still runs with interrupts off.
    fn off_for(&self, ran: u64) -> u64 {
        if self.off == self.period {
            u64::MAX
        } else {
            self.off.saturating_sub(ran % self.period)
        }
    }
}

/// A vCPU: load, weight, warp, affinity.
pub type Spec = (Load, u32, Warp, u64);

pub fn hog(weight: u32) -> Spec {
    (HOG, weight, Warp::NONE, ANY_PCPU)
}

/// Gives a vCPU `work` ns of work, again and again, `gap` ns apart: from half to one and a half of it, by chance.
struct Source {
    who: usize,
    gap: u64,
    work: u64,
    next: u64,
}

/// What a vCPU that was woken has lived through, in ns.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// From an event that woke it until it ran.
    pub to_run: Vec<u64>,
    /// From an event that woke it until all its work was done, beyond what the work takes.
    pub to_answer: Vec<u64>,
}

/// The value below which `permille` of them are.
pub fn percentile(values: &[u64], permille: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

pub struct Sim {
    pub s: Scheduler,
    pub now: u64,
    pub cpus: usize,
    pub slice: Vec<u64>,
    pub ids: Vec<VcpuId>,
    loads: Vec<Load>,
    left: Vec<u64>,
    wake_at: Vec<u64>,
    sources: Vec<Source>,
    random: u64,
    /// When it was woken, if it has not run since.
    woken: Vec<Option<u64>>,
    /// When it began to have work, and how much that is.
    asked: Vec<Option<(u64, u64)>>,
    pub waits: Vec<Waits>,
    pub switches: u64,
    pub affinity: Vec<u64>,
    pub run: Vec<Option<usize>>,
    pub masks: Vec<Mask>,
    /// Since when the preemption on each pCPU is delayed, and whether it was in this turn.
    delayed: Vec<Option<u64>>,
    had_delay: Vec<bool>,
    /// How long each delay was.
    pub delays: Vec<u64>,
    /// Somebody has a cap, so a pCPU may idle while somebody waits.
    pub capped: bool,
}

impl Sim {
    pub fn new(cpus: usize, loads: &[Spec]) -> Sim {
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
            sources: vec![],
            random: 88_172_645_463_325_252,
            woken: vec![None; n],
            asked: vec![None; n],
            waits: vec![Waits::default(); n],
            switches: 0,
            affinity: loads.iter().map(|l| l.3).collect(),
            run: vec![None; cpus],
            masks: vec![Mask::NEVER; n],
            delayed: vec![None; cpus],
            had_delay: vec![false; cpus],
            delays: vec![],
            capped: false,
        };
        for l in loads {
            let id = sim.s.add(0).unwrap();
            sim.s.set_weight(id, l.1, 0);
            sim.s.set_warp(id, l.2, 0);
            sim.s.set_affinity(id, l.3, 0);
            sim.ids.push(id);
        }
        for i in (0..n).filter(|i| loads[*i].0.busy != 0) {
            sim.wake(i);
        }
        sim
    }

    /// `who` gets `work` ns of work about every `gap` ns.
    pub fn feed(&mut self, who: usize, gap: u64, work: u64) {
        let next = self.now + self.chance(gap);
        self.sources.push(Source { who, gap, work, next });
    }

    /// From a half to one and a half of `gap`; the same sequence in each run.
    fn chance(&mut self, gap: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        gap / 2 + self.random % gap
    }

    fn wake(&mut self, i: usize) {
        let is_running = self.run.contains(&Some(i));
        if is_running {
            self.waits[i].to_run.push(0);
        } else {
            self.woken[i].get_or_insert(self.now);
        }
        self.asked[i].get_or_insert((self.now, 0)).1 += self.loads[i].busy;
        let kick = self.s.wake(self.ids[i], self.now);
        self.kicks(kick);
    }

    /// Lets every kicked pCPU pick.
    pub fn kicks(&mut self, first: Option<PcpuId>) {
        let mut todo: VecDeque<PcpuId> = first.into_iter().collect();
        let mut rounds = 0;
        while let Some(cpu) = todo.pop_front() {
            rounds += 1;
            assert!(rounds < 1000, "pCPUs kick each other for ever");
            let before = self.run[cpu];
            // As the shell does, and as it would do with one that fell asleep just now.
            let is_saved = before.is_some_and(|i| !self.s.is_runnable(self.ids[i])) && self.now & 1 == 0;
            let is_off = before.is_some_and(|i| self.masks[i].is_off(self.time(i)));
            let d = self.s.pick(cpu, self.now, is_saved, || is_off);
            assert!(!is_saved || d.save.is_none(), "there is nothing to save of a sleeper that is saved");
            todo.extend(d.kick);
            if is_saved {
                self.switches += 1;
            } else if d.save.is_some() {
                self.switches += 1;
                todo.extend(self.s.context_saved(cpu, self.now));
            }
            assert!(d.slice_until_ns > self.now, "a slice of no length");
            self.slice[cpu] = d.slice_until_ns;
            self.run[cpu] = d.next.map(|id| self.ids.iter().position(|x| *x == id).unwrap());
            self.note_delay(cpu, before, &d, is_off);
            if let Some(i) = self.run[cpu] {
                assert!(self.affinity[i] & bit(cpu) != 0, "runs where it may not");
                if let Some(t) = self.woken[i].take() {
                    self.waits[i].to_run.push(self.now - t);
                }
            }
        }
        self.check();
    }

    /// A delay is for one that has its interrupts off, ends at the bound, and is the only one in its turn.
    fn note_delay(&mut self, cpu: PcpuId, before: Option<usize>, d: &Decision, is_off: bool) {
        if d.is_delayed {
            assert!(is_off && self.run[cpu] == before && d.save.is_none());
            assert!(self.delayed[cpu].is_some() || !self.had_delay[cpu], "a second delay in one turn");
            let began = *self.delayed[cpu].get_or_insert(self.now);
            self.had_delay[cpu] = true;
            assert_eq!(d.slice_until_ns, began + Params::DEFAULT.preempt_delay_ns);
        } else if let Some(began) = self.delayed[cpu].take() {
            self.delays.push(self.now - began);
        }
        self.had_delay[cpu] &= self.run[cpu] == before && before.is_some();
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

    pub fn until(&mut self, end: u64) {
        while self.now < end {
            // The next thing that happens.
            let mut at = end;
            for c in 0..self.cpus {
                at = at.min(self.slice[c]);
                if let Some(i) = self.run[c] {
                    at = at.min(self.now.saturating_add(self.left[i]));
                    if self.delayed[c].is_some() && self.masks[i].calls {
                        at = at.min(self.now.saturating_add(self.masks[i].off_for(self.time(i))));
                    }
                }
            }
            at = self.wake_at.iter().fold(at, |a, w| a.min(*w));
            at = self.sources.iter().fold(at, |a, s| a.min(s.next));
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
                match self.run[c] {
                    Some(i) if self.left[i] == 0 => self.finish(c, i),
                    _ if self.slice[c] <= self.now => self.kicks(Some(c)),
                    Some(i) if self.delayed[c].is_some() && self.masks[i].calls => self.kicks(Some(c)),
                    _ => {}
                }
            }
            for i in 0..self.ids.len() {
                if self.wake_at[i] <= self.now {
                    self.wake_at[i] = u64::MAX;
                    self.wake(i);
                }
            }
            for i in 0..self.sources.len() {
                if self.sources[i].next <= self.now {
                    self.sources[i].next = self.now + self.chance(self.sources[i].gap);
                    let (who, work) = (self.sources[i].who, self.sources[i].work);
                    self.left[who] += work;
                    self.asked[who].get_or_insert((self.now, 0)).1 += work;
                    self.wake(who);
                }
            }
        }
    }

    /// `i`, which runs on `cpu`, has nothing more to do.
    fn finish(&mut self, cpu: PcpuId, i: usize) {
        if let Some((since, work)) = self.asked[i].take() {
            self.waits[i].to_answer.push((self.now - since).saturating_sub(work));
        }
        self.left[i] = self.loads[i].busy;
        self.wake_at[i] = self.now.saturating_add(self.loads[i].away);
        let kick = self.s.sleep(self.ids[i], Sleep::Blocked, self.now);
        assert_eq!(kick, Some(cpu));
        self.kicks(kick);
    }

    pub fn time(&self, i: usize) -> u64 {
        self.s.run_time(self.ids[i], self.now)
    }

    /// How long `i` waited at most until it ran.
    pub fn worst(&self, i: usize) -> u64 {
        self.waits[i].to_run.iter().copied().max().unwrap_or(0)
    }
}

pub fn near(what: &str, got: u64, want: u64, percent: u64) {
    assert!(got.abs_diff(want) * 100 <= want * percent, "{what}: {got}, wanted {want} within {percent} %");
}
