//! `physdev_op`: interrupts and devices of the machine, for the domains that may use them.

use super::{Caller, GuestPtr, Outcome, OK};
use crate::arch::pci::{self, Sbdf};
use crate::arch::{ioapic, tsc};
use crate::domain::ports::GuestPage;
use crate::domain::vcpu::IoBitmap;
use crate::domain::{self, passthrough};
use crate::iommu::remap;
use crate::mem::guest_ptr::plain;
use crate::{irq, warn};
use hv_core::pirq::Wire;
use xen_abi::errno::Errno;
use xen_abi::layout::DOMID_SELF;
use xen_abi::physdev as op;

plain!(
    op::PhysdevEoi,
    op::PhysdevPirqEoiGmfn,
    op::PhysdevIrqStatusQuery,
    op::PhysdevSetIopl,
    op::PhysdevSetIobitmap,
    op::PhysdevApic,
    op::PhysdevIrq,
    op::PhysdevMapPirq,
    op::PhysdevUnmapPirq,
    op::PhysdevManagePci,
    op::PhysdevManagePciExt,
    op::PhysdevSetupGsi,
    op::PhysdevGetFreePirq,
    op::PhysdevPciMmcfgReserved,
    op::PhysdevPciDeviceAdd,
    op::PhysdevPciDevice,
    op::PhysdevDbgpOp,
);

/// In `pirq` arguments: any.
const ANY: u32 = u32::MAX;

/// PHYSDEVOP_*. Errors: EFAULT; EPERM for all but the hardware domain where the machine as a whole is concerned, and
/// for interrupts that were not permitted, or messages of a device that the domain does not own; EINVAL for numbers
/// that do not exist, and for a domain that has gone; ENODEV for devices that do not; EBUSY for removing a device that
/// a domain has, or a bridge that leads to one, which is forgotten when that domain has given it up; EPERM for removing
/// one that the hypervisor drives; ESRCH for domains that do not exist and for pirqs that another domain does not have;
/// ENOMEM; ENOSYS for unknown commands. Source: public/physdev.h.
#[inline]
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    let d = cx.domain();
    match cmd {
        op::PHYSDEVOP_EOI => {
            let r: op::PhysdevEoi = arg.cast().read()?;
            // Without a pirq there is nothing to end, nor to unmap: that needs no table of them.
            let unmask = irq::guest::lock().eoi(d.id, r.irq, tsc::now_ns())?;
            if let Some(port) = unmask {
                d.events.lock().unmask(d, port)?;
            }
            OK
        }
        op::PHYSDEVOP_SET_IOPL => {
            let r: op::PhysdevSetIopl = arg.cast().read()?;
            let iopl = u8::try_from(r.iopl).ok().filter(|i| *i <= 3).ok_or(Errno::EINVAL)?;
            cx.vcpu.iopl.set(iopl);
            OK
        }
        op::PHYSDEVOP_SET_IOBITMAP => {
            let r: op::PhysdevSetIobitmap = arg.cast().read()?;
            if r.nr_ports > 65536 {
                return Err(Errno::EINVAL);
            }
            cx.vcpu.io_bitmap.set(IoBitmap { address: r.bitmap, nr_ports: r.nr_ports });
            OK
        }
        op::PHYSDEVOP_IRQ_STATUS_QUERY => {
            let mut r: op::PhysdevIrqStatusQuery = arg.cast().read()?;
            r.flags = irq::guest::lock_for(d)?.status(d.id, r.irq)?;
            arg.cast().write(&r)?;
            OK
        }
        op::PHYSDEVOP_PIRQ_EOI_GMFN_V1 | op::PHYSDEVOP_PIRQ_EOI_GMFN_V2 => {
            let r: op::PhysdevPirqEoiGmfn = arg.cast().read()?;
            let auto_unmask = cmd == op::PHYSDEVOP_PIRQ_EOI_GMFN_V1;
            irq::guest::lock_for(d)?.set_eoi_map(d.id, auto_unmask, || GuestPage::take(&d.mm, r.gmfn))?;
            OK
        }
        op::PHYSDEVOP_MAP_PIRQ => {
            let mut r: op::PhysdevMapPirq = arg.cast().read()?;
            // The first message of a function maps its table of messages.
            if !crate::mem::frames::has_headroom() {
                return Err(Errno::ENOMEM);
            }
            r.pirq = map_pirq(cx, &r)?;
            arg.cast().write(&r)?;
            OK
        }
        op::PHYSDEVOP_UNMAP_PIRQ => {
            let r: op::PhysdevUnmapPirq = arg.cast().read()?;
            if r.domid == DOMID_SELF || r.domid == d.id {
                irq::guest::lock().unmap(d.id, r.pirq)?;
            } else {
                let target = domain::find(r.domid).ok_or(Errno::ESRCH)?;
                cx.require_privilege()?;
                // Differs from Xen, which leaves a domain the pirqs of messages until it ends: here they go with the
                // device. Linux keeps its own number of one for ever unless it is told by ESRCH that it is no more.
                irq::guest::lock().unmap(target.id, r.pirq).map_err(|_| Errno::ESRCH)?;
            }
            OK
        }
        op::PHYSDEVOP_GET_FREE_PIRQ => {
            let mut r: op::PhysdevGetFreePirq = arg.cast().read()?;
            r.pirq = irq::guest::lock_for(d)?.free_pirq(d.id)?;
            arg.cast().write(&r)?;
            OK
        }
        _ => machine_op(cx, cmd, arg),
    }
}

