//! `event_channel_op`: making, connecting, signalling and closing event channels.

use super::foreign::target;
use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::channel::{self, Served};
use crate::domain::event;
use crate::domain::ports::GuestPage;
use crate::domain::{self, Domain};
use crate::irq;
use crate::mem::guest_ptr::plain;
use hv_core::evtchn::{virq_is_global, Remote};
use xen_abi::errno::Errno;
use xen_abi::event as op;
use xen_abi::layout::DOMID_SELF;

plain!(
    op::EvtchnBindInterdomain,
    op::EvtchnBindVirq,
    op::EvtchnBindPirq,
    op::EvtchnBindIpi,
    op::EvtchnPort,
    op::EvtchnStatus,
    op::EvtchnAllocUnbound,
    op::EvtchnBindVcpu,
    op::EvtchnReset,
    op::EvtchnInitControl,
    op::EvtchnExpandArray,
    op::EvtchnSetPriority,
);

/// EVTCHNOP_*. Errors: EFAULT; EINVAL for ports that do not exist or are not of the kind, and for new ones of a domain
/// that is being destroyed; ENOENT for vCPUs that do not exist; EEXIST for interrupts that are bound; ENOSPC, ENOMEM;
/// ESRCH, EPERM for other domains; ENOSYS for unknown commands. Source: public/event_channel.h.
#[inline]
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    if cmd != op::EVTCHNOP_SEND {
        return other(cx, cmd, arg);
    }
    let r: op::EvtchnPort = arg.cast().read()?;
    match event::send(cx.domain(), r.port)? {
        None => OK,
        Some(cookie) => serve_channel(cx, cookie, r.port),
    }
}

/// The hypervisor's end of a device has an event: what it has to do is done here, on the caller's time, in portions
/// between which other work of this CPU is done.
#[inline(never)]
fn serve_channel(cx: &mut Caller, mut cookie: u32, port: op::Port) -> Outcome {
    loop {
        match channel::serve(cookie) {
            Served::All => {
                if let Some(allowance) = cx.allowance_of_list() {
                    // A portion may be as much as that.
                    allowance.spend_all();
                }
                return OK;
            }
            Served::InPart if cx.preempt_pending() => return Ok(Done::Continue),
            Served::InPart => {}
            Served::NotHere => match event::send_on(cx.domain(), port)? {
                None => return OK,
                Some(other) => cookie = other,
            },
        }
    }
}

