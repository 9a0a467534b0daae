//! Guests, one of them hostile, that send each other packets through the switch and a slow network card: nothing is
//! lost.
#![no_main]

libfuzzer_sys::fuzz_target!(|ops: &[u8]| channel::oracle::world::run(ops));
