//! Images built from what the verifier lets pass, and damaged: accepted ones stay inside under the emulator.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    twin_verify::fuzzing::run(data, 8);
});
