//! One that waits meets the PCI back end before it gets a device.

use super::*;

#[test]
fn one_that_knows_the_back_end_already_is_told_of_a_device_and_else_both_begin_again() {
    let files = Files::new("introduced");
    let (begins, asks) = (Some(Meeting::Begins), Some(Meeting::Asks));
    for (back, front, said, is_meeting) in
        [("4", "4", "7", None), ("4", "3", "1", asks), ("2", "4", "1", begins), ("3", "3", "1", begins)]
    {
        let (mut nodes, mut machine) = (nodes(), Machine::default());
        introduce(8, &mut nodes).unwrap();
        let there = |nodes: &Nodes| nodes.all().filter(|(path, _)| path.contains("pci")).count();
        assert_eq!((&nodes[&format!("{BACK}/num_devs")], &nodes[&format!("{BACK}/state")]), ("0", "1"));
        nodes.set(&format!("{BACK}/state"), back);
        nodes.set("/local/domain/8/device/pci/0/state", front);
        let before = there(&nodes);
        assert_eq!(meeting(8, &mut nodes).unwrap(), is_meeting, "{back} {front}");
        introduce(8, &mut nodes).unwrap();
        assert_eq!(there(&nodes), before, "a second time nothing is done");
        hand_over(8, &claims("00:03.0"), &files.0, &mut nodes, &mut machine).unwrap();
        let at = |key: &str| &nodes[&format!("{BACK}/{key}")];
        assert_eq!((at("state"), at("num_devs"), at("dev-0"), at("state-0")), (said, "1", NIC, "1"), "{back} {front}");
        assert_eq!(&nodes["/local/domain/8/device/pci/0/state"], if said == "7" { "4" } else { "1" });
        assert_eq!((machine.owner, meeting(8, &mut nodes).unwrap()), (Some(8), None));
        let error = hand_over(8, &claims("00:03.0"), &files.0, &mut nodes, &mut machine).unwrap_err();
        assert!(error.to_string().contains("already"), "{error}");
    }
}

#[test]
fn what_was_announced_is_not_said_again_and_all_else_changes_with_it() {
    let files = Files::new("announced");
    let (mut nodes, mut machine) = (nodes(), Machine::default());
    assert!(!announce(8, &claims("00:03.0"), &mut nodes).unwrap(), "it does not know the back end");
    introduce(8, &mut nodes).unwrap();
    assert!(!announce(8, &claims("00:03.0@5"), &mut nodes).unwrap(), "that is for xl to say");
    assert!(nodes.get(&format!("{BACK}/dev-0")).is_none());
    assert!(announce(8, &claims("00:03.0"), &mut nodes).unwrap());
    assert_eq!(&nodes[&format!("{BACK}/num_devs")], "0");
    let name = |name: &str| vec![Change::Write("/local/domain/8/name".into(), name.into())];
    let party = || Party::new(8, name("dd")).announced(true);
    let mut give = |nodes: &mut Nodes, party| hand_over(party, &claims("00:03.0"), &files.0, nodes, &mut machine);
    let error = give(&mut nodes, party().if_known()).unwrap_err();
    assert!(error.to_string().contains("does not know"), "{error}");
    assert_eq!(&nodes["/local/domain/8/name"], "dd-standby");
    for end in [BACK, "/local/domain/8/device/pci/0"] {
        nodes.set(&format!("{end}/state"), "4");
    }
    // Somebody would see if it was said once more.
    nodes.set(&format!("{BACK}/state-0"), "said");
    give(&mut nodes, party().if_known()).unwrap();
    let at = |path: &str| &nodes[path];
    assert_eq!((at("/local/domain/8/name"), at(GIVEN)), ("dd", "8"));
    let back = |key: &str| at(&format!("{BACK}/{key}"));
    assert_eq!((back("state"), back("num_devs"), back("dev-0"), back("state-0")), ("7", "1", NIC, "said"));
    assert!(!announce(8, &claims("00:03.0"), &mut nodes).unwrap(), "it has a device");
    // One that had to begin again knows nothing of it.
    nodes.set(&format!("{BACK}/num_devs"), "0");
    nodes.set(&format!("{BACK}/state"), "2");
    give(&mut nodes, party()).unwrap();
    assert_eq!(&nodes[&format!("{BACK}/state-0")], "1");
}

#[test]
fn what_one_that_knows_the_back_end_asks_the_hypervisor_answers() {
    let files = Files::new("answered");
    let parameters = files.0 .0.join("module/xen_pciback/parameters");
    std::fs::create_dir_all(&parameters).unwrap();
    let wanted = (8, 9, 17, vec![ChannelPciFunction { function: 3 << 3, devfn: 0, wire: 11, pad: [0; 2] }]);
    for (knows, ring, passthrough, is_wanted, answered) in [
        (true, "9", "N", true, true),
        (true, "9", "N", false, false),
        (true, "nine", "N", true, false),
        (true, "9", "Y", true, false),
        (false, "9", "N", true, false),
    ] {
        std::fs::write(parameters.join("passthrough"), format!("{passthrough}\n")).unwrap();
        let (mut nodes, mut machine) = (nodes(), Machine::default());
        introduce(8, &mut nodes).unwrap();
        let front = "/local/domain/8/device/pci/0";
        for end in [BACK, front] {
            nodes.set(&format!("{end}/state"), if knows { "4" } else { "1" });
        }
        nodes.set(&format!("{front}/pci-op-ref"), ring);
        nodes.set(&format!("{front}/event-channel"), "17");
        let party = Party::from(8).answered(is_wanted);
        hand_over(party, &claims("00:03.0"), &files.0, &mut nodes, &mut machine).unwrap();
        let told = machine.answered.first().filter(|_| machine.answered.len() == 1);
        assert_eq!(told, answered.then_some(&wanted), "{knows} {ring} {passthrough} {is_wanted}");
    }
}

#[test]
fn what_its_front_end_says_instead_of_a_number_writes_no_lines_into_the_log() {
    let files = Files::new("tamed");
    let (mut nodes, mut machine) = (nodes(), Machine::default());
    let ring = "/local/domain/8/device/pci/0/pci-op-ref";
    nodes.set(ring, "nine\ndisk: all is well\u{1b}[2J");
    let error = answer(8, &[NIC], &files.0, &mut nodes, &mut machine).unwrap_err();
    let said = format!("{error:#}");
    assert!(said.starts_with(&format!("{ring} is ninedisk: all is well[2J")), "{said}");
    assert!(!said.contains(char::is_control), "{said:?}");
}

#[test]
fn who_is_forgotten_leaves_nothing_unless_he_has_a_device() {
    let files = Files::new("forgotten");
    let (mut nodes, mut machine) = (nodes(), Machine::default());
    introduce(8, &mut nodes).unwrap();
    forget(8, &mut nodes).unwrap();
    assert!(nodes.paths().all(|path| !path.contains("backend/pci")), "{nodes:?}");
    introduce(9, &mut nodes).unwrap();
    assert!(nodes.paths().all(|path| !path.contains("pci/9")), "it has gone before");
    hand_over(8, &claims("00:03.0"), &files.0, &mut nodes, &mut machine).unwrap();
    forget(8, &mut nodes).unwrap();
    assert_eq!(&nodes[&format!("{BACK}/num_devs")], "1");
}
