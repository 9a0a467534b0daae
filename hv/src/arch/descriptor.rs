//! GDT, TSS and the descriptor-table windows.
//!
//! A PV guest brings its own GDT pages, at most 14; the hypervisor's descriptors follow in page 14 (selectors
//! 0xe008..). Each CPU has a window of 32 pages in hypervisor space: 16 for the GDT (14 guest, ours, one empty), 16 for
//! the LDT. Switching vCPUs remaps the guest part of the window; GDTR never changes.

use crate::cpu::percpu::{self, CpuInfo, FRAME_END, MAX_CPUS};
use crate::{cpu, mem};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use x86::descriptor::{Descriptor, TablePointer, Tss64, TYPE_LDT, TYPE_TSS64};
use x86::{Mfn, Pte, PteFlags, PAGE_SIZE};
use xen_abi::layout::{FIRST_RESERVED_GDT_ENTRY, FIRST_RESERVED_GDT_PAGE, HYPERVISOR_CS, HYPERVISOR_DS};

/// Pages of one CPU's window.
const WINDOW_PAGES: u64 = 32;
/// Pages of the window before its LDT part.
const LDT_PAGE: u64 = 16;
/// Selector of the task-state segment.
const TSS_SELECTOR: u16 = 0xe040;
/// Selector of the LDT descriptor.
const LDT_SELECTOR: u16 = 0xe050;

/// Interrupt-stack numbers of the exceptions that have one.
#[allow(missing_docs, reason = "named by their exceptions")]
pub mod ist {
    pub const DB: u8 = 1;
    pub const NMI: u8 = 2;
    pub const MC: u8 = 3;
    pub const DF: u8 = 4;
    /// All other vectors, while a twin runs.
    pub const TWIN: u8 = 5;
}

