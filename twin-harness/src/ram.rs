//! The captured physical memory, in a mapping that can be shown at several addresses.
#![allow(unsafe_code, reason = "memory of the system's, which no Rust object is in")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;

/// Physical memory of the driver domain, backed by an anonymous file.
#[derive(Debug)]
pub struct Ram {
    base: *mut u8,
    len: usize,
    file: i32,
    kept: RefCell<Option<Kept>>,
}

/// Pages that were written since a mark, as they were.
type Kept = HashMap<u64, Box<[u8; PAGE]>, std::hash::BuildHasherDefault<crate::world::PageHasher>>;

const PAGE: usize = 4096;

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
        let ram = Self { base: base.cast(), len: content.len(), file, kept: RefCell::new(None) };
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
        self.touch(at, from.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        true
    }

    /// From here on, pages are kept as they are before they are written.
    pub fn mark(&self) {
        *self.kept.borrow_mut() = Some(Kept::default());
    }

    /// Keeps the pages of a range that is about to be written.
    pub fn touch(&self, at: u64, len: usize) {
        let mut kept = self.kept.borrow_mut();
        let Some(kept) = kept.as_mut() else { return };
        let last = (at + len.max(1) as u64 - 1) / PAGE as u64;
        for n in at / PAGE as u64..=last {
            kept.entry(n).or_insert_with(|| {
                let mut page = Box::new([0; PAGE]);
                self.read(n * PAGE as u64, &mut page[..]);
                page
            });
        }
    }

    /// Makes everything as it was at the mark. The pages kept stay so.
    pub fn rewind(&self) {
        let kept = self.kept.borrow();
        for (n, page) in kept.iter().flatten() {
            if let Some(to) = self.range(n * PAGE as u64, PAGE) {
                // SAFETY: the range was checked; the page is ours and does not overlap the mapping.
                unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to, PAGE) };
            }
        }
    }

    /// Pages kept are kept no more: for those who know that nobody writes them unseen.
    pub fn forget(&self) {
        if let Some(kept) = self.kept.borrow_mut().as_mut() {
            kept.clear();
        }
    }

    /// Pages kept.
    pub fn changed(&self) -> usize {
        self.kept.borrow().as_ref().map_or(0, HashMap::len)
    }

    /// The first page that either has changed since its mark and that differs.
    pub fn difference(&self, other: &Self) -> Option<u64> {
        let (a, b) = (self.kept.borrow(), other.kept.borrow());
        let mut pages: Vec<u64> = a.iter().flatten().chain(b.iter().flatten()).map(|(n, _)| *n).collect();
        pages.sort_unstable();
        pages.dedup();
        let bytes = |ram: &Self, n: u64| {
            let at = n as usize * PAGE;
            ram.bytes().get(at..(at + PAGE).min(ram.len)).map(<[u8]>::to_vec)
        };
        pages.into_iter().find(|n| bytes(self, *n) != bytes(other, *n))
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
        ram.forget();
        assert_eq!((ram.bytes(), ram.changed()), (&[7; 8192][..], 0));
        assert!(ram.write(0, &[1]));
        assert!(ram.write(4090, &[9; 10]));
        assert_eq!(ram.changed(), 2);
        ram.rewind();
        assert_eq!(ram.bytes(), [7; 8192]);
        assert!(!ram.write(8190, &[0; 3]));
    }
}
