//! Twins: code that was derived from a driver's binary and runs here, on the data of its driver domain.
//!
//! A domain loads a twin through `twin_op`. The image is copied, verified (`twin_verify`), and mapped once for each CPU
//! ([`instance`]); the domain's kernel half appears in a page-table root of the twin's own ([`space`]). An invocation
//! ([`calls`], [`run`], [`entry`]) runs with interrupts on, on its own stack, until it returns, is aborted, or waits
//! for a function of the domain. Other functions that it calls are served here, on the domain's structures
//! ([`common`]). An abort disables the twin, says where, and concerns nobody else. What the twin relies on and what it
//! may not do is `docs/sandbox.md`.
//!
//! Lock order: [`table`], and of those that drive network cards [`net`].

pub mod calls;
pub mod common;
mod counts;
pub mod entry;
mod frames;
pub mod instance;
pub mod net;
mod run;
mod session;
mod space;
mod stlb;
mod table;
mod view;
mod words;

use crate::cpu::percpu::{self, MAX_CPUS};
use crate::domain::Domain;
use crate::guest_debug;
use crate::mem::guest_ptr::GuestPtr;
use alloc::vec::Vec;
use common::Common;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use counts::Counts;
use frames::Frames;
use hv_core::cmdline::Options;
use hv_core::mmu::Audit;
use instance::{Instance, Plan, MAX_TWINS};
use space::Mirror;
use table::{place, ready, Copying, Loaded, Making, Seat, State, Verifying, TWINS};
use twin_abi::image::Mode;
use twin_abi::op::{self, TwinLend, TwinLent, TwinLoad, TwinNote, TwinNotes, TwinStats, TwinStatus};
use twin_runtime::gate::Twin;
use twin_verify::{Policy, Refusal, Verified};
use x86::Mfn;
use xen_abi::errno::Errno;

/// Steps of a verification between two looks whether there is other work: well below a millisecond.
const VERIFY_STEPS: u32 = 1000;

/// Why a twin was not loaded.
pub enum NotLoaded {
    /// The image breaks a rule.
    Refused(Refusal),
    /// There are fewer per-CPU areas than these.
    Areas(u32),
    /// Something else.
    Error(Errno),
}

impl From<Errno> for NotLoaded {
    fn from(errno: Errno) -> Self {
        Self::Error(errno)
    }
}

/// Begins to load a twin for `d`, whose vCPU runs here; the number of its place, for [`go_on`]. Errors: EPERM if it
/// drives no device; EACCES for a mode that the boot options do not allow; EINVAL for bad arguments; too few per-CPU
/// areas; EFAULT for what describes its kernel; ENOMEM; ENOSPC if it has as many as it may have, or there are as many
/// as there can be.
pub fn begin(d: &Domain, request: &TwinLoad) -> Result<u32, NotLoaded> {
    if !d.drives_devices.load(Ordering::Relaxed) {
        return Err(Errno::EPERM.into());
    }
    let last_cpu = percpu::online_mask().checked_ilog2().unwrap_or(0);
    if request.areas <= last_cpu {
        return Err(NotLoaded::Areas(last_cpu + 1));
    }
    let mode = mode_of(request.mode).ok_or(Errno::EINVAL)?;
    let last_area = request.percpu_stride.checked_mul(last_cpu.into()).and_then(|far| request.percpu.checked_add(far));
    if request.flags & !op::LOAD_COUNTED != 0
        || request.budget > op::MAX_BUDGET
        || request.image_bytes > op::MAX_IMAGE
        || last_area.is_none()
        || request.pad != 0
    {
        return Err(Errno::EINVAL.into());
    }
    if mode == Mode::Stlb && !stlb::is_allowed() {
        return Err(Errno::EACCES.into());
    }
    let seat = Seat::take(d.mm.id).ok_or(Errno::ENOSPC)?;
    let common = Common::new(d.mm.id, request.kernel)?;
    let counted = request.flags & op::LOAD_COUNTED != 0;
    let mask_bits = if mode == Mode::Mirror { op::MASK_BITS } else { 0 };
    let policy = Policy { mode, mask_bits, counted, bmi: has_bmi() };
    let number = seat.number();
    let copying = Copying::new(*request, policy, common, d.id, seat)?;
    // Nothing is there: who has it open only looks.
    *place(number)?.write() = Some(State::Copying(copying));
    Ok(number)
}

