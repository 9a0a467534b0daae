//! Snapshots of domains: what a domain is, noted while it is paused, and the way back to that in place.
//!
//! The decisions are `hv_core`'s ([`hv_core::snapshot`]); here they are put in order. A domain keeps its number, its
//! frames, its event channels, its grants and its devices: what goes back is what is in the frames and what its vCPUs
//! are. [`back`] has the way back.
//!
//! Both are long, and executed again and again until they have ended; what is under way is in [`SNAPSHOTS`], and the
//! domain's vCPUs have a stop bit of their own until it has ended. If it cannot end, they keep that: then the domain is
//! fit for nothing but to be destroyed.
//!
//! Lock order: [`SNAPSHOTS`], row 120 of `docs/architecture.md`, then any lock of a domain. It may be waited for by who
//! holds vCPUs; who has it waits for none that another holds.

mod back;
mod vcpu;

use crate::cpu::percpu::this_cpu;
use crate::domain::memory::mmu_env::{mmu, Env};
use crate::domain::memory::{claims, limbo};
use crate::domain::passthrough::roll_back::{self as functions, Config};
use crate::domain::vcpu::stop;
use crate::domain::{self, life, Domain};
use crate::irq::guest::MsiSource;
use crate::mem::frames;
use crate::sched::{self, AllHeld};
use crate::sync::Mutex;
use crate::{info, irq, warn};
use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::vec::Vec;
use back::{Then, Way};
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::allowance::PAGE;
use hv_core::claims::Claim;
use hv_core::mmu::snapshot::{Copies, Counts, Form, Keep, Memory};
use hv_core::snapshot::{Refusal, Stop};
use hv_core::watchdog::Watchdogs;
use hv_core::{evtchn, grant, map, pirq};
use vcpu::SavedVcpu;
use x86::{Mfn, PAGE_SIZE};
use xen_abi::channel_op as op;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;

/// Frames that hold copies, of all domains.
static COPIES: AtomicU64 = AtomicU64::new(0);

/// How many frames hold copies, or are away. The audit wants to know.
pub fn frames_used() -> u64 {
    COPIES.load(Ordering::Relaxed) + limbo::away_count()
}

impl Keep for Env {
    fn alloc(&self) -> Option<Mfn> {
        // As if a domain that has no claim wanted it: what is set aside for others stays so.
        let mfn = claims::take(&Claim::none(), 1, || frames::alloc_for_domain(0, frames::ANYWHERE))?;
        COPIES.fetch_add(1, Ordering::Relaxed);
        Some(mfn)
    }
    fn free(&self, copy: Mfn) {
        COPIES.fetch_sub(1, Ordering::Relaxed);
        // Nobody else has ever had a translation of it.
        frames::free(copy, 0);
    }
    fn has_room(&self, bytes: usize) -> bool {
        // The heap takes a block, and gives the rest of it back.
        frames::has_beside_reserve(bytes.next_power_of_two().div_ceil(PAGE_SIZE) as u64)
    }
    fn pfn(&self, mfn: Mfn) -> u64 {
        frames::m2p(mfn).map_or(xen_abi::layout::INVALID_M2P_ENTRY, |entry| entry.load(Ordering::Relaxed))
    }
    fn returned(&self, dom: DomId, _: Mfn) {
        if let Some(d) = domain::find(dom.0) {
            d.mm.recharge();
        }
        limbo::returned();
    }
    fn set_free(&self, mfn: Mfn) {
        limbo::set_free(mfn);
    }
}

/// What a domain is besides its memory. All of it is noted at one moment.
struct Rest {
    #[allow(clippy::vec_box, reason = "a block for each: that of all would be some hundred KiB in one piece")]
    vcpus: Vec<Box<SavedVcpu>>,
    events: evtchn::Saved,
    grants: grant::Saved,
    pirqs: pirq::Saved<MsiSource>,
    functions: Vec<Config>,
    shared_info: Vec<u64>,
    vm_assist: u64,
    watchdogs: Watchdogs,
    taken_ns: u64,
}

/// What a domain was.
struct Snapshot {
    memory: Memory,
    /// `None`: it is being taken, or given back.
    rest: Option<Rest>,
    stage: Stage,
    rolled_back: u32,
}

enum Stage {
    Taking,
    Ready,
    RollingBack(Way),
    Broken(Refusal),
    /// It could not be taken: its copies go back, then that is told.
    Failed(Told),
    /// Its copies go back.
    Leaving,
}

