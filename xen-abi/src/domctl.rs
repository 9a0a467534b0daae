//! `XEN_DOMCTL_*`, interface version 0x15 (public/domctl.h).
