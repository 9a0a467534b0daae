//! One vCPU: its virtual time, what it may borrow, and how long it has been in each state.
//!
//! Borrowing has two steps. An *urgent* loan puts a driver domain before everybody else, for as long as an interrupt
//! takes to handle; whatever it does after that must not keep an ordinary guest from answering its own events, so the
//! *usual* loan is the same for both.
//!
//! Virtual time is in ns at the default weight. It is compared as a signed difference, so it may wrap.

use super::{Params, PcpuId, Sleep, ANY_PCPU, DEFAULT_WEIGHT, MAX_PCPUS, MAX_WEIGHT};

/// Fraction bits of `Entry::rate`.
const RATE_BITS: u32 = 20;

/// What may be borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loan {
    /// How far forward it moves the vCPU, in ns of virtual time. 0: there is none.
    pub amount_ns: u64,
    /// How long the vCPU may run on it at a stretch.
    pub limit_ns: u64,
    /// In which time the whole limit is renewed.
    pub window_ns: u64,
}

impl Loan {
    const NONE: Loan = Loan { amount_ns: 0, limit_ns: 0, window_ns: 0 };
}

/// What borrowing for an event costs beside the time that is run. Who wakes all the time has soon nothing left to
/// borrow.
const WAKE_PRICE_NS: u64 = 20_000;

/// How a vCPU may borrow time when it is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warp {
    /// The urgent loan, if there is one, comes first.
    pub urgent: Loan,
    /// The other is worth the same to all.
    pub usual: Loan,
}

impl Warp {
    /// Never.
    pub const NONE: Warp = Warp { usual: Loan::NONE, urgent: Loan::NONE };
    /// For ordinary guests: enough to answer an event.
    pub const INTERACTIVE: Warp =
        Warp { usual: Loan { amount_ns: 10_000_000, limit_ns: 2_500_000, window_ns: 10_000_000 }, urgent: Loan::NONE };
    /// For driver domains: an interrupt goes before everything else for as long as it takes to handle one. What comes
    /// of it goes before those that were not woken, up to half of the time, but not before other guests' answers.
    pub const DRIVER: Warp = Warp {
        usual: Loan { amount_ns: 10_000_000, limit_ns: 5_000_000, window_ns: 20_000_000 },
        urgent: Loan { amount_ns: 50_000_000, limit_ns: 500_000, window_ns: 2_000_000 },
    };
}

/// What is left of a loan. It grows back all the time, up to the limit.
#[derive(Clone, Copy, Default)]
struct Credit {
    left: u64,
    renewed: u64,
}

impl Credit {
    fn full(loan: &Loan, now: u64) -> Credit {
        Credit { left: loan.limit_ns, renewed: now }
    }

    fn renew(&mut self, loan: &Loan, now: u64) {
        if self.left < loan.limit_ns {
            let elapsed = now.saturating_sub(self.renewed).min(loan.window_ns);
            let grown = elapsed.saturating_mul(loan.limit_ns) / loan.window_ns.max(1);
            self.left = self.left.saturating_add(grown).min(loan.limit_ns);
        }
        self.renewed = self.renewed.max(now);
    }
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
    /// How many used the slot before this one.
    pub tenant: u32,
    pub runnable: bool,
    pub asleep: Sleep,
    pub yielded: bool,
    /// On borrowed time.
    pub warped: bool,
    /// On the urgent loan, as long as that lasts.
    is_urgent: bool,
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
    usual: Credit,
    urgent: Credit,
    pub warped_ns: u64,
    /// When an event came for it, if it is on no pCPU since.
    woken_at: Option<u64>,
    /// Until when the vCPU that sent that event, or shares the interrupt, may go on before this one comes. 0: there is
    /// none.
    comes_after: u64,
    /// Start of what has not been charged yet.
    since: u64,
    weight: u64,
    rate: u64,
    warp: Warp,
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
    /// How often it waited for longer than [`LATE_NS`]. The time for which the sender of an event may go on does not
    /// count.
    pub late: u64,
    /// How often it waited for longer than that, but only because the vCPU that sent the event, or shares the
    /// interrupt, went on.
    pub behind_sender: u64,
    /// The longest wait, in ns, without such time.
    pub worst_ns: u64,
}

/// A woken vCPU that waits for longer than this is counted as late.
pub const LATE_NS: u64 = 50_000;

