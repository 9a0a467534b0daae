//! Grant tables, version 1.
