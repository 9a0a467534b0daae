//! The scheduler: Borrowed Virtual Time over all pCPUs.
//!
//! Every vCPU has an *actual virtual time* that advances, while it runs, at a rate inverse to its weight; the runnable
//! vCPU with the lowest *effective* virtual time runs. Effective is actual time minus a *warp* that a vCPU borrows for
//! a bounded while when an event wakes it: it runs at once and pays with its own later time, so shares stay those of
//! the weights. (Duda and Cheriton, SOSP 1999.)
//!
//! One queue serves all pCPUs: it is work-conserving by construction, and with the few vCPUs of a machine that this
//! hypervisor is for, a sorted list under one lock is cheaper than balancing queues. The shell wraps a [`Scheduler`] in
//! one lock and calls it; nothing here allocates after [`Scheduler::new`].
//!
//! How a pCPU switches:
//! 1. [`Scheduler::pick`] says who runs and until when. If that is somebody else, the vCPU that ran stays bound to
//!    this pCPU, on no queue, so that no other pCPU can start it from registers that are not yet stored.
//! 2. The shell stores the old vCPU's registers and calls [`Scheduler::context_saved`]. Those of one that goes to sleep
//!    it may store before it asks who runs, and is spared the second call.
//! 3. A pCPU named in an answer as *kick* is sent an interrupt (or, if it is the caller's own, is told to pick again).

mod cap;
mod delay;
mod entry;
mod load_id;
mod pick;
mod queue;
#[cfg(test)]
mod tests;
mod wake;

use alloc::vec::Vec;
use cap::Budget;
pub use cap::PERIOD_NS as CAP_PERIOD_NS;
use delay::Delay;
pub use delay::{Delays, PREEMPT_DELAY_US};
use entry::{distance, later, Entry, State};
pub use entry::{Loan, Runstate, Wakes, Warp, LATE_NS};
pub use load_id::LoadId;
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

/// A vCPU as the scheduler knows it. After [`Scheduler::remove`] it is nobody's name, for ever: the slot is used again,
/// the name is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VcpuId {
    slot: u16,
    /// Who used the slot before this one: so many.
    tenant: u32,
}

impl VcpuId {
    /// The slot number, below the capacity that was given to [`Scheduler::new`].
    pub fn index(self) -> usize {
        usize::from(self.slot)
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
    /// For how long a vCPU that has begun to run is left alone, whoever wakes (Xen's rate limit, which
    /// `xl sched-credit2 -s -r` sets). Differs from Xen: it begins with none, not with 1 ms, for loans bound already
    /// how often one is preempted, and a driver domain should not wait that long to answer an interrupt.
    pub min_run_ns: u64,
    /// For how long a vCPU goes on that has sent an event to one that was asleep.
    pub sender_run_ns: u64,
    /// The same for one whose interrupt another is told of too, because they share a line.
    pub sharer_run_ns: u64,
    /// For how long a vCPU that must not be interrupted is not preempted; 0: it is at once.
    pub preempt_delay_ns: u64,
}

impl Params {
    /// The defaults.
    pub const DEFAULT: Params = Params {
        allowance_ns: 5_000_000,
        wake_margin_ns: 100_000,
        min_slice_ns: 50_000,
        max_slice_ns: 50_000_000,
        min_run_ns: 0,
        sender_run_ns: 500_000,
        sharer_run_ns: 200_000,
        preempt_delay_ns: PREEMPT_DELAY_US as u64 * 1000,
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
    /// `next` ran before, and goes on only because it must not be interrupted: pick again as soon as it may be.
    pub is_delayed: bool,
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
    /// Of `current`'s preemption, in this turn.
    delay: Delay,
}

/// See the module's documentation.
pub struct Scheduler {
    params: Params,
    entries: Vec<Entry>,
    /// By the slot of a domain's first vCPU, which stands for the domain.
    budgets: Vec<Budget>,
    /// By slot. Apart, as they are counted seldom, and entries are found by their size.
    delays: Vec<Delays>,
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
        let mut delays = Vec::with_capacity(usize::from(capacity));
        delays.resize_with(usize::from(capacity), Delays::default);
        Scheduler {
            params,
            entries,
            budgets,
            delays,
            queue: Queue::new(),
            parked: Queue::new(),
            cpus: [Pcpu {
                current: NIL,
                leaving: NIL,
                level: 0,
                slice_until: u64::MAX,
                sends_until: 0,
                delay: Delay::Unused,
            }; MAX_PCPUS],
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
        let tenant = self.entries[i].tenant;
        self.entries[i] = Entry::new(now, self.level);
        (self.entries[i].domain, self.entries[i].tenant) = (slot, tenant);
        (self.budgets[i], self.delays[i]) = (Budget::default(), Delays::default());
        Some(VcpuId { slot, tenant })
    }