impl Wakes {
    /// An event came at `event`, the vCPU was to run at `due`, and runs `now`.
    #[inline]
    fn note(&mut self, event: u64, due: u64, now: u64) {
        let waited = now.saturating_sub(due);
        self.count += 1;
        if waited > LATE_NS {
            self.late += 1;
        } else if now.saturating_sub(event) > LATE_NS {
            self.behind_sender += 1;
        }
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
            tenant: 0,
            runnable: false,
            asleep: Sleep::Offline,
            yielded: false,
            warped: false,
            is_urgent: false,
            cpu: 0,
            next: super::NIL,
            prev: super::NIL,
            affinity: ANY_PCPU,
            domain: 0,
            actual: level,
            effective: level,
            usual: Credit::default(),
            urgent: Credit::default(),
            warped_ns: 0,
            woken_at: None,
            comes_after: 0,
            since: now,
            weight: 0,
            rate: 0,
            warp: Warp::NONE,
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

    pub fn set_warp(&mut self, warp: Warp, now: u64) {
        self.warp = warp;
        (self.usual, self.urgent) = (Credit::full(&warp.usual, now), Credit::full(&warp.urgent, now));
        // A queued entry keeps the key it was sorted by; the next round sees the change.
        (self.warped, self.is_urgent) = (false, false);
    }

    /// An event came for it, and it is on no pCPU. The first one counts.
    #[inline]
    pub fn note_event(&mut self, now: u64) {
        self.woken_at.get_or_insert(now);
    }

    /// The vCPU that sent the event, or shares the interrupt, may go on until then before this one comes.
    #[inline]
    pub fn come_after(&mut self, until: u64) {
        self.comes_after = until;
    }

    /// What comes for it now is no sender's. If it was to come after one, it is as if it were woken now.
    #[inline]
    pub fn come_at_once(&mut self, now: u64) {
        if core::mem::take(&mut self.comes_after) != 0 {
            self.woken_at = Some(now);
        }
    }

    /// Did an event come for it since it was on a pCPU?
    #[inline]
    pub fn is_fresh(&self) -> bool {
        self.woken_at.is_some()
    }

    /// Could it borrow more than it has?
    #[inline]
    pub fn may_borrow_more(&self) -> bool {
        !self.warped || !self.is_urgent && self.warp.urgent.amount_ns != 0
    }

    /// Borrows for an event, if there is more left than that costs.
    #[inline]
    pub fn try_warp(&mut self, now: u64) {
        self.usual.renew(&self.warp.usual, now);
        self.urgent.renew(&self.warp.urgent, now);
        self.is_urgent = self.urgent.left > WAKE_PRICE_NS;
        self.warped = self.is_urgent || self.usual.left > WAKE_PRICE_NS;
        if self.warped {
            self.use_loan(WAKE_PRICE_NS);
        }
    }

    /// Takes up to `ns` off what is left to borrow, and says how much that was.
    #[inline]
    fn use_loan(&mut self, ns: u64) -> u64 {
        let urgent = ns.min(self.urgent_left());
        let usual = (ns - urgent).min(self.usual.left);
        self.urgent.left -= urgent;
        self.usual.left -= usual;
        self.is_urgent = self.urgent_left() != 0;
        self.warped = self.is_urgent || self.usual.left != 0;
        urgent + usual
    }

    #[inline]
    fn urgent_left(&self) -> u64 {
        if self.is_urgent {
            self.urgent.left
        } else {
            0
        }
    }

    /// How much it has borrowed once it has run for `ran` more.
    #[inline]
    fn borrowed_after(&self, ran: u64) -> u64 {
        let urgent = self.urgent_left();
        if !self.warped {
            0
        } else if ran < urgent {
            self.warp.urgent.amount_ns
        } else if ran - urgent < self.usual.left {
            self.warp.usual.amount_ns
        } else {
            0
        }
    }

    /// How long it may run before it has less borrowed than now.
    #[inline]
    pub fn loan_left(&self) -> Option<u64> {
        self.warped.then_some(if self.is_urgent { self.urgent.left } else { self.usual.left })
    }

    /// Accounts for the time since the last charge, and says how long that was.
    #[inline]
    pub fn charge(&mut self, now: u64) -> u64 {
        let ran = now.saturating_sub(self.since);
        self.since = self.since.max(now);
        self.actual = self.actual.wrapping_add(self.to_virtual(ran));
        if self.warped {
            let borrowed = self.use_loan(ran);
            self.warped_ns = self.warped_ns.saturating_add(borrowed);
        }
        ran
    }

    /// It is no further ahead of `floor` than by its longest turn and what it may have borrowed meanwhile. What it ran
    /// beyond that nobody else wanted: it had a pCPU for itself, or others could not use more (one vCPU cannot use two
    /// pCPUs). If it owed that it would stand still, once they can, until they have caught up, for minutes where they
    /// are heavier.
    #[inline]
    pub fn owe_no_more(&mut self, floor: u64, params: &Params) {
        let borrowed = self.warp.urgent.amount_ns.saturating_add(self.warp.usual.amount_ns);
        let longest = self.to_virtual(params.max_slice_ns.saturating_add(params.allowance_ns));
        let most = floor.wrapping_add(longest).wrapping_add(borrowed);
        if later(self.actual, most) {
            self.actual = most;
        }
    }

    #[inline]
    pub fn start(&mut self, cpu: PcpuId, now: u64) {
        self.state = State::OnCpu;
        let comes_after = core::mem::take(&mut self.comes_after);
        if let Some(event) = self.woken_at.take() {
            self.wakes.note(event, event.max(comes_after), now);
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
        self.actual.wrapping_sub(self.borrowed_after(0))
    }

    /// Effective virtual time if it has run until `now`.
    #[inline]
    pub fn effective_at(&self, now: u64) -> u64 {
        let ran = now.saturating_sub(self.since);
        self.actual.wrapping_add(self.to_virtual(ran)).wrapping_sub(self.borrowed_after(ran))
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

    /// The runstate in which it leaves its pCPU.
    #[inline]
    pub fn left_for(&self) -> Runstate {
        if self.runnable {
            Runstate::Runnable
        } else {
            self.asleep.into()
        }
    }

    /// The runstate, when it was entered, and the times up to then.
    #[inline]
    pub fn runstate_entered(&self) -> (Runstate, u64, [u64; 4]) {
        (self.runstate, self.entered, self.times)
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
