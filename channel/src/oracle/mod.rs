//! Front ends as they are and as they might be, fake memory, and what must hold of the back end whatever they do.
#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

pub mod blkback;
pub mod blkfront;
pub mod disk;
pub mod frames;
pub mod front_ring;
pub mod memory;
pub mod netfront;
pub mod world;
