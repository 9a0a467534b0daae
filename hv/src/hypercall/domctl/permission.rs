//! Parts of devices that a domain may use.

use super::Request;
use crate::domain::passthrough;
use crate::hypercall::{Done, Outcome};
use x86::Mfn;
use xen_abi::domctl as op;
use xen_abi::errno::Errno;

/// Permits or forbids a physical interrupt.
pub(super) fn irq(r: &Request) -> Outcome {
    let request: op::IrqPermission = r.read()?;
    r.target()?.io.set_irq(request.pirq, request.allow_access != 0)?;
    Ok(Done::Return(0))
}

/// Permits or forbids I/O frames. EINVAL for a range that wraps; EBUSY for the registers of another domain's device.
pub(super) fn iomem(r: &Request) -> Outcome {
    let request: op::IomemPermission = r.read()?;
    let last = request.nr_mfns.checked_sub(1).and_then(|n| request.first_mfn.checked_add(n)).ok_or(Errno::EINVAL)?;
    let (d, first, last) = (r.target()?, Mfn::new(request.first_mfn), Mfn::new(last));
    let allow = request.allow_access != 0;
    if allow && passthrough::has_others_frames(&d, first, last) {
        return Err(Errno::EBUSY);
    }
    d.io.set_frames(first, last, allow)?;
    Ok(Done::Return(0))
}

/// Permits or forbids I/O ports. EINVAL for ports beyond 65535; EBUSY for those of another domain's device.
pub(super) fn ioport(r: &Request) -> Outcome {
    let request: op::IoportPermission = r.read()?;
    let last = request.nr_ports.checked_sub(1).and_then(|n| request.first_port.checked_add(n)).ok_or(Errno::EINVAL)?;
    let (d, allow) = (r.target()?, request.allow_access != 0);
    if allow && passthrough::has_others_ports(&d, request.first_port, last) {
        return Err(Errno::EBUSY);
    }
    d.io.set_ports(request.first_port, last, allow)?;
    Ok(Done::Return(0))
}
