//! Devices change hands in a world of nodes, a hypervisor that refuses what it should, and Linux's files.

use super::super::options::Options;
use super::*;
use crate::fake_store::{Asked, Nodes, Shared, World};
use std::collections::BTreeSet;
use std::path::Path;

const NIC: &str = "0000:00:03.0";
const BACK: &str = "/local/domain/0/backend/pci/8/0";
/// It answers at its ports and in its memory, and reports system errors.
const CONFIG: [u8; 8] = [0x86, 0x80, 0xd3, 0x10, 0x03, 0x01, 0x10, 0];
const METHODS: &str = "flr pm\n";
const GIVEN: &str = "/libxl/pci/0000-00-03-0/domid";

/// The store, and a file in which is looked before each change, with what it said then.
struct Looked {
    nodes: Nodes,
    file: PathBuf,
    said: Vec<String>,
}

impl Looked {
    fn in_file(nodes: Nodes, file: &Path) -> Shared<Self> {
        Shared::of(Self { nodes, file: file.into(), said: Vec::new() })
    }
}

impl World for Looked {
    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        if let Asked::Change = what {
            self.said.push(std::fs::read_to_string(&self.file).unwrap().trim().into());
        }
        Ok(())
    }
}

/// Whose the NIC is, and who may use what of it.
#[derive(Default)]
struct Machine {
    owner: Option<u16>,
    permitted: BTreeSet<(u16, String)>,
    wires: BTreeSet<(u16, u32)>,
    /// There is no IOMMU.
    is_unconfined: bool,
    /// So often it was asked to keep a link.
    keeps: u32,
    /// It does not know how the device is reset.
    is_unknown: bool,
    /// Domains, rings, ports and functions of which it was told to answer what is asked.
    answered: Vec<(u16, u32, u32, Vec<ChannelPciFunction>)>,
    /// So many calls more succeed.
    limit: Option<u32>,
}

impl Machine {
    fn call(&mut self) -> Result<(), Errno> {
        match &mut self.limit {
            Some(0) => Err(Errno::NOMEM),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Passthrough for Machine {
    fn permit(&mut self, domain: u16, what: Resource, is_allowed: bool) -> Result<(), Errno> {
        self.call()?;
        if is_allowed && self.owner.is_some_and(|owner| owner != domain) {
            return Err(Errno::BUSY);
        }
        let one = (domain, format!("{what:?}"));
        if is_allowed {
            self.permitted.insert(one);
        } else {
            self.permitted.remove(&one);
        }
        Ok(())
    }

    fn map_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno> {
        self.call()?;
        self.wires.insert((domain, wire));
        Ok(())
    }

    fn unmap_wire(&mut self, domain: u16, wire: u32) -> Result<(), Errno> {
        self.call()?;
        if self.wires.remove(&(domain, wire)) {
            Ok(())
        } else {
            Err(Errno::SRCH)
        }
    }

    fn assign(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call()?;
        assert_eq!(function, 3 << 3);
        if self.owner.is_some_and(|owner| owner != domain) {
            return Err(Errno::BUSY);
        }
        self.owner = Some(domain);
        Ok(())
    }

    fn deassign(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call()?;
        assert_eq!(function, 3 << 3);
        if self.owner != Some(domain) {
            return Err(Errno::NODEV);
        }
        self.owner = None;
        Ok(())
    }

    fn is_confined(&mut self, _: u16) -> bool {
        !self.is_unconfined
    }

    fn keep_link(&mut self, domain: u16, function: u32) -> Result<(), Errno> {
        self.call()?;
        assert_eq!((function, self.owner), (3 << 3, Some(domain)), "before it is taken");
        self.keeps += 1;
        if self.is_unknown {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    fn answer_front(
        &mut self,
        domain: u16,
        ring: u32,
        port: u32,
        functions: &[ChannelPciFunction],
    ) -> Result<(), Errno> {
        self.call()?;
        assert_eq!(self.owner, Some(domain), "it has its devices by now");
        self.answered.push((domain, ring, port, functions.to_vec()));
        Ok(())
    }

    fn has_reset(&mut self, _: u16) -> bool {
        assert!(self.owner.is_none(), "asked before it is taken");
        !self.is_unknown
    }
}

/// Linux's files, with the NIC in the PCI back end's hands; they go with this.
struct Files(Sysfs);

impl Files {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("tandemd-{test}-{}", std::process::id()));
        let device = root.join("bus/pci/devices").join(NIC);
        let back = root.join("bus/pci/drivers/pciback");
        for folder in [&device, &back.join(NIC)] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let regions =
            "0xfebc0000 0xfebdffff 0x40200\n0xc000 0xc01f 0x40101\n0x0 0x0 0x0\n0xfebf1800 0xfebf1fff 0x200\n";
        std::fs::write(device.join("resource"), regions).unwrap();
        std::fs::write(device.join("irq"), "11\n").unwrap();
        std::fs::write(device.join("config"), CONFIG).unwrap();
        std::fs::write(device.join("reset_method"), METHODS).unwrap();
        for name in ["permissive", "unbind", "bind"] {
            std::fs::write(back.join(name), "").unwrap();
        }
        Self(Sysfs(root))
    }

    fn of_device(&self, name: &str) -> PathBuf {
        self.0 .0.join("bus/pci/devices").join(NIC).join(name)
    }

    fn back_end_heard(&self, of: &str) -> String {
        std::fs::read_to_string(self.0 .0.join("bus/pci/drivers/pciback").join(of)).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0 .0);
    }
}

fn nodes() -> Nodes {
    let mut nodes = Nodes::default();
    for (path, value) in [("/local", ""), ("/local/domain/7/name", "dd"), ("/local/domain/8/name", "dd-standby")] {
        nodes.set(path, value);
    }
    nodes
}

fn claims(said: &str) -> Vec<Claim> {
    vec![Claim { name: NIC.into(), said: said.into(), options: Options::of(said) }]
}

/// One of the domain 7's, as xl has given it.
fn given() -> (Nodes, Machine) {
    let mut nodes = nodes();
    nodes.set("/local/domain/0/backend/pci/7/0/dev-0", NIC);
    nodes.set(GIVEN, "7");
    let mut machine = Machine { owner: Some(7), ..Machine::default() };
    machine.wires.insert((7, 11));
    (nodes, machine)
}

#[test]
fn what_one_had_the_other_gets() {
    let files = Files::new("changes-hands");
    let (mut nodes, mut machine) = given();
    take(7, &[NIC.into()], Reset::BackEnd, &files.0, &mut nodes, &mut machine).unwrap();
    assert_eq!((machine.owner, machine.wires.len(), machine.permitted.len()), (None, 0, 0));
    let is_of_it = |path: &str| path.contains("/pci/") && !GIVEN.starts_with(path) || path == GIVEN;
    assert!(!nodes.paths().any(is_of_it), "{nodes:?}");
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
