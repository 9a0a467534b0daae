//! The scheduler: Borrowed Virtual Time over all pCPUs.
//!
//! Every vCPU has an *actual virtual time* that advances, while it runs, at a rate inverse to its weight; the runnable
//! vCPU with the lowest *effective* virtual time runs. Effective is actual time minus a *warp* that a vCPU borrows for
//! a bounded while when an event wakes it: it runs at once and pays with its own later time, so shares stay those of
//! the weights. (Duda and Cheriton, SOSP 1999.)
//!
//! One queue serves all pCPUs: it is work-conserving by construction, and with the few vCPUs of a machine that this
//! hypervisor is for, a sorted list under one lock is cheaper than balancing queues. The shell wraps a [`Scheduler`] in one
//! lock and calls it; nothing here allocates after [`Scheduler::new`].
//!
//! How a pCPU switches:
//! 1. [`Scheduler::pick`] says who runs and until when. If that is somebody else, the vCPU that ran stays bound to
//!    this pCPU, on no queue, so that no other pCPU can start it from registers that are not yet stored.
//! 2. The shell stores the old vCPU's registers and calls [`Scheduler::context_saved`].
//! 3. A pCPU named in an answer as *kick* is sent an interrupt (or, if it is the caller's own, is told to pick again).

mod cap;
mod entry;
mod queue;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use cap::Budget;
pub use cap::PERIOD_NS as CAP_PERIOD_NS;
use entry::{distance, later, Entry, State};
pub use entry::{Loan, Runstate, Wakes, Warp, LATE_NS};
use queue::{Queue, NIL};

/// A physical CPU, 0 .. [`MAX_PCPUS`].
pub type PcpuId = usize;
/// pCPUs that a mask has room for.
pub const MAX_PCPUS: usize = 64;
/// Any pCPU.
pub const ANY_PCPU: u64 = !0;
/// Weight of a domain that was given none.
pub const DEFAULT_WEIGHT: u32 = 256;
/// Highest weight; the lowest is 1.
pub const MAX_WEIGHT: u32 = 65535;

/// A vCPU as the scheduler knows it: a slot number, reused after [`Scheduler::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VcpuId(u16);

impl VcpuId {
    /// The slot number, below the capacity that was given to [`Scheduler::new`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Why a vCPU does not want to run. Only the accounting tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It waits for an event.
    Blocked,
    /// It is down or paused.
    Offline,
}

/// Times that shape decisions.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Context-switch allowance: how long a vCPU may run beyond its turn.
    pub allowance_ns: u64,
    /// How far ahead a running vCPU must be of a woken one to be preempted for it; and for how long it is left alone by
    /// those that have not borrowed.
    pub wake_margin_ns: u64,
    /// No slice is shorter.
    pub min_slice_ns: u64,
    /// No slice is longer while somebody waits.
    pub max_slice_ns: u64,
    /// For how long a vCPU that has begun to run is left alone, whoever wakes (Xen's rate limit).
    pub min_run_ns: u64,
    /// For how long a vCPU goes on that has sent an event to one that was asleep.
    pub sender_run_ns: u64,
}

impl Params {
    /// The defaults.
    pub const DEFAULT: Params = Params {
        allowance_ns: 5_000_000,
        wake_margin_ns: 100_000,
        min_slice_ns: 50_000,
        max_slice_ns: 50_000_000,
        min_run_ns: 0,
        sender_run_ns: 200_000,
    };
}

/// What a pCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The vCPU to run; `None`: idle.
    pub next: Option<VcpuId>,
    /// Pick again at this time at the latest; `u64::MAX`: nobody else wants this pCPU.
    pub slice_until_ns: u64,
    /// The vCPU that ran here and no longer does: store its registers, then call [`Scheduler::context_saved`].
    pub save: Option<VcpuId>,
    /// An idle pCPU that could take a waiting vCPU.
    pub kick: Option<PcpuId>,
}

/// The state of one pCPU.
#[derive(Clone, Copy)]
struct Pcpu {
    current: u16,
    /// Switched away from, registers not yet stored.
    leaving: u16,
    /// Actual virtual time of `current` when it was chosen.
    level: u64,
    slice_until: u64,
    /// `current` sent an event, and may send more before the receiver takes its place. 0: it did not.
    sends_until: u64,
}

