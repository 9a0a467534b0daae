//! Runs real drivers' twins on the host against captured driver state and a model of the device.

pub mod bench;
pub mod corruption;
pub mod cpu;
pub mod device;
pub mod embed;
pub mod emulate;
pub mod equivalence;
pub mod faults;
pub mod lab;
pub mod measure;
pub mod native;
pub mod ram;
pub mod report;
pub mod rig;
pub mod scenario;
pub mod show;
pub mod traffic;
pub mod world;

pub use twin_faults::{mutate, random};
