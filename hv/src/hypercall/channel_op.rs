//! `channel_op`: the hypervisor's own switches, guests' interfaces that are plugged into them, guests' disks, and
//! snapshots of domains.

use super::{Caller, GuestPtr, Outcome, OK};
use crate::arch::tsc;
use crate::channel::{self, disk, Handle};
use crate::domain::{self, event, passthrough, snapshot, watch};
use crate::mem::guest_ptr::plain;
use crate::{sched, twin};
use core::sync::atomic::Ordering;
use hv_core::dma_faults::Wanted;
use hv_core::mmu::snapshot::Form;
use hv_core::pcicfg::Sbdf;
use xen_abi::channel_op as op;
use xen_abi::errno::Errno;

plain!(op::ChannelSwitch, op::ChannelVif, op::ChannelConnect, op::ChannelStatus, op::ChannelWayOut, op::ChannelBeat);
plain!(op::ChannelWatch, op::ChannelHold, op::ChannelDrain, op::ChannelSnapshot, op::ChannelKeepLink, op::ChannelTwins);
plain!(op::ChannelNotify);
plain!(
    op::ChannelDisk,
    op::ChannelDiskConnect,
    op::ChannelDiskAttach,
    op::ChannelDiskStatus,
    op::ChannelDiskPort,
    op::ChannelPci
);

/// CHANNELOP_*, for the control domain. Errors: EPERM for others; EFAULT; ENOENT for switches, interfaces and disks
/// that do not exist;
/// EINVAL for bad arguments; ENOSYS for unknown commands; others with each command. Source:
/// `xen-abi/src/channel_op.rs`.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    cx.require_privilege()?;
    match cmd {
        op::CHANNELOP_SWITCH_CREATE => {
            let mut r: op::ChannelSwitch = arg.cast().read()?;
            must_be_zero(r.flags)?;
            r.switch = channel::create_switch()?;
            // Nobody would know its name.
            named(arg.cast().write(&r), || channel::destroy_switch(r.switch))
        }
        op::CHANNELOP_SWITCH_DESTROY => {
            let r: op::ChannelSwitch = arg.cast().read()?;
            must_be_zero(r.flags)?;
            channel::destroy_switch(r.switch)?;
            OK
        }
        op::CHANNELOP_SWITCH_HOLD => {
            let r: op::ChannelHold = arg.cast().read()?;
            if r.hold_ms > op::HOLD_MAX_MS {
                return Err(Errno::EINVAL);
            }
            channel::hold(r.switch, u64::from(r.hold_ms) * 1_000_000)?;
            OK
        }
        op::CHANNELOP_SWITCH_DRAIN => {
            let r: op::ChannelDrain = arg.cast().read()?;
            if r.drain_ms > op::DRAIN_MAX_MS {
                return Err(Errno::EINVAL);
            }
            channel::drain(r.switch, u64::from(r.drain_ms) * 1_000_000)?;
            OK
        }
        op::CHANNELOP_VIF_CONNECT => {
            let mut r: op::ChannelConnect = arg.cast().read()?;
            let handle = channel::connect(&r)?;
            r.vif = handle.raw();
            named(arg.cast().write(&r), || channel::disconnect(handle))
        }
        op::CHANNELOP_VIF_DISCONNECT => {
            let r: op::ChannelVif = arg.cast().read()?;
            must_be_zero(r.flags)?;
            channel::disconnect(Handle::of_raw(r.vif))?;
            OK
        }
        op::CHANNELOP_VIF_STATUS => {
            let r: op::ChannelStatus = arg.cast().read()?;
            arg.cast().write(&channel::status(Handle::of_raw(r.vif))?)?;
            OK
        }
        op::CHANNELOP_VIF_NEXT => {
            let r: op::ChannelStatus = arg.cast().read()?;
            arg.cast().write(&channel::next(r.next)?)?;
            OK
        }
        op::CHANNELOP_WAY_OUT => {
            let r: op::ChannelWayOut = arg.cast().read()?;
            arg.cast().write(&channel::way_out(r.switch)?)?;
            OK
        }
        op::CHANNELOP_BEAT => {
            let mut r: op::ChannelBeat = arg.cast().read()?;
            must_be_zero(r.pad.into())?;
            beat(&mut r)?;
            arg.cast().write(&r)?;
            OK
        }
        op::CHANNELOP_WATCH => {
            let r: op::ChannelWatch = arg.cast().read()?;
            let wanted = match r.flags {
                0 => Wanted::Never,
                op::WATCH_DMA_FAULTS_IN_USE => Wanted::InUse,
                op::WATCH_DMA_FAULTS => Wanted::Now,
                _ => return Err(Errno::EINVAL),
            };
            let d = domain::find(r.domain).ok_or(Errno::ESRCH)?;
            d.dma_faults.watch(wanted);
            watch::watch(&d, r.wedged_ms);
            OK
        }
        op::CHANNELOP_KEEP_LINK => {
            let r: op::ChannelKeepLink = arg.cast().read()?;
            must_be_zero(r.pad.into())?;
            let d = domain::find(r.domain).ok_or(Errno::ESRCH)?;
            passthrough::link::keep(Sbdf::from_machine(r.function), &d)?;
            OK
        }
        op::CHANNELOP_FORGET_TWINS => {
            let r: op::ChannelTwins = arg.cast().read()?;
            r.pad.into_iter().try_for_each(|word| must_be_zero(word.into()))?;
            let d = domain::find(r.domain).ok_or(Errno::ESRCH)?;
            if d.is_privileged || d.is_dying() || !d.is_paused() {
                return Err(Errno::EINVAL);
            }
            twin::forget_domain(&d)?;
            OK
        }
        op::CHANNELOP_NOTIFY => {
            let r: op::ChannelNotify = arg.cast().read()?;
            must_be_zero(r.pad.into())?;
            let d = domain::find(r.domain).ok_or(Errno::ESRCH)?;
            if d.is_privileged || d.is_dying() || !d.is_paused() {
                return Err(Errno::EINVAL);
            }
            match event::send_on(&d, r.port)? {
                None => OK,
                // Whose work that is serves who asks himself.
                Some(_) => Err(Errno::EINVAL),
            }
        }
        op::CHANNELOP_PCI_SERVE => {
            channel::pci::serve_from_now(&arg.cast().read()?)?;
            OK
        }
        op::CHANNELOP_SNAPSHOT_TAKE..=op::CHANNELOP_SNAPSHOT_STATUS => of_snapshots(cmd, arg.cast()),
        _ => of_disks(cmd, arg),
    }
}

