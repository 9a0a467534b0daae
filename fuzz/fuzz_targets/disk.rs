//! A guest's disk and driver domains that die, lie, or meet a guest that does: each request is answered once, and done
//! as it was asked for.
#![no_main]

libfuzzer_sys::fuzz_target!(|ops: &[u8]| {
    channel::oracle::disk::run(ops);
});
