//! The way back, step by step.

use super::{vcpu::SavedVcpu, Rest};
use crate::arch::pci::Sbdf;
use crate::arch::{pci_reset, tsc};
use crate::cpu::percpu::this_cpu;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::passthrough::roll_back as functions;
use crate::domain::ports::GuestPage;
use crate::domain::{event, grant, Domain};
use crate::irq;
use crate::pv::time;
use crate::sched::{timers, AllHeld};
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::allowance::PAGE;
use hv_core::mmu::snapshot::{Check, Copies, Memory};
use hv_core::snapshot::{Refusal, Stop};
use xen_abi::errno::Errno;
use xen_abi::event::Port;

/// Word `n` (0 to 511) of the shared_info page of `d`.
pub(super) fn shared_word(d: &Domain, n: usize) -> &AtomicU64 {
    debug_assert!(n < x86::PAGE_SIZE / 8);
    // SAFETY: inside the shared-info page, which lives as long as the domain; aligned; the guest's writes are met by
    // atomics.
    unsafe { AtomicU64::from_ptr(d.shared_info_ptr().cast::<u64>().add(n)) }
}

/// What a domain was, and where copies are.
pub(super) struct Then<'a> {
    pub memory: &'a Memory,
    pub rest: &'a Rest,
    pub copies: &'a mut Copies,
}

/// How far a domain has come on its way back.
pub(super) struct Way {
    step: Step,
    check: Check,
    /// Where the present step goes on.
    next: usize,
    /// Functions may be used again from this time on.
    ready_ns: u64,
}

/// Steps, in their order. The first one changes nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Decide,
    Silence,
    LetGo,
    TakeDown,
    TakeAgain,
    Unmap,
    ClosePorts,
    Copy,
    Pin,
    TakeHold,
    CheckTypes,
    PutBack,
    Raise,
}

/// Ports that get an event at once.
const PORTS_AT_ONCE: u32 = 512;

/// A failure after which the domain must not run; and one that is none.
fn failed(why: Refusal) -> impl Fn(Errno) -> Stop {
    move |errno| if errno == Errno::ERESTART { Stop::Preempted } else { why.into() }
}

fn device(at: Sbdf) -> Refusal {
    Refusal::Device(u32::from(at.segment) << 16 | u32::from(at.bus) << 8 | u32::from(at.devfn))
}

impl Way {
    pub fn new() -> Self {
        Self { step: Step::Decide, check: Check::new(), next: 0, ready_ns: 0 }
    }

    /// Has anything been changed yet?
    pub fn has_changed(&self) -> bool {
        self.step != Step::Decide
    }

    /// Goes on, as long as it may. A refusal after the first change: the domain must not run again.
    pub fn go_on(&mut self, d: &Domain, held: &AllHeld<'_>, has_twin: bool, then: &mut Then<'_>) -> Result<(), Stop> {
        let Then { memory, rest, copies } = then;
        loop {
            let next = match self.step {
                Step::Decide => {
                    self.decide(d, held, has_twin, memory, rest)?;
                    // What it has on the heap goes, too.
                    self.check = Check::new();
                    Step::Silence
                }
                Step::Silence => {
                    self.silence(d, rest)?;
                    Step::LetGo
                }
                Step::LetGo => {
                    held.try_each(SavedVcpu::let_go).map_err(failed(Refusal::Unsettled))?;
                    d.events.lock().let_go();
                    irq::guest::lock().let_go(d.id, &rest.pirqs);
                    Step::TakeDown
                }
                Step::TakeDown => {
                    // What it maps afterwards it was asked for.
                    d.io.withdrawn.settle();
                    mmu().take_down(d.mm.id, &mut self.next, &mut d.mm.lock())?;
                    Step::TakeAgain
                }
                Step::TakeAgain => {
                    mmu().take_again(d.mm.id, memory, &mut self.next)?;
                    Step::Unmap
                }
                Step::Unmap => {
                    grant::give_up(d).map_err(failed(Refusal::Maps))?;
                    Step::ClosePorts
                }
                Step::ClosePorts => {
                    self.close_ports(d, rest)?;
                    Step::Copy
                }
                Step::Copy => {
                    mmu().copy_back(d.mm.id, memory, copies, &mut self.next)?;
                    Step::Pin
                }
                Step::Pin => {
                    mmu().pin_again(d.mm.id, memory, &mut self.next, &mut d.mm.lock())?;
                    Step::TakeHold
                }
                Step::TakeHold => {
                    each_vcpu(held, rest, |then, v| then.take_hold(v))?;
                    Step::CheckTypes
                }
                Step::CheckTypes => {
                    mmu().check_types(d.mm.id, memory, &mut self.next)?;
                    Step::PutBack
                }
                Step::PutBack => {
                    // Again, in the same execution as the rest: nothing that was so in an earlier one has to be so now.
                    each_vcpu(held, rest, |then, v| then.take_hold(v))?;
                    put_back(d, held, rest)?;
                    Step::Raise
                }
                Step::Raise => {
                    self.raise(d)?;
                    return Ok(());
                }
            };
            (self.step, self.next) = (next, 0);
        }
    }