/// Goes on loading the twin of `d` in place `number`. `false`: to be called again, when other work was done. Errors:
/// the image is refused; ENOENT if nothing is being loaded there; EINVAL for a root that is no table; ENOMEM; EFAULT
/// for an image that is not there, and for a twin whose number could not be told. The place is empty then.
pub fn go_on(d: &Domain, number: u32) -> Result<bool, NotLoaded> {
    let place = place(number)?;
    let is_untold = match place.read().as_ref().filter(|state| state.owner() == d.id) {
        Some(State::Copying(_) | State::Verifying(_)) => false,
        Some(State::Ready(loaded)) if loaded.is_going() => true,
        _ => return Err(Errno::ENOENT.into()),
    };
    if is_untold {
        return match unload(d, number) {
            Err(Errno::ERESTART) => Err(Errno::ERESTART.into()),
            _ => Err(Errno::EFAULT.into()),
        };
    }
    let Some(mut place) = place.try_write() else { return Ok(false) };
    if let Some(State::Copying(copying)) = place.as_mut().filter(|state| state.owner() == d.id) {
        match copying.go_on() {
            Ok(true) => begin_to_verify(&mut place).map_err(NotLoaded::Refused)?,
            Ok(false) => {}
            Err(why) => {
                *place = None;
                return Err(why.into());
            }
        }
        return Ok(false);
    }
    let Some(State::Verifying(verifying)) = place.as_mut().filter(|state| state.owner() == d.id) else {
        return Err(Errno::ENOENT.into());
    };
    if let Some(why) = verifying.failed {
        if verifying.give_up(d) == Err(Errno::ERESTART) {
            return Ok(false);
        }
        *place = None;
        return Err(why.into());
    }
    let verified = match verifying.verifier.advance(VERIFY_STEPS) {
        Ok(None) => return Ok(false),
        Ok(Some(verified)) => verified,
        Err(refusal) => {
            *place = None;
            return Err(NotLoaded::Refused(refusal));
        }
    };
    match make(d, verifying, number as usize, verified) {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(why) => {
            verifying.failed = Some(why).filter(|why| *why != Errno::ERESTART);
            return Ok(false);
        }
    }
    let taken = place.take();
    if let Some(State::Verifying(Verifying {
        making: Some(Making { instances, code }),
        mirror: Some(mirror),
        common,
        owner,
        request,
        image,
        seat,
        ..
    })) = taken
    {
        #[allow(clippy::cast_possible_truncation, reason = "an image is at most 8 MiB")]
        let functions = verified.image().functions().len() as u32;
        let code_bytes = verified.image().code().len();
        guest_debug!("d{owner}: twin {number}, {functions} functions, {code_bytes} bytes of code");
        *place = Some(State::Ready(Loaded {
            mode: request.mode,
            instances,
            code,
            mirror,
            common,
            owner,
            budget: if request.budget == 0 { op::DEFAULT_BUDGET } else { request.budget },
            functions,
            counts: Counts::default(),
            aborts: AtomicU64::new(0),
            disabled: AtomicBool::new(false),
            is_going: AtomicBool::new(false),
            _image: image,
            _seat: seat,
        }));
    }
    Ok(true)
}

/// What is all copied is to be verified. Errors: it is refused; the place is empty then.
fn begin_to_verify(place: &mut Option<State>) -> Result<(), Refusal> {
    *place = match place.take() {
        Some(State::Copying(copying)) => Some(State::Verifying(copying.finish()?)),
        other => other,
    };
    Ok(())
}

