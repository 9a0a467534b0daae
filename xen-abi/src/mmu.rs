//! `mmu_update`, `mmuext_op` and `update_va_mapping` (public/xen.h).
