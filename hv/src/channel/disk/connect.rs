//! Disks come and go, and their back ends, whoever wants them to.

use super::share::{Common, Share};
use super::{wake, Back, End, Name, Shelf, BACK_EVENT, DISKS, DISK_EVENT, MAX_DISKS, PORTION};
use crate::arch::{secret, tsc};
use crate::channel::access::{Bytes, GuestGrants, RingPage};
use crate::domain::event::{self, with_both};
use crate::domain::{self, Domain};
use crate::mem::frames;
use crate::sync::Mutex;
use ::channel::vbd::disk::{Disk, Page, MAX_PAGES, MIN_PAGES};
use ::channel::vbd::Offers;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use hv_core::evtchn::{Binding, Remote};
use hv_core::map;
use xen_abi::channel_op::{self as op, ChannelDiskAttach, ChannelDiskConnect, ChannelDiskStatus};
use xen_abi::errno::Errno;

/// What is connected where.
struct Config {
    /// By place.
    disks: BTreeMap<u16, Connected>,
    /// Connections so far.
    count: u32,
}

/// A disk as it was asked for.
struct Connected {
    name: Name,
    request: ChannelDiskConnect,
    /// The back end's domain.
    back: Option<u16>,
}

/// All of it.
static CONFIG: Mutex<Config> = Mutex::new(Config { disks: BTreeMap::new(), count: 0 });

impl Config {
    /// The disk of that name, and its place. ENOENT.
    fn find(&mut self, name: Name) -> Result<(u16, &mut Connected), Errno> {
        let found = self.disks.iter_mut().find(|(_, c)| c.name == name);
        found.map(|(place, connected)| (*place, connected)).ok_or(Errno::ENOENT)
    }
}

impl Config {
    /// What is shared by the disks whose back end's domain this is.
    fn common_of(&self, back: &Domain) -> Arc<Common> {
        let other = self.disks.iter().find(|(_, c)| c.back == Some(back.id));
        let common = other.and_then(|(place, _)| DISKS[usize::from(*place)].lock().as_deref().and_then(Shelf::common));
        common.unwrap_or_else(|| Arc::new(Common::new(back)))
    }
}

/// A domain that lives. ESRCH, EINVAL.
fn living(domid: u16) -> Result<domain::DomainRef, Errno> {
    let d = domain::find(domid).ok_or(Errno::ESRCH)?;
    (!d.is_dying()).then_some(d).ok_or(Errno::EINVAL)
}

/// Takes up the ring of a guest's disk. Errors: see [`op::CHANNELOP_DISK_CONNECT`].
pub fn connect(request: &ChannelDiskConnect) -> Result<Name, Errno> {
    if request.flags & !op::DISK_FLAGS != 0 || request.disk != 0 || request.pad != 0 {
        return Err(Errno::EINVAL);
    }
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let mut config = CONFIG.lock();
    // Under the lock: whoever destroys one of them looks for its disks later.
    let (guest, front) = (living(request.guest)?, living(request.backend)?);
    if config.disks.values().any(|c| c.request.guest == request.guest && c.request.device == request.device) {
        return Err(Errno::EBUSY);
    }
    let place = (0..MAX_DISKS).find(|place| !config.disks.contains_key(place)).ok_or(Errno::ENOSPC)?;
    let name = Name::new(place, config.count.wrapping_add(1));
    let has = |flag| request.flags & flag != 0;
    let offers = Offers {
        write: has(op::DISK_WRITE),
        flush: has(op::DISK_FLUSH),
        barrier: has(op::DISK_BARRIER),
        discard: has(op::DISK_DISCARD),
    };
    let ring = RingPage::take(&guest, front.id, request.ring).map_err(|_| Errno::EINVAL)?;
    let disk = Disk::connect(ring, offers, secret::number()).map_err(|_| Errno::EINVAL)?;
    let end = End { domain: guest.id, port: request.port, cookie: name.raw() | DISK_EVENT };
    let shelf = Box::new(Shelf { name, guest: end, front: front.id, disk, back: None, kept: Vec::new() });
    bind(&guest, end, front.id)?;
    *DISKS[usize::from(place)].lock() = Some(shelf);
    config.count = config.count.wrapping_add(1);
    config.disks.insert(place, Connected { name, request: *request, back: None });
    Ok(name)
}

