//! One invocation of a twin: who serves its gates, and how it ends.

use crate::arch::{idt, timer_hw, tlb, tsc};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, requests, Interruptible};
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::mem::copy;
use crate::pv::debugreg;
use crate::pv::vtlb;
use crate::sched::timers;
use crate::twin::common::Common;
use crate::twin::entry::{self, Kept, Way};
use crate::twin::instance::{Instance, Slot, Waiting};
use crate::twin::space::Mirror;
use crate::twin::Loaded;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use twin_abi::layout::ctx;
use twin_abi::op::{note, MASK_BITS};
use twin_runtime::gate::{Answer, Call, Embedder, Invocation, Upcall};
use twin_runtime::linux::pool::Pool;
use twin_runtime::linux::skb::Frame;
use twin_runtime::linux::{Foreign, Host, Routine};
use twin_runtime::memory::Fault;
use twin_runtime::stlb::Mapper;
use twin_runtime::{Abort, Memory, Reason};
use xen_abi::errno::Errno;

/// An invocation may take so long. Interrupts are served meanwhile; other work of this CPU waits.
const TIME_LIMIT_NS: u64 = 100_000_000;
/// And so much more, if it is found to be over: the machine itself may have stood still, as one that is emulated or nested does.
const GRACE_NS: u64 = 50_000_000;
/// How often a lock of the domain's is tried that somebody holds, perhaps the twin on another CPU.
const LOCK_TRIES: u32 = 10_000;
const MASK: u64 = (1 << MASK_BITS) - 1;

/// An invocation under way.
pub struct Running<'a> {
    /// Where it runs.
    pub instance: &'a Instance,
    /// What it sees.
    pub mirror: &'a Mirror,
    invocation: Invocation<'a, 'static>,
    domain: DomainView<'a>,
    /// Why it ended before its end.
    pub abort: Option<Abort>,
    /// Its registers, if it waits.
    pub kept: Kept,
}

/// How a part of an invocation begins.
pub enum Begin {
    /// A function is called.
    Call {
        /// The domain's address of it.
        function: u64,
        /// Its arguments.
        args: [u64; 6],
        /// Steps that it may take.
        budget: u64,
    },
    /// A function of the domain returned.
    Resume {
        /// This.
        result: u64,
    },
}

/// How a part of an invocation ended.
pub struct Ended {
    /// How.
    pub how: How,
    /// Steps that it took so far.
    pub steps: u64,
}

/// How it ended.
pub enum How {
    /// The function returned.
    Returned(u64),
    /// It was aborted.
    Aborted(Abort),
    /// It waits for a function of the domain.
    Waits(ToCall),
}

/// A function of the domain that is to be called.
pub struct ToCall {
    /// Number of the import.
    pub import: u32,
    /// Its address.
    pub function: u64,
    /// Its arguments.
    pub args: [u64; 6],
    /// Further ones.
    pub more: [u64; 4],
}

impl Running<'_> {
    /// Number of imports: the stubs of special gates come after them.
    pub fn imports(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_IMPORTS")]
        let imports = self.invocation.twin().verified().image().imports().len() as u32;
        imports
    }

    /// Code offset of the return address at the twin's stack pointer `stack`.
    pub fn return_offset(&self, stack: u64) -> u32 {
        let address = self.instance.stack_word(stack);
        u32::try_from(address.wrapping_sub(self.instance.code_address(0))).unwrap_or(u32::MAX)
    }

    /// Serves a gate.
    pub fn gate(&mut self, call: &Call) -> Answer {
        let common = self.domain.common;
        if !common.has_room_for_notes() {
            let why = Reason::Structure { what: "the domain does not fetch what it has to do", value: 0 };
            return Answer::Abort(Abort::at(
                self.invocation.twin().verified().image(),
                call.from.saturating_sub(1),
                why,
            ));
        }
        self.invocation.gate(call, &mut self.domain, &common.support)
    }

    /// The twin's instruction at `rip` raised `vector`, which ends the invocation.
    pub fn was_stopped(&mut self, rip: u64, vector: u8, address: u64) {
        let offset = u32::try_from(rip.wrapping_sub(self.instance.code_address(0))).unwrap_or(u32::MAX);
        let in_guard = self.instance.config().is_guard(address);
        let image = *self.invocation.twin().verified().image();
        self.abort = Some(Abort::exception(&image, offset, vector, address, self.domain.budget(), in_guard));
    }
}

