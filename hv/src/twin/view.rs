//! The driver domain as the runtime sees it, in the mirror's address space, and what drivers ask the hypervisor for.

use crate::arch::tsc;
use crate::cpu::requests;
use crate::mem::copy;
use crate::sched::timers;
use crate::twin::common::Common;
use crate::twin::entry;
use crate::twin::instance::Instance;
use crate::twin::net::OnCard;
use crate::twin::run::ToCall;
use crate::twin::stlb;
use crate::twin::words::{self, MaskedAddr};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::cmdline::Options;
use twin_abi::layout::ctx;
use twin_abi::op::note;
use twin_runtime::gate::{Embedder, Upcall};
use twin_runtime::limit::{TimeLimit, Unheard};
use twin_runtime::linux::lanes::MAX_LANES;
use twin_runtime::linux::pool::Pool;
use twin_runtime::linux::skb::Frame;
use twin_runtime::linux::{lock, Foreign, Host, Routine, Stop};
use twin_runtime::memory::Fault;
use twin_runtime::stlb::Mapper;
use twin_runtime::{Memory, Reason};

/// What an invocation may take, in ns.
static LIMIT_NS: AtomicU64 = AtomicU64::new(100_000_000);

/// Takes that from the options.
pub fn init(options: &Options) {
    LIMIT_NS.store(u64::from(options.twin_limit_ms) * 1_000_000, Ordering::Relaxed);
}

/// Invocations of a session that have one [`TimeLimit`]: a handler or a packet to send takes some microseconds.
/// Interrupts are served meanwhile; other work of this CPU waits.
const TOGETHER: u32 = 8;
/// How often a lock of the domain's is tried that somebody holds, perhaps the twin on another CPU.
const LOCK_TRIES: u32 = 10_000;
/// The same, if the invocation can wait.
const SHORT_LOCK_TRIES: u32 = 200;
/// And after how many tries it is looked whether there is time left: each may wait for a device.
const LOOK_AT_TIME: u32 = 64;
/// In [`DomainView::woken`], beside the bits of lanes: the time of its CPU's that it had is over.
pub const LATE: u32 = 1 << 31;
const _: () = assert!(MAX_LANES < LATE.trailing_zeros() as usize);

/// See the module.
pub struct DomainView<'a> {
    instance: &'a Instance,
    /// The word of the instance's context page that holds the budget.
    budget: &'a AtomicU64,
    /// What it shares with others.
    pub common: &'a Common,
    card: Option<OnCard<'a>>,
    limit: Cell<TimeLimit>,
    /// Invocations that have begun, or gone on.
    begun: u32,
    /// Whether the timer may have fired where nothing could be done.
    pub unheard: Unheard,
    /// The function that it waits for.
    pub to_call: Option<ToCall>,
    /// The card's polls that are to run: bits.
    pub polls: u32,
    /// The card's polls that were given up: bits.
    pub completed: u32,
    /// The card's lanes whose transmit queues may go on: bits. And [`LATE`].
    pub woken: u32,
    /// Its CPU has other work from then on, in ns.
    pub late_ns: u64,
}

impl<'a> DomainView<'a> {
    /// Seen from `instance`.
    pub fn new(instance: &'a Instance, common: &'a Common, card: Option<OnCard<'a>>) -> Self {
        Self {
            instance,
            budget: instance.budget(),
            common,
            card,
            limit: Cell::new(TimeLimit::NONE),
            begun: 0,
            unheard: Unheard::default(),
            to_call: None,
            polls: 0,
            completed: 0,
            woken: 0,
            late_ns: u64::MAX,
        }
    }