/// Takes the other end of a guest's port. EBUSY: the hypervisor has it. EINVAL: it does not wait for `front`.
fn bind(guest: &Domain, end: End, front: u16) -> Result<(), Errno> {
    let mut events = guest.events.lock();
    match events.binding(end.port)? {
        Binding::Hypervisor { .. } => Err(Errno::EBUSY),
        _ => events.bind_hypervisor(end.port, front, end.cookie),
    }
}

/// Gives a disk a back end. Errors: see [`op::CHANNELOP_DISK_ATTACH`].
pub fn attach(request: &ChannelDiskAttach) -> Result<(), Errno> {
    let nr_pages = request.nr_pages as usize;
    if !(MIN_PAGES..=MAX_PAGES).contains(&nr_pages) {
        return Err(Errno::EINVAL);
    }
    let last_page = request.first_page.checked_add(request.nr_pages - 1).ok_or(Errno::EINVAL)?;
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let mut config = CONFIG.lock();
    let name = Name::of_raw(request.disk);
    config.find(name)?;
    let back = living(request.back)?;
    let common = config.common_of(&back);
    let (place, connected) = config.find(name)?;
    if connected.back.is_some() {
        return Err(Errno::EBUSY);
    }
    let (guest, front) = (living(connected.request.guest)?, living(connected.request.backend)?);
    // A guest that was moved goes on elsewhere: it has asked there for what waits here, and may have written something
    // else since.
    if guest.has_stopped() {
        return Err(Errno::EAGAIN);
    }
    // One that another domain uses, or a device for it, is not to be had.
    let take = |gref| RingPage::take(&front, back.id, gref).map_err(|_| Errno::EBUSY);
    let ring = take(request.ring)?;
    let (mut uses, mut pages) = (Vec::new(), Vec::new());
    uses.try_reserve_exact(nr_pages).map_err(|_| Errno::ENOMEM)?;
    pages.try_reserve_exact(nr_pages).map_err(|_| Errno::ENOMEM)?;
    for gref in request.first_page..=last_page {
        let page = take(gref)?;
        pages.push(Page { gref, frame: page.held() });
        uses.push(page);
    }
    let mut shelf = DISKS[usize::from(place)].lock();
    let Some(shelf) = shelf.as_deref_mut() else { return Err(Errno::ENOENT) };
    let cookie = name.raw() | DISK_EVENT | BACK_EVENT;
    // Before it is given what waits.
    back.dma_faults.begin_use();
    let share = Share::of(&common, name, connected.request.weight).map_err(|_| Errno::ENOMEM)?;
    let (pages, mut grants) = (pages.into_boxed_slice(), GuestGrants { guest: &guest, backend: front.id });
    shelf
        .disk
        .attach(ring, pages, request.max_segments, &mut grants, &Bytes, tsc::now_ns())
        .map_err(|_| Errno::EINVAL)?;
    let port = match take_over(&front, request.port, &back, cookie) {
        Ok(port) => port,
        Err(errno) => {
            // What waits is in its pages by now.
            shelf.disk.detach();
            shelf.kept = uses;
            shelf.let_go();
            return Err(errno);
        }
    };
    shelf.back = Some(Back { end: End { domain: back.id, port, cookie }, pages: uses, share });
    shelf.kept.clear();
    connected.back = Some(back.id);
    wake(name, tsc::now_ns());
    Ok(())
}

/// The hypervisor takes the place of `front` at its port, which is connected with one of `back`: that one's number.
fn take_over(front: &Domain, port: u32, back: &Domain, cookie: u32) -> Result<u32, Errno> {
    if front.id == back.id {
        return front.events.lock().hand_over(front, port, Remote::Own, cookie);
    }
    with_both(front, back, |ours, theirs| ours.hand_over(front, port, Remote::Other(theirs), cookie))
}