    /// Forgets a vCPU. `false`, and nothing happens, while it is on a pCPU (put it to sleep and let that pCPU pick
    /// first), and if it was forgotten before.
    #[must_use]
    pub fn remove(&mut self, id: VcpuId) -> bool {
        let Some(e) = entry(&self.entries, id) else { return false };
        match e.state {
            State::Free | State::OnCpu | State::Leaving => return false,
            State::Queued => self.queue.remove(&mut self.entries, id.slot),
            State::Parked => self.parked.remove(&mut self.entries, id.slot),
            State::Asleep => {}
        }
        // Names come back only after 2^32 uses of one slot.
        self.entries[id.index()] = Entry::free();
        self.entries[id.index()].tenant = id.tenant.wrapping_add(1);
        true
    }

    /// Does the vCPU sleep, with its registers stored, or is it nobody's name any more? If it sleeps, only a wake puts
    /// it on a pCPU again.
    pub fn is_asleep(&self, id: VcpuId) -> bool {
        entry(&self.entries, id).is_none_or(|e| e.state == State::Asleep)
    }

    /// Sets a vCPU's weight, clamped to 1 ..= [`MAX_WEIGHT`]. What it has run so far is charged at the old one.
    pub fn set_weight(&mut self, id: VcpuId, weight: u32, now: u64) {
        if let Some(e) = entry_mut(&mut self.entries, id) {
            if e.state == State::OnCpu {
                let ran = e.charge(now);
                self.budgets[usize::from(e.domain)].spend(ran, now);
            }
            e.set_weight(weight);
        }
    }

