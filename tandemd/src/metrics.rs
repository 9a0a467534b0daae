//! What was counted, in Prometheus' text format (version 0.0.4), by HTTP at a Unix socket, and at an address if the
//! configuration names one. Who connects and says nothing gets the text alone.

use crate::config::Config;
use crate::control;
use crate::hypercall::Hypervisor;
use crate::store::Client;
use crate::supervisor::CAUSES;
use ::control::socket;
use ::control::told::{Counts, Disk, LookedAfter, Service, Traffic};
use ::control::Mode;
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The socket.
pub const SOCKET: &str = "/run/tandem/metrics.sock";
/// A request comes within this time, or none comes.
const PATIENCE: Duration = Duration::from_secs(1);
const A_MOMENT: Duration = Duration::from_millis(100);
/// So often it is tried to listen at an address that cannot be had.
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// A request's pieces at most, of a KiB or less: nobody keeps others waiting for long.
const MAX_PIECES: usize = 8;

/// Serves the socket, and the address if there is one, from now on. Errors: in words.
pub fn begin(config: &Arc<Config>) -> Result<()> {
    let of = Arc::clone(config);
    socket::each(socket::listen(Path::new(SOCKET))?, drop, move |stream, _| {
        let _ = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        let _ = answer(stream, || now(&of));
    });
    if let Some(address) = config.metrics.as_ref().map(|metrics| metrics.address) {
        let of = Arc::clone(config);
        // One at a time: a scraper asks a few times a minute.
        std::thread::spawn(move || {
            for stream in listening(address, BIND_AGAIN).incoming() {
                let Ok(stream) = stream else {
                    // No more files: others go.
                    std::thread::sleep(A_MOMENT);
                    continue;
                };
                let _ = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                let _ = answer(stream, || now(&of));
            }
        });
    }
    Ok(())
}

/// At this address, as soon as that can be: an interface may get it later, and another program may leave it. Guests
/// need the rest of us meanwhile.
fn listening(address: SocketAddr, again: Duration) -> TcpListener {
    let mut is_told = false;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => {
                if is_told {
                    eprintln!("tandemd: metrics are at {address} now");
                }
                return listener;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    eprintln!("tandemd: metrics are not at {address}: {error}; that is tried again");
                }
                std::thread::sleep(again);
            }
        }
    }
}

fn now(config: &Config) -> Result<String> {
    let (mut store, mut hypervisor) = (Client::open()?, Hypervisor::open()?);
    Ok(text(&control::services(config, None, &mut store, &mut hypervisor)?))
}

