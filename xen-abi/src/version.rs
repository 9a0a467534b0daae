//! `XENVER_*` (public/version.h).
