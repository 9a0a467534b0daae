//! `nmi_op`: the older way to register an NMI handler.

use super::{callback_op, Caller, GuestPtr, Outcome, OK};
use x86::addr::is_canonical;
use xen_abi::errno::Errno;

/// XENNMI_register_callback.
const REGISTER_CALLBACK: u32 = 0;
/// XENNMI_unregister_callback.
const UNREGISTER_CALLBACK: u32 = 1;

/// Sets or clears the NMI handler of the calling vCPU. Errors: EFAULT, EINVAL, ENOSYS. Source: public/nmi.h.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    match cmd {
        REGISTER_CALLBACK => {
            let address = arg.cast::<u64>().read()?;
            if !is_canonical(address) {
                return Err(Errno::EINVAL);
            }
            callback_op::set_nmi_handler(cx, address);
            OK
        }
        UNREGISTER_CALLBACK => {
            callback_op::set_nmi_handler(cx, 0);
            OK
        }
        _ => Err(Errno::ENOSYS),
    }
}
