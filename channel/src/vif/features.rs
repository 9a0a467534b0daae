//! What an interface offers to its guest, and what the guest has chosen.
//!
//! A front end reads the offer once, when it connects, and keeps its choice for its life: so everything here is
//! something that the channel can do by itself, whatever the driver below can.

use crate::offload::headers::{is_tagged, parse};
use crate::packet::{Checksum, GsoKind, View};
use xen_abi::channel_op::VIF_MAX_QUEUES;

/// Keys that the back end writes into its xenstore directory, with their values, but for `multi-queue-max-queues`
/// ([`max_queues`]). Left out on purpose, though netback has them: `feature-xdp-headroom` (its absence saves the front
/// end's reconfiguration), `feature-ctrl-ring` (hashes; Linux's front end does not use it), `feature-multicast-control`
/// and `feature-dynamic-multicast-control` (likewise; requests to change the list are understood anyhow).
pub const OFFER: &[(&str, &str)] = &[
    ("feature-sg", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-ipv6-csum-offload", "1"),
    ("feature-rx-copy", "1"),
    ("feature-rx-flip", "0"),
    ("feature-split-event-channels", "1"),
];

/// The value of `multi-queue-max-queues` for a guest with `nr_vcpus`.
pub fn max_queues(nr_vcpus: u32) -> u32 {
    nr_vcpus.clamp(1, VIF_MAX_QUEUES)
}

/// Why a front end's keys are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `request-rx-copy` is not 1: pages would have to change hands.
    RxCopy,
    /// `multi-queue-num-queues` is 0, or more than were offered.
    NrQueues(u32),
    /// A queue lacks this key, or its value is no number.
    Missing(&'static str),
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::RxCopy => f.write_str("request-rx-copy is not 1"),
            Refusal::NrQueues(asked) => write!(f, "{asked} queues were not offered"),
            Refusal::Missing(key) => write!(f, "{key} is missing or no number"),
        }
    }
}

/// What packets a guest takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepts {
    /// Packets of more than one page.
    pub sg: bool,
    /// TCP over IPv4 that is to be cut.
    pub gso_v4: bool,
    /// TCP over IPv6 that is to be cut.
    pub gso_v6: bool,
    /// Blank checksums over IPv4.
    pub csum_v4: bool,
    /// Blank checksums over IPv6.
    pub csum_v6: bool,
}

impl Accepts {
    /// Everything, as Linux's front end.
    pub const ALL: Accepts = Accepts { sg: true, gso_v4: true, gso_v6: true, csum_v4: true, csum_v6: true };

    /// Whether it takes a packet to be cut. Needs pages and blank checksums, too.
    #[inline]
    pub fn gso(&self, kind: GsoKind) -> bool {
        match kind {
            GsoKind::TcpV4 => self.gso_v4 && self.sg && self.csum_v4,
            GsoKind::TcpV6 => self.gso_v6 && self.sg && self.csum_v6,
            GsoKind::Udp => false,
        }
    }

    /// Whether it takes the packet's checksum as it is.
    #[inline]
    pub fn checksum<F>(&self, view: &View<'_, F>) -> bool {
        !matches!(view.checksum, Checksum::Blank { .. }) || self.blank(view.header)
    }

    /// Whether it takes a blank checksum of a packet that begins so. With a VLAN tag nobody does: Linux's front end
    /// looks for IP's header where packets without one have it, and throws away what has none there; so do some drivers
    /// of cards, which say apart what they do for such.
    #[inline]
    fn blank(&self, header: &[u8]) -> bool {
        if is_tagged(header) {
            return false;
        }
        if self.csum_v4 && self.csum_v6 {
            return true;
        }
        let is_v6 = parse(header).is_some_and(|h| h.is_v6);
        if is_v6 {
            self.csum_v6
        } else {
            self.csum_v4
        }
    }
}

/// What a front end has chosen for all of its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What packets it takes.
    pub accepts: Accepts,
    /// Number of its queues.
    pub nr_queues: u32,
}

