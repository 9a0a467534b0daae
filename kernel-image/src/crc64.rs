//! CRC-64 as xz uses it (ECMA-182, reflected). Byte by byte: no kernel build uses it, only hand-packed images do.

#![allow(clippy::cast_possible_truncation, reason = "a CRC is shifted out byte by byte")]

const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

const TABLE: [u64; 256] = crate::bytes::crc_table(POLYNOMIAL);

/// CRC-64 of `data`.
pub(crate) fn crc64(data: &[u8]) -> u64 {
    !data.iter().fold(!0, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_value() {
        assert_eq!(super::crc64(b"123456789"), 0x995d_c9bb_df19_39fa);
    }
}
