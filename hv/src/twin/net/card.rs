//! Cards: given to a twin, and taken away.

use super::attached::{Attached, Handler, Line, Poll};
use super::lines::hand_over;
use super::link::{hooks, Card, Takes};
use super::place::{want, wanted, Drive, Job, Place, Progress, HAS_CARD, NR_ATTACHED, PLACES};
use super::receive::{Passing, BOUNCE_PAGES};
use crate::cpu::requests;
use crate::domain::{self, Domain};
use crate::guest_debug;
use crate::mem::frames;
use crate::mem::guest_ptr::{plain, GuestPtr};
use crate::sync::MutexGuard;
use crate::twin::frames::Frames;
use crate::twin::instance::{Slot, MAX_TWINS};
use crate::twin::session::Session;
use crate::twin::table::{self, Loaded, State};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::evtchn::Binding;
use twin_abi::op::{self, note, TwinAttach, TwinIrq, TwinNapi};
use xen_abi::errno::Errno;

plain!(TwinNapi, TwinIrq);

/// Most packets that a poll may take at once.
const MAX_WEIGHT: u32 = 256;
/// The shortest and the longest frame that a card may say it takes.
const MAX_FRAME: core::ops::RangeInclusive<u32> = 60..=u16::MAX as u32;

/// Lent pages below which packets do not lie in pages: there might never be enough for one.
const MIN_PAGES: usize = 64;

