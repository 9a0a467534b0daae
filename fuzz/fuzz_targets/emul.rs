//! Any instruction bytes and registers: the emulator decodes or refuses, stays inside its operand, and never panics.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hv_core::emul::oracle::check(data));