impl Running<'_> {
    /// The twin was interrupted at `rip`. Whether its time is over, which ends the invocation. Else the timer fires when it is.
    pub fn is_out_of_time(&mut self, rip: u64) -> bool {
        if !self.domain.is_out_of_time() {
            timer_hw::arm(self.domain.deadline_ns.get());
            return false;
        }
        let offset = u32::try_from(rip.wrapping_sub(self.instance.code_address(0))).unwrap_or(u32::MAX);
        let image = *self.invocation.twin().verified().image();
        self.abort = Some(Abort::at(&image, offset, Reason::TimeOut));
        true
    }
}

/// Runs a twin of `v`'s domain on this CPU, on which `v` runs, in instance `number`, whose `slot` is the caller's: a function, or what
/// waits. Errors: ESRCH if the twin has no such function; ENOENT if nothing waits.
pub fn invoke(
    v: &OwnedVcpu,
    loaded: &Loaded,
    number: usize,
    slot: &mut Slot,
    begin: Begin,
    _: Interruptible<'_>,
) -> Result<Ended, Errno> {
    let (instance, mirror, owner) = (&loaded.instances[number], &loaded.mirror, v.domain());
    let deadline_ns = tsc::now_ns().saturating_add(TIME_LIMIT_NS);
    let (deadline_ns, has_grace) = (Cell::new(deadline_ns), Cell::new(true));
    let mut domain = DomainView { instance, common: &loaded.common, deadline_ns, has_grace, to_call: None };
    let Slot { twin, waiting } = slot;
    let (invocation, way, budget) = match begin {
        Begin::Call { function, args, budget } => {
            let steps = budget.cast_signed();
            let (invocation, entry) = twin.begin(function, &args, steps, &mut domain).map_err(|_| Errno::ESRCH)?;
            (invocation, Way::Enter(instance.entry(&entry)), steps)
        }
        Begin::Resume { result } => {
            let waited = waiting.take().ok_or(Errno::ENOENT)?;
            let invocation = twin.resume().ok_or(Errno::ENOENT)?;
            (invocation, Way::Resume(instance.resume(waited.kept, result)), waited.budget)
        }
    };
    let mut running = Running { instance, mirror, invocation, domain, abort: None, kept: Kept::default() };
    disarm(v);
    timers::fire_by(running.domain.deadline_ns.get());
    let here = 1 << this_cpu().cpu;
    // Before the root is loaded: whoever changes a page table later has this CPU flush.
    owner.mirror_cpus.fetch_or(here, Ordering::SeqCst);
    idt::enter_twin();
    // SAFETY: the mirror has the hypervisor's slots and lives while it is loaded; the other areas are those of `Instance`,
    // whose code was verified; the twins' IDT is loaded and no breakpoint armed; what goes on was kept for that in its slot. The
    // guest's root is loaded again below.
    let value = unsafe {
        tlb::enter_mirror(mirror.root().addr().raw());
        let value = entry::enter(&mut running, &way);
        tlb::leave_mirror(vtlb::hardware_root(v).addr().raw());
        value
    };
    owner.mirror_cpus.fetch_and(!here, Ordering::SeqCst);
    idt::leave_twin();
    debugreg::load(v);
    debug_assert!(vcpu::current(this_cpu()).is_some_and(|current| core::ptr::eq(current, v)));
    let steps = budget.saturating_sub(running.domain.budget().max(0)).cast_unsigned();
    let Running { abort, kept, domain: DomainView { to_call, .. }, .. } = running;
    let how = match (abort, to_call) {
        (Some(abort), _) => How::Aborted(abort),
        (None, Some(to_call)) => {
            *waiting = Some(Waiting { kept, budget, since_ns: tsc::now_ns() });
            How::Waits(to_call)
        }
        (None, None) => How::Returned(value),
    };
    Ok(Ended { how, steps })
}

