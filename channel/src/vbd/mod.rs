//! A guest's disk: requests out of the guest's ring, kept in a journal, and passed on to the driver domain's own back
//! end.
//!
//! The guest's ring belongs to the hypervisor ([`disk`]); behind it is a second ring, on which the hypervisor plays the
//! front end for a stock back end ([`front`]). That back end may die at any moment, and another takes its place: what
//! it had not answered is passed on to the next.
//!
//! Bytes go through pages between the two, which belong to neither the guest nor the driver domain. So a guest's grant
//! is in use only while bytes are copied, a guest that goes waits for no driver, and a device that still reads or
//! writes for a back end that is dead reaches no page of a guest's. What a guest wants to be written is copied when its
//! request is taken: it is the same bytes however often it is passed on.

mod copy;
pub mod disk;
mod ends;
pub mod front;
mod journal;
mod lost;
mod mark;
mod order;
mod pool;
mod request;
mod run;
pub mod shares;
mod stats;
mod sweep;

pub use request::{Offers, MAX_SEGMENTS};
pub use stats::Stats;
