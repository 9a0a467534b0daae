//! What is to be done next for a guest's interface: a pure function of what xenstore and the hypervisor say.
//!
//! Nothing is remembered between two looks, so it does not matter in which order things happened, nor whether it was
//! this process that did the last step. The numbers are xenbus's states: 1 initialising, 2 waiting for the front end, 3
//! the front end has written its keys, 4 connected, 5 closing, 6 closed.

use channel::vif::features::{max_queues, Choice, QueueKeys};
use serde::{Deserialize, Serialize};
use xen_abi::channel_op as op;

/// A guest's interface, by the guest's domid and the number of its device.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Device {
    /// Domid of the guest.
    pub guest: u16,
    /// Which of its interfaces.
    pub number: u32,
}

/// States of both ends.
pub mod state {
    /// There is no such end, or it says nothing that is known.
    pub const UNKNOWN: u32 = 0;
    /// It has begun.
    pub const INITIALISING: u32 = 1;
    /// The back end waits for the front end.
    pub const INIT_WAIT: u32 = 2;
    /// The front end has written its keys and waits.
    pub const INITIALISED: u32 = 3;
    /// It is connected.
    pub const CONNECTED: u32 = 4;
    /// It is going away.
    pub const CLOSING: u32 = 5;
    /// It has gone.
    pub const CLOSED: u32 = 6;
}

/// What is in the back end's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// Its state as it is shown now.
    pub state: u32,
    /// The toolstack wants the device to be there.
    pub online: bool,
    /// It shows that it is closed for so long that the toolstack has seen it: one that finds nothing to see calls that
    /// an error.
    pub is_seen_closed: bool,
}

/// A look at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `None`: its directory is not there.
    pub back: Option<Back>,
    /// The front end's state.
    pub front: u32,
    /// Whether it is plugged into the switch.
    pub is_plugged: bool,
}

/// What is done for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Say what is offered and wait for the front end.
    Offer,
    /// Plug it into the switch. If that cannot be: say why, and show that it is closing.
    Plug,
    /// Take it out of the switch.
    Unplug,
    /// Show this state.
    Show(u32),
    /// Remove the back end's directory.
    Forget,
}

/// The next step, if there is one. After each another look is taken.
pub fn next(seen: &Seen) -> Option<Step> {
    let Some(back) = seen.back else { return seen.is_plugged.then_some(Step::Unplug) };
    let is_up = matches!(seen.front, state::INITIALISED | state::CONNECTED);
    let unplug_or = |step: Option<Step>| if seen.is_plugged { Some(Step::Unplug) } else { step };
    let show = |wanted: u32| (back.state != wanted).then_some(Step::Show(wanted));
    if !back.online {
        return match (is_up, back.state) {
            // The front end has seen that it is to close, and will; if it does not, the toolstack takes its directory
            // away.
            (true, _) => None,
            (false, state::CLOSED) => unplug_or(back.is_seen_closed.then_some(Step::Forget)),
            (false, _) => unplug_or(show(state::CLOSED)),
        };
    }
    match seen.front {
        state::INITIALISING => unplug_or((back.state != state::INIT_WAIT).then_some(Step::Offer)),
        state::INIT_WAIT => matches!(back.state, state::UNKNOWN | state::INITIALISING).then_some(Step::Offer),
        state::INITIALISED | state::CONNECTED => match back.state {
            state::UNKNOWN | state::INITIALISING => unplug_or(Some(Step::Offer)),
            // It did not work, or has been closed: the front end must begin anew.
            state::CLOSING | state::CLOSED => None,
            _ if !seen.is_plugged => Some(Step::Plug),
            _ => show(state::CONNECTED),
        },
        state::CLOSING => unplug_or(if back.state == state::CLOSED { None } else { show(state::CLOSING) }),
        state::UNKNOWN | state::CLOSED => unplug_or(show(state::CLOSED)),
        // Reconfiguring and the like: nothing was offered that would need it.
        _ => None,
    }
}

/// Keys of a queue.
pub const QUEUE_KEYS: &[&str] =
    &["tx-ring-ref", "rx-ring-ref", "event-channel", "event-channel-tx", "event-channel-rx"];

/// Keys of the front end that are looked at, besides those of its queues.
pub const FRONT_KEYS: &[&str] = &[
    NUM_QUEUES,
    "request-rx-copy",
    "feature-sg",
    "feature-gso-tcpv4",
    "feature-gso-tcpv6",
    "feature-no-csum-offload",
    "feature-ipv6-csum-offload",
];

/// How many queues the front end has.
const NUM_QUEUES: &str = "multi-queue-num-queues";

/// How many were offered. (An older daemon, which said nothing of that, has offered one.)
pub const MAX_QUEUES: &str = "multi-queue-max-queues";

/// Keys in the back end's directory that are looked at when the interface is plugged in.
pub const BACK_KEYS: &[&str] = &["mac", "rate", MAX_QUEUES];

