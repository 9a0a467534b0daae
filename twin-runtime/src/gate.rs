//! What happens when the twin calls out of its image.
//!
//! An invocation is [`Twin::begin`], the embedder's entry code, and then the value of rax or an abort. The embedder's
//! stub for a gate stores the [`Registers`] of a [`Call`], leaves the twin's stack before it pushes anything, and calls
//! [`Invocation::gate`]. By the
//! [`Answer`] it then loads the registers that [`Answer::registers`] names, and only those: so nothing of the
//! hypervisor's gets to the twin. `Return` and `Resume` return to the twin; `Enter` goes on at a code offset of the
//! image as if that had been called (the return address of the gate stays on top of the twin's stack); `Wait` leaves
//! the twin with its callee-saved registers and stack pointer kept, until [`Twin::resume`]; `Abort` leaves it for good.
//! DF is clear in all of them.
//!
//! An [`Invocation`] borrows its twin, so there is one at a time for an instance, and while it waits for an upcall too:
//! a second one would start at the top of the same stack with the same budget.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use twin_abi::image::Mode;
use twin_verify::Verified;

use crate::abort::{Abort, Reason};
use crate::addresses::{Addresses, Target};
use crate::linux::{Host, Routine, Stop, Support};
use crate::stlb::{Mapper, Stlb};

/// Which stub was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The import with this number.
    Import(u32),
    /// An indirect call; the domain address is in r11.
    IndirectCall,
    /// A page that is not in the stlb.
    StlbMiss,
    /// A `WARN` site.
    Warn,
}

/// The registers that a call does not preserve, for assembly to store and to load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "each is named as the register")]
pub struct Registers {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
}

impl Registers {
    /// With the arguments of a call, and nothing else.
    #[must_use]
    pub fn of_args(&[rdi, rsi, rdx, rcx, r8, r9]: &[u64; 6]) -> Self {
        Self { rdi, rsi, rdx, rcx, r8, r9, ..Self::default() }
    }

    /// The arguments of a call.
    #[must_use]
    pub fn args(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9]
    }
}

/// A call out of the image.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The stub.
    pub gate: Gate,
    /// As the twin had them.
    pub registers: Registers,
    /// Code offset of the return address; the embedder computes it from the top of the twin's stack.
    pub from: u32,
    /// The twin's rsp: points to the return address. Stack arguments are where `instance::Config::stack_arguments`
    /// says.
    pub stack: u64,
}

/// How an invocation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Code offset to call, with the twin's stack pointer at `instance::Config::entry_stack`.
    pub offset: u32,
    /// To be loaded. rbx, rbp and r12 to r15 are to be zero.
    pub registers: Registers,
}

/// How the embedder goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Return to the twin with this value.
    Return(u64),
    /// Return to the twin with all registers as they were.
    Resume,
    /// Continue at this code offset.
    Enter(u32),
    /// Leave the twin for now; [`Twin::resume`] says how to go on.
    Wait,
    /// End the invocation.
    Abort(Abort),
}

impl Answer {
    /// What the twin finds in the registers that a call does not preserve; `before` is what it left in them.
    #[must_use]
    pub fn registers(&self, before: &Registers) -> Registers {
        match self {
            Self::Return(value) => Registers { rax: *value, ..Registers::default() },
            Self::Resume => *before,
            Self::Enter(_) => Registers::of_args(&before.args()),
            Self::Wait | Self::Abort(_) => Registers::default(),
        }
    }
}

/// The words of the context page and the way to the driver domain.
pub trait Embedder: Host + Mapper {
    /// Reads `BUDGET`.
    fn budget(&self) -> i64;
    /// Writes `BUDGET`.
    fn set_budget(&mut self, steps: i64);
    /// Takes a step from `BUDGET`; what is left.
    fn charge(&mut self) -> i64 {
        let left = self.budget().wrapping_sub(1);
        self.set_budget(left);
        left
    }
    /// Reads `MISS_ADDRESS`.
    fn miss_address(&self) -> u64;
    /// Writes `MISS_RESULT`.
    fn set_miss_result(&mut self, address: u64);
    /// Has the driver domain run a function, now or later. `stack` is the twin's rsp, for further arguments: they
    /// are where `instance::Config::stack_arguments` says and nowhere else.
    ///
    /// # Errors
    /// If upcalls are not possible here or the domain does not answer.
    fn upcall(&mut self, import: u32, name: &str, domain: u64, args: &[u64; 6], stack: u64) -> Result<Upcall, Reason>;
    /// Whether the time for this invocation is over; asked in every gate. What never comes to a gate, the embedder has
    /// to interrupt by itself, or rely on the counted budget.
    fn is_out_of_time(&self) -> bool {
        false
    }
    /// Whether an address lies in the twin's stack or its unsafe area.
    fn is_twin_stack(&self, address: u64) -> bool;
}

