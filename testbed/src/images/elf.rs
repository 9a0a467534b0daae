//! Where programs begin: the entry point of an ELF, and the PV entry point inside a Linux bzImage.

use crate::host;
use anyhow::{ensure, Context, Result};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

const PT_NOTE: u32 = 4;
/// Xen's ELF note that holds the PV entry point.
const XEN_ELFNOTE_ENTRY: u32 = 1;

/// The entry point of an ELF of 32 or 64 bits.
pub fn entry(file: &[u8]) -> Result<u64> {
    ensure!(file.starts_with(b"\x7fELF"), "not an ELF");
    match file.get(4) {
        Some(1) => Ok(number(file, 24, 4)?),
        _ => number(file, 24, 8),
    }
}

/// Where the compressed kernel is in a bzImage.
pub fn payload_of_bzimage(file: &[u8]) -> Result<Range<usize>> {
    // Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length.
    let setup = match number(file, 0x1f1, 1)? {
        0 => 4,
        n => n,
    };
    let start = to_usize((setup + 1) * 512 + number(file, 0x248, 4)?)?;
    Ok(start..start + to_usize(number(file, 0x24c, 4)?)?)
}

/// The kernel proper, unpacked from a bzImage that is compressed by xz, as Debian's is.
pub fn unpack_bzimage(path: &Path) -> Result<Vec<u8>> {
    let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let payload = file.get(payload_of_bzimage(&file)?).context("the bzImage is cut off")?;
    let packed = host::target("images")?.join("payload.xz");
    std::fs::write(&packed, payload)?;
    // The payload ends in four bytes of its size, which are not part of the stream: xz says so, after unpacking all.
    let done = Command::new("xz").args(["-dc", "--single-stream"]).arg(&packed).output()?;
    std::fs::remove_file(&packed)?;
    Ok(done.stdout)
}

/// The PV entry point of the kernel in a bzImage.
pub fn xen_entry_of_bzimage(path: &Path) -> Result<u64> {
    xen_entry(&unpack_bzimage(path)?)
}

/// The names of the libraries that a program or library wants, and of its loader.
pub fn needed(data: &[u8]) -> Result<Vec<String>> {
    use object::elf::{FileHeader64, DT_NEEDED};
    use object::read::elf::{Dyn, FileHeader, SectionHeader};
    let header = FileHeader64::<object::Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut found = Vec::new();
    for section in sections.iter() {
        if let Some((entries, link)) = section.dynamic(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            for entry in entries.iter().filter(|e| e.tag(endian) == DT_NEEDED) {
                found.push(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
            }
        }
    }
    Ok(found)
}

/// The value of the note XEN_ELFNOTE_ENTRY.
fn xen_entry(elf: &[u8]) -> Result<u64> {
    ensure!(elf.starts_with(b"\x7fELF\x02"), "not a 64-bit ELF");
    let (table, size, count) = (number(elf, 32, 8)?, number(elf, 54, 2)?, number(elf, 56, 2)?);
    for n in 0..count {
        let header = to_usize(table + n * size)?;
        if number(elf, header, 4)? == u64::from(PT_NOTE) {
            let start = to_usize(number(elf, header + 8, 8)?)?;
            let length = to_usize(number(elf, header + 32, 8)?)?;
            let notes = elf.get(start..start.saturating_add(length)).context("notes outside the file")?;
            if let Some(found) = find_note(notes)? {
                return Ok(found);
            }
        }
    }
    anyhow::bail!("the kernel has no Xen entry note")
}

fn find_note(notes: &[u8]) -> Result<Option<u64>> {
    let mut at = 0;
    while at + 12 <= notes.len() {
        let name_len = to_usize(number(notes, at, 4)?)?;
        let value_len = to_usize(number(notes, at + 4, 4)?)?;
        let kind = number(notes, at + 8, 4)?;
        let name = at + 12;
        let value = name + name_len.next_multiple_of(4);
        if notes.get(name..name + name_len) == Some(b"Xen\0") && kind == u64::from(XEN_ELFNOTE_ENTRY) {
            return number(notes, value, 8).map(Some);
        }
        at = value + value_len.next_multiple_of(4);
    }
    Ok(None)
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Result<u64> {
    let field = bytes.get(at..at + len).context("the file is cut off")?;
    Ok(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn to_usize(value: u64) -> Result<usize> {
    usize::try_from(value).context("an impossible offset")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
        out.extend(u32::try_from(value.len()).unwrap().to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend(name);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    #[test]
    fn the_right_note_is_found_among_others() {
        let mut notes = note(b"GNU\0", 1, &[9; 20]);
        notes.extend(note(b"Xen\0", 6, b"linux\0"));
        notes.extend(note(b"Xen\0", 1, &0xffff_ffff_8200_0000u64.to_le_bytes()));
        assert_eq!(find_note(&notes).unwrap(), Some(0xffff_ffff_8200_0000));
        assert_eq!(find_note(&notes[..40]).unwrap(), None);
    }

    #[test]
    fn something_else_is_refused() {
        assert!(entry(b"MZ").is_err());
        assert!(xen_entry(b"\x7fELF\x01").is_err());
    }
}
