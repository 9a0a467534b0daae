//! The interrupt descriptor table, the SYSCALL entry MSRs, and where the hypervisor goes on after its own faults.

use crate::arch::descriptor::ist;
use crate::arch::smap;
use crate::cpu::percpu::{self, FRAME_END};
use crate::cpu::{self, msr};
use crate::mem;
use x86::descriptor::{IdtGate, TablePointer};
use x86::PAGE_SIZE;
use xen_abi::layout::{FLAT_RING3_CS32, HYPERVISOR_CS};

/// Where the CPU enters the hypervisor.
pub struct EntryPoints {
    /// The stub of vector 0; the others follow, [`STUB_SIZE`] bytes apart.
    pub vectors: u64,
    /// SYSCALL from 64-bit code.
    pub syscall_64: u64,
    /// SYSCALL from 32-bit code.
    pub syscall_32: u64,
    /// SYSENTER.
    pub sysenter: u64,
}

/// Bytes between two vector stubs.
pub const STUB_SIZE: u64 = 32;
/// Bytes of the CLAC that each of them begins with.
pub const CLAC_SIZE: u64 = 3;
/// Vectors that ring 3 may raise with INT n.
const USER_VECTORS: [usize; 3] = [3, 4, 0x80];

/// The gates of all vectors; those without a stack of their own use interrupt stack `others`, 0 being none.
fn gates(vectors: u64, others: u8) -> [IdtGate; 256] {
    let skipped = if smap::is_on() { 0 } else { CLAC_SIZE };
    core::array::from_fn(|v| {
        let dpl = if USER_VECTORS.contains(&v) { 3 } else { 0 };
        let ist = match v {
            1 => ist::DB,
            2 => ist::NMI,
            8 => ist::DF,
            18 => ist::MC,
            _ => others,
        };
        IdtGate::interrupt(HYPERVISOR_CS, vectors + v as u64 * STUB_SIZE + skipped, dpl, ist)
    })
}

static IDT: spin::Once<[IdtGate; 256]> = spin::Once::new();
/// The table while a twin runs: whatever happens, the CPU does not push onto the twin's stack.
static IDT_OF_TWINS: spin::Once<[IdtGate; 256]> = spin::Once::new();

/// Loads the table with which a twin runs.
pub fn enter_twin() {
    load_table(&IDT_OF_TWINS);
}

/// Loads the ordinary table again.
pub fn leave_twin() {
    load_table(&IDT);
}

fn load_table(table: &'static spin::Once<[IdtGate; 256]>) {
    let Some(table) = table.get() else { return };
    let idtr = TablePointer { limit: size_of::<[IdtGate; 256]>() as u16 - 1, base: table.as_ptr() as u64 };
    // SAFETY: the table holds valid gates (made by `load`, whose caller vouched for the entry points) and lives for
    // ever.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &idtr, options(readonly, nostack, preserves_flags)) };
}

/// Loads the IDT and the SYSCALL and SYSENTER entry points of the running CPU.
///
/// # Safety
/// 1. `entries` are the addresses of code that takes over the CPU as each of these ways leaves it.
pub unsafe fn load(entries: &EntryPoints) {
    IDT.call_once(|| gates(entries.vectors, 0));
    IDT_OF_TWINS.call_once(|| gates(entries.vectors, ist::TWIN));
    load_table(&IDT);
    load_syscall_msrs(entries);
}

/// SYSCALL does not switch stacks, and GS belongs to the guest, so each CPU has code of its own that knows its stack:
/// `mov [ss slot], rax; mov rax, rsp; mov rsp, ss slot; push rax; jmp [rip]` to the common entry.
fn syscall_stub(frame_end: u64, target: u64) -> [u8; 40] {
    let ss_slot = (frame_end - 8).to_le_bytes();
    let mut code = [0xccu8; 40];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        code[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&[0x48, 0xa3]);
    put(&ss_slot);
    put(&[0x48, 0x89, 0xe0]);
    put(&[0x48, 0xbc]);
    put(&ss_slot);
    put(&[0x50]);
    put(&[0xff, 0x25, 0, 0, 0, 0]);
    put(&target.to_le_bytes());
    code
}

fn load_syscall_msrs(entries: &EntryPoints) {
    let info = percpu::this_cpu();
    let frame_end = core::ptr::from_ref(info) as u64 + FRAME_END as u64;
    let base = mem::layout::SYSCALL_STUBS + u64::from(info.cpu) * PAGE_SIZE as u64;
    let page = mem::frames::alloc_zeroed().expect("memory for a CPU's entry code");
    mem::vmap::map_at(base, &[page], mem::paging::EXECUTE).expect("memory for a CPU's entry code");
    for (offset, target) in [(0usize, entries.syscall_64), (64, entries.syscall_32)] {
        let code = syscall_stub(frame_end, target);
        // SAFETY: the page was just allocated; nobody executes it yet.
        unsafe {
            core::ptr::copy_nonoverlapping(code.as_ptr(), mem::phys_to_virt(page.addr()).add(offset), code.len())
        };
    }
    let star = u64::from(FLAT_RING3_CS32) << 48 | u64::from(HYPERVISOR_CS) << 32;
    // Flags that SYSCALL clears: TF, IF, DF, IOPL, NT, RF, VM, AC. Interrupts are off in the hypervisor.
    let fmask = 0x0007_7700u64;
    // SAFETY: the targets are the stubs above; SYSCALL exists on every CPU in long mode, SYSENTER is probed.
    unsafe {
        cpu::wrmsr(msr::IA32_STAR, star);
        cpu::wrmsr(msr::IA32_LSTAR, base);
        cpu::wrmsr(msr::IA32_CSTAR, base + 64);
        cpu::wrmsr(msr::IA32_FMASK, fmask);
        cpu::wrmsr(msr::IA32_EFER, cpu::rdmsr(msr::IA32_EFER) | cpu::EFER_SCE | cpu::EFER_NXE);
        if cpu::cpuid(1, 0).edx & (1 << 11) != 0 {
            cpu::wrmsr(msr::IA32_SYSENTER_CS, u64::from(HYPERVISOR_CS));
            cpu::wrmsr(msr::IA32_SYSENTER_ESP, frame_end);
            cpu::wrmsr(msr::IA32_SYSENTER_EIP, entries.sysenter);
        }
    }
}

/// One entry of the exception table: a fault at `fault` resumes at `fixup`.
#[repr(C)]
struct Fixup {
    fault: u64,
    fixup: u64,
}

/// Where to resume after a fault of the hypervisor's own instruction at `rip`, if that was foreseen.
pub fn fixup_for(rip: u64) -> Option<u64> {
    extern "C" {
        static __start_ex_table: Fixup;
        static __stop_ex_table: Fixup;
    }
    let start = core::ptr::addr_of!(__start_ex_table);
    let end = core::ptr::addr_of!(__stop_ex_table);
    // SAFETY: the linker places all entries between the two symbols.
    let table = unsafe { core::slice::from_raw_parts(start, (end as usize - start as usize) / size_of::<Fixup>()) };
    table.iter().find(|e| e.fault == rip).map(|e| e.fixup)
}
