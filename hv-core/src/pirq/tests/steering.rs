//! Lines go to the CPU where their user runs.

use super::*;

#[test]
fn a_line_goes_where_its_only_user_wants_it() {
    let mut i = two_domains();
    i.map_gsi(0, 11, Some(11)).unwrap();
    i.map_gsi(5, 11, Some(11)).unwrap();
    i.steer(0, 11, 1);
    assert_eq!(i.chip().steered, [], "not bound: it has no route");
    i.bind(0, 11, 7, true).unwrap();
    i.steer(0, 11, 1);
    i.steer(0, 12, 1);
    i.bind(5, 11, 3, true).unwrap();
    i.steer(5, 11, 2);
    assert_eq!(i.chip().steered, [(11, 1)], "a shared line stays");
    i.unbind(0, 11, 7);
    i.steer(5, 11, 2);
    assert_eq!(i.chip().steered.last(), Some(&(11, 2)));
}

/// Fires line 11, which CPU 0 takes, while the vCPU of domain `dom` is on CPU 3, `times` times. Where it was sent to.
fn detours(i: &mut Ints, dom: DomId, times: u8) -> Vec<(Irq, u32)> {
    i.chip().steered.clear();
    for _ in 0..times {
        i.made_detour(dom, 11, 3);
    }
    i.chip().steered.clone()
}

#[test]
fn a_line_follows_its_vcpu_after_some_detours() {
    const ENOUGH: u8 = crate::pirq::steer::DETOURS;
    let mut i = two_domains();
    i.map_gsi(0, 11, Some(11)).unwrap();
    i.bind(0, 11, 7, true).unwrap();
    assert_eq!(detours(&mut i, 0, ENOUGH - 1), [], "a vCPU that wanders is left alone");
    assert_eq!(detours(&mut i, 0, 1), [(11, 3)]);
    assert_eq!(detours(&mut i, 0, ENOUGH - 1), [], "they are counted anew from there");
    i.steer(0, 11, 2);
    assert_eq!(detours(&mut i, 0, ENOUGH - 1), [], "and when the domain sends it somewhere");
    assert_eq!(detours(&mut i, 5, ENOUGH), [], "another domain's pirq 11 is no line");
}

#[test]
fn a_shared_line_follows_nobody_before_it_is_ones_own() {
    let mut i = two_domains();
    for dom in [0, 5] {
        i.map_gsi(dom, 11, Some(11)).unwrap();
        i.bind(dom, 11, 7, true).unwrap();
    }
    assert_eq!(detours(&mut i, 5, u8::MAX), []);
    i.unbind(0, 11, 7);
    assert_eq!(detours(&mut i, 5, 1), [(11, 3)], "its detours were counted");
    i.unbind(5, 11, 7);
    i.bind(5, 11, 7, true).unwrap();
    assert_eq!(detours(&mut i, 5, crate::pirq::steer::DETOURS - 1), [], "a new binding begins at nothing");
}
