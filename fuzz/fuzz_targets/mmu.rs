//! Two random guests against the page tables: every count is right after each step, and everything is free at the end.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hv_core::mmu::model::run(data));
