//! The mappings in which native twins run, one after the other: instance, stack, unsafe area, the domain's memory.
//!
//! The areas that a twin may not write are shown to it read-only; the harness writes them through a mapping of its own.
//! If changes are tracked, the domain's pages are shown read-only too until the twin first writes one: then its content
//! is kept and it becomes writable.

use super::entry::{stub, tandem_twin_gate, STUB};
use super::faults::handlers;
use super::quiet::Quiet;
use crate::cpu::CodeSpace;
use crate::embed::Instance;
use crate::emulate::UNSAFE_AREA;
use crate::ram::Ram;
use crate::world::{Beside, Place, World, MASK_BITS, PAGE};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use twin_abi::image::Mode;
use twin_abi::layout::{self, CODE_OFFSET, MAX_IMPORTS, STACK_GUARD, STACK_SIZE};
use twin_runtime::gate::Twin;
use twin_runtime::instance::{Areas, Config};
use twin_runtime::memory::Fault;

/// A mapping of the process, unmapped when dropped.
#[derive(Debug)]
pub struct Mapped {
    /// First address.
    pub at: u64,
    len: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and nothing of it is in use any more.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.len as usize) };
    }
}

/// Maps `len` bytes of `file` (or fresh memory) at `at` (or anywhere).
pub fn map(at: Option<u64>, len: u64, rights: i32, file: Option<(i32, u64)>) -> Result<Mapped, String> {
    let mut flags = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    if at.is_some() {
        flags |= libc::MAP_FIXED_NOREPLACE;
    }
    let (fd, offset) = file.unwrap_or((-1, 0));
    // SAFETY: a new mapping that replaces none.
    let got = unsafe {
        libc::mmap(at.unwrap_or(0) as *mut libc::c_void, len as usize, rights, flags, fd, offset as libc::off_t)
    };
    if got == libc::MAP_FAILED || at.is_some_and(|a| a != got as u64) {
        return Err(format!("cannot map {len:#x} bytes at {at:x?}: {}", std::io::Error::last_os_error()));
    }
    Ok(Mapped { at: got as u64, len })
}

/// Changes the rights of a mapping.
pub fn protect(at: u64, len: u64, rights: i32) -> Result<(), String> {
    // SAFETY: the range is one of our own mappings.
    match unsafe { libc::mprotect(at as *mut libc::c_void, len as usize, rights) } {
        0 => Ok(()),
        _ => Err(format!("mprotect: {}", std::io::Error::last_os_error())),
    }
}

/// Numbers of the stubs of gates; those below are imports.
pub const STUB_MISS: u64 = MAX_IMPORTS as u64;
/// See `STUB_MISS`.
pub const STUB_ICALL: u64 = STUB_MISS + 1;
/// See `STUB_MISS`.
pub const STUB_WARN: u64 = STUB_MISS + 2;

const PAIR: u64 = 2 * PAGE;
const MAX_PAIRS: u64 = 1 << 16;
/// Pages that stay writable from run to run; beyond, all become read-only again.
const MAX_OPEN: usize = 256;

/// What is watched while twins run.
#[derive(Debug)]
pub enum Watch {
    /// Accesses to device registers.
    Device,
    /// Those, and which pages are written first.
    Memory,
    /// Nothing: device registers are plain memory, brought up to date between calls.
    Quiet(Rc<Quiet>),
}

/// The mappings. There is room for one in a process: the window's addresses are fixed.
#[derive(Debug)]
pub struct Arena {
    mode: Mode,
    base: u64,
    instance: Ram,
    /// The image's code, to take single instructions to the device model.
    pub code: CodeSpace,
    code_len: u64,
    stack: u64,
    windows: u64,
    /// Domain page behind each mapped pair.
    pairs: Vec<Option<u64>>,
    ram_file: i32,
    ram_len: u64,
    unsafe_file: Ram,
    percpu: u64,
    hole: u64,
    stubs: Stubs,
    is_tracked: bool,
    quiet: Option<Rc<Quiet>>,
    open: HashSet<u64>,
    _mapped: Vec<Mapped>,
}

