//! `XEN_SYSCTL_*`, interface version 0x15 (public/sysctl.h).
