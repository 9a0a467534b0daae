//! CPUID policies of domains.

use super::{Outcome, Request, OK};
use crate::arch::cpu_policy::policies;
use crate::hypercall::{sysctl, GuestPtr};
use hv_core::cpuid::{Policy, PolicyError};
use xen_abi::domctl::{CpuPolicy, CpuidLeaf, MsrEntry};
use xen_abi::errno::Errno;

/// What an error report says where nothing was objected to.
const NOTHING: u32 = !0;

/// Sets the policy of a domain from lists of leaves and MSRs: on top of what it has, and never more than the machine's
/// maximum. Errors: E2BIG for lists that cannot be right; ERANGE for a leaf or MSR that no policy has, and EINVAL for a
/// value that is not allowed, both of which are named in the answer.
pub fn set(r: &Request<'_, '_>) -> Outcome {
    let domain = r.other()?;
    let mut request: CpuPolicy = r.read()?;
    if request.nr_leaves as usize > Policy::MAX_LEAVES || request.nr_msrs as usize > Policy::MAX_MSRS {
        return Err(Errno::E2BIG);
    }
    (request.err_leaf, request.err_subleaf, request.err_msr) = (NOTHING, NOTHING, NOTHING);
    let mut policy = domain.cpu_policy.read().clone();
    let refused = match take(&mut policy, &request)? {
        Ok(()) => policy.finish(&policies().pv_max).err().map(|e| (e, Errno::EINVAL)),
        Err(e) => Some((e, Errno::ERANGE)),
    };
    let Some((error, errno)) = refused else {
        *domain.cpu_policy.write() = policy;
        return OK;
    };
    match error {
        PolicyError::Leaf { leaf, subleaf } => (request.err_leaf, request.err_subleaf) = (leaf, subleaf),
        PolicyError::Msr(index) => request.err_msr = index,
    }
    r.answer(&request)?;
    Err(errno)
}

/// Copies the lists in. The outer error is the guest's memory, the inner one what a policy cannot have.
fn take(policy: &mut Policy, request: &CpuPolicy) -> Result<Result<(), PolicyError>, Errno> {
    let (leaves, msrs) = (GuestPtr::<CpuidLeaf>::new(request.leaves), GuestPtr::<MsrEntry>::new(request.msrs));
    for i in 0..request.nr_leaves {
        if let Err(e) = policy.set_leaf(&leaves.at(i.into())?.read()?) {
            return Ok(Err(e));
        }
    }
    for i in 0..request.nr_msrs {
        if let Err(e) = policy.set_msr(&msrs.at(i.into())?.read()?) {
            return Ok(Err(e));
        }
    }
    Ok(Ok(()))
}

/// Copies the policy of a domain out. Errors: ENOBUFS if there is not enough room.
pub fn get(r: &Request<'_, '_>) -> Outcome {
    let domain = r.target()?;
    let mut request: CpuPolicy = r.read()?;
    let policy = domain.cpu_policy.read().clone();
    (request.nr_leaves, request.nr_msrs) =
        sysctl::copy_policy(&policy, request.leaves, request.nr_leaves, request.msrs, request.nr_msrs)?;
    r.answer(&request)
}
