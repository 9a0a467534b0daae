//! Gives a network driver of the driver domain that it runs in a twin in the hypervisor: what the daemon and its tests
//! share.

/// A line of the log. Rust's own ends the program when it cannot be written.
#[cfg(not(test))]
macro_rules! println {
    ($($line:tt)*) => { ::control::log::output(format_args!($($line)*)) };
}

pub mod device;
pub mod interface;
pub mod kernel;
pub mod making;