/// Makes what a twin sees, then what it has on each CPU that is up, one at a time, and the code that they share.
/// `false`: there is more to make. Errors as [`go_on`], and ERESTART: to be called again.
fn make(d: &Domain, verifying: &mut Verifying, place: usize, verified: Verified<'static>) -> Result<bool, Errno> {
    let Verifying { request, common, mirror, making, .. } = verifying;
    let mirror = match mirror {
        Some(mirror) => mirror,
        none => none.insert(Mirror::new(d, Mfn::new(request.root))?),
    };
    let bytes = verified.image().code();
    let Some(Making { instances, code }) = making else {
        mirror.share_all(d)?;
        let code = Frames::with(bytes).ok_or(Errno::ENOMEM)?;
        *making = Some(Making { instances: Vec::new(), code: Some(code) });
        return Ok(false);
    };
    let code = code.as_ref().ok_or(Errno::ENOENT)?;
    let cpu = instances.len();
    if cpu == MAX_CPUS || percpu::online_mask() >> cpu == 0 {
        return Ok(true);
    }
    instances.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let percpu = request.percpu + request.percpu_stride * cpu as u64;
    let plan = Plan { place, cpu, percpu, code, code_bytes: bytes.len() as u64, common };
    let mut twin = Twin::new(verified, stlb::PAIRS, instance::hole(place, cpu)).map_err(|_| Errno::ENOMEM)?;
    twin.limit_natives(|routine| common.serves(routine));
    instances.push(Instance::new(&plan, twin, mirror).ok_or(Errno::ENOMEM)?);
    Ok(false)
}

/// The mode that a request names.
fn mode_of(number: u32) -> Option<Mode> {
    match number {
        op::MODE_MIRROR => Some(Mode::Mirror),
        op::MODE_STLB => Some(Mode::Stlb),
        _ => None,
    }
}

/// Takes what concerns twins from the options.
pub fn init(options: &Options) {
    stlb::init(options);
    view::init(options);
}

/// The processor has BMI1 and BMI2.
fn has_bmi() -> bool {
    const BOTH: u32 = 1 << 3 | 1 << 8;
    crate::cpu::cpuid(7, 0).ebx & BOTH == BOTH
}

/// Forgets twin `number` of `d`, or what is being loaded there. Errors: ENOENT if it has none of that number; ERESTART:
/// to be called again, and nobody begins to use it meanwhile.
pub fn unload(d: &Domain, number: u32) -> Result<(), Errno> {
    let place = place(number)?;
    // Nobody waits for who looks only whose it is.
    match place.read().as_ref().filter(|state| state.owner() == d.id).ok_or(Errno::ENOENT)? {
        State::Copying(_) | State::Verifying(_) => {}
        State::Ready(loaded) => loaded.is_going.store(true, Ordering::SeqCst),
    }
    net::forget(d, number)?;
    // Who calls it has the place, for as long as a twin may run.
    let mut place = place.try_write().ok_or(Errno::ERESTART)?;
    match place.as_mut().filter(|state| state.owner() == d.id).ok_or(Errno::ENOENT)? {
        State::Copying(_) => {}
        State::Verifying(verifying) => {
            // Who was loading it only goes on giving back.
            verifying.failed.get_or_insert(Errno::ENOENT);
            verifying.give_up(d)?;
        }
        State::Ready(loaded) => {
            // One that another vCPU gave it meanwhile. From now on nobody does: the place is locked.
            if net::is_attached(number as usize) {
                return Err(Errno::ERESTART);
            }
            loaded.is_going.store(true, Ordering::SeqCst);
            if calls::end_one_waiting(loaded) {
                return Err(Errno::ERESTART);
            }
            if !loaded.take_down(number as usize) {
                return Err(Errno::ERESTART);
            }
            if loaded.common.let_go() {
                return Err(Errno::ERESTART);
            }
            loaded.mirror.release(d)?;
        }
    }
    *place = None;
    Ok(())
}

