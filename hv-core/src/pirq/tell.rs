//! Who is to be told that a line fired.

use super::MAX_SHARERS;
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
}

/// Who is to be told that a line fired.
#[derive(Clone, Copy, Debug)]
pub struct Deliveries {
    pub(super) list: [Option<Delivery>; MAX_SHARERS],
    /// Bit n: `list[n]` is somebody.
    pub(super) present: u8,
    /// It is a wire of several domains' devices.
    pub is_shared: bool,
    /// Call `Interrupts::expire` at this time.
    pub wake_ns: Option<u64>,
}

impl Deliveries {
    pub(super) const fn none() -> Deliveries {
        Deliveries { list: [None; MAX_SHARERS], present: 0, is_shared: false, wake_ns: None }
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
