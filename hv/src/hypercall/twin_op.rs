//! `twin_op`: twins of the calling domain's drivers.

use super::{Caller, GuestPtr, Outcome, OK};
use crate::mem::guest_ptr::plain;
use crate::twin::{self, calls, net, NotLoaded};
use twin_abi::op;
use xen_abi::errno::Errno;

plain!(
    op::TwinLoad,
    op::TwinName,
    op::TwinCall,
    op::TwinStatus,
    op::TwinLend,
    op::TwinNotes,
    op::TwinAttach,
    op::TwinStats
);

/// Bits of the command.
const LOAD_MASK: u32 = (1 << PLACE_SHIFT) - 1;

/// TWINOP_*. Errors: EPERM for a domain that drives no device; ENOENT for a twin that it does not have; EINVAL for bad
/// arguments and images that break a rule, which is named; EFAULT; ENOSYS for unknown commands; others with each
/// command.
/// Source: `twin-abi/src/op.rs`.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    let outcome = execute(cx, cmd, arg);
    if let Some(allowance) = cx.allowance_of_list() {
        // A portion of loading, or a routine's round, may be as much as that.
        allowance.spend_all();
    }
    outcome
}

#[inline(always)]
fn execute(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    match cmd {
        _ if cmd & LOAD_MASK == op::TWINOP_LOAD => load(cx, cmd, arg.cast()),
        op::TWINOP_UNLOAD => {
            let name: op::TwinName = arg.cast().read()?;
            if name.flags != 0 {
                return Err(Errno::EINVAL);
            }
            twin::unload(cx.domain(), name.twin)?;
            OK
        }
        op::TWINOP_CALL | op::TWINOP_RESUME => {
            let arg = arg.cast();
            let mut call: op::TwinCall = arg.read()?;
            if call.flags != 0 {
                return Err(Errno::EINVAL);
            }
            if cmd == op::TWINOP_CALL {
                calls::call(cx.vcpu, &mut call, cx.interruptible())?;
            } else {
                calls::resume(cx.vcpu, &mut call, cx.interruptible())?;
            }
            arg.write(&call)?;
            OK
        }
        op::TWINOP_NEXT => {
            let arg = arg.cast();
            let mut call: op::TwinCall = arg.read()?;
            if call.flags & !op::NEXT_ATOMIC != 0 {
                return Err(Errno::EINVAL);
            }
            net::next(cx.domain(), &mut call)?;
            arg.write(&call)?;
            OK
        }
        op::TWINOP_ATTACH => {
            net::attach(cx.domain(), &arg.cast().read()?)?;
            OK
        }
        op::TWINOP_DETACH => {
            let name: op::TwinName = arg.cast().read()?;
            if name.flags != 0 {
                return Err(Errno::EINVAL);
            }
            net::detach(cx.domain(), name.twin)?;
            OK
        }
        op::TWINOP_LEND => {
            twin::lend(cx.domain(), &arg.cast().read()?)?;
            OK
        }
        op::TWINOP_RECALL => {
            let arg = arg.cast();
            let mut lend: op::TwinLend = arg.read()?;
            twin::recall(cx.domain(), &mut lend)?;
            arg.write(&lend)?;
            OK
        }
        op::TWINOP_NOTES => {
            let arg = arg.cast();
            let mut notes: op::TwinNotes = arg.read()?;
            twin::fetch_notes(cx.domain(), &mut notes)?;
            arg.write(&notes)?;
            OK
        }
        op::TWINOP_STATUS => {
            let arg = arg.cast();
            let mut status: op::TwinStatus = arg.read()?;
            twin::status(cx.domain(), &mut status)?;
            arg.write(&status)?;
            OK
        }
        op::TWINOP_STATS => {
            let arg = arg.cast();
            let mut stats: op::TwinStats = arg.read()?;
            let is_all = match stats.flags {
                0 => false,
                op::STATS_ALL => true,
                _ => return Err(Errno::EINVAL),
            };
            if is_all {
                cx.require_privilege()?;
            }
            twin::stats((!is_all).then(|| cx.domain()), &mut stats)?;
            arg.write(&stats)?;
            OK
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// The command of a load that goes on: the place, from 1, stands above the command.
const PLACE_SHIFT: u32 = 8;

/// The command with which a load in place `number` goes on.
fn goes_on(number: u32) -> u64 {
    u64::from(op::TWINOP_LOAD | (number + 1) << PLACE_SHIFT)
}

/// Verifies and loads, in portions between which other work of this CPU is done. The number of the place stands in the
/// first argument meanwhile. What that has on the stack is not there while a twin runs.
#[inline(never)]
fn load(cx: &mut Caller, cmd: u32, arg: GuestPtr<op::TwinLoad>) -> Outcome {
    let mut request = arg.read()?;
    (request.rule, request.offset) = (op::NO_RULE, 0);
    let number = match (cmd >> PLACE_SHIFT).checked_sub(1) {
        Some(number) => Ok(number),
        None => {
            // Where nothing can be answered, nothing is made.
            arg.write(&request)?;
            twin::begin(cx.domain(), &request)
        }
    };
    let loaded = number.and_then(|number| loop {
        if twin::go_on(cx.domain(), number)? {
            break Ok(number);
        }
        if cx.preempt_pending() {
            *cx.arg_mut(0) = goes_on(number);
            return Err(NotLoaded::Error(Errno::ERESTART));
        }
    });
    match &loaded {
        Ok(number) => request.twin = *number,
        Err(NotLoaded::Refused(refusal)) => (request.rule, request.offset) = (refusal.rule as u32, refusal.offset),
        Err(NotLoaded::Areas(wanted)) => request.twin = *wanted,
        Err(NotLoaded::Error(errno)) => return Err(*errno),
    }
    let written = arg.write(&request);
    match (loaded, written) {
        (Ok(_), Ok(())) => OK,
        (Ok(number), Err(fault)) => {
            // Nobody would know its number.
            if twin::unload(cx.domain(), number) == Err(Errno::ERESTART) {
                *cx.arg_mut(0) = goes_on(number);
                return Err(Errno::ERESTART);
            }
            Err(fault)
        }
        (Err(NotLoaded::Areas(_)), written) => written.and(Err(Errno::EDOM)),
        (Err(_), written) => written.and(Err(Errno::EINVAL)),
    }
}
