//! `channel_op`, and what `twin_op` tells, by the kernel's privcmd device.

#![allow(unsafe_code, reason = "a hypercall is an ioctl with an address in it")]

use anyhow::{bail, Context, Result};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Direction, Ioctl, IoctlOutput, Opcode};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use twin_abi::op::{TwinStats, HYPERVISOR_TWIN_OP, STATS_ALL, TWINOP_STATS};
use xen_abi::channel_op::{
    self as op, ChannelConnect, ChannelHold, ChannelStatus, ChannelSwitch, ChannelVif, ChannelWayOut,
};

mod devices;
mod disks;
mod domains;
pub mod foreign;
pub mod news;
mod snapshots;

pub use devices::{Passthrough, Resource};
pub use disks::{all_disks, disks_of, is_missed, DiskList, Disks, Left, GRANT_FRAMES, NR_PAGES, SERVICE_MIB, SLOTS};
pub use news::News;
pub use snapshots::{Snapshots, Trouble};

/// The hypervisor's switches.
pub trait Switches {
    /// Makes a switch; its name.
    fn create(&mut self) -> Result<u32, Errno>;
    /// When its way out has gone, packets for outside wait so long.
    fn hold(&mut self, switch: u32, hold_ms: u32) -> Result<(), Errno>;
    /// Plugs an interface in; its name.
    fn connect(&mut self, request: &ChannelConnect) -> Result<u32, Errno>;
    /// Takes it out.
    fn disconnect(&mut self, vif: u32) -> Result<(), Errno>;
    /// The interface of this name.
    fn status(&mut self, vif: u32) -> Result<ChannelStatus, Errno>;
    /// The first interface from this place on.
    fn next(&mut self, place: u32) -> Result<ChannelStatus, Errno>;
    /// What a switch's way out is.
    fn way_out(&mut self, switch: u32) -> Result<ChannelWayOut, Errno>;
    /// The first twin from this number on.
    fn next_twin(&mut self, number: u32) -> Result<TwinStats, Errno>;
}

/// The real one.
pub struct Hypervisor {
    privcmd: File,
    /// A page that stays where it is, for arguments.
    page: *mut c_void,
}

const PRIVCMD: &str = "/dev/xen/privcmd";
const PAGES: &str = "/dev/xen/hypercall";
const PAGE_BYTES: usize = 4096;

/// Argument of IOCTL_PRIVCMD_HYPERCALL (Linux, include/uapi/xen/privcmd.h).
#[repr(C)]
struct Call {
    op: u64,
    arg: [u64; 5],
}

// SAFETY: the opcode is that of IOCTL_PRIVCMD_HYPERCALL, whose argument is a `Call` that the kernel only reads.
unsafe impl Ioctl for Call {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::from_components(Direction::None, b'P', 0, size_of::<Call>())
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

impl Hypervisor {
    /// Opens the kernel's devices, and looks whether the hypervisor has switches.
    pub fn open() -> Result<Self> {
        let open =
            |path| File::options().read(true).write(true).open(path).with_context(|| format!("cannot open {path}"));
        let privcmd = open(PRIVCMD)?;
        let pages = open(PAGES)?;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let page = unsafe {
            mmap(std::ptr::null_mut(), PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &pages, 0)
        }
        .with_context(|| format!("no page from {PAGES}"))?;
        let mut hypervisor = Self { privcmd, page };
        match hypervisor.next(0) {
            Ok(_) | Err(Errno::NOENT) => Ok(hypervisor),
            Err(Errno::NOSYS) => bail!("the hypervisor has no switches: it is not Tandem, or too old"),
            Err(error) => bail!("the hypervisor refuses: {error}"),
        }
    }

    /// Says whether a domain is there: for who keeps what a store has said of it.
    pub fn census() -> Result<impl FnMut(u16) -> bool> {
        let mut hypervisor = Self::open()?;
        Ok(move |domain| hypervisor.is_there(domain))
    }