/// Cards so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Gives a twin of `d` a card. Errors: EINVAL for what cannot be, of the card or of the twin; EFAULT; ENOENT; EBUSY if it has one, or
/// runs; EIO if it is disabled; ENODEV if the card is no switch's way out; ENOMEM.
pub fn attach(d: &Domain, request: &TwinAttach) -> Result<(), Errno> {
    let twin = table::place(request.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = table::ready(&twin, d)?.usable()?;
    let number = request.twin as usize;
    let place = &PLACES[number];
    let mut drive = place.drive.try_lock().ok_or(Errno::EBUSY)?;
    if drive.is_some() {
        return Err(Errno::EBUSY);
    }
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let attached = read(d, request, loaded)?;
    place.queue.lock().open(attached.card)?;
    HAS_CARD.fetch_or(1 << number, Ordering::SeqCst);
    let began = begin(d, request, loaded, &attached);
    if let Err(errno) = began {
        HAS_CARD.fetch_and(!(1 << number), Ordering::SeqCst);
        give_queue_back(place, loaded, attached.card);
        return Err(errno);
    }
    place.lines.lock().open(d.id, attached.irqs.iter().map(|(_, line)| *line));
    NR_ATTACHED.fetch_add(1, Ordering::Relaxed);
    guest_debug!("d{}: twin {number} has a card", d.id);
    *drive = Some(Box::new(Drive { attached, progress: Progress::default(), passing: Passing::default() }));
    drop(drive);
    // What was queued meanwhile.
    want(number, wanted::LOOK | wanted::SEND);
    Ok(())
}

/// Nobody runs the twin; the port is the hypervisor's; who sends and receives knows of the card.
fn begin(d: &Domain, request: &TwinAttach, loaded: &Loaded, attached: &Attached) -> Result<(), Errno> {
    // Those who call it from now on see that it has a card.
    let is_free = |slot: Option<MutexGuard<'_, Slot>>| slot.is_some_and(|slot| slot.waiting.is_none());
    if !loaded.instances.iter().all(|instance| is_free(instance.slot.try_lock())) {
        return Err(Errno::EBUSY);
    }
    let has = |flag| request.flags & flag != 0;
    let pages = has(op::ATTACH_SG) && loaded.common.with_pool(|pool| pool.lent().1) >= MIN_PAGES;
    // Without pages, what fits into no buffer would wait for one for ever.
    let room = match loaded.common.with_pool(|pool| pool.smallest()) {
        bytes if bytes != 0 && !pages => loaded.common.support.room(bytes),
        _ => u32::MAX,
    };
    let takes = Takes {
        max_frame: request.max_frame.min(room),
        checksum_v4: has(op::ATTACH_CHECKSUM_V4),
        checksum_v6: has(op::ATTACH_CHECKSUM_V6),
        pages,
        segments_v4: has(op::ATTACH_GSO_TCPV4),
        segments_v6: has(op::ATTACH_GSO_TCPV6),
    };
    let hooks = hooks().ok_or(Errno::ENODEV)?;
    d.events.lock().bind_hypervisor(request.port, d.id, attached.cookie())?;
    (hooks.attached)(attached.card, d.id, request.vif, &takes).inspect_err(|_| {
        let _ = d.events.lock().unbind_hypervisor(request.port, attached.cookie());
    })
}

/// The card as `request` says. Each word is read once.
fn read(d: &Domain, request: &TwinAttach, loaded: &Loaded) -> Result<Attached, Errno> {
    let counts = [request.nr_queues, request.nr_napis, request.nr_irqs];
    if !loaded.common.is_described()
        || request.flags & !op::ATTACH_FLAGS != 0
        || request.pad != 0
        || counts.iter().any(|count| !(1..=op::MAX_QUEUES).contains(count))
        || !MAX_FRAME.contains(&request.max_frame)
    {
        return Err(Errno::EINVAL);
    }
    let mut napis = list::<TwinNapi>(request.nr_napis)?;
    GuestPtr::new(request.napis).read_slice(&mut napis)?;
    let mut irqs = list::<TwinIrq>(request.nr_irqs)?;
    GuestPtr::new(request.irqs).read_slice(&mut irqs)?;
    let (_, slot) = loaded.free_instance().ok_or(Errno::EBUSY)?;
    let function = |address| slot.twin.function(address).ok_or(Errno::EINVAL);
    let start_xmit = function(request.start_xmit)?;
    let mut polls: Vec<Poll> = Vec::new();
    polls.try_reserve_exact(napis.len()).map_err(|_| Errno::ENOMEM)?;
    for TwinNapi { napi, poll, weight, flags } in napis {
        let is_good = (1..=MAX_WEIGHT).contains(&weight) && flags == 0 && napi != 0;
        if !is_good || polls.iter().any(|other| other.napi == napi) {
            return Err(Errno::EINVAL);
        }
        polls.push(Poll { napi, weight, poll: function(poll)? });
    }
    let mut lines: Vec<(Handler, Line)> = Vec::new();
    lines.try_reserve_exact(irqs.len()).map_err(|_| Errno::ENOMEM)?;
    for irq in irqs {
        let handler = Handler { handler: function(irq.handler)?, number: irq.number, argument: irq.argument };
        let Binding::Pirq(pirq) = d.events.lock().binding(irq.port)? else { return Err(Errno::EINVAL) };
        if lines.iter().any(|(_, line)| line.port == irq.port) {
            return Err(Errno::EINVAL);
        }
        lines.push((handler, Line { port: irq.port, pirq }));
    }
    Ok(Attached {
        card: Card::new(request.twin as usize, COUNT.fetch_add(1, Ordering::Relaxed) + 1),
        owner: d.id,
        device: request.device,
        start_xmit,
        queue: request.queues,
        napis: polls,
        irqs: lines,
        port: request.port,
        bounce: Frames::new(BOUNCE_PAGES).ok_or(Errno::ENOMEM)?,
    })
}

fn list<T: Default + Clone>(count: u32) -> Result<Vec<T>, Errno> {
    let mut list = Vec::new();
    list.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
    list.resize(count as usize, T::default());
    Ok(list)
}

/// Takes the card of `d`'s twin `number` away. Errors: ENOENT if there is none; EBUSY while the twin is loaded or unloaded, and while an
/// invocation waits for a function of the domain.
pub fn detach(d: &Domain, number: u32) -> Result<(), Errno> {
    let twin = table::place(number)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = table::ready(&twin, d)?;
    let mut drive = PLACES[number as usize].drive.lock();
    if drive.as_ref().ok_or(Errno::ENOENT)?.progress.waits.is_some() {
        return Err(Errno::EBUSY);
    }
    end(loaded, drive.take(), false);
    Ok(())
}

/// Twin `number`, if it is one of `d`'s, has no card any more.
pub fn forget(d: &Domain, number: u32) {
    let Ok(twin) = table::place(number) else { return };
    if let Some(State::Ready(loaded)) = twin.read().as_ref().filter(|state| state.owner() == d.id) {
        // The place is this card's until the end: who gives the twin another one waits.
        let mut drive = PLACES[number as usize].drive.lock();
        end(loaded, drive.take(), false);
    }
}

/// No twin of `d` has a card any more.
pub fn forget_domain(d: &Domain) {
    (0..MAX_TWINS as u32).for_each(|number| forget(d, number));
}

/// A card is its domain's driver's alone again; the caller has taken it out of its place, which he holds. All that it had in its hands goes back: the
/// transmit lock and polls to the domain, interrupts too, packets to their senders.
pub fn end(loaded: &Loaded, drive: Option<Box<Drive>>, is_disabled: bool) {
    let Some(drive) = drive else { return };
    let Drive { attached, mut progress, .. } = *drive;
    let number = attached.card.place();
    let place = &PLACES[number];
    if let Some(waits) = &progress.waits {
        let instance = waits.instance;
        let mut slot = loaded.instances[waits.instance].slot.lock();
        slot.waiting = None;
        drop(slot.twin.resume());
        drop(slot);
        if let Some(mut session) = Session::enter(loaded, instance, None) {
            session.domain.release_locks();
        }
    }
    let job = progress.job.take();
    if let Some(mut session) = Session::enter(loaded, 0, None) {
        let (support, domain) = (&loaded.common.support, &mut session.domain);
        if progress.has_lock {
            // If it is not there the domain has no use for it.
            let _ = support.end_transmit(domain, attached.queue, false);
        }
        for (n, napi) in attached.napis.iter().enumerate() {
            if progress.polls >> n & 1 != 0 || matches!(job, Some(Job::Poll(m)) if m == n) {
                let _ = support.give_poll_back(domain, napi.napi);
            }
        }
    }
    let mut lines = progress.lines | place.lines.lock().close();
    if let Some(Job::Line(n)) = job {
        lines |= 1 << n;
    }
    let owner = domain::find(attached.owner);
    for (n, (_, line)) in attached.irqs.iter().enumerate() {
        if let Some(d) = owner.as_deref().filter(|_| lines >> n & 1 != 0) {
            hand_over(d, *line);
        }
    }
    give_queue_back(place, loaded, attached.card);
    HAS_CARD.fetch_and(!(1 << number), Ordering::SeqCst);
    NR_ATTACHED.fetch_sub(1, Ordering::Relaxed);
    if let Some(hooks) = hooks() {
        (hooks.detached)(attached.card);
    }
    if is_disabled {
        loaded.common.note(note::DISABLED, 0);
        attached.notify();
    }
    if let Some(d) = owner {
        let _ = d.events.lock().unbind_hypervisor(attached.port, attached.cookie());
    }
    guest_debug!("d{}: twin {number} has no card any more", attached.owner);
}

/// Nobody sends by `card` any more; what waits, and what its driver has, is given back.
fn give_queue_back(place: &Place, loaded: &Loaded, card: Card) {
    place.queue.lock().close();
    // Whoever has one is about to send it or to give it back.
    while place.queue.lock().has_slots() {
        requests::answer();
        core::hint::spin_loop();
    }
    let Some(hooks) = hooks() else { return };
    loop {
        let Some(packet) = place.queue.lock().next() else { break };
        loaded.common.with_pool(|pool| pool.unreserve(packet.skb));
        (hooks.transmitted)(card, &[packet.cookie]);
    }
    let mut cookies = [0; 64];
    loop {
        let count = loaded.common.with_pool(|pool| pool.forget_cookies(&mut cookies));
        if count == 0 {
            break;
        }
        (hooks.transmitted)(card, &cookies[..count]);
    }
}
