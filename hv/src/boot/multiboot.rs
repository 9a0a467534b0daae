//! What the boot loader says, by Multiboot 1 or 2: command line, modules, memory map, ACPI root.
//!
//! Runs on the boot page tables, which show the first 4 GiB in the direct map; everything is copied before those tables
//! go, except the modules' contents, which stay in place.

use crate::arch::efi::Firmware;
use crate::console;
use crate::cpu::screen::Kind;
use crate::mem::layout::IMAGE_PHYS;
use crate::mem::{image_phys_end, phys_to_virt};
use hv_core::efi::{self, MemoryMap, Tables};
use hv_core::ranges::Ranges;
use hv_core::screen::Format;
use x86::MachAddr;

/// EAX of a Multiboot-1 loader.
pub const MAGIC_1: u32 = 0x2bad_b002;
/// EAX of a Multiboot-2 loader.
pub const MAGIC_2: u32 = 0x36d7_6289;

const MAX_MODULES: usize = 16;
/// As many as of UEFI's map, of which a loader makes its own.
const MAX_REGIONS: usize = 192;
const TEXT_BYTES: usize = 12 << 10;
const RAM: u32 = 1;

/// A line of a region, and what else is said before the console's ring is there, at most.
const REGION_LINE: usize = 80;
const OTHER_LINES: usize = 4 << 10;
const _: () = assert!(MAX_REGIONS * REGION_LINE + TEXT_BYTES + OTHER_LINES <= console::EARLY_BYTES);

/// A file that the loader put into memory.
#[derive(Clone, Copy, Default)]
pub struct LoadedModule {
    /// Machine address of its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    command_line: Text,
}

/// A region of the firmware's memory map (E820 types).
#[derive(Clone, Copy, Debug, Default)]
pub struct Region {
    /// Machine address.
    pub start: u64,
    /// Length.
    pub bytes: u64,
    /// 1 RAM, 2 reserved, 3 ACPI tables, 4 ACPI NVS, 5 unusable.
    pub kind: u32,
}

/// A string in the text buffer.
#[derive(Clone, Copy, Default)]
struct Text {
    start: usize,
    len: usize,
}

/// Everything the loader told, copied.
pub struct Loaded {
    text: [u8; TEXT_BYTES],
    text_used: usize,
    command_line: Text,
    loader: Text,
    modules: [LoadedModule; MAX_MODULES],
    module_count: usize,
    regions: [Region; MAX_REGIONS],
    region_count: usize,
    /// There were more of them.
    pub are_regions_cut: bool,
    /// RAM that may be used: whole pages, without what other regions claim.
    pub usable: Ranges,
    /// Where the loader's copy of the ACPI root pointer says the tables are: RSDT/XSDT address and whether it is the
    /// XSDT.
    pub acpi_root: Option<(u64, bool)>,
    /// Machine address of UEFI's system table.
    efi_system_table: Option<u64>,
    /// UEFI's memory map.
    efi_map: MemoryMap,
    /// What UEFI's tables say.
    pub efi: Option<Firmware>,
    /// The screen, as the loader or a BIOS left it.
    pub screen: Option<Kind>,
}

/// Machine memory that the boot page tables map.
struct Low;

impl efi::Memory for Low {
    fn read(&self, addr: u64, to: &mut [u8]) -> Option<()> {
        if addr.checked_add(to.len() as u64)? > 1 << 32 {
            return None;
        }
        to.iter_mut().zip(addr..).for_each(|(to, at)| *to = read(at));
        Some(())
    }
}

/// Copies from machine memory below 4 GiB.
fn read<T: Copy>(addr: u64) -> T {
    // SAFETY: the boot page tables map the first 4 GiB in the direct map; callers read plain integers from where the
    // loader's structures say they are.
    unsafe { phys_to_virt(MachAddr::new(addr & 0xffff_ffff)).cast::<T>().read_unaligned() }
}