    /// Whether it can be. Changes nothing.
    fn decide(
        &mut self,
        d: &Domain,
        held: &AllHeld<'_>,
        has_twin: bool,
        memory: &Memory,
        rest: &Rest,
    ) -> Result<(), Stop> {
        if has_twin {
            return Err(Refusal::Twin.into());
        }
        if d.mm.log.is_enabled() {
            return Err(Refusal::Logged.into());
        }
        if let Some(v) = d.vcpus().find(|v| rest.vcpus.iter().all(|then| then.id != v.id)) {
            return Err(Refusal::Vcpus(v.id).into());
        }
        functions::check_reset(d, &rest.functions).map_err(device)?;
        irq::guest::lock().check(d.id, &rest.pirqs)?;
        {
            let table = d.grants.table();
            this_cpu().allowance.spend_each(table.frames().len() as u64, PAGE);
            table.check(&rest.grants)?;
        }
        d.events.lock().check(&rest.events)?;
        mmu().check_memory(d.mm.id, memory, &mut self.check, &d.mm.lock())?;
        d.events.lock().for_each_page(|page| self.check.explain(page.mfn()));
        irq::guest::lock().for_new_page(d.id, &rest.pirqs, |page| self.check.explain(page.mfn()));
        held.each(|v| self.check.explain(x86::Mfn::new(v.info_frame.load(Ordering::Acquire))));
        Ok(self.check.finish()?)
    }

    /// Nothing of the domain's accesses memory any more, and its functions are as new.
    fn silence(&mut self, d: &Domain, rest: &Rest) -> Result<(), Stop> {
        if self.ready_ns == 0 {
            let all = rest.functions.iter().map(functions::Config::at);
            for at in all.clone() {
                functions::silence(at, d).map_err(failed(device(at)))?;
            }
            let mut has_begun = false;
            all.for_each(|at| has_begun |= pci_reset::begin_function_reset(at));
            self.ready_ns = tsc::now_ns() + if has_begun { pci_reset::FUNCTION_RESET_NS } else { 0 };
        }
        (tsc::now_ns() >= self.ready_ns).then_some(()).ok_or(Stop::Preempted)
    }

    /// What has come since is closed.
    fn close_ports(&mut self, d: &Domain, rest: &Rest) -> Result<(), Stop> {
        for _ in 0..PORTS_AT_ONCE {
            let from = Port::try_from(self.next).unwrap_or(Port::MAX);
            let Some(port) = d.events.lock().next_changed(&rest.events, from) else { return Ok(()) };
            // Somebody else may have closed it in between.
            if let Ok(Some(_)) = event::close(d, port) {
                return Err(Refusal::Channel(port).into());
            }
            self.next = port as usize + 1;
        }
        Err(Stop::Preempted)
    }

    /// All that may have lost an event gets one; and the domain may run.
    fn raise(&mut self, d: &Domain) -> Result<(), Stop> {
        let from = Port::try_from(self.next).unwrap_or(Port::MAX);
        match d.events.lock().raise_all(d, from, PORTS_AT_ONCE) {
            None => Ok(()),
            Some(next) => {
                self.next = next as usize;
                Err(Stop::Preempted)
            }
        }
    }
}

fn each_vcpu(
    held: &AllHeld<'_>,
    rest: &Rest,
    f: impl Fn(&SavedVcpu, &crate::sched::Held<'_>) -> Result<(), Errno>,
) -> Result<(), Stop> {
    let mut which = 0;
    held.try_each(|v| {
        which = v.id;
        rest.vcpus.iter().find(|then| then.id == v.id).map_or(Err(Errno::ENOENT), |then| f(then, v))
    })
    .map_err(|errno| failed(Refusal::Vcpus(which))(errno))
}

/// What is not memory, at one moment.
fn put_back(d: &Domain, held: &AllHeld<'_>, rest: &Rest) -> Result<(), Stop> {
    {
        let mut channels = d.events.lock();
        for (n, word) in rest.shared_info.iter().enumerate() {
            shared_word(d, n).store(*word, Ordering::Release);
        }
        let page = |name| GuestPage::take(&d.mm, name);
        channels.go_back(&rest.events, page).map_err(failed(Refusal::Port(0)))?;
    }
    d.grants.table().go_back(&rest.grants)?;
    irq::guest::go_back(d, &rest.pirqs).map_err(failed(Refusal::Pirq(0)))?;
    for config in &rest.functions {
        functions::revive(config, d).map_err(failed(device(config.at())))?;
    }
    d.vm_assist.store(rest.vm_assist, Ordering::Relaxed);
    let watchdogs = rest.watchdogs.later(tsc::now_ns().saturating_sub(rest.taken_ns));
    let bites = watchdogs.next();
    *d.watchdogs.lock() = watchdogs;
    if let (Some(first), Some(at)) = (d.vcpu(0), bites) {
        timers::arm(first, timers::Kind::Watchdog, at);
    }
    each_vcpu(held, rest, |then, v| {
        then.put_back(v);
        Ok(())
    })?;
    // The clocks have gone on.
    d.vcpus().for_each(time::update_time_info);
    time::update_wall_clock(d);
    Ok(())
}
