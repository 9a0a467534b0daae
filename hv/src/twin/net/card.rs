//! Cards: given to a twin, and taken away.

use super::attached::{Attached, Handler, Line, Poll};
use super::lane::{wanted, Drive, Job, Lane};
use super::lines::hand_over;
use super::link::{hooks, Card, Takes};
use super::place::{want, Place, HAS_CARD, NR_ATTACHED, PLACES};
use super::queue::Queue;
use super::turn::BUSY_NS;
use crate::arch::tsc;
use crate::cpu::requests;
use crate::domain::{self, Domain};
use crate::guest_debug;
use crate::mem::frames;
use crate::mem::guest_ptr::{plain, GuestPtr};
use crate::sched::timers;
use crate::sync::{Mutex, MutexGuard};
use crate::twin::instance::{Slot, MAX_TWINS};
use crate::twin::session::{end_waiting, Session};
use crate::twin::table::{self, Loaded, State};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use twin_abi::op::{self, note, TwinAttach, TwinIrq, TwinNapi};
use twin_runtime::linux::lanes::{Lanes, MAX_LANES};
use twin_runtime::linux::pool::Forgetting;
use xen_abi::errno::Errno;

plain!(TwinNapi, TwinIrq);

/// Most packets that a poll may take at once.
const MAX_WEIGHT: u32 = 256;
/// The shortest and the longest frame that a card may say it takes.
const MAX_FRAME: core::ops::RangeInclusive<u32> = 60..=u16::MAX as u32;

/// Bytes of a VLAN tag, which a frame may have besides.
const VLAN_TAG: u32 = 4;

/// Lent pages below which packets do not lie in pages: there might never be enough for one.
const MIN_PAGES: usize = 64;

