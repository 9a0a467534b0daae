//! Snapshots of domains: CHANNELOP_SNAPSHOT_*.

use super::domains::{head, Request};
use super::{Argument, Call, Hypervisor};
use rustix::io::Errno;
use std::fmt;
use xen_abi::channel_op::{self as op, ChannelNotify, ChannelSnapshot};
use xen_abi::domctl::{DOMINF_BLOCKED, DOMINF_PAUSED, UNPAUSEDOMAIN};

/// Unpausing takes one pause back of those that tools have counted; more than so many nobody has made.
const MOST_PAUSES: u32 = 64;

/// Why a snapshot could not be taken or gone back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The hypervisor's error.
    pub errno: Errno,
    /// What it tells besides; all zero if it was not reached.
    pub told: ChannelSnapshot,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.told.what;
        match self.told.why {
            op::SNAPSHOT_UNSETTLED => write!(f, "an operation on its page tables is half done"),
            op::SNAPSHOT_FOREIGN => write!(f, "its page tables map frame {what:#x}, which is not its own"),
            op::SNAPSHOT_MAPS => write!(f, "it uses grants of others"),
            op::SNAPSHOT_CHANNEL => write!(f, "the hypervisor is at the other end of its port {what}"),
            op::SNAPSHOT_TWIN => write!(f, "it has a twin"),
            op::SNAPSHOT_LOGGED => write!(f, "it is being migrated"),
            op::SNAPSHOT_FRAMES => write!(f, "its frame {what:#x} is another's now"),
            op::SNAPSHOT_HELD => write!(f, "others may write to its frame {what:#x}"),
            op::SNAPSHOT_PORT => write!(f, "its port {what} does not lead any more where it led"),
            op::SNAPSHOT_GRANT => write!(f, "others use its grant {what}"),
            op::SNAPSHOT_VCPUS => write!(f, "it has got vCPU {what}"),
            op::SNAPSHOT_PIRQ => write!(f, "its interrupt {what} was taken away, or is another one"),
            op::SNAPSHOT_COPY => write!(f, "the copy of its frame {what:#x} is damaged"),
            op::SNAPSHOT_DEVICE => write!(f, "it has another device than then, or does not get it back: {what:#x}"),
            _ if self.told.missing != 0 => {
                write!(f, "there is not enough memory: {} KiB may be missing", self.told.missing * 4)
            }
            _ => write!(f, "the hypervisor refuses: {}", self.errno),
        }
    }
}

impl std::error::Error for Trouble {}

/// The hypervisor, as it notes what domains are and makes them that again.
pub trait Snapshots {
    /// Notes a paused domain. `flags`: `SNAPSHOT_COMPRESS` or none.
    fn take(&mut self, domain: u16, flags: u16) -> Result<ChannelSnapshot, Trouble>;
    /// Makes a paused domain what it was.
    fn roll_back(&mut self, domain: u16) -> Result<ChannelSnapshot, Trouble>;
    /// Forgets its snapshot. ENOENT: it has none.
    fn forget(&mut self, domain: u16) -> Result<(), Errno>;
    /// Stops it.
    fn hold(&mut self, domain: u16) -> Result<(), Errno>;
    /// Whether one that was stopped has nothing to do: all its vCPUs wait for something.
    fn is_waiting(&mut self, domain: u16) -> Result<bool, Errno>;
    /// Whoever is at the other end of its port `port` hears of it. It is stopped.
    fn notify(&mut self, domain: u16, port: u32) -> Result<(), Errno>;
    /// It runs, however often it was paused.
    fn let_run(&mut self, domain: u16) -> Result<(), Errno>;
}

impl Argument for ChannelNotify {}
impl Argument for ChannelSnapshot {}

impl Hypervisor {
    /// What is told is told after errors, too.
    fn of_snapshot(&mut self, command: u32, domain: u16, flags: u16) -> Result<ChannelSnapshot, Trouble> {
        let asked = ChannelSnapshot { domain, flags, ..ChannelSnapshot::default() };
        let call = |address| Call { op: op::HYPERVISOR_CHANNEL_OP, arg: [u64::from(command), address, 0, 0, 0] };
        let (told, result) = self.make_told(asked, call);
        result.map(|_| told).map_err(|errno| Trouble { errno, told })
    }

    /// What there is of a domain's snapshot.
    pub fn snapshot(&mut self, domain: u16) -> Result<ChannelSnapshot, Errno> {
        self.of_snapshot(op::CHANNELOP_SNAPSHOT_STATUS, domain, 0).map_err(|trouble| trouble.errno)
    }
}

impl Snapshots for Hypervisor {
    fn take(&mut self, domain: u16, flags: u16) -> Result<ChannelSnapshot, Trouble> {
        self.of_snapshot(op::CHANNELOP_SNAPSHOT_TAKE, domain, flags)
    }

    fn roll_back(&mut self, domain: u16) -> Result<ChannelSnapshot, Trouble> {
        self.of_snapshot(op::CHANNELOP_SNAPSHOT_ROLL_BACK, domain, 0)
    }

    fn forget(&mut self, domain: u16) -> Result<(), Errno> {
        self.of_snapshot(op::CHANNELOP_SNAPSHOT_DROP, domain, 0).map(|_| ()).map_err(|trouble| trouble.errno)
    }

    fn hold(&mut self, domain: u16) -> Result<(), Errno> {
        self.pause(domain)
    }

    fn is_waiting(&mut self, domain: u16) -> Result<bool, Errno> {
        Ok(self.domain(domain)?.flags & DOMINF_BLOCKED != 0)
    }

    fn notify(&mut self, domain: u16, port: u32) -> Result<(), Errno> {
        self.call(op::CHANNELOP_NOTIFY, ChannelNotify { domain, port, ..ChannelNotify::default() }).map(|_| ())
    }

    fn let_run(&mut self, domain: u16) -> Result<(), Errno> {
        for _ in 0..MOST_PAUSES {
            if self.domain(domain)?.flags & DOMINF_PAUSED == 0 {
                return Ok(());
            }
            self.domctl(Request { head: head(UNPAUSEDOMAIN, domain), part: [0_u64; 16] })?;
        }
        Err(Errno::BUSY)
    }
}