/// One CPU's tables, in one page each so that the GDT page can be mapped into the window.
#[repr(C, align(4096))]
struct CpuTables {
    gdt: [Descriptor; 512],
    tss: Tss64,
    /// The page-table entries of the window.
    entries: [&'static AtomicU64; WINDOW_PAGES as usize],
    /// Guest GDT pages now mapped in the window.
    mapped_gdt: [Cell<u64>; FIRST_RESERVED_GDT_PAGE],
    /// All pages beyond are empty.
    gdt_pages: Cell<usize>,
    /// Number of LDT pages that may be mapped (0 if the vCPU has no LDT).
    ldt_pages: Cell<u64>,
}

static TABLES: [spin::Once<&'static SyncTables>; MAX_CPUS] = [const { spin::Once::new() }; MAX_CPUS];
struct SyncTables(CpuTables);
// SAFETY: the cells are touched only by the CPU that the tables belong to.
unsafe impl Sync for SyncTables {}

/// Start of CPU `cpu`'s window.
fn window(cpu: usize) -> u64 {
    mem::layout::DESCRIPTORS + cpu as u64 * WINDOW_PAGES * PAGE_SIZE as u64
}

/// Loads GDT and TSS of the running CPU. Its [`CpuInfo`] must be initialised.
pub fn init_cpu() {
    let info = percpu::this_cpu();
    let cpu_index = info.cpu as usize;
    let tables: &SyncTables = TABLES[cpu_index].call_once(|| new_tables(info));
    let zero = zero_page();
    for page in 0..FIRST_RESERVED_GDT_PAGE {
        tables.0.set_pte(page, Pte::new(zero, read_only()));
    }
    let own = mem::virt_to_mfn(core::ptr::from_ref(tables));
    tables.0.set_pte(FIRST_RESERVED_GDT_PAGE, Pte::new(own, read_write()));
    tables.0.set_pte(FIRST_RESERVED_GDT_PAGE + 1, Pte::new(zero, read_only()));
    let gdtr = TablePointer { limit: 0xffff, base: window(cpu_index) };
    // SAFETY: the window maps valid descriptors at all selectors loaded here; the code segment is reloaded by a far
    // return.
    unsafe {
        core::arch::asm!("lgdt [{}]", in(reg) &gdtr, options(readonly, nostack, preserves_flags));
        core::arch::asm!(
            "push {cs}", "lea {t}, [rip + 2f]", "push {t}", "retfq", "2:",
            "mov ss, {ss:e}", "mov ds, {z:e}", "mov es, {z:e}", "mov fs, {z:e}", "mov gs, {z:e}",
            cs = in(reg) u64::from(HYPERVISOR_CS), ss = in(reg) u32::from(HYPERVISOR_DS), z = in(reg) 0u32, t = out(reg) _,
            options(preserves_flags)
        );
        core::arch::asm!("ltr {:x}", in(reg) TSS_SELECTOR, options(nostack, preserves_flags));
        core::arch::asm!("lldt {:x}", in(reg) 0u16, options(nostack, preserves_flags));
    }
}

fn new_tables(info: &CpuInfo) -> &'static SyncTables {
    let mut t = CpuTables {
        gdt: [Descriptor::NULL; 512],
        tss: Tss64 { rsp: [core::ptr::from_ref(info) as u64 + FRAME_END as u64, 0, 0], ..Tss64::EMPTY },
        entries: core::array::from_fn(|page| {
            let va = window(info.cpu as usize) + (page * PAGE_SIZE) as u64;
            mem::tables().walk(va, 1, &mut mem::frames::alloc_table).expect("memory for descriptor tables")
        }),
        mapped_gdt: [const { Cell::new(0) }; FIRST_RESERVED_GDT_PAGE],
        gdt_pages: Cell::new(0),
        ldt_pages: Cell::new(0),
    };
    for i in [ist::DB, ist::NMI, ist::MC, ist::DF, ist::TWIN] {
        t.tss.ist[usize::from(i) - 1] = percpu::ist_top(info, usize::from(i));
    }
    let at = |selector: u16| usize::from(selector >> 3) - FIRST_RESERVED_GDT_ENTRY;
    t.gdt[at(HYPERVISOR_CS)] = Descriptor::KERNEL_CODE64;
    t.gdt[at(HYPERVISOR_DS)] = Descriptor::KERNEL_DATA;
    t.gdt[at(xen_abi::layout::FLAT_RING3_CS32)] = Descriptor::USER_CODE32;
    t.gdt[at(xen_abi::layout::FLAT_RING3_SS64)] = Descriptor::USER_DATA;
    t.gdt[at(xen_abi::layout::FLAT_RING3_CS64)] = Descriptor::USER_CODE64;
    const _: () = assert!(size_of::<SyncTables>() == 2 * PAGE_SIZE);
    let pages = mem::frames::alloc(1, mem::frames::ANYWHERE).expect("memory for descriptor tables");
    let place = mem::phys_to_virt(pages.addr()).cast::<SyncTables>();
    // SAFETY: two pages of RAM, just allocated for good, page-aligned as the type asks.
    let tables: &'static mut SyncTables = unsafe {
        place.write(SyncTables(t));
        &mut *place
    };
    let tss = core::ptr::from_ref(&tables.0.tss) as u64;
    tables.0.gdt[at(TSS_SELECTOR)] = Descriptor::system_low(TYPE_TSS64, tss, size_of::<Tss64>() as u32 - 1);
    tables.0.gdt[at(TSS_SELECTOR) + 1] = Descriptor::system_high(tss);
    tables
}

const fn read_only() -> PteFlags {
    PteFlags::P.union(PteFlags::A).union(PteFlags::NX)
}
const fn read_write() -> PteFlags {
    read_only().union(PteFlags::RW).union(PteFlags::D)
}

/// A page of zeros: empty descriptors.
fn zero_page() -> Mfn {
    static ZERO: spin::Once<Mfn> = spin::Once::new();
    *ZERO.call_once(|| mem::frames::alloc_zeroed().expect("memory for descriptor tables"))
}

impl CpuTables {
    /// Sets the entry of page `page` of the window.
    fn set_pte(&self, page: usize, pte: Pte) {
        self.entries[page].store(pte.0, Ordering::Release);
    }
}

#[inline]
fn tables() -> &'static CpuTables {
    &TABLES[percpu::this_cpu().cpu as usize].get().expect("init_cpu ran on this CPU").0
}

