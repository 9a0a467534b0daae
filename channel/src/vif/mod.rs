//! A guest's network interface.

pub mod credit;
pub mod features;
pub mod journal;
pub mod rx;
pub mod stats;
pub mod tx;
