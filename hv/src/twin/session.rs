//! A CPU in the mirror of a twin: it is there for one or more invocations, and for what is done to the domain's
//! structures between them. Whose vCPU runs on the CPU, and whether one does, is of no concern: what was loaded before
//! is loaded again at the end.

use crate::arch::{idt, tlb, tsc};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, Interruptible};
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::domain::{self, DomainRef};
use crate::pv::{debugreg, vtlb};
use crate::sched::timers;
use crate::twin::entry;
use crate::twin::instance::{Instance, Slot, Waiting};
use crate::twin::net::OnCard;
use crate::twin::run::{Early, Left, Running};
use crate::twin::table::Loaded;
use crate::twin::view::DomainView;
use core::sync::atomic::Ordering;
use twin_runtime::gate::{Embedder, Function};
use twin_runtime::{Abort, Reason};
use xen_abi::errno::Errno;

/// See the module.
pub struct Session<'a> {
    loaded: &'a Loaded,
    instance: &'a Instance,
    owner: DomainRef,
    /// The time-stamp counter at the beginning.
    since: u64,
    /// Steps that the invocation had at first.
    budget: i64,
    /// Code offset of its function.
    function: u32,
    left: Left,
    /// How the invocation ended, if it has not returned.
    pub early: Option<Early>,
    /// The domain, for routines that are called between invocations.
    pub domain: DomainView<'a>,
}

impl<'a> Session<'a> {
    /// Enters the mirror, for invocations in instance number `instance`. `card`: whose polls are run here, and who
    /// takes packets. `None`: the domain is gone.
    pub fn enter(loaded: &'a Loaded, instance: usize, card: Option<OnCard<'a>>) -> Option<Self> {
        let owner = domain::find(loaded.owner)?;
        let instance = &loaded.instances[instance];
        let domain = DomainView::new(instance, &loaded.common, card);
        match vcpu::current(this_cpu()) {
            Some(v) => disarm(v),
            None => tlb::enter_guests(),
        }
        // Before the root is loaded: whoever changes a page table later has this CPU flush.
        owner.add_mirror_cpu(this_cpu().cpu);
        idt::enter_twin();
        // SAFETY: the mirror has the hypervisor's slots and lives while it is loaded, which is until the drop.
        unsafe {
            tlb::enter_mirror(loaded.mirror.root().addr().raw());
            entry::set_mirror(Some(&loaded.mirror));
        }
        let (since, left) = (cpu::rdtsc(), Left::default());
        Some(Self { loaded, instance, owner, since, budget: 0, function: 0, left, early: None, domain })
    }

    /// Calls a function in the instance, whose `slot` is the caller's. What it returned; `None`: it has not, and
    /// `early` says why.
    #[inline(always)]
    pub fn call(&mut self, slot: &mut Slot, function: Function, args: &[u64; 6], _: Interruptible<'_>) -> Option<u64> {
        let (instance, steps) = (self.instance, self.loaded.budget.cast_signed());
        self.begin();
        let Some(invocation) = slot.twin.begin_known(function, steps, &mut self.domain) else {
            return self.not_begun(Errno::EBUSY);
        };
        (self.budget, self.function) = (steps, function.offset());
        // One that takes a poll schedules it: what the one before has left is nobody's business.
        instance.set_taken_poll(0);
        let entry = instance.entry(function, args);
        let mut running = Running { instance, invocation, domain: &mut self.domain, left: &mut self.left };
        // SAFETY: the areas are those of `Instance`, whose code was verified; the mirror is loaded, so is the twins'
        // IDT, and no breakpoint is armed (`enter`).
        let value = unsafe { entry::enter(&mut running, entry) };
        self.ended(slot, value)
    }

