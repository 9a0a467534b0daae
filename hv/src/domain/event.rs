//! Event channels: the shell around `hv_core::evtchn`.
//!
//! Each domain's channels are in one lock. Two domains' locks are taken in the order of domain ids ([`with_both`]).
//! Under them come the scheduler's lock and, for physical interrupts, the lock of the interrupt tables.

use crate::domain::ports::Channels;
use crate::domain::vcpu::{stop, Vcpu};
use crate::domain::{self, Domain, DomainRef};
use crate::irq;
use crate::sched::{self, Cause};
use core::sync::atomic::{AtomicU16, AtomicU64, AtomicU8, Ordering};
use hv_core::evtchn::{CloseError, Closed, Peer, Poll, Sent, Shared};
use xen_abi::errno::Errno;
use xen_abi::event::{Port, NR_VIRQS, VIRQ_CONSOLE, VIRQ_CON_RING, VIRQ_DEBUGGER, VIRQ_DOM_EXC, VIRQ_TBUF};
use xen_abi::shared::{shared_info, vcpu_info};

static NO_SELECTOR: AtomicU64 = AtomicU64::new(0);
static NO_UPCALL: AtomicU8 = AtomicU8::new(0);

fn shared_word(d: &Domain, offset: usize) -> &AtomicU64 {
    debug_assert!(offset.is_multiple_of(8) && offset < x86::PAGE_SIZE);
    // SAFETY: inside the shared-info page, which lives as long as the domain; aligned; the guest's writes are met by
    // atomics.
    unsafe { AtomicU64::from_ptr(d.shared_info_ptr().add(offset).cast()) }
}

impl Shared for Domain {
    #[inline]
    fn pending(&self, word: usize) -> &AtomicU64 {
        shared_word(self, shared_info::EVTCHN_PENDING + word % 64 * 8)
    }
    #[inline]
    fn mask(&self, word: usize) -> &AtomicU64 {
        shared_word(self, shared_info::EVTCHN_MASK + word % 64 * 8)
    }
    #[inline]
    fn pending_sel(&self, vcpu: u32) -> &AtomicU64 {
        self.vcpu(vcpu).map_or(&NO_SELECTOR, |v| v.info_word(vcpu_info::PENDING_SEL))
    }
    #[inline]
    fn upcall_pending(&self, vcpu: u32) -> &AtomicU8 {
        self.vcpu(vcpu).map_or(&NO_UPCALL, |v| v.info_byte(vcpu_info::UPCALL_PENDING))
    }
    #[inline]
    fn notify(&self, vcpu: u32) {
        if let Some(v) = self.vcpu(vcpu) {
            sched::notify(v);
        }
    }
    fn wake_poller(&self, vcpu: u32) {
        if let Some(v) = self.vcpu(vcpu) {
            sched::start(v, stop::POLLING);
        }
    }
}

/// A domain that gets an event of which the scheduler knows the cause.
pub struct Receiver<'a>(pub &'a Domain, pub Cause);

impl Shared for Receiver<'_> {
    #[inline]
    fn pending(&self, word: usize) -> &AtomicU64 {
        self.0.pending(word)
    }
    #[inline]
    fn mask(&self, word: usize) -> &AtomicU64 {
        self.0.mask(word)
    }
    #[inline]
    fn pending_sel(&self, vcpu: u32) -> &AtomicU64 {
        self.0.pending_sel(vcpu)
    }
    #[inline]
    fn upcall_pending(&self, vcpu: u32) -> &AtomicU8 {
        self.0.upcall_pending(vcpu)
    }
    #[inline]
    fn notify(&self, vcpu: u32) {
        if let Some(v) = self.0.vcpu(vcpu) {
            sched::notify_by(v, self.1);
        }
    }
    fn wake_poller(&self, vcpu: u32) {
        self.0.wake_poller(vcpu);
    }
}

/// Runs `f` with the channels of two different domains locked, `a`'s first among its arguments.
pub fn with_both<R>(a: &Domain, b: &Domain, f: impl FnOnce(&mut Channels, &mut Channels) -> R) -> R {
    if a.id < b.id {
        let mut first = a.events.lock();
        let mut second = b.events.lock();
        f(&mut first, &mut second)
    } else {
        let mut second = b.events.lock();
        let mut first = a.events.lock();
        f(&mut first, &mut second)
    }
}

/// Sends an event from port `port` of `d`. If the hypervisor itself is at the other end the result is its name for it,
/// and the caller sees to it. EINVAL if it is not a port to send on.
#[inline]
pub fn send(d: &Domain, port: Port) -> Result<Option<u32>, Errno> {
    if let Some(cookie) = d.diverted(port) {
        return Ok(Some(cookie));
    }
    send_on(d, port)
}

/// The same, also if events by this port are diverted.
#[inline]
pub fn send_on(d: &Domain, port: Port) -> Result<Option<u32>, Errno> {
    let sent = d.events.lock().send(d, port)?;
    match sent {
        Sent::To { dom, port: peer } => {
            if let Some(remote) = domain::find(dom) {
                remote.events.lock().raise_from(&Receiver(&remote, Cause::Sender), peer, d.id, port);
            }
        }
        Sent::Hypervisor(cookie) => return Ok(Some(cookie)),
        Sent::Done => {}
    }
    Ok(None)
}