/// See the module's documentation.
pub struct Scheduler {
    params: Params,
    entries: Vec<Entry>,
    /// By the slot of a domain's first vCPU, which stands for the domain.
    budgets: Vec<Budget>,
    queue: Queue,
    /// vCPUs that would run if their domain's budget were not used up.
    parked: Queue,
    cpus: [Pcpu; MAX_PCPUS],
    online: u64,
    idle: u64,
    /// pCPUs that were kicked and have not picked since.
    kicked: u64,
    /// pCPUs with a `sends_until`.
    sending: u64,
    /// Highest level so far: where a vCPU starts when nobody runs that it could be compared with.
    level: u64,
    idle_since: [u64; MAX_PCPUS],
    idle_ns: [u64; MAX_PCPUS],
}

impl Scheduler {
    /// Room for `capacity` vCPUs (at most 65534). No pCPU is online yet.
    pub fn new(capacity: u16, params: Params) -> Scheduler {
        let capacity = capacity.min(NIL - 1);
        let mut entries = Vec::with_capacity(usize::from(capacity));
        entries.resize_with(usize::from(capacity), Entry::free);
        let mut budgets = Vec::with_capacity(usize::from(capacity));
        budgets.resize_with(usize::from(capacity), Budget::default);
        Scheduler {
            params,
            entries,
            budgets,
            queue: Queue::new(),
            parked: Queue::new(),
            cpus: [Pcpu { current: NIL, leaving: NIL, level: 0, slice_until: u64::MAX, sends_until: 0 }; MAX_PCPUS],
            online: 0,
            idle: 0,
            kicked: 0,
            sending: 0,
            level: 0,
            idle_since: [0; MAX_PCPUS],
            idle_ns: [0; MAX_PCPUS],
        }
    }

    /// `cpu` starts to take part; it is idle. Numbers beyond [`MAX_PCPUS`] are ignored.
    pub fn online(&mut self, cpu: PcpuId, now: u64) {
        if cpu < MAX_PCPUS && self.online & bit(cpu) == 0 {
            self.online |= bit(cpu);
            self.idle |= bit(cpu);
            self.idle_since[cpu] = now;
        }
    }

    /// Mask of the pCPUs that take part.
    pub fn online_mask(&self) -> u64 {
        self.online
    }

    /// A new vCPU: offline, default weight, any pCPU, no warp. `None` when there is no room.
    pub fn add(&mut self, now: u64) -> Option<VcpuId> {
        let i = self.entries.iter().position(|e| e.state == State::Free)?;
        let slot = u16::try_from(i).ok()?;
        self.entries[i] = Entry::new(now, self.level);
        self.entries[i].domain = slot;
        self.budgets[i] = Budget::default();
        Some(VcpuId(slot))
    }

    /// Forgets a vCPU. `false`, and nothing happens, while it is on a pCPU (put it to sleep and let that pCPU pick first).
    #[must_use]
    pub fn remove(&mut self, id: VcpuId) -> bool {
        let Some(e) = self.entries.get(id.index()) else { return false };
        match e.state {
            State::Free | State::OnCpu | State::Leaving => return false,
            State::Queued => self.queue.remove(&mut self.entries, id.0),
            State::Parked => self.parked.remove(&mut self.entries, id.0),
            State::Asleep => {}
        }
        self.entries[id.index()] = Entry::free();
        true
    }

    /// Sets a vCPU's weight, clamped to 1 ..= [`MAX_WEIGHT`]. What it has run so far is charged at the old one.
    pub fn set_weight(&mut self, id: VcpuId, weight: u32, now: u64) {
        if let Some(e) = self.entries.get_mut(id.index()) {
            if e.state == State::OnCpu {
                let ran = e.charge(now);
                self.budgets[usize::from(e.domain)].spend(ran, now);
            }
            e.set_weight(weight);
        }
    }

    /// `id` belongs to the same domain as `first`.
    pub fn set_domain(&mut self, id: VcpuId, first: VcpuId) {
        if first.index() < self.entries.len() {
            if let Some(e) = self.entries.get_mut(id.index()) {
                e.domain = first.0;
            }
        }
    }

    /// For how long a vCPU that has begun to run is left alone.
    pub fn min_run(&self) -> u64 {
        self.params.min_run_ns
    }

    /// Changes that.
    pub fn set_min_run(&mut self, ns: u64) {
        self.params.min_run_ns = ns;
    }

