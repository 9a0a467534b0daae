//! One invocation of a twin under way: who serves its gates, and how it ends.

use crate::arch::tsc;
use crate::sched::timers;
use crate::twin::entry::Kept;
use crate::twin::instance::Instance;
use crate::twin::view::DomainView;
use twin_abi::image::Image;
use twin_abi::op::{reason, TwinCall};
use twin_runtime::gate::{may_begin, Answer, Call, Embedder, Invocation};
use twin_runtime::linux::{Done, Native, Stop};
use twin_runtime::{Abort, Reason};
use xen_abi::errno::Errno;

/// An invocation under way.
pub struct Running<'a, 'v> {
    /// Where it runs.
    pub instance: &'a Instance,
    /// What it is.
    pub invocation: Invocation<'a, 'static>,
    /// Its domain.
    pub domain: &'a mut DomainView<'v>,
    /// What it leaves if it does not return.
    pub left: &'a mut Left,
}

/// What an invocation leaves that does not return. It is the session's: what an invocation needs that returns is
/// little.
#[derive(Default)]
pub struct Left {
    /// Why it was aborted.
    pub abort: Option<Abort>,
    /// Its registers, if it waits.
    pub kept: Kept,
}

/// How a part of an invocation ended whose function has not returned.
pub enum Early {
    /// It was aborted.
    Aborted(Abort),
    /// It waits for a function of the domain.
    Waits(ToCall),
    /// It has not begun: EBUSY if something waits in the instance, ENOENT if nothing does that could go on.
    NotBegun(Errno),
}

/// A function of the domain that is to be called.
#[derive(Clone, Copy)]
pub struct ToCall {
    /// Number of the import.
    pub import: u32,
    /// Its address.
    pub function: u64,
    /// Its arguments.
    pub args: [u64; 6],
    /// Further ones.
    pub more: [u64; 4],
    /// It takes a lock: who can wait may try that by itself.
    pub is_lock: bool,
}

impl ToCall {
    /// Says in `call` that instance number `instance` waits for this.
    pub fn tell(&self, instance: usize, call: &mut TwinCall) {
        (call.reason, call.detail, call.offset) = (reason::UPCALL, self.function, self.import);
        (call.args, call.more) = (self.args, self.more);
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_CPUS")]
        (call.instance = instance as u32);
    }
}

impl Running<'_, '_> {
    fn image(&self) -> Image<'static> {
        *self.invocation.twin().verified().image()
    }

    /// Code offset of the return address at the twin's stack pointer `stack`.
    pub fn return_offset(&self, stack: u64) -> u32 {
        self.code_offset(self.instance.stack_word(stack))
    }

    fn code_offset(&self, address: u64) -> u32 {
        u32::try_from(address.wrapping_sub(self.instance.code_address(0))).unwrap_or(u32::MAX)
    }

    /// Calls routine `N`, if it may be called now.
    #[inline(always)]
    pub fn serve<N: Native>(&mut self, args: &[u64; 6]) -> Option<Done> {
        let common = self.domain.common;
        let may_call = common.has_room_for_notes() && may_begin(self.domain);
        may_call.then(|| N::call(&common.support, self.domain, args))
    }

    /// How to go on after a `call` of import `number` that [`Self::serve`] has not served, or for which there is no
    /// routine.
    pub fn not_returned(&mut self, number: u32, done: Option<&Stop>, call: &Call) -> Answer {
        match done {
            Some(stop) => self.invocation.stopped(number, *stop, call, self.domain),
            _ => self.gate(call),
        }
    }

    /// Serves a gate.
    pub fn gate(&mut self, call: &Call) -> Answer {
        let common = self.domain.common;
        if !common.has_room_for_notes() {
            let why = Reason::Structure { what: "the domain does not fetch what it has to do", value: 0 };
            return Answer::Abort(Abort::at(&self.image(), call.from.saturating_sub(1), why));
        }
        self.invocation.gate(call, self.domain, &common.support)
    }

    /// The twin's instruction at `rip` raised `vector`, which ends the invocation.
    pub fn was_stopped(&mut self, rip: u64, vector: u8, address: u64) {
        let in_guard = self.instance.config().is_guard(address);
        let (offset, budget) = (self.code_offset(rip), self.domain.budget());
        self.left.abort = Some(Abort::exception(&self.image(), offset, vector, address, budget, in_guard));
    }

    /// The twin, or a stub on its way, was interrupted: perhaps by the timer, which has to fire again. The next gate
    /// asks for the time.
    pub fn keep_timer(&self) {
        self.domain.unheard.note();
        timers::fire_again_by(self.domain.deadline_ns());
    }

    /// The twin was interrupted at `rip`. Whether its time is over, which ends the invocation. Else the timer fires
    /// when it is.
    pub fn is_out_of_time(&mut self, rip: u64) -> bool {
        self.domain.note_late(tsc::now_ns());
        if !self.domain.has_no_time_left() {
            self.keep_timer();
            return false;
        }
        self.left.abort = Some(Abort::at(&self.image(), self.code_offset(rip), Reason::TimeOut));
        true
    }
}
