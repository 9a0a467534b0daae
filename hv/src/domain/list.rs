//! The list of domains. Every event to another domain and every use of its grants looks into it, so looking takes no lock
//! and counts nothing that CPUs share.
//!
//! Domains are in a hash table whose links are only ever read or replaced whole. A CPU that looks one up is in a *section*
//! until it lets go of what it found, and notes that in a word of its own. Whoever takes a domain out frees it only after
//! every CPU was seen outside a section since: first each CPU does a full barrier (by an interrupt), so that sections that
//! begin later cannot find the domain; then it is looked at now and then whether the sections that began earlier are over.
//! A section lasts no longer than a hypercall's stretch between two preemption points, for nothing in the hypervisor sleeps.

use super::Domain;
use crate::arch::ipi;
use crate::cpu::percpu::{self, pending, this_cpu, MAX_CPUS};
use crate::sync::{Mutex, RwLock};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{compiler_fence, fence, AtomicPtr, AtomicU32, Ordering};
use xen_abi::layout::DOMID_FIRST_RESERVED;

const BUCKETS: usize = 256;

/// For looking up; every domain in it is in [`ALL`], too, or in [`GRAVES`].
static TABLE: [AtomicPtr<Domain>; BUCKETS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; BUCKETS];
/// The domains, in the order of their numbers. Its lock also guards changes of [`TABLE`].
static ALL: RwLock<BTreeMap<u16, Arc<Domain>>> = RwLock::new(BTreeMap::new());
/// Taken out, but some CPU may still look at them.
struct Graves {
    /// Since the last batch.
    fresh: Vec<Arc<Domain>>,
    batch: Vec<Arc<Domain>>,
    /// CPUs in a section that may have found one of the batch, and what they counted then.
    waiting: u64,
    then: [u32; MAX_CPUS],
}
static GRAVES: Mutex<Graves> =
    Mutex::new(Graves { fresh: Vec::new(), batch: Vec::new(), waiting: 0, then: [0; MAX_CPUS] });

/// A domain that stays while this lives. It may not outlive the hypercall or exit in which it was looked up.
pub struct DomainRef {
    domain: &'static Domain,
    /// The section is this CPU's.
    not_send: PhantomData<*const ()>,
}

impl Deref for DomainRef {
    type Target = Domain;
    #[inline(always)]
    fn deref(&self) -> &Domain {
        self.domain
    }
}

impl Drop for DomainRef {
    #[inline]
    fn drop(&mut self) {
        leave();
    }
}

/// No domain is freed that was in the list when this began, as long as it lives. As short as a [`DomainRef`].
pub struct Section {
    /// It is this CPU's.
    not_send: PhantomData<*const ()>,
}

impl Section {
    /// Begins one.
    #[inline]
    pub fn begin() -> Self {
        enter();
        Self { not_send: PhantomData }
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        leave();
    }
}