    /// Caps the vCPUs of the domain whose first vCPU is `first` at `percent` of one pCPU together; 0: no cap.
    pub fn set_cap(&mut self, first: VcpuId, percent: u32, now: u64) {
        if let Some(budget) = self.budgets.get_mut(first.index()) {
            budget.set_cap(percent, now);
        }
    }

    /// Sets how a vCPU may borrow time when it is woken.
    pub fn set_warp(&mut self, id: VcpuId, warp: Warp, now: u64) {
        if let Some(e) = self.entries.get_mut(id.index()) {
            e.set_warp(warp, now);
        }
    }

    /// Sets the pCPUs that a vCPU may run on. An empty intersection with those online leaves it waiting.
    /// Returns a pCPU to kick.
    pub fn set_affinity(&mut self, id: VcpuId, mask: u64, now: u64) -> Option<PcpuId> {
        let e = self.entries.get_mut(id.index())?;
        e.affinity = mask;
        let on = PcpuId::from(e.cpu);
        match e.state {
            State::OnCpu if mask & bit(on) == 0 => self.mark_kicked(on),
            State::Queued => self.find_cpu(id.0, now),
            _ => None,
        }
    }

    /// An event for a vCPU: it becomes runnable, with warp if it may. Returns the pCPU to kick, if one is to run it (or to
    /// shorten its slice for it). A vCPU that runs already is left alone: see [`Scheduler::running_on`].
    #[inline]
    pub fn wake(&mut self, id: VcpuId, now: u64) -> Option<PcpuId> {
        let disturbed = self.disturb(id);
        self.wake_up(id, now).or_else(|| self.mark_kicked(disturbed?))
    }

    /// As [`Scheduler::wake`], but it was the vCPU on `cpu` that sent the event. A sender has often more to send: it goes
    /// on for a while before a receiver takes its place, which then finds all of it. As long as it sends one by one, every
    /// packet would cost two switches.
    #[inline]
    pub fn wake_from(&mut self, cpu: PcpuId, id: VcpuId, now: u64) -> Option<PcpuId> {
        let is_asleep = self.entries.get(id.index()).is_some_and(|e| e.state == State::Asleep);
        if is_asleep && cpu < MAX_PCPUS && self.kicked & bit(cpu) == 0 {
            let alone = self.queue.first_for(&self.entries, bit(cpu)) == NIL;
            let c = &mut self.cpus[cpu];
            // Once a turn while others wait, or it could send for ever.
            if c.sends_until == 0 || alone && c.sends_until <= now {
                c.sends_until = now.saturating_add(self.params.sender_run_ns);
                self.sending |= bit(cpu);
            }
        }
        self.wake_up(id, now)
    }

    /// Something else than a sender wants `id` to run: nobody that it could take the place of goes on sending. Returns
    /// where one did.
    #[inline]
    fn disturb(&mut self, id: VcpuId) -> Option<PcpuId> {
        let e = self.entries.get(id.index())?;
        let mut sending = e.affinity & self.sending & !self.kicked;
        if sending == 0 || !matches!(e.state, State::Asleep | State::Queued) {
            return None;
        }
        self.sending &= !sending;
        let first = lowest(sending);
        while sending != 0 {
            self.cpus[take_lowest(&mut sending)].sends_until = 0;
        }
        Some(first)
    }

    #[inline]
    fn wake_up(&mut self, id: VcpuId, now: u64) -> Option<PcpuId> {
        let e = self.entries.get_mut(id.index())?;
        match e.state {
            State::Free => None,
            State::OnCpu => {
                e.runnable = true;
                None
            }
            State::Leaving => {
                e.note_event(now);
                e.runnable = true;
                e.enter(Runstate::Runnable, now);
                None
            }
            State::Parked => None,
            State::Queued => {
                e.note_event(now);
                if !e.may_borrow_more() {
                    return None;
                }
                e.try_warp(now);
                self.queue.remove(&mut self.entries, id.0);
                self.enqueue(id.0);
                self.find_cpu(id.0, now)
            }
            State::Asleep => {
                e.note_event(now);
                e.runnable = true;
                e.enter(Runstate::Runnable, now);
                let floor = self.floor(id.0);
                let e = &mut self.entries[id.index()];
                if later(floor, e.actual) {
                    e.actual = floor;
                }
                e.try_warp(now);
                self.enqueue(id.0);
                self.find_cpu(id.0, now)
            }
        }
    }

