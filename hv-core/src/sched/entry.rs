//! One vCPU: its virtual time, what it may borrow, and how long it has been in each state.
//!
//! Virtual time is in ns at the default weight. It is compared as a signed difference, so it may wrap.

use super::{PcpuId, Sleep, ANY_PCPU, DEFAULT_WEIGHT, MAX_PCPUS, MAX_WEIGHT};

/// Fraction bits of `Entry::rate`.
const RATE_BITS: u32 = 20;

/// How a vCPU may borrow time when it is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warp {
    /// How far forward it moves, in ns of virtual time. 0: it does not borrow.
    pub amount_ns: u64,
    /// How long it may run on borrowed time per window.
    pub limit_ns: u64,
    /// Length of a window: the limit is renewed at the first wake after its end.
    pub window_ns: u64,
}

impl Warp {
    /// Never.
    pub const NONE: Warp = Warp { amount_ns: 0, limit_ns: 0, window_ns: 0 };
    /// For ordinary guests: enough to answer an event.
    pub const INTERACTIVE: Warp = Warp { amount_ns: 5_000_000, limit_ns: 1_000_000, window_ns: 10_000_000 };
    /// For driver domains: an interrupt goes before everything else, up to half of the time.
    pub const DRIVER: Warp = Warp { amount_ns: 50_000_000, limit_ns: 10_000_000, window_ns: 20_000_000 };
}

/// The states of a runstate record, numbered as in the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Runstate {
    /// On a pCPU.
    Running = 0,
    /// Wants to be.
    Runnable = 1,
    /// Waits for an event.
    Blocked = 2,
    /// Down or paused.
    Offline = 3,
}

impl From<Sleep> for Runstate {
    fn from(why: Sleep) -> Runstate {
        match why {
            Sleep::Blocked => Runstate::Blocked,
            Sleep::Offline => Runstate::Offline,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The slot is unused.
    Free,
    /// On no queue; not runnable.
    Asleep,
    /// Waiting for a pCPU.
    Queued,
    /// Would wait for a pCPU if its domain's cap allowed it.
    Parked,
    /// Running; possibly no longer runnable.
    OnCpu,
    /// Switched away from, registers not yet stored.
    Leaving,
}

pub(super) struct Entry {
    pub state: State,
    pub runnable: bool,
    pub asleep: Sleep,
    /// Woken, and not on a pCPU since.
    pub fresh: bool,
    pub yielded: bool,
    pub warped: bool,
    /// Where it runs or last ran.
    pub cpu: u8,
    /// Queue links.
    pub next: u16,
    pub prev: u16,
    pub affinity: u64,
    /// Slot of the first vCPU of its domain.
    pub domain: u16,
    pub actual: u64,
    /// The key on the queue.
    pub effective: u64,
    pub warp_left: u64,
    pub warped_ns: u64,
    /// Start of what has not been charged yet.
    since: u64,
    weight: u64,
    rate: u64,
    warp: Warp,
    window_end: u64,
    runstate: Runstate,
    entered: u64,
    times: [u64; 4],
    pub wakes: Wakes,
}

/// How quickly a vCPU ran when it was woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// How often.
    pub count: u64,
    /// How often it waited for longer than [`LATE_NS`].
    pub late: u64,
    /// The longest wait, in ns.
    pub worst_ns: u64,
}

/// A woken vCPU that waits for longer than this is counted as late.
pub const LATE_NS: u64 = 50_000;

impl Wakes {
    #[inline]
    fn note(&mut self, waited: u64) {
        self.count += 1;
        self.late += u64::from(waited > LATE_NS);
        self.worst_ns = self.worst_ns.max(waited);
    }
}

impl Entry {
    pub fn free() -> Entry {
        Entry { state: State::Free, ..Entry::new(0, 0) }
    }

    pub fn new(now: u64, level: u64) -> Entry {
        let mut e = Entry {
            state: State::Asleep,
            runnable: false,
            asleep: Sleep::Offline,
            fresh: false,
            yielded: false,
            warped: false,
            cpu: 0,
            next: super::NIL,
            prev: super::NIL,
            affinity: ANY_PCPU,
            domain: 0,
            actual: level,
            effective: level,
            warp_left: 0,
            warped_ns: 0,
            since: now,
            weight: 0,
            rate: 0,
            warp: Warp::NONE,
            window_end: 0,
            runstate: Runstate::Offline,
            entered: now,
            times: [0; 4],
            wakes: Wakes::default(),
        };
        e.set_weight(DEFAULT_WEIGHT);
        e
    }

