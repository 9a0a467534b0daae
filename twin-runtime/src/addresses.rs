//! What a domain code address means to a twin.

use alloc::collections::BTreeMap;

use twin_abi::image::Image;

/// What an indirect call reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A function of the twin: its code offset.
    Function(u32),
    /// An import: its number.
    Import(u32),
}

/// The address table of an image, with its imports.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    targets: BTreeMap<u64, Target>,
}

impl Addresses {
    /// Collects the table. Functions of the twin win over imports at the same address.
    #[must_use]
    pub fn new(image: &Image<'_>) -> Self {
        let imports = image.imports();
        let mut targets = BTreeMap::new();
        for (n, import) in (0u32..).zip(imports.iter()) {
            if import.domain != 0 {
                targets.insert(import.domain, Target::Import(n));
            }
        }
        for address in image.addresses().iter() {
            if let Some(function) = image.functions().get(address.function as usize) {
                targets.insert(address.domain, Target::Function(function.start));
            }
        }
        Self { targets }
    }

    /// What `domain` stands for.
    #[must_use]
    pub fn resolve(&self, domain: u64) -> Option<Target> {
        self.targets.get(&domain).copied()
    }

    /// All functions: domain address and code offset.
    pub fn functions(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.targets.iter().filter_map(|(domain, target)| match target {
            Target::Function(offset) => Some((*domain, *offset)),
            Target::Import(_) => None,
        })
    }
}
