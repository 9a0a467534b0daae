use super::*;
use crate::pcicfg::Verdict;
use proptest::prelude::*;

const PLAIN: Traits = Traits {
    is_bridge: false,
    bridge: None,
    is_untranslated: false,
    shares_identity: false,
    has_firmware_memory: false,
    is_ours: false,
};
const BARS: Bars = Bars { words: [0xfebc_0000, 0xc001, 0, 0, 0, 0], rom: 0 };
const NIC: Sbdf = Sbdf::new(0, 0, 3 << 3);
const BRIDGE: Sbdf = Sbdf::new(0, 0, 1 << 3);
const BEHIND: Sbdf = Sbdf::new(0, 1, 0);
const USB: Sbdf = Sbdf::new(0, 0, 4 << 3);
const IOMMU: Sbdf = Sbdf::new(0, 0, 2);
const BARE: Sbdf = Sbdf::new(0, 0, 5 << 3);
/// A dock: a bridge, one behind it, and a card behind that.
const PORT: Sbdf = Sbdf::new(0, 0, 6 << 3);
const DOCK: Sbdf = Sbdf::new(0, 2, 0);
const CARD: Sbdf = Sbdf::new(0, 3, 0);

fn table(confinement: Confinement) -> Ownership {
    let functions = [
        (NIC, PLAIN),
        (BRIDGE, Traits { is_bridge: true, ..PLAIN }),
        (BEHIND, Traits { shares_identity: true, ..PLAIN }),
        (USB, Traits { has_firmware_memory: true, ..PLAIN }),
        (IOMMU, Traits { is_ours: true, ..PLAIN }),
        (BARE, Traits { is_untranslated: true, ..PLAIN }),
        (PORT, Traits { is_bridge: true, ..PLAIN }),
        (DOCK, Traits { is_bridge: true, bridge: Some(PORT), ..PLAIN }),
        (CARD, Traits { bridge: Some(DOCK), ..PLAIN }),
    ];
    Ownership::new(functions.into_iter().map(|(at, traits)| (at, traits, BARS)), confinement)
}

const fn to(id: u16) -> Recipient {
    Recipient { owner: Owner::Domain(id), is_prepared: true, is_dying: false }
}

