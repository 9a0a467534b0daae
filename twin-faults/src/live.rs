//! A driver's data in the kernel that runs here: what there is, and spoiling it for a while.

use crate::data::{spoilt, Places};
use crate::mutate::DataFault;
use crate::random::Random;
use std::fs::File;
use std::io::Write;
use twin_kernel::driver::Live;
use twin_kernel::LiveKernel;
use twin_rewrite::module::Module;

/// The file of the module `poke`, which writes to the kernel's memory.
const POKE: &str = "/dev/poke";
const PAGE: u64 = 4096;
/// Pages of the driver's own structure that are looked at.
const OWN_PAGES: u64 = 2;
/// Bytes of what it points to. What lies behind is more and more likely somebody else's.
const OBJECT_BYTES: u64 = 512;
/// Objects that are looked at, at most.
const OBJECTS: usize = 256;
/// Machine addresses are below: more than any machine has here.
const MEMORY: u64 = 1 << 36;

/// The words of a driver's data.
#[derive(Debug)]
pub struct Data {
    /// Of its own structure.
    own: Places,
    /// Of what that points to, and of what that does: rings, their descriptors and what is kept of each.
    around: Places,
}

impl Data {
    /// Looks at the driver whose objects are `live`.
    pub fn of(kernel: &impl LiveKernel, live: &Live, module: &Module) -> Self {
        let mut own = Places::default();
        let mut around = Places::default();
        let first = (live.net.private, OWN_PAGES * PAGE);
        let pointers = note(kernel, module, first, &mut own);
        let mut seen = vec![first.0 / PAGE];
        let mut further = Vec::new();
        for pointer in pointers {
            further.extend(object(kernel, module, pointer, &mut seen, &mut around));
        }
        for pointer in further {
            object(kernel, module, pointer, &mut seen, &mut around);
        }
        Self { own, around }
    }

    /// A place for such a fault, half of them in the driver's own structure.
    pub fn choose(&self, fault: DataFault, r: &mut Random) -> Option<u64> {
        let places = if r.one_in(2) { &self.own } else { &self.around };
        places.choose(fault, r)
    }
}

/// Notes the words of an object that was not seen yet. What it points to.
fn object(
    kernel: &impl LiveKernel,
    module: &Module,
    pointer: u64,
    seen: &mut Vec<u64>,
    places: &mut Places,
) -> Vec<u64> {
    if seen.contains(&pointer) || seen.len() >= OBJECTS {
        return Vec::new();
    }
    seen.push(pointer);
    // What begins with a page is a ring, or something else that has it for itself.
    let bytes = if pointer.is_multiple_of(PAGE) { PAGE } else { OBJECT_BYTES };
    note(kernel, module, (pointer, bytes), places)
}

/// Notes the words of a range, as far as its pages can be read and written. The pointers among them.
fn note(kernel: &impl LiveKernel, module: &Module, (from, bytes): (u64, u64), places: &mut Places) -> Vec<u64> {
    let (mut pointers, end) = (Vec::new(), from.saturating_add(bytes));
    let mut at = from;
    while at < end {
        let next = end.min((at / PAGE + 1).saturating_mul(PAGE));
        let mut part = vec![0; (next - at) as usize];
        if !kernel.is_writable(at) || kernel.read(at, &mut part).is_none() {
            break;
        }
        for (address, word) in (at..).step_by(8).zip(part.chunks_exact(8)) {
            let value = word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            places.note(address, value, |at| module.is_text(at), MEMORY);
            if value >> 47 == 0x1_ffff && value % 8 == 0 && !module.is_text(value) {
                pointers.push(value);
            }
        }
        at = next;
    }
    pointers
}

/// A word that is spoilt.
struct Word {
    address: u64,
    bytes: usize,
    old: u64,
    new: u64,
}

/// What is spoilt, until [`Self::undo`].
pub struct Spoilt {
    file: File,
    words: Vec<Word>,
}