struct Snapshots {
    /// By the domain's number.
    all: BTreeMap<u16, Box<Snapshot>>,
    copies: Copies,
}

/// All of them.
static SNAPSHOTS: Mutex<Snapshots> = Mutex::new(Snapshots { all: BTreeMap::new(), copies: Copies::new() });

/// What came of a request, besides its error.
#[derive(Clone, Copy, Default)]
pub struct Told {
    /// Why not.
    pub why: Option<Refusal>,
    /// Frames that are missing.
    pub missing: u64,
}

/// Fills in what is known of the snapshot of `d`.
pub fn status(d: &Domain, r: &mut op::ChannelSnapshot) {
    let snapshots = SNAPSHOTS.lock();
    let snapshot = snapshots.all.get(&d.id);
    r.state = snapshot.map_or(op::SNAPSHOT_NONE, |s| match s.stage {
        Stage::Taking => op::SNAPSHOT_TAKING,
        Stage::Ready => op::SNAPSHOT_READY,
        Stage::RollingBack(_) => op::SNAPSHOT_ROLLING_BACK,
        Stage::Broken(_) => op::SNAPSHOT_BROKEN,
        Stage::Failed(_) | Stage::Leaving => op::SNAPSHOT_NONE,
    });
    r.rolled_back = snapshot.map_or(0, |s| s.rolled_back);
    r.frames = snapshot.map_or(0, |s| s.memory.nr_frames());
    let counts = snapshot.map(|s| s.memory.counts()).unwrap_or_default();
    Counts { copies: r.copies, found: r.found, packed: r.packed, packed_bytes: r.packed_bytes } = counts;
    r.packed_frames = snapshots.copies.nr_packs();
    (r.why, r.what) = match snapshot.map(|s| &s.stage) {
        Some(Stage::Broken(why)) => why.code(),
        _ => (0, 0),
    };
}

