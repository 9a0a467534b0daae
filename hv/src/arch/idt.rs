//! The interrupt descriptor table, the SYSCALL entry MSRs and the glue between entry.S and Rust.

use crate::arch::cpu::{self, cr, msr};
use crate::arch::descriptor::{ist, TablePointer};
use crate::arch::percpu::{self, CpuInfo, CPU_INFO_FROM_TOP, FRAME_END, STACK_SIZE};
use crate::{mem, pv};
use core::mem::offset_of;
use x86::PAGE_SIZE;
use xen_abi::layout::{FLAT_RING3_CS32, FLAT_RING3_CS64, FLAT_RING3_SS64, HYPERVISOR_CS};
use xen_abi::regs::CpuUserRegs;

/// In `entry_vector`: the guest's rcx and r11 are dead, so the way back may be SYSRET.
pub const TRAP_SYSCALL: u32 = 0x100;

const GUEST_REGS_FROM_TOP: usize = CPU_INFO_FROM_TOP - offset_of!(CpuInfo, guest_regs);

core::arch::global_asm!(
    include_str!("entry.S"),
    CS = const offset_of!(CpuUserRegs, cs),
    SS = const offset_of!(CpuUserRegs, ss),
    ERROR_CODE = const offset_of!(CpuUserRegs, error_code),
    FRAME_WORDS = const offset_of!(CpuUserRegs, es) / 8,
    STACK_MASK = const STACK_SIZE - 1,
    GUEST_REGS_FROM_TOP = const GUEST_REGS_FROM_TOP,
    FLAT_RING3_CS64 = const FLAT_RING3_CS64,
    FLAT_RING3_CS32 = const FLAT_RING3_CS32,
    FLAT_RING3_SS64 = const FLAT_RING3_SS64,
    TRAP_SYSCALL = const TRAP_SYSCALL,
    SYSRET_KEPT = const pv::exit::SYSRET_KEPT,
    R10 = const offset_of!(CpuUserRegs, r10),
    R9 = const offset_of!(CpuUserRegs, r9),
    R8 = const offset_of!(CpuUserRegs, r8),
    RAX = const offset_of!(CpuUserRegs, rax),
    RDX = const offset_of!(CpuUserRegs, rdx),
    RSI = const offset_of!(CpuUserRegs, rsi),
    RDI = const offset_of!(CpuUserRegs, rdi),
    RIP = const offset_of!(CpuUserRegs, rip),
    RFLAGS = const offset_of!(CpuUserRegs, rflags),
    RSP = const offset_of!(CpuUserRegs, rsp),
    trap_from_guest = sym pv::traps::trap_from_guest,
    page_fault_from_guest = sym pv::traps::page_fault_from_guest,
    trap_from_hypervisor = sym pv::traps::trap_from_hypervisor,
    syscall_from_guest = sym pv::traps::syscall_from_guest,
    syscall32_from_guest = sym pv::traps::syscall32_from_guest,
    sysenter_from_guest = sym pv::traps::sysenter_from_guest,
    iret_fault_from_guest = sym pv::traps::iret_fault_from_guest,
    exit_work = sym pv::exit::exit_work,
);

extern "C" {
    static vector_stubs: u8;
    fn syscall_entry_64();
    fn syscall_entry_32();
    fn sysenter_entry();
}

/// Bytes between two vector stubs.
const STUB_SIZE: u64 = 16;
/// Vectors that ring 3 may raise with INT n.
const USER_VECTORS: [usize; 3] = [3, 4, 0x80];

#[derive(Clone, Copy)]
#[repr(C)]
struct Gate([u64; 2]);

/// A 64-bit interrupt gate (SDM vol. 3A, 6.14.1).
const fn gate(target: u64, dpl: u64, ist: u8) -> Gate {
    let lo = (target & 0xffff)
        | (HYPERVISOR_CS as u64) << 16
        | (ist as u64) << 32
        | 0x8e << 40
        | dpl << 45
        | (target & 0xffff_0000) << 32;
    Gate([lo, target >> 32])
}

static IDT: spin::Once<[Gate; 256]> = spin::Once::new();

/// Loads the IDT and the SYSCALL and SYSENTER entry points of the running CPU.
pub fn load() {
    let idt = IDT.call_once(|| {
        let stubs = core::ptr::addr_of!(vector_stubs) as u64;
        core::array::from_fn(|v| {
            let dpl = if USER_VECTORS.contains(&v) { 3 } else { 0 };
            let ist = match v {
                1 => ist::DB,
                2 => ist::NMI,
                8 => ist::DF,
                18 => ist::MC,
                _ => 0,
            };
            gate(stubs + v as u64 * STUB_SIZE, dpl, ist)
        })
    });
    let idtr = TablePointer { limit: size_of::<[Gate; 256]>() as u16 - 1, base: idt.as_ptr() as u64 };
    // SAFETY: the table holds valid gates and lives for ever.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &idtr, options(readonly, nostack, preserves_flags)) };
    load_syscall_msrs();
    // Now that there is a handler: without this bit a machine check resets the machine without a word.
    if cpu::cpuid(1, 0)[3] & CPUID_MCE != 0 {
        // SAFETY: the CPU has the bit, and the handler and its stack are in place.
        unsafe { cpu::write_cr4(cpu::read_cr4() | cr::CR4_MCE) };
    }
}

/// CPUID leaf 1, EDX: machine-check exceptions.
const CPUID_MCE: u32 = 1 << 7;

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

fn load_syscall_msrs() {
    let info = percpu::this_cpu();
    let frame_end = core::ptr::from_ref(info) as u64 + FRAME_END as u64;
    let base = mem::layout::SYSCALL_STUBS + u64::from(info.cpu) * PAGE_SIZE as u64;
    let page = mem::frames::alloc_zeroed().expect("memory for a CPU's entry code");
    mem::vmap::map_at(base, &[page], mem::paging::EXECUTE).expect("memory for a CPU's entry code");
    for (offset, target) in [(0usize, syscall_entry_64 as *const () as u64), (64, syscall_entry_32 as *const () as u64)]
    {
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
        if cpu::cpuid(1, 0)[3] & (1 << 11) != 0 {
            cpu::wrmsr(msr::IA32_SYSENTER_CS, u64::from(HYPERVISOR_CS));
            cpu::wrmsr(msr::IA32_SYSENTER_ESP, frame_end);
            cpu::wrmsr(msr::IA32_SYSENTER_EIP, sysenter_entry as *const () as u64);
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