    /// A vCPU no longer wants to run. If it is on a pCPU it stays there until that pCPU picks: returned, to be kicked
    /// (the caller's own is returned too).
    pub fn sleep(&mut self, id: VcpuId, why: Sleep, now: u64) -> Option<PcpuId> {
        let e = self.entries.get_mut(id.index())?;
        e.asleep = why;
        e.runnable = false;
        match e.state {
            State::Free => None,
            State::OnCpu => Some(e.cpu.into()),
            State::Leaving | State::Asleep => {
                e.enter(why.into(), now);
                None
            }
            State::Queued => {
                e.enter(why.into(), now);
                e.state = State::Asleep;
                self.queue.remove(&mut self.entries, id.0);
                None
            }
            State::Parked => {
                e.enter(why.into(), now);
                e.state = State::Asleep;
                self.parked.remove(&mut self.entries, id.0);
                None
            }
        }
    }

    /// The vCPU lets the next one go first, once. Pick afterwards.
    pub fn yield_(&mut self, id: VcpuId) {
        if let Some(e) = self.entries.get_mut(id.index()) {
            e.yielded = e.state == State::OnCpu;
        }
    }

    /// Decides who runs on `cpu` from `now` on.
    pub fn pick(&mut self, cpu: PcpuId, now: u64) -> Decision {
        if cpu >= MAX_PCPUS || self.online & bit(cpu) == 0 {
            return Decision { next: None, slice_until_ns: u64::MAX, save: None, kick: None };
        }
        self.kicked &= !bit(cpu);
        self.unpark(now);
        let current = self.cpus[cpu].current;
        let mut keep = NIL;
        // The one that runs here is going to be parked, once it is saved.
        let mut parks = false;
        if current != NIL {
            let e = &mut self.entries[usize::from(current)];
            let ran = e.charge(now);
            let budget = &mut self.budgets[usize::from(e.domain)];
            budget.spend(ran, now);
            let is_spent = budget.left(now) == Some(0);
            parks = e.runnable && is_spent;
            if e.runnable && e.affinity & bit(cpu) != 0 && !is_spent {
                keep = current;
            }
        }
        let waiting = self.first_allowed(cpu, now);
        let next = match (keep, waiting) {
            (NIL, w) => w,
            (k, NIL) => k,
            (k, w) => self.contest(k, w, now),
        };
        let mut save = None;
        if next != current {
            if current != NIL {
                self.leave(cpu, current, now);
                save = Some(VcpuId(current));
            }
            self.start(cpu, next, now);
        } else if next != NIL {
            self.entries[usize::from(next)].yielded = false;
        }
        let mut slice_until_ns = self.slice(cpu, next, now);
        if parks {
            slice_until_ns = slice_until_ns.min(cap::next_period(now));
        }
        self.cpus[cpu].slice_until = slice_until_ns;
        let kick = self.spread();
        Decision { next: id(next), slice_until_ns, save, kick }
    }

    /// The registers of the vCPU that [`Scheduler::pick`] moved off `cpu` are stored: others may run it now. Returns a
    /// pCPU to kick for it.
    pub fn context_saved(&mut self, cpu: PcpuId, now: u64) -> Option<PcpuId> {
        let c = self.cpus.get_mut(cpu)?;
        let left = core::mem::replace(&mut c.leaving, NIL);
        let e = self.entries.get_mut(usize::from(left))?;
        if e.runnable {
            if e.is_fresh() {
                e.try_warp(now);
            }
            self.enqueue(left);
            // One whose budget is used up is parked by whoever looks at it next.
            let domain = usize::from(self.entries[usize::from(left)].domain);
            if self.budgets[domain].left(now) == Some(0) {
                self.park(left);
                return None;
            }
            self.find_cpu(left, now)
        } else {
            e.state = State::Asleep;
            None
        }
    }

    /// The pCPU that a vCPU is on.
    #[inline]
    pub fn running_on(&self, id: VcpuId) -> Option<PcpuId> {
        let e = self.entries.get(id.index())?;
        (e.state == State::OnCpu).then_some(e.cpu.into())
    }

    /// The vCPU that runs on a pCPU.
    #[inline]
    pub fn current(&self, cpu: PcpuId) -> Option<VcpuId> {
        id(self.cpus.get(cpu)?.current)
    }

    /// Does the vCPU want to run?
    pub fn is_runnable(&self, id: VcpuId) -> bool {
        self.entries.get(id.index()).is_some_and(|e| e.runnable)
    }