/// Cards so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Gives a twin of `d` a card. Errors: EINVAL for what cannot be, of the card or of the twin; EFAULT; ENOENT; EBUSY if
/// it has one, or runs; EIO if it is disabled; ENODEV if the card is no switch's way out; ENOMEM.
pub fn attach(d: &Domain, request: &TwinAttach) -> Result<(), Errno> {
    let twin = table::place(request.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = table::ready(&twin, d)?.usable()?;
    let number = request.twin as usize;
    let place = &PLACES[number];
    let mut card = place.card.try_lock().ok_or(Errno::EBUSY)?;
    if card.is_some() {
        return Err(Errno::EBUSY);
    }
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let attached = Arc::new(read(d, request, loaded)?);
    let nr_lanes = attached.lanes.count();
    let drives = make_lanes(place, &attached)?;
    loaded.common.with_pool(|pool| pool.share_among(nr_lanes));
    place.nr_lanes.store(nr_lanes, Ordering::Relaxed);
    place.is_starved.store(false, Ordering::Relaxed);
    for (n, lane) in place.lanes().enumerate() {
        lane.queue.lock().open(attached.card.queue(n));
    }
    HAS_CARD.fetch_or(1 << number, Ordering::SeqCst);
    let began = begin(d, request, loaded, &attached);
    if let Err(errno) = began {
        HAS_CARD.fetch_and(!(1 << number), Ordering::SeqCst);
        close_queues(place);
        give_packets_back(place, loaded, attached.card, Why::Asked);
        return Err(errno);
    }
    place.lines.lock().open(&attached);
    NR_ATTACHED.fetch_add(1, Ordering::Relaxed);
    guest_debug!("d{}: twin {number} has a card with {nr_lanes} transmit queues", d.id);
    *card = Some(attached);
    for (lane, drive) in place.lanes().zip(drives) {
        *lane.drive.lock() = Some(drive);
    }
    // What was queued meanwhile.
    (0..nr_lanes).for_each(|lane| want(number, lane, wanted::LOOK | wanted::SEND));
    Ok(())
}

/// Who takes memory for lanes has this: of two who ask whether there is enough for theirs each would be told so of the
/// same. Taken before a lane's queue.
static MAKING_LANES: Mutex<()> = Mutex::new(());

/// What the lanes of a card in `place` need. It is not of the reserve, which is for what cannot be refused: many lanes
/// take as much as that has.
#[allow(clippy::vec_box, reason = "lanes keep them as they are, each in its box")]
fn make_lanes(place: &Place, attached: &Arc<Attached>) -> Result<Vec<Box<Drive>>, Errno> {
    let _turn = MAKING_LANES.lock();
    let nr_lanes = attached.lanes.count();
    if !frames::has_beside_reserve((nr_lanes * (Drive::FRAMES + Queue::FRAMES)) as u64) {
        return Err(Errno::ENOMEM);
    }
    let mut drives = Vec::new();
    drives.try_reserve_exact(nr_lanes).map_err(|_| Errno::ENOMEM)?;
    for n in 0..nr_lanes {
        drives.push(Drive::new(attached, n).ok_or(Errno::ENOMEM)?);
    }
    let lanes = &place.lanes[..nr_lanes];
    if let Err(errno) = lanes.iter().try_for_each(|lane| lane.queue.lock().make_room()) {
        lanes.iter().for_each(|lane| lane.queue.lock().free_room());
        return Err(errno);
    }
    Ok(drives)
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
    // Without pages, what fits into no buffer is not sent.
    let room = match loaded.common.with_pool(|pool| pool.smallest()) {
        bytes if bytes != 0 && !pages => loaded.common.support.room(bytes),
        _ => u32::MAX,
    };
    if request.max_frame + VLAN_TAG > room {
        // Linux sends them: it has longer buffers.
        return Err(Errno::EMSGSIZE);
    }
    let takes = Takes {
        max_frame: request.max_frame,
        checksum_v4: has(op::ATTACH_CHECKSUM_V4),
        checksum_v6: has(op::ATTACH_CHECKSUM_V6),
        pages,
        segments_v4: has(op::ATTACH_GSO_TCPV4),
        segments_v6: has(op::ATTACH_GSO_TCPV6),
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_LANES")]
        nr_queues: attached.lanes.count() as u8,
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
        let pirq = d.events.lock().give_to_card(irq.port)?;
        if lines.iter().any(|(_, line)| line.port == irq.port) {
            return Err(Errno::EINVAL);
        }
        lines.push((handler, Line { port: irq.port, pirq }));
    }
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_QUEUES")]
    Ok(Attached {
        card: Card::new(request.twin as usize, COUNT.fetch_add(1, Ordering::Relaxed) + 1),
        owner: d.id,
        device: request.device,
        start_xmit,
        lanes: Lanes::new(request.queues, request.queue_stride, request.nr_queues, lines.len() as u8)
            .ok_or(Errno::EINVAL)?,
        reclaim_at_ns: AtomicU64::new(0),
        napis: polls,
        irqs: lines,
        port: request.port,
    })
}

fn list<T: Default + Clone>(count: u32) -> Result<Vec<T>, Errno> {
    let mut list = Vec::new();
    list.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
    list.resize(count as usize, T::default());
    Ok(list)
}

/// Takes the card of `d`'s twin `number` away. Errors: ENOENT if there is none; EBUSY while the twin is loaded or
/// unloaded, and while an invocation waits for a function of the domain; ERESTART while a lane is run.
pub fn detach(d: &Domain, number: u32) -> Result<(), Errno> {
    let twin = table::place(number)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = table::ready(&twin, d)?;
    let stopped = Stopped::or_soon(number as usize)?;
    stopped.card.as_ref().ok_or(Errno::ENOENT)?;
    if stopped.waits() {
        stopped.let_go(number as usize);
        return Err(Errno::EBUSY);
    }
    stopped.end(loaded, Why::Asked);
    Ok(())
}

/// Twin `number`, if it is one of `d`'s, has no card any more. ERESTART: to be called again.
pub fn forget(d: &Domain, number: u32) -> Result<(), Errno> {
    end(d, number, Why::Asked)
}

/// No twin of `d`, which does not run any more, has a card. ERESTART: to be called again.
pub fn forget_domain(d: &Domain) -> Result<(), Errno> {
    (0..MAX_TWINS as u32).try_for_each(|number| end(d, number, Why::DomainGone))
}

fn end(d: &Domain, number: u32, why: Why) -> Result<(), Errno> {
    let Ok(twin) = table::place(number) else { return Ok(()) };
    if let Some(State::Ready(loaded)) = twin.read().as_ref().filter(|state| state.owner() == d.id) {
        Stopped::or_soon(number as usize)?.end(loaded, why);
    }
    Ok(())
}

/// Why a card is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Its domain wants that.
    Asked,
    /// Its twin was disabled.
    Disabled,
    /// Its domain, and with it the driver, is gone.
    DomainGone,
}

