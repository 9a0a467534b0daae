//! Entering a guest kernel: exceptions, event upcalls, NMIs and system calls become frames on its stack.

use crate::domain::vcpu::{Callback, OwnedVcpu};
use crate::mem::copy;
use crate::pv::mode;
use crate::pv::TRAP_SYSCALL;
use core::sync::atomic::Ordering;
use hv_core::bounce::{self, Frame, Handler, Origin, Refused};
use x86::vector;
use xen_abi::regs::CpuUserRegs;
use xen_abi::shared::vcpu_info;
use xen_abi::trap::{TI_DPL_MASK, TI_EVENT_MASK};

/// What the frame must tell about the interrupted code.
#[inline]
fn origin(v: &OwnedVcpu) -> Origin {
    Origin {
        kernel_mode: v.kernel_mode.get(),
        kernel_sp: v.kernel_sp.get(),
        upcall_mask: v.upcall_mask(),
        shown_iopl: if v.domain().has_architectural_iopl() { v.iopl.get() } else { 0 },
    }
}

/// Switches to kernel mode, writes the frame and makes `regs` enter `handler`. Failure is fatal for the domain.
#[inline(always)]
fn enter<const N: usize>(
    v: &OwnedVcpu,
    regs: &mut CpuUserRegs,
    frame: Result<Frame<N>, Refused>,
    handler: Handler,
    what: u32,
) {
    let frame = match frame {
        Ok(f) if handler.rip != 0 => f,
        Ok(_) => return unhandled(v, regs, what, "no handler is registered"),
        Err(Refused::NoHandler) => return unhandled(v, regs, what, "no handler is registered"),
        Err(Refused::BadStack(_)) => return unhandled(v, regs, what, "the kernel stack is not in guest memory"),
    };
    if !v.kernel_mode.get() {
        mode::to_kernel(v);
    }
    if copy::push_words(frame.sp, &frame.words).is_err() {
        return unhandled(v, regs, what, "the kernel stack is not writable");
    }
    if handler.mask_events {
        v.set_events_masked(true);
    }
    frame.enter(regs, handler);
    regs.entry_vector = TRAP_SYSCALL;
}

#[cold]
fn unhandled(v: &OwnedVcpu, regs: &CpuUserRegs, what: u32, why: &str) {
    crate::domain::life::crash(v, regs, format_args!("vector {what} cannot be delivered: {why}"));
}

fn trap_handler(v: &OwnedVcpu, vec: u8) -> Handler {
    let t = v.traps[usize::from(vec)].get();
    Handler { rip: t.address, mask_events: t.flags & TI_EVENT_MASK != 0 }
}

impl From<Callback> for Handler {
    fn from(c: Callback) -> Self {
        Handler { rip: c.address, mask_events: c.mask_events }
    }
}

/// Delivers exception `vec`, with `error_code` if the vector has one.
#[inline]
pub fn inject(v: &OwnedVcpu, regs: &mut CpuUserRegs, vec: u8, error_code: u32) {
    let handler = trap_handler(v, vec);
    if vector::has_error_code(vec) {
        let frame = bounce::with_error(regs, origin(v), error_code);
        enter(v, regs, frame, handler, vec.into());
    } else {
        let frame = bounce::plain(regs, origin(v));
        enter(v, regs, frame, handler, vec.into());
    }
}

/// Delivers a page fault at `address`.
#[inline]
pub fn inject_page_fault(v: &OwnedVcpu, regs: &mut CpuUserRegs, address: u64, error_code: u32) {
    v.cr2.set(address);
    v.info_word(vcpu_info::ARCH_CR2).store(address, core::sync::atomic::Ordering::Relaxed);
    let code = bounce::page_fault_error(error_code, v.kernel_mode.get());
    inject(v, regs, vector::PF, code);
}

/// Delivers a software interrupt `vec` (INT n): no error code whatever the vector.
pub fn inject_software(v: &OwnedVcpu, regs: &mut CpuUserRegs, vec: u8) {
    let frame = bounce::plain(regs, origin(v));
    enter(v, regs, frame, trap_handler(v, vec), vec.into());
}

/// May the running code raise `vec` by INT n? The guest kernel counts as ring 1, its user code as ring 3.
pub fn may_raise(v: &OwnedVcpu, vec: u8) -> bool {
    let t = v.traps[usize::from(vec)].get();
    t.address != 0 && (v.kernel_mode.get() || t.flags & TI_DPL_MASK == 3)
}

/// Enters the event callback, which always masks events.
#[inline]
pub fn event_upcall(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    // One instruction: nobody else writes it.
    v.upcalls.store(v.upcalls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    let handler = Handler { rip: v.callbacks.event.get().address, mask_events: true };
    let frame = bounce::plain(regs, origin(v));
    enter(v, regs, frame, handler, 0xff);
}

/// Delivers an NMI: through the NMI trap; masked until the next iret. As on Xen one for which the kernel has no handler
/// is lost.
pub fn nmi(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    let handler = trap_handler(v, vector::NMI);
    if handler.rip == 0 {
        return;
    }
    v.nmi_masked.set(true);
    let frame = bounce::plain(regs, origin(v));
    enter(v, regs, frame, handler, vector::NMI.into());
}

/// A system call of guest user code, by SYSCALL, for which its kernel registered `callback`.
#[inline(always)]
pub fn syscall(v: &OwnedVcpu, regs: &mut CpuUserRegs, callback: Callback) {
    if callback.address == 0 {
        return undefined_syscall(v, regs);
    }
    let frame = bounce::plain(regs, Origin { kernel_mode: false, ..origin(v) });
    enter(v, regs, frame, callback.into(), 0x100);
    regs.rflags &= !x86::rflags::Rflags::DF.bits();
}

/// SYSCALL is two bytes long; the guest sees the instruction as undefined.
#[cold]
fn undefined_syscall(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    regs.rip = regs.rip.wrapping_sub(2);
    inject(v, regs, vector::UD, 0);
}

/// A system call of guest user code, by SYSENTER.
pub fn sysenter(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    let callback = v.callbacks.sysenter.get();
    if callback.address == 0 {
        return inject(v, regs, vector::GP, 0);
    }
    bounce::sysenter_origin(regs);
    let frame = bounce::plain(regs, origin(v));
    enter(v, regs, frame, callback.into(), 0x101);
}

/// The return to the guest faulted, or a selector could not be loaded: the failsafe callback.
pub fn failsafe(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    let frame = bounce::failsafe(regs, origin(v));
    let callback = v.callbacks.failsafe.get();
    enter(v, regs, frame, callback.into(), 0x102);
}
