//! Runs real drivers' twins on the host against captured driver state and a model of the device.

pub mod cpu;
pub mod device;
pub mod emulate;
pub mod input;
pub mod lab;
pub mod measure;
pub mod native;
pub mod ram;
pub mod world;
pub mod equivalence;
pub mod faults;
pub mod mutate;
pub mod random;
pub mod report;
pub mod rig;
pub mod scenario;
pub mod show;
pub mod traffic;
