//! The hypervisor's end of device channels: rings, what is not yet answered, the switch, credit. Never names the twin.
//!
//! A channel belongs to a guest's device and outlives every driver domain behind it. What is here are its state
//! machines: no lock, no hardware, no guest memory but through small traits ([`page::SharedPage`], [`grants::Grants`]).
//! They allocate when a channel is connected and at no other time. Nothing that a guest writes is read twice.
#![no_std]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "stacks of tests are large"))]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "fuzzing"))]
extern crate std;

pub mod card;
pub mod flow;
pub mod grants;
pub mod offload;
#[cfg(feature = "fuzzing")]
pub mod oracle;
pub mod pace;
pub mod packet;
pub mod page;
pub mod ring;
pub mod round;
pub mod switch;
pub mod vbd;
pub mod vif;
