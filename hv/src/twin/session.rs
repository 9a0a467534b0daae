//! A CPU in the mirror of a twin: it is there for one or more invocations, and for what is done to the domain's structures between
//! them. Whose vCPU runs on the CPU, and whether one does, is of no concern: what was loaded before is loaded again at the end.

use crate::arch::{idt, tlb, tsc};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, Interruptible};
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::domain::{self, DomainRef};
use crate::pv::{debugreg, vtlb};
use crate::sched::timers;
use crate::twin::entry::{self, Way};
use crate::twin::instance::{Instance, Slot, Waiting};
use crate::twin::net::OnCard;
use crate::twin::run::{Begin, Early, Left, Running};
use crate::twin::table::Loaded;
use crate::twin::view::DomainView;
use core::sync::atomic::Ordering;
use twin_runtime::gate::Embedder;
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
    left: Left,
    /// How the invocation ended, if it has not returned.
    pub early: Option<Early>,
    /// The domain, for routines that are called between invocations.
    pub domain: DomainView<'a>,
}

impl<'a> Session<'a> {
    /// Enters the mirror, for invocations in instance number `instance`. `card`: whose polls are run here, and who takes packets.
    /// `None`: the domain is gone.
    pub fn enter(loaded: &'a Loaded, instance: usize, card: Option<OnCard<'a>>) -> Option<Self> {
        let owner = domain::find(loaded.owner)?;
        let instance = &loaded.instances[instance];
        let domain = DomainView::new(instance, &loaded.common, card);
        match vcpu::current(this_cpu()) {
            Some(v) => disarm(v),
            None => tlb::enter_guests(),
        }
        // Before the root is loaded: whoever changes a page table later has this CPU flush.
        owner.mirror_cpus.fetch_or(1 << this_cpu().cpu, Ordering::SeqCst);
        idt::enter_twin();
        // SAFETY: the mirror has the hypervisor's slots and lives while it is loaded, which is until the drop.
        unsafe {
            tlb::enter_mirror(loaded.mirror.root().addr().raw());
            entry::set_mirror(Some(&loaded.mirror));
        }
        let (since, left) = (cpu::rdtsc(), Left::default());
        Some(Self { loaded, instance, owner, since, budget: 0, left, early: None, domain })
    }

    /// Runs a function, or goes on with what waits, in the instance, whose `slot` is the caller's. What the function returned; `None`:
    /// it has not, and `early` says why. Errors: EBUSY if something waits there; ENOENT if nothing waits.
    pub fn run(&mut self, slot: &mut Slot, begin: Begin<'_>, _: Interruptible<'_>) -> Result<Option<u64>, Errno> {
        let instance = self.instance;
        let is_fresh = self.domain.begin();
        let Slot { twin, waiting } = slot;
        let (invocation, way) = match begin {
            Begin::Call { function, args } => {
                let steps = self.loaded.budget.cast_signed();
                let invocation = twin.begin_known(function, steps, &mut self.domain).ok_or(Errno::EBUSY)?;
                self.budget = steps;
                (invocation, Way::Enter(instance.entry(function, args)))
            }
            Begin::Resume { result } => {
                let waited = waiting.take().ok_or(Errno::ENOENT)?;
                let invocation = twin.resume().ok_or(Errno::ENOENT)?;
                self.budget = waited.budget;
                (invocation, Way::Resume(instance.resume(waited.kept, result)))
            }
        };
        let (domain, left) = (&mut self.domain, &mut self.left);
        let mut running = Running { instance, invocation, domain, left };
        if is_fresh {
            timers::fire_surely_by(running.domain.deadline_ns());
        }
        // SAFETY: the areas are those of `Instance`, whose code was verified; the mirror is loaded, so is the twins' IDT, and no
        // breakpoint is armed (`enter`); what goes on was kept for that in its slot.
        let value = unsafe { entry::enter(&mut running, &way) };
        if self.left.abort.is_none() && self.domain.to_call.is_none() {
            return Ok(Some(value));
        }
        self.end_early(waiting);
        Ok(None)
    }

    #[cold]
    #[inline(never)]
    fn end_early(&mut self, waiting: &mut Option<Waiting>) {
        let to_call = self.domain.to_call.take();
        self.early = match self.left.abort.take() {
            Some(abort) => {
                self.domain.release_locks();
                Some(Early::Aborted(abort))
            }
            None => {
                let (kept, budget) = (self.left.kept, self.budget);
                let since_ns = tsc::now_ns();
                *waiting = Some(Waiting { kept, budget, since_ns, to_fetch: None, fetched_ns: 0, is_atomic: false });
                to_call.map(Early::Waits)
            }
        };
    }

    /// Steps that the invocation took so far.
    pub fn steps(&self) -> u64 {
        self.budget.saturating_sub(self.domain.budget().max(0)).cast_unsigned()
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
        self.owner.mirror_cpus.fetch_and(!(1 << this_cpu().cpu), Ordering::SeqCst);
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
