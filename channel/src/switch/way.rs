//! By which port of a table packets leave: the one thing of it that changes while it is in use, since that needs no
//! memory.

use super::{PortId, NONE};
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// A way out.
#[derive(Debug)]
pub struct Way {
    /// The port, also one that nothing goes to any more.
    port: AtomicU16,
    /// Nothing goes there: until when, in ns, packets wait for another way; 0: they go there.
    closed_until: AtomicU64,
}

impl Way {
    /// By this port.
    pub fn by(port: Option<PortId>) -> Self {
        Self { port: AtomicU16::new(port.map_or(NONE, |port| port.0)), closed_until: AtomicU64::new(0) }
    }

    /// The port, also one that nothing goes to any more.
    #[inline]
    pub fn port(&self) -> Option<PortId> {
        let port = self.port.load(Ordering::Relaxed);
        (port != NONE).then_some(PortId(port))
    }

    /// If nothing goes there: until when, in ns, packets wait.
    #[inline]
    pub fn closed_until(&self) -> Option<u64> {
        let until = self.closed_until.load(Ordering::Relaxed);
        (until != 0).then_some(until)
    }

    /// It is by this port from now on.
    pub fn lead(&self, port: PortId) {
        self.port.store(port.0, Ordering::Relaxed);
        self.closed_until.store(0, Ordering::Relaxed);
    }

    /// Nothing goes there from now on; packets wait until then (ns).
    pub fn close(&self, until: u64) {
        self.closed_until.store(until.max(1), Ordering::Relaxed);
    }
}
