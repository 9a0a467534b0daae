//! What an interface has done. Directions are the guest's.

/// Packets that the guest has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStats {
    /// Packets taken. One that is to be cut is one.
    pub packets: u64,
    /// Their bytes, Ethernet headers included.
    pub bytes: u64,
    /// Packets answered with an error: bad slots, or bad grants.
    pub errors: u64,
    /// Packets that could not be sent: a checksum to be completed where none is.
    pub dropped: u64,
    /// Packets to be cut whose sender did not say that their checksum is blank. (ethtool: `rx_gso_checksum_fixup`.)
    pub gso_checksum_fixup: u64,
}

/// Packets that the guest has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStats {
    /// Packets in the guest's pages.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets with an error in one of their slots: the guest's grant did not hold.
    pub errors: u64,
    /// Packets for which the guest had no room for too long.
    pub dropped: u64,
}