/// Forgets all twins of `d`, which does not run. ERESTART: to be called again.
pub fn forget_domain(d: &Domain) -> Result<(), Errno> {
    net::forget_domain(d)?;
    for number in 0..MAX_TWINS as u32 {
        match unload(d, number) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Has `d` a twin, or is one being loaded for it?
pub fn has_any(d: &Domain) -> bool {
    TWINS.iter().any(|place| place.read().as_ref().is_some_and(|state| state.owner() == d.id))
}

/// Fills in what became of a twin of `d`. Errors: ENOENT; EBUSY while it is loaded or unloaded.
pub fn status(d: &Domain, status: &mut TwinStatus) -> Result<(), Errno> {
    let place = place(status.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = ready(&place, d)?;
    status.mode = loaded.mode;
    status.invocations = loaded.counts.invocations();
    status.aborts = loaded.aborts.load(Ordering::Relaxed);
    status.functions = loaded.functions;
    status.disabled = loaded.disabled.load(Ordering::Relaxed).into();
    Ok(())
}

/// Fills in what a twin has done: the first of `owner`'s, or of anybody's, from number `stats.twin` on. Errors: ENOENT
/// if there is none. One that is being loaded or unloaded is passed over.
pub fn stats(owner: Option<&Domain>, stats: &mut TwinStats) -> Result<(), Errno> {
    for (number, place) in (0..).zip(&TWINS).skip(stats.twin as usize) {
        let Some(place) = place.try_read() else { continue };
        let Some(State::Ready(loaded)) = place.as_ref() else { continue };
        if !loaded.is_going() && owner.is_none_or(|owner| owner.id == loaded.owner) {
            *stats = TwinStats {
                twin: number,
                flags: loaded.mode,
                domain: loaded.owner.into(),
                functions: loaded.functions,
                disabled: loaded.disabled.load(Ordering::Relaxed).into(),
                has_card: net::is_attached(number as usize).into(),
                aborts: loaded.aborts.load(Ordering::Relaxed),
                ..TwinStats::default()
            };
            loaded.counts.tell(stats);
            return Ok(());
        }
    }
    Err(Errno::ENOENT)
}

// What these three have on the stack is not there while a twin runs.

/// Lends buffers of `d`'s to its twin. Errors: ENOENT; EBUSY while it is loaded or unloaded; EFAULT; E2BIG for too many
/// at once; as
/// [`Common::lend`].
#[inline(never)]
pub fn lend(d: &Domain, lend: &TwinLend) -> Result<(), Errno> {
    let mut list = [TwinLent::default(); op::MAX_LENT_AT_ONCE as usize];
    let list = list.get_mut(..lend.count as usize).ok_or(Errno::E2BIG)?;
    GuestPtr::new(lend.list).read_slice(list)?;
    let place = place(lend.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let loaded = ready(&place, d)?;
    loaded.common.lend(d, list, |address| loaded.mirror.locate(d, address))
}

/// Gives buffers back to `d` that it lent to its twin. Errors: as [`lend`]; EFAULT also if the list cannot be written:
/// those are lost.
#[inline(never)]
pub fn recall(d: &Domain, lend: &mut TwinLend) -> Result<(), Errno> {
    let mut list = [TwinLent::default(); op::MAX_LENT_AT_ONCE as usize];
    let list = list.get_mut(..lend.count as usize).ok_or(Errno::E2BIG)?;
    let place = place(lend.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let count = ready(&place, d)?.common.recall(list);
    #[allow(clippy::cast_possible_truncation, reason = "at most what was asked for")]
    (lend.count = count as u32);
    GuestPtr::new(lend.list).write_slice(&list[..count])
}

/// Moves what `d` has to do for its twin to where it says. Errors: ENOENT; EBUSY while it is loaded or unloaded; E2BIG
/// for too many at once; EFAULT, and those are lost.
#[inline(never)]
pub fn fetch_notes(d: &Domain, notes: &mut TwinNotes) -> Result<(), Errno> {
    let mut list = [TwinNote::default(); op::MAX_NOTES_AT_ONCE as usize];
    let list = list.get_mut(..notes.count as usize).ok_or(Errno::E2BIG)?;
    let place = place(notes.twin)?.try_read().ok_or(Errno::EBUSY)?;
    let count = ready(&place, d)?.common.fetch(list);
    #[allow(clippy::cast_possible_truncation, reason = "at most what was asked for")]
    (notes.count = count as u32);
    GuestPtr::new(notes.list).write_slice(&list[..count])
}

/// Names what the twins of `d` refer to.
pub fn tell<E: hv_core::mmu::MmuEnv>(audit: &mut Audit<'_, '_, E>, d: &Domain) {
    let mut found = Vec::new();
    for place in &TWINS {
        let place = place.read();
        let Some(state) = place.as_ref().filter(|state| state.owner() == d.id) else { continue };
        if let Some(mirror) = state.mirror() {
            mirror.for_each_reference(|root| audit.root(root), |table| found.push(table));
        }
        if let State::Ready(loaded) = state {
            loaded.common.for_each_held(|frame| audit.writable(frame));
        }
    }
    found.into_iter().for_each(|table| audit.table(table));
}
