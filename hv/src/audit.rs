//! The audit of all frames: are types, references and free frames what those who hold them say? For the debug key.
//!
//! All vCPUs but the caller's are stopped meanwhile, each between two instructions of its guest, so that nothing is
//! half done that is not in a domain's `Deferred`. It takes some milliseconds per GiB and is not preemptible: a tool
//! for the control domain only.

use crate::console::print;
use crate::cpu::percpu::this_cpu;
use crate::domain::memory::limbo;
use crate::domain::memory::mmu_env::{mmu, Env};
use crate::domain::vcpu::{self, stop, Vcpu};
use crate::domain::{self, snapshot, Domain, DomainRef};
use crate::mem::{frames, heap};
use crate::sync::Mutex;
use crate::{channel, irq, sched, twin};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hv_core::grant::audit::Ledger;
use hv_core::mmu::{Audit, Table, Tally};
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;

/// Complaints that are printed.
const MAX_COMPLAINTS: u64 = 16;

/// Frames that the hypervisor had for itself at the first audit, besides those that are accounted for. One audit at a
/// time.
static OWN_AT_FIRST: Mutex<Option<u64>> = Mutex::new(None);

/// Frames by what they are.
struct Totals {
    ram: u64,
    free: u64,
    /// Belonging to no domain.
    nobodys: u64,
    lent: u64,
    wrong: u64,
    of_domains: Tally,
}

/// The debug key.
pub const KEY: u8 = b'f';

/// Recounts everything and says on the console what it found. EIO: something is wrong; EBUSY: another audit is under
/// way; ENOMEM.
pub fn run() -> Result<(), Errno> {
    let caller = vcpu::current(this_cpu());
    let mut first = OWN_AT_FIRST.try_lock().ok_or(Errno::EBUSY)?;
    let domains = all_domains()?;
    let vcpus =
        || domains.iter().flat_map(|d| d.vcpus()).filter(|v| !caller.is_some_and(|c| core::ptr::eq::<Vcpu>(*v, &**c)));
    vcpus().for_each(|v| sched::halt(v, stop::AUDIT));
    vcpus().for_each(sched::wait_asleep);
    let result = {
        // Cards before channels: who runs one passes packets on.
        let (_cards, _channels) = (twin::net::hold_still(), channel::hold_still());
        recount(&domains)
    };
    vcpus().for_each(|v| sched::start(v, stop::AUDIT));
    let (totals, own) = result?;
    let lost = own as i64 - first.get_or_insert(own).cast_signed();
    let owned = totals.of_domains.total();
    let Totals { ram, free, lent, wrong, .. } = totals;
    print(format_args!(
        "Frame audit: {ram} frames, {owned} of domains, {lent} lent to them, {free} free, {} heap, {} page tables, \
         {} of snapshots ({} of them packed), {own} hypervisor; {wrong} wrong, {lost} lost",
        heap::frames_used(),
        frames::table_count(),
        snapshot::frames_used(),
        snapshot::packs()
    ));
    if wrong == 0 && lost == 0 {
        Ok(())
    } else {
        Err(Errno::EIO)
    }
}

fn all_domains() -> Result<Vec<DomainRef>, Errno> {
    let mut domains = Vec::new();
    let mut from = 0;
    while let Some(d) = domain::find_from(from) {
        from = d.id + 1;
        domains.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        domains.push(d);
    }
    Ok(domains)
}