/// A lane has found its twin disabled: `card` is no more, if it still is. The caller has no lane. `false`: somebody has
/// one just now.
pub fn end_disabled(loaded: &Loaded, card: Card) -> bool {
    let Some(stopped) = Stopped::at_once(card.place()) else { return false };
    if stopped.card.as_ref().is_some_and(|attached| attached.card == card) {
        stopped.end(loaded, Why::Disabled);
    } else {
        stopped.let_go(card.place());
    }
    true
}

/// Nobody begins to run a lane for so long, in ns, if somebody waits until none is run: he asks again and again
/// meanwhile. If he does not, the card goes on.
const HELD_NS: u64 = 10_000_000;

/// A place whose lanes nobody runs. It is this card's until the end: nobody gives the twin another one.
struct Stopped {
    card: MutexGuard<'static, Option<Arc<Attached>>>,
    lanes: [Option<MutexGuard<'static, Option<Box<Drive>>>>; MAX_LANES],
}

impl Stopped {
    /// `None`: somebody gives a card or takes it away in this place, or runs a lane of it. Nobody waits for him: he may
    /// run a twin, which takes as long as a twin may.
    fn at_once(number: usize) -> Option<Self> {
        let place = &PLACES[number];
        let card = place.card.try_lock()?;
        let nr_lanes = card.as_ref().map_or(0, |attached| attached.lanes.count());
        let mut stopped = Self { card, lanes: [const { None }; MAX_LANES] };
        for (to, lane) in stopped.lanes.iter_mut().zip(&place.lanes).take(nr_lanes) {
            *to = lane.drive.try_lock();
        }
        if stopped.lanes.iter().flatten().count() < nr_lanes {
            stopped.let_go(number);
            return None;
        }
        Some(stopped)
    }

    /// The same. ERESTART: soon, for no lane is begun with meanwhile.
    fn or_soon(number: usize) -> Result<Self, Errno> {
        let stopped = Self::at_once(number);
        let held_until_ns = if stopped.is_some() { 0 } else { tsc::now_ns().saturating_add(HELD_NS) };
        PLACES[number].held_until_ns.store(held_until_ns, Ordering::SeqCst);
        stopped.ok_or(Errno::ERESTART)
    }

    /// The card stays. Who found a lane taken meanwhile relies on its being looked at again.
    fn let_go(self, number: usize) {
        let taken: [bool; MAX_LANES] = self.lanes.each_ref().map(Option::is_some);
        drop(self);
        for (lane, _) in PLACES[number].lanes.iter().zip(taken).filter(|(_, is_taken)| *is_taken) {
            lane.wanted.fetch_or(wanted::LOOK, Ordering::SeqCst);
        }
        timers::arm_cards(tsc::now_ns().saturating_add(BUSY_NS));
    }

    /// Does an invocation wait in a lane?
    fn waits(&self) -> bool {
        let drives = self.lanes.iter().flatten().filter_map(|drive| drive.as_deref());
        drives.into_iter().any(|drive| drive.progress.waits.is_some())
    }