impl Loaded {
    /// Reads the structures at `info`. `None` if `magic` is no loader's.
    pub fn new(magic: u32, info: u32) -> Option<Self> {
        let mut loaded = Self {
            text: [0; TEXT_BYTES],
            text_used: 0,
            command_line: Text::default(),
            loader: Text::default(),
            modules: [LoadedModule::default(); MAX_MODULES],
            module_count: 0,
            regions: [Region::default(); MAX_REGIONS],
            region_count: 0,
            are_regions_cut: false,
            usable: Ranges::new(),
            acpi_root: None,
            efi_system_table: None,
            efi_map: MemoryMap::default(),
            efi: None,
            screen: None,
        };
        match magic {
            MAGIC_1 => loaded.read_version_1(u64::from(info)),
            MAGIC_2 => loaded.read_version_2(u64::from(info)),
            _ => return None,
        }
        loaded.find_usable();
        loaded.read_efi();
        if loaded.screen.is_none() && loaded.efi_system_table.is_none() {
            loaded.screen = Some(Kind::Text);
        }
        Some(loaded)
    }

    /// The command line without the image's name.
    pub fn command_line(&self) -> &str {
        self.after_name(self.command_line)
    }

    /// The loader's name.
    pub fn loader(&self) -> &str {
        self.str(self.loader)
    }

    /// The modules in order.
    pub fn modules(&self) -> &[LoadedModule] {
        &self.modules[..self.module_count]
    }

    /// The command line of `module` without the file's name.
    pub fn module_command_line(&self, module: &LoadedModule) -> &str {
        self.after_name(module.command_line)
    }

    /// The memory map as the firmware told it.
    pub fn regions(&self) -> &[Region] {
        &self.regions[..self.region_count]
    }

    fn str(&self, text: Text) -> &str {
        core::str::from_utf8(&self.text[text.start..text.start + text.len]).unwrap_or("")
    }

    /// All loaders but GRUB 2 put the file's name first.
    fn after_name(&self, text: Text) -> &str {
        let line = self.str(text).trim_ascii();
        if self.loader().starts_with("GRUB 2") {
            return line;
        }
        line.split_once(' ').map_or("", |(_, rest)| rest.trim_ascii_start())
    }

    fn read_version_1(&mut self, info: u64) {
        let flags: u32 = read(info);
        if flags & 1 << 9 != 0 {
            self.loader = self.copy_text(u64::from(read::<u32>(info + 64)));
        }
        if flags & 1 << 2 != 0 {
            self.command_line = self.copy_text(u64::from(read::<u32>(info + 16)));
        }
        if flags & 1 << 3 != 0 {
            let (count, list): (u32, u32) = (read(info + 20), read(info + 24));
            for i in 0..u64::from(count).min(MAX_MODULES as u64) {
                let [start, end, text, _]: [u32; 4] = read(u64::from(list) + 16 * i);
                self.add_module(start, end, u64::from(text));
            }
        }
        if flags & 1 << 12 != 0 {
            self.read_screen(info + 88, info + 110);
        }
        if flags & 1 << 6 != 0 {
            let (bytes, map): (u32, u32) = (read(info + 44), read(info + 48));
            let mut at = u64::from(map);
            while at < u64::from(map) + u64::from(bytes) {
                self.add_region(read(at + 4), read(at + 12), read(at + 20));
                at += u64::from(read::<u32>(at)) + 4;
            }
        } else if flags & 1 != 0 {
            let (low, high): (u32, u32) = (read(info + 4), read(info + 8));
            self.add_region(0, u64::from(low) << 10, RAM);
            self.add_region(1 << 20, u64::from(high) << 10, RAM);
        }
    }

