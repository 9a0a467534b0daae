//! Machines, images, the wire's other end, patterns, counters: what tests, benches and capture share.

pub mod build;
pub mod cli;
pub mod counter;
pub mod firmware;
pub mod guests;
pub mod host;
pub mod images;
pub mod kallsyms;
pub mod machine;
pub mod medium;
pub mod pattern;
pub mod peer;
pub mod progress;
pub mod symbols;
