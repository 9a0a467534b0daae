//! Puts a table of function names into the linked image, in the section that its panic handler reads.
//!
//! The table is: count (u32); per function, sorted, its offset from the image's address, and offset and length of its
//! name (u32 each); then the names. All little-endian.

use anyhow::{ensure, Context, Result};

/// Where the image is linked; offsets in the table count from here.
const IMAGE: u64 = 0xffff_82d0_8000_0000;
const SECTION: &str = ".tandem_symbols";
/// Longer names are cut.
const NAME_BYTES: usize = 100;

const SHT_SYMTAB: u32 = 2;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;

/// What is used of a program header.
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Machine address.
    pub physical: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
}

struct Section {
    name: u32,
    kind: u32,
    offset: usize,
    bytes: usize,
    link: usize,
}

fn number<const N: usize>(image: &[u8], at: usize) -> Result<u64> {
    let bytes = image.get(at..at + N).context("the image is cut short")?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn index(value: u64) -> Result<usize> {
    Ok(usize::try_from(value)?)
}

/// The loadable segments.
pub fn segments(image: &[u8]) -> Result<Vec<Segment>> {
    let (table, size, count) = (number::<8>(image, 32)?, number::<2>(image, 54)?, number::<2>(image, 56)?);
    let mut found = Vec::new();
    for i in 0..count {
        let at = index(table + i * size)?;
        if number::<4>(image, at)? == 1 {
            found.push(Segment {
                offset: number::<8>(image, at + 8)?,
                physical: number::<8>(image, at + 24)?,
                file_bytes: number::<8>(image, at + 32)?,
            });
        }
    }
    Ok(found)
}

fn sections(image: &[u8]) -> Result<(Vec<Section>, usize)> {
    let (table, size, count) = (number::<8>(image, 40)?, number::<2>(image, 58)?, number::<2>(image, 60)?);
    let mut found = Vec::new();
    for i in 0..count {
        let at = index(table + i * size)?;
        found.push(Section {
            name: u32::try_from(number::<4>(image, at)?)?,
            kind: u32::try_from(number::<4>(image, at + 4)?)?,
            offset: index(number::<8>(image, at + 24)?)?,
            bytes: index(number::<8>(image, at + 32)?)?,
            link: index(number::<4>(image, at + 40)?)?,
        });
    }
    Ok((found, index(number::<2>(image, 62)?)?))
}

fn text(image: &[u8], at: usize) -> &str {
    let bytes = image.get(at..).unwrap_or_default();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or("?")
}

/// Functions and labels of the image: offset and readable name, sorted, one name an address.
fn functions(image: &[u8], sections: &[Section]) -> Result<Vec<(u32, String)>> {
    let symbols = sections.iter().find(|s| s.kind == SHT_SYMTAB).context("the image has no symbols")?;
    let names = sections.get(symbols.link).context("the symbols have no names")?;
    let mut found = Vec::new();
    for at in (symbols.offset..symbols.offset + symbols.bytes).step_by(24) {
        let kind = u8::try_from(number::<1>(image, at + 4)?)? & 15;
        let value = number::<8>(image, at + 8)?;
        let name = text(image, names.offset + index(number::<4>(image, at)?)?);
        let is_code = kind == STT_FUNC || kind == STT_NOTYPE && !name.starts_with(['.', '$']) && !name.is_empty();
        let Some(offset) = value.checked_sub(IMAGE).and_then(|o| u32::try_from(o).ok()) else { continue };
        if is_code && number::<2>(image, at + 6)? != 0 {
            let mut name = format!("{:#}", rustc_demangle::demangle(name));
            while name.len() > NAME_BYTES {
                name.pop();
            }
            found.push((offset, name));
        }
    }
    found.sort();
    found.dedup_by_key(|(offset, _)| *offset);
    Ok(found)
}

/// Addresses and names of the image's functions, sorted.
pub fn names(image: &[u8]) -> Result<Vec<(u64, String)>> {
    let (sections, _) = sections(image)?;
    Ok(functions(image, &sections)?.into_iter().map(|(offset, name)| (IMAGE + u64::from(offset), name)).collect())
}

/// Writes the table into `image`. Functions that do not fit are left out, with a warning.
pub fn embed(image: &mut [u8]) -> Result<()> {
    let (sections, names) = sections(image)?;
    let names = sections.get(names).context("the image has no section names")?.offset;
    let room = sections
        .iter()
        .find(|s| text(image, names + s.name as usize) == SECTION)
        .map(|s| s.offset..s.offset + s.bytes)
        .context("the image has no room for symbols")?;
    let mut functions = functions(image, &sections)?;
    ensure!(!functions.is_empty(), "the image has no functions");
    let size = |list: &[(u32, String)]| 4 + list.iter().map(|(_, name)| 12 + name.len()).sum::<usize>();
    while size(&functions) > room.len() {
        let left_out = functions.len() / 10 + 1;
        println!("warning: no room for the names of {left_out} functions");
        functions.truncate(functions.len() - left_out);
    }
    let mut head = u32::try_from(functions.len())?.to_le_bytes().to_vec();
    let mut tail: Vec<u8> = Vec::new();
    for (offset, name) in &functions {
        let start = u32::try_from(4 + 12 * functions.len() + tail.len())?;
        for word in [*offset, start, u32::try_from(name.len())?] {
            head.extend(word.to_le_bytes());
        }
        tail.extend(name.as_bytes());
    }
    head.extend(tail);
    image[room.start..room.start + head.len()].copy_from_slice(&head);
    Ok(())
}
