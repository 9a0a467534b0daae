//! The legacy frame format of lz4: a magic number, then blocks of at most 8 MiB unpacked, each preceded by its packed
//! size. Blocks are independent; there is no checksum.
//!
//! Documented in lz4's doc/lz4_Frame_format.md, "Legacy frame".

use crate::bytes::u32_at;

const MAGIC: u32 = 0x184c_2102;
const BLOCK_MAX: usize = 8 << 20;

/// Unpacks all blocks into `out`; returns the number of bytes written.
pub(crate) fn unpack(data: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let mut at = 4;
    let mut written = 0;
    while let Some(size) = u32_at(data, at) {
        at += 4;
        // A further frame may follow directly.
        if size == MAGIC {
            continue;
        }
        let block = data.get(at..).and_then(|rest| rest.get(..size as usize)).ok_or("a block ends early")?;
        let free = out.get_mut(written..).unwrap_or_default();
        let room = free.len().min(BLOCK_MAX);
        written += lz4_flex::block::decompress_into(block, &mut free[..room]).map_err(|_| "invalid block")?;
        at += size as usize;
    }
    if at != data.len() {
        return Err("the data ends early");
    }
    Ok(written)
}
