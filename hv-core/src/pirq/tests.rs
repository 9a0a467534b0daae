use super::line::STORM;
use super::*;
use crate::evtchn::oracle::TestPage;
use core::sync::atomic::Ordering::SeqCst;
use proptest::prelude::*;
use std::collections::BTreeMap;

mod shared;
mod steering;

const MS: u64 = 1_000_000;

/// A chip that records what is masked and routed.
#[derive(Default)]
pub(super) struct Chip {
    unmasked: BTreeMap<Irq, bool>,
    routed: Vec<Irq>,
    /// Lines that have a vector.
    vectors: Vec<Irq>,
    steered: Vec<(Irq, u32)>,
    masks: u32,
    no_vector: bool,
    refuse: bool,
}

impl IrqChip for Chip {
    type Msi = u32;
    fn default_wire(&self, gsi: u32) -> Wire {
        Wire { level: gsi >= 16, active_low: gsi >= 16 }
    }
    fn allocate(&mut self, irq: Irq) -> Result<(), Errno> {
        assert!(!self.vectors.contains(&irq), "two vectors");
        if self.no_vector {
            return Err(Errno::ENOSPC);
        }
        self.vectors.push(irq);
        Ok(())
    }
    fn route_gsi(&mut self, irq: Irq, _: Wire) -> Result<(), Errno> {
        assert!(self.vectors.contains(&irq), "routed without a vector");
        assert!(!self.routed.contains(&irq), "routed twice");
        // A half that was programmed stays until somebody undoes it.
        self.routed.push(irq);
        if self.refuse {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }
    fn route_msi(&mut self, irq: Irq, _: u32) -> Result<(), Errno> {
        self.route_gsi(irq, Wire { level: false, active_low: false })
    }
    fn reprogram(&mut self, irq: Irq, _: u32) {
        self.unmasked.insert(irq, false);
    }
    fn steer(&mut self, irq: Irq, _: Option<u32>, cpu: u32) {
        assert!(self.routed.contains(&irq), "steered without a route");
        self.steered.push((irq, cpu));
    }
    fn unroute(&mut self, irq: Irq, _: Option<u32>) {
        assert!(!self.unmasked.get(&irq).copied().unwrap_or(false), "unrouted while it may fire");
        let at = self.routed.iter().position(|i| *i == irq).expect("routed");
        self.routed.swap_remove(at);
        self.vectors.retain(|i| *i != irq);
    }
    fn unmask(&mut self, irq: Irq, _: Option<u32>) {
        assert!(self.routed.contains(&irq), "unmasked without a route");
        self.unmasked.insert(irq, true);
    }
    fn mask(&mut self, irq: Irq, _: Option<u32>) {
        self.masks += 1;
        self.unmasked.insert(irq, false);
    }
}

pub(super) type Ints = Interrupts<Chip, TestPage>;

pub(super) fn two_domains() -> Ints {
    let mut i = Interrupts::new(Chip::default(), 24, 40);
    i.add_domain(0, Kind::Hardware).unwrap();
    i.add_domain(5, Kind::Guest).unwrap();
    i
}

pub(super) fn open(i: &mut Ints, irq: Irq) -> bool {
    i.chip().unmasked.get(&irq).copied().unwrap_or(false)
}

pub(super) const LEVEL: Wire = Wire { level: true, active_low: true };

#[test]
fn numbers_are_those_that_a_kernel_expects() {
    let mut i = two_domains();
    assert_eq!((i.nr_pirqs(0), i.nr_pirqs(5), i.nr_pirqs(9)), (208, 56, 0));
    assert_eq!(i.map_gsi(0, 9, Some(9)), Ok(9));
    assert_eq!(i.map_gsi(0, 9, None), Ok(9), "it has one");
    assert_eq!(i.map_gsi(0, 9, Some(9)), Ok(9));
    assert_eq!(i.map_gsi(0, 9, Some(10)), Err(Errno::EEXIST));
    assert_eq!(i.map_gsi(0, 10, Some(9)), Err(Errno::EEXIST));
    assert_eq!(i.map_gsi(0, 20, None), Ok(16));
    assert_eq!(i.map_gsi(0, 24, Some(24)), Err(Errno::EINVAL));
    assert_eq!(i.map_gsi(0, 3, Some(208)), Err(Errno::EINVAL));
    assert_eq!(i.map_msi(0, 100, None), Ok(207));
    assert_eq!(i.map_msi(0, 101, None), Ok(206));
    assert_eq!(i.map_msi(0, 101, None), Err(Errno::EEXIST), "the message has a pirq");
    assert_eq!(i.map_msi(5, 102, None), Ok(55));
    assert_eq!(i.free_pirq(5), Ok(54));
    assert_eq!(i.find_msi(|m| *m == 102), Some((5, 55)));
    assert_eq!(i.unmap(0, 100), Err(Errno::EINVAL));
    i.unmap(0, 207).unwrap();
    assert_eq!(i.map_msi(0, 103, None), Ok(207));
    assert_eq!(i.map_msi(9, 1, None), Err(Errno::EINVAL), "no such domain");
}

/// Two domains share a line that asks for as long as one of their devices does.
#[test]
fn who_serves_a_line_is_told_alone_most_times() {
    let mut i = two_domains();
    for dom in [0, 5] {
        i.map_gsi(dom, 20, Some(20)).unwrap();
        i.bind(dom, 20, 7, true).unwrap();
    }
    let told = |i: &mut Ints, now| i.fired(20, now).iter().map(|x| x.dom).collect::<Vec<_>>();
    assert_eq!(told(&mut i, 0), [0, 5], "nothing is known");
    i.found(5, 20, true);
    for dom in [5, 0] {
        assert!(!open(&mut i, 20));
        i.eoi(dom, 20, 0).unwrap();
    }
    for now in 1..10 {
        assert_eq!(told(&mut i, now), [5]);
        i.found(5, 20, true);
        i.eoi(5, 20, 0).unwrap();
        assert!(open(&mut i, 20), "it did not wait for the other");
    }
    // It was the other's device.
    assert_eq!(told(&mut i, 10), [5]);
    i.found(5, 20, false);
    i.eoi(5, 20, 0).unwrap();
    assert_eq!(told(&mut i, 11), [0, 5]);
    i.found(5, 20, true);
    i.eoi(0, 20, 0).unwrap();
    i.eoi(5, 20, 0).unwrap();
    // Whatever it says, all are told now and then.
    let mut longest = 0;
    let mut alone = 0;
    for now in 12..200 {
        let of = told(&mut i, now);
        alone = if of.len() == 1 { alone + 1 } else { 0 };
        longest = longest.max(alone);
        i.found(5, 20, true);
        for dom in of {
            i.eoi(dom, 20, 0).unwrap();
        }
        assert!(open(&mut i, 20));
    }
    assert_eq!(longest, 32);
    assert_eq!(told(&mut i, 20_000_000), [0, 5], "it was long ago");
    i.found(5, 20, true);
    i.eoi(0, 20, 0).unwrap();
    i.eoi(5, 20, 0).unwrap();
    i.unbind(5, 20, 7);
    assert_eq!(told(&mut i, 20_000_001), [0], "it is gone");
}

#[test]
fn a_level_line_is_masked_until_eoi() {
    let mut i = two_domains();
    i.setup_gsi(11, LEVEL).unwrap();
    assert_eq!(i.setup_gsi(11, LEVEL), Err(Errno::EEXIST));
    i.map_gsi(0, 11, Some(11)).unwrap();
    assert_eq!(i.bind(0, 12, 7, true), Err(Errno::EINVAL), "not mapped");
    i.bind(0, 11, 7, true).unwrap();
    assert_eq!(i.bind(0, 11, 8, true), Err(Errno::EEXIST));
    assert!(open(&mut i, 11));
    let told: Vec<_> = i.fired(11, 0).iter().collect();
    assert_eq!(told, [Delivery { dom: 0, pirq: 11, port: 7, kind: Kind::Hardware }]);
    assert!(!open(&mut i, 11));
    assert_eq!(i.status(0, 11), Ok(XENIRQSTAT_NEEDS_EOI));
    assert_eq!(i.eoi(0, 11, 0), Ok(None));
    assert!(open(&mut i, 11));
    assert_eq!(i.eoi(0, 11, 0), Ok(None), "once more does no harm");
    assert_eq!(i.eoi(0, 12, 0), Err(Errno::EINVAL));
}

#[test]
fn edges_and_messages_are_never_masked() {
    let mut i = two_domains();
    i.map_gsi(0, 1, Some(1)).unwrap();
    i.bind(0, 1, 7, false).unwrap();
    let pirq = i.map_msi(5, 77, None).unwrap();
    i.bind(5, pirq, 9, false).unwrap();
    let irq = i.irq_of(5, pirq).unwrap();
    assert_eq!(i.fired(1, 0).iter().count(), 1);
    assert_eq!(i.fired(irq, 0).iter().count(), 1);
    assert!(open(&mut i, 1) && open(&mut i, irq));
    assert_eq!(i.status(5, pirq), Ok(0));
}

#[test]
fn a_shared_line_waits_for_everybody_also_for_one_that_leaves() {
    let mut i = two_domains();
    for dom in [0, 5] {
        i.map_gsi(dom, 17, Some(17)).unwrap();
    }
    i.bind(0, 17, 7, true).unwrap();
    assert_eq!(i.bind(5, 17, 3, false), Err(Errno::EBUSY));
    i.bind(5, 17, 3, true).unwrap();
    assert_eq!(i.status(0, 17), Ok(XENIRQSTAT_NEEDS_EOI | XENIRQSTAT_SHARED));
    let told = i.fired(17, 0);
    assert_eq!((told.iter().count(), told.is_shared), (2, true));
    i.eoi(0, 17, 0).unwrap();
    assert!(!open(&mut i, 17), "domain 5 has not answered");
    i.unbind(5, 17, 3);
    assert!(open(&mut i, 17), "it is no longer waited for");
    assert!(!i.fired(17, 1).is_shared);
    i.remove_domain(0);
    assert!(!open(&mut i, 17));
    assert!(i.chip().routed.is_empty());
}

/// A port stays when its message goes, and the message's number is the next one's.
#[test]
fn who_closes_a_stale_port_unbinds_nothing() {
    let mut i = two_domains();
    let pirq = i.map_msi(5, 77, None).unwrap();
    i.bind(5, pirq, 3, false).unwrap();
    i.unmap(5, pirq).unwrap();
    i.unbind(5, pirq, 3);
    assert_eq!(i.map_msi(5, 78, None), Ok(pirq));
    i.bind(5, pirq, 4, false).unwrap();
    i.unbind(5, pirq, 3);
    let irq = i.irq_of(5, pirq).unwrap();
    assert!(open(&mut i, irq));
    assert_eq!(i.fired(irq, 0).iter().map(|x| x.port).collect::<Vec<_>>(), [4]);
    i.unbind(5, pirq, 4);
    assert!(!open(&mut i, irq));
}

#[test]
fn the_eoi_page_says_which_need_one() {
    let mut i = two_domains();
    let page = TestPage::filled(0);
    i.map_gsi(0, 17, Some(17)).unwrap();
    i.set_eoi_map(0, false, || Ok(page.clone())).unwrap();
    assert_eq!(i.set_eoi_map(0, false, || panic!("mapped")), Err(Errno::EBUSY));
    let word = |n: usize| page.0[n].load(SeqCst);
    i.setup_gsi(17, LEVEL).unwrap();
    assert_eq!(word(0), 1 << 17);
    let msi = i.map_msi(0, 3, None).unwrap();
    i.bind(0, msi, 4, false).unwrap();
    assert_eq!(word(msi as usize / 32), 0);
    i.unmap(0, 17).unwrap();
    assert_eq!(word(0), 0);
    i.remove_domain(0);
    assert_eq!(std::sync::Arc::strong_count(&page.0), 1);
}

#[test]
fn the_first_version_of_the_eoi_page_unmasks_the_port() {
    let mut i = two_domains();
    i.map_gsi(0, 17, Some(17)).unwrap();
    i.bind(0, 17, 7, true).unwrap();
    i.set_eoi_map(0, true, || Ok(TestPage::filled(0))).unwrap();
    assert_eq!(i.eoi(0, 17, 0), Ok(Some(7)));
}

#[test]
fn a_device_that_was_reset_gets_its_messages_again() {
    let mut i = two_domains();
    let (a, b) = (i.map_msi(0, 5, None).unwrap(), i.map_msi(0, 6, None).unwrap());
    i.bind(0, a, 3, false).unwrap();
    let (irq_a, irq_b) = (i.irq_of(0, a).unwrap(), i.irq_of(0, b).unwrap());
    i.chip().unmasked.clear();
    i.reprogram(|m| *m == 5 || *m == 6);
    assert!(open(&mut i, irq_a));
    assert_eq!(i.chip().unmasked.get(&irq_b), Some(&false), "not bound: programmed, but masked");
}

#[test]
fn a_refused_route_leaves_nothing_behind() {
    let mut i = two_domains();
    i.map_gsi(0, 4, Some(4)).unwrap();
    for (no_vector, refuse, why) in [(true, false, Errno::ENOSPC), (false, true, Errno::EINVAL)] {
        (i.chip().no_vector, i.chip().refuse) = (no_vector, refuse);
        assert_eq!(i.map_msi(0, 5, None), Err(why));
        assert_eq!(i.bind(0, 4, 7, false), Err(why));
        assert!(i.chip().vectors.is_empty() && i.chip().routed.is_empty(), "{why:?}");
    }
    i.chip().refuse = false;
    assert_eq!(i.map_msi(0, 5, None), Ok(207));
    i.bind(0, 4, 7, false).unwrap();
}

#[test]
fn a_storm_is_held_and_released() {
    let mut i = two_domains();
    let pirq = i.map_msi(0, 5, None).unwrap();
    i.bind(0, pirq, 3, false).unwrap();
    let irq = i.irq_of(0, pirq).unwrap();
    let mut held = None;
    let mut told = 0;
    for n in 0..60_000u64 {
        let deliveries = i.fired(irq, n);
        told += deliveries.iter().count();
        held = held.or(deliveries.wake_ns);
    }
    assert_eq!(held, Some(100_000_000));
    assert_eq!((told, i.chip().masks), (STORM as usize + 1, 1), "what cannot be masked is not told either");
    assert!(!open(&mut i, irq));
    assert!(i.expire(99_999_999).is_none());
    let again = i.expire(100_000_000).expect("released");
    assert_eq!(again.iter().count(), 1, "what may have been missed is looked for");
    assert!(open(&mut i, irq) && i.next_wake().is_none());
    // A held level line is unmasked by the end of the hold, not by an EOI.
    i.map_gsi(0, 18, Some(18)).unwrap();
    i.bind(0, 18, 4, false).unwrap();
    for n in 0..=STORM.into() {
        i.fired(18, n);
        i.eoi(0, 18, 0).unwrap();
    }
    assert!(!open(&mut i, 18));
    assert!(i.expire(200_000_000).is_some());
    assert!(open(&mut i, 18));
    i.unbind(0, 18, 4);
    assert!(i.expire(400_000_000).is_none());
}

#[test]
fn ten_thousand_binds_leave_nothing() {
    let mut i = two_domains();
    for n in 0..10_000 {
        let pirq = i.map_msi(0, n, None).unwrap();
        i.bind(0, pirq, 3, false).unwrap();
        i.unmap(0, pirq).unwrap();
        i.map_gsi(5, 20, Some(20)).unwrap();
        i.bind(5, 20, 4, true).unwrap();
        i.fired(20, 0);
        assert_eq!((i.sizes(0), i.sizes(5)), (Sizes::default(), Sizes { mapped: 1, bound: 1 }));
        i.unbind(5, 20, 4);
        assert_eq!(i.sizes(5), Sizes { mapped: 1, bound: 0 });
        i.unmap(5, 20).unwrap();
    }
    assert!(i.chip().routed.is_empty());
}

proptest! {
    /// A level line is open (after a hold at the latest) exactly if somebody listens and nobody is waited for; an idle
    /// line is closed and unrouted.
    #[test]
    fn lines_are_open_when_they_should_be(ops in prop::collection::vec((0u8..6, 0u16..3, 14u32..20), 1..200)) {
        let mut i: Ints = Interrupts::new(Chip::default(), 24, 8);
        for dom in 0..3 {
            i.add_domain(dom, Kind::Guest).unwrap();
        }
        let mut bound = [[false; 24]; 3];
        let mut waits = [[false; 24]; 3];
        for (op, dom, gsi) in ops {
            let (d, g) = (usize::from(dom), gsi as usize);
            match op {
                0 => { let _ = i.map_gsi(dom, gsi, Some(gsi)); }
                1 => bound[d][g] |= i.bind(dom, gsi, 1 + gsi, true).is_ok(),
                2 => { i.unbind(dom, gsi, 1 + gsi); bound[d][g] = false; waits[d][g] = false; }
                3 => { let _ = i.unmap(dom, gsi); bound[d][g] = false; waits[d][g] = false; }
                4 => {
                    // Only a line that is open fires.
                    if open(&mut i, gsi) {
                        let told: Vec<_> = i.fired(gsi, 0).iter().map(|x| x.dom).collect();
                        prop_assert_eq!(told.len(), (0..3).filter(|d| bound[*d][g]).count());
                        for x in told {
                            waits[usize::from(x)][g] = gsi >= 16;
                        }
                    }
                }
                _ => { if i.eoi(dom, gsi, 0).is_ok() { waits[d][g] = false; } }
            }
            // Who leaves while he is waited for is waited for less long afterwards: not here.
            i.domains.values_mut().for_each(|d| d.was_late = false);
            // What a sharer left behind holds a line that long.
            while i.expire(20 * MS).is_some() {}
            for gsi in 14u32..20 {
                let g = gsi as usize;
                let listens = (0..3).any(|d| bound[d][g]);
                let waiting = (0..3).any(|d| waits[d][g]);
                prop_assert_eq!(open(&mut i, gsi), listens && !waiting, "GSI {}", g);
                prop_assert_eq!(i.chip().routed.contains(&gsi), listens);
            }
        }
    }
}

#[test]
fn an_edge_keeps_nobody_waiting() {
    let mut i = two_domains();
    for dom in [0, 5] {
        i.map_gsi(dom, 3, Some(3)).unwrap();
        i.bind(dom, 3, 7, true).unwrap();
    }
    let told = i.fired(3, 0);
    assert!(told.turns(|dom| dom == 5).all(|(_, turn)| turn == Turn::Now));
    assert_eq!(told.iter().count(), 2);
}

#[test]
fn the_hardware_domain_has_as_many_pirqs_as_linux_expects() {
    let sizes = |nr_gsis| (Kind::Hardware.messages(nr_gsis), Kind::Guest.messages(nr_gsis));
    assert_eq!(sizes(24), (184, 32));
    assert_eq!(sizes(176), (32, 32), "many wires leave it what others have");
    assert_eq!(sizes(240), (32, 32));
}

#[test]
fn vectors_are_left_for_the_hardware_domain() {
    let mut i: Ints = Interrupts::new(Chip::default(), 24, 400);
    i.add_domain(0, Kind::Hardware).unwrap();
    let mut given = 0;
    for dom in 1..=10 {
        i.add_domain(dom, Kind::Guest).unwrap();
        given += (0..32).filter(|n| i.map_msi(dom, u32::from(dom) * 100 + n, None).is_ok()).count();
    }
    assert_eq!(given, GUESTS_MESSAGES as usize);
    assert_eq!(i.map_msi(10, 5, None), Err(Errno::ENOSPC));
    assert!(i.map_msi(0, 6, None).is_ok());
    i.remove_domain(1);
    assert!(i.map_msi(10, 5, None).is_ok(), "what one gave back another may have");
}

#[test]
fn a_message_that_was_reset_while_it_is_held_stays_held() {
    let mut i = two_domains();
    let pirq = i.map_msi(0, 5, None).unwrap();
    i.bind(0, pirq, 3, false).unwrap();
    let irq = i.irq_of(0, pirq).unwrap();
    for n in 0..=STORM {
        i.fired(irq, n.into());
    }
    i.chip().unmasked.insert(irq, true);
    i.reprogram(|m| *m == 5);
    assert!(!open(&mut i, irq));
}
