//! Network cards that a twin drives: what is queued goes out by the driver's own transmit routine, what its polls find comes in.
//!
//! A domain gives its twin a card with `TWINOP_ATTACH`. Whoever has packets for it (device channels) takes a [`Slot`], copies the
//! packet there, sends it, and [`kick`]s the card; what happens to the packet, and what comes from the wire, it hears by its
//! [`Hooks`]. It lies beside, so the hooks are installed.
//!
//! Locks: hooks are called with none of a card's locks held that [`reserve`], [`Slot::send`] or [`kick`] takes, so they may call these.
//! The caller of those three may hold any lock of device channels'; they are short, and run no twin.

mod link;

pub use link::{install, kick, reserve, Card, Checksum, Hooks, Piece, Received, Slot, Takes, MAX_CARDS};