fn answer<S: Read + Write>(mut stream: S, now: impl FnOnce() -> Result<String>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    for _ in 0..MAX_PIECES {
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => request.extend_from_slice(&bytes[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (status, kind, body) = match (words.next(), words.next().map(|path| path.split('?').next())) {
        (Some(""), _) => return stream.write_all(now().unwrap_or_default().as_bytes()),
        (Some("GET"), Some(Some("/metrics" | "/"))) => match now() {
            Ok(text) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text),
            Err(error) => ("500 Internal Server Error", "text/plain", format!("{error:#}\n")),
        },
        (Some("GET"), _) => ("404 Not Found", "text/plain", "there is /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "GET /metrics\n".into()),
    };
    let length = body.len();
    write!(stream, "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// A sample's labels, as they are written, and its value.
type Sample = (String, u64);

/// The text.
pub fn text(services: &[Service]) -> String {
    let mut out = String::new();
    let each = |value: &dyn Fn(&Service) -> Vec<Sample>| services.iter().flat_map(value).collect::<Vec<Sample>>();
    // Disks have neither a way out nor a twin.
    let mode = |of: &Service| {
        let sample =
            |mode: Mode| (labels(&[("service", &of.name), ("mode", mode.name())]), u64::from(of.mode == Some(mode)));
        if of.is_of_disks {
            Vec::new()
        } else {
            Mode::ALL.map(sample).to_vec()
        }
    };
    family(&mut out, "tandem_way_out_mode", "gauge", "1 for who carries packets to the outside.", &each(&mode));
    let waiting = |of: &Service| of.way_out.map(|way| (service(of), way.waiting.into())).into_iter().collect();
    let help = "Packets that wait for the way out.";
    family(&mut out, "tandem_way_out_waiting_packets", "gauge", help, &each(&waiting));
    for (way, help) in [("transmit", "left by the way out"), ("receive", "came by the way out")] {
        let of = |of: &Service| {
            let traffic = of.way_out.map(|all| if way == "transmit" { all.sent } else { all.received });
            traffic.map(|traffic| (service(of), traffic)).into_iter().collect::<Vec<_>>()
        };
        directions(&mut out, &format!("tandem_way_out_{way}"), help, &services.iter().flat_map(of).collect::<Vec<_>>());
    }
    for (way, help) in [("transmit", "the guest has sent"), ("receive", "the guest has received")] {
        let of = |of: &Service| -> Vec<(String, Traffic)> {
            let sample = |vif: &::control::told::Vif| {
                let number = vif.number.to_string();
                let labels = labels(&[("service", &of.name), ("guest", &vif.guest), ("vif", &number)]);
                (labels, if way == "transmit" { vif.sent } else { vif.received })
            };
            of.vifs.iter().map(sample).collect()
        };
        directions(&mut out, &format!("tandem_vif_{way}"), help, &services.iter().flat_map(of).collect::<Vec<_>>());
    }
    for (name, help, value) in DISK_COUNTS {
        let sample = |of: &Service, disk: &Disk| {
            let number = disk.number.to_string();
            (labels(&[("service", &of.name), ("guest", &disk.guest), ("disk", &number)]), value(disk))
        };
        let of = |of: &Service| of.disks.iter().map(|disk| sample(of, disk)).collect();
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        family(&mut out, name, kind, help, &each(&of));
    }
    for (name, help, value) in COUNTS {
        let of = |of: &Service| of.counts.iter().map(|counts| (service(of), value(counts))).collect();
        family(&mut out, name, "counter", help, &each(&of));
    }
    looked_after(&mut out, services);
    let up = |of: &Service| {
        let is_up = u64::from(of.twin.is_some());
        of.driver_domain.iter().filter(|_| !of.is_of_disks).map(|_| (service(of), is_up)).collect()
    };
    family(&mut out, "tandem_twin_known", "gauge", "1 if the driver domain's twind tells of the twin.", &each(&up));
    let aborts = |of: &Service| of.twin.iter().map(|twin| (service(of), twin.aborts)).collect();
    family(&mut out, "tandem_twin_aborts_total", "counter", "Twins that were aborted, as twind tells.", &each(&aborts));
    let calls = |of: &Service| {
        let upcalls = of.twin.iter().flat_map(|twin| &twin.upcalls);
        upcalls.map(|call| (labels(&[("service", &of.name), ("function", &call.function)]), call.count)).collect()
    };
    let help = "Functions of the driver domain's kernel that were called for the twin, as twind tells.";
    family(&mut out, "tandem_twin_functions_called_total", "counter", help, &each(&calls));
    out
}

/// What a driver domain that is looked after may be doing.
const STATES: [&str; 7] = ["up", "starting", "going", "waiting", "off", "parked", "unknown"];

/// Driver domains that are started again when they fail.
fn looked_after(out: &mut String, services: &[Service]) {
    let each = |value: &dyn Fn(&Service, &LookedAfter) -> Vec<Sample>| {
        let of = |of: &Service| of.looked_after.as_ref().map_or(Vec::new(), |told| value(of, told));
        services.iter().flat_map(of).collect::<Vec<Sample>>()
    };
    let state = |of: &Service, told: &LookedAfter| {
        let sample = |state| (labels(&[("service", &of.name), ("state", state)]), u64::from(told.state == state));
        STATES.map(sample).to_vec()
    };
    let help = "1 for what the driver domain does that is looked after.";
    family(out, "tandem_driver_domain_state", "gauge", help, &each(&state));
    let ends = |of: &Service, told: &LookedAfter| {
        // A counter that comes with the first end would hide that one from who asks by how much it has grown.
        let mut all: BTreeMap<&str, u64> = CAUSES.map(|cause| (cause, 0)).into();
        all.extend(told.ends());
        all.into_iter().map(|(cause, count)| (labels(&[("service", &of.name), ("cause", cause)]), count)).collect()
    };
    family(out, "tandem_driver_domain_ends_total", "counter", "Instances that had to go, by cause.", &each(&ends));
    for (name, what, help) in [
        (
            "recoveries",
            LookedAfter::RECOVERED,
            "How often it has become the way out, or got the disks, at its first start too.",
        ),
        ("rolled_back", LookedAfter::ROLLED_BACK, "How often it was rolled back to what it was when it had booted."),
        (
            "twins_loaded_again",
            LookedAfter::TWIN_LOADED_AGAIN,
            "How often its driver's twin was loaded again after an abort.",
        ),
        (
            "twins_given_up",
            LookedAfter::TWIN_GIVEN_UP,
            "How often its driver's twin was aborted too often, and was not loaded again.",
        ),
        ("recoveries_without_twin", LookedAfter::WITHOUT_TWIN, "How often its twin has not come with it."),
    ] {
        let count = |of: &Service, told: &LookedAfter| vec![(service(of), told.count(what))];
        family(out, &format!("tandem_driver_domain_{name}_total"), "counter", help, &each(&count));
    }
    let waits =
        |of: &Service, told: &LookedAfter| told.standby.map(|is| (service(of), is.into())).into_iter().collect();
    let help = "1 if another one has booted and waits to take its place.";
    family(out, "tandem_driver_domain_standby_ready", "gauge", help, &each(&waits));
    let noted =
        |of: &Service, told: &LookedAfter| told.snapshot.map(|is| (service(of), is.into())).into_iter().collect();
    let help = "1 if it can be rolled back to what it was when it had booted.";
    family(out, "tandem_driver_domain_snapshot_ready", "gauge", help, &each(&noted));
    let replaceable = |of: &Service, told: &LookedAfter| vec![(service(of), told.hindrance.is_none().into())];
    let help = "0 if no other one could be created, since a file is gone, and none is there that could take its place.";
    family(out, "tandem_driver_domain_replaceable", "gauge", help, &each(&replaceable));
    let given_up = |of: &Service, told: &LookedAfter| vec![(service(of), told.twin_given_up.into())];
    let help = "1 if its driver's twin was aborted too often, and is not loaded again.";
    family(out, "tandem_driver_domain_twin_given_up", "gauge", help, &each(&given_up));
    let age = |of: &Service, told: &LookedAfter| told.age_s.map(|age| (service(of), age)).into_iter().collect();
    let help = "Seconds for which the instance that is up has been of use.";
    family(out, "tandem_driver_domain_age_seconds", "gauge", help, &each(&age));
    let left = |of: &Service, told: &LookedAfter| {
        told.available_kib.map(|kib| (service(of), kib.saturating_mul(1024))).into_iter().collect()
    };
    let help = "Memory that it says that it has left.";
    family(out, "tandem_driver_domain_available_bytes", "gauge", help, &each(&left));
    let outage = |of: &Service, told: &LookedAfter| vec![(service(of), told.outage_ms)];
    let help = "Milliseconds in which guests had no way out or no disks, from what was wrong to the first packet in or the first answer, or until it was parked.";
    family(out, "tandem_driver_domain_outage_milliseconds_total", "counter", help, &each(&outage));
}

/// Counts of a twin: name, what it is, and where.
type Count = (&'static str, &'static str, fn(&Counts) -> u64);

const COUNTS: [Count; 7] = [
    ("tandem_twin_turns_total", "How often a CPU went to run the twin.", |of| of.turns),
    ("tandem_twin_cycles_total", "Cycles of the time-stamp counter that this took.", |of| of.cycles),
    ("tandem_twin_transmit_packets_total", "Packets handed to the driver's transmit routine.", |of| of.packets),
    ("tandem_twin_interrupts_total", "Interrupt handlers of the driver that ran.", |of| of.handlers),
    ("tandem_twin_polls_total", "Polls of the driver that ran.", |of| of.polls),
    ("tandem_twin_upcalls_total", "Functions of the driver domain's kernel that were waited for.", |of| of.upcalls),
    ("tandem_twin_lock_waits_total", "Locks of the driver domain's that were waited for.", |of| of.lock_waits),
];

/// Counts of a disk.
type DiskCount = (&'static str, &'static str, fn(&Disk) -> u64);

const DISK_COUNTS: [DiskCount; 16] = [
    ("tandem_disk_reads_total", "Reads that were answered without an error.", |of| of.reads),
    ("tandem_disk_writes_total", "Writes that were answered without an error.", |of| of.writes),
    ("tandem_disk_flushes_total", "Flushes and barriers that were answered without an error.", |of| of.flushes),
    ("tandem_disk_discards_total", "Discards that were answered without an error.", |of| of.discards),
    ("tandem_disk_read_bytes_total", "Bytes that the guest has read.", |of| of.read_bytes),
    ("tandem_disk_written_bytes_total", "Bytes that the guest has written.", |of| of.written_bytes),
    ("tandem_disk_errors_total", "Requests that were answered with an error.", |of| of.errors),
    ("tandem_disk_repeated_requests_total", "Requests that another back end was asked for again.", |of| of.repeated),
    ("tandem_disk_passed_on_requests_total", "What back ends were asked for.", |of| of.passed_on),
    ("tandem_disk_merged_requests_total", "Requests that went together with a neighbour.", |of| of.merged),
    ("tandem_disk_bad_answers_total", "Answers of back ends that nobody had waited for.", |of| of.bad_answers),
    ("tandem_disk_bad_rings_total", "Back ends that have written into their ring what cannot be.", |of| {
        of.bad_rings.into()
    }),
    (
        "tandem_disk_empty_reads_total",
        "Back ends that have said of a read that it is done, which has brought nothing.",
        |of| of.empty_reads,
    ),
    ("tandem_disk_waiting_requests", "Requests that wait for their answer.", |of| of.waiting.into()),
    (
        "tandem_disk_oldest_request_milliseconds",
        "For how long the oldest of them has waited, since there is this back end.",
        |of| of.oldest_ms,
    ),
    ("tandem_disk_overdue_request_milliseconds", "For how long one of them has looked lost.", |of| of.overdue_ms),
];

/// A family for packets, one for bytes, one for losses.
fn directions(out: &mut String, name: &str, help: &str, of: &[(String, Traffic)]) {
    type Kind = (&'static str, &'static str, fn(&Traffic) -> u64);
    let kinds: [Kind; 3] = [
        ("packets", "Packets that", |of| of.packets),
        ("bytes", "Bytes that", |of| of.bytes),
        ("lost_packets", "Packets lost of those that", |of| of.lost),
    ];
    for (kind, words, value) in kinds {
        let samples: Vec<Sample> = of.iter().map(|(labels, traffic)| (labels.clone(), value(traffic))).collect();
        family(out, &format!("{name}_{kind}_total"), "counter", &format!("{words} {help}."), &samples);
    }
}

fn family(out: &mut String, name: &str, kind: &str, help: &str, samples: &[Sample]) {
    if samples.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(out, "{name}{{{labels}}} {value}");
    }
}

fn service(of: &Service) -> String {
    labels(&[("service", &of.name)])
}

fn labels(of: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let one = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    of.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
