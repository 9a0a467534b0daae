//! Bitmaps of CPUs and nodes in guest memory.

use crate::mem::guest_ptr::{plain, GuestPtr};
use xen_abi::domctl::Bitmap;
use xen_abi::errno::Errno;

plain!(Bitmap);

/// Longest bitmap of a guest that is filled up with zeroes; more is left as it is.
const MAX_BYTES: u64 = 1024;

/// Writes `mask` into a guest's bitmap, as far as it has room. Errors: EFAULT.
pub fn write(map: &Bitmap, mask: u64) -> Result<(), Errno> {
    let room = u64::from(map.nr_bits).div_ceil(8).min(MAX_BYTES);
    let target = GuestPtr::<u8>::new(map.bitmap);
    let bytes = mask.to_le_bytes();
    let copied = room.min(8);
    target.write_slice(&bytes[..copied as usize])?;
    for n in copied..room {
        target.at(n)?.write(&0)?;
    }
    Ok(())
}
