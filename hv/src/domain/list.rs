//! The list of domains. Every event to another domain and every use of its grants looks into it, so looking takes no
//! lock and counts nothing that CPUs share.
//!
//! Domains are in a hash table whose links are only ever read or replaced whole. A CPU that looks one up is in a
//! *section* until it lets go of what it found, and notes that in a word of its own. Whoever takes a domain out frees
//! it only after every CPU was seen outside a section since ([`hv_core::graves`]). A section may last as long as an
//! execution of a hypercall: who has another domain's memory changed keeps that domain over preemption points at which
//! it is not stopped. So guests run until it is looked again whether the sections are over.

use super::Domain;
use crate::arch::ipi;
use crate::cpu::percpu::{self, pending, this_cpu};
use crate::sync::{Mutex, RwLock};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{compiler_fence, fence, AtomicPtr, AtomicU32, Ordering};
use hv_core::graves::{Graves, Next};
use xen_abi::layout::DOMID_FIRST_RESERVED;

const BUCKETS: usize = 256;

/// For looking up; every domain in it is in [`ALL`], too, or in [`GRAVES`].
static TABLE: [AtomicPtr<Domain>; BUCKETS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; BUCKETS];
/// The domains, in the order of their numbers. Its lock also guards changes of [`TABLE`].
static ALL: RwLock<BTreeMap<u16, Arc<Domain>>> = RwLock::new(BTreeMap::new());
/// Taken out, but some CPU may still look at them.
static GRAVES: Mutex<Graves<Arc<Domain>>> = Mutex::new(Graves::new());

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
    // SAFETY: a pointer in the table is of a domain that is not freed while a section lasts that began before it was
    // taken out, and this one did if it sees it.
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

/// Forgets a dead domain of which nobody has anything any more: no memory of its own, and none that was lent to it.
/// Called whenever a page comes back, or a loan ends.
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
    if let Err(d) = GRAVES.lock().add(d) {
        // No memory to note it: it stays for ever. Its own pages are back already.
        core::mem::forget(d);
        return;
    }
    this_cpu().raise(pending::GRAVES);
}

/// What was taken out of the list and nobody looks at any more, to be freed, and when to ask again. No lock is held and
/// no domain looked at.
///
/// This does not wait for other CPUs: one of them may be waiting, in a section, for the vCPU that runs here.
pub(super) fn take_dead() -> (Vec<Arc<Domain>>, Next) {
    let others = percpu::online_mask() & !(1 << this_cpu().cpu);
    let barrier = || {
        ipi::call(percpu::online_mask(), |_| fence(Ordering::SeqCst), 0);
    };
    let count = |cpu| percpu::cpu(cpu).map_or(0, |cpu| cpu.sections.load(Ordering::Acquire));
    GRAVES.lock().take(others, barrier, count)
}
