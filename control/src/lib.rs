//! What twinctl, tandemd and twind say to each other: requests and what is told, by sockets and by xenstore.
//!
//! A request is a line of JSON on a Unix socket, and so is its answer ([`socket`]). From domain 0 a driver domain's
//! twind is asked by xenstore ([`errand`]): the domain may write below its own `data`, and nothing else connects the
//! two.

pub mod errand;
pub mod log;
pub mod request;
pub mod socket;
pub mod store;
pub mod told;
pub mod watchdog;

pub use anyhow::Error;
pub use request::{Image, Mode, Order, Request};
pub use told::{Answer, Told};

/// What a program of this name says of its version, which is that of all of Tandem. The hypervisor says its own when it
/// boots.
#[must_use]
pub fn version(program: &str) -> String {
    format!("{program} {}", env!("CARGO_PKG_VERSION"))
}

/// Where the sockets are.
pub const RUN: &str = "/run/tandem";
/// tandemd's socket, in domain 0.
pub const TANDEMD: &str = "/run/tandem/tandemd.sock";
/// twind's socket, in a driver domain.
pub const TWIND: &str = "/run/tandem/twind.sock";