/// Closes a port of `d`. If the hypervisor itself was at the other end the result is its name for it, and the caller
/// sees to it. EINVAL if it is not open.
pub fn close(d: &Domain, port: Port) -> Result<Option<u32>, Errno> {
    if d.diverted(port).is_some() {
        d.divert_nothing();
    }
    let mut result = d.events.lock().close(d, port, Peer::Unlocked);
    // The peer is known only under the lock and must be locked in order: try until it holds still.
    while let Err(CloseError::NeedsPeer(peer)) = result {
        result = match domain::find(peer) {
            Some(remote) => with_both(d, &remote, |mine, theirs| mine.close(d, port, Peer::Locked(theirs))),
            None => d.events.lock().close(d, port, Peer::Gone(peer)),
        };
    }
    match result {
        Ok(Closed::Pirq(pirq)) => {
            irq::guest::unbind(d, pirq, port);
            Ok(None)
        }
        Ok(Closed::Hypervisor(cookie)) => Ok(Some(cookie)),
        Ok(Closed::Done) => Ok(None),
        Err(_) => Err(Errno::EINVAL),
    }
}

/// Closes all ports of `d` and goes back to the 2-level layout. `lost` is told of those at whose other end the
/// hypervisor was, by its names for them. `false`: `preempt` asked to stop; call again.
pub fn reset(d: &Domain, lost: impl Fn(u32), mut preempt: impl FnMut() -> bool) -> Result<bool, Errno> {
    let mut from = 0;
    loop {
        let next = d.events.lock().next_open(from);
        let Some(port) = next else { break };
        // Somebody else may have closed it in between.
        if let Ok(Some(cookie)) = close(d, port) {
            lost(cookie);
        }
        from = port + 1;
        if preempt() {
            return Ok(false);
        }
    }
    let mut channels = d.events.lock();
    // Events were written there, and who reads the log of writes does not find these pages any more.
    channels.for_each_page(|page| d.mm.log.mark(page.mfn()));
    channels.finish_reset()?;
    Ok(true)
}

/// The vCPU wants to sleep until one of `ports` has an event. `true`: it sleeps now; `false`: there is one already.
/// EINVAL if a port does not exist.
pub fn poll(v: &Vcpu, ports: &[Port]) -> Result<bool, Errno> {
    let d = v.domain();
    let mut channels = d.events.lock();
    let wait = channels.poll(d, v.id, ports)? == Poll::Wait;
    if wait {
        // Under the lock: an event that comes now finds the vCPU asleep and wakes it.
        sched::halt(v, stop::POLLING);
    }
    Ok(wait)
}

/// What `v` polls for may have come by another way than an event: it looks again. One that is about to poll does not
/// sleep.
pub fn end_poll(v: &Vcpu) {
    v.poll_is_over.store(true, Ordering::SeqCst);
    sched::start(v, stop::POLLING);
}

/// Raises a per-vCPU virtual interrupt.
#[inline]
pub fn raise_virq(v: &Vcpu, virq: u32) {
    let d = v.domain();
    d.events.lock().raise_virq(d, v.id, virq);
}

/// Which domain handles each global virtual interrupt.
static GLOBAL_VIRQ_HANDLERS: [AtomicU16; NR_VIRQS as usize] = [const { AtomicU16::new(0) }; NR_VIRQS as usize];

/// Raises a global virtual interrupt at the domain that handles it.
pub fn raise_global_virq(virq: u32) {
    let handler = GLOBAL_VIRQ_HANDLERS.get(virq as usize).map_or(0, |h| h.load(Ordering::Relaxed));
    // A handler that died leaves it to the control domain.
    if let Some(d) = domain::find(handler).filter(|d| !d.is_dying()).or_else(|| domain::find(0)) {
        d.events.lock().raise_virq(&*d, 0, virq);
    }
}

/// Makes `d` the handler of global virtual interrupt `virq`. EINVAL for one that is not global, or not the tools'.
pub fn set_virq_handler(d: DomainRef, virq: u32) -> Result<(), Errno> {
    let ours = matches!(virq, VIRQ_CONSOLE | VIRQ_DOM_EXC | VIRQ_TBUF | VIRQ_DEBUGGER | VIRQ_CON_RING);
    let handler = GLOBAL_VIRQ_HANDLERS.get(virq as usize).filter(|_| ours).ok_or(Errno::EINVAL)?;
    handler.store(d.id, Ordering::SeqCst);
    // Only now: whoever destroys it takes them away after he has said that it dies.
    if d.is_dying() {
        forget_virq_handler(&d);
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// The control domain handles again what `d` did, which is dying: the next domain of its number is another.
pub fn forget_virq_handler(d: &Domain) {
    for handler in &GLOBAL_VIRQ_HANDLERS {
        let _ = handler.compare_exchange(d.id, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}