/// A disk has no back end any more. What it has not answered waits for the next.
fn unlink(place: u16, connected: &mut Connected) {
    connected.back = None;
    let mut common = None;
    if let Some(shelf) = DISKS[usize::from(place)].lock().as_deref_mut() {
        shelf.disk.detach();
        common = shelf.common();
        if let Some(back) = shelf.back.take() {
            back.end.unbind();
            shelf.kept = back.pages;
            shelf.let_go();
        }
    }
    // What it had under way leaves room to others.
    if let Some(common) = common {
        common.go_on();
    }
}

/// Takes a disk's back end away, and its requests wait from now on. ENOENT: no such disk, or it has none and they wait.
pub fn detach(name: Name) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    let (place, connected) = config.find(name)?;
    let had_given_up = DISKS[usize::from(place)].lock().as_deref_mut().is_some_and(|shelf| shelf.disk.give_up(false));
    if connected.back.is_none() {
        return had_given_up.then_some(()).ok_or(Errno::ENOENT);
    }
    unlink(place, connected);
    Ok(())
}

/// Takes a disk's back end away if it has one, and its requests are answered with errors until there is another.
/// ENOENT.
pub fn give_up(name: Name) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    let (place, connected) = config.find(name)?;
    unlink(place, connected);
    if let Some(shelf) = DISKS[usize::from(place)].lock().as_deref_mut() {
        shelf.disk.give_up(true);
    }
    wake(name, tsc::now_ns());
    Ok(())
}

/// Closes a port of a domain that plays the front end. Errors: see [`op::CHANNELOP_DISK_CLOSE_PORT`].
pub fn close_port(domid: u16, port: u32) -> Result<(), Errno> {
    let d = living(domid)?;
    if matches!(d.events.lock().binding(port)?, Binding::Hypervisor { .. }) {
        return Err(Errno::EBUSY);
    }
    if let Some(cookie) = event::close(&d, port)? {
        crate::channel::lost_port(cookie);
    }
    Ok(())
}

/// Takes a disk out of its place. Everything that was its own is back then.
fn unplug(config: &mut Config, place: u16) {
    let Some(mut connected) = map::take(&mut config.disks, &place) else { return };
    unlink(place, &mut connected);
    let shelf = DISKS[usize::from(place)].lock().take();
    if let Some(shelf) = shelf {
        shelf.guest.unbind();
    }
}

/// Lets a disk go. What its guest has asked for is answered first: a front end that closes waits for that. ENOENT.
pub fn disconnect(name: Name) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    let (place, connected) = config.find(name)?;
    unlink(place, connected);
    answer_with_errors(place);
    unplug(&mut config, place);
    Ok(())
}

/// All that waits for a disk without a back end, in its ring, too, is answered with errors.
fn answer_with_errors(place: u16) {
    let mut shelf = DISKS[usize::from(place)].lock();
    let Some(shelf) = shelf.as_deref_mut() else { return };
    let Some(guest) = domain::find(shelf.guest.domain).filter(|guest| !guest.is_dying()) else { return };
    shelf.disk.give_up(true);
    // A portion is more than a ring full of them costs. What the guest asks for from now on is nobody's affair.
    let _ = shelf.serve(&guest, &mut PORTION.clone());
}

/// Lets a disk go whose guest has no use for answers. ENOENT.
pub fn withdraw(name: Name) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    let (place, _) = config.find(name)?;
    unplug(&mut config, place);
    Ok(())
}

/// The port of this name is gone: so is the disk, if it was the guest's; else its back end.
pub fn lost_port(cookie: u32) {
    let name = Name::of_cookie(cookie);
    let _ = if cookie & BACK_EVENT != 0 { detach(name) } else { withdraw(name) };
}

/// Disks that are let go between two looks at what else there is to do.
const FORGET_STEPS: usize = 8;