impl Choice {
    /// From the front end's keys. `read` gives a key's value, or `None`; `offered` is the number of queues that were
    /// offered.
    pub fn read<'a>(offered: u32, read: impl Fn(&str) -> Option<&'a str>) -> Result<Choice, Refusal> {
        let number = |key: &str| read(key).and_then(|v| v.trim().parse::<u32>().ok());
        let is_set = |key: &str| number(key).is_some_and(|v| v != 0);
        if !is_set("request-rx-copy") {
            return Err(Refusal::RxCopy);
        }
        let nr_queues = match read("multi-queue-num-queues") {
            None => 1,
            Some(_) => number("multi-queue-num-queues").unwrap_or(0),
        };
        if nr_queues == 0 || nr_queues > offered {
            return Err(Refusal::NrQueues(nr_queues));
        }
        let accepts = Accepts {
            sg: is_set("feature-sg"),
            gso_v4: is_set("feature-gso-tcpv4"),
            gso_v6: is_set("feature-gso-tcpv6"),
            csum_v4: !is_set("feature-no-csum-offload"),
            csum_v6: is_set("feature-ipv6-csum-offload"),
        };
        Ok(Choice { accepts, nr_queues })
    }
}

/// Grants and event channels of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKeys {
    /// Grant of the transmit ring.
    pub tx_ring: u32,
    /// Grant of the receive ring.
    pub rx_ring: u32,
    /// Guest's port for transmit events.
    pub tx_port: u32,
    /// Guest's port for receive events; the same if it does not split them.
    pub rx_port: u32,
}

impl QueueKeys {
    /// From the front end's keys: of its directory if it has one queue, else of `queue-N` in it.
    pub fn read<'a>(read: impl Fn(&str) -> Option<&'a str>) -> Result<QueueKeys, Refusal> {
        let number =
            |key: &'static str| read(key).and_then(|v| v.trim().parse::<u32>().ok()).ok_or(Refusal::Missing(key));
        let (tx_port, rx_port) = match number("event-channel-tx") {
            Ok(tx) => (tx, number("event-channel-rx")?),
            Err(_) => {
                let both = number("event-channel")?;
                (both, both)
            }
        };
        Ok(QueueKeys { tx_ring: number("tx-ring-ref")?, rx_ring: number("rx-ring-ref")?, tx_port, rx_port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn choice(keys: &[(&str, &'static str)]) -> Result<Choice, Refusal> {
        let keys: BTreeMap<&str, &'static str> = keys.iter().copied().collect();
        Choice::read(4, |k| keys.get(k).copied())
    }

    #[test]
    fn what_linux_writes_is_understood() {
        let keys = [
            ("multi-queue-num-queues", "2"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-sg", "1"),
            ("feature-gso-tcpv4", "1"),
            ("feature-gso-tcpv6", "1"),
            ("feature-ipv6-csum-offload", "1"),
        ];
        assert_eq!(choice(&keys), Ok(Choice { accepts: Accepts::ALL, nr_queues: 2 }));
    }

    #[test]
    fn without_keys_the_oldest_front_end_is_meant() {
        let accepts = Accepts { csum_v4: true, ..Accepts::default() };
        assert_eq!(choice(&[("request-rx-copy", "1")]), Ok(Choice { accepts, nr_queues: 1 }));
        assert_eq!(choice(&[]), Err(Refusal::RxCopy));
    }

    #[test]
    fn numbers_of_queues_that_were_not_offered_are_refused() {
        for (value, n) in [("0", 0), ("5", 5), ("-1", 0), ("x", 0), ("4294967296", 0)] {
            let keys = [("request-rx-copy", "1"), ("multi-queue-num-queues", value)];
            assert_eq!(choice(&keys), Err(Refusal::NrQueues(n)), "{value}");
        }
        assert_eq!([0, 1, 5, 99].map(max_queues), [1, 1, 5, 8]);
    }

    #[test]
    fn events_are_split_or_not() {
        let queue = |keys: &[(&str, &'static str)]| {
            let keys: BTreeMap<&str, &'static str> = keys.iter().copied().collect();
            QueueKeys::read(|k| keys.get(k).copied())
        };
        let rings = [("tx-ring-ref", "8"), ("rx-ring-ref", "9")];
        let split = [rings[0], rings[1], ("event-channel-tx", "5"), ("event-channel-rx", "6")];
        assert_eq!(queue(&split), Ok(QueueKeys { tx_ring: 8, rx_ring: 9, tx_port: 5, rx_port: 6 }));
        let one = [rings[0], rings[1], ("event-channel", "7")];
        assert_eq!(queue(&one), Ok(QueueKeys { tx_ring: 8, rx_ring: 9, tx_port: 7, rx_port: 7 }));
        assert_eq!(queue(&split[..3]), Err(Refusal::Missing("event-channel-rx")));
        assert_eq!(queue(&rings), Err(Refusal::Missing("event-channel")));
        assert_eq!(queue(&one[1..]), Err(Refusal::Missing("tx-ring-ref")));
    }
}
