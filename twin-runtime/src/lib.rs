//! Runs a verified twin behind a few traits: gates, imports, stlb, budget, aborts, and the native support routines.
//!
//! What is in here is the same in the hypervisor and in the host harness. Whoever embeds it implements [`Memory`]
//! (domain memory), [`stlb::Mapper`], [`gate::Embedder`] and [`linux::Host`], maps the areas that [`instance`]
//! computes, and brings a few dozen lines of assembly: one to enter a code offset on the twin's stack and one stub per
//! gate and import slot that stores the registers of [`gate::Call`] and calls [`gate::Twin::gate`]. Nothing here
//! contains `unsafe`.
#![no_std]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "stacks of tests are large"))]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod abort;
pub mod addresses;
pub mod gate;
pub mod instance;
pub mod limit;
pub mod linux;
pub mod memory;
pub mod order;
pub mod stlb;
pub mod stubs;

pub use abort::{Abort, Reason};
pub use memory::{Fault, Memory};