fn go(t: &mut Ownership, at: Sbdf, to: Recipient) -> Result<(), Refusal> {
    let r#move = t.check(at, to)?;
    t.record(at, r#move);
    Ok(())
}

fn back(t: &mut Ownership, at: Sbdf, from: Owner) -> Result<(), Refusal> {
    let r#move = t.check_return(at, from)?;
    t.record(at, r#move);
    Ok(())
}

#[test]
fn a_function_that_leaves_is_nobodys_to_use() {
    let mut t = table(Confinement::Iommu);
    t.leaves(NIC, reset::Leaving::NEW);
    assert!(!t.find(NIC).unwrap().is_usable_by(Owner::Hardware));
    assert!(t.find(NIC).unwrap().fixed().unwrap().is_quarantined, "the hardware domain does not make it bus master");
    assert_eq!(go(&mut t, NIC, to(3)), Err(Refusal::Leaving), "nobody gets it half reset");
    go(&mut t, NIC, Recipient::QUARANTINE).unwrap();
    assert_eq!(t.find(NIC).unwrap().leaving, None, "it has arrived");
    go(&mut t, NIC, to(3)).unwrap();
    assert!(t.find(NIC).unwrap().is_usable_by(Owner::Domain(3)));
    t.leaves(NIC, reset::Leaving::NEW);
    assert!(
        !t.find(NIC).unwrap().is_usable_by(Owner::Domain(3)) && t.find(NIC).unwrap().fixed().unwrap().is_quarantined
    );
    assert_eq!(go(&mut t, NIC, to(4)), Err(Refusal::Taken(3)));
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    assert_eq!(t.find(NIC).unwrap().owner, Owner::Quarantine);
}

#[test]
fn what_a_roll_back_has_left_of_a_function_has_not_begun_to_leave() {
    let mut t = table(Confinement::Iommu);
    go(&mut t, NIC, to(3)).unwrap();
    t.silences(NIC, reset::Leaving::NEW);
    let entry = *t.find(NIC).unwrap();
    assert!(!entry.is_usable_by(Owner::Domain(3)) && entry.is_kept_by(Owner::Domain(3)));
    assert!(entry.fixed().unwrap().is_quarantined, "its owner does not make it bus master");
    assert_eq!(entry.leaving, None, "whoever takes it away begins anew");
    t.leaves(NIC, reset::Leaving::NEW);
    let entry = *t.find(NIC).unwrap();
    assert!(entry.silenced.is_none() && !entry.is_kept_by(Owner::Domain(3)), "no roll back gives it back now");
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    go(&mut t, NIC, to(4)).unwrap();
    t.silences(NIC, reset::Leaving::NEW);
    t.record(NIC, Move { from: Owner::Domain(4), to: Owner::Domain(4) });
    assert!(t.find(NIC).unwrap().is_usable_by(Owner::Domain(4)), "the roll back has ended");
}

#[test]
fn the_way_that_the_tools_go() {
    let mut t = table(Confinement::Iommu);
    go(&mut t, NIC, Recipient::QUARANTINE).unwrap();
    assert_eq!(go(&mut t, NIC, Recipient::QUARANTINE), Ok(()), "twice does no harm");
    go(&mut t, NIC, to(3)).unwrap();
    assert_eq!(go(&mut t, NIC, to(4)), Err(Refusal::Taken(3)));
    assert_eq!(go(&mut t, NIC, to(3)), Err(Refusal::Taken(3)));
    assert_eq!(go(&mut t, NIC, Recipient::QUARANTINE), Err(Refusal::Taken(3)));
    assert_eq!(t.of(Owner::Domain(3)).map(|e| e.at).collect::<Vec<_>>(), [NIC]);
    assert_eq!(back(&mut t, NIC, Owner::Domain(4)), Err(Refusal::NotOwned));
    assert_eq!(back(&mut t, NIC, Owner::Quarantine), Err(Refusal::NotOwned), "it is still d3's");
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    assert_eq!(t.find(NIC).unwrap().owner, Owner::Quarantine);
    assert_eq!(t.find(NIC).unwrap().fixed().unwrap().bars, BARS, "it stays where it was");
    back(&mut t, NIC, Owner::Quarantine).unwrap();
    assert_eq!(t.find(NIC).unwrap().fixed(), None);
    assert_eq!(back(&mut t, NIC, Owner::Hardware), Err(Refusal::NotOwned));
    assert_eq!(t.away().count(), 0);
}

#[test]
fn registers_of_others() {
    let mut t = table(Confinement::Iommu);
    go(&mut t, NIC, to(3)).unwrap();
    let memory = |base| matches!(base, Base::Memory(addr) if addr == 0xfebc_0000);
    let ports = |base| matches!(base, Base::Port(port) if port == 0xc000);
    assert!(t.has_another_inside(4, memory) && t.has_another_inside(4, ports));
    assert!(!t.has_another_inside(3, memory), "its own");
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    assert!(!t.has_another_inside(4, memory), "nobody's: it is about to get it");
}

#[test]
fn who_loses_the_registers_of_its_only_device_is_told_from_others() {
    let mut t = table(Confinement::Unsafe);
    let ports = |base| matches!(base, Base::Port(port) if port == 0xc000);
    go(&mut t, NIC, to(3)).unwrap();
    assert!(t.has_only_inside(3, ports));
    assert!(!t.has_only_inside(3, |base| base == Base::Port(0xd000)), "they are no registers of its");
    assert!(!t.has_only_inside(4, ports), "it has none");
    go(&mut t, USB, to(3)).unwrap();
    assert!(!t.has_only_inside(3, ports), "the other one goes on");
}

#[test]
fn refusals_and_their_errors() {
    let t = table(Confinement::Iommu);
    let no_such = Sbdf::new(0, 0, 9 << 3);
    for (at, whom, why, errno) in [
        (no_such, to(1), Refusal::NoSuchFunction, Errno::ENODEV),
        (BRIDGE, to(1), Refusal::Bridge, Errno::EINVAL),
        (BEHIND, to(1), Refusal::SharedIdentity, Errno::EPERM),
        (BEHIND, Recipient::QUARANTINE, Refusal::SharedIdentity, Errno::EPERM),
        (USB, to(1), Refusal::FirmwareMemory, Errno::EPERM),
        (BARE, to(1), Refusal::Untranslated, Errno::EOPNOTSUPP),
        (IOMMU, Recipient::QUARANTINE, Refusal::Hypervisors, Errno::EPERM),
        (NIC, Recipient { is_prepared: false, ..to(1) }, Refusal::NotPrepared, Errno::EOPNOTSUPP),
        (NIC, Recipient { is_dying: true, ..to(1) }, Refusal::Dying, Errno::EINVAL),
    ] {
        assert_eq!(t.check(at, whom), Err(why));
        assert_eq!(Errno::from(why), errno);
        assert_ne!(errno, Errno::ENOSYS, "the tools would go on as if nothing had happened");
    }
    let none = table(Confinement::Forbidden);
    assert_eq!(none.check(NIC, to(1)), Err(Refusal::NotConfined));
    assert_eq!(none.check(NIC, Recipient::QUARANTINE), Err(Refusal::NotConfined));
    // Without an IOMMU there is no identity to share, and nothing is mapped for the firmware.
    let unsafe_ = table(Confinement::Unsafe);
    assert!(unsafe_.check(BEHIND, to(1)).is_ok() && unsafe_.check(USB, to(1)).is_ok());
    assert!(unsafe_.check(BARE, to(1)).is_ok());
    assert_eq!(unsafe_.check(BRIDGE, to(1)), Err(Refusal::Bridge));
}

#[test]
fn functions_that_share_an_identity_do_not_lose_it_with_one_of_them() {
    use Owner::{Domain, Hardware, Quarantine};
    assert_eq!(confined_to([Quarantine, Hardware]), Hardware, "one is removed, the other one goes on");
    assert_eq!(confined_to([Hardware, Quarantine, Quarantine]), Hardware);
    assert_eq!([confined_to([]), confined_to([Quarantine])], [Quarantine; 2], "the last one is removed");
    assert_eq!([confined_to([Domain(3)]), confined_to([Domain(3), Domain(3)])], [Domain(3); 2]);
    for others in [Domain(4), Hardware, Quarantine] {
        assert_eq!(confined_to([Domain(3), others]), Quarantine, "nobody's device reaches the memory of {others:?}");
        assert_eq!(confined_to([Hardware, Domain(3), others, Hardware]), Quarantine);
    }
}

#[test]
fn configuration_space_of_a_function_that_is_away() {
    let fixed = Fixed { bars: BARS, is_quarantined: true, is_stopped: false };
    let ours = crate::pcicfg::Function { is_ours: true, ..Default::default() };
    assert_eq!(ours.filter(4, 2, 0), crate::pcicfg::Verdict::Drop);
    let f = crate::pcicfg::Function { fixed: Some(fixed), ..Default::default() };
    assert_eq!(
        f.filter(4, 2, 0x107),
        Verdict::Keep { bits: 0x0504, clearable: 0, settable: 0 },
        "no bus master, no interrupt, no SERR"
    );
}

proptest! {
    /// A function has one owner; only that one can give it up, and it never goes from one domain to another directly.
    #[test]
    fn one_owner_at_a_time(steps in prop::collection::vec((any::<bool>(), 0u16..4), 1..60)) {
        let mut t = table(Confinement::Unsafe);
        let mut owner = Owner::Hardware;
        for (give, id) in steps {
            let whom = if id == 0 { Owner::Quarantine } else { Owner::Domain(id) };
            if give {
                let ok = go(&mut t, NIC, Recipient { owner: whom, ..to(0) }).is_ok();
                prop_assert_eq!(ok, !matches!(owner, Owner::Domain(_)));
                owner = if ok { whom } else { owner };
            } else {
                let ok = back(&mut t, NIC, whom).is_ok();
                prop_assert_eq!(ok, owner == whom);
                owner = match (ok, owner) {
                    (false, o) => o,
                    (true, Owner::Domain(_)) => Owner::Quarantine,
                    (true, _) => Owner::Hardware,
                };
            }
            let entry = t.find(NIC).unwrap();
            prop_assert_eq!(entry.owner, owner);
            prop_assert_eq!(entry.fixed().is_some(), owner != Owner::Hardware);
        }
    }
}

#[test]
fn a_stopped_function_is_stopped_until_it_has_another_owner() {
    let mut t = table(Confinement::Iommu);
    assert_eq!(t.stop(Sbdf::new(0, 9, 0)), None);
    assert_eq!(t.stop(NIC), Some(true));
    assert!(!t.find(NIC).unwrap().is_stopped, "the hardware domain may use it again");
    go(&mut t, NIC, to(3)).unwrap();
    assert_eq!((t.stop(NIC), t.stop(NIC)), (Some(true), Some(false)));
    assert!(t.find(NIC).unwrap().is_stopped);
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    go(&mut t, NIC, to(4)).unwrap();
    assert!(!t.find(NIC).unwrap().is_stopped, "the next owner begins anew");
}

#[test]
fn only_the_hardware_domain_moves_a_function() {
    let mut t = table(Confinement::Iommu);
    let moved = Bars { words: [0xfe00_0000, 0, 0, 0, 0, 0], rom: 0 };
    t.wrote(NIC, 0x04, 2, || unreachable!("that is another register"));
    t.wrote(NIC, 0x10, 4, || moved);
    assert_eq!(t.find(NIC).unwrap().bars, moved);
    go(&mut t, NIC, Recipient::QUARANTINE).unwrap();
    t.wrote(NIC, 0x10, 4, || unreachable!("what the device says now does not count"));
    go(&mut t, NIC, to(3)).unwrap();
    t.wrote(NIC, 0x10, 4, || unreachable!("nor now"));
    assert_eq!(t.find(NIC).unwrap().fixed().unwrap().bars, moved);
}

#[test]
fn functions_come_and_go() {
    let mut t = table(Confinement::Iommu);
    let new = Sbdf::new(0, 5, 0);
    assert_eq!(t.add(NIC, PLAIN, BARS), Err(Errno::EEXIST));
    t.add(new, PLAIN, BARS).unwrap();
    go(&mut t, new, to(3)).unwrap();
    assert_eq!(t.remove(new), Err(Errno::EBUSY));
    back(&mut t, new, Owner::Domain(3)).unwrap();
    back(&mut t, new, Owner::Quarantine).unwrap();
    assert_eq!((t.remove(new).map(|e| e.at), t.remove(new).map(|e| e.at)), (Ok(new), Err(Errno::ENODEV)));
}

#[test]
fn what_the_hypervisor_drives_does_not_go() {
    let mut t = table(Confinement::Iommu);
    assert_eq!((t.remove(IOMMU).map(|e| e.at), t.gone()), (Err(Errno::EPERM), None));
    assert!(t.find(IOMMU).is_some_and(|e| e.traits.is_ours), "nobody writes its configuration space");
}

/// What the hardware domain writes to a base address, to learn how long the region is.
fn is_sized(t: &Ownership, at: Sbdf) -> bool {
    let fixed = t.find(at).and_then(Entry::fixed);
    let function = crate::pcicfg::Function { fixed, ..Default::default() };
    function.filter(0x10, 4, !0) == Verdict::Pass
}

#[test]
fn what_goes_while_nobody_has_it_is_the_hardware_domains_when_it_comes_again() {
    let mut t = table(Confinement::Iommu);
    for _ in 0..2 {
        go(&mut t, NIC, Recipient::QUARANTINE).unwrap();
        assert!(!is_sized(&t, NIC));
        assert_eq!(t.remove(NIC).map(|e| e.owner), Ok(Owner::Quarantine));
        // It looks at the registers before it says that there is something.
        assert!(is_sized(&t, NIC) && t.came_back(NIC, || unreachable!("nothing is known")) == Ok(false));
        let moved = Bars { words: [0x8000_0000, 0, 0, 0, 0, 0], rom: 0 };
        t.add(NIC, PLAIN, moved).unwrap();
        let entry = t.find(NIC).unwrap();
        assert_eq!((entry.owner, entry.bars, entry.leaving.is_none()), (Owner::Hardware, moved, true));
    }
    assert_eq!(t.gone(), None);
}

#[test]
fn what_goes_while_a_domain_has_it_is_forgotten_when_that_has_given_it_up() {
    let mut t = table(Confinement::Iommu);
    go(&mut t, NIC, to(3)).unwrap();
    assert_eq!((t.remove(NIC).map(|e| e.at), t.gone()), (Err(Errno::EBUSY), None));
    assert!(t.find(NIC).unwrap().is_usable_by(Owner::Domain(3)), "it has it still");
    t.leaves(NIC, reset::Leaving::NEW);
    assert_eq!(t.gone(), None, "it is being reset");
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    assert_eq!(t.gone(), Some(NIC));
    assert_eq!(t.remove(NIC).map(|e| e.owner), Ok(Owner::Quarantine));
    assert_eq!((t.gone(), t.find(NIC).is_none()), (None, true));
    // It is found again before its owner has given it up: it is known, and nobody forgets it.
    t.add(NIC, PLAIN, BARS).unwrap();
    go(&mut t, NIC, to(3)).unwrap();
    assert_eq!(t.remove(NIC).map(|e| e.at), Err(Errno::EBUSY));
    assert_eq!(t.came_back(NIC, || true), Ok(true));
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    assert_eq!((t.gone(), t.find(NIC).map(|e| e.owner)), (None, Some(Owner::Quarantine)));
}

#[test]
fn the_way_to_a_function_that_is_away_is_known_until_it_is_back() {
    let mut t = table(Confinement::Iommu);
    assert!(!t.leads_away(PORT));
    go(&mut t, CARD, to(3)).unwrap();
    assert_eq!([PORT, DOCK, CARD, BRIDGE].map(|at| t.leads_away(at)), [true, true, false, false]);
    for at in [CARD, DOCK, PORT] {
        assert_eq!((t.remove(at).map(|e| e.at), t.gone()), (Err(Errno::EBUSY), None), "{at} was pulled out");
    }
    back(&mut t, CARD, Owner::Domain(3)).unwrap();
    assert!(t.leads_away(DOCK), "nobody's is blocked");
    assert_eq!(t.gone(), Some(CARD), "then its bridges, in any order");
    while let Some(gone) = t.gone() {
        t.remove(gone).unwrap();
    }
    assert_eq!([PORT, DOCK, CARD].map(|at| t.find(at).is_some()), [false; 3]);
    let mut t = table(Confinement::Iommu);
    t.leaves(CARD, reset::Leaving::NEW);
    assert_eq!(t.remove(DOCK).map(|e| e.at), Err(Errno::EBUSY), "it is on its way");
}

#[test]
fn another_card_in_its_place_is_not_the_domains() {
    let mut t = table(Confinement::Iommu);
    assert_eq!(t.came_back(NIC, || unreachable!("it was not gone")), Ok(true));
    go(&mut t, NIC, to(3)).unwrap();
    assert_eq!(t.remove(NIC).map(|e| e.at), Err(Errno::EBUSY));
    assert_eq!(t.came_back(NIC, || false), Err(Errno::EBUSY));
    back(&mut t, NIC, Owner::Domain(3)).unwrap();
    assert_eq!(t.gone(), Some(NIC), "it is the old one that is forgotten");
    assert!(t.remove(NIC).is_ok() && t.came_back(NIC, || false) == Ok(false));
}
