//! Grants, maps and unmaps between three domains, with entries that change at any time: references agree with a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|ops: &[u8]| hv_core::grant::oracle::run(ops));
