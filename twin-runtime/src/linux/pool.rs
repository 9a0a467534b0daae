//! Buffers that the driver domain lends, so that nothing has to be allocated in the domain while a twin runs.
//!
//! Every lent object carries one reference more than Linux counts for its user (an `sk_buff` in `users`, a fragment in
//! its page's `_refcount`). So when the domain frees one that it found in a ring (the interface goes down), only the
//! count drops, and [`Pool::reclaim`] recognises it by that. This is the reference-count trick of the paper.
//!
//! The count is the same at home as with the driver, so that it never has to be written when an object goes out or
//! comes home: there are several lanes, and one of them looks at the counts of what others give and take just then. For
//! the same reason nobody touches an object that he has given back: it is another lane's at once.

mod forgetting;
mod reclaim;
mod table;

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::shares::{Holder, Shares};
use crate::order::sort_by_key;
pub use forgetting::Forgetting;
pub use reclaim::Search;
use table::Table;

/// Value of `users` of an `sk_buff` that is lent: Linux's own reference and the lender's.
pub const USERS: u32 = 2;
/// Objects at which [`Pool::reclaim`] looks at a time.
const PORTION: usize = 64;
/// Most pages of a packet besides its buffer: as many as its 65535 bytes need.
pub const MAX_PAGES: usize = 16;
/// One of so many objects that the driver does not have is for what is received: the host takes none to send if no more
/// are free.
const KEPT_FREE: usize = 4;
/// So many for each transmit queue the driver is not given to receive into, or one of [`KEPT_FREE`] if that is fewer:
/// what lies in its rings does not come back before something was received into it.
const LEFT_TO_SEND: usize = 64;
/// Bytes of a fragment that may be a part of a packet of the host's.
const PAGE: u64 = 4096;

/// An `sk_buff` of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Its buffer, or 0 for one that is built around other data.
    pub head: u64,
    /// Bytes of the buffer with the shared info.
    pub size: u32,
    /// With whom it is.
    pub out: Use,
    /// Machine address of the buffer, for whoever holds it; 0: not known.
    pub machine: u64,
    /// The first of the fragments that the host has put a packet's rest into; 0: none.
    pages: u64,
    /// The transmit queue that it was taken for.
    holder: Holder,
}

impl Lent {
    /// At home.
    const fn new(head: u64, size: u32) -> Self {
        Self { head, size, out: Use::Home, machine: 0, pages: 0, holder: Holder::NOBODY }
    }

    /// Its pages, and for whom it was taken, which is nobody any more. `None`: it has none, and was taken for nobody.
    #[inline(always)]
    fn take_held(&mut self) -> Option<(u64, Holder)> {
        if self.pages == 0 && self.holder == Holder::NOBODY {
            return None;
        }
        Some((core::mem::take(&mut self.pages), core::mem::take(&mut self.holder)))
    }
}

/// Where a lent object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// In the pool.
    Home,
    /// With the driver.
    Driver,
    /// With the driver, to be transmitted; the cookie identifies it to the sender.
    Transmit(u64),
    /// With the host, for a packet that is to be transmitted.
    Reserved,
    /// With the host: a packet that was received.
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    page: u64,
    references: u32,
    out: FragmentUse,
    bytes: u64,
    machine: u64,
}

/// Where a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FragmentUse {
    Home,
    /// With the driver, to receive.
    Driver,
    /// With the host: in it lies a packet that was received.
    Kept,
    /// A part of a packet of the host's, before this one; 0: the last.
    Packet(u64),
}

/// A lent page, for whoever fills it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentPage {
    /// Address of its `struct page`.
    pub page: u64,
    /// Machine address of its bytes.
    pub machine: u64,
}

/// An `sk_buff` that the host has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// It.
    pub skb: u64,
    /// Bytes of its buffer with the shared info.
    pub size: u32,
    /// Machine address of the buffer.
    pub machine: u64,
}

/// Why an object is not lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is said to be at address 0, or its buffer is: here that says that there is none.
    AtZero,
    /// There is no memory to remember it by.
    NoMemory,
}

