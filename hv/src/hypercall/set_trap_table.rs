//! `set_trap_table`: where the guest kernel handles exceptions.

use super::{Caller, GuestPtr, Outcome, OK};
use hv_core::allowance::STEP;
use x86::addr::is_canonical;
use xen_abi::errno::Errno;
use xen_abi::trap::TrapInfo;

/// Registers the entries at `traps` until one with address 0; other vectors keep theirs. A null pointer clears all.
/// Selectors get RPL 3. Errors: EFAULT, EINVAL for a non-canonical address. Source: public/xen.h.
pub fn call(cx: &mut Caller, traps: GuestPtr<TrapInfo>) -> Outcome {
    let table = &cx.vcpu.traps;
    if traps.is_null() {
        table.iter().for_each(|t| t.set(TrapInfo { vector: 0, flags: 0, cs: 0, pad: 0, address: 0 }));
        return OK;
    }
    if let Some(allowance) = cx.allowance_of_list() {
        allowance.spend(STEP);
    }
    // A list that is longer than the table only repeats vectors: 256 entries at a time, then a pause.
    for i in 0..256 {
        let mut entry = traps.at(i)?.read()?;
        if entry.address == 0 {
            return OK;
        }
        if !is_canonical(entry.address) {
            return Err(Errno::EINVAL);
        }
        entry.cs |= 3;
        table[usize::from(entry.vector)].set(entry);
    }
    *cx.arg_mut(0) = traps.at(256)?.addr();
    Ok(super::Done::Continue)
}
