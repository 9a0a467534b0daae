//! What a domain code address means to a twin.
//!
//! Functions are looked up in the image's own table, which is sorted (rule F5); only the imports, which are few, have a
//! table of their own. So the largest image costs the loader no memory here.

use alloc::collections::{BinaryHeap, TryReserveError};
use alloc::vec::Vec;

use twin_abi::image::{Address, Function, Image, Records};

/// What an indirect call reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A function of the twin: its code offset.
    Function(u32),
    /// An import: its number.
    Import(u32),
}

/// The address table of an image, with its imports.
#[derive(Clone, Debug)]
pub struct Addresses<'a> {
    addresses: Records<'a, Address>,
    functions: Records<'a, Function>,
    /// Domain address and number of each import that has one, by address.
    imports: Vec<(u64, u32)>,
}

impl<'a> Addresses<'a> {
    /// Collects the imports.
    ///
    /// # Errors
    /// If there is no memory for them (16 bytes each).
    pub fn new(image: &Image<'a>) -> Result<Self, TryReserveError> {
        let mut imports = Vec::new();
        imports.try_reserve_exact(image.imports().len())?;
        let known = (0u32..).zip(image.imports().iter()).filter(|(_, import)| import.domain != 0);
        imports.extend(known.map(|(n, import)| (import.domain, n)));
        let imports = BinaryHeap::from(imports).into_sorted_vec();
        Ok(Self { addresses: image.addresses(), functions: image.functions(), imports })
    }

    /// What `domain` stands for. Functions of the twin win over imports at the same address, later imports over earlier
    /// ones.
    #[must_use]
    pub fn resolve(&self, domain: u64) -> Option<Target> {
        let at = self.addresses.last_not_above(domain, |a| a.domain).and_then(|n| self.addresses.get(n));
        if let Some(address) = at.filter(|a| a.domain == domain) {
            return self.functions.get(address.function as usize).map(|f| Target::Function(f.start));
        }
        let end = self.imports.partition_point(|(address, _)| *address <= domain);
        let (address, number) = self.imports.get(end.checked_sub(1)?)?;
        (*address == domain).then_some(Target::Import(*number))
    }

    /// All functions: domain address and code offset.
    pub fn functions(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.addresses.iter().filter_map(|a| Some((a.domain, self.functions.get(a.function as usize)?.start)))
    }
}
