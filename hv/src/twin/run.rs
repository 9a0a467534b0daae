//! One invocation of a twin: who serves its gates, and how it ends.

use crate::arch::{idt, timer_hw, tlb, tsc};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, Interruptible};
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::domain::Domain;
use crate::mem::copy;
use crate::pv::debugreg;
use crate::pv::vtlb;
use crate::sched::timers;
use crate::twin::entry;
use crate::twin::instance::Instance;
use crate::twin::space::Mirror;
use core::sync::atomic::Ordering;
use twin_abi::layout::ctx;
use twin_abi::op::MASK_BITS;
use twin_runtime::gate::{Answer, Call, Embedder, Invocation};
use twin_runtime::linux::skb::Frame;
use twin_runtime::linux::{Foreign, Host, Routine, Support};
use twin_runtime::memory::Fault;
use twin_runtime::stlb::Mapper;
use twin_runtime::{Abort, Memory, Reason};
use xen_abi::errno::Errno;

/// An invocation may take so long. Interrupts are served meanwhile; other work of this CPU waits.
const TIME_LIMIT_NS: u64 = 100_000_000;
const MASK: u64 = (1 << MASK_BITS) - 1;

/// An invocation under way.
pub struct Running<'a> {
    /// Where it runs.
    pub instance: &'a Instance,
    /// What it sees.
    pub mirror: &'a Mirror,
    invocation: Invocation<'a, 'static>,
    support: Support,
    domain: DomainView<'a>,
    /// Why it ended before its end.
    pub abort: Option<Abort>,
}

/// How an invocation ended.
pub struct Ended {
    /// What it returned, or why not.
    pub result: Result<u64, Abort>,
    /// Steps that it took.
    pub steps: u64,
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
        self.invocation.gate(call, &mut self.domain, &mut self.support)
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
            timer_hw::arm(self.domain.deadline_ns);
            return false;
        }
        let offset = u32::try_from(rip.wrapping_sub(self.instance.code_address(0))).unwrap_or(u32::MAX);
        let image = *self.invocation.twin().verified().image();
        self.abort = Some(Abort::at(&image, offset, Reason::TimeOut));
        true
    }
}

/// Runs the function at `owner`'s address `function` on this CPU, on which `v` runs. Errors: EBUSY if the instance is in
/// use; ESRCH if the twin has no such function.
pub fn invoke(
    v: &OwnedVcpu,
    owner: &Domain,
    instance: &Instance,
    mirror: &Mirror,
    function: u64,
    args: [u64; 6],
    budget: u64,
    _: Interruptible<'_>,
) -> Result<Ended, Errno> {
    let mut twin = instance.twin.try_lock().ok_or(Errno::EBUSY)?;
    let mut domain = DomainView { instance, deadline_ns: tsc::now_ns().saturating_add(TIME_LIMIT_NS) };
    let steps = budget.cast_signed();
    let invocation = twin.begin(function, &args, steps, &mut domain).map_err(|_| Errno::ESRCH)?;
    let entry = instance.entry(&invocation.entry());
    let mut running = Running { instance, mirror, invocation, support: Support::default(), domain, abort: None };
    disarm(v);
    timers::fire_by(running.domain.deadline_ns);
    let here = 1 << this_cpu().cpu;
    // Before the root is loaded: whoever changes a page table later has this CPU flush.
    owner.mirror_cpus.fetch_or(here, Ordering::SeqCst);
    idt::enter_twin();
    // SAFETY: the mirror has the hypervisor's slots and lives while it is loaded; the other areas are those of `Instance`,
    // whose code was verified; the twins' IDT is loaded and no breakpoint armed. The guest's root is loaded again below.
    let value = unsafe {
        tlb::enter_mirror(mirror.root().addr().raw());
        let value = entry::enter(&mut running, &entry);
        tlb::leave_mirror(vtlb::hardware_root(v).addr().raw());
        value
    };
    owner.mirror_cpus.fetch_and(!here, Ordering::SeqCst);
    idt::leave_twin();
    debugreg::load(v);
    debug_assert!(vcpu::current(this_cpu()).is_some_and(|current| core::ptr::eq(current, v)));
    let left = running.domain.budget().max(0);
    let result = running.abort.take().map_or(Ok(value), Err);
    Ok(Ended { result, steps: steps.saturating_sub(left).cast_unsigned() })
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
    deadline_ns: u64,
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

/// What drivers ask the hypervisor for. Images with imports are not loaded yet, so nothing of this is asked.
impl Host for DomainView<'_> {
    fn machine_frame(&self, _pfn: u64) -> Option<u64> {
        None
    }
    fn schedule_poll(&mut self, _napi: u64) {}
    fn receive(&mut self, _frame: &Frame) {}
    fn transmitted(&mut self, _skb: u64, _cookie: u64) {}
    fn free_in_domain(&mut self, _what: Foreign) {}
    fn queue_event(&mut self, _queue: u64) {}
    fn lock_is_busy(&mut self, _lock: u64, _tries: u32) -> bool {
        false
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
    fn upcall(&mut self, import: u32, _name: &str, _domain: u64, _args: &[u64; 6], _stack: u64) -> Result<u64, Reason> {
        Err(Reason::Import(import))
    }
    fn is_out_of_time(&self) -> bool {
        tsc::now_ns() >= self.deadline_ns
    }
    fn is_twin_stack(&self, address: u64) -> bool {
        self.instance.config().is_twin_stack(address)
    }
}
