//! What a running Linux kernel tells about one of its drivers: its text, its interface and interrupts, and where its
//! structures have their members. From symbols, type information (BTF) and memory alone, the same whether the kernel is
//! a stored snapshot or the one that runs here ([`LiveKernel`]).

pub mod btf;
pub mod driver;
pub mod image;
pub mod net;
pub mod path;
pub mod symbols;

use symbols::Symbols;

/// What went wrong, in words for the user.
pub type Error = String;
/// Result with an error for the user.
pub type Result<T> = core::result::Result<T, Error>;

/// A loaded module as the kernel describes it.
#[derive(Debug, Clone, Default)]
pub struct ModuleInfo {
    /// Name.
    pub name: String,
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Section name and address.
    pub sections: Vec<(String, u64)>,
}

/// A kernel: its memory and its names.
pub trait LiveKernel {
    /// Reads memory at a kernel address; `None` if a page is not mapped or is a device's.
    fn read(&self, address: u64, out: &mut [u8]) -> Option<()>;

    /// Whether the page at an address is mapped and may be written.
    fn is_writable(&self, address: u64) -> bool;

    /// All symbols.
    fn symbols(&self) -> &Symbols;

    /// A module that is loaded.
    fn module(&self, name: &str) -> Option<&ModuleInfo>;

    /// Address of a symbol of the kernel image, or of `module:name`.
    fn symbol(&self, name: &str) -> Option<u64> {
        let (module, name) = match name.split_once(':') {
            Some((module, name)) => (Some(module), name),
            None => (None, name),
        };
        self.symbols().iter().find(|symbol| symbol.name == name && symbol.module == module).map(|symbol| symbol.address)
    }

    /// The module in which the function at an address is.
    fn module_of(&self, address: u64) -> Option<&str> {
        self.symbols().below(address)?.module
    }

    /// Reads a little-endian integer of `size` bytes, at most eight.
    fn read_int(&self, address: u64, size: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, bytes.get_mut(..size)?)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads a zero-terminated string of at most 64 bytes.
    fn read_name(&self, address: u64) -> Option<String> {
        let mut bytes = [0; 64];
        self.read(address, &mut bytes)?;
        let end = bytes.iter().position(|&b| b == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    }
}

#[cfg(test)]
mod tests;
