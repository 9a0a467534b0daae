//! Requests from one CPU to others.

/// Answers requests of other CPUs that wait for this one. Called wherever a CPU waits with interrupts off.
#[inline]
pub fn service_pending() {}
