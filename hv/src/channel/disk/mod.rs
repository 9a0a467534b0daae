//! Guests' disks: the hypervisor's end of their rings, and of those of the driver domain's own back ends behind them.
//!
//! The control domain's daemon connects a guest's disk ([`connect`]) and attaches a back end to it ([`attach`]),
//! another one when that is dead. What a request is and what becomes of it is decided in the crate `channel`; here are
//! locks, time, grants and events. What is promised is `docs/channels.md`.
//!
//! The front end that the driver domain's back end sees is the domain that the guest grants to, which never runs: ring
//! and pages between the two are its own memory, granted to the driver domain by the daemon. The hypervisor uses them
//! by the same grants. A grant is somebody's alone as long as it is in use, so pages that a dead back end, or a device
//! for it, may still reach cannot be attached again; what waits in them is kept in use here until there is another back
//! end, and copied into that one's pages.
//!
//! Lock order: what is connected, a disk, what is shared; then the locks of domains (grants, events):
//! rows 40, 60, 90, 180 and 190 of `docs/architecture.md`.

mod connect;
mod share;

pub use connect::{
    attach, close_port, connect, detach, disconnect, forget_domain, give_up, lose_device, lost_port, next, status,
    withdraw,
};

use self::share::{Common, Share, Turn};
use super::access::{Bytes, GuestGrants, Held, RingPage};
use super::late;
use crate::arch::tsc;
use crate::domain::event::Receiver;
use crate::domain::{self, Domain};
use crate::guest_warn;
use crate::sched::{timers, Cause};
use crate::sync::FairMutex;
use ::channel::pace::LATE_NS;
use ::channel::round::round;
use ::channel::vbd::disk::{Disk, Served};
use ::channel::vbd::shares::Turns as _;
use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use hv_core::grant::audit::Ledger;

/// Disks at one time.
const MAX_DISKS: u16 = 1 << 10;
/// In the name of a port: it is a disk's.
pub const DISK_EVENT: u32 = 1 << 31;
/// In the name of a disk's port: it is the back end's.
const BACK_EVENT: u32 = 1 << 30;
/// Counts connections, in a name.
const GENERATION_SHIFT: u32 = 10;
/// What a portion of work may cost, in bytes that are copied.
const PORTION: u32 = 128 << 10;
/// So many requests under way are many.
const MANY: u8 = 16;
/// What a look at a disk costs, in bytes.
const EACH: u32 = 1 << 10;

/// Names a disk: its place, and a count of all connections so far, modulo 2^20.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(u32);

impl Name {
    fn new(place: u16, count: u32) -> Self {
        Self((count << GENERATION_SHIFT | u32::from(place)) & !(DISK_EVENT | BACK_EVENT))
    }

    /// What a caller names. It may be none.
    pub fn of_raw(raw: u32) -> Self {
        Self(raw)
    }

    fn of_cookie(cookie: u32) -> Self {
        Self(cookie & !(DISK_EVENT | BACK_EVENT))
    }

    /// As a number.
    pub fn raw(self) -> u32 {
        self.0
    }

    fn place(self) -> usize {
        self.0 as usize & (MAX_DISKS as usize - 1)
    }
}

/// All places. The locks are fair: neither end keeps the other away.
static DISKS: [FairMutex<Option<Box<Shelf>>>; MAX_DISKS as usize] =
    [const { FairMutex::new(None) }; MAX_DISKS as usize];
/// Places that are to be looked at though nobody notifies, a bit each.
static AWAKE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
const WORDS: usize = MAX_DISKS as usize / 64;
/// The place that is looked at first.
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// One end of a disk's: a domain's port, whose other end is the hypervisor.
#[derive(Clone, Copy)]
struct End {
    domain: u16,
    port: u32,
    cookie: u32,
}

impl End {
    /// Tells the domain of news.
    fn notify(&self) {
        if let Some(d) = domain::find(self.domain) {
            self.tell(&d);
        }
    }

