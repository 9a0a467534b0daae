//! Little-endian numbers at an offset of a byte slice that may end too early.

pub(crate) fn array_at<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}

pub(crate) fn u8_at(data: &[u8], at: usize) -> Option<u8> {
    data.get(at).copied()
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array_at(data, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    array_at(data, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    array_at(data, at).map(u64::from_le_bytes)
}

/// The first four bytes, zero-padded.
pub(crate) fn magic(data: &[u8]) -> [u8; 4] {
    let mut magic = [0; 4];
    for (m, d) in magic.iter_mut().zip(data) {
        *m = *d;
    }
    magic
}

/// What each byte leaves in the register of a reflected CRC with this polynomial, of up to 64 bits.
pub(crate) const fn crc_table(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ polynomial } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}
