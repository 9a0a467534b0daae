//! A request of the control domain: read once, answered in place.

use crate::domain::{self, DomainRef};
use crate::hypercall::{Caller, GuestPtr, Outcome, Plain, OK};
use xen_abi::domctl as op;
use xen_abi::errno::Errno;
use xen_abi::layout::DOMID_SELF;

/// A request with its payload still in guest memory.
pub struct Request<'a, 'b> {
    /// Who asks.
    pub cx: &'a mut Caller<'b>,
    /// Where the request is.
    pub at: GuestPtr<op::Domctl>,
    /// Its head.
    pub head: op::Domctl,
}

impl Request<'_, '_> {
    /// Where its payload is. EFAULT if the address wraps.
    pub fn payload<T>(&self) -> Result<GuestPtr<T>, Errno> {
        Ok(GuestPtr::new(self.at.addr().checked_add(op::PAYLOAD_OFFSET as u64).ok_or(Errno::EFAULT)?))
    }
    /// Its payload, read once. EFAULT.
    pub fn read<T: Plain>(&self) -> Result<T, Errno> {
        self.payload::<T>()?.read()
    }
    /// Writes the payload back. EFAULT.
    pub fn answer<T: Plain>(&self, payload: &T) -> Outcome {
        self.payload::<T>()?.write(payload)?;
        OK
    }
    /// The domain that the request names.
    pub fn target(&self) -> Result<DomainRef, Errno> {
        let id = if self.head.domain == DOMID_SELF { self.cx.domain().id } else { self.head.domain };
        domain::find(id).ok_or(Errno::ESRCH)
    }
    /// The same, but not the caller itself.
    pub fn other(&self) -> Result<DomainRef, Errno> {
        let d = self.target()?;
        if d.id == self.cx.domain().id {
            return Err(Errno::EINVAL);
        }
        Ok(d)
    }
}