/// Where the keys of a front end's queues are, in its directory: what is put before them.
pub fn places_of_queues<'a>(front: impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    match front(NUM_QUEUES).and_then(|count| count.trim().parse().ok()) {
        Some(count @ 2..=op::VIF_MAX_QUEUES) => (0..count).map(|n| format!("queue-{n}/")).collect(),
        _ => vec![String::new()],
    }
}

/// What the hypervisor is asked for, from the keys of both ends; `guest`, `backend`, `device` and `switch` are left to
/// the caller. An error says which key is wrong.
pub fn terms<'a>(
    front: impl Fn(&str) -> Option<&'a str>,
    back: impl Fn(&str) -> Option<&'a str>,
) -> Result<op::ChannelConnect, String> {
    let offered = back(MAX_QUEUES).and_then(|count| count.parse().ok()).map_or(1, max_queues);
    let Choice { accepts, nr_queues } =
        Choice::read(offered, &front).map_err(|refusal| format!("front end: {refusal}"))?;
    let mut queues = [op::ChannelQueue::default(); op::VIF_MAX_QUEUES as usize];
    for (queue, place) in queues.iter_mut().zip(places_of_queues(&front)) {
        let keys = QueueKeys::read(|key| front(&format!("{place}{key}")));
        let QueueKeys { tx_ring, rx_ring, tx_port, rx_port } =
            keys.map_err(|refusal| format!("front end: {place}{refusal}"))?;
        *queue = op::ChannelQueue { tx_ring, rx_ring, tx_port, rx_port };
    }
    let flags = [
        (accepts.sg, op::CONNECT_SG),
        (accepts.gso_v4, op::CONNECT_GSO_TCPV4),
        (accepts.gso_v6, op::CONNECT_GSO_TCPV6),
        (accepts.csum_v4, op::CONNECT_CSUM_IPV4),
        (accepts.csum_v6, op::CONNECT_CSUM_IPV6),
    ];
    let mac = back("mac").ok_or("the toolstack gave no mac")?;
    let (rate_bytes, rate_interval_us) = match back("rate") {
        None => (0, 0),
        Some(rate) => self::rate(rate).ok_or_else(|| format!("rate `{rate}` is not BYTES,MICROSECONDS"))?,
    };
    Ok(op::ChannelConnect {
        nr_queues,
        queues,
        flags: flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag),
        mac: self::mac(mac).ok_or_else(|| format!("mac `{mac}` is not six bytes in hex with colons"))?,
        rate_bytes,
        rate_interval_us,
        ..op::ChannelConnect::default()
    })
}

