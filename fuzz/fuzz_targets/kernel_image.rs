//! A boot module that may be anything: it is recognised and unpacked, or refused, without a panic.
#![no_main]
use kernel_image::Image;

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    if let Ok(Image::Packed(payload)) = Image::parse(file) {
        // Large enough for what a small input can mean, small enough to try many.
        let mut out = vec![0; payload.unpacked_len.min(1 << 20)];
        let _ = payload.unpack(&mut out);
    }
});
