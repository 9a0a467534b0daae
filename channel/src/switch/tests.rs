#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use alloc::sync::Arc;
use proptest::prelude::*;

const UP: PortId = PortId(0);
const DRIVER: PortId = PortId(1);
const ALL: Mac = [0xff; 6];
const STRANGER: Mac = [2, 9, 9, 9, 9, 9];

fn mac(n: u16) -> Mac {
    [0, 0x16, 0x3e, 0, (n >> 8) as u8, n as u8]
}

fn guest(n: u16) -> Port {
    Port { id: PortId(n), nr_queues: 1, kind: Kind::Guest { any_source: false }, mac: mac(n) }
}

fn ports(nr_guests: u16, is_promiscuous: bool) -> Vec<Port> {
    let mut all = alloc::vec![
        Port { id: UP, nr_queues: 1, kind: Kind::Uplink, mac: [0; 6] },
        Port { id: DRIVER, nr_queues: 1, kind: Kind::Driver { is_promiscuous }, mac: mac(1) },
    ];
    all.extend((2..2 + nr_guests).map(guest));
    all
}

fn frame(to: Mac, from: Mac) -> [u8; 14] {
    let mut f = [8; 14];
    f[..6].copy_from_slice(&to);
    f[6..12].copy_from_slice(&from);
    f
}

#[test]
fn frames_go_where_their_address_is() {
    let table = Table::build(1, &ports(3, false)).unwrap();
    let go = |from: u16, to: Mac| table.forward(PortId(from), &frame(to, mac(from)));
    assert_eq!(go(2, mac(3)), Forward::To(PortId(3)));
    assert_eq!(go(3, mac(1)), Forward::To(DRIVER));
    assert_eq!(go(1, mac(4)), Forward::To(PortId(4)));
    assert_eq!(go(2, STRANGER), Forward::To(UP));
    assert_eq!(go(1, STRANGER), Forward::To(UP));
    assert_eq!(go(2, mac(2)), Forward::Drop(Drop::Hairpin));
    assert_eq!(go(2, ALL), Forward::Flood);
    assert_eq!(go(2, [0x33, 0x33, 0, 0, 0, 1]), Forward::Flood);
    let from_outside = |to: Mac| table.forward(UP, &frame(to, STRANGER));
    assert_eq!(from_outside(mac(4)), Forward::To(PortId(4)));
    assert_eq!(from_outside(ALL), Forward::Flood);
    assert_eq!(from_outside([2, 1, 1, 1, 1, 1]), Forward::Drop(Drop::Nobody));
    let promiscuous = Table::build(2, &ports(3, true)).unwrap();
    assert_eq!(promiscuous.forward(UP, &frame([2, 1, 1, 1, 1, 1], STRANGER)), Forward::To(DRIVER));
}

#[test]
fn guests_send_with_their_own_address() {
    let mut all = ports(3, false);
    all[4].kind = Kind::Guest { any_source: true };
    let table = Table::build(1, &all).unwrap();
    let go = |from: u16, source: Mac| table.forward(PortId(from), &frame(ALL, source));
    for source in [mac(3), mac(1), STRANGER, [0; 6], ALL, [1, 0, 0x5e, 0, 0, 1]] {
        assert_eq!(go(2, source), Forward::Drop(Drop::Source));
    }
    assert_eq!(go(4, STRANGER), Forward::Flood);
    assert_eq!(go(4, ALL), Forward::Drop(Drop::Source));
    // The driver's domain may bridge others, but is none of the guests.
    assert_eq!((go(1, STRANGER), go(1, mac(1))), (Forward::Flood, Forward::Flood));
    assert_eq!(go(1, mac(2)), Forward::Drop(Drop::Source));
    // What the network sends back is not delivered again.
    assert_eq!(go(0, mac(2)), Forward::Drop(Drop::Looped));
}

