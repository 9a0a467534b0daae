//! `XENFEAT_*` bits (public/features.h).
