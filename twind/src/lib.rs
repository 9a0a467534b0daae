//! Gives a network driver of the driver domain that it runs in a twin in the hypervisor: what the daemon and its tests share.

pub mod device;
pub mod interface;
pub mod kernel;
pub mod making;
