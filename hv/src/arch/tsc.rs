//! System time from the time-stamp counter.

/// ns = `ns_base` + ((tsc - `tsc_base`) << `shift`) * `mul` >> 32.
pub struct Scale {
    pub tsc_base: u64,
    pub ns_base: u64,
    pub mul: u32,
    pub shift: i8,
}
/// The scale.
pub fn scale() -> Scale {
    Scale { tsc_base: 0, ns_base: 0, mul: 1 << 31, shift: 1 }
}
/// Nanoseconds since the hypervisor started.
pub fn now_ns() -> u64 {
    crate::arch::cpu::rdtsc()
}