/// Those that concern snapshots of domains.
fn of_snapshots(cmd: u32, arg: GuestPtr<op::ChannelSnapshot>) -> Outcome {
    let asked = arg.read()?;
    let allowed = if cmd == op::CHANNELOP_SNAPSHOT_TAKE { op::SNAPSHOT_COMPRESS } else { 0 };
    must_be_zero((asked.flags & !allowed).into())?;
    let form = if asked.flags & op::SNAPSHOT_COMPRESS != 0 { Form::Packed } else { Form::Whole };
    let d = domain::find(asked.domain).ok_or(Errno::ESRCH)?;
    let mut told = snapshot::Told::default();
    let result = match cmd {
        op::CHANNELOP_SNAPSHOT_TAKE => snapshot::take(&d, form, twin::has_any(&d), &mut told),
        op::CHANNELOP_SNAPSHOT_ROLL_BACK => snapshot::roll_back(&d, twin::has_any(&d), &mut told),
        op::CHANNELOP_SNAPSHOT_DROP => snapshot::forget(&d),
        _ => Ok(()),
    };
    if result == Err(Errno::ERESTART) {
        return Err(Errno::ERESTART);
    }
    let op::ChannelSnapshot { domain, flags, .. } = asked;
    let mut r = op::ChannelSnapshot { domain, flags, missing: told.missing, ..Default::default() };
    snapshot::status(&d, &mut r);
    if let Some(why) = told.why {
        (r.why, r.what) = why.code();
    }
    arg.write(&r)?;
    result?;
    OK
}

