//! What a guest is told about time: its vCPUs' clocks, the wall clock, and how long each vCPU ran.

use crate::arch::{tsc, tsc_warp};
use crate::domain::vcpu::{stale, OwnedVcpu, Vcpu};
use crate::domain::Domain;
use crate::mem::guest_ptr::GuestPtr;
use crate::sched;
use crate::sync::Mutex;
use core::sync::atomic::{fence, AtomicU32, Ordering};
use hv_core::sched::Runstate;
use hv_core::wall_clock;
use xen_abi::assist;
use xen_abi::shared::{
    shared_info, vcpu_info, VcpuRunstateInfo, VcpuTimeInfo, PVCLOCK_TSC_STABLE_BIT, XEN_RUNSTATE_UPDATE,
};

/// Writes the vCPU's time record. One linear scale from TSC to system time serves all CPUs for ever, so this is needed
/// only when the record has moved. The caller runs a vCPU of its domain, holds it still, or has its domain's event
/// lock: the record stays where it is.
pub fn update_time_info(v: &Vcpu) {
    let scale = tsc::scale();
    let flags = if tsc_warp::are_alike() { PVCLOCK_TSC_STABLE_BIT } else { 0 };
    let base = v.info().wrapping_add(vcpu_info::TIME);
    let record = base.cast::<VcpuTimeInfo>();
    // SAFETY: `info` is valid for 64 bytes and aligned; volatile because the guest reads it meanwhile. The version is
    // odd while the record is inconsistent.
    unsafe {
        let version = core::ptr::addr_of_mut!((*record).version);
        let odd = version.read_volatile() | 1;
        version.write_volatile(odd);
        fence(Ordering::Release);
        core::ptr::addr_of_mut!((*record).tsc_timestamp).write_volatile(scale.tsc_base);
        core::ptr::addr_of_mut!((*record).system_time).write_volatile(scale.ns_base);
        core::ptr::addr_of_mut!((*record).tsc_to_system_mul).write_volatile(scale.mul);
        core::ptr::addr_of_mut!((*record).tsc_shift).write_volatile(scale.shift);
        core::ptr::addr_of_mut!((*record).flags).write_volatile(flags);
        fence(Ordering::Release);
        version.write_volatile(odd.wrapping_add(1));
    }
}

/// UTC in ns at system time 0.
static WALL_CLOCK_NS: Mutex<u64> = Mutex::new(0);

/// Sets the wall clock: it is `utc_ns` when system time is `system_ns`. Every domain is told.
pub fn set_wall_clock(utc_ns: u64, system_ns: u64) {
    *WALL_CLOCK_NS.lock() = utc_ns.wrapping_sub(system_ns);
    crate::domain::for_each(update_wall_clock);
}

/// Writes the wall clock into the domain's shared_info, with the domain's offset: whoever changes that calls this.
pub fn update_wall_clock(d: &Domain) {
    let at_zero = WALL_CLOCK_NS.lock();
    let (seconds, ns) = wall_clock::at_zero(*at_zero, d.time_offset_s.load(Ordering::Relaxed));
    let word = |offset: usize| {
        // SAFETY: offsets of aligned 32-bit fields inside the shared-info page, which lives as long as the domain.
        unsafe { AtomicU32::from_ptr(d.shared_info_ptr().add(offset).cast()) }
    };
    let version = word(shared_info::WC_VERSION);
    let odd = version.load(Ordering::Relaxed) | 1;
    version.store(odd, Ordering::Relaxed);
    fence(Ordering::Release);
    #[allow(clippy::cast_possible_truncation, reason = "split into halves")]
    {
        word(shared_info::WC_SEC).store(seconds as u32, Ordering::Relaxed);
        word(shared_info::WC_SEC_HI).store((seconds >> 32) as u32, Ordering::Relaxed);
        word(shared_info::WC_NSEC).store(ns as u32, Ordering::Relaxed);
    }
    version.store(odd.wrapping_add(1), Ordering::Release);
}

/// How long the vCPU has been in which state, up to now.
pub fn runstate(v: &Vcpu) -> VcpuRunstateInfo {
    record(sched::with(|s, now| s.runstate(v.sched_id, now)))
}

