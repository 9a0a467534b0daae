//! Lays out and relocates a module file as the kernel's loader would, at a chosen base.

use crate::module::{bound_functions, Function, Module, Section};
use object::elf;
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SectionIndex};
use std::collections::{BTreeMap, HashMap};

/// Where modules are loaded.
pub const DEFAULT_BASE: u64 = 0xffff_ffff_c020_1000;
/// Where symbols without a known address are put: one page each, far from everything.
const UNKNOWN_BASE: u64 = 0xffff_ffff_b000_0000;

/// Reads a module file. `kernel` gives addresses of kernel symbols, as far as they are known.
pub fn load(bytes: &[u8], name: &str, base: u64, kernel: &dyn Fn(&str) -> Option<u64>) -> Result<Module, String> {
    let file = object::File::parse(bytes).map_err(|e| format!("not a module: {e}"))?;
    if file.architecture() != object::Architecture::X86_64 || !file.is_64() {
        return Err(format!("a module of another architecture ({:?}), not x86-64", file.architecture()));
    }
    if file.kind() != object::ObjectKind::Relocatable {
        return Err(format!("not a module: it is of kind {:?}, not relocatable", file.kind()));
    }
    if file.symbols().count() == 0 {
        return Err("the module has no symbols (stripped); function boundaries cannot be recovered".into());
    }
    let mut at: HashMap<SectionIndex, u64> = HashMap::new();
    let mut next = base;
    // Text first, then read-only data, then data: each group starts on a page of its own.
    for group in [Group::Text, Group::ReadOnly, Group::Data] {
        next = next.next_multiple_of(4096);
        for s in file.sections().filter(|s| Group::of(s) == Some(group)) {
            next = next.next_multiple_of(s.align().max(16));
            at.insert(s.index(), next);
            next += s.size();
        }
    }
    let externs = externs(&file, kernel);
    let mut out = Module { name: name.to_owned(), ..Module::default() };
    for s in file.sections() {
        let Some(&address) = at.get(&s.index()) else { continue };
        let group = Group::of(&s);
        let mut content = s.data().map_err(|e| format!("{}: {e}", s.name().unwrap_or("?")))?.to_vec();
        content.resize(usize::try_from(s.size()).map_err(|e| e.to_string())?, 0);
        relocate(&file, &s, address, &mut content, &at, &externs)?;
        out.sections.push(Section {
            name: s.name().unwrap_or_default().to_owned(),
            address,
            bytes: content,
            executable: group == Some(Group::Text),
            writable: group == Some(Group::Data),
        });
    }
    out.sections.sort_by_key(|s| s.address);
    for y in file.symbols().filter(|y| y.kind() == object::SymbolKind::Text) {
        let place = y.section_index().and_then(|i| at.get(&i));
        if let (Some(&section), Ok(name)) = (place, y.name()) {
            if out.is_text(section + y.address()) && !name.is_empty() {
                out.functions.push(Function { address: section + y.address(), len: y.size(), name: name.to_owned() });
            }
        }
    }
    bound_functions(&mut out.functions, &out.sections);
    for (name, address) in &externs {
        out.externs.add(*address, name);
    }
    drop_entry_hooks(&mut out);
    out.check()?;
    Ok(out)
}

/// The kernel release that a module file was built for, as it says itself.
pub fn release(bytes: &[u8]) -> Option<String> {
    let info = section(bytes, ".modinfo")?;
    let magic = info.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(b"vermagic="))?;
    Some(String::from_utf8_lossy(magic).split(' ').next()?.to_owned())
}

/// Refuses a module file that was built for another kernel than that of `release`: structures and symbols would not
/// fit.
pub fn check_release(bytes: &[u8], captured: &str) -> Result<(), String> {
    match release(bytes) {
        Some(own) if own == captured => Ok(()),
        Some(own) => Err(format!("the module is for kernel {own}, the snapshot is of kernel {captured}")),
        None => Err("the module does not say which kernel it is for".into()),
    }
}

/// The content of a section of a module file.
pub fn section(bytes: &[u8], name: &str) -> Option<Vec<u8>> {
    let file = object::File::parse(bytes).ok()?;
    file.section_by_name(name)?.data().ok().map(<[u8]>::to_vec)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Text,
    ReadOnly,
    Data,
}

