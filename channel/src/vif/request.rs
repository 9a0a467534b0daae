//! Transmit requests as guests write them.

use crate::packet::{Gso, GsoKind};
use crate::ring::RingError;
use xen_abi::io::netif::{
    XEN_NETIF_EXTRA_FLAG_MORE, XEN_NETIF_EXTRA_TYPE_GSO, XEN_NETIF_EXTRA_TYPE_MAX, XEN_NETIF_EXTRA_TYPE_MCAST_ADD,
    XEN_NETIF_EXTRA_TYPE_MCAST_DEL, XEN_NETIF_EXTRA_TYPE_NONE, XEN_NETIF_GSO_TYPE_TCPV4, XEN_NETIF_GSO_TYPE_TCPV6,
};

const PAGE: u32 = 4096;

/// Why a guest's interface is used no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// The ring's indices cannot be.
    Ring(RingError),
    /// A packet's last slot says that there are more.
    SlotsMissing,
    /// Extra information is announced and not there.
    ExtraMissing,
    /// Extra information of this kind is not known.
    ExtraUnknown(u8),
    /// A packet of more slots than any front end would send.
    SlotsEndless,
    /// A slot's bytes go beyond its page.
    CrossesPage {
        /// First byte.
        offset: u16,
        /// Number of bytes.
        size: u16,
    },
    /// Segments without a byte.
    GsoSize,
    /// Segments of this protocol are not known.
    GsoKind(u8),
}

impl From<RingError> for Fatal {
    fn from(e: RingError) -> Fatal {
        Fatal::Ring(e)
    }
}

/// A transmit request, as it was when it was read.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub gref: u32,
    pub offset: u16,
    pub flags: u16,
    pub id: u16,
    pub size: u16,
}

impl Slot {
    #[allow(clippy::cast_possible_truncation, reason = "the layout of netif::TxRequest")]
    pub fn decode(words: [u32; 3]) -> Slot {
        let [gref, a, b] = words;
        Slot { gref, offset: a as u16, flags: (a >> 16) as u16, id: b as u16, size: (b >> 16) as u16 }
    }

    pub fn crosses_page(&self) -> bool {
        u32::from(self.offset) + u32::from(self.size) > PAGE
    }
}

/// What the slots of extra information of one packet say.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    /// Number of these slots.
    pub count: u32,
    /// Size and kind.
    pub gso: Option<(u16, u8)>,
    pub added: Option<[u8; 6]>,
    pub removed: Option<[u8; 6]>,
}

impl Extras {
    /// Reads the chain of extra information behind the first of `available` requests. The last of each
    /// kind counts.
    #[cold]
    pub fn read(available: u32, request: impl Fn(u32) -> [u32; 3]) -> Result<Extras, Fatal> {
        let mut extras = Extras::default();
        loop {
            if extras.count + 1 >= available {
                return Err(Fatal::ExtraMissing);
            }
            extras.count += 1;
            let [a, b, _] = request(extras.count);
            let [kind, flags, d0, d1] = a.to_le_bytes();
            let [d2, d3, d4, d5] = b.to_le_bytes();
            if kind == XEN_NETIF_EXTRA_TYPE_NONE || kind >= XEN_NETIF_EXTRA_TYPE_MAX {
                return Err(Fatal::ExtraUnknown(kind));
            }
            match kind {
                XEN_NETIF_EXTRA_TYPE_GSO => extras.gso = Some((u16::from_le_bytes([d0, d1]), d2)),
                XEN_NETIF_EXTRA_TYPE_MCAST_ADD => extras.added = Some([d0, d1, d2, d3, d4, d5]),
                XEN_NETIF_EXTRA_TYPE_MCAST_DEL => extras.removed = Some([d0, d1, d2, d3, d4, d5]),
                // A hash is the sender's own view; XDP's room is for packets that it receives.
                _ => {}
            }
            if flags & XEN_NETIF_EXTRA_FLAG_MORE == 0 {
                return Ok(extras);
            }
        }
    }

    /// How the packet is to be cut.
    pub fn gso(&self) -> Result<Option<Gso>, Fatal> {
        self.gso.map(decode_gso).transpose()
    }
}

fn decode_gso((size, kind): (u16, u8)) -> Result<Gso, Fatal> {
    if size == 0 {
        return Err(Fatal::GsoSize);
    }
    let kind = match kind {
        XEN_NETIF_GSO_TYPE_TCPV4 => GsoKind::TcpV4,
        XEN_NETIF_GSO_TYPE_TCPV6 => GsoKind::TcpV6,
        kind => return Err(Fatal::GsoKind(kind)),
    };
    Ok(Gso { kind, size })
}
