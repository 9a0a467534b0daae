//! `trap_info` and bounce-frame constants (public/xen.h, public/arch-x86/xen.h).
