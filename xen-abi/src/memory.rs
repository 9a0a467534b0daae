//! `XENMEM_*` (public/memory.h).
