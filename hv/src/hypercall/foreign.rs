//! Domain ids in arguments: the caller, another domain, or the owner of I/O memory.

use super::Caller;
use crate::domain::{self, Domain, DomainRef};
use core::ops::Deref;
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, DOMID_SELF};

/// The domain that a call is about.
pub enum Target {
    /// The caller.
    Caller(&'static Domain),
    /// Another, over which the caller has power.
    Other(DomainRef),
}

impl Deref for Target {
    type Target = Domain;
    #[inline(always)]
    fn deref(&self) -> &Domain {
        match self {
            Self::Caller(d) => d,
            Self::Other(d) => d,
        }
    }
}

/// The domain `id` as the target of a privileged caller, or the caller itself. Errors, in Xen's order: ESRCH; EPERM.
#[inline]
pub fn target(cx: &Caller, id: u16) -> Result<Target, Errno> {
    if id == DOMID_SELF || id == cx.domain().id {
        return Ok(Target::Caller(cx.vcpu.domain()));
    }
    let other = domain::find(id).ok_or(Errno::ESRCH)?;
    cx.require_privilege()?;
    Ok(Target::Other(other))
}

/// Whose frames a call may name. [`DomId::IO`] stands for I/O memory that the caller may map. Errors: EPERM; ESRCH.
#[inline]
pub fn frame_owner(cx: &Caller, id: u16) -> Result<DomId, Errno> {
    match DomId(id) {
        DomId::SELF => Ok(cx.domain().mm.id),
        DomId::IO => Ok(DomId::IO),
        DomId::XEN => cx.require_privilege().map(|()| DomId::XEN),
        _ => target(cx, id).map(|d| d.mm.id),
    }
}
