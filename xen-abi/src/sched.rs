//! `SCHEDOP_*` (public/sched.h).