    /// Does something with the card and the domain's memory. Without a card, `none`.
    #[inline(always)]
    fn with_card<R>(&mut self, none: R, work: impl FnOnce(&mut OnCard<'a>, &Self) -> R) -> R {
        let Some(mut card) = self.card.take() else { return none };
        let result = work(&mut card, self);
        self.card = Some(card);
        result
    }

    /// Passes on what the card has received.
    #[inline]
    pub fn pass_on(&mut self) {
        if let Some(card) = &mut self.card {
            card.pass_on(self.common);
        }
    }

    /// The driver is done with a packet of the card's.
    #[inline]
    pub fn sent(&mut self, cookie: u64) {
        if let Some(card) = &mut self.card {
            card.sent(cookie);
        }
    }

    /// Nothing more comes from the card: everything is passed on.
    pub fn finish(&mut self) {
        if let Some(mut card) = self.card.take() {
            card.finish(self.common);
        }
    }

    /// Its invocation is aborted: the domain gets the locks and the poll back that it has taken. What they protect is
    /// the driver's to put in order, which begins anew; with a lock taken, or a poll that never ends, it could not even
    /// do that.
    pub fn give_back(&mut self) {
        let instance = self.instance;
        if instance.taken_poll() != 0 {
            // If it is not there the domain has no use for it.
            let _ = self.common.support.give_poll_back(self, instance.taken_poll());
            instance.set_taken_poll(0);
        }
        for lock in instance.take_held() {
            // If it is not there, or not taken, the domain has no use for it.
            if let Err(Stop::Upcall) = lock::release(&self.common.support, self, lock) {
                self.common.note_foreign(Foreign::Lock(lock));
            }
        }
    }

    /// The one that ended took as long as many do: the next has a time of its own.
    pub fn begin_anew(&mut self) {
        self.begun = 0;
    }

    /// An invocation begins, or goes on: its time runs. `true`: since now, and the timer has to know; else with that of
    /// the one before.
    pub fn begin(&mut self) -> bool {
        self.to_call = None;
        let is_fresh = self.begun.is_multiple_of(TOGETHER);
        self.begun = self.begun.wrapping_add(1);
        if is_fresh {
            let now = tsc::now_ns();
            self.limit.set(TimeLimit::from(now, LIMIT_NS.load(Ordering::Relaxed)));
            self.note_late(now);
        }
        is_fresh
    }

    /// Has its CPU other work at `now` (ns)? Who runs it hears of that as of a queue that was woken, so it costs
    /// nothing to ask.
    pub fn note_late(&mut self, now: u64) {
        if now >= self.late_ns {
            self.woken |= LATE;
        }
    }

    /// Is the time over, and was it found to be as often as it may be?
    pub fn has_no_time_left(&self) -> bool {
        let mut limit = self.limit.get();
        let before = limit.deadline_ns();
        if limit.is_over(tsc::now_ns(), self.budget()) {
            return true;
        }
        if limit.deadline_ns() != before {
            self.limit.set(limit);
            // The shot for the one before may have been spent on the way to a gate.
            timers::fire_again_by(limit.deadline_ns());
        }
        false
    }

    /// When its time is over, in ns.
    pub fn deadline_ns(&self) -> u64 {
        self.limit.get().deadline_ns()
    }
}

/// How many bytes a member is behind its structure: none is larger than [`Offsets::LARGEST`].
///
/// [`Offsets::LARGEST`]: twin_runtime::linux::offsets::Offsets::LARGEST
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "see above")]
fn behind(member: u64) -> u32 {
    member as u32
}

/// What a write to `address` comes to.
#[inline(always)]
fn written(is_written: bool, address: u64) -> Result<(), Fault> {
    if is_written {
        Ok(())
    } else {
        not_written(address)
    }
}

/// Apart: what it needs is not prepared for each write.
#[cold]
#[inline(never)]
fn not_written(address: u64) -> Result<(), Fault> {
    Err(Fault { address, write: true })
}

