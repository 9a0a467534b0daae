//! Runs the twin on the host's own processor.
//!
//! The driver domain's kernel half is mapped at its masked addresses with its own page rights (mirror), or pair by pair
//! where the table says (stlb). Device registers are left unmapped: an access to them faults, and the fault handler
//! takes the one instruction to the device model. Any other fault in the twin's code, a trap or the end of its time
//! leaves the invocation for good. There is one running twin in a process; the fixed addresses allow no more.
#![allow(unsafe_code, reason = "a driver's code runs in this process, at addresses of its own")]

pub mod arena;
mod entry;
mod faults;
pub mod original;
pub mod quiet;

use crate::embed::Embedded;
use crate::lab::{Class, Ended, Executor};
use crate::world::World;
use arena::Arena;
use entry::{enter, Callee, Entry, Running};
pub use entry::{CALL_CYCLES, GATE_CYCLES};
use faults::{RUN, RUNNING, TICKS, TICK_LIMIT};
use std::sync::atomic::Ordering;
use twin_runtime::gate::{Invocation, Twin};
use twin_runtime::linux::Support;

/// The twin on the host's processor.
pub struct Native<'a> {
    /// The loaded image.
    pub twin: Twin<'a>,
    arena: Box<Arena>,
    budget: i64,
}

impl<'a> Native<'a> {
    /// Loads an image. `code` replaces its own.
    pub fn load(mut arena: Box<Arena>, twin: Twin<'a>, code: Option<&[u8]>) -> Result<Self, String> {
        arena.load(&twin, code)?;
        Ok(Self { twin, arena, budget: i64::MAX })
    }

    /// Gives the mappings back, for the next image.
    pub fn unload(self) -> Box<Arena> {
        self.arena
    }

    /// How many steps (loops, calls) an invocation may take.
    pub fn set_budget(&mut self, steps: i64) {
        self.budget = steps;
    }

    /// After how many ticks of two milliseconds of processor time an invocation is ended.
    pub fn set_time_limit(ticks: u64) {
        TICK_LIMIT.store(ticks, Ordering::Relaxed);
    }

    /// What to call this run if the process has to end.
    pub fn set_run(number: u64) {
        RUN.store(number, Ordering::Relaxed);
    }
}

impl Executor for Native<'_> {
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        let image = *self.twin.verified().image();
        let begun = self.twin.begin(function, args, self.budget, &mut Embedded { world, instance: &mut *self.arena });
        let (mut invocation, at) = begun.map_err(|a| Ended::from_abort(&a, &image, function))?;
        let twin_runtime::gate::Entry { offset, registers } = at;
        let target = self.arena.code_base() + u64::from(offset);
        let entry = Entry { stack: self.arena.stack_top(), target, registers };
        let callee: *mut Invocation<'_, '_> = &mut invocation;
        let mut running =
            Running { callee: Callee::Twin(callee.cast()), arena: &mut *self.arena, world, support, abort: None };
        TICKS.store(0, Ordering::Relaxed);
        RUNNING.store(&mut running, Ordering::SeqCst);
        // SAFETY: the target is the start of a function of a loaded image, the stack is the twin's own; the sandbox or
        // the fault handler brings control back here with all callee-saved registers. What `running` points to is
        // borrowed exclusively until then.
        let (value, broken) = unsafe { enter(&entry) };
        RUNNING.store(std::ptr::null_mut(), Ordering::SeqCst);
        if broken {
            let at = twin_runtime::Abort::at(&image, offset, twin_runtime::Reason::Bug).symbol.to_string();
            return Err(Ended { class: Class::Escape, reason: "returned with other registers".into(), at });
        }
        match running.abort {
            None => Ok(value),
            Some(abort) => Err(Ended::from_abort(&abort, &image, function)),
        }
    }

    fn instructions(&self) -> u64 {
        0
    }
}
