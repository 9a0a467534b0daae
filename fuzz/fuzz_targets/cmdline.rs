//! Any command line of the hypervisor: parsed, with complaints of one line each.
#![no_main]

libfuzzer_sys::fuzz_target!(|line: &str| hv_core::cmdline::check_line(line));
