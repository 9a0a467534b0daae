//! Who resets a device that is taken, and what is kept of it, done to it and left alone meanwhile.

use super::*;

#[test]
fn who_resets_it_is_said_and_afterwards_linux_can() {
    let files = Files::new("resets");
    let method = files.of_device("reset_method");
    let methods_when_taken = |reset, is_unconfined, before: &str| {
        std::fs::write(&method, before).unwrap();
        let (nodes, mut machine) = given();
        machine.is_unconfined = is_unconfined;
        let mut looked = Looked::in_file(nodes, &method);
        take(7, &[NIC.into()], reset, &files.0, &mut looked, &mut machine).unwrap();
        let after = std::fs::read_to_string(&method).unwrap();
        let during = looked.0.borrow().said.join(", ");
        (during, after.trim().to_string())
    };
    let told = |during: &str, after: &str| (during.to_string(), after.to_string());
    assert_eq!(methods_when_taken(Reset::BackEnd, false, METHODS), told("flr pm", "flr pm"));
    assert_eq!(methods_when_taken(Reset::Driver, false, METHODS), told("", "flr pm"));
    assert_eq!(methods_when_taken(Reset::IfNeeded, false, METHODS), told("", "flr pm"), "the hypervisor has");
    assert_eq!(methods_when_taken(Reset::IfNeeded, true, METHODS), told("flr pm", "flr pm"), "without an IOMMU");
    assert_eq!(methods_when_taken(Reset::Driver, true, METHODS), told("flr pm", "flr pm"), "without an IOMMU");
    assert_eq!(methods_when_taken(Reset::Driver, false, "\n"), told("", "default"), "an earlier daemon was killed");
    let config = |status| std::fs::write(files.of_device("config"), [&CONFIG[..6], &[status, 0]].concat()).unwrap();
    config(0x18);
    assert_eq!(methods_when_taken(Reset::Driver, false, METHODS), told("flr pm", "flr pm"), "its wire is up");
    config(0x10);
    assert_eq!(methods_when_taken(Reset::Driver, false, METHODS), told("", "flr pm"), "its wire is down again");
    let (nodes, mut machine) = given();
    machine.is_unknown = true;
    let mut looked = Looked::in_file(nodes, &method);
    std::fs::write(&method, METHODS).unwrap();
    take(7, &[NIC.into()], Reset::IfNeeded, &files.0, &mut looked, &mut machine).unwrap();
    assert_eq!(looked.0.borrow().said, ["flr pm"], "the hypervisor does not know how");
    std::fs::remove_file(files.of_device("config")).unwrap();
    assert_eq!(methods_when_taken(Reset::Driver, false, METHODS), told("flr pm", "flr pm"), "nobody knows");
    config(0x10);
    for (before, after) in [("\n", "default\n"), (METHODS, METHODS)] {
        std::fs::write(&method, before).unwrap();
        files.0.let_reset(NIC).unwrap();
        assert_eq!(std::fs::read_to_string(&method).unwrap(), after);
    }
    std::fs::remove_file(&method).unwrap();
    let (mut nodes, mut machine) = given();
    take(7, &[NIC.into()], Reset::Driver, &files.0, &mut nodes, &mut machine).unwrap();
    assert!(!method.exists() && machine.owner.is_none(), "one that Linux cannot reset");
}

#[test]
fn links_are_kept_where_that_is_known() {
    let (_, mut machine) = given();
    keep_links(7, &[NIC.into(), "nonsense".into()], &mut machine);
    assert_eq!((machine.keeps, machine.owner), (1, Some(7)));
    // Whatever is said against it, the devices can be taken.
    machine.is_unknown = true;
    keep_links(7, &[NIC.into()], &mut machine);
    assert_eq!((machine.keeps, machine.owner), (2, Some(7)));
}

#[test]
fn what_nobody_resets_is_taken_up_anew_and_answers_nowhere() {
    let files = Files::new("anew");
    let closed = [0x86, 0x80, 0xd3, 0x10, 0, 0x01, 0x10, 0];
    let wired = [&CONFIG[..6], &[0x18, 0]].concat();
    for (reset, is_answered, before, heard, after) in [
        (Reset::BackEnd, false, &CONFIG[..], "", &CONFIG[..]),
        (Reset::Driver, false, &wired, "", &wired),
        // The back end is not asked any more.
        (Reset::Driver, true, &CONFIG, "", &CONFIG),
        (Reset::Driver, false, &CONFIG, NIC, &closed),
    ] {
        std::fs::write(files.of_device("config"), before).unwrap();
        let (mut nodes, mut machine) = given();
        take(Party::from(7).answered(is_answered), &[NIC.into()], reset, &files.0, &mut nodes, &mut machine).unwrap();
        assert_eq!([files.back_end_heard("unbind"), files.back_end_heard("bind")], [heard; 2], "{reset:?} {before:?}");
        assert_eq!(std::fs::read(files.of_device("config")).unwrap(), after, "{reset:?} {before:?}");
    }
}

#[test]
fn what_is_anothers_by_now_is_not_touched() {
    let files = Files::new("anothers");
    let method = files.of_device("reset_method");
    // Another domain's; ours still, by what xenstore says; and nobody's, since an earlier daemon has taken it.
    for (owner, to, heard, during) in
        [(Some(9), Some("9"), "", "flr pm"), (None, Some("7"), NIC, ""), (None, None, NIC, "")]
    {
        let (mut nodes, mut machine) = (nodes(), Machine { owner, ..Machine::default() });
        to.iter().for_each(|to| nodes.set(GIVEN, to));
        let mut looked = Looked::in_file(nodes, &method);
        for name in ["unbind", "bind"] {
            std::fs::write(files.0 .0.join("bus/pci/drivers/pciback").join(name), "").unwrap();
        }
        take(7, &[NIC.into()], Reset::Driver, &files.0, &mut looked, &mut machine).unwrap();
        assert_eq!([files.back_end_heard("unbind"), files.back_end_heard("bind")], [heard; 2], "{owner:?} {to:?}");
        let looked = looked.0.borrow();
        assert_eq!(looked.said, [during], "Linux is to reset it");
        assert_eq!((machine.owner, looked.nodes.get(GIVEN).is_some()), (owner, to == Some("9")));
    }
}

#[test]
fn what_an_earlier_daemon_had_the_back_end_let_go_of_it_takes_up_again() {
    let files = Files::new("killed");
    std::fs::write(files.of_device("driver"), "").unwrap();
    files.0.let_take_up(NIC).unwrap();
    files.0.let_take_up("0000:00:09.0").unwrap();
    assert_eq!(files.back_end_heard("bind"), "", "it has a driver, and the other is not there");
    std::fs::remove_file(files.of_device("driver")).unwrap();
    files.0.let_take_up(NIC).unwrap();
    assert_eq!(files.back_end_heard("bind"), NIC);
}
