//! Requests from one CPU to others.

/// Answers requests of other CPUs that wait for this one. Called wherever a CPU waits with interrupts off.
#[inline]
pub fn service_pending() {}

/// Interrupts CPU `cpu`, which then looks at its pending work.
pub fn kick(_cpu: usize) {}
