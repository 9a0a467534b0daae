//! A network card as a port of the switch: what waits for it, and packets as it takes them.

pub mod arrival;
pub mod deal;
pub mod frames;
pub mod lots;
pub mod turns;