    /// State, time of entering it, and ns spent in each state (running, runnable, blocked, offline) up to `now`.
    pub fn runstate(&self, id: VcpuId, now: u64) -> Option<(Runstate, u64, [u64; 4])> {
        let e = self.entries.get(id.index())?;
        (e.state != State::Free).then(|| e.runstate_at(now))
    }

    /// Nanoseconds that the vCPU has run.
    pub fn run_time(&self, id: VcpuId, now: u64) -> u64 {
        self.runstate(id, now).map_or(0, |(_, _, t)| t[Runstate::Running as usize])
    }

    /// Nanoseconds that the vCPU has run on borrowed time, up to its last charge.
    pub fn warped_time(&self, id: VcpuId) -> u64 {
        self.entries.get(id.index()).map_or(0, |e| e.warped_ns)
    }

    /// How quickly the vCPU ran when it was woken.
    pub fn wakes(&self, id: VcpuId) -> Wakes {
        self.entries.get(id.index()).map_or(Wakes::default(), |e| e.wakes)
    }

    /// Nanoseconds that `cpu` has been idle.
    pub fn idle_time(&self, cpu: PcpuId, now: u64) -> u64 {
        let (Some(total), Some(since)) = (self.idle_ns.get(cpu), self.idle_since.get(cpu)) else { return 0 };
        let running_up = if self.idle & bit(cpu) != 0 { now.saturating_sub(*since) } else { 0 };
        total.saturating_add(running_up)
    }

    /// `keep` runs and `waiting` is first on the queue: who goes on?
    fn contest(&mut self, keep: u16, waiting: u16, now: u64) -> u16 {
        let w = &self.entries[usize::from(waiting)];
        let (w_effective, w_actual) = (w.effective, w.actual);
        let w_turn = w.to_virtual(self.params.allowance_ns);
        let grace = self.grace(w);
        let left_alone_until = self.left_alone_until(keep, w);
        let k = &mut self.entries[usize::from(keep)];
        if k.yielded {
            return waiting;
        }
        if now < left_alone_until {
            return keep;
        }
        // Signed distance: how far the running one is ahead of the waiting one.
        let ahead = distance(k.effective_now(), w_effective);
        // A sixteenth less, so that a timer that fires a little early does not cost a second round.
        let limit = distance(k.to_virtual(grace - grace / 16), 0);
        if ahead >= limit {
            return waiting;
        }
        // Weights that cannot be met (one vCPU cannot use two pCPUs) must not pile up a claim on the future.
        let oldest = w_actual.wrapping_sub(w_turn.saturating_mul(2).saturating_add(100_000_000));
        if later(oldest, k.actual) {
            k.actual = oldest;
        }
        keep
    }

    /// How far ahead of `waiting` another may be before it must let it go first.
    fn grace(&self, waiting: &Entry) -> u64 {
        if waiting.is_fresh() {
            self.params.wake_margin_ns
        } else {
            self.params.allowance_ns
        }
    }

    /// How long a turn lasts at least if `waiting` is next. Loans are bounded; whoever wakes without one must not make a
    /// pCPU do nothing but switch.
    fn min_run_before(&self, waiting: &Entry) -> u64 {
        if waiting.is_fresh() && !waiting.warped {
            self.params.min_run_ns.max(self.params.wake_margin_ns)
        } else {
            self.params.min_run_ns
        }
    }

    /// Until when `running`, which is on a pCPU, is not preempted for `waiting`.
    fn left_alone_until(&self, running: u16, waiting: &Entry) -> u64 {
        let Some(r) = self.entries.get(usize::from(running)) else { return 0 };
        let sends_until = self.cpus.get(usize::from(r.cpu)).map_or(0, |c| c.sends_until);
        r.left_alone_until(self.min_run_before(waiting)).max(sends_until)
    }

    /// Takes `current` off `cpu`; its registers are still there.
    fn leave(&mut self, cpu: PcpuId, current: u16, now: u64) {
        let e = &mut self.entries[usize::from(current)];
        e.state = State::Leaving;
        e.yielded = false;
        let to = if e.runnable { Runstate::Runnable } else { e.asleep.into() };
        e.enter(to, now);
        // A shell that never says "saved" would lose a vCPU here; it is a bug of the shell, so be loud in tests only.
        debug_assert!(self.cpus[cpu].leaving == NIL, "pick without context_saved");
        if self.cpus[cpu].leaving != NIL {
            self.context_saved(cpu, now);
        }
        self.cpus[cpu].leaving = current;
    }

