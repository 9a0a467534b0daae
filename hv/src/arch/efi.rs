//! Calls of UEFI's run-time services.
//!
//! The firmware's code runs at ring 0 at its machine addresses, in an address space of its own: the hypervisor's half
//! as everywhere, and below it what the firmware says it needs, with the rights that it says. A fault in it does not
//! bring the hypervisor down: the call ends there, and no other is made, because nobody knows in what state its data
//! is. It cannot be kept from writing to the hypervisor's half, as it cannot be kept from that in its system management
//! mode.

use crate::arch::fpu::{self, FpuArea};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, cr};
use crate::mem::{self, device_frames, frames, paging, phys_to_virt};
use crate::sync::{Mutex, Once};
use crate::{info, warn};
use alloc::boxed::Box;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use hv_core::efi::{runtime_pieces, Attributes, MemoryMap, Rights, Services, Tables, RUNTIME_CODE, RUNTIME_DATA};
use x86::rflags::DR7_DEFAULT;
use x86::{MachAddr, Mfn, PteFlags};
use xen_abi::regs::CpuUserRegs;

/// Everything that the boot loader and the firmware's tables say.
pub struct Firmware {
    /// The tables' contents.
    pub tables: Tables,
    /// The memory map.
    pub map: MemoryMap,
    /// Rights of the run-time services' pages.
    pub attributes: Attributes,
}

/// A call failed: there are no run-time services, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

/// What a service answers: zero, or an error with the highest bit set.
pub type Status = u64;
/// It was stopped in the middle.
pub const ABORTED: Status = 1 << 63 | 21;

static FIRMWARE: Once<Box<Firmware>> = Once::new();
/// The address space of the calls.
static ROOT: Once<Mfn> = Once::new();
/// A call has faulted.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);
/// One call at a time.
static CALLS: Mutex<()> = Mutex::new(());
/// The CPU that makes a call, plus one; 0 while none does.
static CALLER: AtomicU32 = AtomicU32::new(0);
/// Its stack pointer before the call.
static CALLER_STACK: AtomicU64 = AtomicU64::new(0);

/// What the firmware told, if it is UEFI.
pub fn firmware() -> Option<&'static Firmware> {
    FIRMWARE.get().map(|firmware| &**firmware)
}

/// The run-time services, if they can be called.
pub fn services() -> Option<&'static Services> {
    ROOT.get().filter(|_| !IS_BROKEN.load(Ordering::Relaxed))?;
    firmware()?.tables.services.as_ref()
}

/// Takes what the loader told and makes the address space of the calls.
pub fn init(firmware: Option<Box<Firmware>>) {
    let Some(firmware) = firmware else { return };
    let firmware = FIRMWARE.call_once(|| firmware);
    let name = firmware.tables.vendor.iter().take_while(|&&c| c != 0);
    let name: alloc::string::String = name.map(|&c| char::from_u32(c.into()).unwrap_or('?')).collect();
    let revision = firmware.tables.revision;
    info!("EFI {}.{} by {name}", revision >> 16, (revision & 0xffff) / 10);
    if firmware.map.is_cut() {
        warn!("The EFI memory map is too long: no run-time services");
        return;
    }
    if firmware.tables.services.is_none() {
        warn!("EFI has no run-time services");
        return;
    }
    // Domain 0 reads the tables there, and must not write what runs at ring 0.
    for region in firmware.map.iter().filter(|r| matches!(r.kind, RUNTIME_CODE | RUNTIME_DATA)) {
        let frame = |addr| Mfn::containing(MachAddr::new(addr));
        let _ = device_frames::watch(frame(region.start), frame(region.range().end - 1));
    }
    match address_space(firmware) {
        Some(root) => {
            ROOT.call_once(|| root);
        }
        None => warn!("No memory for EFI's run-time services"),
    }
}

fn address_space(firmware: &Firmware) -> Option<Mfn> {
    use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};
    let root = frames::alloc_table()?;
    let slot = |va: u64| (va >> 39 & 0x1ff) as usize;
    for n in slot(HYPERVISOR_VIRT_START)..slot(HYPERVISOR_VIRT_END) {
        // SAFETY: the frame is a new page of ours, and n is below 512.
        unsafe { phys_to_virt(root.addr()).cast::<u64>().add(n).write(mem::l4_entry(n).0) };
    }
    let space = paging::Tables::new(root, false);
    for (range, rights) in runtime_pieces(&firmware.map, &firmware.attributes) {
        // Addresses of the lower half only; nothing else is mapped there.
        if range.end > 1 << 47 {
            continue;
        }
        let bytes = range.end - range.start;
        space.map(range.start, range.start, bytes, flags(rights), &mut frames::alloc_table)?;
    }
    Some(root)
}