impl From<TryReserveError> for Refusal {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// What became of an object that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// It is in the pool again; this is what it was.
    Back(Lent),
    /// It was in the pool already.
    Twice,
    /// It is not of this pool.
    Foreign,
}

/// What kind of object was taken out of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An `sk_buff` with its buffer.
    #[default]
    Whole,
    /// An `sk_buff` without one.
    Bare,
    /// A receive buffer.
    Fragment,
}

/// Objects that the driver has to receive into.
#[derive(Clone, Copy, Debug, Default)]
struct Receiving {
    now: usize,
    most: usize,
}

impl Receiving {
    /// There are `all`, which `nr_queues` transmit queues share.
    fn of(&mut self, all: usize, nr_queues: usize) {
        self.most = all - (all / KEPT_FREE).min(nr_queues.saturating_mul(LEFT_TO_SEND));
    }

    /// May the driver have another one?
    #[inline(always)]
    const fn may_grow(self) -> bool {
        self.now < self.most
    }

    /// It has one fewer.
    #[inline(always)]
    const fn one_less(&mut self) {
        self.now = self.now.saturating_sub(1);
    }

    /// So many of `all` objects, of which the driver has these, are for what is received besides.
    #[inline(always)]
    const fn kept_free(self, all: usize) -> usize {
        all.saturating_sub(self.now) / KEPT_FREE
    }

    /// So many are for what is sent.
    #[inline(always)]
    const fn left(self, all: usize) -> usize {
        all.saturating_sub(self.now) - self.kept_free(all)
    }
}

/// The lent objects of one domain.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    skbs: Table<Lent>,
    whole: Vec<u64>,
    bare: Vec<u64>,
    fragments: Table<Fragment>,
    free_fragments: Vec<u64>,
    fragment_bytes: u64,
    nr_whole: usize,
    /// Those with buffer, and fragments, that are with the driver to receive into.
    receiving: Receiving,
    receiving_fragments: Receiving,
    /// Bytes of the smallest buffer that was lent with an `sk_buff`; 0: none was.
    smallest: u32,
    /// What transmit queues hold.
    shares: Shares,
    /// Those that are with the driver to be transmitted.
    nr_transmitting: usize,
    /// The driver has given one of them back since [`Self::reclaim`] looked last.
    has_sent: bool,
    /// Where [`Self::reclaim`] goes on: the place of an `sk_buff`, or behind them that of a fragment.
    look_next: usize,
    /// Requests that found the pool empty.
    pub exhausted: u64,
    /// The same, when [`Self::reclaim`] looked last.
    exhausted_before: u64,
}

