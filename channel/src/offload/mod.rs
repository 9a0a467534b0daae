//! What network cards do for a driver and some ports cannot: checksums and segments.

pub mod checksum;
pub mod headers;
pub mod merge;
pub mod segment;