    /// Tells `domain` of news, which is the one.
    #[inline]
    fn tell(&self, domain: &Domain) {
        domain.events.lock().raise_hypervisor(&Receiver(domain, Cause::Sender), self.port, self.cookie);
    }

    /// Lets go of the port. One that its domain has closed is not there, or is something else by now.
    fn unbind(&self) {
        if let Some(d) = domain::find(self.domain) {
            let _ = d.events.lock().unbind_hypervisor(self.port, self.cookie);
        }
    }
}

/// A back end.
struct Back {
    end: End,
    /// Uses of the pages between guest and back end.
    pages: Vec<RingPage>,
    /// Among the disks of its domain.
    share: Share,
}

/// What a portion of a disk's work leaves.
#[derive(Clone, Copy, Default)]
struct Left {
    /// There is more to do.
    more: bool,
    /// Among it are the back end's answers.
    has_answers: bool,
    /// There is room in its driver domain that others wait for.
    room: bool,
}

/// A disk in its place.
struct Shelf {
    name: Name,
    guest: End,
    /// The domain that the guest grants to, and that grants to the back end.
    front: u16,
    disk: Disk<RingPage, Held>,
    back: Option<Back>,
    /// Uses of the pages of the back end before, as long as what is in them waits.
    kept: Vec<RingPage>,
}

impl Shelf {
    /// All disks of the domain of its back end, if it has one.
    fn common(&self) -> Option<Arc<Common>> {
        self.back.as_ref().map(|back| back.share.common().clone())
    }

    /// Pages of an earlier back end are let go in which nothing waits.
    fn let_go(&mut self) {
        if self.disk.waiting() == 0 {
            self.kept.clear();
        }
    }

    /// Does as much as `budget` allows of what there is to do for `guest`, which is the guest.
    fn serve(&mut self, guest: &Domain, budget: &mut u32) -> Left {
        let was_fatal = self.disk.fatal().is_some();
        let mut grants = GuestGrants { guest, backend: self.front };
        let share = self.back.as_ref().map(|back| &back.share);
        let mut turn = Turn::of(share);
        let has_back = self.disk.back_page().is_some();
        if share.is_some_and(|share| share.common().is_distrusted()) && self.disk.detach() {
            turn.abandoned();
        }
        let cookie = self.name.raw() | DISK_EVENT;
        // Both are looked for once at most: a portion does not take long, and nobody else uses this CPU's places.
        let (place, began) = (OnceCell::new(), OnceCell::new());
        let place = || *place.get_or_init(|| late::place_for(cookie));
        let now = || *began.get_or_init(tsc::now_ns);
        let Served { more, has_answers, tell_guest, tell_back, look_at, is_late } =
            self.disk.serve(&mut grants, &Bytes, &mut turn, &now, budget, &|| place().is_some());
        let room = turn.is_left;
        if let (true, Some(back)) = (is_late, &self.back) {
            if let Some(place) = place() {
                // With so much under way somebody most likely notifies before.
                let late = if self.disk.waiting() >= MANY { LATE_NS + LATE_NS / 2 } else { LATE_NS };
                late::put_off_until(place, cookie, [guest.id, back.end.domain], now().saturating_add(late));
            }
        }
        if let Some(at) = look_at {
            wake(self.name, at);
        }
        if let Some(at) = turn.again_at {
            wake(self.name, at);
        }
        if tell_guest {
            self.guest.tell(guest);
        }
        if let Some(back) = self.back.as_ref().filter(|_| tell_back) {
            back.end.notify();
        }
        if let Some(fatal) = self.disk.fatal().filter(|_| !was_fatal) {
            guest_warn!("d{}: disk {} ends: {fatal:?}", guest.id, self.name.place());
        }
        self.let_go();
        if has_back && self.disk.back_page().is_none() {
            let is_distrusted = self.back.as_ref().is_some_and(|back| back.share.common().is_distrusted());
            let why = match () {
                () if self.disk.was_empty() => "its back end has read nothing, and says that it has",
                () if is_distrusted => "a device of its back end's was stopped by an IOMMU",
                () => "its back end has a ring that cannot be",
            };
            guest_warn!("d{}: disk {}: {why}", guest.id, self.name.place());
        }
        Left { more, has_answers, room }
    }