/// What came of an upcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcall {
    /// The function ran and returned this.
    Returned(u64),
    /// It is going to run; the invocation waits.
    Later,
}

/// How an import is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// By a routine of this crate.
    Native(Routine),
    /// By the driver domain.
    Upcall,
}

/// How often an import was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Served natively, by way of [`Invocation::gate`].
    pub native: u64,
    /// Served by an upcall.
    pub upcall: u64,
}

/// An import with what is to be done for it. Its name was read once, when the twin was loaded.
#[derive(Clone, Copy, Debug)]
struct Bound<'a> {
    name: &'a str,
    domain: u64,
    binding: Binding,
    counter: Counter,
}

/// So many look-ups of addresses are remembered.
const RECENT: usize = 32;

/// Where a look-up of `domain` is remembered. Functions begin at multiples of 16; those whose low bits are the same,
/// and which meet in the call table, do not meet here.
#[allow(clippy::cast_possible_truncation, reason = "only low bits count")]
const fn recent_place(domain: u64) -> usize {
    (domain >> 4 ^ domain >> 10) as usize % RECENT
}

/// A loaded twin: one instance of it.
#[derive(Debug)]
pub struct Twin<'a> {
    verified: Verified<'a>,
    addresses: Addresses<'a>,
    imports: Vec<Bound<'a>>,
    /// What was looked up lately, by [`recent_place`].
    recent: [(u64, Option<Target>); RECENT],
    /// `WARN` sites reached.
    pub warnings: u64,
    /// Indirect calls that came to the gate.
    pub indirect: u64,
    /// An invocation waits for an upcall.
    is_waiting: bool,
    /// The state behind the stlb, in that mode.
    pub stlb: Option<Stlb>,
}

/// A short way out of the twin and back begins, which is charged as [`Invocation::gate`] charges: for an import whose
/// routine the embedder knows itself ([`Routine::made`]), and does not count. `false`: budget or time are over;
/// [`Invocation::gate`] says how to go on.
#[inline(always)]
pub fn may_begin(embedder: &mut impl Embedder) -> bool {
    embedder.charge() >= 0 && !embedder.is_out_of_time()
}

/// A function of an image, which all its twins have at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    offset: u32,
}

impl Function {
    /// Its code offset.
    #[must_use]
    pub fn offset(self) -> u32 {
        self.offset
    }
}

/// A running invocation. While it lives, its twin can begin no other:
///
/// ```compile_fail,E0499
/// # use twin_runtime::gate::{Embedder, Twin};
/// fn again<E: Embedder>(twin: &mut Twin<'_>, embedder: &mut E) {
///     let first = twin.begin(0x1000, &[0; 6], 100, embedder);
///     let second = twin.begin(0x1000, &[0; 6], 100, embedder);
///     drop((first, second));
/// }
/// ```
///
/// One after the other:
///
/// ```
/// # use twin_runtime::gate::{Embedder, Twin};
/// fn again<E: Embedder>(twin: &mut Twin<'_>, embedder: &mut E) {
///     drop(twin.begin(0x1000, &[0; 6], 100, embedder));
///     drop(twin.begin(0x1000, &[0; 6], 100, embedder));
/// }
/// ```
#[derive(Debug)]
pub struct Invocation<'t, 'a> {
    twin: &'t mut Twin<'a>,
}

