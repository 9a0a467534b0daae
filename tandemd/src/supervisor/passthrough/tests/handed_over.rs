//! What one domain had another one gets, or nobody.

use super::*;

#[test]
fn what_one_had_the_other_gets() {
    let files = Files::new("changes-hands");
    let (mut nodes, mut machine) = given();
    take(7, &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap();
    assert_eq!((machine.owner, machine.wires.len(), machine.permitted.len()), (None, 0, 0));
    let is_of_it = |path: &str| path.contains("/pci/") && !GIVEN.starts_with(path) || path == GIVEN;
    assert!(!nodes.paths().any(is_of_it), "{nodes:?}");
    assert_eq!(holder(NIC, &mut nodes).unwrap(), None);
    hand_over(8, &claims("00:03.0,permissive=1"), &files.0, &mut nodes, &mut machine).unwrap();
    let permitted: Vec<String> = machine.permitted.iter().map(|(domain, what)| format!("{domain} {what}")).collect();
    let wanted = [
        "8 Frames { first: 1043392, count: 32 }",
        "8 Frames { first: 1043441, count: 1 }",
        "8 Interrupt(11)",
        "8 Ports { first: 49152, count: 32 }",
    ];
    assert_eq!((machine.owner, permitted), (Some(8), wanted.map(String::from).to_vec()));
    assert!(machine.wires.contains(&(8, 11)));
    assert_eq!(files.back_end_heard("permissive"), NIC);
    for (path, value) in [
        (format!("{BACK}/num_devs"), "1"),
        (format!("{BACK}/dev-0"), NIC),
        (format!("{BACK}/opts-0"), "msitranslate=0,power_mgmt=0,permissive=1,rdm_policy=strict"),
        (format!("{BACK}/frontend"), "/local/domain/8/device/pci/0"),
        ("/local/domain/8/device/pci/0/backend".into(), BACK),
        (GIVEN.into(), "8"),
    ] {
        assert_eq!(&nodes[&path], value, "{path}");
    }
    assert_eq!([nodes.rights(BACK), nodes.rights("/local/domain/8/device/pci/0")], [Some((0, 8)), Some((8, 0))]);
    assert_eq!(holder(NIC, &mut nodes).unwrap(), Some(8));
    // Whoever comes too late takes nothing of it, nor what is said of it.
    take(7, &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap();
    assert_eq!((machine.owner, &nodes[GIVEN]), (Some(8), "8"));
}

#[test]
fn wherever_it_ends_it_can_be_done_again() {
    let files = Files::new("ends");
    for limit in 0..20 {
        let (mut nodes, mut machine) = given();
        machine.limit = Some(limit);
        let half = take(7, &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine);
        assert_eq!(half.is_ok(), nodes.paths().all(|path| !path.contains("/pci/7")), "{limit}");
        machine.limit = None;
        take(7, &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap();
        machine.limit = Some(limit);
        let half = hand_over(8, &claims("00:03.0"), &files.0, &mut nodes, &mut machine);
        // All is in xenstore or nothing, so that xl may do it.
        assert_eq!(half.is_ok(), nodes.get(&format!("{BACK}/dev-0")).is_some(), "{limit}");
        assert_eq!(half.is_ok(), nodes.get(GIVEN).is_some(), "{limit}");
        machine.limit = None;
        if half.is_err() {
            hand_over(8, &claims("00:03.0"), &files.0, &mut nodes, &mut machine).unwrap();
        }
        assert_eq!((machine.owner, &nodes[GIVEN]), (Some(8), "8"), "{limit}");
    }
}

#[test]
fn what_is_not_free_is_not_handed_over_and_what_is_not_understood_is_left_to_xl() {
    let files = Files::new("refused");
    let (mut nodes, mut machine) = given();
    let mut refused = |said: &str, owner| {
        machine.owner = owner;
        format!("{:#}", hand_over(8, &claims(said), &files.0, &mut nodes, &mut machine).unwrap_err())
    };
    assert!(refused("00:03.0", Some(7)).contains(NIC));
    assert!(refused("00:03.0@5", None).contains("for xl"));
    std::fs::remove_dir(files.0 .0.join("bus/pci/drivers/pciback").join(NIC)).unwrap();
    assert!(refused("00:03.0", None).contains("not the PCI back end's"));
    assert!(nodes.paths().all(|path| !path.contains("/pci/8")), "{nodes:?}");
    assert!(machine.owner.is_none());
}

#[test]
fn a_domain_that_has_gone_gets_nothing() {
    let files = Files::new("gone");
    let (mut nodes, mut machine) = (nodes(), Machine::default());
    let error = hand_over(9, &claims("00:03.0"), &files.0, &mut nodes, &mut machine).unwrap_err();
    assert!(error.to_string().contains("gone"));
    assert!(nodes.paths().all(|path| !path.contains("pci")));
}

#[test]
fn functions_of_a_device_are_together_on_the_bus() {
    assert_eq!(places(&["0000:00:03.0"]), [0]);
    assert_eq!(places(&["0000:03:00.1", "0000:00:03.0", "0000:03:00.0", "0001:03:00.2"]), [1, 8, 0, 0x12]);
}

#[test]
fn one_that_loses_its_devices_loses_its_name_with_them() {
    let files = Files::new("name");
    let (mut nodes, mut machine) = given();
    let name = Change::Write("/local/domain/7/name".into(), "dd-remains".into());
    let from = || Party::new(7, vec![name.clone()]);
    machine.limit = Some(2);
    take(from(), &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap_err();
    assert_eq!(&nodes["/local/domain/7/name"], "dd");
    machine.limit = None;
    take(from(), &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap();
    assert_eq!(&nodes["/local/domain/7/name"], "dd-remains");
    assert!(nodes.paths().all(|path| !path.contains("/pci/7")));
    // The operator's toolstack has been faster.
    let (mut nodes, mut machine) = given();
    nodes.remove("/local/domain/7");
    take(from(), &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap();
    assert!(nodes.paths().all(|path| !path.contains("/pci/7") && !path.contains("domain/7")), "{nodes:?}");
}