#[test]
fn what_strangers_send_each_other_does_not_go_back_to_the_network() {
    const OTHER: Mac = [2, 1, 1, 1, 1, 1];
    let table = Table::build(1, &ports(3, false)).unwrap();
    let go = |from: PortId, to: Mac, source: Mac| table.forward(from, &frame(to, source));
    // The network shows it to all, and the driver's domain received it instead of the twin.
    assert_eq!(go(UP, OTHER, STRANGER), Forward::Drop(Drop::Nobody));
    assert_eq!(go(DRIVER, OTHER, STRANGER), Forward::Drop(Drop::Nobody));
    assert_eq!(table.onward(UP, go(DRIVER, OTHER, STRANGER)), Onward::Not);
    // What it received for somebody here, and what it sends itself.
    assert_eq!(go(DRIVER, mac(3), STRANGER), Forward::To(PortId(3)));
    assert_eq!(go(DRIVER, OTHER, mac(1)), Forward::To(UP));
    // One that also gets what is for nobody here may be there for others.
    let promiscuous = Table::build(2, &ports(3, true)).unwrap();
    assert_eq!(promiscuous.forward(DRIVER, &frame(OTHER, STRANGER)), Forward::To(UP));
}

#[test]
fn what_bridges_keep_to_themselves() {
    let table = Table::build(1, &ports(3, false)).unwrap();
    for last in [0, 2, 0x0e, 0x0f] {
        let to = [1, 0x80, 0xc2, 0, 0, last];
        assert_eq!(table.forward(PortId(2), &frame(to, mac(2))), Forward::Drop(Drop::Reserved));
        assert_eq!(table.forward(UP, &frame(to, STRANGER)), Forward::To(DRIVER));
        assert_eq!(table.forward(DRIVER, &frame(to, mac(1))), Forward::To(UP));
    }
    assert_eq!(table.forward(PortId(2), &frame([1, 0x80, 0xc2, 0, 0, 0x10], mac(2))), Forward::Flood);
}

#[test]
fn without_an_uplink_guests_have_each_other() {
    let table = Table::build(1, &[guest(5), guest(6)]).unwrap();
    assert_eq!(table.forward(PortId(5), &frame(mac(6), mac(5))), Forward::To(PortId(6)));
    assert_eq!(table.forward(PortId(5), &frame(STRANGER, mac(5))), Forward::Drop(Drop::Nobody));
    assert_eq!(table.forward(PortId(7), &frame(ALL, mac(7))), Forward::Drop(Drop::NoPort));
    assert_eq!(table.forward(PortId(5), &frame(ALL, mac(5))[..13]), Forward::Drop(Drop::Short));
    let empty = Table::build(1, &[]).unwrap();
    assert_eq!(empty.forward(UP, &frame(ALL, mac(7))), Forward::Drop(Drop::NoPort));
    assert!(empty.find(mac(1)).is_none());
}

#[test]
fn while_the_way_out_is_drained_only_what_comes_from_there_goes() {
    let build = || Table::build(7, &ports(3, true)).unwrap();
    let whole = Arc::new(build());
    let drained = build().drained(500, Arc::clone(&whole));
    assert_eq!((drained.uplink(), drained.way_out(), whole.way_out()), (None, Some(UP), Some(UP)));
    let go = |from, to, source| drained.forward(from, &frame(to, source));
    assert_eq!(go(PortId(2), STRANGER, mac(2)), Forward::Drop(Drop::Nobody));
    assert_eq!((drained.waits_until(499), drained.waits_until(500)), (Some(500), None));
    assert_eq!(go(PortId(2), mac(3), mac(2)), Forward::To(PortId(3)));
    assert_eq!(go(UP, mac(2), STRANGER), Forward::To(PortId(2)));
    assert_eq!(go(UP, STRANGER, [2, 0, 0, 0, 0, 9]), Forward::To(DRIVER), "it wants everything");
    assert_eq!(go(UP, mac(2), mac(3)), Forward::Drop(Drop::Looped));
    let others = |table: &Table| table.others(PortId(2)).any(|port| port.id == UP);
    assert_eq!((others(&drained), others(&whole)), (false, true));
    let (until, after) = drained.after_drain().unwrap();
    assert!(until == 500 && Arc::ptr_eq(after, &whole) && whole.after_drain().is_none());
}

