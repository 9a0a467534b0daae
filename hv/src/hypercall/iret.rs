//! `iret`: the guest kernel's way back to what it interrupted.

use super::{Caller, Done, GuestPtr, Outcome};
use crate::pv::mode;
use crate::pv::TRAP_SYSCALL;
use hv_core::bounce;

/// Its row of the table, for entry.S, which has a shorter way for the usual case.
pub const NUMBER: u64 = 23;

/// Loads registers, mode and event mask from the nine words at the guest's stack pointer. Never returns to its caller.
/// A bad frame or a switch to a user mode without page tables crashes the domain. Source: public/arch-x86/xen-x86_64.h.
#[inline]
pub fn call(cx: &mut Caller) -> Outcome {
    let v = cx.vcpu;
    let Ok(frame) = GuestPtr::<[u64; bounce::IRET_WORDS]>::new(cx.regs.rsp).read() else {
        crate::domain::life::crash(v, cx.regs, format_args!("iret: the frame at {:#x} is not readable", cx.regs.rsp));
        return Ok(Done::NoReturn);
    };
    let iret = bounce::iret(cx.regs, &frame);
    if iret.to_user && !mode::leave_kernel(v) {
        crate::domain::life::crash(v, cx.regs, format_args!("iret: to user mode without a user page table"));
        return Ok(Done::NoReturn);
    }
    if v.domain().has_architectural_iopl() {
        v.iopl.set(iret.iopl);
    }
    v.nmi_masked.set(false);
    v.set_events_masked(iret.upcall_mask != 0);
    cx.regs.entry_vector = if iret.full { 0 } else { TRAP_SYSCALL };
    Ok(Done::NoReturn)
}