    fn call<T: Argument>(&mut self, command: u32, argument: T) -> Result<T, Errno> {
        self.call_of(op::HYPERVISOR_CHANNEL_OP, command, argument)
    }

    fn call_of<T: Argument>(&mut self, hypercall: u64, command: u32, argument: T) -> Result<T, Errno> {
        self.make(argument, |address| Call { op: hypercall, arg: [u64::from(command), address, 0, 0, 0] })
    }

    /// Makes a hypercall, which is told the address of its argument.
    fn make<T: Argument>(&mut self, argument: T, call: impl FnOnce(u64) -> Call) -> Result<T, Errno> {
        self.make_counted(argument, call).map(|(answer, _)| answer)
    }

    /// The same; with it the hypercall's result, where that is a number.
    fn make_counted<T: Argument>(&mut self, argument: T, call: impl FnOnce(u64) -> Call) -> Result<(T, i32), Errno> {
        let (answer, result) = self.make_told(argument, call);
        result.map(|result| (answer, result))
    }

    /// The same, where the argument is written after errors, too.
    fn make_told<T: Argument>(&mut self, argument: T, call: impl FnOnce(u64) -> Call) -> (T, Result<i32, Errno>) {
        const { assert!(size_of::<T>() <= PAGE_BYTES) };
        let place = self.page.cast::<T>();
        // SAFETY: the page is mapped, ours alone, and longer than `T`; nothing else names it.
        unsafe { place.write(argument) };
        // SAFETY: see `Call`. The hypervisor writes to the page no more than a `T`.
        let result = unsafe { ioctl(&self.privcmd, call(place as u64)) };
        // SAFETY: it holds a `T`, all of whose bit patterns are valid.
        (unsafe { place.read() }, result)
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, with this length; nobody has a reference into it.
        let _ = unsafe { munmap(self.page, PAGE_BYTES) };
    }
}

/// What a command takes: numbers alone, of which all bit patterns are valid.
trait Argument: Copy {}
impl Argument for ChannelConnect {}
impl Argument for ChannelHold {}
impl Argument for ChannelStatus {}
impl Argument for ChannelSwitch {}
impl Argument for ChannelVif {}
impl Argument for ChannelWayOut {}
impl Argument for TwinStats {}

impl Switches for Hypervisor {
    fn create(&mut self) -> Result<u32, Errno> {
        self.call(op::CHANNELOP_SWITCH_CREATE, ChannelSwitch::default()).map(|made| made.switch)
    }

    fn hold(&mut self, switch: u32, hold_ms: u32) -> Result<(), Errno> {
        self.call(op::CHANNELOP_SWITCH_HOLD, ChannelHold { switch, hold_ms }).map(|_| ())
    }

    fn connect(&mut self, request: &ChannelConnect) -> Result<u32, Errno> {
        self.call(op::CHANNELOP_VIF_CONNECT, *request).map(|made| made.vif)
    }

    fn disconnect(&mut self, vif: u32) -> Result<(), Errno> {
        self.call(op::CHANNELOP_VIF_DISCONNECT, ChannelVif { vif, flags: 0 }).map(|_| ())
    }

    fn status(&mut self, vif: u32) -> Result<ChannelStatus, Errno> {
        self.call(op::CHANNELOP_VIF_STATUS, ChannelStatus { vif, ..ChannelStatus::default() })
    }

    fn next(&mut self, place: u32) -> Result<ChannelStatus, Errno> {
        self.call(op::CHANNELOP_VIF_NEXT, ChannelStatus { next: place, ..ChannelStatus::default() })
    }

    fn way_out(&mut self, switch: u32) -> Result<ChannelWayOut, Errno> {
        self.call(op::CHANNELOP_WAY_OUT, ChannelWayOut { switch, ..ChannelWayOut::default() })
    }

    fn next_twin(&mut self, number: u32) -> Result<TwinStats, Errno> {
        let stats = TwinStats { twin: number, flags: STATS_ALL, ..TwinStats::default() };
        self.call_of(HYPERVISOR_TWIN_OP, TWINOP_STATS, stats)
    }
}