    /// Puts `next` (from the queue, or nobody) on `cpu`.
    fn start(&mut self, cpu: PcpuId, next: u16, now: u64) {
        self.cpus[cpu].current = next;
        self.cpus[cpu].sends_until = 0;
        self.sending &= !bit(cpu);
        if next == NIL {
            if self.idle & bit(cpu) == 0 {
                self.idle |= bit(cpu);
                self.idle_since[cpu] = now;
            }
            return;
        }
        if self.idle & bit(cpu) != 0 {
            self.idle &= !bit(cpu);
            self.idle_ns[cpu] = self.idle_ns[cpu].saturating_add(now.saturating_sub(self.idle_since[cpu]));
        }
        self.queue.remove(&mut self.entries, next);
        let e = &mut self.entries[usize::from(next)];
        e.start(cpu, now);
        self.cpus[cpu].level = e.actual;
        if !e.warped && later(e.actual, self.level) {
            self.level = e.actual;
        }
    }

    /// The first on the queue for `cpu` whose domain has time left; those before it are parked.
    fn first_allowed(&mut self, cpu: PcpuId, now: u64) -> u16 {
        loop {
            let first = self.queue.first_for(&self.entries, bit(cpu));
            let Some(e) = self.entries.get(usize::from(first)) else { return NIL };
            if self.budgets[usize::from(e.domain)].left(now) != Some(0) {
                return first;
            }
            self.park(first);
        }
    }

    /// Takes `who` off the queue until its domain has time again.
    fn park(&mut self, who: u16) {
        self.queue.remove(&mut self.entries, who);
        self.entries[usize::from(who)].state = State::Parked;
        self.parked.insert(&mut self.entries, who);
    }

    /// Puts those parked back whose domain has time. They did not want to wait, but others ran meanwhile: as after a
    /// sleep, they start where those are.
    fn unpark(&mut self, now: u64) {
        let mut at = self.parked.first();
        while let Some(e) = self.entries.get(usize::from(at)) {
            let (who, next, domain) = (at, e.next, usize::from(e.domain));
            if self.budgets[domain].left(now) != Some(0) {
                self.parked.remove(&mut self.entries, who);
                let floor = self.floor(who);
                let e = &mut self.entries[usize::from(who)];
                if later(floor, e.actual) {
                    e.actual = floor;
                }
                self.enqueue(who);
            }
            at = next;
        }
    }

    /// When `cpu`, on which `running` runs now, must pick again.
    fn slice(&mut self, cpu: PcpuId, running: u16, now: u64) -> u64 {
        let mut end = self.turn(cpu, running, now);
        if let Some(r) = self.entries.get(usize::from(running)) {
            if let Some(left) = self.budgets[usize::from(r.domain)].left(now) {
                end = end.min(now.saturating_add(left.max(self.params.min_slice_ns)));
            }
        }
        if self.parked.is_empty() {
            end
        } else {
            end.min(cap::next_period(now))
        }
    }

    /// When the turn of the vCPU that now runs on `cpu` ends.
    fn turn(&self, cpu: PcpuId, running: u16, now: u64) -> u64 {
        let Some(r) = self.entries.get(usize::from(running)) else { return u64::MAX };
        // The one that has just left is about to be queued again.
        let leaving = self.entries.get(usize::from(self.cpus[cpu].leaving)).filter(|e| e.runnable);
        let queued = self.entries.get(usize::from(self.queue.first_for(&self.entries, bit(cpu))));
        let w = match (queued, leaving) {
            (None, None) => return u64::MAX,
            (Some(w), None) | (None, Some(w)) => w,
            (Some(q), Some(l)) if later(q.effective, l.effective_now()) => l,
            (Some(q), Some(_)) => q,
        };
        let left_alone_until = self.left_alone_until(running, w);
        if now < left_alone_until {
            // Whoever should run by then does so then.
            return left_alone_until;
        }
        let lead = distance(w.effective_now(), r.effective_now());
        let turn = r.to_real(u64::try_from(lead).unwrap_or(0)).saturating_add(self.grace(w));
        let turn = turn.min(r.loan_left().unwrap_or(u64::MAX));
        now.saturating_add(turn.min(self.params.max_slice_ns).max(self.params.min_slice_ns))
    }

