//! xz (The .xz File Format, version 1.2.1), for streams of the form that the kernel's build makes: LZMA2, optionally
//! behind the x86 branch filter, with a CRC32, a CRC64 or no check.
//!
//! Why not a library: unpacking the kernel is nearly all that the hypervisor does between its entry and domain 0's.
//! The libraries that build without `std` keep a dictionary of their own and copy out of it; they take 4.2 and 4.6
//! thousand million instructions for Debian's kernel, the C library takes 3.7, this module about half. It gains by
//! using the output buffer as the dictionary, by filtering and checking once over the finished output, and by a check
//! that needs no table look-up per byte. The libraries serve as oracles in the tests.

mod container;
mod lzma;
mod lzma2;
mod x86_filter;

pub(crate) use container::unpack;

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test patterns")]
mod tests;