impl Arena {
    /// Maps everything, with room for images of `capacity` bytes of code. With [`Watch::Memory`],
    /// [`Arena::rewind`] takes back what twins change.
    pub fn new(mode: Mode, capacity: u64, world: &mut World, percpu: u64, watch: Watch) -> Result<Box<Self>, String> {
        let (r, rw) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        let code = u64::from(CODE_OFFSET);
        let capacity = capacity.next_multiple_of(PAGE);
        let bytes = usize::try_from(code + capacity).map_err(|e| e.to_string())?;
        let instance = Ram::new(&vec![0; bytes]).map_err(|e| format!("memory: {e}"))?;
        let whole = map(None, code + capacity, r, Some((instance.file(), 0)))?;
        let base = whole.at;
        protect(base, PAGE, rw)?;
        protect(base + code, capacity, r | libc::PROT_EXEC)?;
        let stack = map(None, STACK_SIZE + 2 * STACK_GUARD, libc::PROT_NONE, None)?;
        protect(stack.at + STACK_GUARD, STACK_SIZE, rw)?;
        let unsafe_file = Ram::new(&vec![0; STACK_SIZE as usize]).map_err(|e| format!("memory: {e}"))?;
        let unsafe_map = map(Some(UNSAFE_AREA), STACK_SIZE, rw, Some((unsafe_file.file(), 0)))?;
        world.beside.push(Beside {
            address: UNSAFE_AREA,
            bytes: RefCell::new(vec![0; STACK_SIZE as usize]),
            at: Some(UNSAFE_AREA as *mut u8),
        });
        let hole = map(None, PAIR, libc::PROT_NONE, None)?;
        let windows = map(None, MAX_PAIRS * PAIR, libc::PROT_NONE, None)?;
        let mut arena = Self {
            mode,
            base,
            instance,
            code: CodeSpace::new(0, Vec::new()),
            code_len: 0,
            stack: stack.at + STACK_GUARD,
            windows: windows.at,
            pairs: Vec::new(),
            ram_file: world.ram.file(),
            ram_len: world.ram.len(),
            unsafe_file,
            percpu,
            hole: hole.at,
            stubs: Stubs::new()?,
            is_tracked: matches!(watch, Watch::Memory),
            quiet: if let Watch::Quiet(quiet) = watch { Some(quiet) } else { None },
            open: HashSet::new(),
            _mapped: vec![whole, stack, unsafe_map, hole, windows],
        };
        if mode == Mode::Mirror {
            arena.mirror(world)?;
        }
        handlers()?;
        Ok(Box::new(arena))
    }

    /// Shows the domain's pages at their masked addresses, runs of pages together.
    fn mirror(&mut self, world: &World) -> Result<(), String> {
        let mut pages: Vec<(u64, u64, bool)> = world.masked.iter().filter(|(_, pa, _)| *pa < self.ram_len).collect();
        pages.sort_unstable();
        let mut k = 0;
        while k < pages.len() {
            let (vpn, pa, writable) = pages[k];
            let mut n = 1;
            while k + n < pages.len() && pages[k + n] == (vpn + n as u64, pa + n as u64 * PAGE, writable) {
                n += 1;
            }
            let rights = self.rights(writable);
            self._mapped.push(map(Some(vpn * PAGE), n as u64 * PAGE, rights, Some((self.ram_file, pa)))?);
            k += n;
        }
        if let Some(quiet) = &self.quiet {
            for (vpn, pa, _) in world.masked.iter().filter(|(_, pa, _)| *pa >= self.ram_len) {
                let Some(place) = quiet.file_place(pa) else { continue };
                let rw = libc::PROT_READ | libc::PROT_WRITE;
                self._mapped.push(map(Some(vpn * PAGE), PAGE, rw, Some(place))?);
            }
        }
        Ok(())
    }

    fn rights(&self, writable: bool) -> i32 {
        libc::PROT_READ | if writable && !self.is_tracked { libc::PROT_WRITE } else { 0 }
    }