    /// The card is its domain's driver's alone again. All that it had in its hands goes back: the
    /// transmit locks and polls to the domain, interrupts too, packets to their senders.
    fn end(mut self, loaded: &Loaded, why: Why) {
        let Some(attached) = self.card.take() else { return };
        let number = attached.card.place();
        let place = &PLACES[number];
        place.lines.lock().close();
        let mut lines = place.take_lines(u32::MAX);
        for (n, lane) in self.lanes.iter_mut().enumerate() {
            let drive = lane.as_mut().and_then(|lane| lane.take());
            lines |= drive.map_or(0, |drive| end_lane(loaded, *drive, &place.lanes[n]));
        }
        let owner = domain::find(attached.owner);
        for (n, (_, line)) in attached.irqs.iter().enumerate() {
            if let Some(d) = owner.as_deref().filter(|_| lines >> n & 1 != 0) {
                hand_over(d, *line);
            }
        }
        close_queues(place);
        // Nothing is in the lanes: who comes by does not come again for their time.
        place.lanes().for_each(|lane| lane.due_ns.store(u64::MAX, Ordering::Relaxed));
        if let Some(hooks) = hooks() {
            (hooks.detached)(attached.card, &mut || give_packets_back(place, loaded, attached.card, why));
        }
        // Only now: a function that is called on behalf of the domain may be done with packets, of which it tells no
        // sender.
        HAS_CARD.fetch_and(!(1 << number), Ordering::SeqCst);
        NR_ATTACHED.fetch_sub(1, Ordering::Relaxed);
        if why == Why::Disabled {
            loaded.common.note(note::DISABLED, 0);
            attached.notify();
        }
        if let Some(d) = owner {
            let _ = d.events.lock().unbind_hypervisor(attached.port, attached.cookie());
        }
        guest_debug!("d{}: twin {number} has no card any more", attached.owner);
    }
}

/// A lane is no more; which interrupts the domain has to handle.
fn end_lane(loaded: &Loaded, drive: Drive, lane: &Lane) -> u32 {
    let Drive { attached, own, mut progress, .. } = drive;
    if let Some(waits) = &progress.waits {
        end_waiting(loaded, waits.instance, &mut loaded.instances[waits.instance].slot.lock());
    }
    let job = progress.job.take();
    let polls = progress.polls | progress.polling | lane.polls.swap(0, Ordering::SeqCst);
    if let Some(mut session) = Session::enter(loaded, 0, None) {
        let (support, domain) = (&loaded.common.support, &mut session.domain);
        if progress.has_lock {
            // If it is not there the domain has no use for it.
            let _ = support.end_transmit(domain, own.queue, false);
        }
        for (n, napi) in attached.napis.iter().enumerate() {
            if polls >> n & 1 != 0 {
                let _ = support.give_poll_back(domain, napi.napi);
            }
        }
    }
    match job {
        Some(Job::Line(n)) => progress.lines | 1 << n,
        _ => progress.lines,
    }
}

/// Nobody sends by a card any more.
fn close_queues(place: &Place) {
    place.lanes().for_each(|lane| lane.queue.lock().close());
    // Whoever has one is about to send it or to give it back.
    while place.lanes().any(|lane| lane.queue.lock().has_slots()) {
        requests::answer();
        core::hint::spin_loop();
    }
}

/// What waits for `card`, which is the way out no more, and what its driver has goes back. The driver has yet to send
/// that, if it is there still.
fn give_packets_back(place: &Place, loaded: &Loaded, card: Card, why: Why) {
    let Some(hooks) = hooks() else { return };
    for lane in place.lanes() {
        loop {
            let Some(packet) = lane.queue.lock().next() else { break };
            loaded.common.with_pool(|pool| pool.unreserve(packet.skb));
            (hooks.unsent)(&[packet.cookie]);
            requests::answer();
        }
        lane.queue.lock().free_room();
    }
    let (mut cookies, mut forgetting) = ([0; 64], Forgetting::default());
    while !forgetting.is_over() {
        let count = loaded.common.with_pool(|pool| pool.forget_cookies(&mut forgetting, &mut cookies));
        match why {
            _ if count == 0 => {}
            Why::Asked | Why::Disabled => (hooks.transmitted)(card, &cookies[..count]),
            Why::DomainGone => (hooks.unsent)(&cookies[..count]),
        }
        requests::answer();
    }
}