    pub fn set_weight(&mut self, weight: u32) {
        self.weight = weight.clamp(1, MAX_WEIGHT).into();
        self.rate = (u64::from(DEFAULT_WEIGHT) << RATE_BITS) / self.weight;
    }

    pub fn set_warp(&mut self, warp: Warp) {
        self.warp = warp;
        self.window_end = 0;
        if warp.amount_ns == 0 {
            // A queued entry keeps the key it was sorted by; the next round sees the change.
            self.warp_left = 0;
        }
    }

    /// Borrows, if the window's limit is not used up. `true` if it now runs on borrowed time.
    #[inline]
    pub fn try_warp(&mut self, now: u64) -> bool {
        if self.warp.amount_ns == 0 {
            return false;
        }
        if now >= self.window_end {
            self.window_end = now.saturating_add(self.warp.window_ns);
            self.warp_left = self.warp.limit_ns;
        }
        self.warped = self.warp_left != 0;
        self.warped
    }

    /// Accounts for the time since the last charge, and says how long that was.
    #[inline]
    pub fn charge(&mut self, now: u64) -> u64 {
        let ran = now.saturating_sub(self.since);
        self.since = self.since.max(now);
        self.actual = self.actual.wrapping_add(self.to_virtual(ran));
        if self.warped {
            let borrowed = ran.min(self.warp_left);
            self.warped_ns = self.warped_ns.saturating_add(borrowed);
            self.warp_left -= borrowed;
            self.warped = self.warp_left != 0;
        }
        ran
    }

    #[inline]
    pub fn start(&mut self, cpu: PcpuId, now: u64) {
        self.state = State::OnCpu;
        if self.fresh {
            self.fresh = false;
            self.wakes.note(now.saturating_sub(self.entered));
        }
        self.cpu = u8::try_from(cpu % MAX_PCPUS).unwrap_or(0);
        self.since = now;
        self.enter(Runstate::Running, now);
    }

    /// Until when it is not preempted for others, if every turn is to last `min_run` ns.
    #[inline]
    pub fn left_alone_until(&self, min_run: u64) -> u64 {
        if min_run == 0 || self.runstate != Runstate::Running {
            0
        } else {
            self.entered.saturating_add(min_run)
        }
    }

    /// Virtual ns for `real` ns of running.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "virtual time wraps")]
    pub fn to_virtual(&self, real: u64) -> u64 {
        ((u128::from(real) * u128::from(self.rate)) >> RATE_BITS) as u64
    }

    /// How long it may run to advance by `virt`.
    #[inline]
    pub fn to_real(&self, virt: u64) -> u64 {
        (virt / u64::from(DEFAULT_WEIGHT)).saturating_mul(self.weight)
    }

    /// Effective virtual time at the last charge.
    #[inline]
    pub fn effective_now(&self) -> u64 {
        if self.warped {
            self.actual.wrapping_sub(self.warp.amount_ns)
        } else {
            self.actual
        }
    }

    /// Effective virtual time if it has run until `now`.
    #[inline]
    pub fn effective_at(&self, now: u64) -> u64 {
        let ran = now.saturating_sub(self.since);
        let actual = self.actual.wrapping_add(self.to_virtual(ran));
        if self.warped && ran < self.warp_left {
            actual.wrapping_sub(self.warp.amount_ns)
        } else {
            actual
        }
    }

    /// Changes the runstate.
    #[inline]
    pub fn enter(&mut self, to: Runstate, now: u64) {
        if self.runstate != to {
            let spent = &mut self.times[self.runstate as usize];
            *spent = spent.saturating_add(now.saturating_sub(self.entered));
            self.runstate = to;
            self.entered = now;
        }
    }

    pub fn runstate_at(&self, now: u64) -> (Runstate, u64, [u64; 4]) {
        let mut times = self.times;
        let spent = &mut times[self.runstate as usize];
        *spent = spent.saturating_add(now.saturating_sub(self.entered));
        (self.runstate, self.entered, times)
    }
}

/// Is virtual time `a` after `b`?
#[inline]
pub(super) fn later(a: u64, b: u64) -> bool {
    distance(a, b) > 0
}

/// `a - b`, signed: virtual times are near each other on the circle of 2^64.
#[inline]
pub(super) fn distance(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}
