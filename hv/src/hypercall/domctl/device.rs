//! PCI functions of domains.

use super::{shadow, Request, OK};
use crate::arch::pci::Sbdf;
use crate::channel;
use crate::domain::passthrough::{self, Party};
use crate::hypercall::{GuestPtr, Outcome};
use xen_abi::domctl as op;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;

/// Flags of an assignment: about memory that the firmware reserves, which is refused in any case.
const KNOWN_FLAGS: u32 = 1;

fn function(request: &op::AssignDevice) -> Result<Sbdf, Errno> {
    if request.dev != op::DEV_PCI {
        return Err(Errno::ENODEV);
    }
    if request.flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Sbdf::from_machine(request.machine_sbdf))
}

/// The domain that the request names; that of I/O memory stands for none.
fn party(r: &Request) -> Result<Party, Errno> {
    Ok(if r.head.domain == DomId::IO.0 { Party::Nobody } else { Party::Domain(r.other()?) })
}

/// Gives a function to a domain, or puts it aside. Errors: ENODEV for a function that does not exist; EBUSY for another
/// domain's; EOPNOTSUPP without an IOMMU, for a function that none of its units translates, or for a domain not created
/// for devices; EINVAL for bridges; EPERM for functions that cannot be
/// confined; EXDEV for a domain whose writes are logged; ERESTART.
pub(super) fn assign(r: &Request) -> Outcome {
    let (at, to) = (function(&r.read()?)?, party(r)?);
    match &to {
        Party::Nobody => passthrough::assign(at, &to)?,
        Party::Domain(d) => {
            let not_logged = shadow::keep_off(d)?;
            passthrough::assign(at, &to)?;
            // Locks of channels come before that.
            drop(not_logged);
            // By its back end it finds this one, too.
            channel::pci::forget(d);
        }
    }
    OK
}

/// Whether [`assign`] would succeed.
pub(super) fn test(r: &Request) -> Outcome {
    passthrough::test(function(&r.read()?)?, &party(r)?)?;
    OK
}

/// Takes a function from a domain and puts it aside; from there, gives it back to the hardware domain. ENODEV: the
/// domain does not have it.
pub(super) fn deassign(r: &Request) -> Outcome {
    let (at, from) = (function(&r.read()?)?, party(r)?);
    // Who asks for what the domain does not have takes nothing from it.
    passthrough::check_return(at, &from)?;
    if let Party::Domain(d) = &from {
        channel::pci::forget(d);
        channel::disk::lose_device(d)?;
        if passthrough::nr_functions(d) == 1 {
            channel::lose_only_device(d);
        }
    }
    passthrough::deassign(at, &from)?;
    OK
}

/// Names the domain's other functions whose accesses to memory cannot be told from those of this one.
pub(super) fn group(r: &Request) -> Outcome {
    let mut request: op::GetDeviceGroup = r.read()?;
    let domain = r.target()?;
    let found = passthrough::group(Sbdf::from_machine(request.machine_sbdf), &domain);
    let list = GuestPtr::<u32>::new(request.sdev_array);
    request.num_sdevs = 0;
    for (n, at) in (0..request.max_sdevs).zip(found) {
        list.at(n.into())?.write(&at.to_machine())?;
        request.num_sdevs = n + 1;
    }
    r.answer(&request)
}
