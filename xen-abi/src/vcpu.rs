//! `VCPUOP_*` (public/vcpu.h).
