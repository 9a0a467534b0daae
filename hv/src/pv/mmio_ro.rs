//! Writes of a guest kernel to I/O memory that it may only read, because the hypervisor watches it: PCI configuration
//! space in memory, MSI-X tables, and registers of network interfaces whose links are kept. And to what is where such
//! memory was.

use crate::arch::acpi;
use crate::arch::pci::{self, Width};
use crate::domain::memory::mmu_env::mmu;
use crate::domain::passthrough::link::{self, Registers};
use crate::domain::vcpu::OwnedVcpu;
use crate::domain::{passthrough, Domain};
use crate::mem::device_frames;
use crate::pv::emulate;
use hv_core::emul::memory_write::MemoryWrite;
use hv_core::emul::Mode;
use hv_core::mmu::{MmuError, PtMem};
use x86::{MachAddr, Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::errno::Errno;
use xen_abi::regs::CpuUserRegs;

/// Watches all configuration space in memory.
pub fn init() -> Result<(), Errno> {
    for range in &acpi::tables().ecam {
        let Some((first, last)) = range.span() else { continue };
        device_frames::watch(Mfn::containing(MachAddr::new(first)), Mfn::containing(MachAddr::new(last)))?;
    }
    Ok(())
}

/// A write fault at `address` on a present page in kernel mode. Whether it was a write to watched I/O memory: then it
/// is done, as far as it is allowed.
#[cold]
pub fn handle(v: &OwnedVcpu, regs: &mut CpuUserRegs, address: u64) -> bool {
    if !v.domain().io.has_io() {
        return false;
    }
    let Some(va) = VirtAddr::new(address) else { return false };
    let Some(entry) = read_only(v, va) else { return false };
    let frame = entry.mfn();
    // In this order: another CPU may have the driver begin in between, and then this write is done all the same.
    let registers = link::registers(v.domain(), frame);
    let is_absent = v.domain().io.withdrawn.absent() == Some(frame);
    if !is_absent && !matches!(registers, Registers::Held(_)) && !device_frames::is_watched(frame) {
        return registers == Registers::Free && free(v, va, entry);
    }
    let fetched = emulate::fetch(regs.rip, Mode::Long);
    let Ok(write) = MemoryWrite::decode(regs, &fetched, address, emulate::segment_base) else { return false };
    let offset = (write.addr & (x86::PAGE_SIZE as u64 - 1)) as u16;
    let target = if is_absent { Target::Absent } else { target(frame, registers) };
    let old = if write.reads_memory() { target.read(v.domain(), offset, write.width) } else { 0 };
    let effect = write.evaluate(regs, old);
    if let Some(new) = effect.new {
        target.write(v.domain(), offset, write.width, new);
    }
    if write.retire(regs, &effect) {
        emulate::single_step(v, regs);
    }
    true
}

/// The present entry that maps `va`, if it does not let the guest write.
fn read_only(v: &OwnedVcpu, va: VirtAddr) -> Option<Pte> {
    let lock = v.domain().mm.lock();
    let slot = mmu().l1_slot(v.kernel_root.get(), va, lock.locked()).ok()?;
    Some(mmu().env.read(slot)).filter(|entry| entry.is_present() && !entry.is_writable())
}

/// Lets the guest write by the entry that maps `va`, which was `old`. If something else has changed it the guest tries
/// again.
fn free(v: &OwnedVcpu, va: VirtAddr, old: Pte) -> bool {
    let mm = &v.domain().mm;
    let lock = mm.lock();
    let Ok(slot) = mmu().l1_slot(v.kernel_root.get(), va, lock.locked()) else { return true };
    let done = mmu().ptwr_commit(slot, old, old.with(PteFlags::RW), mm.id, lock.locked());
    matches!(done, Ok(()) | Err(MmuError::Changed))
}

/// What is in a frame that is watched.
#[derive(Clone, Copy)]
enum Target {
    /// Configuration space of this function.
    Config(pci::Sbdf),
    /// Registers of this function, whose link is kept.
    Registers(pci::Sbdf),
    /// A table of messages, or nothing.
    Table,
    /// Registers that were withdrawn.
    Absent,
}

fn target(frame: Mfn, registers: Registers) -> Target {
    match (config_function(frame), registers) {
        (Some(at), _) => Target::Config(at),
        (None, Registers::Held(at)) => Target::Registers(at),
        (None, _) => Target::Table,
    }
}

impl Target {
    fn read(&self, d: &Domain, offset: u16, width: u8) -> u64 {
        match *self {
            Self::Config(at) => read(at, offset, width),
            Self::Registers(at) => link::read(at, d, offset).into(),
            Self::Table => 0,
            Self::Absent => u64::MAX,
        }
    }

    /// Registers are of 4 bytes; what is written to others, or to parts of them, goes nowhere.
    fn write(&self, d: &Domain, offset: u16, width: u8, value: u64) {
        match (*self, width) {
            (Self::Config(at), _) => write_config(at, offset, width, value),
            (Self::Registers(at), 4) => link::write(at, d, offset, value as u32),
            (Self::Registers(_), _) | (Self::Table | Self::Absent, _) => {}
        }
    }
}

/// The function whose configuration space is in `frame`.
fn config_function(frame: Mfn) -> Option<pci::Sbdf> {
    acpi::tables().ecam.iter().find_map(|range| range.function_at(frame.addr().raw()))
}

fn read(at: pci::Sbdf, offset: u16, width: u8) -> u64 {
    match width {
        8 => u64::from(pci::read32(at, offset)) | u64::from(pci::read32(at, offset + 4)) << 32,
        _ => pci::read(at, offset, Width::of(width)).into(),
    }
}

/// Writes `width` (1, 2, 4 or 8) bytes of configuration space, as far as the domain may change them.
pub fn write_config(at: pci::Sbdf, offset: u16, width: u8, value: u64) {
    if width == 8 {
        write_config(at, offset, 4, value & 0xffff_ffff);
        return write_config(at, offset + 4, 4, value >> 32);
    }
    passthrough::write_config(at, offset, width, value as u32);
}