    /// Puts an image and fresh areas in place of what was there. `code` replaces the image's own.
    pub fn load(&mut self, twin: &Twin<'_>, code: Option<&[u8]>) -> Result<(), String> {
        let verified = *twin.verified();
        if verified.policy().mode != self.mode {
            return Err("the image is of the other mode".into());
        }
        self.drop_pairs()?;
        let slots = verified.image().imports().len() as u64;
        let config = Config {
            base: self.base,
            stack: self.stack,
            unsafe_area: UNSAFE_AREA,
            percpu: self.percpu,
            canary: 0,
            stlb_miss: self.stubs.address(STUB_MISS),
            icall: self.stubs.address(STUB_ICALL),
            warn: self.stubs.address(STUB_WARN),
            imports: (0..slots).map(|n| self.stubs.address(n)).collect(),
            hole: self.hole,
        };
        let areas = Areas::new(&verified, twin.addresses(), &config).map_err(|e| e.to_string())?;
        let code = code.unwrap_or(verified.image().code()).to_vec();
        let places = [
            (layout::CTX_OFFSET, &areas.context),
            (layout::CONST_OFFSET, &areas.constants),
            (layout::IMPORT_OFFSET, &areas.imports),
            (layout::CALL_TABLE_OFFSET, &areas.call_table),
            (layout::STLB_OFFSET, &areas.stlb),
            (CODE_OFFSET, &code),
        ];
        for (offset, bytes) in places {
            if !self.instance.write(u64::from(offset), bytes) {
                return Err(format!("no room for {} bytes at {offset:#x}", bytes.len()));
            }
        }
        self.code_len = code.len() as u64;
        self.code = CodeSpace::new(self.code_base(), code);
        let zeroes = [0; STACK_SIZE as usize];
        self.unsafe_file.write(0, &zeroes);
        // SAFETY: the stack is mapped and no twin runs.
        unsafe { std::ptr::copy_nonoverlapping(zeroes.as_ptr(), self.stack as *mut u8, zeroes.len()) };
        // The code was written at another address than it will run at: that takes a serialising instruction.
        std::arch::x86_64::__cpuid(0);
        Ok(())
    }

    fn drop_pairs(&mut self) -> Result<(), String> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        let len = self.pairs.len() as u64 * PAIR;
        self.pairs.clear();
        self.open.clear();
        fresh(self.windows, len)
    }

    /// Takes back what twins and routines changed in the domain's memory since it was marked.
    pub fn rewind(&mut self, world: &World) -> Result<(), String> {
        world.ram.rewind();
        if self.mode == Mode::Stlb {
            self.drop_pairs()?;
            world.ram.forget();
        } else if self.open.len() > MAX_OPEN || world.ram.changed() > 2 * MAX_OPEN {
            for page in std::mem::take(&mut self.open) {
                protect(page, PAGE, libc::PROT_READ)?;
            }
            world.ram.forget();
        }
        Ok(())
    }

    /// The page in which a write faulted becomes writable, if the domain may write it and changes are tracked.
    pub fn open_page(&mut self, world: &World, address: u64) -> bool {
        if !self.is_tracked {
            return false;
        }
        let page = address & !(PAGE - 1);
        let place = match self.mode {
            Mode::Mirror if address >> MASK_BITS == 0 => match world.masked.get(address / PAGE) {
                Some((pa, true)) => world.target(pa),
                _ => return false,
            },
            Mode::Mirror => return false,
            Mode::Stlb => match self.domain_address(page).map(|domain| world.place(domain, 1, true)) {
                Some(Ok(place)) => place,
                _ => return false,
            },
        };
        let Place::Ram(pa) = place else { return false };
        if !self.open.insert(page) {
            return false;
        }
        world.ram.touch(pa, 1);
        protect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE).is_ok()
    }

    /// The domain address that is shown at an address in the windows.
    fn domain_address(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.windows)?;
        let page = (*self.pairs.get(usize::try_from(offset / PAIR).ok()?)?)?;
        Some(page.wrapping_add(offset % PAIR))
    }

    /// Address of the code.
    pub fn code_base(&self) -> u64 {
        self.base + u64::from(CODE_OFFSET)
    }

    /// Top of the twin's stack for an invocation.
    pub fn stack_top(&self) -> u64 {
        self.stack + STACK_SIZE - layout::ENTRY_AREA
    }

    /// Whether `rip` is in the image's code.
    pub fn in_code(&self, rip: u64) -> bool {
        rip.wrapping_sub(self.code_base()) < self.code_len
    }

    /// Code offset of an address.
    pub fn offset(&self, rip: u64) -> u32 {
        rip.wrapping_sub(self.code_base()) as u32
    }

    /// Whether an address lies in a guard of the stack.
    pub fn in_guard(&self, address: u64) -> bool {
        (self.stack - STACK_GUARD..self.stack).contains(&address)
            || (self.stack + STACK_SIZE..self.stack + STACK_SIZE + STACK_GUARD).contains(&address)
    }

    /// The place behind an address that faulted, if it is a device register.
    pub fn device_place(&self, world: &World, address: u64, write: bool) -> Option<Place> {
        let place = match self.mode {
            Mode::Mirror if address >> MASK_BITS == 0 => {
                let (pa, writable) = world.masked.get(address / PAGE)?;
                (writable || !write).then(|| world.target(pa + address % PAGE))?
            }
            Mode::Mirror => return None,
            Mode::Stlb => world.place(self.domain_address(address)?, 1, write).ok()?,
        };
        matches!(place, Place::Device(_)).then_some(place)
    }
}

