//! The bootable image, and the only crate with `unsafe` and assembly.
#![no_std]
#![no_main]