impl<'a> Invocation<'_, 'a> {
    /// The twin.
    #[must_use]
    pub fn twin(&self) -> &Twin<'a> {
        self.twin
    }

    /// Serves a call out of the image.
    pub fn gate(&mut self, call: &Call, embedder: &mut impl Embedder, support: &Support) -> Answer {
        self.twin.gate(call, embedder, support)
    }

    /// Where an indirect call of `domain` goes on as [`Self::gate`] would say, if that is a function of the twin: the
    /// way that most take. Else [`Self::gate`] says how to go on.
    #[inline]
    pub fn enters(&mut self, domain: u64, embedder: &mut impl Embedder) -> Option<u32> {
        let Some(Target::Function(offset)) = self.twin.resolve(domain) else { return None };
        if !may_begin(embedder) {
            return None;
        }
        self.twin.indirect += 1;
        Some(offset)
    }

    /// How to go on after a call of import `number` whose routine has not done it, for the reason `stop`.
    pub fn stopped(&mut self, number: u32, stop: Stop, call: &Call, embedder: &mut impl Embedder) -> Answer {
        let answer = match stop {
            Stop::Abort(reason) => Err(reason),
            Stop::Upcall => self.twin.upcall(number, call, embedder),
        };
        answer.unwrap_or_else(|reason| Answer::Abort(self.twin.abort(call.from, reason)))
    }
}

