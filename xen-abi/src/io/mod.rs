//! Protocols between a device's front end and back end (public/io).

pub mod blkif;
pub mod netif;
pub mod pciif;
pub mod ring;