    /// Where the virtual time of a waking vCPU starts at least: the lowest among those it competes with, be they on a
    /// pCPU or waiting. Of the waiting ones, the first that has not borrowed is the lowest.
    fn floor(&self, who: u16) -> u64 {
        let affinity = self.entries[usize::from(who)].affinity;
        let mut floor = self.queue.first_unwarped(&self.entries, affinity & self.online);
        let mut busy = affinity & self.online & !self.idle;
        while busy != 0 {
            let level = self.cpus[take_lowest(&mut busy)].level;
            if floor.is_none_or(|floor| later(floor, level)) {
                floor = Some(level);
            }
        }
        // What it did not get while it waited for its turn it need not give up for a short sleep.
        floor.unwrap_or(self.level).wrapping_sub(self.params.allowance_ns)
    }

    fn enqueue(&mut self, who: u16) {
        let e = &mut self.entries[usize::from(who)];
        e.state = State::Queued;
        e.effective = e.effective_now();
        self.queue.insert(&mut self.entries, who);
    }

    /// Which pCPU should look at the queue for `who`, which is on it: an idle one, the one it ran on if possible, else
    /// the one that runs the least urgent vCPU, if that must go now or has a slice that ends too late.
    fn find_cpu(&mut self, who: u16, now: u64) -> Option<PcpuId> {
        let e = &self.entries[usize::from(who)];
        let allowed = e.affinity & self.online & !self.kicked;
        let idle = allowed & self.idle;
        if idle != 0 {
            let last = usize::from(e.cpu);
            let cpu = if idle & bit(last) != 0 { last } else { lowest(idle) };
            return self.mark_kicked(cpu);
        }
        let mut rest = allowed;
        let mut victim: Option<(PcpuId, u64)> = None;
        while rest != 0 {
            let cpu = take_lowest(&mut rest);
            let Some(r) = self.entries.get(usize::from(self.cpus[cpu].current)) else { continue };
            let effective = r.effective_at(now);
            if victim.is_none_or(|(_, v)| later(effective, v)) {
                victim = Some((cpu, effective));
            }
        }
        let (cpu, running) = victim?;
        let r = &self.entries[usize::from(self.cpus[cpu].current)];
        let grace = self.grace(e);
        let ahead = distance(running, e.effective);
        let left_alone_until = self.left_alone_until(self.cpus[cpu].current, e);
        let is_behind = ahead > distance(r.to_virtual(grace), 0);
        let must_go = is_behind && now >= left_alone_until;
        let fair_end = if is_behind {
            left_alone_until
        } else {
            now.saturating_add(grace)
                .saturating_add(r.to_real(u64::try_from(ahead.saturating_neg()).unwrap_or(0)))
                .max(left_alone_until)
        };
        if must_go || self.cpus[cpu].slice_until > fair_end.saturating_add(self.params.min_slice_ns) {
            return self.mark_kicked(cpu);
        }
        // One that was alone has no slice. Now it is not: its claim on the future must be looked at from time to time.
        let mut rest = allowed;
        while rest != 0 {
            let cpu = take_lowest(&mut rest);
            if self.cpus[cpu].slice_until == u64::MAX {
                return self.mark_kicked(cpu);
            }
        }
        None
    }

    /// Work conservation where affinities differ: an idle pCPU that nobody has kicked, and a vCPU that could run there.
    fn spread(&mut self) -> Option<PcpuId> {
        let idle = self.idle & self.online & !self.kicked;
        if idle == 0 || self.queue.is_empty() {
            return None;
        }
        let who = self.queue.first_for(&self.entries, idle);
        let e = self.entries.get(usize::from(who))?;
        self.mark_kicked(lowest(e.affinity & idle))
    }

    fn mark_kicked(&mut self, cpu: PcpuId) -> Option<PcpuId> {
        self.kicked |= bit(cpu);
        Some(cpu)
    }
}

fn id(slot: u16) -> Option<VcpuId> {
    (slot != NIL).then_some(VcpuId(slot))
}

fn bit(cpu: PcpuId) -> u64 {
    1 << (cpu & (MAX_PCPUS - 1))
}

/// The lowest pCPU of a mask that is not empty.
fn lowest(mask: u64) -> PcpuId {
    (mask.trailing_zeros() as usize) & (MAX_PCPUS - 1)
}

fn take_lowest(mask: &mut u64) -> PcpuId {
    let cpu = lowest(*mask);
    *mask &= mask.wrapping_sub(1);
    cpu
}
