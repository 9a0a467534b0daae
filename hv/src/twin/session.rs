//! A CPU in the mirror of a twin: it is there for one or more invocations, and for what is done to the domain's structures between
//! them. Whose vCPU runs on the CPU, and whether one does, is of no concern: what was loaded before is loaded again at the end.

use crate::arch::{idt, tlb, tsc};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, Interruptible};
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::domain::{self, DomainRef};
use crate::pv::{debugreg, vtlb};
use crate::sched::timers;
use crate::twin::entry::{self, Kept, Way};
use crate::twin::instance::{Slot, Waiting};
use crate::twin::net::OnCard;
use crate::twin::run::{Begin, Ended, How, Running};
use crate::twin::table::Loaded;
use crate::twin::view::DomainView;
use core::sync::atomic::Ordering;
use twin_runtime::gate::Embedder;
use xen_abi::errno::Errno;

/// See the module.
pub struct Session<'a> {
    loaded: &'a Loaded,
    instance: usize,
    owner: DomainRef,
    /// The time-stamp counter at the beginning.
    since: u64,
    /// The domain, for routines that are called between invocations.
    pub domain: DomainView<'a>,
}

impl<'a> Session<'a> {
    /// Enters the mirror, for invocations in instance number `instance`. `card`: whose polls are run here, and who takes packets.
    /// `None`: the domain is gone.
    pub fn enter(loaded: &'a Loaded, instance: usize, card: Option<OnCard<'a>>) -> Option<Self> {
        let owner = domain::find(loaded.owner)?;
        let domain = DomainView::new(&loaded.instances[instance], &loaded.common, card);
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
        Some(Self { loaded, instance, owner, since: cpu::rdtsc(), domain })
    }

    /// Runs a function, or goes on with what waits, in the instance, whose `slot` is the caller's. Errors: ESRCH if the twin has no
    /// such function; ENOENT if nothing waits.
    pub fn run(&mut self, slot: &mut Slot, begin: Begin, _: Interruptible<'_>) -> Result<Ended, Errno> {
        let instance = &self.loaded.instances[self.instance];
        let is_fresh = self.domain.begin();
        let Slot { twin, waiting } = slot;
        let (invocation, way, budget) = match begin {
            Begin::Call { function, args } => {
                let steps = self.loaded.budget.cast_signed();
                let (invocation, entry) =
                    twin.begin(function, &args, steps, &mut self.domain).map_err(|_| Errno::ESRCH)?;
                (invocation, Way::Enter(instance.entry(&entry)), steps)
            }
            Begin::Resume { result } => {
                let waited = waiting.take().ok_or(Errno::ENOENT)?;
                let invocation = twin.resume().ok_or(Errno::ENOENT)?;
                (invocation, Way::Resume(instance.resume(waited.kept, result)), waited.budget)
            }
        };
        let domain = &mut self.domain;
        let imports = instance.stubs.imports();
        let mut running = Running { instance, imports, invocation, domain, abort: None, kept: Kept::default() };
        if is_fresh {
            timers::fire_surely_by(running.domain.deadline_ns());
        }
        // SAFETY: the areas are those of `Instance`, whose code was verified; the mirror is loaded, so is the twins' IDT, and no
        // breakpoint is armed (`enter`); what goes on was kept for that in its slot.
        let value = unsafe { entry::enter(&mut running, &way) };
        let Running { abort, kept, .. } = running;
        let steps = budget.saturating_sub(self.domain.budget().max(0)).cast_unsigned();
        let how = match (abort, self.domain.to_call.take()) {
            (Some(abort), _) => {
                self.domain.release_locks();
                How::Aborted(abort)
            }
            (None, Some(to_call)) => {
                *waiting = Some(Waiting { kept, budget, since_ns: tsc::now_ns(), to_fetch: None, is_atomic: false });
                How::Waits(to_call)
            }
            (None, None) => How::Returned(value),
        };
        Ok(Ended { how, steps })
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
