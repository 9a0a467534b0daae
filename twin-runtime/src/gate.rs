//! What happens when the twin calls out of its image.
//!
//! The embedder's stub for a gate stores the registers of a [`Call`], leaves the twin's stack, and calls [`Twin::gate`]. Then,
//! by the [`Answer`]: `Return` puts the value into rax, clears the other caller-saved registers and returns to the twin; `Resume`
//! returns with every register as it was; `Enter` goes on at a code offset of the image as if that had been called (the return
//! address of the gate stays on top of the twin's stack, the argument registers are as they were); `Abort` leaves the twin for good.
//! DF is clear in all of them. An invocation is [`Twin::begin`], the embedder's entry code, and then the value of rax or the abort.

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

/// A call out of the image.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The stub.
    pub gate: Gate,
    /// rdi, rsi, rdx, rcx, r8, r9.
    pub args: [u64; 6],
    /// r11.
    pub r11: u64,
    /// Code offset of the return address; the embedder computes it from the top of the twin's stack.
    pub from: u32,
    /// The twin's rsp: points to the return address, stack arguments above it.
    pub stack: u64,
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
    /// End the invocation.
    Abort(Abort),
}

/// The words of the context page and the way to the driver domain.
pub trait Embedder: Host + Mapper {
    /// Reads `BUDGET`.
    fn budget(&self) -> i64;
    /// Writes `BUDGET`.
    fn set_budget(&mut self, steps: i64);
    /// Reads `MISS_ADDRESS`.
    fn miss_address(&self) -> u64;
    /// Writes `MISS_RESULT`.
    fn set_miss_result(&mut self, address: u64);
    /// Runs a function of the driver domain to its end and returns its result. `stack` is the twin's, for further arguments.
    ///
    /// # Errors
    /// If upcalls are not possible here or the domain does not answer.
    fn upcall(&mut self, import: u32, name: &str, domain: u64, args: &[u64; 6], stack: u64) -> Result<u64, Reason>;
    /// Whether the time for this invocation is over; asked in every gate. What never comes to a gate, the embedder has to
    /// interrupt by itself, or rely on the counted budget.
    fn is_out_of_time(&self) -> bool {
        false
    }
    /// Whether an address lies in the twin's stack or its unsafe area.
    fn is_twin_stack(&self, address: u64) -> bool;
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
    /// Served natively.
    pub native: u64,
    /// Served by an upcall.
    pub upcall: u64,
}

/// A loaded twin.
#[derive(Debug)]
pub struct Twin<'a> {
    verified: Verified<'a>,
    addresses: Addresses,
    bindings: Vec<Binding>,
    counters: Vec<Counter>,
    /// `WARN` sites reached.
    pub warnings: u64,
    /// Indirect calls that came to the gate.
    pub indirect: u64,
    /// The state behind the stlb, in that mode.
    pub stlb: Option<Stlb>,
}

impl<'a> Twin<'a> {
    /// Binds the imports of an accepted image. `stlb_limit` and `hole` are for [`Stlb::new`].
    #[must_use]
    pub fn new(verified: Verified<'a>, stlb_limit: usize, hole: u64) -> Self {
        let image = verified.image();
        let bind = |name: &str| Routine::by_name(name).map_or(Binding::Upcall, Binding::Native);
        let bindings: Vec<Binding> = image.imports().iter().map(|i| bind(image.name(i.name, i.name_len))).collect();
        let addresses = Addresses::new(image);
        let counters = alloc::vec![Counter::default(); bindings.len()];
        let stlb = (verified.policy().mode == Mode::Stlb).then(|| Stlb::new(stlb_limit, hole));
        Self { verified, addresses, bindings, counters, warnings: 0, indirect: 0, stlb }
    }

    /// The image.
    #[must_use]
    pub fn verified(&self) -> &Verified<'a> {
        &self.verified
    }

    /// The address table.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Name, binding and counts of each import.
    pub fn imports(&self) -> impl Iterator<Item = (&'a str, Binding, Counter)> + '_ {
        let image = *self.verified.image();
        let names = image.imports().iter().map(move |i| image.name(i.name, i.name_len));
        names.zip(self.bindings.iter().copied()).zip(self.counters.iter().copied()).map(|((n, b), c)| (n, b, c))
    }

    /// Serves an import by upcall although a native routine exists.
    pub fn force_upcall(&mut self, name: &str) {
        let image = *self.verified.image();
        for (binding, import) in self.bindings.iter_mut().zip(image.imports().iter()) {
            if image.name(import.name, import.name_len) == name {
                *binding = Binding::Upcall;
            }
        }
    }

    /// Begins an invocation of the function at a domain address: sets the budget, returns the code offset to enter.
    ///
    /// # Errors
    /// If the twin has no such function.
    pub fn begin(&self, domain: u64, budget: i64, embedder: &mut impl Embedder) -> Result<u32, Abort> {
        match self.addresses.resolve(domain) {
            Some(Target::Function(offset)) => {
                embedder.set_budget(budget);
                Ok(offset)
            }
            _ => Err(self.abort(0, Reason::IndirectCall(domain))),
        }
    }

    /// Serves a call out of the image.
    pub fn gate(&mut self, call: &Call, embedder: &mut impl Embedder, support: &mut Support) -> Answer {
        let left = embedder.budget().wrapping_sub(1);
        embedder.set_budget(left);
        if left < 0 {
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

    fn indirect_call(
        &mut self,
        call: &Call,
        embedder: &mut impl Embedder,
        support: &mut Support,
    ) -> Result<Answer, Reason> {
        self.indirect += 1;
        match self.addresses.resolve(call.r11) {
            Some(Target::Function(offset)) => Ok(Answer::Enter(offset)),
            Some(Target::Import(number)) => self.import(number, call, embedder, support),
            None => Err(Reason::IndirectCall(call.r11)),
        }
    }

    fn import(
        &mut self,
        number: u32,
        call: &Call,
        embedder: &mut impl Embedder,
        support: &mut Support,
    ) -> Result<Answer, Reason> {
        let binding = *self.bindings.get(number as usize).ok_or(Reason::Import(number))?;
        let image = *self.verified.image();
        let import = image.imports().get(number as usize).ok_or(Reason::Import(number))?;
        let counter = self.counters.get_mut(number as usize).ok_or(Reason::Import(number))?;
        if let Binding::Native(routine) = binding {
            match routine.call(support, embedder, &call.args) {
                Ok(value) => {
                    counter.native += 1;
                    return Ok(Answer::Return(value));
                }
                Err(Stop::Abort(reason)) => return Err(reason),
                Err(Stop::Upcall) => {}
            }
        }
        if let Some(pointer) = call.args.iter().find(|arg| embedder.is_twin_stack(**arg)) {
            return Err(Reason::StackPointer(*pointer));
        }
        counter.upcall += 1;
        let name = image.name(import.name, import.name_len);
        embedder.upcall(number, name, import.domain, &call.args, call.stack).map(Answer::Return)
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
