//! What a card and those who send and receive by it are to each other.

use crate::sync::Once;
use twin_runtime::linux::inbox::Kept;
use twin_runtime::linux::lanes::MAX_LANES;
use twin_runtime::linux::skb::Many;
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;

/// `ip_summed`: the card found the checksum right.
pub(super) const CHECKSUM_UNNECESSARY: u8 = 1;
/// Cards at one time, of which each has a place: its twin's.
pub const MAX_CARDS: usize = 32;

/// Names an attached card. The number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card(u64);

impl Card {
    /// The `count`-th card, in `place`.
    pub fn new(place: usize, count: u64) -> Self {
        Self(count.wrapping_mul(MAX_CARDS as u64) | (place % MAX_CARDS) as u64)
    }

    /// Its place.
    #[allow(clippy::cast_possible_truncation, reason = "a small number")]
    pub fn place(self) -> usize {
        self.0 as usize % MAX_CARDS
    }

    /// Its transmit queue of that number.
    pub fn queue(self, number: usize) -> CardQueue {
        CardQueue(self.0.wrapping_mul(MAX_LANES as u64) | (number % MAX_LANES) as u64)
    }
}

/// Names a transmit queue of an attached card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardQueue(u64);

impl CardQueue {
    /// None of any card's.
    pub(super) const NONE: Self = Self(0);

    /// Its number.
    #[allow(clippy::cast_possible_truncation, reason = "a small number")]
    pub fn number(self) -> usize {
        self.0 as usize % MAX_LANES
    }

    /// Its card's place.
    #[allow(clippy::cast_possible_truncation, reason = "a small number")]
    pub fn place(self) -> usize {
        self.0 as usize / MAX_LANES % MAX_CARDS
    }
}

/// What a card takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Bytes of the longest frame, with its Ethernet header and without its checksum and VLAN tag.
    pub max_frame: u32,
    /// It sums TCP and UDP over IPv4.
    pub checksum_v4: bool,
    /// It sums TCP and UDP over IPv6.
    pub checksum_v6: bool,
    /// A packet may lie in pages besides its buffer.
    pub pages: bool,
    /// It cuts TCP over IPv4.
    pub segments_v4: bool,
    /// It cuts TCP over IPv6.
    pub segments_v6: bool,
    /// Its transmit queues.
    pub nr_queues: u8,
}

/// Where a card is to sum a packet, and where the sum goes: bytes from the Ethernet header on, and from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// From here to the end is summed.
    pub start: u16,
    /// The sum goes here, from `start` on.
    pub offset: u16,
}

/// How a card is to cut a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// It is TCP over IPv6, else over IPv4.
    pub is_v6: bool,
    /// Payload of a segment, in bytes.
    pub size: u16,
    /// How many there are.
    pub count: u16,
}

/// What the driver has to know of a packet that is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Bytes of it in the buffer.
    pub len: u16,
    /// Bytes of it in pages.
    pub more: u32,
    /// Where the card is to sum it.
    pub checksum: Option<Checksum>,
    /// How the card is to cut it.
    pub segments: Option<Segments>,
}

/// Bytes in a frame that the hypervisor holds.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The frame.
    pub frame: Mfn,
    /// Where they begin in it.
    pub offset: u16,
    /// How many.
    pub len: u16,
}

impl Piece {
    /// `len` bytes at machine address `at`, in one frame.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "in one frame")]
    pub fn at(at: u64, len: u16) -> Self {
        let at = MachAddr::new(at);
        Self { frame: Mfn::containing(at), offset: at.page_offset() as u16, len }
    }
}

/// A frame from the wire in one piece, as most are: from its Ethernet header on, without its checksum.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Its bytes. The driver domain may change them meanwhile: each is read once, or copied first.
    pub piece: Piece,
    /// The card found the checksum of its TCP or UDP right.
    pub is_verified: bool,
}

impl From<&Kept> for Received {
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "in one lent buffer")]
    fn from(kept: &Kept) -> Self {
        let piece = Piece::at(kept.machine, kept.len as u16);
        Self { piece, is_verified: kept.ip_summed == CHECKSUM_UNNECESSARY }
    }
}

/// What is to be known of a frame that came in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The card found the checksum of its TCP or UDP right.
    pub is_verified: bool,
    /// It was on no wire, and its checksum is to be completed.
    pub blank: Option<Checksum>,
    /// What it is many of, and the payload of each in bytes.
    pub many: Option<(Many, u16)>,
}

/// What those who send and receive are told.
pub struct Hooks {
    /// Card of domain `u16` is the way out of the switch in which that domain's interface `u32` is plugged in. ENODEV:
    /// there is none.
    pub attached: fn(Card, u16, u32, &Takes) -> Result<(), Errno>,
    /// It is no more. What is called gives back the cookies that it has, while nothing goes another way; others may
    /// come back afterwards.
    pub detached: fn(Card, &mut dyn FnMut()),
    /// Frames came from the wire, in this order; each is a [`Received`].
    pub received: fn(Card, &[Kept]),
    /// A frame came in these pieces.
    pub received_in_pieces: fn(Card, &[Piece], &Said),
    /// A frame came that cannot be passed on.
    pub lost: fn(Card),
    /// The driver is done with the packets of these cookies, or they are lost. Each cookie comes back once. With no
    /// cookies: there is room again for who found none.
    pub transmitted: fn(Card, &[u64]),
    /// The packets of these cookies were not sent, as far as is known, and nobody sends them any more. Each cookie
    /// comes back once.
    pub unsent: fn(&[u64]),
}

static HOOKS: Once<Hooks> = Once::new();

/// Says who sends and receives.
pub fn install(hooks: Hooks) {
    HOOKS.call_once(|| hooks);
}

/// Who sends and receives, if anybody does.
pub(super) fn hooks() -> Option<&'static Hooks> {
    HOOKS.get()
}