impl Memory for DomainView<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        copy::from_guest(into, MaskedAddr::of(address).raw()).map_err(|_| Fault { address, write: false })
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        copy::to_guest(MaskedAddr::of(address).raw(), from).map_err(|_| Fault { address, write: true })
    }
    #[inline(always)]
    fn u8(&self, address: u64) -> Result<u8, Fault> {
        words::u8(MaskedAddr::of(address)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn u16(&self, address: u64) -> Result<u16, Fault> {
        words::u16(MaskedAddr::of(address)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn u32(&self, address: u64) -> Result<u32, Fault> {
        words::u32(MaskedAddr::of(address)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn u64(&self, address: u64) -> Result<u64, Fault> {
        words::u64(MaskedAddr::of(address)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn u32s<const N: usize>(&self, address: u64, members: [u64; N]) -> Result<[u32; N], Fault> {
        let mut has_faulted = 0;
        let words =
            members.map(|member| words::note_member_u32(MaskedAddr::of(address), behind(member), &mut has_faulted));
        if has_faulted == 0 {
            Ok(words)
        } else {
            Err(Fault { address, write: false })
        }
    }
    #[inline(always)]
    fn u64s<const N: usize>(&self, address: u64, members: [u64; N]) -> Result<[u64; N], Fault> {
        let mut has_faulted = 0;
        let words =
            members.map(|member| words::note_member_u64(MaskedAddr::of(address), behind(member), &mut has_faulted));
        if has_faulted == 0 {
            Ok(words)
        } else {
            Err(Fault { address, write: false })
        }
    }
    #[inline(always)]
    fn put_u8(&self, address: u64, value: u8) -> Result<(), Fault> {
        written(words::put_u8(MaskedAddr::of(address), value), address)
    }
    #[inline(always)]
    fn put_u16(&self, address: u64, value: u16) -> Result<(), Fault> {
        written(words::put_u16(MaskedAddr::of(address), value), address)
    }
    #[inline(always)]
    fn put_u32(&self, address: u64, value: u32) -> Result<(), Fault> {
        written(words::put_u32(MaskedAddr::of(address), value), address)
    }
    #[inline(always)]
    fn put_u64(&self, address: u64, value: u64) -> Result<(), Fault> {
        written(words::put_u64(MaskedAddr::of(address), value), address)
    }
    #[inline(always)]
    fn member_u8(&self, address: u64, member: u64) -> Result<u8, Fault> {
        words::member_u8(MaskedAddr::of(address), behind(member)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn put_member_u8(&self, address: u64, member: u64, value: u8) -> Result<(), Fault> {
        written(words::put_member_u8(MaskedAddr::of(address), behind(member), value), address)
    }
    #[inline(always)]
    fn member_u16(&self, address: u64, member: u64) -> Result<u16, Fault> {
        words::member_u16(MaskedAddr::of(address), behind(member)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn put_member_u16(&self, address: u64, member: u64, value: u16) -> Result<(), Fault> {
        written(words::put_member_u16(MaskedAddr::of(address), behind(member), value), address)
    }
    #[inline(always)]
    fn member_u32(&self, address: u64, member: u64) -> Result<u32, Fault> {
        words::member_u32(MaskedAddr::of(address), behind(member)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn put_member_u32(&self, address: u64, member: u64, value: u32) -> Result<(), Fault> {
        written(words::put_member_u32(MaskedAddr::of(address), behind(member), value), address)
    }
    #[inline(always)]
    fn member_u64(&self, address: u64, member: u64) -> Result<u64, Fault> {
        words::member_u64(MaskedAddr::of(address), behind(member)).ok_or(Fault { address, write: false })
    }
    #[inline(always)]
    fn put_member_u64(&self, address: u64, member: u64, value: u64) -> Result<(), Fault> {
        written(words::put_member_u64(MaskedAddr::of(address), behind(member), value), address)
    }
    #[inline(always)]
    fn fill(&self, to: u64, value: u8, len: u64) -> Result<(), Fault> {
        written(words::fill(MaskedAddr::of(to), value, len), to)
    }
    #[allow(clippy::cast_possible_truncation, reason = "four bytes were exchanged")]
    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        let fault = Fault { address, write: true };
        if !address.is_multiple_of(4) {
            return Err(fault);
        }
        entry::exchange(MaskedAddr::of(address), old.into(), new.into(), 4).map(|was| was as u32).ok_or(fault)
    }
    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        let fault = Fault { address, write: true };
        if !address.is_multiple_of(8) {
            return Err(fault);
        }
        entry::exchange(MaskedAddr::of(address), old, new, 8).ok_or(fault)
    }
    fn read_device(&self, address: u64, bytes: u32) -> Result<u64, Fault> {
        entry::read_device(MaskedAddr::of(address), bytes).ok_or(Fault { address, write: false })
    }
    fn write_device(&self, address: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        entry::write_device(MaskedAddr::of(address), bytes, value).ok_or(Fault { address, write: true })
    }
}

/// What drivers ask the hypervisor for. What [`Common::serves`] leaves to the domain is not asked.
impl Host for DomainView<'_> {
    #[inline(always)]
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        self.common.with_pool(work)
    }
    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        let frame = self.u64(self.common.p2m_entry(pfn)?).ok()?;
        self.common.owns(frame).then_some(frame)
    }
    fn is_bounced(&self, address: u64) -> bool {
        self.common.is_bounced(address)
    }
    fn runs_poll(&self, napi: u64) -> bool {
        self.card.as_ref().is_some_and(|card| card.attached.poll_of(napi).is_some())
    }
    fn schedule_poll(&mut self, napi: u64) {
        if let Some(number) = self.card.as_ref().and_then(|card| card.attached.poll_of(napi)) {
            self.polls |= 1 << number;
        }
    }
    fn has_taken_poll(&mut self, napi: u64) {
        self.instance.set_taken_poll(napi);
    }
    fn schedules_poll(&mut self, napi: u64) {
        if self.instance.taken_poll() == napi {
            self.instance.set_taken_poll(0);
        }
    }
    fn has_completed_poll(&mut self, napi: u64) {
        if let Some(number) = self.card.as_ref().and_then(|card| card.attached.poll_of(napi)) {
            self.completed |= 1 << number;
        }
    }
    fn takes_packets(&self) -> bool {
        self.card.is_some()
    }
    #[inline(always)]
    fn receive(&mut self, frame: Frame<'_>) -> bool {
        if self.card.as_mut().is_some_and(|card| card.keep(frame, self.common)) {
            return true;
        }
        self.with_card(false, |card, view| card.receive(frame, view.common, view))
    }
    #[cold]
    fn relieve(&mut self) -> bool {
        let has_some = self.card.as_ref().is_some_and(OnCard::keeps);
        self.pass_on();
        has_some
    }
    fn transmitted(&mut self, _skb: u64, cookie: u64) {
        self.sent(cookie);
    }
    fn free_in_domain(&mut self, what: Foreign) {
        self.common.note_foreign(what);
    }
    fn wake_sleepers(&mut self) {
        self.common.wake_pollers();
    }
    fn queue_event(&mut self, queue: u64) {
        let lane = self.card.as_ref().and_then(|card| card.attached.lanes.of_queue(queue));
        self.woken |= lane.map_or(0, |lane| 1 << lane);
        self.common.note_once(note::QUEUE, queue);
    }
    fn lock_is_busy(&mut self, _lock: u64, tries: u32) -> bool {
        requests::answer();
        core::hint::spin_loop();
        let most = if self.may_wait() { SHORT_LOCK_TRIES } else { LOCK_TRIES };
        // A word of a device's takes its time to be read.
        tries < most && (!tries.is_multiple_of(LOOK_AT_TIME) || !self.has_no_time_left())
    }
    fn goes_on(&mut self) -> bool {
        requests::answer();
        !self.has_no_time_left()
    }
    fn has_taken(&mut self, lock: u64) {
        self.instance.hold(lock);
    }
    fn has_released(&mut self, lock: u64) {
        self.instance.let_go(lock);
    }
    fn may_wait(&self) -> bool {
        self.card.is_some()
    }
    fn note(&mut self, _routine: Routine, _args: &[u64; 6]) {}
}

/// Mirror mode has no table.
/// In stlb mode the entries behind a window are the domain's ([`stlb`]), so nothing is to be undone.
impl Mapper for DomainView<'_> {
    fn map_pair(&mut self, page: u64) -> Result<u64, Fault> {
        stlb::window(self.instance.config().unsafe_area, page).ok_or(Fault { address: page, write: false })
    }
    fn unmap_pair(&mut self, _mapped: u64) {}
    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
        self.instance.set_stlb(index, tag, mapped);
    }
}

impl Embedder for DomainView<'_> {
    fn budget(&self) -> i64 {
        self.budget.load(Ordering::Relaxed).cast_signed()
    }
    fn set_budget(&mut self, steps: i64) {
        self.budget.store(steps.cast_unsigned(), Ordering::Relaxed);
    }
    #[inline(always)]
    fn charge(&mut self) -> i64 {
        // The instance runs on one CPU at a time.
        let left = self.budget.load(Ordering::Relaxed).wrapping_sub(1);
        self.budget.store(left, Ordering::Relaxed);
        left.cast_signed()
    }
    fn miss_address(&self) -> u64 {
        self.instance.context(ctx::MISS_ADDRESS)
    }
    fn set_miss_result(&mut self, address: u64) {
        self.instance.set_context(ctx::MISS_RESULT, address);
    }
    fn upcall(
        &mut self,
        import: u32,
        name: &str,
        function: u64,
        args: &[u64; 6],
        stack: u64,
    ) -> Result<Upcall, Reason> {
        let more = self.instance.stack_arguments(stack);
        let is_lock = self.may_wait() && Routine::by_name(name) == Some(Routine::SpinLock);
        self.to_call = Some(ToCall { import, function, args: *args, more, is_lock });
        Ok(Upcall::Later)
    }
    /// The timer interrupts the twin when its time is over, wherever it is, and only if that was on the way to a gate
    /// or back, which cannot be left there, the next gate has to look.
    #[inline(always)]
    fn is_out_of_time(&self) -> bool {
        self.unheard.is_over(|| self.has_no_time_left())
    }
    fn is_twin_stack(&self, address: u64) -> bool {
        self.instance.config().is_twin_stack(address)
    }
}
