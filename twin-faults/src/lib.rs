//! The faults that are injected into drivers, wherever their twins run: what is changed, where, and by what chance.

pub mod data;
pub mod live;
pub mod mutate;
pub mod random;
pub mod spent;
pub mod text;