    /// Its turn has come to pass on what waits.
    fn go_on(&mut self) {
        let Some(back) = &self.back else { return };
        let mut turn = Turn::of(Some(&back.share));
        if self.disk.go_on(&mut turn, &Bytes) {
            back.end.notify();
        }
        if let Some(at) = turn.again_at {
            wake(self.name, at);
        }
    }
}

/// Does what an event of a disk asks for, whose port has this name. `true`: there is more to do.
pub fn serve(cookie: u32) -> bool {
    let name = Name::of_cookie(cookie);
    let left = {
        let mut shelf = DISKS[name.place()].lock();
        let Some(shelf) = shelf.as_deref_mut().filter(|shelf| shelf.name == name) else { return false };
        let guest = domain::find(shelf.guest.domain);
        guest.map_or(Left::default(), |guest| shelf.serve(&guest, &mut PORTION.clone()))
    };
    if left.room {
        go_on(name.place());
    }
    // The guest's requests are not the work of a back end that has told of its answers: the guest could have it do that
    // for as long as it likes.
    let is_others = cookie & BACK_EVENT != 0 && left.more && !left.has_answers;
    if is_others {
        wake(name, tsc::now_ns());
    }
    left.more && !is_others
}

/// Disks that wait for the driver domain of the one in a place have their turns. No disk's lock may be held.
#[cold]
fn go_on(place: usize) {
    let common = DISKS[place].lock().as_deref().and_then(Shelf::common);
    if let Some(common) = common {
        common.go_on();
    }
}

/// A disk is looked at `at` (ns), or earlier, whether or not somebody notifies.
fn wake(name: Name, at: u64) {
    AWAKE[name.place() / 64].fetch_or(1 << (name.place() % 64), Ordering::Relaxed);
    timers::arm_channels(at);
}

/// The timer has fired: disks that are to be looked at share a portion, in turns. `true`: there is more to do.
pub fn look() -> bool {
    let awake = AWAKE.each_ref().map(|places| places.load(Ordering::Relaxed));
    let (mut more, mut budget) = (false, PORTION);
    for place in round(&awake, FIRST.load(Ordering::Relaxed)) {
        if budget == 0 {
            FIRST.store(place, Ordering::Relaxed);
            return true;
        }
        let (places, bit) = (&AWAKE[place / 64], 1 << (place % 64));
        places.fetch_and(!bit, Ordering::Relaxed);
        if look_at(place, &mut budget) {
            places.fetch_or(bit, Ordering::Relaxed);
            more = true;
        }
    }
    more
}

/// The disk in a place gets what is left of a portion, and those that wait for its driver domain what room there is.
/// `true`: there is more to do.
fn look_at(place: usize, budget: &mut u32) -> bool {
    *budget = budget.saturating_sub(EACH);
    let left = {
        let mut shelf = DISKS[place].lock();
        let Some(shelf) = shelf.as_deref_mut() else { return false };
        domain::find(shelf.guest.domain).map_or(Left::default(), |guest| shelf.serve(&guest, budget))
    };
    // It may have been woken because there was more room than turns at one time.
    go_on(place);
    left.more
}

/// Names every grant that is in use here, for the audit. Errors: no memory.
pub fn tell(ledger: &mut Ledger) -> Result<(), TryReserveError> {
    for place in &DISKS {
        let shelf = place.lock();
        let Some(shelf) = shelf.as_deref() else { continue };
        let rings = [Some(shelf.disk.page()), shelf.disk.back_page()];
        let pages = shelf.back.iter().flat_map(|back| &back.pages).chain(&shelf.kept);
        for page in rings.into_iter().flatten().chain(pages) {
            ledger.own_use(page.named(), true)?;
        }
    }
    Ok(())
}
