//! Parts of devices that a domain may use. The control domain gives and takes what it has itself, and nothing else:
//! what the hypervisor keeps from it, as the ports of PCI configuration space, would be anybody's otherwise.

use super::{shadow, Request};
use crate::channel;
use crate::domain::iospace::LAST_PORT;
use crate::domain::passthrough::{self, Registers};
use crate::domain::{withdrawal, Domain};
use crate::hypercall::{Done, Outcome};
use crate::twin;
use x86::Mfn;
use xen_abi::domctl as op;
use xen_abi::errno::Errno;

/// Permits or forbids a physical interrupt. EPERM: the caller has it not; EXDEV for a domain whose writes are logged;
/// ERESTART.
pub(super) fn irq(r: &Request) -> Outcome {
    let request: op::IrqPermission = r.read()?;
    let d = r.target()?;
    let allow = request.allow_access != 0;
    if !r.cx.domain().io.allows_irq(request.pirq) {
        return Err(Errno::EPERM);
    }
    let _not_logged = allow.then(|| shadow::keep_off(&d)).transpose()?;
    d.io.set_irq(request.pirq, allow)?;
    Ok(Done::Return(0))
}

/// A domain may use these registers from now on, or may not any more. EPERM: the caller, `by`, has not all of them;
/// EBUSY: they are another domain's device's; EXDEV: its writes are logged; ERESTART. Who loses those of its only
/// device is about to lose that.
fn registers(by: &Domain, d: &Domain, registers: Registers, allow: bool) -> Result<(), Errno> {
    let are_the_callers = match registers {
        Registers::Frames(first, last) => by.io.owns_frames(first, last),
        Registers::Ports(first, last) => by.io.owns_ports(first, last),
    };
    if !are_the_callers {
        return Err(Errno::EPERM);
    }
    let _not_logged = allow.then(|| shadow::keep_off(d)).transpose()?;
    match allow {
        true if passthrough::has_others(d, registers) => return Err(Errno::EBUSY),
        false if passthrough::has_only(d, registers) => channel::lose_only_device(d),
        _ => {}
    }
    match registers {
        Registers::Frames(first, last) => d.io.set_frames(first, last, allow),
        Registers::Ports(first, last) => d.io.set_ports(first, last, allow),
    }
}

/// Permits or forbids I/O frames. What is forbidden the domain has mapped nowhere when it runs next. EINVAL for a range
/// that wraps; EPERM for what the caller has not; EBUSY for the registers of another domain's device; EXDEV for a
/// domain whose writes are logged; ERESTART.
pub(super) fn iomem(r: &Request) -> Outcome {
    let request: op::IomemPermission = r.read()?;
    let last = request.nr_mfns.checked_sub(1).and_then(|n| request.first_mfn.checked_add(n)).ok_or(Errno::EINVAL)?;
    let frames = Registers::Frames(Mfn::new(request.first_mfn), Mfn::new(last));
    let d = r.target()?;
    registers(r.cx.domain(), &d, frames, request.allow_access != 0)?;
    // In this order: one that does not run gets no twin.
    if d.io.withdrawn.is_due() && (!withdrawal::can_wait(&d) || twin::has_any(&d)) {
        withdrawal::finish(&d)?;
    }
    Ok(Done::Return(0))
}

/// Permits or forbids I/O ports. EINVAL for ports beyond 65535; EPERM for what the caller has not; EBUSY for those of
/// another domain's device; EXDEV for a domain whose writes are logged; ERESTART.
pub(super) fn ioport(r: &Request) -> Outcome {
    let request: op::IoportPermission = r.read()?;
    let last = request.nr_ports.checked_sub(1).and_then(|n| request.first_port.checked_add(n));
    let last = last.filter(|&last| last <= LAST_PORT).ok_or(Errno::EINVAL)?;
    let ports = Registers::Ports(request.first_port, last);
    registers(r.cx.domain(), &*r.target()?, ports, request.allow_access != 0)?;
    Ok(Done::Return(0))
}
