//! Data that can be recognised again; the same functions in C are in images/src/pattern.h.

use anyhow::{bail, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes in a block of a test disk.
pub const BLOCK: usize = 65536;
const BLOCK_U64: u64 = 65536;

fn word(stream: u64, index: u64) -> u64 {
    let mut z = stream
        .wrapping_mul(0xd134_2543_de82_ef95)
        .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(0x632b_e59b_d9b4_e019);
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

/// Fills `buf` with the bytes of `stream`.
pub fn fill(buf: &mut [u8], stream: u64) {
    for (index, chunk) in (0u64..).zip(buf.chunks_mut(8)) {
        let bytes = word(stream, index).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

/// Checksum over 64-bit words, the last one padded with zeroes.
pub fn checksum(buf: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325 ^ buf.len() as u64;
    for chunk in buf.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0100_0000_01b3);
        h ^= h >> 31;
    }
    h
}

/// Length of datagram `seq`'s body: mostly full frames, every eighth another length.
pub fn datagram_len(seq: u64) -> usize {
    const FULL: u64 = 1448;
    let len = if !seq.is_multiple_of(8) { FULL } else { word(77, seq) % FULL + 1 };
    usize::try_from(len).unwrap_or(1)
}

/// Length of a file of `fileload`, whose bytes are the stream of this number.
pub fn file_len(generation: u64) -> usize {
    usize::try_from(word(55, generation) % BLOCK_U64 + 1).unwrap_or(1)
}

fn disk_stream(generation: u64, block: u64) -> u64 {
    (generation << 40) + block
}

/// Makes a disk of twice `mib` mebibytes; the first half holds generation 1, the second is empty.
pub fn make_disk(path: &Path, mib: u64) -> Result<()> {
    let mut file = std::io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut block = vec![0; BLOCK];
    for n in 0..mib * 1048576 / BLOCK_U64 {
        fill(&mut block, disk_stream(1, n));
        file.write_all(&block)?;
    }
    file.into_inner()?.set_len(2 * mib * 1048576)?;
    Ok(())
}

/// Checks both halves after the machine was off: the first untouched, the second generation 2. Gives the blocks
/// checked.
pub fn verify_disk(path: &Path, mib: u64) -> Result<u64> {
    let mut file = OpenOptions::new().read(true).open(path)?;
    file.seek(SeekFrom::Start(0))?;
    let half = mib * 1048576 / BLOCK_U64;
    let (mut found, mut wanted) = (vec![0; BLOCK], vec![0; BLOCK]);
    for n in 0..2 * half {
        file.read_exact(&mut found)?;
        fill(&mut wanted, disk_stream(if n < half { 1 } else { 2 }, n));
        if found != wanted {
            bail!("block {n} of the disk holds wrong data, seen from the host");
        }
    }
    Ok(2 * half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_shared_with_the_c_side() {
        assert_eq!((word(0, 0), word(3, 5)), (0x87d9_8e19_fa09_70d6, 0xdec2_1df0_8359_6bb6));
        assert_eq!(checksum(b"hello, world"), 0x7032_03ab_99c0_5587);
        let mut a = [0; 11];
        fill(&mut a, 5);
        let mut b = [0; 16];
        fill(&mut b, 5);
        assert_eq!(a, b[..11]);
    }

    #[test]
    fn the_checksum_sees_a_flipped_bit_a_swap_and_a_length() {
        let mut a = [0; 64];
        fill(&mut a, 9);
        let sum = checksum(&a);
        let mut b = a;
        b[40] ^= 1;
        assert_ne!(checksum(&b), sum);
        b = a;
        b.swap(3, 60);
        assert_ne!(checksum(&b), sum);
        assert_ne!(checksum(&a[..63]), sum);
    }

    #[test]
    fn a_wrong_block_on_the_disk_is_found() {
        let path = std::env::temp_dir().join(format!("tandem-disk-{}", std::process::id()));
        make_disk(&path, 1).unwrap();
        assert!(verify_disk(&path, 1).is_err(), "second half was never written");
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        let mut block = vec![0; BLOCK];
        for n in 16..32 {
            fill(&mut block, disk_stream(2, n));
            file.seek(SeekFrom::Start(n * BLOCK_U64)).unwrap();
            file.write_all(&block).unwrap();
        }
        assert_eq!(verify_disk(&path, 1).unwrap(), 32);
        file.seek(SeekFrom::Start(5000)).unwrap();
        file.write_all(&[1, 2, 3]).unwrap();
        assert!(verify_disk(&path, 1).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