/// Maps the guest GDT pages `frames` (each 512 entries) in this CPU's window; pages beyond are empty.
pub fn load_guest_gdt(frames: &[Cell<Mfn>]) {
    let tables = tables();
    let nr_pages = frames.len().max(tables.gdt_pages.replace(frames.len()));
    for (i, slot) in tables.mapped_gdt.iter().enumerate().take(nr_pages) {
        let want = frames.get(i).map_or(0, |f| f.get().raw());
        if slot.replace(want) != want {
            let pte =
                if want == 0 { Pte::new(zero_page(), read_only()) } else { Pte::new(Mfn::new(want), read_write()) };
            tables.set_pte(i, pte);
            cpu::invlpg(window(percpu::this_cpu().cpu as usize) + (i * PAGE_SIZE) as u64);
        }
    }
}

/// Makes an LDT of `entries` descriptors current on this CPU, none of it mapped yet; 0 entries is no LDT.
#[inline]
pub fn load_guest_ldt(entries: u32) {
    let tables = tables();
    if tables.ldt_pages.get() != 0 || entries != 0 {
        change_guest_ldt(tables, entries);
    }
}

fn change_guest_ldt(tables: &CpuTables, entries: u32) {
    let cpu_index = percpu::this_cpu().cpu as usize;
    let start = window(cpu_index) + LDT_PAGE * PAGE_SIZE as u64;
    for page in 0..tables.ldt_pages.get() {
        tables.set_pte((LDT_PAGE + page) as usize, Pte::EMPTY);
        cpu::invlpg(start + page * PAGE_SIZE as u64);
    }
    let pages = (u64::from(entries) * 8).div_ceil(PAGE_SIZE as u64).min(WINDOW_PAGES - LDT_PAGE);
    tables.ldt_pages.set(pages);
    let selector = if entries == 0 {
        0
    } else {
        let low = Descriptor::system_low(TYPE_LDT, start, entries.min(8192) * 8 - 1);
        let own = window(cpu_index) + u64::from(LDT_SELECTOR);
        // SAFETY: the window maps this CPU's own GDT page writable at that address.
        unsafe {
            (own as *mut u64).write_volatile(low.0);
            ((own + 8) as *mut u64).write_volatile(Descriptor::system_high(start).0);
        }
        LDT_SELECTOR
    };
    // SAFETY: the selector is null or names the descriptor just written.
    unsafe { core::arch::asm!("lldt {:x}", in(reg) selector, options(nostack, preserves_flags)) };
}

/// The descriptor that `selector` names in the tables of the vCPU that runs here. `None`: ring 3 may not use it, or
/// there is none.
pub fn read(selector: u16) -> Option<Descriptor> {
    let may_be_used: u8;
    // SAFETY: LAR reads a descriptor and nothing else; a bad selector only clears ZF. If the descriptor is on a page of
    // the LDT that is none, the exception table goes on behind it, with a ZF that says the same.
    unsafe {
        core::arch::asm!("cmp {1}, 1", "2: lar {0:e}, {0:e}", "3: setz {1}",
            ".pushsection ex_table, \"a\"", ".quad 2b, 3b", ".popsection",
            inout(reg) u32::from(selector) => _, inout(reg_byte) 0u8 => may_be_used, options(nomem, nostack));
    }
    if may_be_used == 0 {
        return None;
    }
    const IN_LDT: u16 = 1 << 2;
    let first_page = if selector & IN_LDT == 0 { 0 } else { LDT_PAGE };
    let at = window(percpu::this_cpu().cpu as usize) + first_page * PAGE_SIZE as u64 + u64::from(selector & !7);
    // SAFETY: LAR has found it, so it is inside its table and its page is in this CPU's window, which only this CPU
    // changes. Another vCPU may change the descriptor meanwhile, as one word.
    Some(Descriptor(unsafe { (at as *const u64).read_volatile() }))
}

/// Where `va` lies in this CPU's LDT window: byte offset from the LDT's start.
pub fn ldt_offset(va: u64) -> Option<u64> {
    let start = window(percpu::this_cpu().cpu as usize) + LDT_PAGE * PAGE_SIZE as u64;
    let offset = va.checked_sub(start)?;
    (offset < tables().ldt_pages.get() * PAGE_SIZE as u64).then_some(offset)
}

/// Maps `frame` as page `page` of the current LDT.
pub fn map_ldt_page(page: u64, frame: Mfn) {
    let tables = tables();
    if page < tables.ldt_pages.get() {
        tables.set_pte((LDT_PAGE + page) as usize, Pte::new(frame, read_write()));
    }
}