/// `00:16:3e:00:00:01`.
fn mac(text: &str) -> Option<[u8; 6]> {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let byte = |part: &str| is_byte(part).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    text.split(':').map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// `BYTES,MICROSECONDS`, as the toolstack writes it; none of both is 0.
fn rate(text: &str) -> Option<(u64, u32)> {
    let (bytes, interval) = text.split_once(',')?;
    let limit = (bytes.parse().ok()?, interval.parse().ok()?);
    (limit.0 != 0 && limit.1 != 0).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: &[(&str, &str)] = &[
        ("request-rx-copy", "1"),
        ("tx-ring-ref", "8"),
        ("rx-ring-ref", "9"),
        ("event-channel", "5"),
        ("feature-sg", "1"),
    ];

    fn key<'a>(keys: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<&'a str> {
        |name| keys.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    #[test]
    fn what_both_ends_wrote_is_what_the_hypervisor_is_asked_for() {
        let asked = terms(key(UP), key(&[("mac", "00:16:3e:00:00:0A"), ("rate", "62500,50000")])).unwrap();
        assert_eq!(asked.nr_queues, 1);
        assert_eq!(asked.queues[0], op::ChannelQueue { tx_ring: 8, rx_ring: 9, tx_port: 5, rx_port: 5 });
        assert_eq!(asked.flags, op::CONNECT_SG | op::CONNECT_CSUM_IPV4);
        assert_eq!(asked.mac, [0, 0x16, 0x3e, 0, 0, 10]);
        assert_eq!((asked.rate_bytes, asked.rate_interval_us), (62_500, 50_000));
        assert_eq!(terms(key(UP), key(&[("mac", "00:16:3e:00:00:0a")])).unwrap().rate_bytes, 0);
    }

    #[test]
    fn wrong_keys_are_named() {
        let refused = |front: &[(&str, &str)], back: &[(&str, &str)]| terms(key(front), key(back)).unwrap_err();
        let mac = ("mac", "00:16:3e:00:00:01");
        for wrong in ["", "1", "0,5", "5,0", "-1,5", "5,5,5", "18446744073709551616,1", "5,4294967296"] {
            assert!(refused(UP, &[mac, ("rate", wrong)]).contains("rate"), "{wrong}");
        }
        for wrong in ["", "00:16:3e:00:00", "00:16:3e:00:00:01:02", "00:16:3e:00:00:+1", "00:16:3e:00:00:0g"] {
            assert!(refused(UP, &[("mac", wrong)]).contains("mac"), "{wrong}");
        }
        assert!(refused(UP, &[]).contains("mac"));
        assert!(refused(&UP[1..], &[mac]).contains("request-rx-copy"));
        assert!(refused(&UP[..3], &[mac]).contains("event-channel"));
        assert!(refused(&[&[(NUM_QUEUES, "2")], UP].concat(), &[mac]).contains("queues"));
        assert!(refused(&[&[(NUM_QUEUES, "9")], UP].concat(), &[mac, (MAX_QUEUES, "99")]).contains("queues"));
        let lacking = [&[(NUM_QUEUES, "2"), ("queue-0/tx-ring-ref", "8")], UP].concat();
        assert_eq!(
            refused(&lacking, &[mac, (MAX_QUEUES, "2")]),
            "front end: queue-0/event-channel is missing or no number"
        );
    }

    #[test]
    fn each_queue_has_its_own_rings_and_ports() {
        let keys = |n: u32| {
            let all = [
                ("tx-ring-ref", 8 + n),
                ("rx-ring-ref", 18 + n),
                ("event-channel-tx", 28 + n),
                ("event-channel-rx", 38 + n),
            ];
            all.map(|(key, value)| (format!("queue-{n}/{key}"), value.to_string()))
        };
        let queues: Vec<(String, String)> = (0..2).flat_map(keys).collect();
        let named = queues.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let front: Vec<(&str, &str)> = named.chain([(NUM_QUEUES, "2"), ("request-rx-copy", "1")]).collect();
        assert_eq!(places_of_queues(key(&front)), ["queue-0/", "queue-1/"]);
        assert_eq!(places_of_queues(key(UP)), [""]);
        let asked = terms(key(&front), key(&[("mac", "00:16:3e:00:00:0A"), (MAX_QUEUES, "4")])).unwrap();
        assert_eq!(asked.nr_queues, 2);
        assert_eq!(asked.queues[1], op::ChannelQueue { tx_ring: 9, rx_ring: 19, tx_port: 29, rx_port: 39 });
        assert_eq!(asked.queues[2], op::ChannelQueue::default());
    }

    /// Every look there can be: doing what is said leads to rest in a few steps, and what is shown then is true.
    #[test]
    fn every_look_leads_to_rest() {
        for looks in 0..8 * 8 * 2 * 2 * 2_u32 {
            let bit = |n: u32| looks >> n & 1 != 0;
            let back = Back { state: looks & 7, online: bit(6), is_seen_closed: bit(7) };
            let begin = Seen { back: Some(back), front: looks >> 3 & 7, is_plugged: bit(8) };
            let mut seen = begin;
            for _ in 0..5 {
                let Some(step) = next(&seen) else { break };
                let Some(back) = &mut seen.back else { break };
                match step {
                    Step::Offer => back.state = state::INIT_WAIT,
                    Step::Plug => seen.is_plugged = true,
                    Step::Unplug => seen.is_plugged = false,
                    Step::Show(shown) => back.state = shown,
                    Step::Forget => seen.back = None,
                }
            }
            assert_eq!(next(&seen), None, "{begin:?}");
            let Some(back) = seen.back else { continue };
            let is_up = matches!(seen.front, 3 | 4);
            if begin.back.is_some_and(|b| b.online) && is_up && !matches!(back.state, 5 | 6) {
                assert!(seen.is_plugged && back.state == state::CONNECTED, "{begin:?}: {seen:?}");
            }
            if matches!(seen.front, 0 | 1 | 5 | 6) {
                assert!(!seen.is_plugged, "{begin:?}: {seen:?}");
            }
            assert!(
                back.online || is_up || (back.state == state::CLOSED && !back.is_seen_closed),
                "{begin:?}: {seen:?}"
            );
        }
    }

    #[test]
    fn a_front_end_that_begins_anew_gets_a_new_offer() {
        let back = |state| Some(Back { state, online: true, is_seen_closed: false });
        for old in [0, 1, 4, 5, 6] {
            let seen = Seen { back: back(old), front: state::INITIALISING, is_plugged: false };
            assert_eq!(next(&seen), Some(Step::Offer), "{old}");
        }
        // The old rings go first.
        let seen = Seen { back: back(4), front: state::INITIALISING, is_plugged: true };
        assert_eq!(next(&seen), Some(Step::Unplug));
    }

    #[test]
    fn the_directory_stays_until_the_toolstack_has_seen_that_it_is_closed() {
        let back = Back { state: state::CLOSED, online: false, is_seen_closed: false };
        assert_eq!(next(&Seen { back: Some(back), front: 0, is_plugged: false }), None);
        let back = Back { is_seen_closed: true, ..back };
        assert_eq!(next(&Seen { back: Some(back), front: 0, is_plugged: false }), Some(Step::Forget));
    }
}
