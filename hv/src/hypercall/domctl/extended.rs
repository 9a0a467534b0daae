//! The parts of a vCPU's state that `vcpu_guest_context` has no room for.

use super::vcpus::hold_to_change;
use super::{Outcome, Request, OK};
use crate::arch::fpu;
use crate::domain::vcpu::Callback;
use crate::domain::Domain;
use crate::hypercall::GuestPtr;
use crate::sched::{self, Held};
use alloc::vec;
use core::sync::atomic::Ordering;
use hv_core::xstate::AREA_SIZE;
use hv_core::{control, msr};
use x86::addr::is_canonical;
use xen_abi::domctl as op;
use xen_abi::domctl::{ExtVcpuContext, VcpuExtState, VcpuMsr, VcpuMsrs};
use xen_abi::errno::Errno;
use xen_abi::layout::FLAT_RING3_CS64;

/// XCR0 and all it ever was, before the area.
const EXTSTATE_HEADER: usize = 16;
/// MSRs that are set at once, while the vCPU waits. Xen saves eight at most.
const MAX_MSRS: u32 = 32;
const IA32_TSC_AUX: u32 = 0xc000_0103;

/// vCPU `id` of `d`, held still. ENOENT if there is none; ERESTART.
fn hold(d: &Domain, id: u32) -> Result<Held<'_>, Errno> {
    sched::hold(d.vcpu(id).ok_or(Errno::ENOENT)?)
}

/// The entry points for system calls of 32-bit programs.
pub(super) fn get_context(r: &Request) -> Outcome {
    let request: ExtVcpuContext = r.read()?;
    let d = r.other()?;
    let v = hold(&d, request.vcpu)?;
    let (syscall32, sysenter) = (v.callbacks.syscall32.get(), v.callbacks.sysenter.get());
    let selector = |c: Callback| if c.address == 0 { 0 } else { FLAT_RING3_CS64 };
    r.answer(&ExtVcpuContext {
        vcpu: v.id,
        size: size_of::<ExtVcpuContext>() as u32,
        syscall32_callback_eip: syscall32.address,
        sysenter_callback_eip: sysenter.address,
        syscall32_callback_cs: selector(syscall32),
        sysenter_callback_cs: selector(sysenter),
        syscall32_disables_events: syscall32.mask_events.into(),
        sysenter_disables_events: sysenter.mask_events.into(),
        ..ExtVcpuContext::default()
    })
}

/// Sets them. There are no virtual machine checks, so what follows them is not looked at. EINVAL for addresses that are
/// not canonical, and for a structure that is too short; EBUSY as for a context.
pub(super) fn set_context(r: &Request) -> Outcome {
    let request: ExtVcpuContext = r.read()?;
    if request.size < op::EXT_VCPUCONTEXT_BASE
        || !is_canonical(request.syscall32_callback_eip)
        || !is_canonical(request.sysenter_callback_eip)
    {
        return Err(Errno::EINVAL);
    }
    let d = r.other()?;
    let v = hold_to_change(&d, request.vcpu)?;
    let callback = |address, mask: u8| Callback { address, mask_events: mask != 0 };
    v.callbacks.syscall32.set(callback(request.syscall32_callback_eip, request.syscall32_disables_events));
    v.callbacks.sysenter.set(callback(request.sysenter_callback_eip, request.sysenter_disables_events));
    OK
}

/// XCR0 and the XSAVE area, as far as components reach that XCR0 has ever had. With a null buffer, or nothing asked
/// for: how large that is. EINVAL for another size.
pub(super) fn get_state(r: &Request) -> Outcome {
    let mut request: VcpuExtState = r.read()?;
    let d = r.other()?;
    let v = hold(&d, request.vcpu)?;
    let mask = fpu::xcr0_mask();
    let bytes = if mask == 0 { 0 } else { EXTSTATE_HEADER + fpu::xsave_bytes(v.fpu.xcr0_accumulated()) };
    if request.buffer == 0 || request.size == 0 && request.xfeature_mask == 0 {
        (request.size, request.xfeature_mask) = (bytes as u64, mask);
        return r.answer(&request);
    }
    if request.size != bytes as u64 || request.xfeature_mask != mask {
        return Err(Errno::EINVAL);
    }
    if bytes != 0 {
        let mut image = vec![0; bytes];
        image[..8].copy_from_slice(&v.fpu.xcr0().to_le_bytes());
        image[8..EXTSTATE_HEADER].copy_from_slice(&v.fpu.xcr0_accumulated().to_le_bytes());
        v.fpu.copy_xsave(&mut image[EXTSTATE_HEADER..]);
        GuestPtr::<u8>::new(request.buffer).write_slice(&image)?;
    }
    r.answer(&request)
}

