use super::*;
use proptest::prelude::*;

fn function(name: &str, class: u32, id: (u16, u16)) -> Function {
    let identity = Identity { model: format!("{:04x}:{:04x} : .0", id.0, id.1), ..Identity::default() };
    Function { name: name.into(), class, vendor: id.0, device: id.1, is_virtual: false, identity }
}

/// The same function of the card that has this serial number.
fn numbered(function: Function, serial: &str) -> Function {
    let identity = Identity { serial: Some(serial.into()), ..function.identity };
    Function { identity, ..function }
}

const NETWORK: u32 = 0x02_0000;
const NVME: u32 = 0x01_0802;
const AHCI: u32 = 0x01_0601;
const E1000E: (u16, u16) = (0x8086, 0x10d3);

fn wants(said: &[&str]) -> Vec<Want> {
    said.iter().map(|said| Want::parse(said).unwrap()).collect()
}

fn asker(service: &str, said: &[&str]) -> Asker {
    Asker { service: service.into(), wants: wants(said), ..Asker::default() }
}

/// What each gets, where nobody else wants anything.
fn chosen(askers: &[Asker], functions: &[Function]) -> BTreeMap<String, Choice> {
    let others = Others { claimed: &BTreeMap::new(), taken: &BTreeSet::new(), in_use: &|_| None };
    choose(askers, functions, &others)
}

fn found(choice: &Choice) -> Vec<&str> {
    choice.found.iter().map(|found| found.as_deref().unwrap_or("")).collect()
}

#[test]
fn a_device_is_an_address_an_id_or_a_kind() {
    assert_eq!(
        wants(&["network", "nvme", "ahci", "disk"]).iter().map(Want::to_string).collect::<Vec<_>>(),
        ["network", "nvme", "ahci", "disk"]
    );
    assert_eq!(wants(&["0000:03:00.0", "03:00.0"]), vec![Want::At("0000:03:00.0".into()); 2]);
    assert_eq!(wants(&["8086:10d3", "8086:10D3"]), vec![Want::Id(0x8086, 0x10d3); 2]);
    for wrong in [
        "",
        "sata",
        "Network",
        "8086",
        "8086:10d",
        "8086:10d33",
        "8086:10dg",
        "03:00",
        "03:00.8",
        "03:00.0,permissive=1",
        "bdf=03:00.0",
        "03:00.0@5",
        "03:20.0",
    ] {
        let said = Want::parse(wrong).unwrap_err();
        assert!(said.contains(&format!("`{wrong}`")) && said.contains("lspci") && said.contains("\"nvme\""), "{said}");
    }
}