impl Pool {
    /// Adds an `sk_buff` with its buffer.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn lend(&mut self, skb: u64, head: u64, size: u32) -> Result<(), Refusal> {
        if skb == 0 || head == 0 {
            return Err(Refusal::AtZero);
        }
        let before = self.skbs.objects.len();
        self.skbs.add(skb, Lent::new(head, size), &mut self.whole)?;
        self.nr_whole += self.skbs.objects.len() - before;
        self.share_out();
        self.smallest = if self.smallest == 0 { size } else { self.smallest.min(size) };
        Ok(())
    }

    /// Bytes that every buffer of an `sk_buff` has; 0: none was lent.
    #[must_use]
    pub fn smallest(&self) -> u32 {
        self.smallest
    }

    /// Adds an `sk_buff` without a buffer.
    ///
    /// # Errors
    /// As for [`Self::lend`].
    pub fn lend_bare(&mut self, skb: u64) -> Result<(), Refusal> {
        if skb == 0 {
            return Err(Refusal::AtZero);
        }
        Ok(self.skbs.add(skb, Lent::new(0, 0), &mut self.bare)?)
    }

    /// Adds a receive buffer of `bytes` bytes (the same for all) in `page`, whose `_refcount` is `references` while it
    /// is lent.
    ///
    /// # Errors
    /// As for [`Self::lend`].
    pub fn lend_fragment(&mut self, data: u64, page: u64, references: u32, bytes: u64) -> Result<(), Refusal> {
        if data == 0 {
            return Err(Refusal::AtZero);
        }
        self.fragment_bytes = if self.fragments.objects.is_empty() { bytes } else { self.fragment_bytes.min(bytes) };
        let fragment = Fragment { page, references, out: FragmentUse::Home, bytes, machine: 0 };
        self.fragments.add(data, fragment, &mut self.free_fragments)?;
        self.share_out();
        Ok(())
    }

    /// There are more or fewer objects than before, or transmit queues: the driver may have so many to receive into.
    fn share_out(&mut self) {
        self.receiving.of(self.nr_whole, self.shares.nr_queues());
        self.receiving_fragments.of(self.fragments.objects.len(), self.shares.nr_queues());
    }

    /// Is this an `sk_buff`, or the data of a fragment, that is lent?
    #[must_use]
    pub fn knows(&mut self, object: u64) -> bool {
        self.skbs.get_mut(object).is_some() || self.fragments.get_mut(object).is_some()
    }

    /// The buffer of the `sk_buff`, or the fragment, that was lent as `object` is at machine address `machine`, in one
    /// piece.
    pub fn locate(&mut self, object: u64, machine: u64) {
        if let Some(lent) = self.skbs.get_mut(object) {
            lent.machine = machine;
        } else if let Some(fragment) = self.fragments.get_mut(object) {
            fragment.machine = machine;
        }
    }

    /// The packet of `len` bytes at `address`, in `skb` with its buffer at `head`, is the host's from now on: with the
    /// driver, or at home, it could be taken back at any time. Its machine address. `None`: it does not lie in a buffer
    /// that is with the driver and was located.
    #[inline(always)]
    pub(crate) fn keep(&mut self, skb: u64, head: u64, address: u64, len: u64) -> Option<u64> {
        let inside = |start: u64, bytes: u64, machine: u64| {
            let at = address.checked_sub(start)?;
            (machine != 0 && at.checked_add(len)? <= bytes).then_some(machine + at)
        };
        let lent = self.skbs.get_mut(skb).filter(|lent| lent.out == Use::Driver)?;
        let machine = if lent.head == 0 {
            let fragment = self.fragments.get_mut(head).filter(|fragment| fragment.out == FragmentUse::Driver)?;
            let machine = inside(head, fragment.bytes, fragment.machine)?;
            fragment.out = FragmentUse::Kept;
            self.receiving_fragments.one_less();
            machine
        } else {
            let machine = inside(lent.head, lent.size.into(), lent.machine)?;
            self.receiving.one_less();
            machine
        };
        lent.out = Use::Kept;
        Some(machine)
    }

    /// Gives back what was kept.
    pub(crate) fn let_go(&mut self, skb: u64, head: u64) {
        let Some(lent) = self.skbs.get_mut(skb).filter(|lent| lent.out == Use::Kept) else { return };
        lent.out = Use::Home;
        if lent.head != 0 {
            // It may be a packet that was to be sent, whose sender did not wait for it.
            let held = lent.take_held();
            self.whole.push(skb);
            return self.let_go_of(held);
        }
        self.bare.push(skb);
        if let Some(fragment) = self.fragments.get_mut(head).filter(|fragment| fragment.out == FragmentUse::Kept) {
            fragment.out = FragmentUse::Home;
            self.free_fragments.push(head);
        }
    }

    /// Takes an `sk_buff` that was located, whose buffer has room for `bytes`, for a transmit queue. It is the host's,
    /// whatever the driver does with it.
    #[inline]
    pub fn reserve(&mut self, bytes: u64, queue: usize) -> Option<Reserved> {
        let Some((skb, lent)) = Self::take_from(&mut self.whole, &mut self.skbs, bytes) else {
            self.exhausted += 1;
            return None;
        };
        if lent.machine == 0 {
            self.whole.push(skb);
            return None;
        }
        (lent.out, lent.holder) = (Use::Reserved, self.shares.hold_buffer(queue));
        Some(Reserved { skb, size: lent.size, machine: lent.machine })
    }

    /// From now on so many transmit queues share what the host may take.
    pub fn share_among(&mut self, nr_queues: usize) {
        self.shares.among(nr_queues);
        self.share_out();
    }

    /// Gives `skb`, which is reserved, free fragments, as many as `into` has places: each a whole page that was
    /// located. They go with it and come back with it. `false`: there are not so many, or it has some; then nothing is
    /// changed.
    pub fn add_pages(&mut self, skb: u64, into: &mut [LentPage]) -> bool {
        let has_none = self.skbs.get_mut(skb).is_some_and(|lent| lent.out == Use::Reserved && lent.pages == 0);
        if !has_none || self.free_fragments.len() < into.len() {
            return false;
        }
        // The last first: each leads to the one behind it.
        let mut first = 0;
        for to in into.iter_mut().rev() {
            let Some(data) = self.free_fragments.pop() else { break };
            let is_page = |f: &&mut Fragment| f.machine != 0 && f.machine.is_multiple_of(PAGE) && f.bytes == PAGE;
            let Some(fragment) = self.fragments.get_mut(data).filter(is_page) else {
                self.free_fragments.push(data);
                self.free_pages(first);
                return false;
            };
            fragment.out = FragmentUse::Packet(first);
            *to = LentPage { page: fragment.page, machine: fragment.machine };
            first = data;
        }
        if let Some(lent) = self.skbs.get_mut(skb) {
            lent.pages = first;
            self.shares.hold_pages(lent.holder, into.len());
        }
        true
    }

    /// The pages that `skb` was given, in order, as many as `into` has room for; how many those are.
    pub fn pages(&mut self, skb: u64, into: &mut [LentPage]) -> usize {
        let (mut at, mut count) = (self.skbs.get_mut(skb).map_or(0, |lent| lent.pages), 0);
        while let Some(fragment) = self.page(at) {
            let (FragmentUse::Packet(next), Some(to)) = (fragment.out, into.get_mut(count)) else { break };
            *to = LentPage { page: fragment.page, machine: fragment.machine };
            (at, count) = (next, count + 1);
        }
        count
    }

    /// A page of a packet's; `None` for 0, which is behind the last, and not looked for.
    fn page(&mut self, at: u64) -> Option<&mut Fragment> {
        match at {
            0 => None,
            _ => self.fragments.get_mut(at),
        }
    }

    /// The pages from `first` on come home; how many those are.
    fn free_pages(&mut self, mut first: u64) -> usize {
        let mut count = 0;
        while let Some(fragment) = self.page(first) {
            let FragmentUse::Packet(next) = core::mem::replace(&mut fragment.out, FragmentUse::Home) else { break };
            self.free_fragments.push(first);
            (first, count) = (next, count + 1);
        }
        count
    }

    /// What a buffer has held that comes home does, too.
    #[inline(always)]
    fn let_go_of(&mut self, held: Option<(u64, Holder)>) {
        if let Some(held) = held {
            self.let_go_of_all(held);
        }
    }

    #[inline(never)]
    fn let_go_of_all(&mut self, (first_page, holder): (u64, Holder)) {
        let nr_pages = self.free_pages(first_page);
        self.shares.give_back(holder, nr_pages);
    }

    /// An `sk_buff` with its buffer, which is known, is free, and what its packet has held besides.
    #[inline]
    fn comes_home(&mut self, skb: u64) {
        let Some(lent) = self.skbs.get_mut(skb) else { return };
        lent.out = Use::Home;
        let held = lent.take_held();
        self.whole.push(skb);
        self.let_go_of(held);
    }

    /// One that was reserved goes to the driver, to be transmitted; what it is. `None`: it is not reserved.
    pub(crate) fn hand_over(&mut self, skb: u64, cookie: u64) -> Option<Lent> {
        let lent = self.skbs.get_mut(skb).filter(|lent| lent.out == Use::Reserved)?;
        lent.out = Use::Transmit(cookie);
        self.nr_transmitting += 1;
        Some(*lent)
    }

    /// One that the driver did not take is the host's again. `false`: the driver has given it back already.
    pub fn take_over(&mut self, skb: u64, cookie: u64) -> bool {
        match self.skbs.get_mut(skb).filter(|lent| lent.out == Use::Transmit(cookie)) {
            Some(lent) => {
                lent.out = Use::Reserved;
                self.nr_transmitting = self.nr_transmitting.saturating_sub(1);
                true
            }
            None => false,
        }
    }

    /// Gives one that was reserved back.
    pub fn unreserve(&mut self, skb: u64) {
        if self.skbs.get_mut(skb).is_some_and(|lent| lent.out == Use::Reserved) {
            self.comes_home(skb);
        }
    }

    /// Numbers of lent objects: `sk_buff`s, fragments.
    #[must_use]
    pub fn lent(&self) -> (usize, usize) {
        (self.skbs.objects.len(), self.fragments.objects.len())
    }

    /// Number of `sk_buff`s with buffer.
    #[must_use]
    pub fn whole(&self) -> usize {
        self.nr_whole
    }

    /// May the host take an `sk_buff` with buffer for a packet to be sent? The rest is for what is received.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.whole.len() > self.receiving.kept_free(self.nr_whole)
    }

    /// May it take `count` fragments for one?
    #[inline]
    #[must_use]
    pub fn has_pages(&self, count: usize) -> bool {
        self.free_fragments.len() > self.receiving_fragments.kept_free(self.fragments.objects.len()) + count
    }

    /// May it take one for this transmit queue, or has that its share?
    #[inline]
    #[must_use]
    pub fn has_room_for(&self, queue: usize) -> bool {
        self.has_room() && self.shares.may_hold_buffer(queue, self.receiving.left(self.nr_whole))
    }

    /// May it take `count` fragments for one of this transmit queue's?
    #[must_use]
    pub fn has_pages_for(&self, queue: usize, count: usize) -> bool {
        let all = self.receiving_fragments.left(self.fragments.objects.len());
        self.has_pages(count) && self.shares.may_hold_pages(queue, count, all)
    }

    /// Is so little free that packets wait for it, or that the driver has found nothing since [`Self::reclaim`] looked
    /// last?
    fn is_short(&self) -> bool {
        let has_fragments = !self.fragments.objects.is_empty();
        self.nr_whole != 0 && !self.has_room()
            || has_fragments && !self.has_pages(MAX_PAGES)
            || self.exhausted != self.exhausted_before
    }

    /// Numbers of free objects: with buffer, without, fragments.
    #[must_use]
    pub fn free(&self) -> (usize, usize, usize) {
        (self.whole.len(), self.bare.len(), self.free_fragments.len())
    }

    /// Forgets objects that nobody uses, as many as fit into `into`, which then has their kinds and addresses; how many
    /// those are.
    pub fn recall(&mut self, into: &mut [(Kind, u64)]) -> usize {
        let mut count = 0;
        let free =
            [(Kind::Whole, &mut self.whole), (Kind::Bare, &mut self.bare), (Kind::Fragment, &mut self.free_fragments)];
        for (kind, list) in free {
            for slot in into.iter_mut().skip(count) {
                let Some(address) = list.pop() else { break };
                *slot = (kind, address);
                count += 1;
            }
        }
        let gone = into.get_mut(..count).unwrap_or_default();
        self.nr_whole -= gone.iter().filter(|(kind, _)| *kind == Kind::Whole).count();
        sort_by_key(gone, |object| *object);
        let is_gone = |kind, address: u64| gone.binary_search(&(kind, address)).is_ok();
        self.skbs.objects.retain(|(a, _)| !is_gone(Kind::Whole, *a) && !is_gone(Kind::Bare, *a));
        self.fragments.objects.retain(|(a, _)| !is_gone(Kind::Fragment, *a));
        self.share_out();
        count
    }

    /// Takes an `sk_buff` whose buffer has room for `bytes`. The driver gets none that are left to send.
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64, out: Use) -> Option<(u64, Lent)> {
        let may = out != Use::Driver || self.receiving.may_grow();
        let taken = may.then(|| Self::take_from(&mut self.whole, &mut self.skbs, bytes)).flatten();
        let Some((skb, lent)) = taken else {
            self.exhausted += 1;
            return None;
        };
        lent.out = out;
        self.receiving.now += usize::from(out == Use::Driver);
        Some((skb, *lent))
    }

    #[inline]
    fn take_from<'t>(free: &mut Vec<u64>, skbs: &'t mut Table<Lent>, bytes: u64) -> Option<(u64, &'t mut Lent)> {
        let skb = free.pop()?;
        let fits = skbs.get_mut(skb).filter(|lent| u64::from(lent.size) >= bytes);
        if fits.is_none() {
            free.push(skb);
        }
        fits.map(|lent| (skb, lent))
    }

    /// Takes an `sk_buff` without buffer.
    pub(crate) fn take_bare(&mut self) -> Option<u64> {
        let Some(skb) = self.bare.pop() else {
            self.exhausted += 1;
            return None;
        };
        self.skbs.get_mut(skb)?.out = Use::Driver;
        Some(skb)
    }

    /// Takes a receive buffer of at least `bytes`. The driver gets none that are left to send.
    pub(crate) fn take_fragment(&mut self, bytes: u64) -> Option<u64> {
        let may = self.fragment_bytes >= bytes && self.receiving_fragments.may_grow();
        let Some(data) = may.then(|| self.free_fragments.pop()).flatten() else {
            self.exhausted += 1;
            return None;
        };
        self.fragments.get_mut(data)?.out = FragmentUse::Driver;
        self.receiving_fragments.now += 1;
        Some(data)
    }

    /// With whom an `sk_buff` is; `None`: it is not of this pool.
    pub(crate) fn is_with(&mut self, skb: u64) -> Option<Use> {
        self.skbs.get_mut(skb).map(|lent| lent.out)
    }

    /// Gives an `sk_buff` back. From now on it is for whoever takes it, and the caller does not look at it any more.
    pub(crate) fn give(&mut self, skb: u64) -> Given {
        let Some(lent) = self.skbs.get_mut(skb) else { return Given::Foreign };
        if matches!(lent.out, Use::Home | Use::Reserved | Use::Kept) {
            return Given::Twice;
        }
        let was = *lent;
        if matches!(was.out, Use::Transmit(_)) {
            self.nr_transmitting = self.nr_transmitting.saturating_sub(1);
        }
        if was.head == 0 {
            lent.out = Use::Home;
            self.bare.push(skb);
        } else {
            if was.out == Use::Driver {
                self.receiving.one_less();
            }
            self.comes_home(skb);
        }
        Given::Back(was)
    }

    /// The driver is done with an `sk_buff` that was to be transmitted: it comes home. Its cookie; `None`: it is not
    /// one, and nothing is done.
    #[inline]
    pub(crate) fn give_sent(&mut self, skb: u64) -> Option<u64> {
        let lent = self.skbs.get_mut(skb)?;
        let Use::Transmit(cookie) = lent.out else { return None };
        lent.out = Use::Home;
        let held = lent.take_held();
        self.nr_transmitting = self.nr_transmitting.saturating_sub(1);
        self.has_sent = true;
        self.whole.push(skb);
        self.let_go_of(held);
        Some(cookie)
    }

    /// Gives a receive buffer back. `None`: it is not of this pool; `false`: it was there already.
    pub(crate) fn give_fragment(&mut self, data: u64) -> Option<bool> {
        let fragment = self.fragments.get_mut(data)?;
        let is_back = fragment.out == FragmentUse::Driver;
        if is_back {
            fragment.out = FragmentUse::Home;
            self.free_fragments.push(data);
            self.receiving_fragments.one_less();
        }
        Some(is_back)
    }

    /// Those that are with the driver to be transmitted.
    #[must_use]
    pub fn transmitting(&self) -> usize {
        self.nr_transmitting
    }
}