/// Sets them. EINVAL for a size that cannot be, or components that the domain may not have; EOPNOTSUPP for a compact
/// area; EBUSY as for a context.
pub(super) fn set_state(r: &Request) -> Outcome {
    let request: VcpuExtState = r.read()?;
    let d = r.other()?;
    if fpu::xcr0_mask() == 0 || request.size <= EXTSTATE_HEADER as u64 {
        return if request.size == 0 { OK } else { Err(Errno::EINVAL) };
    }
    let bytes = usize::try_from(request.size).map_err(|_| Errno::EINVAL)?;
    // What another machine's processor has behind the vCPU's components may be in it.
    if bytes > EXTSTATE_HEADER + AREA_SIZE {
        return Err(Errno::EINVAL);
    }
    let mut image = vec![0; bytes];
    GuestPtr::<u8>::new(request.buffer).read_slice(&mut image)?;
    let word = |at: usize| image[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let valid = |xcr0| {
        control::write_xcr0(&d.cpu_policy.read(), xcr0).filter(|x| x & !fpu::xcr0_mask() == 0).ok_or(Errno::EINVAL)
    };
    let (xcr0, accumulated) = (valid(word(0))?, valid(word(8))?);
    if xcr0 & !accumulated != 0 {
        return Err(Errno::EINVAL);
    }
    let v = hold_to_change(&d, request.vcpu)?;
    // SAFETY: both are `valid`: combinations that `control` allows, of components that this machine has.
    unsafe { v.fpu.set_xsave(xcr0, accumulated, &image[EXTSTATE_HEADER..]) }?;
    v.state_changed.store(true, Ordering::Release);
    OK
}

/// The MSRs of a vCPU that are not elsewhere: TSC_AUX. ENOBUFS if there is no room.
pub(super) fn get_msrs(r: &Request) -> Outcome {
    let mut request: VcpuMsrs = r.read()?;
    let d = r.other()?;
    if request.msrs == 0 {
        d.vcpu(request.vcpu).ok_or(Errno::ENOENT)?;
        request.msr_count = 1;
        return r.answer(&request);
    }
    let value = hold(&d, request.vcpu)?.tsc_aux.get();
    let room = request.msr_count;
    request.msr_count = u32::from(value != 0);
    if request.msr_count > room {
        r.answer(&request)?;
        return Err(Errno::ENOBUFS);
    }
    if value != 0 {
        let entry = VcpuMsr { index: IA32_TSC_AUX, reserved: 0, value };
        GuestPtr::<VcpuMsr>::new(request.msrs).write(&entry)?;
    }
    r.answer(&request)
}

/// Sets them. EINVAL for one that a guest does not have, or a value that it cannot have; the answer says which. E2BIG
/// for more than
/// [`MAX_MSRS`]; EBUSY as for a context.
pub(super) fn set_msrs(r: &Request) -> Outcome {
    let mut request: VcpuMsrs = r.read()?;
    let d = r.other()?;
    if request.msr_count > MAX_MSRS {
        return Err(Errno::E2BIG);
    }
    let has_tsc_aux = msr::has_tsc_aux(&d.cpu_policy.read());
    let v = hold_to_change(&d, request.vcpu)?;
    for n in 0..request.msr_count {
        let entry = GuestPtr::<VcpuMsr>::new(request.msrs).at(n.into())?.read()?;
        let fits = entry.reserved == 0 && entry.index == IA32_TSC_AUX && entry.value >> 32 == 0 && has_tsc_aux;
        if !fits {
            request.msr_count = n;
            r.answer(&request)?;
            return Err(Errno::EINVAL);
        }
        v.tsc_aux.set(entry.value);
    }
    v.state_changed.store(true, Ordering::Release);
    OK
}