#[test]
fn one_device_or_a_list_of_some_is_read() {
    #[derive(Debug, Deserialize)]
    struct Section {
        device: Wants,
    }
    let read = |text: &str| toml::from_str::<Section>(text).map(|section| section.device.0);
    assert_eq!(read("device = \"nvme\"").unwrap(), wants(&["nvme"]));
    assert_eq!(read("device = [\"network\", \"03:00.0\"]").unwrap(), wants(&["network", "03:00.0"]));
    for (wrong, words) in
        [("[]", "has a device"), ("\"disc\"", "`disc`"), ("[\"nvme\", \"disc\"]", "`disc`"), ("5", "list of devices")]
    {
        let said = read(&format!("device = {wrong}")).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn kinds_are_classes() {
    let fits = |class| KINDS.iter().filter(|(_, kind)| kind.has(class)).map(|(word, _)| *word).collect::<Vec<_>>();
    assert_eq!((fits(NETWORK), fits(0x02_8000)), (vec!["network"], vec!["network"]));
    assert_eq!((fits(NVME), fits(AHCI)), (vec!["nvme", "disk"], vec!["ahci", "disk"]));
    assert_eq!((fits(0x01_0000), fits(0x01_0400), fits(0x01_0185)), (vec!["disk"], vec!["disk"], vec!["disk"]));
    // Of IDE where a PC had it, of a floppy disk, a bridge, a screen.
    for none in [0x01_0180, 0x01_018a, 0x01_0200, 0x06_0400, 0x03_0000] {
        assert!(fits(none).is_empty(), "{none:#x}");
    }
}

/// A tree as Linux has it, with these functions.
fn tree(of: &str, functions: &[(&str, &str, &str, &str)]) -> std::path::PathBuf {
    let root = std::env::temp_dir().join(format!("tandemd-choice-{of}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    for (name, class, vendor, device) in functions {
        let place = root.join("sys/bus/pci/devices").join(name);
        std::fs::create_dir_all(&place).unwrap();
        for (file, text) in [("class", class), ("vendor", vendor), ("device", device)] {
            std::fs::write(place.join(file), format!("{text}\n")).unwrap();
        }
    }
    root
}

#[test]
fn functions_are_found_by_ascending_addresses() {
    let root = tree(
        "found",
        &[
            ("10000:00:01.0", "0x010802", "0x8086", "0x0a54"),
            ("0000:03:00.1", "0x020000", "0x8086", "0x10c9"),
            ("0000:00:1f.2", "0x010601", "0x8086", "0x2922"),
            ("0000:03:00.0", "0x020000", "0x8086", "0x10c9"),
            ("0000:0a:00.0", "what", "0x8086", "0x10c9"),
        ],
    );
    std::fs::write(root.join("sys/bus/pci/devices/0000:03:00.1/physfn"), "").unwrap();
    let found = functions(&root);
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["0000:00:1f.2", "0000:03:00.0", "0000:03:00.1", "10000:00:01.0"]);
    assert_eq!(found[1], function("0000:03:00.0", NETWORK, (0x8086, 0x10c9)));
    assert!(found[2].is_virtual && !wants(&["network"])[0].has(&found[2]), "its owner makes it and ends it");
    assert!(wants(&["8086:10c9"])[0].has(&found[2]), "who asks for it by its number means it");
    std::fs::remove_dir_all(&root).unwrap();
    assert!(functions(&root).is_empty());
}

#[test]
fn who_asks_for_less_comes_first_and_then_addresses_count() {
    let there = [
        function("0000:00:03.0", NVME, (1, 1)),
        function("0000:00:04.0", NETWORK, E1000E),
        function("0000:00:05.0", NETWORK, (1, 2)),
        function("0000:00:06.0", AHCI, (1, 3)),
        function("0000:00:07.0", NVME, (1, 1)),
    ];
    let askers = [
        asker("any", &["disk"]),
        asker("lan", &["network"]),
        asker("net", &["8086:10d3"]),
        asker("ssd", &["nvme"]),
        asker("two", &["0000:00:07.0", "disk"]),
    ];
    let choices = chosen(&askers, &there);
    let of = |service: &str| found(&choices[service]);
    assert_eq!((of("net"), of("lan")), (vec!["0000:00:04.0"], vec!["0000:00:05.0"]));
    assert_eq!((of("ssd"), of("any")), (vec!["0000:00:03.0"], vec!["0000:00:06.0"]));
    assert_eq!(of("two"), ["0000:00:07.0", ""]);
    let why: Vec<&str> = choices["two"].left_out.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(why, ["it is `ssd`'s", "it is `any`'s", "it has it already"]);
    assert!(choices["net"].left_out.is_empty());
}

#[test]
fn what_others_have_or_need_is_left_out() {
    let there: Vec<Function> = (2..6).map(|n| function(&format!("0000:00:0{n}.0"), NETWORK, E1000E)).collect();
    let claimed = BTreeMap::from([("0000:00:02.0".to_string(), "far".to_string())]);
    let taken = BTreeSet::from(["0000:00:03.0".to_string()]);
    let in_use = |name: &str| (name == "0000:00:04.0").then(|| "domain 0 works with it".to_string());
    let others = Others { claimed: &claimed, taken: &taken, in_use: &in_use };
    let get = |askers: &[Asker]| choose(askers, &there, &others).remove("net").unwrap();
    assert_eq!(found(&get(&[asker("net", &["network"])])), ["0000:00:05.0"]);
    let none = get(&[asker("lan", &["00:05.0"]), asker("net", &["network"])]);
    assert_eq!(found(&none), [""]);
    let why: Vec<String> = none.left_out.iter().map(|(name, why)| format!("{name} {why}")).collect();
    assert_eq!(
        why,
        [
            "0000:00:02.0 it is `far`'s",
            "0000:00:03.0 another domain has it",
            "0000:00:04.0 domain 0 works with it",
            "0000:00:05.0 it is `lan`'s"
        ]
    );
    // It has it itself, and nobody remembers that it was given.
    let has = Asker { has: vec!["0000:00:03.0".into()], ..asker("net", &["network"]) };
    assert_eq!(found(&get(&[has])), ["0000:00:03.0"]);
}

#[test]
fn what_was_given_stays_until_it_is_gone_for_good() {
    let there = |names: &[&str]| names.iter().map(|name| function(name, NETWORK, E1000E)).collect::<Vec<_>>();
    let given = |want: &str, device: &str| Given { want: want.into(), device: device.into(), identity: None };
    let mut net = Asker { given: vec![given("network", "0000:00:05.0")], ..asker("net", &["network"]) };
    let get = |net: &Asker, names: &[&str]| found(&chosen(std::slice::from_ref(net), &there(names))["net"]).concat();
    assert_eq!(get(&net, &["0000:00:03.0", "0000:00:05.0"]), "0000:00:05.0");
    assert_eq!(get(&net, &["0000:00:03.0"]), "0000:00:05.0", "it may come back");
    net.may_change = true;
    assert_eq!(get(&net, &["0000:00:03.0"]), "0000:00:03.0");
    assert_eq!(get(&net, &[]), "0000:00:05.0", "there is no other one");
    assert_eq!(get(&net, &["0000:00:03.0", "0000:00:05.0"]), "0000:00:05.0");
    // A disk is in its place now.
    let disk = [function("0000:00:05.0", NVME, (1, 1)), function("0000:00:06.0", NETWORK, E1000E)];
    assert_eq!(found(&chosen(&[Asker { may_change: false, ..net.clone() }], &disk)["net"]), ["0000:00:06.0"]);
    // Somebody claims it by its address by now.
    let claims = asker("far", &["00:05.0"]);
    let both = chosen(&[claims, net], &there(&["0000:00:03.0", "0000:00:05.0"]));
    assert_eq!((found(&both["far"]), found(&both["net"])), (vec!["0000:00:05.0"], vec!["0000:00:03.0"]));
}

#[test]
fn another_card_at_the_place_of_the_one_that_was_given_is_not_it() {
    let card = |name: &str, serial: &str| numbered(function(name, NETWORK, E1000E), serial);
    let in_use = |name: &str| (name == "0000:02:00.0").then(|| "domain 0 works with it".to_string());
    let others = Others { claimed: &BTreeMap::new(), taken: &BTreeSet::new(), in_use: &in_use };
    let net = asker("net", &["network"]);
    let get =
        |net: &Asker, there: &[Function]| choose(std::slice::from_ref(net), there, &others).remove("net").unwrap();
    let before = get(&net, &[card("0000:02:00.0", "zero"), card("0000:03:00.0", "net")]);
    assert_eq!(found(&before), ["0000:03:00.0"]);
    let net = Asker { given: before.given(&net.wants), ..net };
    // Buses are numbered anew, and domain 0 has not brought its card up yet.
    let moved = get(&net, &[card("0000:03:00.0", "zero"), card("0000:04:00.0", "net")]);
    assert_eq!(found(&moved), ["0000:04:00.0"], "it is where it is now");
    assert_eq!(moved.identities["0000:04:00.0"].serial.as_deref(), Some("net"));
    // Who has it is not asked which it is.
    let has = Asker { has: vec!["0000:03:00.0".into()], ..net.clone() };
    assert_eq!(found(&get(&has, &[card("0000:03:00.0", "zero"), card("0000:04:00.0", "net")])), ["0000:03:00.0"]);
    // It cannot tell just now; and one that cannot is no other one.
    let silent = get(&net, &[card("0000:02:00.0", "zero"), function("0000:03:00.0", NETWORK, E1000E)]);
    assert_eq!((found(&silent), silent.given(&net.wants)), (vec!["0000:03:00.0"], net.given.clone()));
    // It is gone, and domain 0 works with the one at its place.
    let gone = choose(
        std::slice::from_ref(&net),
        &[card("0000:03:00.0", "zero")],
        &Others { in_use: &|_| Some("domain 0 works with it".into()), ..others },
    );
    assert_eq!(found(&gone["net"]), [""]);
    assert_eq!(gone["net"].left_out, [("0000:03:00.0".to_string(), "domain 0 works with it".to_string())]);
    // A card of another model.
    let other = ["0000:03:00.0", "0000:01:00.0"].map(|name| function(name, NETWORK, (1, 2)));
    assert_eq!(found(&get(&net, &other)), ["0000:03:00.0"]);
    assert_eq!(get(&net, &other).identities["0000:03:00.0"], other[0].identity, "it is another one, and was put there");
}

#[test]
fn cards_that_have_changed_places_stay_with_who_has_them() {
    let card = |name: &str, serial: &str| numbered(function(name, NETWORK, E1000E), serial);
    let askers = [asker("lan", &["network"]), asker("net", &["network"])];
    let before = chosen(&askers, &[card("0000:00:03.0", "a"), card("0000:00:04.0", "b")]);
    let askers = askers.map(|asker| Asker { given: before[&asker.service].given(&asker.wants), ..asker });
    let now = chosen(&askers, &[card("0000:00:03.0", "c"), card("0000:00:04.0", "a"), card("0000:00:05.0", "b")]);
    assert_eq!((found(&now["lan"]), found(&now["net"])), (vec!["0000:00:04.0"], vec!["0000:00:05.0"]));
}

#[test]
fn another_one_waits_for_nothing_that_is_gone() {
    let net = Asker {
        given: vec![Given { want: "network".into(), device: "0000:00:05.0".into(), identity: None }],
        ..asker("net", &["network"])
    };
    let choices = chosen(&[asker("lan", &["network"]), net], &[]);
    assert_eq!((found(&choices["lan"]), found(&choices["net"])), (vec![""], vec!["0000:00:05.0"]));
}

#[test]
fn of_two_that_are_asked_for_in_the_same_words_the_first_is_there() {
    let wants = wants(&["network", "nvme", "network", "network"]);
    let mut found = [None, Some("b".into()), None, Some("d".into())];
    fill_in_order(&wants, &mut found);
    assert_eq!(found, [Some("d".into()), Some("b".into()), None, None]);
}

/// Some function at one of few places, of few kinds.
fn a_function() -> impl Strategy<Value = Function> {
    let class = prop::sample::select(vec![NETWORK, NVME, AHCI, 0x01_0400, 0x06_0400]);
    (0..12u8, class, 1..4u16).prop_map(|(n, class, id)| function(&format!("0000:00:{n:02x}.0"), class, (0x8086, id)))
}

fn a_machine() -> impl Strategy<Value = Vec<Function>> {
    prop::collection::vec(a_function(), 0..12).prop_map(|mut all| {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        all
    })
}

/// Services and what they ask for; addresses are claimed once, as the configuration sees to.
fn some_askers() -> impl Strategy<Value = Vec<Asker>> {
    let words = prop::sample::select(vec!["network", "nvme", "ahci", "disk", "8086:0001", "8086:0002", "at"]);
    let lists = prop::collection::vec(prop::collection::vec((words, 0..12u8), 1..4), 1..5);
    lists.prop_map(|lists| {
        let mut claimed = BTreeSet::new();
        let services = lists.iter().enumerate().map(|(n, list)| {
            let said = list.iter().filter_map(|(word, at)| match *word {
                "at" => claimed.insert(*at).then(|| format!("00:{at:02x}.0")),
                word => Some(word.to_string()),
            });
            let said: Vec<String> = said.collect();
            asker(&format!("s{n}"), &said.iter().map(String::as_str).collect::<Vec<_>>())
        });
        services.collect::<Vec<_>>()
    })
}

proptest! {
    /// Machines change; each service in its turn may give up what is gone. No device is ever given twice, all are what
    /// was asked for, and what is there stays with who has it.
    #[test]
    fn no_device_is_given_twice_and_who_has_one_keeps_it(
        mut askers in some_askers(),
        machines in prop::collection::vec((a_machine(), any::<prop::sample::Index>()), 1..6),
    ) {
        for (there, turn) in machines {
            let turn = turn.index(askers.len());
            for (n, asker) in askers.iter_mut().enumerate() {
                asker.may_change = n == turn;
            }
            let choices = chosen(&askers, &there);
            let all: Vec<&String> = choices.values().flat_map(|choice| choice.found.iter().flatten()).collect();
            prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "twice: {:?}", choices);
            let claimed: BTreeSet<String> = askers.iter().flat_map(|asker| &asker.wants).filter(|want| matches!(want, Want::At(_))).map(Want::to_string).collect();
            for asker in &mut askers {
                let choice = &choices[&asker.service];
                prop_assert_eq!(choice.found.len(), asker.wants.len());
                for (want, device) in asker.wants.iter().zip(&choice.found) {
                    let function = there.iter().find(|one| Some(&one.name) == device.as_ref());
                    prop_assert!(function.is_none_or(|function| want.has(function)));
                    // Nothing free that would do is left.
                    let is_free = |one: &&Function| want.has(one) && !all.contains(&&one.name) && !claimed.contains(&one.name);
                    prop_assert!(device.is_some() || !there.iter().any(|one| is_free(&one)));
                }
                for Given { want, device, identity } in &asker.given {
                    let is_it = |one: &Function| identity.as_ref().is_none_or(|known| !known.is_refuted(&one.identity));
                    let is_there = there.iter().any(|one| one.name == *device && Want::parse(want).unwrap().has(one) && is_it(one));
                    let stays = choice.found.iter().flatten().any(|found| found == device);
                    prop_assert!(!is_there || stays || claimed.contains(device), "{} lost {}", asker.service, device);
                }
                asker.given = choice.given(&asker.wants);
            }
            // Asked again, it is the same.
            prop_assert_eq!(chosen(&askers, &there), choices);
        }
    }
}
