use super::*;
use std::collections::BTreeSet;

#[test]
fn services_have_driver_domains_or_not() {
    let config = Config::parse("[service.net]\ndriver-domain = \"dd\"\n[service.lab]\n").unwrap();
    assert_eq!(config.service["net"].driver_domain.as_deref(), Some("dd"));
    assert_eq!((&config.service["lab"].driver_domain, &config.metrics), (&None, &None));
    let config = Config::parse("[service.net.weights]\nu1 = 1\nu-2 = 768\n").unwrap();
    assert_eq!(config.service["net"].weights, Weights::from([("u1".into(), 1), ("u-2".into(), 768)]));
    let config = Config::parse("[service.net]\n[metrics]\naddress = \"127.0.0.1:9740\"\n").unwrap();
    assert_eq!(config.metrics.map(|metrics| metrics.address.port()), Some(9740));
}

#[test]
fn where_no_file_was_written_there_is_net() {
    let nowhere = Path::new("/nowhere/tandemd.toml");
    let config = Config::read_or_usual(nowhere).unwrap();
    assert_eq!(config.service.keys().collect::<Vec<_>>(), ["net"]);
    assert_eq!(config.service["net"].hold_ms(), 30_000);
    assert_eq!(config.read_again().unwrap(), config);
    let said = format!("{:#}", Config::read(nowhere).unwrap_err());
    assert!(said.contains("/nowhere/tandemd.toml") && said.contains("No such file"), "{said}");
}

/// The example with all that it has as comments: lines that begin with `#` and no blank.
fn example() -> String {
    let of = |line: &str| match line.strip_prefix('#') {
        Some(said) if said.starts_with(|c: char| c == '[' || c.is_ascii_alphanumeric()) => format!("{said}\n"),
        _ => format!("{line}\n"),
    };
    include_str!("../../tandemd.toml").lines().map(of).collect()
}

/// The keys of a table that is read as `T`, as the error about another one lists them.
fn keys_of<T: serde::de::DeserializeOwned + std::fmt::Debug>() -> BTreeSet<String> {
    let said = toml::from_str::<T>("no-such-key = 0").unwrap_err().to_string();
    let list = said.split("expected").nth(1).unwrap();
    list.split('`').skip(1).step_by(2).map(String::from).collect()
}

#[test]
fn the_example_has_every_key() {
    let example: toml::Table = toml::from_str(&example()).unwrap();
    let table = |path: &[&str]| path.iter().fold(&example, |table, name| table[*name].as_table().unwrap()).clone();
    let keys = |path: &[&str]| table(path).keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&[]), keys_of::<Config>());
    assert_eq!(keys(&["metrics"]), keys_of::<Metrics>());
    assert_eq!(&keys(&["service", "net"]) | &keys(&["service", "disk"]), keys_of::<Service>());
    let supervise = |of: &str| keys(&["service", of, "supervise"]);
    assert_eq!(&supervise("net") | &supervise("disk"), keys_of::<Settings>());
}

#[test]
fn what_the_example_says_in_comments_is_usual() {
    let config = Config::parse(&example()).unwrap();
    let net = &config.service["net"];
    let usual = Config::parse("[service.net]\n").unwrap();
    assert_eq!((net.hold_ms(), net.offload()), (usual.service["net"].hold_ms(), usual.service["net"].offload()));
    let said = net.supervise.as_ref().unwrap();
    let usual: Settings = toml::from_str("config = \"/etc/xen/dd.cfg\"").unwrap();
    assert_eq!(said.undrained_ms(), usual.undrained_ms());
    assert_eq!(said.assigns(), usual.assigns());
    assert_eq!(Settings { undrained_ms: None, assign: None, ..said.clone() }, usual);
    let said = config.service["disk"].supervise.as_ref().unwrap();
    assert_eq!(said.overdue_ms(), usual.overdue_ms());
    let usual: Settings = toml::from_str("device = \"nvme\"\nkernel = \"/boot/vmlinuz\"").unwrap();
    assert!(said.is_as(&usual));
}