#[test]
fn what_waits_for_a_way_out_stays_when_that_is_drained_or_gone() {
    let build = |nr| Table::build(7, &ports(nr, true)).unwrap();
    let whole = Arc::new(build(3));
    let drained = build(3).drained(500, Arc::clone(&whole));
    let gone = Table::build(8, &[guest(2), guest(3)]).unwrap().waiting(Some(500));
    let onward = |table: &Table, to, address| table.onward(to, table.forward(PortId(2), &frame(address, mac(2))));
    for address in [STRANGER, ALL] {
        assert_eq!(onward(&whole, UP, address), Onward::Goes);
        assert_eq!((onward(&drained, UP, address), onward(&gone, UP, address)), (Onward::Stays, Onward::Stays));
    }
    // Between guests nothing changes.
    for table in [&whole, &drained, &gone] {
        assert_eq!(onward(table, PortId(3), mac(3)), Onward::Goes);
        assert_eq!(onward(table, PortId(3), ALL), Onward::Goes);
        assert_eq!(onward(table, PortId(9), mac(3)), Onward::Stays, "a guest that is gone");
    }
    // Its sender has changed it.
    assert_eq!(onward(&whole, UP, mac(3)), Onward::Elsewhere(PortId(3)));
    assert_eq!(onward(&whole, PortId(3), STRANGER), Onward::Elsewhere(UP));
    assert_eq!([&drained, &gone].map(|table| onward(table, PortId(3), STRANGER)), [Onward::Not; 2]);
}

/// What the driver's domain was to send before its card had a twin goes by the card, and what is its own does not.
#[test]
fn what_waits_for_an_interface_goes_by_the_card_that_is_the_way_out_instead() {
    let out = |kind| Port { kind, ..ports(1, false)[1] };
    let before = Table::build(1, &[out(Kind::Uplink), guest(2)]).unwrap();
    let after = Table::build(2, &ports(1, false)).unwrap();
    let onward = |table: &Table, address| table.onward(DRIVER, table.forward(PortId(2), &frame(address, mac(2))));
    assert_eq!([STRANGER, ALL, mac(1)].map(|address| onward(&before, address)), [Onward::Goes; 3]);
    assert_eq!(onward(&after, STRANGER), Onward::Elsewhere(UP));
    assert_eq!([ALL, mac(1)].map(|address| onward(&after, address)), [Onward::Goes; 2]);
}

/// A table that cannot be replaced for want of memory, when its way out goes, sends nothing there any more: who is
/// refused there would try for ever.
#[test]
fn a_table_in_use_can_lose_its_way_out() {
    let table = Table::build(7, &ports(3, true)).unwrap();
    let go = |from, to, source| table.forward(from, &frame(to, source));
    assert_eq!((table.uplink(), table.waits_until(0)), (Some(UP), None));
    table.lead(None, 500);
    assert_eq!((table.uplink(), table.way_out()), (None, Some(UP)), "who was on the way there can tell");
    assert_eq!(go(PortId(2), STRANGER, mac(2)), Forward::Drop(Drop::Nobody));
    assert_eq!((table.waits_until(499), table.waits_until(500)), (Some(500), None));
    assert!(table.others(PortId(2)).all(|port| port.id != UP));
    assert_eq!(table.onward(UP, go(PortId(2), STRANGER, mac(2))), Onward::Stays);
    assert_eq!(table.onward(UP, go(PortId(2), ALL, mac(2))), Onward::Stays);
    assert_eq!(
        (go(PortId(2), mac(3), mac(2)), go(PortId(2), mac(1), mac(2))),
        (Forward::To(PortId(3)), Forward::To(DRIVER))
    );
    // Nothing is to wait.
    table.lead(None, 0);
    assert_eq!((table.uplink(), table.waits_until(1)), (None, None));
}