/// Makes a range of the windows inaccessible again.
fn fresh(at: u64, len: u64) -> Result<(), String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is part of the windows, which are ours.
    let got = unsafe { libc::mmap(at as *mut libc::c_void, len as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(format!("mmap: {}", std::io::Error::last_os_error()));
    }
    Ok(())
}

impl Instance for Arena {
    fn word(&self, offset: u32) -> u64 {
        self.instance.int(u64::from(layout::CTX_OFFSET + offset), 8).unwrap_or(0)
    }

    fn set_word(&mut self, offset: u32, value: u64) {
        self.instance.write(u64::from(layout::CTX_OFFSET + offset), &value.to_le_bytes());
    }

    fn stack(&self) -> u64 {
        self.stack
    }

    fn map_pair(&mut self, world: &World, page: u64) -> Result<u64, Fault> {
        let n = self.pairs.len() as u64;
        let fault = Fault { address: page, write: false };
        if n >= MAX_PAIRS {
            return Err(fault);
        }
        world.place(page, 1, false)?;
        let at = self.windows + n * PAIR;
        for k in 0..2 {
            let va = page.wrapping_add(k * PAGE);
            let Ok(place) = world.place(va, 1, false) else { continue };
            let writable = world.place(va, 1, true).is_ok();
            let to = (at + k * PAGE) as *mut libc::c_void;
            let (file, offset, rights) = match place {
                Place::Ram(pa) => (self.ram_file, pa, self.rights(writable)),
                Place::Beside(_, offset) => {
                    (self.unsafe_file.file(), offset as u64, libc::PROT_READ | libc::PROT_WRITE)
                }
                Place::Device(pa) => match self.quiet.as_ref().and_then(|q| q.file_place(pa)) {
                    Some((file, offset)) => (file, offset, libc::PROT_READ | libc::PROT_WRITE),
                    None => continue,
                },
            };
            // SAFETY: replaces a page of the window area, which is ours and unused so far.
            let got = unsafe {
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                libc::mmap(to, PAGE as usize, rights, flags, file, offset as libc::off_t)
            };
            if got != to && k == 0 {
                return Err(fault);
            }
        }
        self.pairs.push(Some(page));
        Ok(at)
    }

    fn unmap_pair(&mut self, mapped: u64) {
        let n = (mapped.wrapping_sub(self.windows) / PAIR) as usize;
        if let Some(pair) = self.pairs.get_mut(n) {
            *pair = None;
            for k in 0..2 {
                self.open.remove(&(mapped + k * PAGE));
            }
            let _ = fresh(mapped, PAIR);
        }
    }

    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
        if index < layout::STLB_ENTRIES as usize {
            let at = u64::from(layout::STLB_OFFSET) + index as u64 * 16;
            self.instance.write(at + 8, &mapped.to_le_bytes());
            self.instance.write(at, &tag.to_le_bytes());
        }
    }
}

/// The stubs of all imports and gates, and the word that names their common part.
#[derive(Debug)]
struct Stubs {
    mapped: Mapped,
}

impl Stubs {
    fn new() -> Result<Self, String> {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let count = STUB_WARN as usize + 1;
        let common = count * STUB;
        let mapped = map(None, ((common + 8) as u64).next_multiple_of(PAGE), rw, None)?;
        let mut bytes = Vec::new();
        for n in 0..count {
            bytes.extend(stub(n as u64, (common - n * STUB) as u32));
        }
        let address = tandem_twin_gate as *const () as u64;
        bytes.extend(address.to_le_bytes());
        // SAFETY: the mapping is new, writable, and at least as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapped.at as *mut u8, bytes.len()) };
        protect(mapped.at, mapped.len, libc::PROT_READ | libc::PROT_EXEC)?;
        Ok(Self { mapped })
    }

    fn address(&self, n: u64) -> u64 {
        self.mapped.at + n * STUB as u64
    }
}
