//! The text is read as Prometheus does.

use super::*;
use ::control::told::{State, Twin, Upcall, Vif, WayOut};
use std::collections::BTreeMap;
use std::io::Cursor;

/// Kinds of families, and values of samples by name and labels.
struct Scraped {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<(String, Vec<(String, String)>), f64>,
}

fn is_name(text: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

/// The format's grammar: each family has its help and its type before its samples, which follow each other, each once.
fn scrape(text: &str) -> Scraped {
    let mut scraped = Scraped { kinds: BTreeMap::new(), samples: BTreeMap::new() };
    let (mut helped, mut family) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').expect("words").0.into();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert!(is_name(name) && name == helped && ["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert_eq!(scraped.kinds.insert(name.into(), kind.into()), None, "{name} twice");
            family = name.into();
        } else {
            let (name, rest) = line.split_once('{').expect("labels");
            assert_eq!(name, family, "{line}");
            let (labels, value) = parse_labels(rest);
            let value: f64 = value.parse().expect("a number");
            assert_eq!(scraped.samples.insert((name.into(), labels), value), None, "{line} twice");
        }
    }
    scraped
}

/// What stands before the closing brace, unescaped, and what follows.
fn parse_labels(mut rest: &str) -> (Vec<(String, String)>, &str) {
    let mut labels = Vec::new();
    loop {
        let (name, quoted) = rest.split_once("=\"").expect("a label");
        assert!(is_name(name), "{name}");
        let (mut value, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next().expect("the end of the value") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect("what is escaped").1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.into(), value));
        rest = &quoted[end + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return (labels, rest.strip_prefix("} ").expect("the end")),
        }
    }
}

fn services() -> Vec<Service> {
    let sent = Traffic { packets: 7, bytes: 700, lost: 1 };
    let counts = Counts { cycles: 1 << 60, turns: 3, packets: 5, ..Counts::default() };
    let twin = Twin {
        interface: "eth0".into(),
        vif: 0,
        driver: "e1000".into(),
        wanted: Mode::TwinMirror,
        mode: Mode::TwinMirror,
        state: State::Attached,
        why: None,
        number: Some(0),
        loads: 2,
        aborts: 1,
        functions: 158,
        lent: 1536,
        counts: None,
        upcalls: vec![Upcall { function: "odd\"name\\".into(), count: 4 }],
        aborted: None,
    };
    let net = Service {
        name: "net".into(),
        driver_domain: Some("dd".into()),
        mode: Some(Mode::TwinMirror),
        way_out: Some(WayOut { sent, waiting: 3, ..WayOut::default() }),
        counts: Some(counts),
        twin: Some(twin),
        looked_after: Some(LookedAfter {
            state: "parked".into(),
            twin_given_up: true,
            hindrance: Some("its kernel is gone".into()),
            counts: [("wedged", 2), ("recovered", 3), ("twin-given-up", 2)]
                .map(|(what, count)| (what.into(), count))
                .into(),
            standby: Some(true),
            age_s: Some(77),
            available_kib: Some(40_000),
            outage_ms: 4100,
            ..LookedAfter::default()
        }),
        vifs: ["u1", "u2"].map(|guest| Vif { guest: guest.into(), sent, ..Vif::default() }).to_vec(),
        ..Service::default()
    };
    let disk = Disk {
        guest: "u1".into(),
        number: 51712,
        writes: 9,
        repeated: 2,
        waiting: 1,
        oldest_ms: 250,
        overdue_ms: 90,
        bad_rings: 1,
        empty_reads: 3,
        ..Disk::default()
    };
    let driver_domain = Some("dd-disk".into());
    let disks =
        Service { name: "disk".into(), driver_domain, is_of_disks: true, disks: vec![disk], ..Service::default() };
    vec![net, Service { name: "lab".into(), ..Service::default() }, disks]
}