/// When a card takes an interface's place, or gives it back, what is sent meanwhile goes behind what waited.
#[test]
fn nothing_overtakes_what_waits_for_a_way_out_that_changes() {
    let out = |kind| Port { kind, ..ports(1, false)[1] };
    let interface = || Table::build(1, &[out(Kind::Uplink), guest(2)]).unwrap();
    let card = || Table::build(2, &ports(1, false)).unwrap();
    for (before, was, after, is) in [(interface(), DRIVER, card(), UP), (card(), UP, interface(), DRIVER)] {
        // What waits for the old way out, what waits for any, and what has gone by the new one: packets by their
        // numbers.
        let (mut old, mut held, mut new) = (alloc::vec![0, 1, 2], alloc::vec![], alloc::vec![]);
        let mut send = |table: &Table, old: &mut Vec<u32>, held: &mut Vec<u32>, packet| {
            match table.uplink() {
                Some(port) if port == is => new.append(held),
                Some(_) => old.append(held),
                None => {}
            }
            match table.forward(PortId(2), &frame(STRANGER, mac(2))) {
                Forward::To(port) if port == was => old.push(packet),
                Forward::To(port) => new.extend((port == is).then_some(packet)),
                _ if table.waits_until(0).is_some() => held.push(packet),
                _ => {}
            }
        };
        before.lead(None, u64::MAX);
        for packet in 3..6 {
            send(&before, &mut old, &mut held, packet);
            let stays = before.onward(was, before.forward(PortId(2), &frame(STRANGER, mac(2))));
            assert_eq!(stays, Onward::Stays, "what is not taken back yet");
            held.push(old.remove(0));
            held.sort_unstable();
        }
        send(&before, &mut old, &mut held, 6);
        (7..9).for_each(|packet| send(&after, &mut old, &mut held, packet));
        assert_eq!((new, old, held), ((0..9).collect(), alloc::vec![], alloc::vec![]));
    }
}

#[test]
fn a_table_in_use_can_lead_to_another_port() {
    const RESERVED: Mac = [1, 0x80, 0xc2, 0, 0, 2];
    let table = Table::build(7, &ports(3, false)).unwrap();
    let go = |from, to, source| table.forward(from, &frame(to, source));
    table.lead(Some(DRIVER), 0);
    assert_eq!((table.uplink(), table.way_out(), table.waits_until(0)), (Some(DRIVER), Some(DRIVER), None));
    assert_eq!(go(PortId(2), STRANGER, mac(2)), Forward::To(DRIVER));
    assert_eq!(table.onward(DRIVER, go(PortId(2), STRANGER, mac(2))), Onward::Goes);
    assert_eq!(
        table.others(PortId(2)).map(|port| port.id.0).collect::<Vec<_>>(),
        [1, 3, 4],
        "once, and not to the card"
    );
    // It does not send to itself, and sends what comes from outside.
    assert_eq!(go(DRIVER, STRANGER, mac(1)), Forward::Drop(Drop::Nobody));
    assert_eq!(go(DRIVER, RESERVED, mac(1)), Forward::Drop(Drop::Reserved));
    assert_eq!(go(DRIVER, mac(3), STRANGER), Forward::To(PortId(3)));
    // A port that it does not have is none.
    table.lead(Some(PortId(99)), 500);
    assert_eq!((table.uplink(), table.waits_until(0)), (None, Some(500)));
    table.lead(Some(UP), 0);
    assert_eq!(table.uplink(), Some(UP));
}

#[test]
fn a_way_out_that_is_drained_may_go_meanwhile() {
    let build = || Table::build(7, &ports(3, true)).unwrap();
    let whole = Arc::new(build());
    let drained = build().drained(500, Arc::clone(&whole));
    drained.lead(None, 900);
    assert_eq!([drained.uplink(), whole.uplink()], [None; 2]);
    assert_eq!([drained.waits_until(0), whole.waits_until(0)], [Some(900); 2]);
    drained.lead(Some(DRIVER), 0);
    assert_eq!((drained.uplink(), drained.way_out(), whole.uplink()), (None, Some(DRIVER), Some(DRIVER)));
    assert_eq!((drained.waits_until(0), whole.waits_until(0)), (Some(500), None));
}

#[test]
fn the_later_of_two_with_one_address_counts() {
    let twin = Port { id: PortId(9), ..guest(2) };
    let table = Table::build(1, &[guest(2), guest(3), twin]).unwrap();
    assert_eq!(table.find(mac(2)).unwrap().id, PortId(9));
    let again = Port { mac: mac(8), ..guest(2) };
    let table = Table::build(1, &[guest(2), guest(3), again]).unwrap();
    assert_eq!((table.find(mac(2)), table.find(mac(8)).map(|p| p.id)), (None, Some(PortId(2))));
    assert_eq!(table.others(PortId(3)).map(|p| p.mac).collect::<Vec<_>>(), [mac(8)]);
}

