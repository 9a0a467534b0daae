//! `console_io` commands and the PV console ring (public/io/console.h).