#[test]
fn what_was_counted_can_be_scraped() {
    let scraped = scrape(&text(&services()));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        scraped.samples.get(&(name.into(), labels)).copied()
    };
    let net = [("service", "net")];
    assert_eq!(value("tandem_way_out_transmit_packets_total", &net), Some(7.0));
    assert_eq!(value("tandem_way_out_receive_packets_total", &net), Some(0.0));
    assert_eq!(value("tandem_way_out_waiting_packets", &net), Some(3.0));
    assert_eq!(value("tandem_way_out_mode", &[("service", "net"), ("mode", "twin-mirror")]), Some(1.0));
    assert_eq!(value("tandem_way_out_mode", &[("service", "lab"), ("mode", "vm")]), Some(0.0));
    let of_disk = |name: &str| value(name, &[("service", "disk")]);
    assert_eq!(value("tandem_way_out_mode", &[("service", "disk"), ("mode", "vm")]), None, "disks have no way out");
    assert_eq!((of_disk("tandem_twin_known"), value("tandem_twin_known", &net)), (None, Some(1.0)));
    let u2 = [("service", "net"), ("guest", "u2"), ("vif", "0")];
    assert_eq!(value("tandem_vif_transmit_lost_packets_total", &u2), Some(1.0));
    assert_eq!(value("tandem_twin_cycles_total", &net), Some((1_u64 << 60) as f64));
    assert_eq!(value("tandem_twin_aborts_total", &net), Some(1.0));
    let disk = [("service", "disk"), ("guest", "u1"), ("disk", "51712")];
    assert_eq!(value("tandem_disk_writes_total", &disk), Some(9.0));
    assert_eq!(value("tandem_disk_repeated_requests_total", &disk), Some(2.0));
    assert_eq!(value("tandem_disk_waiting_requests", &disk), Some(1.0));
    assert_eq!(value("tandem_disk_oldest_request_milliseconds", &disk), Some(250.0));
    assert_eq!(value("tandem_disk_overdue_request_milliseconds", &disk), Some(90.0));
    assert_eq!(value("tandem_disk_bad_rings_total", &disk), Some(1.0));
    assert_eq!(value("tandem_disk_empty_reads_total", &disk), Some(3.0));
    let odd = [("service", "net"), ("function", "odd\"name\\")];
    assert_eq!(value("tandem_twin_functions_called_total", &odd), Some(4.0));
    let state = |state: &str| value("tandem_driver_domain_state", &[("service", "net"), ("state", state)]);
    assert_eq!((state("parked"), state("up")), (Some(1.0), Some(0.0)));
    let ends = |cause: &str| value("tandem_driver_domain_ends_total", &[("service", "net"), ("cause", cause)]);
    assert_eq!((ends("wedged"), ends("recovered")), (Some(2.0), None));
    assert_eq!((ends("panicked"), ends("overdue")), (Some(0.0), Some(0.0)), "what grows was there before");
    assert_eq!(value("tandem_driver_domain_recoveries_total", &net), Some(3.0));
    assert_eq!(value("tandem_driver_domain_recoveries_without_twin_total", &net), Some(0.0));
    assert_eq!(value("tandem_driver_domain_standby_ready", &net), Some(1.0));
    assert_eq!(value("tandem_driver_domain_twin_given_up", &net), Some(1.0));
    assert_eq!(value("tandem_driver_domain_replaceable", &net), Some(0.0));
    assert_eq!(value("tandem_driver_domain_twins_given_up_total", &net), Some(2.0));
    assert_eq!(ends("twin-given-up"), None);
    assert_eq!(value("tandem_driver_domain_age_seconds", &net), Some(77.0));
    assert_eq!(value("tandem_driver_domain_available_bytes", &net), Some(40_960_000.0));
    assert_eq!(value("tandem_driver_domain_outage_milliseconds_total", &net), Some(4100.0));
    assert_eq!(value("tandem_driver_domain_recoveries_total", &[("service", "lab")]), None);
    assert_eq!(scraped.kinds["tandem_way_out_mode"], "gauge");
}

/// Somebody who says this; what he is told.
struct Caller {
    says: Cursor<Vec<u8>>,
    hears: Vec<u8>,
}

impl Read for Caller {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        self.says.read(to)
    }
}

impl Write for Caller {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.hears.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn told(says: &str) -> String {
    let mut caller = Caller { says: Cursor::new(says.into()), hears: Vec::new() };
    answer(&mut caller, || Ok("a 1\n".into())).unwrap();
    String::from_utf8(caller.hears).unwrap()
}

#[test]
fn a_scraper_is_answered_by_http_and_who_says_nothing_with_the_text() {
    let page = told("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(page.starts_with("HTTP/1.0 200 OK\r\n") && page.contains("version=0.0.4"), "{page}");
    assert!(page.contains("Content-Length: 4\r\n") && page.ends_with("\r\n\r\na 1\n"), "{page}");
    assert_eq!(told(""), "a 1\n");
    assert!(told("GET /secrets HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404 "));
    assert!(told("DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 405 "));
    assert!(told(&"x".repeat(100_000)).starts_with("HTTP/1.0 405 "));
    let failed = {
        let mut caller = Caller { says: Cursor::new(b"GET / HTTP/1.0\r\n\r\n".to_vec()), hears: Vec::new() };
        answer(&mut caller, || anyhow::bail!("no store")).unwrap();
        String::from_utf8(caller.hears).unwrap()
    };
    assert!(failed.starts_with("HTTP/1.0 500 ") && failed.ends_with("no store\n"), "{failed}");
}

#[test]
fn an_address_that_is_taken_is_listened_at_as_soon_as_it_is_free() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let (to, got) = std::sync::mpsc::channel();
    let waits = std::thread::spawn(move || to.send(listening(address, A_MOMENT / 10).local_addr().unwrap()).unwrap());
    assert!(got.recv_timeout(A_MOMENT).is_err(), "another program has it");
    drop(other);
    assert_eq!(got.recv().unwrap(), address);
    waits.join().unwrap();
}
