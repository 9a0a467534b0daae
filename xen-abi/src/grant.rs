//! Grant tables, version 1 (public/grant_table.h).
