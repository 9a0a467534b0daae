//! Writes of a guest kernel to I/O memory that it may only read, because the hypervisor watches it: PCI configuration
//! space in memory, and MSI-X tables.

use crate::arch::acpi;
use crate::arch::pci::{self, Width};
use crate::domain::memory::mmu_env::mmu;
use crate::domain::passthrough;
use crate::domain::vcpu::OwnedVcpu;
use crate::mem::device_frames;
use crate::pv::emulate;
use hv_core::emul::memory_write::MemoryWrite;
use hv_core::emul::Mode;
use hv_core::mmu::PtMem;
use x86::{MachAddr, Mfn, VirtAddr};
use xen_abi::errno::Errno;
use xen_abi::regs::CpuUserRegs;

/// Frames of one bus's configuration space: 256 functions of 4 KiB.
const FRAMES_PER_BUS: u64 = 256;

/// Watches all configuration space in memory.
pub fn init() -> Result<(), Errno> {
    for range in &acpi::tables().ecam {
        let first = Mfn::containing(MachAddr::new(range.addr));
        let buses = u64::from(range.last_bus.saturating_sub(range.first_bus)) + 1;
        device_frames::watch(first, first.add(buses * FRAMES_PER_BUS - 1))?;
    }
    Ok(())
}

/// A write fault at `address` on a present page in kernel mode. Whether it was a write to watched I/O memory: then it is
/// done, as far as it is allowed.
#[cold]
pub fn handle(v: &OwnedVcpu, regs: &mut CpuUserRegs, address: u64) -> bool {
    if !v.domain().io.has_io() {
        return false;
    }
    let Some(va) = VirtAddr::new(address) else { return false };
    let frame = {
        let lock = v.domain().mm.lock();
        let Ok(slot) = mmu().l1_slot(v.kernel_root.get(), va, lock.locked()) else { return false };
        let entry = mmu().env.read(slot);
        if !entry.is_present() || entry.is_writable() || !device_frames::is_watched(entry.mfn()) {
            return false;
        }
        entry.mfn()
    };
    let fetched = emulate::fetch(regs.rip, Mode::Long);
    let Ok(write) = MemoryWrite::decode(regs, &fetched, address, emulate::segment_base) else { return false };
    let offset = (write.addr & (x86::PAGE_SIZE as u64 - 1)) as u16;
    let target = config_function(frame);
    let old = if write.reads_memory() { target.map_or(0, |at| read(at, offset, write.width)) } else { 0 };
    let effect = write.evaluate(regs, old);
    if let (Some(at), Some(new)) = (target, effect.new) {
        write_config(at, offset, write.width, new);
    }
    if write.retire(regs, &effect) {
        emulate::single_step(v, regs);
    }
    true
}

/// The function whose configuration space is in `frame`.
fn config_function(frame: Mfn) -> Option<pci::Sbdf> {
    acpi::tables().ecam.iter().find_map(|range| {
        let index = frame.raw().checked_sub(Mfn::containing(MachAddr::new(range.addr)).raw())?;
        let bus = u64::from(range.first_bus) + index / FRAMES_PER_BUS;
        if bus > range.last_bus.into() {
            return None;
        }
        Some(pci::Sbdf::new(range.segment, bus as u8, (index % FRAMES_PER_BUS) as u8))
    })
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