/// Lets all disks go that `d`, which is dying, has or that are granted to it, and takes it away as a back end.
/// ERESTART: to be called again.
pub fn forget_domain(d: &Domain) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    for _ in 0..FORGET_STEPS {
        let is_its = |c: &Connected| c.request.guest == d.id || c.request.backend == d.id;
        let mut concerned = config.disks.iter_mut().filter(|(_, c)| is_its(c) || c.back == Some(d.id));
        match concerned.next() {
            None => return Ok(()),
            Some((place, connected)) if !is_its(connected) => unlink(*place, connected),
            Some((place, _)) => {
                let place = *place;
                unplug(&mut config, place);
            }
        }
    }
    Err(Errno::ERESTART)
}

/// Takes `d`, which is about to lose a device, away as a back end: with the device gone it would answer with errors,
/// and it may run on for a while, as under `xl destroy`, which takes devices away first. Who keeps its medium is
/// attached again. ERESTART: to be called again.
pub fn lose_device(d: &Domain) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    let mut served = config.disks.iter_mut().filter(|(_, c)| c.back == Some(d.id));
    for (place, connected) in served.by_ref().take(FORGET_STEPS) {
        unlink(*place, connected);
    }
    served.next().map_or(Ok(()), |_| Err(Errno::ERESTART))
}

/// What a disk is and has done. ENOENT.
pub fn status(name: Name) -> Result<ChannelDiskStatus, Errno> {
    let mut config = CONFIG.lock();
    let (place, connected) = config.find(name)?;
    Ok(describe(place, connected))
}

/// The same of the first one from `place` on. ENOENT.
pub fn next(place: u32) -> Result<ChannelDiskStatus, Errno> {
    let place = u16::try_from(place).map_err(|_| Errno::ENOENT)?;
    let config = CONFIG.lock();
    config.disks.range(place..).next().map(|(place, connected)| describe(*place, connected)).ok_or(Errno::ENOENT)
}

fn describe(place: u16, connected: &Connected) -> ChannelDiskStatus {
    let ChannelDiskConnect { guest, backend, device, flags, .. } = connected.request;
    let mut status = ChannelDiskStatus {
        disk: connected.name.raw(),
        next: u32::from(place) + 1,
        guest,
        backend,
        device,
        flags,
        back: connected.back.unwrap_or(op::DISK_NO_BACK),
        ..ChannelDiskStatus::default()
    };
    status.state |=
        if domain::find(guest).is_some_and(|guest| guest.has_stopped()) { op::DISK_GUEST_STOPPED } else { 0 };
    if let Some(shelf) = DISKS[usize::from(place)].lock().as_deref_mut() {
        let stats = shelf.disk.stats;
        let has_ended = connected.back.is_some() && shelf.disk.back_page().is_none();
        status.state |= if shelf.disk.fatal().is_some() { op::DISK_ENDED } else { 0 };
        let is_empty = has_ended && shelf.disk.was_empty();
        status.state |= if has_ended && !is_empty { op::DISK_BACK_ENDED } else { 0 };
        status.state |= if is_empty { op::DISK_BACK_EMPTY } else { 0 };
        status.state |= if shelf.disk.has_doubts() { op::DISK_BACK_DOUBTED } else { 0 };
        status.state |= if shelf.disk.has_given_up() { op::DISK_GIVEN_UP } else { 0 };
        status.waiting = shelf.disk.waiting().into();
        (status.reads, status.writes) = (stats.reads, stats.writes);
        (status.flushes, status.discards) = (stats.flushes, stats.discards);
        (status.read_sectors, status.written_sectors) = (stats.read_sectors, stats.written_sectors);
        (status.errors, status.repeated) = (stats.errors, stats.repeated);
        (status.bad_answers, status.passed_on, status.merged) = (stats.bad_answers, stats.passed_on, stats.merged);
        status.bad_rings = u32::try_from(stats.bad_rings).unwrap_or(u32::MAX);
        status.empty_reads = stats.empty_reads;
        status.answered = stats.answered;
        let now = tsc::now_ns();
        (status.oldest_ns, status.overdue_ns) = (shelf.disk.oldest_for(now), shelf.disk.overdue_for(now));
    }
    status
}
