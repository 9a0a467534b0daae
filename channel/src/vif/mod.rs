//! A guest's network interface.

pub mod credit;
pub mod journal;
pub mod stats;
pub mod tx;
