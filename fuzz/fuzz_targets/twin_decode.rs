//! Any bytes as an image, as the code of one, and as an instruction: no panic, and the two decoders agree about what is
//! allowed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    twin_verify::fuzzing::judge(data, 2);
    twin_verify::fuzzing::judge_code(data);
    if let Err(what) = twin_verify::fuzzing::matches_reference(data, 0) {
        panic!("{what}");
    }
    if let Err(what) = twin_verify::fuzzing::decoders_agree(data) {
        panic!("{what}");
    }
});