impl<'a> Twin<'a> {
    /// Binds the imports of an accepted image. `stlb_limit` and `hole` are for [`Stlb::new`]. All memory that it will
    /// ever need is taken here.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn new(verified: Verified<'a>, stlb_limit: usize, hole: u64) -> Result<Self, TryReserveError> {
        let image = *verified.image();
        let mut imports = Vec::new();
        imports.try_reserve_exact(image.imports().len())?;
        imports.extend(image.imports().iter().map(|import| {
            let name = image.name(import.name, import.name_len);
            let binding = Routine::by_name(name).map_or(Binding::Upcall, Binding::Native);
            Bound { name, domain: import.domain, binding, counter: Counter::default() }
        }));
        let addresses = Addresses::new(&image)?;
        let stlb = match verified.policy().mode {
            Mode::Stlb => Some(Stlb::new(stlb_limit, hole)?),
            Mode::Mirror => None,
        };
        let recent = [(0, addresses.resolve(0)); RECENT];
        Ok(Self { verified, addresses, imports, recent, warnings: 0, indirect: 0, is_waiting: false, stlb })
    }

    /// The image.
    #[must_use]
    pub fn verified(&self) -> &Verified<'a> {
        &self.verified
    }

    /// The address table.
    #[must_use]
    pub fn addresses(&self) -> &Addresses<'a> {
        &self.addresses
    }

    /// Name, binding and counts of each import.
    pub fn imports(&self) -> impl Iterator<Item = (&'a str, Binding, Counter)> + '_ {
        self.imports.iter().map(|import| (import.name, import.binding, import.counter))
    }

    /// The routine that serves import `number`, if one does.
    #[must_use]
    pub fn native(&self, number: u32) -> Option<Routine> {
        match self.imports.get(number as usize)?.binding {
            Binding::Native(routine) => Some(routine),
            Binding::Upcall => None,
        }
    }

    /// Serves by upcall what native routines exist for that are not `wanted`.
    pub fn limit_natives(&mut self, wanted: impl Fn(Routine) -> bool) {
        for import in &mut self.imports {
            if matches!(import.binding, Binding::Native(routine) if !wanted(routine)) {
                import.binding = Binding::Upcall;
            }
        }
    }

    /// Begins an invocation of the function at a domain address: sets the budget.
    ///
    /// # Errors
    /// If the twin has no such function, or an invocation waits for an upcall.
    pub fn begin(
        &mut self,
        domain: u64,
        args: &[u64; 6],
        budget: i64,
        embedder: &mut impl Embedder,
    ) -> Result<(Invocation<'_, 'a>, Entry), Abort> {
        if self.is_waiting {
            return Err(self.abort(0, Reason::Busy));
        }
        let function = self.function(domain).ok_or_else(|| self.abort(0, Reason::IndirectCall(domain)))?;
        embedder.set_budget(budget);
        let entry = Entry { offset: function.offset, registers: Registers::of_args(args) };
        Ok((Invocation { twin: self }, entry))
    }

    /// The function at a domain address, if the twin has one.
    #[must_use]
    pub fn function(&self, domain: u64) -> Option<Function> {
        match self.addresses.resolve(domain) {
            Some(Target::Function(offset)) => Some(Function { offset }),
            _ => None,
        }
    }

    /// As [`Self::begin`] of a function that is known, with the arguments that the embedder has. `None`: an invocation
    /// waits for an upcall.
    #[inline]
    pub fn begin_known(
        &mut self,
        _: Function,
        budget: i64,
        embedder: &mut impl Embedder,
    ) -> Option<Invocation<'_, 'a>> {
        if self.is_waiting {
            return None;
        }
        embedder.set_budget(budget);
        Some(Invocation { twin: self })
    }

    /// Goes on with the invocation that waits for an upcall, which has returned: after [`Answer::Return`] of its
    /// result. `None`: no invocation waits.
    pub fn resume(&mut self) -> Option<Invocation<'_, 'a>> {
        core::mem::replace(&mut self.is_waiting, false).then_some(Invocation { twin: self })
    }

    fn gate(&mut self, call: &Call, embedder: &mut impl Embedder, support: &Support) -> Answer {
        if embedder.charge() < 0 {
            return Answer::Abort(self.abort(call.from, Reason::Budget));
        }
        if embedder.is_out_of_time() {
            return Answer::Abort(self.abort(call.from, Reason::TimeOut));
        }
        let answer = match call.gate {
            Gate::Import(number) => self.import(number, call, embedder, support),
            Gate::IndirectCall => self.indirect_call(call, embedder, support),
            Gate::StlbMiss => self.miss(embedder),
            Gate::Warn => {
                self.warnings += 1;
                Ok(Answer::Resume)
            }
        };
        answer.unwrap_or_else(|reason| Answer::Abort(self.abort(call.from, reason)))
    }

    fn abort(&self, offset: u32, reason: Reason) -> Abort {
        // The return address belongs to the instruction after the call.
        Abort::at(self.verified.image(), offset.saturating_sub(1), reason)
    }

    /// What `domain` stands for. The tables do not change, so what was found once stays right.
    #[inline]
    fn resolve(&mut self, domain: u64) -> Option<Target> {
        match self.recent.get(recent_place(domain)) {
            Some((known, target)) if *known == domain => *target,
            _ => self.look_up(domain),
        }
    }

    #[cold]
    fn look_up(&mut self, domain: u64) -> Option<Target> {
        let target = self.addresses.resolve(domain);
        if let Some(place) = self.recent.get_mut(recent_place(domain)) {
            *place = (domain, target);
        }
        target
    }

    fn indirect_call(
        &mut self,
        call: &Call,
        embedder: &mut impl Embedder,
        support: &Support,
    ) -> Result<Answer, Reason> {
        self.indirect += 1;
        match self.resolve(call.registers.r11) {
            Some(Target::Function(offset)) => Ok(Answer::Enter(offset)),
            Some(Target::Import(number)) => self.import(number, call, embedder, support),
            None => Err(Reason::IndirectCall(call.registers.r11)),
        }
    }

    fn import(
        &mut self,
        number: u32,
        call: &Call,
        embedder: &mut impl Embedder,
        support: &Support,
    ) -> Result<Answer, Reason> {
        let import = self.imports.get_mut(number as usize).ok_or(Reason::Import(number))?;
        let args = call.registers.args();
        if let Binding::Native(routine) = import.binding {
            match routine.call(support, embedder, &args) {
                Ok(value) => {
                    import.counter.native += 1;
                    return Ok(Answer::Return(value));
                }
                Err(Stop::Abort(reason)) => return Err(reason),
                Err(Stop::Upcall) => {}
            }
        }
        self.upcall(number, call, embedder)
    }

    fn upcall(&mut self, number: u32, call: &Call, embedder: &mut impl Embedder) -> Result<Answer, Reason> {
        let import = self.imports.get_mut(number as usize).ok_or(Reason::Import(number))?;
        let args = call.registers.args();
        if let Some(pointer) = args.iter().find(|arg| embedder.is_twin_stack(**arg)) {
            return Err(Reason::StackPointer(*pointer));
        }
        import.counter.upcall += 1;
        match embedder.upcall(number, import.name, import.domain, &args, call.stack)? {
            Upcall::Returned(value) => Ok(Answer::Return(value)),
            Upcall::Later => {
                self.is_waiting = true;
                Ok(Answer::Wait)
            }
        }
    }

    fn miss(&mut self, embedder: &mut impl Embedder) -> Result<Answer, Reason> {
        let stlb = self.stlb.as_mut().ok_or(Reason::Import(u32::MAX))?;
        let address = embedder.miss_address();
        let mapped = stlb.miss(address, embedder)?;
        embedder.set_miss_result(mapped);
        Ok(Answer::Resume)
    }
}

#[cfg(test)]
mod tests;