#[test]
fn a_file_that_is_gone_is_not_taken_for_none() {
    let path = std::env::temp_dir().join(format!("tandemd-gone-{}.toml", std::process::id()));
    assert!(!Config::read_or_usual(&path).unwrap().is_written);
    std::fs::write(&path, "[service.lab]\n").unwrap();
    let config = Config::read_or_usual(&path).unwrap();
    assert_eq!(config.read_again().unwrap(), config);
    std::fs::remove_file(&path).unwrap();
    assert!(config.read_again().is_err());
}

/// A directory of its own for a test, which goes with it.
struct Directory(PathBuf);

impl Directory {
    fn new(of: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tandemd-{of}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl std::ops::Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_of_a_directory_count_as_one() {
    let directory = Directory::new("parts");
    assert!(!Config::read_or_usual(&directory.0).unwrap().is_written);
    let said = format!("{:#}", Config::read(&directory.0).unwrap_err());
    assert!(said.contains("there is no file *.toml in"), "{said}");
    directory.write("net.toml", "[service.net]\ndriver-domain = \"dd\"\n");
    directory.write("disks.toml", "[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd-disk\"\n");
    directory.write("metrics.toml", "[metrics]\naddress = \"127.0.0.1:9740\"\n");
    for none in [".net.toml.swp", ".hidden.toml", "net.toml~", "README"] {
        directory.write(none, "what is no configuration");
    }
    let config = Config::read_or_usual(&directory.0).unwrap();
    assert_eq!(config.service.keys().collect::<Vec<_>>(), ["disk", "net"]);
    assert!(config.is_written && config.metrics.is_some());
    assert_eq!(config.read_again().unwrap(), config);
}

#[test]
fn a_configuration_that_cannot_be_found_is_not_taken_for_none() {
    let directory = Directory::new("lost");
    let records = Directory::new("lost-records");
    let link = directory.0.join("link");
    std::os::unix::fs::symlink("/nowhere/tandem", &link).unwrap();
    let said = format!("{:#}", Config::read_or_usual(&link).unwrap_err());
    assert!(said.contains("link"), "{said}");
    std::fs::remove_file(&link).unwrap();
    // It is said that there is none.
    let usual = |records: &Path| Config::read_or_usual(&directory.0).unwrap().says_usual(records).unwrap();
    let said = usual(&records.0);
    assert!(said.ends_with(": there is the service `net`, without a way out"), "{said}");
    directory.write("net.tml", "[service.net]\n");
    assert!(usual(&records.0).ends_with("; net.tml, which is there, does not end with .toml"));
    // Nobody that waits is ended for that.
    assert!(!Config::read_or_usual(&directory.0).unwrap().is_lost(&records.0));
    records.write("net.toml", "");
    assert!(Config::read_or_usual(&directory.0).unwrap().is_lost(&records.0));
    assert!(usual(&records.0).contains("what waits for their places is left alone"));
    directory.write("net.toml", "[service.net]\n");
    let written = Config::read_or_usual(&directory.0).unwrap();
    assert_eq!((written.says_usual(&records.0), written.is_lost(&records.0)), (None, false));
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    let directory = Directory::new("contradictions");
    let said = || format!("{:#}", Config::read(&directory.0).unwrap_err());
    directory.write("a.toml", "[service.net]\n");
    directory.write("b.toml", "[service.net]\ndriver-domain = \"dd\"\n");
    let twice = said();
    assert!(twice.contains("b.toml: `[service.net]` is in ") && twice.contains("a.toml too"), "{twice}");
    directory.write("b.toml", "[service.lab]\ndriver-domain = \"net\"\n");
    assert!(said().contains("`net` is a service"), "{}", said());
    directory.write("b.toml", "[service.lab]\ndriver_domain = \"dd\"\n");
    assert!(said().contains("b.toml") && said().contains("driver_domain"), "{}", said());
    // The last of them takes its services with it, but none are not what the operator means.
    let _ = ["a.toml", "b.toml"].map(|name| std::fs::remove_file(directory.0.join(name)).unwrap());
    assert!(said().contains("there is no file"), "{}", said());
}

#[test]
fn errors_say_what_is_allowed() {
    let said = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
    let unknown = said("[service.net]\ndriver_domain = \"dd\"\n");
    assert!(unknown.contains("driver_domain") && unknown.contains("driver-domain"), "{unknown}");
    assert!(said("[services.net]\n").contains("`service`"));
    for named in ["[service.17]\n", "[service.net]\ndriver-domain = \"17\"\n"] {
        assert!(said(named).contains("`17` cannot be a domain's name") && said(named).contains("not digits alone"));
    }
    assert!(said("[service.net]\nhold-ms = 600001\n").contains("600000 ms at most"));
    assert!(said("[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\nhold-ms = 1\n").contains("for interfaces"));
    assert!(said("[service.net]\nweights = { u1 = 0 }\n").contains("from 1 to 65535"));
    let own_sums = "[service.net]\noffload = false\ndriver-domain = \"dd\"\n";
    assert!(!Config::parse(own_sums).unwrap().service["net"].offload());
    assert!(said("[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\noffload = true\n").contains("have no sums"));
    assert!(said("[service.net.weights]\nu1 = 65536\n").contains("u1 = 65536"));
    assert!(said("[service]\n").contains("[service.net]"));
    for empty in ["", "[metrics]\naddress = \"127.0.0.1:9740\"\n"] {
        assert!(said(empty).contains("there is no service"));
    }
    assert!(said("[service.net]\ndriver-domain = 5\n").contains("string"));
    assert!(said("[service.\"a b\"]\n").contains("a b"));
    assert!(said("[service.7]\n").contains('7'));
    assert!(said("[service.net]\n[metrics]\naddress = \"here\"\n").contains("address"));
    assert!(said("[service.net]\n[metrics]\nport = 1\n").contains("port"));
    assert!(said("[service.net]\ndriver-domain = \"net\"\n").contains("its own"));
    for services in ["[service.net]\n[service.lan]\n", "[service.net]\ndriver-domain = \"dd\"\n[service.lan]\n"] {
        assert!(said(&format!("{services}driver-domain = \"net\"\n")).contains("`net` is a service"));
    }
    assert!(said("[service.net.supervise]\nconfig = \"/dd.cfg\"\n").contains("no `driver-domain`"));
    let disk = "[service.disk]\nkind = \"disk\"\ndriver-domain = \"dd\"\n[service.disk.supervise]\nconfig = \"/d\"\n";
    let usual = Config::parse(disk).unwrap();
    assert_eq!(usual.service["disk"].supervise.as_ref().unwrap().undrained_ms(), UNDRAINED_DISK_MS);
    for of_interfaces in ["twin = true\n", "silent-ms = 5000\n", "keep-link = true\n"] {
        assert!(said(&format!("{disk}{of_interfaces}")).contains("driver domains of interfaces"));
    }
    for way_back in ["standby = 1\n", "snapshot = true\n", "standby = 1\nsnapshot = true\n"] {
        assert!(Config::parse(&format!("{disk}{way_back}")).is_ok());
    }
    assert!(said(&format!("{disk}compress = true\n")).contains("`compress` without `snapshot = true`"));
    let noted = Config::parse(&format!("{disk}snapshot = true\ncompress = true\n")).unwrap();
    assert!(noted.service["disk"].supervise.as_ref().unwrap().compress);
    let limits = |of: &Config| {
        let settings = of.service["disk"].supervise.as_ref().unwrap();
        (settings.undrained_ms(), settings.overdue_ms())
    };
    assert_eq!(limits(&usual), (60_000, 300_000));
    assert_eq!(limits(&Config::parse(&format!("{disk}undrained-ms = 0\n")).unwrap()), (0, 300_000));
    assert_eq!(limits(&Config::parse(&format!("{disk}overdue-ms = 0\n")).unwrap()), (60_000, 0));
    let net = "[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\n";
    assert!(said(&format!("{net}overdue-ms = 5000\n")).contains("driver domains of disks"));
    let taken =
        "[service.dd-standby]\n[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\n";
    // Whatever the settings are: they may be others tomorrow.
    for name in ["dd-standby", "dd-upgrade", "dd-remains"] {
        for settings in ["", "standby = 1\n", "snapshot = true\n"] {
            let taken = format!("{}{settings}", taken.replace("dd-standby", name));
            assert!(said(&taken).contains(&format!("`{name}`")), "{taken}");
        }
    }
    let another = taken.replace("[service.dd-standby]", "[service.lab]\ndriver-domain = \"dd-standby\"");
    assert!(said(&another).contains("`dd-standby`"));
    assert!(Config::parse(&taken.replace("[service.net.supervise]\nconfig = \"/d\"\n", "")).is_ok());
    let both = taken.replace("[service.dd-standby]\n", "") + "standby = 1\nsnapshot = true\n";
    assert!(Config::parse(&both).is_ok());
    assert!(Config::parse(&format!("{both}twin = true\n")).is_ok());
    let unknown = said("[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/d\"\ncrash = 1\n");
    assert!(unknown.contains("`crash`") && unknown.contains("`crashes`"), "{unknown}");
}

#[test]
fn a_driver_domain_that_could_not_be_started_is_an_error() {
    let text = "[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/nowhere/dd.cfg\"\n";
    let said = format!("{:#}", Config::parse(text).unwrap().without_troubles().unwrap_err());
    assert!(said.contains("[service.net.supervise]") && said.contains("/nowhere/dd.cfg"), "{said}");
    // The daemon's directory is not that of who looks whether the configuration is right.
    let relative = text.replace("/nowhere/dd.cfg", "Cargo.toml");
    let said = format!("{:#}", Config::parse(&relative).unwrap().without_troubles().unwrap_err());
    assert!(said.contains("`Cargo.toml` is no whole path"), "{said}");
}

#[test]
fn a_configuration_whose_kernel_is_gone_is_refused() {
    let directory = Directory::new("kernel");
    let [kernel, config] = ["vmlinuz", "dd.cfg"].map(|name| directory.0.join(name).display().to_string());
    let text = format!("name = 'dd'\npci = ['00:03.0']\nkernel = '{kernel}'\n");
    directory.write("dd.cfg", &text);
    let service = |name: &str, lines: &str| {
        format!("[service.{name}]\ndriver-domain = \"{name}-dd\"\n[service.{name}.supervise]\n{lines}\n")
    };
    let own = service("own", &format!("device = \"00:04.0\"\nkernel = \"{kernel}\""));
    let both = service("net", &format!("config = \"{config}\"")).replace("net-dd", "dd") + &own;
    directory.write("vmlinuz", "a kernel");
    assert!(Config::parse(&both).unwrap().without_troubles().is_ok());
    std::fs::remove_file(&kernel).unwrap();
    let gone = Config::parse(&both).unwrap();
    assert!(gone.troubles().is_empty(), "what runs is looked after all the same");
    let said = format!("{:#}", gone.without_troubles().unwrap_err());
    for (service, place) in [("net", config.as_str()), ("own", "`kernel`")] {
        assert!(said.contains(&format!("[service.{service}.supervise]: {place}: ")), "{said}");
    }
    assert_eq!(said.matches(&kernel).count(), 2, "{said}");
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let service = |name: &str, driver: &str| {
        format!("[service.{name}]\ndriver-domain = \"{driver}\"\n[service.{name}.supervise]\nconfig = \"/nowhere/{name}.cfg\"\n")
    };
    let text = service("lab", "one") + &service("net", "two");
    let said = format!("{:#}", Config::parse(&text).unwrap().without_troubles().unwrap_err());
    assert!(said.contains("/nowhere/lab.cfg") && said.contains("/nowhere/net.cfg"), "{said}");
    let text = service("lab", "one") + &service("net", "one");
    let said = format!("{:#}", Config::parse(&text).unwrap().without_troubles().unwrap_err());
    assert_eq!(said.matches("looked after twice").count(), 1, "{said}");
}

#[test]
fn one_without_an_interface_at_its_service_is_warned_of() {
    let directory = Directory::new("interface");
    let service = |name: &str| format!("[service.{name}]\ndriver-domain = \"dd\"\n");
    let config = directory.0.join("dd.cfg").display().to_string();
    let text = service("lab") + &service("net") + &format!("[service.net.supervise]\nconfig = \"{config}\"\n");
    let warnings = |vif: &str| {
        directory.write("dd.cfg", &format!("name = 'dd'\npci = ['00:03.0']\n{vif}\n"));
        let config = Config::parse(&text).unwrap().without_troubles().unwrap();
        config.warnings()
    };
    assert!(warnings("vif = ['backend=net', 'mac=00:16:3e:00:00:01, backend=lab']").is_empty());
    let said = warnings("vif = ['backend=old', 'bridge=net', 'backend=lab']");
    let [said] = said.as_slice() else { panic!("{said:?}") };
    assert!(said.starts_with("[service.net.supervise]: ") && said.contains("at `net`"), "{said}");
    assert!(said.contains(&config) && said.contains("`vif = ['backend=net']`"), "{said}");
    assert_eq!(warnings("").len(), 2, "it is the way out of both");
    // One of disks has none, and one that is described where it is named gets its own.
    let disk = text.replace("[service.net]\n", "[service.net]\nkind = \"disk\"\n").replace(&service("lab"), "");
    assert!(Config::parse(&disk).unwrap().warnings().is_empty());
    let own = text.replace(&format!("config = \"{config}\""), "device = \"network\"\nkernel = \"/k\"");
    assert!(Config::parse(&own).unwrap().warnings().is_empty());
}

#[test]
fn what_one_service_lacks_is_no_trouble_of_the_others() {
    let text =
        "[service.lab]\n[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\nconfig = \"/nowhere/dd.cfg\"\n";
    let path = std::env::temp_dir().join(format!("tandemd-config-{}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    // The daemon starts with it.
    let config = Config::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(config.troubles().into_keys().collect::<Vec<_>>(), ["net"]);
}

#[test]
fn one_driver_domain_is_looked_after_for_one_service() {
    let dir = std::env::temp_dir().join(format!("tandemd-twice-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // Each is right by itself, and they have no device in common.
    for (file, device) in [("one.cfg", "03"), ("two.cfg", "04")] {
        std::fs::write(dir.join(file), format!("name = \"dd\"\npci = [\"00:{device}.0\"]\n")).unwrap();
    }
    let service = |name: &str, driver: &str, file: &str| {
        let config = dir.join(file);
        format!(
            "[service.{name}]\ndriver-domain = \"{driver}\"\n[service.{name}.supervise]\nconfig = \"{}\"\n",
            config.display()
        )
    };
    let troubles = |text: String| Config::parse(&text).unwrap().troubles();
    let both = troubles(service("lab", "dd", "one.cfg") + &service("net", "dd", "two.cfg"));
    assert_eq!(both.keys().collect::<Vec<_>>(), ["lab", "net"], "{both:?}");
    assert!(both["lab"].contains("`dd` is to be looked after twice") && both["lab"] == both["net"], "{both:?}");
    // The other one of them only has its way out by it.
    let one = troubles(service("lab", "dd", "one.cfg") + "[service.net]\ndriver-domain = \"dd\"\n");
    assert!(one.is_empty(), "{one:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn several_services_may_have_their_ways_out_by_one_driver_domain() {
    let service = |name: &str, driver: &str| format!("[service.{name}]\ndriver-domain = \"{driver}\"\n");
    let disk = service("disk", "dd") + "kind = \"disk\"\n";
    let config = Config::parse(&(service("far", "dd") + &service("net", "dd") + &service("lab", "x") + &disk));
    let nets = config.unwrap().nets_of("dd");
    assert_eq!(nets.iter().map(String::as_str).collect::<Vec<_>>(), ["far", "net"]);
}

#[test]
fn a_device_belongs_to_one_driver_domain() {
    let claim = |device: &str, service: &str| (device.to_string(), service.to_string());
    let (one, two) = ("0000:00:03.0", "0000:00:04.0");
    assert!(claimed_twice(&[claim(one, "lab"), claim(two, "net")]).is_empty());
    let troubles = claimed_twice(&[claim(one, "lab"), claim(two, "net"), claim(two, "far"), claim(one, "lab2")]);
    assert_eq!(troubles.keys().collect::<Vec<_>>(), ["far", "lab", "lab2", "net"]);
    let said = &troubles["lab"];
    assert!(said.contains(one) && said.contains("`lab`") && said.contains("`lab2`"), "{said}");
}
