//! `callback_op`: where the guest kernel is entered for events, system calls and failed returns.

use super::{Caller, GuestPtr, Outcome, OK};
use crate::domain::vcpu::Callback;
use x86::addr::is_canonical;
use xen_abi::callback::{
    CallbackRegister, CallbackUnregister, CALLBACKF_MASK_EVENTS, CALLBACKOP_REGISTER, CALLBACKOP_UNREGISTER,
    CALLBACKTYPE_EVENT, CALLBACKTYPE_FAILSAFE, CALLBACKTYPE_NMI, CALLBACKTYPE_SYSCALL, CALLBACKTYPE_SYSCALL32,
    CALLBACKTYPE_SYSENTER,
};
use xen_abi::errno::Errno;
use xen_abi::trap::TrapInfo;

/// Registers or unregisters an entry point of the calling vCPU. Errors: EFAULT; EINVAL for a non-canonical address or
/// for unregistering anything but the NMI callback; ENOSYS for an unknown type or command. Source: public/callback.h.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    match cmd {
        CALLBACKOP_REGISTER => register(cx, arg.cast::<CallbackRegister>().read()?),
        CALLBACKOP_UNREGISTER => match arg.cast::<CallbackUnregister>().read()?.kind {
            CALLBACKTYPE_NMI => {
                set_nmi_handler(cx, 0);
                OK
            }
            CALLBACKTYPE_EVENT
            | CALLBACKTYPE_FAILSAFE
            | CALLBACKTYPE_SYSCALL
            | CALLBACKTYPE_SYSCALL32
            | CALLBACKTYPE_SYSENTER => Err(Errno::EINVAL),
            _ => Err(Errno::ENOSYS),
        },
        _ => Err(Errno::ENOSYS),
    }
}

fn register(cx: &mut Caller, r: CallbackRegister) -> Outcome {
    if !is_canonical(r.address) {
        return Err(Errno::EINVAL);
    }
    let callback = Callback { address: r.address, mask_events: r.flags & CALLBACKF_MASK_EVENTS != 0 };
    let callbacks = &cx.vcpu.callbacks;
    match r.kind {
        CALLBACKTYPE_EVENT => callbacks.event.set(callback),
        CALLBACKTYPE_FAILSAFE => callbacks.failsafe.set(callback),
        CALLBACKTYPE_SYSCALL => callbacks.syscall.set(callback),
        CALLBACKTYPE_SYSCALL32 => callbacks.syscall32.set(callback),
        CALLBACKTYPE_SYSENTER => callbacks.sysenter.set(callback),
        CALLBACKTYPE_NMI => set_nmi_handler(cx, r.address),
        _ => return Err(Errno::ENOSYS),
    }
    OK
}

/// The NMI callback is entry 2 of the trap table.
pub(super) fn set_nmi_handler(cx: &Caller, address: u64) {
    let vector = x86::vector::NMI;
    cx.vcpu.traps[usize::from(vector)].set(TrapInfo {
        vector,
        flags: 0,
        cs: xen_abi::layout::FLAT_RING3_CS64,
        pad: 0,
        address,
    });
}