/// The commands that concern the machine as a whole.
fn machine_op(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    if !cx.domain().is_hardware {
        return Err(if is_known(cmd) { Errno::EPERM } else { Errno::ENOSYS });
    }
    match cmd {
        op::PHYSDEVOP_SETUP_GSI => {
            let r: op::PhysdevSetupGsi = arg.cast().read()?;
            let wire = Wire { level: r.triggering != 0, active_low: r.polarity != 0 };
            irq::guest::lock().setup_gsi(r.gsi, wire)?;
            OK
        }
        op::PHYSDEVOP_APIC_READ => {
            let mut r: op::PhysdevApic = arg.cast().read()?;
            r.value = read_io_apic(r.apic_physbase, r.reg).ok_or(Errno::EINVAL)?;
            arg.cast().write(&r)?;
            OK
        }
        op::PHYSDEVOP_APIC_WRITE => {
            // Wires are routed by the hypervisor when they are bound; what a kernel writes is not needed.
            let r: op::PhysdevApic = arg.cast().read()?;
            ioapic::read_register(r.apic_physbase, r.reg).map(|_| ()).ok_or(Errno::EINVAL)?;
            OK
        }
        op::PHYSDEVOP_ALLOC_IRQ_VECTOR => {
            // Vectors are the hypervisor's; the interrupt's number serves the kernel as well.
            let mut r: op::PhysdevIrq = arg.cast().read()?;
            if r.irq >= ioapic::gsi_end() {
                return Err(Errno::EINVAL);
            }
            r.vector = r.irq;
            arg.cast().write(&r)?;
            OK
        }
        op::PHYSDEVOP_FREE_IRQ_VECTOR => OK,
        op::PHYSDEVOP_PCI_DEVICE_ADD => {
            let r: op::PhysdevPciDeviceAdd = arg.cast().read()?;
            let at = Sbdf::new(r.seg, r.bus, r.devfn);
            let is_virtual = r.flags & op::XEN_PCI_DEV_VIRTFN != 0;
            passthrough::add(at).inspect_err(|why| {
                if is_virtual && *why == Errno::ENODEV {
                    warn!("{at} is a virtual function, of which nothing here knows what it is: it goes to no domain, and an IOMMU stops it");
                }
            })?;
            OK
        }
        op::PHYSDEVOP_PCI_DEVICE_REMOVE => {
            let r: op::PhysdevPciDevice = arg.cast().read()?;
            passthrough::remove(Sbdf::new(r.seg, r.bus, r.devfn))?;
            OK
        }
        op::PHYSDEVOP_PREPARE_MSIX | op::PHYSDEVOP_RELEASE_MSIX => {
            let r: op::PhysdevPciDevice = arg.cast().read()?;
            known(Sbdf::new(r.seg, r.bus, r.devfn))
        }
        op::PHYSDEVOP_RESTORE_MSI_EXT => {
            let r: op::PhysdevPciDevice = arg.cast().read()?;
            irq::guest::restore_msi(Sbdf::new(r.seg, r.bus, r.devfn));
            OK
        }
        op::PHYSDEVOP_MANAGE_PCI_ADD | op::PHYSDEVOP_MANAGE_PCI_REMOVE | op::PHYSDEVOP_RESTORE_MSI => {
            let r: op::PhysdevManagePci = arg.cast().read()?;
            let at = Sbdf::new(0, r.bus, r.devfn);
            match cmd {
                op::PHYSDEVOP_MANAGE_PCI_ADD => passthrough::add(at)?,
                op::PHYSDEVOP_MANAGE_PCI_REMOVE => passthrough::remove(at)?,
                _ => {
                    irq::guest::restore_msi(at);
                    known(at)?;
                }
            }
            OK
        }
        op::PHYSDEVOP_MANAGE_PCI_ADD_EXT => {
            let r: op::PhysdevManagePciExt = arg.cast().read()?;
            passthrough::add(Sbdf::new(0, r.bus, r.devfn))?;
            OK
        }
        op::PHYSDEVOP_PCI_MMCFG_RESERVED => {
            // The hypervisor found the windows itself.
            let _: op::PhysdevPciMmcfgReserved = arg.cast().read()?;
            OK
        }
        op::PHYSDEVOP_DBGP_OP => {
            let _: op::PhysdevDbgpOp = arg.cast().read()?;
            OK
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// A register of the I/O APIC at `addr`. Where an entry names one of an IOMMU's table the destination is that one's.
fn read_io_apic(addr: u64, register: u32) -> Option<u32> {
    let raw = ioapic::read_register(addr, register)?;
    let remapped = ioapic::gsi_of_destination(addr, register).and_then(remap::destination);
    Some(remapped.map_or(raw, |apic_id| ioapic::Target::cpu(apic_id).high))
}

fn is_known(cmd: u32) -> bool {
    (op::PHYSDEVOP_IRQ_STATUS_QUERY..=op::PHYSDEVOP_RELEASE_MSIX).contains(&cmd)
}

/// Success if the function exists.
fn known(at: Sbdf) -> Outcome {
    pci::function(at).map(|_| ()).ok_or(Errno::ENODEV)?;
    OK
}

fn map_pirq(cx: &Caller, r: &op::PhysdevMapPirq) -> Result<u32, Errno> {
    let caller = cx.domain();
    let other;
    let target = if r.domid == DOMID_SELF || r.domid == caller.id {
        caller
    } else {
        other = domain::find(r.domid).ok_or(Errno::ESRCH)?;
        cx.require_privilege()?;
        &*other
    };
    let wanted = (r.pirq != ANY).then_some(r.pirq);
    match r.kind {
        op::MAP_PIRQ_TYPE_GSI => {
            if !caller.io.allows_irq(r.index) {
                return Err(Errno::EPERM);
            }
            irq::guest::lock_for(target)?.map_gsi(target.id, r.index, wanted)
        }
        op::MAP_PIRQ_TYPE_MSI | op::MAP_PIRQ_TYPE_MSI_SEG => {
            if !caller.is_hardware {
                return Err(Errno::EPERM);
            }
            let segment = if r.kind == op::MAP_PIRQ_TYPE_MSI_SEG { (r.bus >> 16) as u16 } else { 0 };
            let [bus, ..] = r.bus.to_le_bytes();
            let [devfn, ..] = r.devfn.to_le_bytes();
            let entry =
                if r.table_base == 0 { None } else { Some(u16::try_from(r.entry_nr).map_err(|_| Errno::EINVAL)?) };
            irq::guest::map_msi(target, Sbdf::new(segment, bus, devfn), entry, wanted)
        }
        // Several messages of one capability need interrupt remapping; kernels fall back to one.
        op::MAP_PIRQ_TYPE_MULTI_MSI => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