/// This CPU begins to look at domains. Sections nest.
#[inline]
fn enter() {
    let me = this_cpu();
    let depth = me.section_depth.get();
    me.section_depth.set(depth + 1);
    if depth == 0 {
        let count = &me.sections;
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
    // Who frees a domain makes this CPU do a barrier first; so here only the compiler must keep the order.
    compiler_fence(Ordering::SeqCst);
}

#[inline]
fn leave() {
    let me = this_cpu();
    let depth = me.section_depth.get() - 1;
    me.section_depth.set(depth);
    if depth == 0 {
        let count = &me.sections;
        // Release: what was done with the domain is done before this is seen.
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

fn bucket(id: u16) -> &'static AtomicPtr<Domain> {
    &TABLE[usize::from(id) % BUCKETS]
}

/// Adds a domain.
pub fn insert(d: Arc<Domain>) {
    let mut all = ALL.write();
    let first = bucket(d.id);
    d.next_in_bucket.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
    first.store(Arc::as_ptr(&d).cast_mut(), Ordering::Release);
    all.insert(d.id, d);
}

/// The domain with number `id`.
#[inline]
pub fn find(id: u16) -> Option<DomainRef> {
    enter();
    let mut at = bucket(id).load(Ordering::Acquire);
    // SAFETY: a pointer in the table is of a domain that is not freed while a section lasts that began before it was taken
    // out, and this one did if it sees it.
    while let Some(domain) = unsafe { at.as_ref() } {
        if domain.id == id {
            return Some(DomainRef { domain, not_send: PhantomData });
        }
        at = domain.next_in_bucket.load(Ordering::Acquire);
    }
    leave();
    None
}

/// The domain with the lowest number that is not below `id`.
pub fn find_from(id: u16) -> Option<DomainRef> {
    loop {
        let number = *ALL.read().range(id..).next()?.0;
        // It may be gone by now.
        if let Some(d) = find(number) {
            return Some(d);
        }
    }
}

/// Calls `f` for every domain.
pub fn for_each(mut f: impl FnMut(&Domain)) {
    ALL.read().values().for_each(|d| f(d));
}

/// The next number for a new domain: numbers are not used again soon. `DOMAIN_LIST_LOCK` is held.
pub fn next_free_id() -> Option<u16> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let last = LAST.load(Ordering::Relaxed);
    let count = u32::from(DOMID_FIRST_RESERVED);
    let all = ALL.read();
    let is_free = |id: &u32| *id != 0 && u16::try_from(*id).is_ok_and(|id| !all.contains_key(&id));
    let free = (1..=count).map(|n| (last + n) % count).find(is_free)?;
    LAST.store(free, Ordering::Relaxed);
    u16::try_from(free).ok()
}

/// CPU `cpu` no longer holds translations of domain `id`.
pub fn forget_dirty(id: u16, cpu: u32) {
    if let Some(d) = find(id) {
        d.dirty_cpus.fetch_and(!(1 << cpu), Ordering::AcqRel);
    }
}

/// Forgets a dead domain of which nobody has anything any more: no memory of its own, and none that was lent to it. Called
/// whenever a page comes back, or a loan ends.
pub fn bury_if_empty(d: &Domain) {
    if d.is_dead() && d.mm.tot_pages() == 0 && d.lent.load(Ordering::SeqCst) == 0 {
        remove(d);
    }
}

/// Takes a domain out of the list, if it is still there; it is freed soon. Any locks may be held.
fn remove(domain: &Domain) {
    let mut all = ALL.write();
    // Somebody else may have taken it out, and the number may be another domain's by now.
    if all.get(&domain.id).is_none_or(|d| !core::ptr::eq(Arc::as_ptr(d), domain)) {
        return;
    }
    let Some(d) = all.remove(&domain.id) else { return };
    let mut link = bucket(domain.id);
    // SAFETY: as in `find`; besides, the lock keeps all others from changing links.
    while let Some(at) = unsafe { link.load(Ordering::Relaxed).as_ref() } {
        if core::ptr::eq(at, Arc::as_ptr(&d)) {
            link.store(at.next_in_bucket.load(Ordering::Relaxed), Ordering::Release);
            break;
        }
        link = &at.next_in_bucket;
    }
    drop(all);
    let mut graves = GRAVES.lock();
    if graves.fresh.try_reserve(1).is_err() {
        // No memory to note it: it stays for ever. Its own pages are back already.
        core::mem::forget(d);
        return;
    }
    graves.fresh.push(d);
    this_cpu().raise(pending::GRAVES);
}

/// What was taken out of the list and nobody looks at any more, to be freed; what is left is asked for again. No lock is
/// held and no domain looked at.
///
/// This does not wait for other CPUs: one of them may be waiting, in a section, for the vCPU that runs here.
pub(super) fn take_dead() -> Vec<Arc<Domain>> {
    let mut graves = GRAVES.lock();
    if graves.waiting == 0 && graves.batch.is_empty() {
        graves.batch = core::mem::take(&mut graves.fresh);
        if !graves.batch.is_empty() {
            ipi::call(percpu::online_mask(), |_| fence(Ordering::SeqCst), 0);
            graves.note_sections();
        }
    }
    graves.look_again();
    let is_free = graves.waiting == 0;
    let dead = if is_free { core::mem::take(&mut graves.batch) } else { Vec::new() };
    if !is_free || !graves.fresh.is_empty() {
        this_cpu().raise(pending::GRAVES);
    }
    dead
}

impl Graves {
    /// Notes the sections that began before the domains of the batch were out of the list for everybody.
    fn note_sections(&mut self) {
        let me = this_cpu().cpu as usize;
        for cpu in (0..MAX_CPUS).filter(|cpu| *cpu != me && percpu::online_mask() >> cpu & 1 != 0) {
            let Some(other) = percpu::cpu(cpu) else { continue };
            self.then[cpu] = other.sections.load(Ordering::Acquire);
            self.waiting |= u64::from(self.then[cpu] % 2) << cpu;
        }
    }

    /// Forgets those that have ended.
    fn look_again(&mut self) {
        let waiting = self.waiting;
        for cpu in (0..MAX_CPUS).filter(|cpu| waiting >> cpu & 1 != 0) {
            let still = percpu::cpu(cpu).is_some_and(|c| c.sections.load(Ordering::Acquire) == self.then[cpu]);
            if !still {
                self.waiting &= !(1 << cpu);
            }
        }
    }
}
