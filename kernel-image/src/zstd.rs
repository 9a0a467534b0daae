//! zstd (RFC 8878), decoded by the `ruzstd` crate.

use ruzstd::decoding::FrameDecoder;

/// Unpacks all frames into `out`; returns the number of bytes written.
pub(crate) fn unpack(data: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let mut decoder = FrameDecoder::new();
    let written = decoder.decode_all(data, out).map_err(|_| "invalid data, or more than stated")?;
    // The crate computes the checksum, but leaves the comparison to its user.
    match decoder.get_checksum_from_data() {
        Some(stored) if decoder.get_calculated_checksum() != Some(stored) => Err("checksum mismatch"),
        _ => Ok(written),
    }
}