/// All but sending, which is by far the most frequent.
#[inline(never)]
fn other(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    let d = cx.domain();
    match cmd {
        op::EVTCHNOP_UNMASK => {
            let r: op::EvtchnPort = arg.cast().read()?;
            d.events.lock().unmask(d, r.port)?;
            OK
        }
        op::EVTCHNOP_CLOSE => {
            let r: op::EvtchnPort = arg.cast().read()?;
            close(d, r.port)?;
            OK
        }
        op::EVTCHNOP_ALLOC_UNBOUND => {
            let mut r: op::EvtchnAllocUnbound = arg.cast().read()?;
            let owner = target(cx, r.dom)?;
            let remote = if r.remote_dom == DOMID_SELF { d.id } else { r.remote_dom };
            r.port = owner.events.lock().alloc_unbound(remote)?;
            hand_out(&owner, r.port, arg.cast().write(&r))
        }
        op::EVTCHNOP_BIND_INTERDOMAIN => {
            let mut r: op::EvtchnBindInterdomain = arg.cast().read()?;
            r.local_port = bind_interdomain(d, r.remote_dom, r.remote_port)?;
            hand_out(d, r.local_port, arg.cast().write(&r))
        }
        op::EVTCHNOP_BIND_VIRQ => {
            let mut r: op::EvtchnBindVirq = arg.cast().read()?;
            let wrong_vcpu = virq_is_global(r.virq) && r.vcpu != 0;
            if r.virq < op::NR_VIRQS && !wrong_vcpu && d.vcpu(r.vcpu).is_none() {
                return Err(Errno::ENOENT);
            }
            r.port = d.events.lock().bind_virq(r.virq, r.vcpu)?;
            hand_out(d, r.port, arg.cast().write(&r))
        }
        op::EVTCHNOP_BIND_PIRQ => {
            let mut r: op::EvtchnBindPirq = arg.cast().read()?;
            r.port = irq::guest::bind(d, r.pirq, r.flags & op::BIND_PIRQ_WILL_SHARE != 0)?;
            hand_out(d, r.port, arg.cast().write(&r))
        }
        op::EVTCHNOP_BIND_IPI => {
            let mut r: op::EvtchnBindIpi = arg.cast().read()?;
            d.vcpu(r.vcpu).ok_or(Errno::ENOENT)?;
            r.port = d.events.lock().bind_ipi(r.vcpu)?;
            hand_out(d, r.port, arg.cast().write(&r))
        }
        op::EVTCHNOP_BIND_VCPU => {
            let r: op::EvtchnBindVcpu = arg.cast().read()?;
            let v = d.vcpu(r.vcpu).ok_or(Errno::ENOENT)?;
            let pirq = d.events.lock().bind_vcpu(r.port, r.vcpu)?;
            if let Some(pirq) = pirq {
                irq::guest::steer(v, pirq);
            }
            OK
        }
        op::EVTCHNOP_STATUS => {
            let mut r: op::EvtchnStatus = arg.cast().read()?;
            let owner = target(cx, r.dom)?;
            let status = owner.events.lock().status(r.port)?;
            r = op::EvtchnStatus { dom: r.dom, ..status };
            arg.cast().write(&r)?;
            OK
        }
        op::EVTCHNOP_RESET => {
            let r: op::EvtchnReset = arg.cast().read()?;
            let owner = target(cx, r.dom)?;
            let all = event::reset(&owner, channel::lost_port, || cx.preempt_pending())?;
            if all {
                OK
            } else {
                Ok(Done::Continue)
            }
        }
        op::EVTCHNOP_INIT_CONTROL => {
            let mut r: op::EvtchnInitControl = arg.cast().read()?;
            d.vcpu(r.vcpu).ok_or(Errno::ENOENT)?;
            d.events.lock().init_control(d, r.vcpu, r.offset, || GuestPage::take(&d.mm, r.control_gfn))?;
            r.link_bits = op::FIFO_LINK_BITS as u8;
            arg.cast().write(&r)?;
            OK
        }
        op::EVTCHNOP_EXPAND_ARRAY => {
            let r: op::EvtchnExpandArray = arg.cast().read()?;
            d.events.lock().expand_array(d, || GuestPage::take(&d.mm, r.array_gfn))?;
            OK
        }
        op::EVTCHNOP_SET_PRIORITY => {
            let r: op::EvtchnSetPriority = arg.cast().read()?;
            d.events.lock().set_priority(r.port, r.priority)?;
            OK
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// Closes a port, and what the hypervisor had at its other end.
fn close(d: &Domain, port: op::Port) -> Result<(), Errno> {
    if let Some(cookie) = event::close(d, port)? {
        channel::lost_port(cookie);
    }
    Ok(())
}

/// A new port's number goes to the guest; if it cannot be written the port is closed again.
fn hand_out(d: &Domain, port: op::Port, written: Result<(), Errno>) -> Outcome {
    match written {
        Ok(()) => OK,
        Err(e) => {
            let _ = close(d, port);
            Err(e)
        }
    }
}

fn bind_interdomain(d: &Domain, remote_dom: u16, remote_port: op::Port) -> Result<op::Port, Errno> {
    if remote_dom == DOMID_SELF || remote_dom == d.id {
        return d.events.lock().bind_interdomain(d, Remote::Own, remote_port);
    }
    let remote = domain::find(remote_dom).ok_or(Errno::ESRCH)?;
    event::with_both(d, &remote, |mine, theirs| mine.bind_interdomain(d, Remote::Other(theirs), remote_port))
}
