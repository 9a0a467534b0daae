//! Operations on the event channels of three domains, polite or not: bindings agree with a model and no event is lost.
#![no_main]

libfuzzer_sys::fuzz_target!(|ops: &[u8]| hv_core::evtchn::oracle::run(ops));