#[test]
fn frames_go_by_queues_of_their_receivers() {
    let wide = Port { nr_queues: 4, ..guest(2) };
    let table = Table::build(1, &[guest(1), wide, guest(6)]).unwrap();
    let to = |n: u8| {
        let mut packet = frame(mac(2), mac(6)).to_vec();
        packet.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, n, 0, 0, 7, 0, 8, 0, 0]);
        (packet[12], packet[13]) = (8, 0);
        let went = table.forward(PortId(6), &packet);
        assert_eq!(Recent::default().forward(&table, PortId(6), &packet), went);
        let Forward::To(queue) = went else { panic!("{went:?}") };
        assert_eq!(table.onward(queue, table.forward(PortId(6), &packet)), Onward::Goes, "it waits for that queue");
        queue.0
    };
    let mut queues: Vec<u16> = (0..100).map(to).collect();
    queues.sort_unstable();
    queues.dedup();
    assert_eq!(queues, [2, 3, 4, 5]);
    // By whichever it sends, it is one port.
    for queue in [2, 3, 5].map(PortId) {
        assert_eq!(table.forward(queue, &frame(mac(6), mac(2))), Forward::To(PortId(6)));
        assert_eq!(table.forward(queue, &frame(mac(2), mac(2))), Forward::Drop(Drop::Hairpin));
        assert_eq!(table.forward(queue, &frame(mac(6), mac(1))), Forward::Drop(Drop::Source));
        assert_eq!(table.others(queue).map(|p| p.id.0).collect::<Vec<_>>(), [1, 6]);
    }
    assert_eq!(table.others(PortId(1)).map(|p| p.id.0).collect::<Vec<_>>(), [2, 6], "all get what is for all once");
}

proptest! {
    /// Against a list that is searched.
    #[test]
    fn agrees_with_a_list(
        members in prop::collection::btree_map(0u16..100, (any::<u8>(), 0u8..4, 1u8..=8), 0..80),
        frames in prop::collection::vec((0u16..800, any::<u8>(), any::<u8>()), 0..60),
    ) {
        // Few distinct addresses, so that there are twins.
        let address = |n: u8| [0, 0x16, 0x3e, n & 3, 0, n];
        let list: Vec<Port> = members.iter().map(|(id, (n, kind, nr_queues))| {
            Port { id: PortId(8 * id), nr_queues: *nr_queues, kind: Kind::Guest { any_source: *kind == 0 }, mac: address(*n) }
        }).collect();
        let table = Table::build(7, &list).unwrap();
        // Without the first port: what is remembered by the one must not be taken for the other's.
        let other = Table::build(8, list.split_first().map_or(&[], |(_, rest)| rest)).unwrap();
        let mut recent = std::collections::BTreeMap::<u16, Recent>::new();
        let mut recents = Recents::default();
        for (from, to, source) in frames {
            let (to, source) = (address(to), address(source));
            let found = list.iter().rfind(|p| p.mac == to);
            let own = list.iter().find(|p| (p.id.0..p.id.0 + u16::from(p.nr_queues)).contains(&from));
            let is_own = |p: &Port| own.is_some_and(|own| own.id == p.id);
            let expected = match (own, found) {
                (None, _) => Forward::Drop(Drop::NoPort),
                (Some(p), _) if p.kind == (Kind::Guest { any_source: false }) && p.mac != source => Forward::Drop(Drop::Source),
                (_, None) => Forward::Drop(Drop::Nobody),
                (_, Some(p)) if is_own(p) => Forward::Drop(Drop::Hairpin),
                (_, Some(p)) => Forward::To(PortId(p.id.0 + flow::queue_of(&frame(to, source), p.nr_queues))),
            };
            prop_assert_eq!(table.forward(PortId(from), &frame(to, source)), expected);
            // Twice, and a frame without its type between.
            let recent = recent.entry(from).or_default();
            for len in [14, 13, 3, 14] {
                let (from, frame) = (PortId(from), frame(to, source));
                let wanted = table.forward(from, &frame[..len]);
                prop_assert_eq!(recent.forward(&table, from, &frame[..len]), wanted);
                prop_assert_eq!(recents.of(&table, from).forward(&frame[..len]), wanted);
                if source[5] & 1 == 1 {
                    let wanted = other.forward(from, &frame[..len]);
                    prop_assert_eq!(recents.of(&other, from).forward(&frame[..len]), wanted);
                }
            }
            prop_assert_eq!(table.others(PortId(from)).count(), list.iter().filter(|p| !is_own(p)).count());
        }
    }
}