#[inline]
fn record(runstate: Option<(Runstate, u64, [u64; 4])>) -> VcpuRunstateInfo {
    runstate.map_or_else(VcpuRunstateInfo::default, |(state, since, time)| VcpuRunstateInfo {
        state: state as u32,
        pad: 0,
        state_entry_time: since,
        time,
    })
}

/// Writes the running vCPU's runstate where the guest asked for it. The address is the guest kernel's: in user mode the
/// write waits for the switch to kernel mode.
pub fn update_runstate_area(v: &OwnedVcpu) {
    let area = v.runstate_area.get();
    if area == 0 {
        return;
    }
    if !v.kernel_mode.get() {
        v.stale_areas.fetch_or(stale::RUNSTATE, Ordering::Relaxed);
        return;
    }
    write_runstate(v, area, &mut runstate(v));
}

/// Are the other vCPUs of its domain to see that `v`, which runs here, does not any more when it is stored? In kernel
/// mode it may hold a lock, and whoever waits for that waits otherwise if it does not run. In user mode the record is
/// out of reach, and one that has no others writes it when it runs again.
#[inline]
pub fn is_seen_to_leave(v: &OwnedVcpu) -> bool {
    v.runstate_area.get() != 0 && v.kernel_mode.get() && v.domain().max_vcpus() > 1
}

/// Writes the runstate in which `v` leaves, which [`is_seen_to_leave`] and is about to be stored.
#[inline]
pub fn update_runstate_area_left(v: &OwnedVcpu, left: Option<(Runstate, u64, [u64; 4])>) {
    write_runstate(v, v.runstate_area.get(), &mut record(left));
}

/// Writes `info` at `area`, an address of the kernel's of `v`, which runs here in kernel mode.
fn write_runstate(v: &OwnedVcpu, area: u64, info: &mut VcpuRunstateInfo) {
    let target = GuestPtr::<VcpuRunstateInfo>::new(area);
    let flagged = v.domain().vm_assist.load(Ordering::Relaxed) & (1 << assist::RUNSTATE_UPDATE_FLAG) != 0;
    let entry_time = GuestPtr::<u64>::new(area.wrapping_add(8));
    let written = if flagged {
        let plain = info.state_entry_time;
        info.state_entry_time |= XEN_RUNSTATE_UPDATE;
        entry_time.write(&info.state_entry_time).and_then(|()| target.write(info)).and_then(|()| {
            fence(Ordering::Release);
            entry_time.write(&plain)
        })
    } else {
        target.write(info)
    };
    // A guest that registered a bad address only loses its own accounting.
    let _ = written;
}

/// Writes the copy of the time record where the guest asked for it: user programs read it there without a system call.
/// The caller runs in the address space of the domain's kernel. What cannot be written is tried again whenever the vCPU
/// enters kernel mode.
pub fn update_time_area(v: &Vcpu) {
    let area = v.time_area.load(Ordering::Relaxed);
    if area == 0 {
        return;
    }
    let record = v.info().wrapping_add(vcpu_info::TIME).cast::<VcpuTimeInfo>();
    // SAFETY: `info` is valid for 64 bytes and aligned; any bytes are a record, whatever the guest writes there
    // meanwhile.
    let plain = unsafe { record.read_volatile() };
    let version = GuestPtr::<u32>::new(area);
    let inconsistent = VcpuTimeInfo { version: plain.version.wrapping_sub(1), ..plain };
    let written = version
        .write(&inconsistent.version)
        .and_then(|()| GuestPtr::new(area).write(&inconsistent))
        .and_then(|()| version.write(&plain.version));
    if written.is_err() {
        v.stale_areas.fetch_or(stale::TIME, Ordering::Relaxed);
    }
}

/// Writes what could not be written before the running vCPU came to kernel mode.
#[cold]
pub fn update_stale_areas(v: &OwnedVcpu) {
    let waiting = v.stale_areas.swap(0, Ordering::Relaxed);
    if waiting & stale::RUNSTATE != 0 {
        update_runstate_area(v);
    }
    if waiting & stale::TIME != 0 {
        update_time_area(v);
    }
}
