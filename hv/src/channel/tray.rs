//! What a network card's frames are sorted in, by receiver.

use super::access::Held;
use ::channel::card::arrival::Whole;
use ::channel::card::lots::{self, Lots};
use ::channel::switch::{PortId, Recents};
use alloc::boxed::Box;
use alloc::vec::Vec;
use x86::PAGE_SIZE;
use xen_abi::errno::Errno;

/// What frames that come at once are sorted in.
pub struct Tray {
    /// Their beginnings: decided is on these, and they are what goes on, at once or later.
    pub rooms: Box<[Whole<Held>; lots::MOST]>,
    /// Those of several receivers, in order.
    pub put_off: Lots<PortId>,
    /// Where the last ones went.
    pub recents: Recents,
}

impl Tray {
    /// Frames that one takes.
    pub const FRAMES: usize =
        size_of::<Self>().div_ceil(PAGE_SIZE) + size_of::<[Whole<Held>; lots::MOST]>().div_ceil(PAGE_SIZE);

    /// An empty one. ENOMEM.
    pub fn new() -> Result<Box<Self>, Errno> {
        let mut rooms = Vec::new();
        rooms.try_reserve_exact(lots::MOST).map_err(|_| Errno::ENOMEM)?;
        rooms.resize(lots::MOST, Whole::default());
        let rooms = rooms.into_boxed_slice().try_into().map_err(|_| Errno::ENOMEM)?;
        Ok(Box::new(Self { rooms, put_off: Lots::default(), recents: Recents::default() }))
    }
}