/// May a snapshot of `d` be taken, or gone back to? It runs no more meanwhile, whoever unpauses it.
fn check_paused(d: &Domain) -> Result<(), Errno> {
    if d.is_privileged || d.is_hardware || d.is_dying() || !d.is_paused() {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// The vCPUs of `d`: they run no more until [`let_run`]. ERESTART.
fn hold(d: &Domain) -> Result<AllHeld<'_>, Errno> {
    d.vcpus().for_each(|v| sched::halt(v, stop::SNAPSHOT));
    sched::hold_all(d)
}

fn let_run(d: &Domain) {
    d.vcpus().for_each(|v| sched::start(v, stop::SNAPSHOT));
}

/// Notes what `d` is. `form`: how its copies are kept; what the first call said counts. `has_twin`: it has one. Errors:
/// see CHANNELOP_SNAPSHOT_TAKE; ERESTART.
pub fn take(d: &Domain, form: Form, has_twin: bool, told: &mut Told) -> Result<(), Errno> {
    let mut snapshots = SNAPSHOTS.lock();
    let Snapshots { all, copies } = &mut *snapshots;
    if let Entry::Vacant(place) = all.entry(d.id) {
        check_paused(d)?;
        if d.has_stopped() {
            return Err(Errno::EINVAL);
        }
        if !frames::has_headroom() {
            return Err(Errno::ENOMEM);
        }
        let new = Snapshot { memory: Memory::new(form), rest: None, stage: Stage::Taking, rolled_back: 0 };
        place.insert(Box::new(new));
    }
    let snapshot = all.get_mut(&d.id).ok_or(Errno::ENOMEM)?;
    if matches!(snapshot.stage, Stage::Taking) {
        if d.is_dying() {
            return Err(Errno::EINVAL);
        }
        let held = hold(d)?;
        snapshot.stage = match go_on_taking(d, &held, has_twin, snapshot, copies) {
            Err(Stop::Preempted) => return Err(Errno::ERESTART),
            Ok(()) => Stage::Ready,
            Err(Stop::Refused(why)) => Stage::Failed(Told { why: Some(why), missing: 0 }),
            Err(Stop::NoMemory) => {
                let missing = d.mm.tot_pages().saturating_sub(snapshot.memory.nr_frames()).max(1);
                Stage::Failed(Told { why: None, missing })
            }
        };
        drop(held);
        let_run(d);
        if matches!(snapshot.stage, Stage::Ready) {
            let memory = &snapshot.memory;
            info!("d{}: snapshot of {} frames, with {}", d.id, memory.nr_frames(), Said(memory.counts()));
            return Ok(());
        }
    }
    match snapshot.stage {
        Stage::Failed(why) => {
            give_back(&mut snapshots, d.id)?;
            *told = why;
            Err(if why.why.is_some() { Errno::EBUSY } else { Errno::ENOMEM })
        }
        Stage::Leaving => {
            give_back(&mut snapshots, d.id)?;
            Err(Errno::ERESTART)
        }
        _ => Err(Errno::EEXIST),
    }
}

fn go_on_taking(
    d: &Domain,
    held: &AllHeld<'_>,
    has_twin: bool,
    snapshot: &mut Snapshot,
    copies: &mut Copies,
) -> Result<(), Stop> {
    if has_twin {
        return Err(Refusal::Twin.into());
    }
    if d.mm.log.is_enabled() {
        return Err(Refusal::Logged.into());
    }
    if d.grants.track().next_used(0).is_some() {
        return Err(Refusal::Maps.into());
    }
    if d.io.withdrawn.is_due() {
        // They leave its tables when it is unpaused.
        return Err(Refusal::Unsettled.into());
    }
    mmu().keep_memory(d.mm.id, &mut snapshot.memory, copies, &mut d.mm.lock())?;
    snapshot.rest = Some(keep_rest(d, held, &mut snapshot.memory, copies)?);
    Ok(())
}

/// Notes the rest. Event channels and the pages that events are in are noted at one moment: who sends some does so
/// before or after.
fn keep_rest(d: &Domain, held: &AllHeld<'_>, memory: &mut Memory, copies: &mut Copies) -> Result<Rest, Stop> {
    let no_memory = |_: Errno| Stop::NoMemory;
    let mut vcpus = Vec::new();
    vcpus.try_reserve_exact(d.max_vcpus() as usize).map_err(|_| Stop::NoMemory)?;
    let mut shared_info = Vec::new();
    shared_info.try_reserve_exact(PAGE_SIZE / 8).map_err(|_| Stop::NoMemory)?;
    let functions = functions::save(d).map_err(no_memory)?;
    let channels = d.events.lock();
    held.try_each(|v| {
        // A vCPU's own objects are small, but their allocation cannot fail.
        frames::has_headroom().then(|| vcpus.push(SavedVcpu::of(v))).ok_or(Errno::ENOMEM)
    })
    .map_err(no_memory)?;
    let events = channels.save(|page| page.mfn().raw()).map_err(no_memory)??;
    // Pages with events were copied before; but who sends some writes them, and knows better than the copy what is
    // queued.
    let mut pages = Ok(());
    let mut again = |mfn| pages = pages.and_then(|()| mmu().keep_again(mfn, memory, copies));
    events.for_each_page(|name| again(Mfn::new(name)));
    vcpus.iter().filter_map(|v| v.info_frame()).for_each(again);
    pages?;
    shared_info.extend((0..PAGE_SIZE / 8).map(|n| back::shared_word(d, n).load(Ordering::Acquire)));
    drop(channels);
    let grants = {
        let table = d.grants.table();
        this_cpu().allowance.spend_each(table.frames().len() as u64, PAGE);
        table.save(frames::grow_tables).map_err(no_memory)?
    };
    let pirqs = irq::guest::lock().save(d.id).map_err(no_memory)?;
    Ok(Rest {
        vcpus,
        events,
        grants,
        pirqs,
        functions,
        shared_info,
        vm_assist: d.vm_assist.load(Ordering::Relaxed),
        watchdogs: d.watchdogs.lock().clone(),
        taken_ns: crate::arch::tsc::now_ns(),
    })
}

/// Makes `d` what it was. `has_twin`: it has one. Errors: see CHANNELOP_SNAPSHOT_ROLL_BACK; ERESTART.
pub fn roll_back(d: &Domain, has_twin: bool, told: &mut Told) -> Result<(), Errno> {
    let mut snapshots = SNAPSHOTS.lock();
    let Snapshots { all, copies } = &mut *snapshots;
    let snapshot = all.get_mut(&d.id).ok_or(Errno::ENOENT)?;
    let Snapshot { memory, rest, stage, rolled_back } = &mut **snapshot;
    match stage {
        Stage::Ready => {
            check_paused(d)?;
            *stage = Stage::RollingBack(Way::new());
        }
        Stage::RollingBack(_) if d.is_dying() => return Err(Errno::EINVAL),
        Stage::RollingBack(_) => {}
        Stage::Broken(why) => {
            told.why = Some(*why);
            return Err(Errno::EIO);
        }
        Stage::Taking | Stage::Failed(_) | Stage::Leaving => return Err(Errno::ENOENT),
    }
    let (Stage::RollingBack(way), Some(rest)) = (&mut *stage, rest) else { return Err(Errno::ENOENT) };
    let held = hold(d)?;
    let result = way.go_on(d, &held, has_twin, &mut Then { memory, rest, copies });
    drop(held);
    let has_changed = way.has_changed();
    let why = match result {
        Err(Stop::Preempted) => return Err(Errno::ERESTART),
        Ok(()) => {
            *stage = Stage::Ready;
            *rolled_back = rolled_back.saturating_add(1);
            info!("d{}: rolled back", d.id);
            d.dma_faults.forget();
            // The tools have it paused still.
            life::resume(d);
            let_run(d);
            return Ok(());
        }
        Err(Stop::Refused(why)) => Some(why),
        Err(Stop::NoMemory) => None,
    };
    told.why = why;
    if has_changed {
        warn!("d{} cannot be rolled back to its end: {why:?}", d.id);
        *stage = Stage::Broken(why.unwrap_or(Refusal::Unsettled));
        return Err(Errno::EIO);
    }
    *stage = Stage::Ready;
    let_run(d);
    Err(if why.is_some() { Errno::EBUSY } else { Errno::ENOMEM })
}

/// Forgets the snapshot of `d`. ENOENT; EBUSY while the domain is on its way back, or being noted; ERESTART.
pub fn forget(d: &Domain) -> Result<(), Errno> {
    let mut snapshots = SNAPSHOTS.lock();
    let snapshot = snapshots.all.get_mut(&d.id).ok_or(Errno::ENOENT)?;
    match snapshot.stage {
        Stage::RollingBack(_) | Stage::Broken(_) | Stage::Taking if !d.is_dying() => return Err(Errno::EBUSY),
        _ => snapshot.stage = Stage::Leaving,
    }
    give_back(&mut snapshots, d.id)
}

/// The same for a domain that dies, whether it has one or not. ERESTART.
pub fn forget_domain(d: &Domain) -> Result<(), Errno> {
    match forget(d) {
        Err(Errno::ENOENT) => Ok(()),
        result => result,
    }
}

/// Pages of records that go back at once, with some hundred copies each.
const PARTS_AT_ONCE: usize = 8;

/// Gives back what the snapshot of domain `id` holds, and then itself. ERESTART.
fn give_back(snapshots: &mut Snapshots, id: u16) -> Result<(), Errno> {
    let Some(snapshot) = snapshots.all.get_mut(&id) else { return Ok(()) };
    snapshot.rest = None;
    if !snapshot.memory.release(&mut snapshots.copies, mmu().env, PARTS_AT_ONCE) {
        return Err(Errno::ERESTART);
    }
    map::take(&mut snapshots.all, &id);
    Ok(())
}

/// Copies, for people.
pub struct Said(pub Counts);

impl core::fmt::Display for Said {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Counts { copies, found, packed, packed_bytes } = self.0;
        write!(f, "{copies} copies, {found} of which were there")?;
        if packed != 0 {
            write!(f, ", and {packed} are packed into {} KiB", packed_bytes.div_ceil(1024))?;
        }
        Ok(())
    }
}

/// Frames that hold packed copies, of all domains. Waits for who uses snapshots.
pub fn packs() -> u64 {
    SNAPSHOTS.lock().copies.nr_packs()
}

/// How large a snapshot is, in frames.
pub struct Sizes {
    /// That it notes.
    pub noted: u64,
    /// Of which there are copies.
    pub copies: Counts,
    /// That its domain has given up since, and that are kept for it.
    pub away: u64,
}

/// How large the snapshot of `d` is.
pub fn sizes(d: &Domain) -> Option<Sizes> {
    let snapshots = SNAPSHOTS.lock();
    let memory = &snapshots.all.get(&d.id)?.memory;
    Some(Sizes { noted: memory.nr_frames(), copies: memory.counts(), away: memory.nr_away(mmu().env) })
}