/// Takes the domain's breakpoints away: they would fire in the twin.
fn disarm(v: &OwnedVcpu) {
    if debugreg::in_use(v) {
        // SAFETY: no breakpoints.
        unsafe { cpu::write_dr7(x86::rflags::DR7_DEFAULT) };
    }
}

/// The driver domain as the runtime sees it, in the mirror's address space.
struct DomainView<'a> {
    instance: &'a Instance,
    common: &'a Common,
    deadline_ns: Cell<u64>,
    /// The time was not found to be over yet.
    has_grace: Cell<bool>,
    /// The function that it waits for.
    to_call: Option<ToCall>,
}

impl Memory for DomainView<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        copy::from_guest(into, address & MASK).map_err(|_| Fault { address, write: false })
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        copy::to_guest(address & MASK, from).map_err(|_| Fault { address, write: true })
    }
    #[allow(clippy::cast_possible_truncation, reason = "four bytes were exchanged")]
    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        let fault = Fault { address, write: true };
        if address % 4 != 0 {
            return Err(fault);
        }
        entry::exchange(address & MASK, old.into(), new.into(), 4).map(|was| was as u32).ok_or(fault)
    }
    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        let fault = Fault { address, write: true };
        if address % 8 != 0 {
            return Err(fault);
        }
        entry::exchange(address & MASK, old, new, 8).ok_or(fault)
    }
}

/// What drivers ask the hypervisor for. What [`Common::serves`] leaves to the domain is not asked.
impl Host for DomainView<'_> {
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        self.common.with_pool(work)
    }
    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        let frame = self.u64(self.common.p2m_entry(pfn)?).ok()?;
        self.common.owns(frame).then_some(frame)
    }
    fn schedule_poll(&mut self, _napi: u64) {}
    fn receive(&mut self, _frame: &Frame) {}
    fn transmitted(&mut self, _skb: u64, _cookie: u64) {}
    fn free_in_domain(&mut self, what: Foreign) {
        self.common.note_foreign(what);
    }
    fn queue_event(&mut self, queue: u64) {
        self.common.note(note::QUEUE, queue);
    }
    fn lock_is_busy(&mut self, _lock: u64, tries: u32) -> bool {
        requests::answer();
        core::hint::spin_loop();
        tries < LOCK_TRIES
    }
    fn note(&mut self, _routine: Routine, _args: &[u64; 6]) {}
}

/// Mirror mode has no table.
impl Mapper for DomainView<'_> {
    fn map_pair(&mut self, page: u64) -> Result<u64, Fault> {
        Err(Fault { address: page, write: false })
    }
    fn unmap_pair(&mut self, _mapped: u64) {}
    fn set_entry(&mut self, _index: usize, _tag: u64, _mapped: u64) {}
}

impl Embedder for DomainView<'_> {
    fn budget(&self) -> i64 {
        self.instance.context(ctx::BUDGET).cast_signed()
    }
    fn set_budget(&mut self, steps: i64) {
        self.instance.set_context(ctx::BUDGET, steps.cast_unsigned());
    }
    fn miss_address(&self) -> u64 {
        self.instance.context(ctx::MISS_ADDRESS)
    }
    fn set_miss_result(&mut self, address: u64) {
        self.instance.set_context(ctx::MISS_RESULT, address);
    }
    fn upcall(&mut self, import: u32, _: &str, function: u64, args: &[u64; 6], stack: u64) -> Result<Upcall, Reason> {
        let more = self.instance.stack_arguments(stack);
        self.to_call = Some(ToCall { import, function, args: *args, more });
        Ok(Upcall::Later)
    }
    fn is_out_of_time(&self) -> bool {
        let now = tsc::now_ns();
        if now < self.deadline_ns.get() {
            return false;
        }
        if self.has_grace.replace(false) {
            self.deadline_ns.set(now.saturating_add(GRACE_NS));
            // The shot for the first one may have been spent on the way to a gate.
            timer_hw::arm(self.deadline_ns.get());
            return false;
        }
        true
    }
    fn is_twin_stack(&self, address: u64) -> bool {
        self.instance.config().is_twin_stack(address)
    }
}
