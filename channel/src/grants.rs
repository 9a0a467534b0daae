//! What guests grant: frames in use, and their bytes. Nothing is mapped.

use crate::offload::checksum::Eights;
pub use xen_abi::grant::GntStatus;

/// The grants of one guest to its back end.
pub trait Grants {
    /// A frame of the guest's that is in use. It stays what it is, and the guest cannot take the grant back, until the
    /// use ends.
    type Frame: Copy + Default;

    /// Begins a use of a grant: to read from it, or with `writable` to write to it. Errors are those of a grant copy.
    fn pin(&mut self, gref: u32, writable: bool) -> Result<Self::Frame, GntStatus>;
    /// Ends a use that [`Grants::pin`] began with the same arguments.
    fn unpin(&mut self, gref: u32, writable: bool);

    /// Uses a grant once, as `f` does: to read, or with `writable` to write. Errors are those of a grant copy; then `f`
    /// is not called.
    #[inline(always)]
    fn use_once(&mut self, gref: u32, writable: bool, f: impl FnOnce(Self::Frame)) -> Result<(), GntStatus> {
        f(self.pin(gref, writable)?);
        self.unpin(gref, writable);
        Ok(())
    }
}

/// The bytes of frames in use. The guest may change them meanwhile: what was read is a copy, and what is read again may
/// differ. `offset` and length never go beyond 4096; the caller has checked that.
pub trait Frames<F> {
    /// Copies out of a frame.
    fn read(&self, frame: F, offset: u16, to: &mut [u8]);
    /// Copies into a frame.
    fn write(&self, frame: F, offset: u16, from: &[u8]);
    /// A word of a frame, read once; 0 if it is not in the frame.
    fn read_word(&self, frame: F, offset: u16) -> u64 {
        let mut word = [0; 8];
        self.read(frame, offset, &mut word);
        u64::from_le_bytes(word)
    }
    /// Writes a word.
    fn write_word(&self, frame: F, offset: u16, word: u64) {
        self.write(frame, offset, &word.to_le_bytes());
    }
    /// Copies `len` bytes from one frame into another.
    fn copy(&self, from: F, from_offset: u16, to: F, to_offset: u16, len: u16);
    /// The sum of `len` bytes, as if they began a word.
    fn sum(&self, frame: F, offset: u16, len: u16) -> Eights;
}
