//! A guest's network interface.

pub mod backlog;
pub mod credit;
pub mod features;
pub mod journal;
pub mod multicast;
mod request;
pub mod rx;
pub mod stats;
pub mod tx;
pub mod waiting;