impl Spoilt {
    /// Nothing yet. Errors: in words.
    pub fn nothing() -> Result<Self, String> {
        let file = File::options().write(true).open(POKE);
        Ok(Self { file: file.map_err(|e| format!("{POKE}: {e}: load the kernel module poke"))?, words: Vec::new() })
    }

    /// Spoils the words at these places. What cannot be written is not.
    pub fn spoil(&mut self, kernel: &impl LiveKernel, fault: DataFault, places: &[u64], r: &mut Random) {
        for &address in places {
            let Some(old) = kernel.read_int(address, 8) else { continue };
            let (new, bytes) = spoilt(fault, old, r);
            if self.write(address, new, bytes).is_ok() {
                self.words.push(Word { address, bytes, old, new });
            }
        }
    }

    /// Puts back what is still as it was spoilt.
    pub fn undo(&mut self, kernel: &impl LiveKernel) {
        while let Some(Word { address, bytes, old, new }) = self.words.pop() {
            let mask = if bytes == 8 { u64::MAX } else { u32::MAX.into() };
            if kernel.read_int(address, bytes) == Some(new & mask) {
                // It could be written when it was spoilt; if it is gone since, there is nothing to put back.
                let _ = self.write(address, old, bytes);
            }
        }
    }

    fn write(&mut self, address: u64, value: u64, bytes: usize) -> std::io::Result<()> {
        let request = [address, value, bytes as u64].map(u64::to_le_bytes).concat();
        self.file.write(&request).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use twin_kernel::symbols::Symbols;
    use twin_kernel::ModuleInfo;

    /// Memory by pages.
    #[derive(Default)]
    struct Fake(BTreeMap<u64, Vec<u8>>, Symbols);

    impl Fake {
        fn put(&mut self, address: u64, value: u64) {
            let page = self.0.entry(address / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[(address % PAGE) as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }

    impl LiveKernel for Fake {
        fn read(&self, address: u64, out: &mut [u8]) -> Option<()> {
            let page = self.0.get(&(address / PAGE))?;
            out.copy_from_slice(page.get((address % PAGE) as usize..)?.get(..out.len())?);
            Some(())
        }
        fn is_writable(&self, _address: u64) -> bool {
            true
        }
        fn symbols(&self) -> &Symbols {
            &self.1
        }
        fn module(&self, _name: &str) -> Option<&ModuleInfo> {
            None
        }
    }

    #[test]
    fn rings_are_found_behind_the_drivers_own_structure() {
        const PRIVATE: u64 = 0xffff_8880_0000_1940;
        const OBJECT: u64 = 0xffff_8880_0005_0200;
        const RING: u64 = 0xffff_8880_0009_0000;
        const FURTHER: u64 = 0xffff_8880_000a_0000;
        let mut kernel = Fake::default();
        kernel.put(PRIVATE + 64, OBJECT);
        kernel.put(OBJECT + 16, RING);
        kernel.put(OBJECT + OBJECT_BYTES, FURTHER);
        kernel.put(RING + PAGE - 8, 0x1234_5000);
        kernel.put(FURTHER, 0x1234_6000);
        let mut live = empty();
        live.net.private = PRIVATE;
        let data = Data::of(&kernel, &live, &Module::default());
        let r = &mut Random::new(3);
        let mut places = |fault| {
            let mut all: Vec<u64> = (0..200).filter_map(|_| data.choose(fault, r)).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        // What is behind the object is not its own.
        assert_eq!(places(DataFault::WildPointer), [PRIVATE + 64, OBJECT + 16]);
        assert_eq!(places(DataFault::DmaAddress), [RING + PAGE - 8]);
    }

    fn empty() -> Live {
        Live {
            net: Default::default(),
            offsets: Default::default(),
            kernel: Default::default(),
            percpu: 0,
            page_type: 0,
            page_private: 0,
        }
    }
}