/// The totals, and the frames that the hypervisor must have for itself because nobody else has them.
fn recount(domains: &[DomainRef]) -> Result<(Totals, u64), Errno> {
    let wrong = recount_grants(domains)?;
    let mut found = Table::new(frames::end().index()).map_err(|_| Errno::ENOMEM)?;
    let of_domains = Tally::new(domains.iter().map(|d| DomId(d.id))).map_err(|_| Errno::ENOMEM)?;
    // From here on nothing takes memory: what is free is counted frame by frame, and then compared.
    let mut audit = Audit::new(mmu(), &mut found);
    let mut totals = Totals { ram: 0, free: 0, nobodys: 0, lent: 0, wrong, of_domains };
    totals.wrong += domains.iter().map(|d| tell_domain(&mut audit, d)).sum::<u64>();
    irq::guest::lock().for_each_page(|page| audit.writable(page.mfn()));
    frames::for_each_free(|first, order| (0..1 << order).for_each(|n| audit.free(Mfn::new(first + n))));
    limbo::for_each(|mfn| audit.free(*mfn));

    audit.finish(|mfn, frame, found, agrees| {
        totals.ram += 1;
        totals.free += u64::from(found.is_free());
        let count = frame.count();
        match count.owner() {
            DomId::INVALID | DomId::XEN => totals.nobodys += 1,
            _ if count.is_heap() => totals.lent += 1,
            owner => totals.of_domains.add(owner),
        }
        if !agrees {
            totals.wrong += 1;
            if totals.wrong <= MAX_COMPLAINTS {
                print(format_args!("Frame audit: {mfn:?}: {frame:?}, but {found:?}"));
            }
        }
    });
    for d in domains {
        let counted = totals.of_domains.count(DomId(d.id));
        if counted != d.mm.tot_pages() {
            totals.wrong += 1;
            print(format_args!(
                "Frame audit: d{} has {counted} pages, but its account says {}",
                d.id,
                d.mm.tot_pages()
            ));
        }
    }
    if totals.free != limbo::free_in_all() {
        totals.wrong += 1;
        print(format_args!(
            "Frame audit: {} free frames, but the allocator says {}",
            totals.free,
            limbo::free_in_all()
        ));
    }
    let accounted = totals.free + heap::frames_used() + frames::table_count() + snapshot::frames_used();
    let own = totals.nobodys.saturating_sub(accounted);
    Ok((totals, own))
}

/// What of grants and handles does not belong together. ENOMEM.
fn recount_grants(domains: &[DomainRef]) -> Result<u64, Errno> {
    let mut ledger = Ledger::new();
    for d in domains {
        ledger.handles(d.id, &d.grants.track()).map_err(|_| Errno::ENOMEM)?;
        ledger.table(&d.grants.table()).map_err(|_| Errno::ENOMEM)?;
    }
    channel::tell(&mut ledger).map_err(|_| Errno::ENOMEM)?;
    let mut wrong = 0;
    ledger.finish(|named, more| {
        wrong += 1;
        if wrong <= MAX_COMPLAINTS {
            print(format_args!("Frame audit: {named:?}: handles more than uses, by kind: {more:?}"));
        }
    });
    Ok(wrong)
}

/// Names what a domain and its vCPUs hold. Returns how many vCPUs could run without page tables.
fn tell_domain(audit: &mut Audit<'_, '_, Env>, d: &Domain) -> u64 {
    twin::tell(audit, d);
    audit.deferred(&d.mm.lock());
    d.events.lock().for_each_page(|page| audit.writable(page.mfn()));
    d.grants.table().for_each_reference(|frame, writable| {
        if writable {
            audit.writable(Mfn::new(frame));
        } else {
            audit.page(Mfn::new(frame));
        }
    });
    const NONE: Mfn = Mfn::new(0);
    let mut wrong = 0;
    for v in d.vcpus() {
        // SAFETY: `run` has stopped all vCPUs and those who held one, but for the caller, which this CPU runs.
        let v = unsafe { v.owned() };
        if v.has_context() && v.kernel_root.get() == NONE {
            wrong += 1;
            print(format_args!("Frame audit: {v} has no page tables to run on"));
        }
        [v.kernel_root.get(), v.user_root.get()].into_iter().filter(|mfn| *mfn != NONE).for_each(|mfn| audit.root(mfn));
        let (gdt, ldt) = (v.gdt_frames.get(), v.ldt_frames.get());
        gdt.into_iter().chain(ldt).filter(|mfn| *mfn != NONE).for_each(|mfn| audit.segdesc(mfn));
        let info = v.info_frame.load(Ordering::Acquire);
        if info != !0 {
            audit.writable(Mfn::new(info));
        }
    }
    wrong
}