    /// Goes on with what waits in the instance, after a function of the domain that returned `result`. As
    /// [`Self::call`].
    pub fn resume(&mut self, slot: &mut Slot, result: u64, _: Interruptible<'_>) -> Option<u64> {
        let instance = self.instance;
        self.begin();
        let Some(waited) = instance.take_waiting(slot) else { return self.not_begun(Errno::ENOENT) };
        let Some(invocation) = slot.twin.resume() else { return self.not_begun(Errno::ENOENT) };
        (self.budget, self.function) = (waited.budget, waited.function);
        let resume = instance.resume(waited.kept, result);
        let mut running = Running { instance, invocation, domain: &mut self.domain, left: &mut self.left };
        // SAFETY: as in `call`; what goes on was kept for that in its slot.
        let value = unsafe { entry::resume(&mut running, &resume) };
        self.ended(slot, value)
    }

    /// The time of an invocation begins, or goes on.
    #[inline(always)]
    fn begin(&mut self) {
        if self.domain.begin() {
            timers::fire_surely_by(self.domain.deadline_ns());
        }
    }

    #[cold]
    fn not_begun(&mut self, why: Errno) -> Option<u64> {
        self.early = Some(Early::NotBegun(why));
        None
    }

    /// An invocation has ended, with `value` if it has returned.
    #[inline(always)]
    fn ended(&mut self, slot: &mut Slot, value: u64) -> Option<u64> {
        if self.left.abort.is_none() && self.domain.to_call.is_none() {
            // If it has kept one, nobody would ever release that.
            let Some(lock) = self.instance.holds() else { return Some(value) };
            let image = slot.twin.verified().image();
            self.left.abort = Some(Abort::at(image, self.function, Reason::Lock(lock)));
        }
        self.end_early(slot);
        None
    }

    #[cold]
    #[inline(never)]
    fn end_early(&mut self, slot: &mut Slot) {
        let to_call = self.domain.to_call.take();
        self.early = match self.left.abort.take() {
            Some(abort) => {
                self.domain.give_back();
                Some(Early::Aborted(abort))
            }
            None => {
                let (kept, budget) = (self.left.kept, self.budget);
                let since_ns = tsc::now_ns();
                let waiting = Waiting {
                    kept,
                    budget,
                    function: self.function,
                    since_ns,
                    to_fetch: None,
                    fetched_ns: 0,
                    is_atomic: false,
                    lane: None,
                };
                self.instance.set_waiting(slot, Some(waiting));
                to_call.map(Early::Waits)
            }
        };
    }

    /// Steps that the invocation took so far.
    pub fn steps(&self) -> u64 {
        self.budget.saturating_sub(self.domain.budget().max(0)).cast_unsigned()
    }
}

/// What waits in instance number `instance`, whose slot the caller has, does not go on: the domain gets back what that
/// has taken.
pub fn end_waiting(loaded: &Loaded, instance: usize, slot: &mut Slot) {
    loaded.instances[instance].set_waiting(slot, None);
    let _ = slot.twin.resume();
    if let Some(mut session) = Session::enter(loaded, instance, None) {
        session.domain.give_back();
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.domain.finish();
        let counts = &self.loaded.counts;
        counts.turns.fetch_add(1, Ordering::Relaxed);
        counts.ticks.fetch_add(cpu::rdtsc().wrapping_sub(self.since), Ordering::Relaxed);
        let current = vcpu::current(this_cpu());
        let root = current.map_or(crate::mem::idle_root(), vtlb::hardware_root);
        // SAFETY: that of the vCPU that runs here, or the hypervisor's own; no twin runs here any more.
        unsafe {
            entry::set_mirror(None);
            tlb::leave_mirror(root.addr().raw());
        }
        self.owner.remove_mirror_cpu(this_cpu().cpu);
        idt::leave_twin();
        match current {
            Some(v) => debugreg::load(v),
            None => tlb::leave_guests(),
        }
    }
}

/// Takes the breakpoints of the vCPU away: they would fire in the twin.
fn disarm(v: &OwnedVcpu) {
    if debugreg::in_use(v) {
        // SAFETY: no breakpoints.
        unsafe { cpu::write_dr7(x86::rflags::DR7_DEFAULT) };
    }
}