/// Never global: the guests have these addresses too.
fn flags(rights: Rights) -> PteFlags {
    let mut flags = paging::READ_ONLY.difference(PteFlags::G);
    if rights.write {
        flags |= PteFlags::RW;
    }
    if rights.execute {
        flags = flags.difference(PteFlags::NX);
    }
    if !rights.cache {
        flags |= PteFlags::PCD | PteFlags::PWT;
    }
    flags
}

// Calls a function by the calling convention of UEFI on x86-64: rcx, rdx, r8, r9, the rest on the stack above 32 bytes
// that are the function's. Entered with rdi = function, rsi = five arguments, rdx = where the stack pointer goes.
// Leaves with rax = status. All registers that this side's functions preserve lie on the stack, for the other end may
// be reached by way of a fault: then `recover` sets the stack pointer to where it was and continues at
// efi_call_faulted.
global_asm!(
    ".global efi_call",
    "efi_call:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 40",
    "mov [rdx], rsp",
    "mov rax, rdi",
    "mov r10, [rsi + 32]",
    "mov [rsp + 32], r10",
    "mov rcx, [rsi]",
    "mov rdx, [rsi + 8]",
    "mov r8, [rsi + 16]",
    "mov r9, [rsi + 24]",
    "call rax",
    // Flags are as everywhere in the hypervisor again, interrupts off, whatever the firmware left.
    "2: push {flags}",
    "popfq",
    "add rsp, 40",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".global efi_call_faulted",
    "efi_call_faulted:",
    "movabs rax, {aborted}",
    "jmp 2b",
    aborted = const ABORTED,
    flags = const x86::rflags::Rflags::FIXED.bits(),
);

extern "C" {
    fn efi_call(function: u64, arguments: *const [u64; 5], stack: *mut u64) -> Status;
    fn efi_call_faulted();
}

/// Calls `function`, one of [`services`], and gives its status. `fpu`: of the vCPU that runs here, whose registers the
/// firmware may use.
///
/// # Safety
/// 1. `arguments` are what the service expects; where it expects pointers they lead to memory of the hypervisor's that
///    is as large as it expects.
pub unsafe fn call(fpu: &FpuArea, function: u64, arguments: [u64; 5]) -> Result<Status, Unavailable> {
    let _only_one = CALLS.lock();
    let root = *ROOT.get().filter(|_| !IS_BROKEN.load(Ordering::Relaxed)).ok_or(Unavailable)?;
    let cr0 = cpu::read_cr0();
    cpu::clts();
    fpu.save();
    fpu::set_initial();
    let before = cpu::read_cr3();
    let breakpoints = cpu::read_dr7();
    CALLER.store(this_cpu().cpu + 1, Ordering::SeqCst);
    // SAFETY: the root has the hypervisor's slots; (1); interrupts are off; a fault comes back here. The firmware is at
    // addresses at which guests may have breakpoints, so none is armed meanwhile: one on an instruction is a fault,
    // which would come again and again at ring 0. What is armed afterwards is what was.
    let status = unsafe {
        cpu::write_dr7(DR7_DEFAULT);
        cpu::write_cr3(root.addr().raw());
        let status = efi_call(function, &arguments, CALLER_STACK.as_ptr());
        cpu::write_cr3(before);
        cpu::write_dr7(breakpoints);
        status
    };
    CALLER.store(0, Ordering::SeqCst);
    fpu.load();
    if cr0 & cr::CR0_TS != 0 {
        cpu::stts();
    }
    if IS_BROKEN.load(Ordering::Relaxed) {
        return Err(Unavailable);
    }
    Ok(status)
}

/// An exception at ring 0. Whether it was in the firmware: then the call ends, with `regs` at its end.
#[cold]
pub fn recover(regs: &mut CpuUserRegs, cr2: u64) -> bool {
    if CALLER.load(Ordering::SeqCst) != this_cpu().cpu + 1 || mem::text().contains(&regs.rip) {
        return false;
    }
    IS_BROKEN.store(true, Ordering::Relaxed);
    #[allow(clippy::cast_possible_truncation, reason = "the stub stored a vector")]
    let name = x86::vector::name(regs.entry_vector as u8);
    warn!("EFI's run-time services failed ({name} at {:#x}, cr2 {cr2:#x}): they are not called any more", regs.rip);
    regs.rip = efi_call_faulted as *const () as u64;
    regs.rsp = CALLER_STACK.load(Ordering::SeqCst);
    regs.rflags = x86::rflags::Rflags::FIXED.bits();
    true
}
