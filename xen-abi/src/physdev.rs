//! `PHYSDEVOP_*` (public/physdev.h).
