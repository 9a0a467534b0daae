//! `XENPF_*` (public/platform.h).
