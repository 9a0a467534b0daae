//! The kernel that runs here, by what it shows to root: `/proc/kcore`, `/proc/kallsyms`, `/proc/modules` and
//! `/sys/module`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use twin_kernel::symbols::Symbols;
use twin_kernel::{LiveKernel, ModuleInfo, Result};

/// A piece of memory in the core file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    address: u64,
    len_bytes: u64,
    offset: u64,
}

/// The running kernel, with those of its modules that were looked up.
pub struct Running {
    core: File,
    pieces: Vec<Piece>,
    symbols: Symbols,
    modules: Vec<ModuleInfo>,
}

const CORE: &str = "/proc/kcore";
const SYMBOLS: &str = "/proc/kallsyms";

impl Running {
    /// Opens it. Errors: what cannot be read, in words.
    pub fn open() -> Result<Self> {
        let core = File::open(CORE).map_err(|e| format!("{CORE}: {e}"))?;
        let pieces = pieces(&core).ok_or(format!("{CORE} is not as expected"))?;
        let lines = BufReader::new(File::open(SYMBOLS).map_err(|e| format!("{SYMBOLS}: {e}"))?).lines();
        let mut failed = Ok(());
        let symbols =
            Symbols::read(lines.map_while(|line| line.map_err(|e| failed = Err(format!("{SYMBOLS}: {e}"))).ok()));
        failed?;
        if symbols.iter().all(|symbol| symbol.address == 0) {
            return Err(format!("{SYMBOLS} shows no addresses: not root, or kernel.kptr_restrict is 2"));
        }
        Ok(Self { core, pieces, symbols, modules: Vec::new() })
    }

    /// Looks its module `name` up. Errors: as before.
    pub fn look_up(&mut self, name: &str) -> Result<()> {
        self.modules.push(module(name)?);
        Ok(())
    }

    /// Its module `name` is where it was when it was looked up. Errors: in words, if it is not.
    pub fn check_place(&self, name: &str) -> Result<()> {
        let place = |module: &ModuleInfo| (module.base, module.len_bytes);
        let was = self.module(name).map(place);
        if was == Some(place(&module(name)?)) {
            Ok(())
        } else {
            Err(format!("module {name} was loaded anew"))
        }
    }
}

impl LiveKernel for Running {
    fn read(&self, address: u64, out: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < out.len() {
            let at = address.wrapping_add(done as u64);
            let piece = self.pieces.iter().find(|piece| at.wrapping_sub(piece.address) < piece.len_bytes)?;
            let inside = at - piece.address;
            let step = usize::try_from(piece.len_bytes - inside).ok()?.min(out.len() - done);
            self.core.read_exact_at(&mut out[done..done + step], piece.offset + inside).ok()?;
            done += step;
        }
        Some(())
    }

    /// By the section, since the core file does not say it.
    fn is_writable(&self, address: u64) -> bool {
        const READ_ONLY: [&str; 6] = [".text", ".rodata", ".note", ".orc", "__ksymtab", "__param"];
        let sections = self.modules.iter().flat_map(|module| &module.sections);
        let before = sections.filter(|(_, at)| *at <= address).max_by_key(|(_, at)| *at);
        !before.is_some_and(|(name, _)| READ_ONLY.iter().any(|kind| name.starts_with(kind)))
    }

    fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn module(&self, name: &str) -> Option<&ModuleInfo> {
        self.modules.iter().find(|module| module.name == name)
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The loadable pieces of an ELF core file of 64 bits.
fn pieces(core: &File) -> Option<Vec<Piece>> {
    const LOAD: u32 = 1;
    let mut header = [0; 64];
    core.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, entry, count) = (long(&header, 32)?, short(&header, 54)?, short(&header, 56)?);
    let mut found = Vec::new();
    for n in 0..u64::from(count) {
        let mut bytes = [0; 56];
        core.read_exact_at(&mut bytes, table + n * u64::from(entry)).ok()?;
        if u32::from_le_bytes(bytes[..4].try_into().ok()?) == LOAD {
            let piece = Piece { address: long(&bytes, 16)?, len_bytes: long(&bytes, 32)?, offset: long(&bytes, 8)? };
            found.push(piece);
        }
    }
    Some(found)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Where module `name` is, and its sections.
fn module(name: &str) -> Result<ModuleInfo> {
    let mut module = parse_module(&read(Path::new("/proc/modules"))?, name)
        .ok_or(format!("module {name} is not loaded, or its address is not shown"))?;
    let sections = Path::new("/sys/module").join(name).join("sections");
    for entry in fs::read_dir(&sections).map_err(|e| format!("{}: {e}", sections.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        let address = number(read(&path)?.trim()).ok_or(format!("{}: no address", path.display()))?;
        let section = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        module.sections.push((section, address));
    }
    Ok(module)
}

fn parse_module(text: &str, name: &str) -> Option<ModuleInfo> {
    let words =
        text.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words.first() == Some(&name))?;
    let base = number(words.get(5)?).filter(|base| *base != 0)?;
    Some(ModuleInfo { name: name.into(), base, len_bytes: words.get(1)?.parse().ok()?, sections: Vec::new() })
}

/// A number that begins with `0x`.
fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_if_its_address_is_shown() {
        let line = "e1000e 335872 0 - Live 0xffffffffc0400000\ne1000 155648 1 - Live 0xffffffffc0200000 (E)\nhid 4096 0 - Live 0x0000000000000000\n";
        let found = parse_module(line, "e1000").expect("found");
        assert_eq!((found.base, found.len_bytes), (0xffff_ffff_c020_0000, 155_648));
        assert!(parse_module(line, "e100").is_none() && parse_module(line, "hid").is_none());
    }

    #[test]
    fn a_core_file_has_pieces() {
        let mut core = vec![0; 64 + 2 * 56];
        core[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut put =
            |at: usize, value: u64, len: usize| core[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        put(32, 64, 8);
        put(54, 56, 2);
        put(56, 2, 2);
        put(64, 4, 4);
        put(120, 1, 4);
        put(128, 0x1000, 8);
        put(136, 0xffff_8880_0000_0000, 8);
        put(152, 0x2000, 8);
        let path = std::env::temp_dir().join(format!("twind-core-{}", std::process::id()));
        std::fs::write(&path, &core).unwrap();
        let found = pieces(&File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, Some(vec![Piece { address: 0xffff_8880_0000_0000, len_bytes: 0x2000, offset: 0x1000 }]));
    }
}