    fn read_version_2(&mut self, info: u64) {
        let end = info + u64::from(read::<u32>(info));
        let mut at = info + 8;
        while at + 8 <= end {
            let [kind, bytes]: [u32; 2] = read(at);
            let (body, bytes) = (at + 8, u64::from(bytes.max(8)));
            match kind {
                0 => break,
                1 => self.command_line = self.copy_text(body),
                2 => self.loader = self.copy_text(body),
                3 => self.add_module(read(body), read(body + 4), body + 8),
                6 => {
                    let step = u64::from(read::<u32>(body)).max(24);
                    let mut entry = body + 8;
                    while entry + step <= at + bytes {
                        self.add_region(read(entry), read(entry + 8), read(entry + 16));
                        entry += step;
                    }
                }
                14 if self.acpi_root.is_none() => self.acpi_root = Some((u64::from(read::<u32>(body + 16)), false)),
                8 => self.read_screen(body, body + 24),
                12 => self.efi_system_table = Some(read(body)),
                15 => self.acpi_root = Some((read(body + 24), true)),
                17 => {
                    let step = u64::from(read::<u32>(body)).max(40);
                    let mut entry = body + 8;
                    while entry + step <= at + bytes {
                        self.efi_map.push(&read::<[u8; 40]>(entry));
                        entry += step;
                    }
                }
                _ => {}
            }
            at += bytes.next_multiple_of(8);
        }
    }

    fn copy_text(&mut self, addr: u64) -> Text {
        let start = self.text_used;
        while self.text_used < TEXT_BYTES {
            let byte: u8 = read(addr + (self.text_used - start) as u64);
            if byte == 0 {
                break;
            }
            self.text[self.text_used] = byte;
            self.text_used += 1;
        }
        Text { start, len: self.text_used - start }
    }

    fn add_module(&mut self, start: u32, end: u32, text: u64) {
        let command_line = self.copy_text(text);
        if let Some(slot) = self.modules.get_mut(self.module_count) {
            *slot = LoadedModule { start: u64::from(start), bytes: u64::from(end.saturating_sub(start)), command_line };
            self.module_count += 1;
        }
    }

    fn add_region(&mut self, start: u64, bytes: u64, kind: u32) {
        if bytes == 0 {
            return;
        }
        match self.regions.get_mut(self.region_count) {
            Some(slot) => {
                *slot = Region { start, bytes, kind };
                self.region_count += 1;
            }
            None => self.are_regions_cut = true,
        }
    }

    /// Reads the description of the screen at `at`, whose colours are at `colours`.
    fn read_screen(&mut self, at: u64, colours: u64) {
        const RGB: u8 = 1;
        const TEXT: u8 = 2;
        let format = Format {
            base: read(at),
            pitch: read(at + 8),
            width: read(at + 12),
            height: read(at + 16),
            bits: read(at + 20),
            colours: [0, 2, 4].map(|n| (read(colours + n), read(colours + n + 1))),
        };
        self.screen = match read::<u8>(at + 21) {
            RGB => Some(Kind::Pixels(format)),
            TEXT => Some(Kind::Text),
            _ => None,
        };
    }

    /// Copies what UEFI's tables say. What of them is in RAM stays there: it is no longer RAM.
    fn read_efi(&mut self) {
        let Some(tables) = self.efi_system_table.and_then(|addr| Tables::read(&Low, addr)) else { return };
        let attributes = tables.attributes(&Low);
        for pages in tables.kept_pages(&Low) {
            let is_loaded = |m: &LoadedModule| m.start < pages.end && pages.start < m.start + m.bytes;
            let is_image = pages.start < image_phys_end() && IMAGE_PHYS < pages.end;
            if !is_image && !self.modules().iter().any(is_loaded) {
                self.usable.remove(pages.start, pages.end);
            }
        }
        self.efi = Some(Firmware { tables, map: core::mem::take(&mut self.efi_map), attributes });
    }

    /// RAM in whole pages; where regions overlap, the one that is not RAM wins.
    fn find_usable(&mut self) {
        let limit = crate::mem::layout::DIRECT_MAP_BYTES;
        let mut usable = Ranges::new();
        for region in self.regions().iter().filter(|r| r.kind == RAM) {
            let end = region.start.saturating_add(region.bytes).min(limit);
            usable.add(region.start.next_multiple_of(4096), end & !0xfff);
        }
        for region in self.regions().iter().filter(|r| r.kind != RAM) {
            let end = region.start.saturating_add(region.bytes).min(limit).next_multiple_of(4096);
            usable.remove(region.start & !0xfff, end);
        }
        self.usable = usable;
    }
}
