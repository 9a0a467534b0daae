//! Who is to be told that a line fired, and how soon each of them runs.

use super::{Kind, MAX_SHARERS};
use crate::evtchn::DomId;
use xen_abi::event::Port;

/// One domain to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Whom.
    pub dom: DomId,
    /// The domain's number for the line.
    pub pirq: u32,
    /// Its event port.
    pub port: Port,
    /// Whose domain it is.
    pub kind: Kind,
}

/// How soon who is told of an interrupt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As soon as it can.
    Now,
    /// When the domain that runs has done what there is to do.
    AfterRunning,
}

/// Who is to be told that a line fired.
#[derive(Clone, Copy, Debug)]
pub struct Deliveries {
    pub(super) list: [Option<Delivery>; MAX_SHARERS],
    /// Bit n: `list[n]` is somebody.
    pub(super) present: u8,
    /// It is a wire of several domains' devices.
    pub(super) is_shared: bool,
    /// Call `Interrupts::expire` at this time.
    pub wake_ns: Option<u64>,
}

impl Deliveries {
    pub(super) const fn none() -> Deliveries {
        Deliveries { list: [None; MAX_SHARERS], present: 0, is_shared: false, wake_ns: None }
    }

    /// The domains and their turns, where `is_running` says which domain runs on this CPU.
    ///
    /// The hardware domain's pciback answers on the line of a device that another domain has: for nothing, but all
    /// interrupts of the line wait for it. So it comes after that domain, if that runs.
    pub fn turns<F: Fn(DomId) -> bool>(&self, is_running: F) -> impl Iterator<Item = (Delivery, Turn)> + use<'_, F> {
        let sharer_runs = self.is_shared && self.iter().any(|x| is_running(x.dom));
        self.iter().map(move |x| {
            let waits = sharer_runs && x.kind == Kind::Hardware && !is_running(x.dom);
            (x, if waits { Turn::AfterRunning } else { Turn::Now })
        })
    }

    /// Is it a shared wire, of which not all were told?
    #[inline]
    pub fn may_be_alone(&self) -> bool {
        self.is_shared && self.present & self.present.wrapping_sub(1) == 0
    }

    /// The domains.
    pub fn iter(&self) -> impl Iterator<Item = Delivery> + '_ {
        places(self.present).filter_map(|n| self.list.get(n).copied().flatten())
    }
}

/// Numbers of the bits that are set, the lowest first.
pub(super) fn places(mut bits: u8) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let n = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (n < MAX_SHARERS).then_some(n)
    })
}
