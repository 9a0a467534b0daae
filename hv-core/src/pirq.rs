//! Physical interrupts of domains.