impl Group {
    fn of(s: &object::Section<'_, '_>) -> Option<Self> {
        let SectionFlags::Elf { sh_flags, .. } = s.flags() else { return None };
        let name = s.name().unwrap_or_default();
        if !sh_flags.contains(elf::SHF_ALLOC) || s.size() == 0 || name.starts_with(".init") {
            return None;
        }
        if sh_flags.contains(elf::SHF_EXECINSTR) {
            return Some(Self::Text);
        }
        Some(if sh_flags.contains(elf::SHF_WRITE) { Self::Data } else { Self::ReadOnly })
    }
}

fn externs(file: &object::File<'_>, kernel: &dyn Fn(&str) -> Option<u64>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    let mut unknown = UNKNOWN_BASE;
    for y in file.symbols().filter(|y| y.is_undefined()) {
        let Ok(name) = y.name() else { continue };
        if name.is_empty() {
            continue;
        }
        let address = kernel(name).unwrap_or_else(|| {
            unknown += 4096;
            unknown
        });
        out.insert(name.to_owned(), address);
    }
    out
}

fn relocate(
    file: &object::File<'_>,
    section: &object::Section<'_, '_>,
    address: u64,
    content: &mut [u8],
    at: &HashMap<SectionIndex, u64>,
    externs: &BTreeMap<String, u64>,
) -> Result<(), String> {
    for (offset, r) in section.relocations() {
        let RelocationTarget::Symbol(index) = r.target() else { continue };
        let symbol = file.symbol_by_index(index).map_err(|e| format!("relocation: {e}"))?;
        let value = match symbol.section_index() {
            // What refers to the initialisation sections is gone after loading; it is never reached from the text kept.
            Some(i) => match at.get(&i) {
                Some(base) => base + symbol.address(),
                None => continue,
            },
            None if symbol.is_undefined() => *externs.get(symbol.name().unwrap_or_default()).unwrap_or(&0),
            None => symbol.address(),
        };
        let place = address + offset;
        let sum = value.wrapping_add_signed(r.addend());
        let RelocationFlags::Elf { r_type } = r.flags() else { continue };
        let start = usize::try_from(offset).map_err(|e| e.to_string())?;
        let short = || format!("relocation at {place:#x} does not fit");
        let mut put = |bytes: &[u8]| {
            let slot = content.get_mut(start..start + bytes.len()).ok_or_else(short)?;
            slot.copy_from_slice(bytes);
            Ok::<(), String>(())
        };
        match r_type {
            elf::R_X86_64_NONE => {}
            elf::R_X86_64_64 => put(&sum.to_le_bytes())?,
            elf::R_X86_64_32 => put(&u32::try_from(sum).map_err(|_| short())?.to_le_bytes())?,
            elf::R_X86_64_32S => put(&i32::try_from(sum as i64).map_err(|_| short())?.to_le_bytes())?,
            elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => {
                let distance = sum.wrapping_sub(place) as i64;
                put(&i32::try_from(distance).map_err(|_| short())?.to_le_bytes())?;
            }
            elf::R_X86_64_PC64 => put(&sum.wrapping_sub(place).to_le_bytes())?,
            other => return Err(format!("relocation of unknown type {other} at {place:#x}")),
        }
    }
    Ok(())
}

/// The loader of the kernel turns each call of the function-entry hook into a no-operation.
fn drop_entry_hooks(m: &mut Module) {
    let Some(hook) = m.externs.find("__fentry__") else { return };
    let starts: Vec<u64> = m.functions.iter().map(|f| f.address).collect();
    for s in m.sections.iter_mut().filter(|s| s.executable) {
        let (first, end) = (s.address, s.end());
        for start in starts.iter().filter(|a| (first..end).contains(*a)) {
            let i = (start - s.address) as usize;
            let Some(bytes) = s.bytes.get_mut(i..i + 5) else { continue };
            let distance = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
            if bytes[0] == 0xe8 && start.wrapping_add(5).wrapping_add_signed(i64::from(distance)) == hook {
                bytes.copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
            }
        }
    }
}
