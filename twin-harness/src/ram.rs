//! The captured physical memory, in a mapping that can be shown at several addresses.

use std::cell::RefCell;
use std::io;

/// Physical memory of the driver domain, backed by an anonymous file.
#[derive(Debug)]
pub struct Ram {
    base: *mut u8,
    len: usize,
    file: i32,
    undo: RefCell<Option<Undo>>,
}

/// What was overwritten since a mark, in order.
#[derive(Debug, Default)]
struct Undo {
    places: Vec<(u64, usize)>,
    bytes: Vec<u8>,
}

// SAFETY: the memory is plain bytes; the harness runs one invocation at a time.
unsafe impl Send for Ram {}

impl Ram {
    /// A copy of `content`.
    pub fn new(content: &[u8]) -> io::Result<Self> {
        // SAFETY: plain system calls; the name is a zero-terminated string.
        let file = unsafe { libc::memfd_create(c"driver-domain".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `file` is open.
        if unsafe { libc::ftruncate(file, content.len() as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new shared mapping of the whole file, at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                content.len(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ram = Self { base: base.cast(), len: content.len(), file, undo: RefCell::new(None) };
        // Pages of zeroes stay holes.
        for (n, page) in content.chunks(4096).enumerate() {
            if page.iter().any(|b| *b != 0) {
                ram.write((n * 4096) as u64, page);
            }
        }
        Ok(ram)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file, to map it elsewhere.
    pub fn file(&self) -> i32 {
        self.file
    }

    fn range(&self, at: u64, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(at).ok()?;
        (at.checked_add(len)? <= self.len).then(|| {
            // SAFETY: `at` is inside the mapping.
            unsafe { self.base.add(at) }
        })
    }

    /// Reads; `false` if outside.
    pub fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.range(at, into.len()) else { return false };
        // SAFETY: the range was checked; `into` is ours and does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        true
    }

    /// Writes; `false` if outside.
    pub fn write(&self, at: u64, from: &[u8]) -> bool {
        let Some(to) = self.range(at, from.len()) else { return false };
        if let Some(undo) = self.undo.borrow_mut().as_mut() {
            let old = undo.bytes.len();
            undo.places.push((at, from.len()));
            undo.bytes.resize(old + from.len(), 0);
            self.read(at, &mut undo.bytes[old..]);
        }
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        true
    }

    /// From here on, what is overwritten is kept.
    pub fn mark(&self) {
        *self.undo.borrow_mut() = Some(Undo::default());
    }

    /// Makes everything as it was at the mark; the mark stays.
    pub fn rewind(&self) {
        let Some(undo) = self.undo.borrow_mut().take() else { return };
        let mut end = undo.bytes.len();
        for (at, len) in undo.places.iter().rev() {
            self.write(*at, &undo.bytes[end - len..end]);
            end -= len;
        }
        self.mark();
    }

    /// Reads an integer of up to eight bytes.
    pub fn int(&self, at: u64, size: usize) -> Option<u64> {
        let mut b = [0; 8];
        self.read(at, b.get_mut(..size)?).then(|| u64::from_le_bytes(b))
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`; nothing runs while the slice is looked at.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: mapping and file are ours and no slice of them is left.
        unsafe {
            libc::munmap(self.base.cast(), self.len);
            libc::close(self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ram;

    #[test]
    fn rewinding_restores_overlapping_writes_in_order() {
        let ram = Ram::new(&[7; 8192]).unwrap();
        ram.mark();
        assert!(ram.write(10, &[1, 2, 3]));
        assert!(ram.write(11, &[9; 4]));
        ram.rewind();
        assert_eq!(ram.bytes(), [7; 8192]);
        assert!(ram.write(0, &[1]));
        ram.rewind();
        assert_eq!(ram.bytes()[0], 7);
        assert!(!ram.write(8190, &[0; 3]));
    }
}