/// Those that concern disks.
fn of_disks(cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    let named_disk = || -> Result<disk::Name, Errno> {
        let r: op::ChannelDisk = arg.cast().read()?;
        must_be_zero(r.flags)?;
        Ok(disk::Name::of_raw(r.disk))
    };
    match cmd {
        op::CHANNELOP_DISK_CONNECT => {
            let mut r: op::ChannelDiskConnect = arg.cast().read()?;
            let name = disk::connect(&r)?;
            r.disk = name.raw();
            return named(arg.cast().write(&r), || disk::withdraw(name));
        }
        op::CHANNELOP_DISK_DISCONNECT => disk::disconnect(named_disk()?)?,
        op::CHANNELOP_DISK_ATTACH => disk::attach(&arg.cast().read()?)?,
        op::CHANNELOP_DISK_DETACH => {
            let r: op::ChannelDisk = arg.cast().read()?;
            let name = disk::Name::of_raw(r.disk);
            match r.flags {
                0 => disk::detach(name)?,
                op::DISK_GIVE_UP => disk::give_up(name)?,
                _ => return Err(Errno::EINVAL),
            }
        }
        op::CHANNELOP_DISK_CLOSE_PORT => {
            let r: op::ChannelDiskPort = arg.cast().read()?;
            must_be_zero(r.pad.into())?;
            disk::close_port(r.domain, r.port)?;
        }
        op::CHANNELOP_DISK_STATUS => {
            let r: op::ChannelDiskStatus = arg.cast().read()?;
            arg.cast().write(&disk::status(disk::Name::of_raw(r.disk))?)?;
        }
        op::CHANNELOP_DISK_NEXT => {
            let r: op::ChannelDiskStatus = arg.cast().read()?;
            arg.cast().write(&disk::next(r.next)?)?;
        }
        _ => return Err(Errno::ENOSYS),
    }
    OK
}

/// Whether a vCPU takes its events.
fn beat(r: &mut op::ChannelBeat) -> Result<(), Errno> {
    let d = domain::find(r.domain).ok_or(Errno::ESRCH)?;
    let v = d.vcpu(r.vcpu).ok_or(Errno::ENOENT)?;
    let (wedged_since, fault_since) = (v.watch.wedged_since(), d.dma_faults.since());
    let flags = [
        (v.upcall_pending(), op::BEAT_PENDING),
        (v.events_masked(), op::BEAT_MASKED),
        (d.was_crashed.load(Ordering::Relaxed), op::BEAT_CRASHED),
        (wedged_since.is_some(), op::BEAT_WEDGED),
        (passthrough::is_confining(), op::BEAT_CONFINED),
        (fault_since.is_some(), op::BEAT_DMA_FAULT),
        (d.left_unreset.load(Ordering::Relaxed), op::BEAT_LEFT_UNRESET),
        (d.is_bereft.load(Ordering::Relaxed), op::BEAT_BEREFT),
    ];
    r.flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
    r.upcalls = v.upcalls.load(Ordering::Relaxed);
    r.run_ns = sched::run_time_seen(v);
    r.waited_ns = sched::with(|s, now| s.wait_time(v.sched_id, now));
    let now = tsc::now_ns();
    r.ended_ns = d.ended_for(now);
    let ago = |since: Option<u64>| since.map_or(0, |since| now.saturating_sub(since));
    (r.wedged_ns, r.dma_fault_ns) = (ago(wedged_since), ago(fault_since));
    Ok(())
}

/// The name of something new was `written`; if not, it is undone.
fn named(written: Result<(), Errno>, undo: impl FnOnce() -> Result<(), Errno>) -> Outcome {
    if let Err(fault) = written {
        undo()?;
        return Err(fault);
    }
    OK
}

fn must_be_zero(flags: u32) -> Result<(), Errno> {
    (flags == 0).then_some(()).ok_or(Errno::EINVAL)
}