    /// `id` belongs to the same domain as `first`.
    pub fn set_domain(&mut self, id: VcpuId, first: VcpuId) {
        if entry(&self.entries, first).is_some() {
            if let Some(e) = entry_mut(&mut self.entries, id) {
                e.domain = first.slot;
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

    /// Changes for how long a vCPU that must not be interrupted is not preempted.
    pub fn set_preempt_delay(&mut self, ns: u64) {
        self.params.preempt_delay_ns = ns;
    }

    /// Caps the vCPUs of the domain whose first vCPU is `first` at `percent` of one pCPU together; 0: no cap.
    pub fn set_cap(&mut self, first: VcpuId, percent: u32, now: u64) {
        if entry(&self.entries, first).is_some() {
            self.budgets[first.index()].set_cap(percent, now);
        }
    }

    /// Sets how a vCPU may borrow time when it is woken.
    pub fn set_warp(&mut self, id: VcpuId, warp: Warp, now: u64) {
        if let Some(e) = entry_mut(&mut self.entries, id) {
            e.set_warp(warp, now);
        }
    }

    /// Sets the pCPUs that a vCPU may run on. An empty intersection with those online leaves it waiting.
    /// Returns a pCPU to kick.
    pub fn set_affinity(&mut self, id: VcpuId, mask: u64, now: u64) -> Option<PcpuId> {
        let e = entry_mut(&mut self.entries, id)?;
        e.affinity = mask;
        let on = PcpuId::from(e.cpu);
        match e.state {
            State::OnCpu if mask & bit(on) == 0 => self.mark_kicked(on),
            State::Queued => self.find_cpu(id.slot, now),
            State::Parked => self.find_watcher(id.slot, now),
            _ => None,
        }
    }

    /// The pCPU that a vCPU is on.
    #[inline]
    pub fn running_on(&self, id: VcpuId) -> Option<PcpuId> {
        let e = entry(&self.entries, id)?;
        (e.state == State::OnCpu).then_some(e.cpu.into())
    }

    /// The vCPU that runs on a pCPU.
    #[inline]
    pub fn current(&self, cpu: PcpuId) -> Option<VcpuId> {
        self.id(self.cpus.get(cpu)?.current)
    }

    /// Does the vCPU want to run?
    #[inline]
    pub fn is_runnable(&self, id: VcpuId) -> bool {
        entry(&self.entries, id).is_some_and(|e| e.runnable)
    }

    /// State, time of entering it, and ns spent in each state (running, runnable, blocked, offline) up to `now`.
    pub fn runstate(&self, id: VcpuId, now: u64) -> Option<(Runstate, u64, [u64; 4])> {
        let e = entry(&self.entries, id)?;
        Some(e.runstate_at(now))
    }

    /// The same of a vCPU whose registers the shell is about to store, as others are to see it from `now` on. One that
    /// goes to sleep has not left its pCPU yet, if they are stored before [`Scheduler::pick`] is asked.
    #[inline]
    pub fn runstate_left(&self, id: VcpuId, now: u64) -> Option<(Runstate, u64, [u64; 4])> {
        let e = entry(&self.entries, id)?;
        let (state, since, times) = e.runstate_at(now);
        Some(if state == Runstate::Running { (e.left_for(), now, times) } else { (state, since, times) })
    }

    /// The runstate in which the vCPU left that [`Scheduler::pick`] has just moved off `cpu`, and whose registers are
    /// to be stored.
    #[inline]
    pub fn runstate_of_leaver(&self, cpu: PcpuId) -> Option<(Runstate, u64, [u64; 4])> {
        let e = self.entries.get(usize::from(self.cpus.get(cpu)?.leaving))?;
        Some(e.runstate_entered())
    }

    /// Nanoseconds that the vCPU has run.
    pub fn run_time(&self, id: VcpuId, now: u64) -> u64 {
        self.runstate(id, now).map_or(0, |(_, _, t)| t[Runstate::Running as usize])
    }

    /// Nanoseconds in which the vCPU was runnable and did not run.
    pub fn wait_time(&self, id: VcpuId, now: u64) -> u64 {
        self.runstate(id, now).map_or(0, |(_, _, t)| t[Runstate::Runnable as usize])
    }

    /// Nanoseconds that the vCPU has run on borrowed time, up to its last charge.
    pub fn warped_time(&self, id: VcpuId) -> u64 {
        entry(&self.entries, id).map_or(0, |e| e.warped_ns)
    }

    /// How quickly the vCPU ran when it was woken.
    pub fn wakes(&self, id: VcpuId) -> Wakes {
        entry(&self.entries, id).map_or(Wakes::default(), |e| e.wakes)
    }

    /// How often the vCPU's preemption was delayed.
    pub fn delays(&self, id: VcpuId) -> Delays {
        entry(&self.entries, id).map_or(Delays::default(), |_| self.delays[id.index()])
    }

    /// The name of the vCPU in a slot; `None` for [`NIL`].
    fn id(&self, slot: u16) -> Option<VcpuId> {
        let e = self.entries.get(usize::from(slot))?;
        Some(VcpuId { slot, tenant: e.tenant })
    }

    /// Nanoseconds that `cpu` has been idle.
    pub fn idle_time(&self, cpu: PcpuId, now: u64) -> u64 {
        let (Some(total), Some(since)) = (self.idle_ns.get(cpu), self.idle_since.get(cpu)) else { return 0 };
        let running_up = if self.idle & bit(cpu) != 0 { now.saturating_sub(*since) } else { 0 };
        total.saturating_add(running_up)
    }
}

/// The vCPU `id`, if it was not removed.
#[inline(always)]
fn entry(entries: &[Entry], id: VcpuId) -> Option<&Entry> {
    entries.get(id.index()).filter(|e| e.tenant == id.tenant)
}

#[inline(always)]
fn entry_mut(entries: &mut [Entry], id: VcpuId) -> Option<&mut Entry> {
    entries.get_mut(id.index()).filter(|e| e.tenant == id.tenant)
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
