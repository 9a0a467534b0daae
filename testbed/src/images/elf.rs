//! Where programs begin: the entry point of an ELF, and the PV entry point inside a Linux bzImage.

use crate::host;
use anyhow::{bail, Context, Result};
use object::elf::{FileHeader32, FileHeader64, NoteType, DT_NEEDED};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// Xen's ELF note that holds the PV entry point.
const XEN_ELFNOTE_ENTRY: NoteType = NoteType(1);

/// The entry point of an ELF of 32 or 64 bits.
pub fn entry(file: &[u8]) -> Result<u64> {
    match FileKind::parse(file)? {
        FileKind::Elf32 => entry_of::<FileHeader32<Endianness>>(file),
        FileKind::Elf64 => entry_of::<FileHeader64<Endianness>>(file),
        other => bail!("not an ELF but {other:?}"),
    }
}

fn entry_of<H: FileHeader<Endian = Endianness>>(file: &[u8]) -> Result<u64> {
    let header = H::parse(file)?;
    Ok(header.e_entry(header.endian()?).into())
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
    let header = FileHeader64::<Endianness>::parse(data)?;
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
    let header = FileHeader64::<Endianness>::parse(elf)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, elf)? {
        let Some(mut notes) = segment.notes(endian, elf)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"Xen" && note.n_type(endian) == XEN_ELFNOTE_ENTRY {
                return number(note.desc(), 0, 8);
            }
        }
    }
    bail!("the kernel has no Xen entry note")
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

    /// A 64-bit ELF with one segment, of `notes`.
    fn elf_with(notes: &[u8]) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for field in [0x40_0000u64, 64, 0] {
            elf.extend(field.to_le_bytes());
        }
        elf.extend(0u32.to_le_bytes());
        for field in [64u16, 56, 1, 64, 0, 0] {
            elf.extend(field.to_le_bytes());
        }
        elf.extend([4, 0, 0, 0, 4, 0, 0, 0]);
        for field in [120, 0, 0, notes.len() as u64, notes.len() as u64, 4] {
            elf.extend(field.to_le_bytes());
        }
        elf.extend(notes);
        elf
    }

    #[test]
    fn the_right_note_is_found_among_others() {
        let mut notes = note(b"GNU\0", 1, &[9; 20]);
        notes.extend(note(b"Xen\0", 6, b"linux\0"));
        let without = elf_with(&notes);
        notes.extend(note(b"Xen\0", 1, &0xffff_ffff_8200_0000u64.to_le_bytes()));
        assert_eq!(xen_entry(&elf_with(&notes)).unwrap(), 0xffff_ffff_8200_0000);
        assert!(xen_entry(&without).is_err());
        assert_eq!(entry(&without).unwrap(), 0x40_0000);
    }

    #[test]
    fn something_else_is_refused() {
        assert!(entry(b"MZ").is_err());
        assert!(xen_entry(b"\x7fELF\x01").is_err());
    }
}
