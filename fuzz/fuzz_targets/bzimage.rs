//! A boot module that may be anything, and any compressed stream: unpacked or refused, without a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    kernel_image::oracle::check_image(data);
    kernel_image::oracle::check_stream(data);
});
