//! Names of the functions of an ELF, by address.

use anyhow::{Context, Result};
use object::elf::{FileHeader64, SHN_UNDEF, SHT_SYMTAB, STT_FUNC};
use object::read::elf::{FileHeader, Sym};
use object::Endianness;

/// The functions of an ELF of 64 bits, with their names as the linker has them.
pub struct Symbols(Vec<(u64, String)>);

impl Symbols {
    /// Errors: not such an ELF, or its symbols were taken away.
    pub fn read(file: &[u8]) -> Result<Self> {
        let header = FileHeader64::<Endianness>::parse(file)?;
        let endian = header.endian()?;
        let table = header.sections(endian, file)?.symbols(endian, file, SHT_SYMTAB)?;
        let mut functions = Vec::new();
        for symbol in table.iter().filter(|s| s.st_type() == STT_FUNC && s.st_shndx(endian) != SHN_UNDEF) {
            let name = symbol.name(endian, table.strings())?;
            functions.push((symbol.st_value(endian), String::from_utf8_lossy(name).into_owned()));
        }
        functions.sort();
        functions.first().context("it has no functions' names")?;
        Ok(Self(functions))
    }

    /// Whether there is a function with these words in its name.
    pub fn has(&self, words: &str) -> bool {
        self.0.iter().any(|(_, name)| name.contains(words))
    }

    /// The last function that begins at `address` or before it.
    pub fn at(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        self.0.get(after.checked_sub(1)?).map(|(_, name)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_by_any_address_in_it() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let symbols = Symbols::read(&own).unwrap();
        let (start, _) = symbols.0.iter().find(|(_, name)| name.contains("testbed")).unwrap();
        // Several functions that are the same may be one, with several names.
        let mut names = symbols.0.iter().filter(|(other, _)| other == start).map(|(_, name)| name.as_str());
        let found = symbols.at(start + 1).unwrap();
        assert!(names.any(|name| name == found), "{found} at {start:#x}");
        assert_eq!(symbols.at(0), None);
        assert!(symbols.has("testbed") && !symbols.has("no such function"));
        assert!(Symbols::read(b"#!/bin/sh\n").is_err());
    }
}
