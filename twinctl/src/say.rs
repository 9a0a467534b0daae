//! What there is, in lines for people.

use control::told::{Counts, Disk, LookedAfter, Service, State, Traffic, Twin};
use control::Told;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Who carries packets, and why if that is not what was asked for.
pub fn status(told: &Told) -> String {
    let mut out = String::new();
    match told {
        Told::Tandemd { services } => services.iter().for_each(|service| service_status(&mut out, service)),
        Told::Twind { twins } if twins.is_empty() => out.push_str("no interface has a twin\n"),
        Told::Twind { twins } => twins.iter().for_each(|twin| twin_status(&mut out, twin, "")),
    }
    out
}

fn service_status(out: &mut String, service: &Service) {
    let name = &service.name;
    let _ = match (service.mode, &service.driver_domain) {
        (_, Some(driver)) if service.is_of_disks => writeln!(out, "{name}: disks, of {driver}"),
        (Some(mode), Some(driver)) => writeln!(out, "{name}: {mode}, by {driver}"),
        (None, Some(driver)) => writeln!(out, "{name}: no way out; {driver} is to be it"),
        (_, None) => writeln!(out, "{name}: no way out; the configuration names no driver domain"),
    };
    if let Some(told) = &service.looked_after {
        let LookedAfter { counts, recoveries, devices, image, upgrade, refused, .. } = told;
        let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        let _ = writeln!(out, "  looked after: {}; {}", state(told), counts.join(", "));
        for given in devices {
            let _ = writeln!(out, "  has {}, as `{}`", given.device, given.rule);
        }
        let lines = image.lines();
        if !lines.is_empty() {
            let _ = writeln!(out, "  upgraded to {}", lines.join(", "));
        }
        if let Some(upgrade) = upgrade {
            let _ = writeln!(out, "  upgrade: {upgrade}");
        } else if let Some(why) = refused {
            let _ = writeln!(out, "  the last upgrade was refused: {why}");
        }
        if let Some(last) = recoveries.last() {
            let _ = writeln!(out, "  last {last}");
        }
    }
    if let Some(twin) = &service.twin {
        twin_status(out, twin, "  ");
    }
    if let Some(error) = service.twind_error.as_ref() {
        let _ = writeln!(out, "  twin: {error}");
    }
    for vif in &service.vifs {
        let _ = writeln!(out, "  {} vif {}: {}, {}", vif.guest, vif.number, vif.address, vif.state);
    }
    for disk in &service.disks {
        let _ = writeln!(out, "  {} disk {}: {}", disk.guest, disk.number, disk.state);
    }
}

/// What a driver domain does that is looked after, and what there is for its next failure.
pub fn state(told: &LookedAfter) -> String {
    let LookedAfter { state, why, standby, snapshot, .. } = told;
    let why = why.as_ref().map_or(String::new(), |why| format!(": {why}"));
    let others = told.waits_for.as_ref().map_or(String::new(), |what| format!("; {what}"));
    let waits = if *standby == Some(true) { "; another one waits" } else { "" };
    let noted = match snapshot {
        Some(true) => "; it can be rolled back",
        Some(false) if state == "up" => "; it cannot be rolled back",
        _ => "",
    };
    let age = told.age_s.map_or(String::new(), |age| format!("; of use for {age} s"));
    let left = told.available_kib.map_or(String::new(), |kib| format!("; {kib} KiB of memory left"));
    let given_up = if told.twin_given_up { "; its twin was aborted too often, and is not loaded again" } else { "" };
    let alone = told.hindrance.as_ref().map_or(String::new(), |why| format!("; no other one could be created: {why}"));
    format!("{state}{why}{others}{waits}{noted}{age}{left}{given_up}{alone}")
}

fn twin_status(out: &mut String, twin: &Twin, indent: &str) {
    let Twin { interface, driver, mode, wanted, functions, lent, .. } = twin;
    let _ = write!(out, "{indent}{interface} ({driver}): {mode}");
    let _ = match (twin.state, twin.number) {
        (State::Absent, _) | (_, None) => write!(out, ", no twin is loaded"),
        (_, Some(number)) => write!(out, ", twin {number} of {functions} functions, {lent} buffers lent"),
    };
    out.push('\n');
    if mode != wanted {
        let why = twin.why.as_deref().unwrap_or("it comes");
        let _ = writeln!(out, "{indent}  {wanted} was asked for: {why}");
    }
    if let Some(aborted) = &twin.aborted {
        let (reason, at) = (&aborted.reason, &aborted.at);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // It is what the driver domain says, any number.
        let ago = now.saturating_sub(aborted.time);
        let _ = writeln!(out, "{indent}  aborted {ago} s ago at {at}: {reason} ({})", aborted.detail);
    }
}

/// What was counted, a line for each count.
pub fn stats(told: &Told) -> String {
    let mut out = String::new();
    match told {
        Told::Tandemd { services } => {
            for service in services {
                let name = &service.name;
                if let Some(way) = &service.way_out {
                    traffic(&mut out, &format!("{name} outside"), &way.sent, &way.received);
                }
                if let Some(of) = &service.counts {
                    counts(&mut out, &format!("{name} twin"), of);
                }
                upcalls(&mut out, &format!("{name} upcall"), service.twin.as_ref());
                for vif in &service.vifs {
                    traffic(&mut out, &format!("{name} {}/{}", vif.guest, vif.number), &vif.sent, &vif.received);
                }
                service.disks.iter().for_each(|disk| requests(&mut out, name, disk));
            }
        }
        Told::Twind { twins } => {
            for twin in twins {
                let name = &twin.interface;
                if let Some(of) = &twin.counts {
                    counts(&mut out, &format!("{name} twin"), of);
                }
                upcalls(&mut out, &format!("{name} upcall"), Some(twin));
            }
        }
    }
    out
}

fn traffic(out: &mut String, what: &str, sent: &Traffic, received: &Traffic) {
    for (way, of) in [("sent", sent), ("received", received)] {
        let _ = writeln!(out, "{what} {way}: {} packets, {} bytes, {} lost", of.packets, of.bytes, of.lost);
    }
}

fn requests(out: &mut String, service: &str, disk: &Disk) {
    let _ = writeln!(
        out,
        "{service} {}/{}: {} reads, {} bytes; {} writes, {} bytes; {} flushes, {} discards, {} errors, {} repeated, {} merged, {} wait",
        disk.guest,
        disk.number,
        disk.reads,
        disk.read_bytes,
        disk.writes,
        disk.written_bytes,
        disk.flushes,
        disk.discards,
        disk.errors,
        disk.repeated,
        disk.merged,
        disk.waiting
    );
}

fn counts(out: &mut String, what: &str, of: &Counts) {
    let words = [
        ("turns", of.turns),
        ("cycles", of.cycles),
        ("packets sent", of.packets),
        ("interrupt handlers", of.handlers),
        ("polls", of.polls),
        ("upcalls", of.upcalls),
        ("waits for a lock", of.lock_waits),
        ("calls by its domain", of.calls),
        ("aborts", of.aborts),
    ];
    for (word, count) in words {
        let _ = writeln!(out, "{what}: {count} {word}");
    }
}

fn upcalls(out: &mut String, what: &str, twin: Option<&Twin>) {
    for upcall in twin.map(|twin| twin.upcalls.as_slice()).unwrap_or_default() {
        let _ = writeln!(out, "{what} {}: {}", upcall.function, upcall.count);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use control::told::{Aborted, GivenDevice, Upcall, Vif, WayOut};
    use control::Mode;

    /// A twin that was aborted, and one that works.
    pub fn twin() -> Twin {
        Twin {
            interface: "eth0".into(),
            vif: 0,
            driver: "e1000".into(),
            wanted: Mode::TwinMirror,
            mode: Mode::Vm,
            state: State::Absent,
            why: Some("the twin was aborted".into()),
            number: None,
            loads: 1,
            aborts: 1,
            functions: 0,
            lent: 0,
            counts: None,
            upcalls: vec![Upcall { function: "netif_carrier_ok".into(), count: 4 }],
            aborted: Some(Aborted {
                reason: "it accessed memory that it may not".into(),
                at: "e1000_xmit_frame+0x1b".into(),
                detail: "0x10".into(),
                time: 5,
            }),
        }
    }

    /// A service with everything.
    pub fn service() -> Service {
        let counts = Counts { packets: 100, cycles: 50_000, turns: 25, polls: 50, handlers: 10, ..Counts::default() };
        let sent = Traffic { packets: 1000, bytes: 1_000_000, lost: 1 };
        Service {
            name: "net".into(),
            driver_domain: Some("dd".into()),
            mode: Some(Mode::TwinMirror),
            way_out: Some(WayOut { sent, waiting: 3, ..WayOut::default() }),
            counts: Some(counts),
            twin: Some(Twin {
                mode: Mode::TwinMirror,
                state: State::Attached,
                number: Some(0),
                aborted: None,
                ..twin()
            }),
            vifs: vec![Vif { guest: "u1".into(), state: "connected".into(), sent, ..Vif::default() }],
            ..Service::default()
        }
    }

    #[test]
    fn an_abort_is_told_with_its_place() {
        let said = status(&Told::Twind { twins: vec![twin()] });
        assert!(said.starts_with("eth0 (e1000): vm, no twin is loaded\n"), "{said}");
        assert!(said.contains("twin-mirror was asked for: the twin was aborted"), "{said}");
        assert!(said.contains("at e1000_xmit_frame+0x1b: it accessed memory that it may not (0x10)"), "{said}");
        assert_eq!(status(&Told::Twind { twins: vec![] }), "no interface has a twin\n");
    }

    #[test]
    fn whenever_a_driver_domain_says_that_it_was_an_abort_is_told() {
        for time in [0, u64::MAX, 1 << 63, i64::MAX.unsigned_abs()] {
            let mut twin = twin();
            twin.aborted.iter_mut().for_each(|aborted| aborted.time = time);
            let said = status(&Told::Twind { twins: vec![twin] });
            assert!(said.contains(" s ago at e1000_xmit_frame+0x1b"), "{said}");
        }
    }

    #[test]
    fn what_a_driver_domain_was_given_is_told_with_what_was_asked_for() {
        let given = |device: &str, rule: &str| GivenDevice { device: device.into(), rule: rule.into() };
        let devices = vec![given("0000:03:00.0", "network"), given("0000:04:00.0", "8086:0a54")];
        let told = LookedAfter { state: "up".into(), devices, ..LookedAfter::default() };
        let said = status(&Told::Tandemd { services: vec![Service { looked_after: Some(told), ..service() }] });
        let lines = "  has 0000:03:00.0, as `network`\n  has 0000:04:00.0, as `8086:0a54`\n";
        assert!(said.contains(&format!("  looked after: up; \n{lines}")), "{said}");
    }

    #[test]
    fn what_a_driver_domains_toolstack_waits_for_is_told() {
        let waits_for = Some("xl waits for its lock, which process 7 has (`xl restore /u1`)".to_string());
        let told = LookedAfter { state: "starting".into(), waits_for, ..LookedAfter::default() };
        assert_eq!(state(&told), "starting; xl waits for its lock, which process 7 has (`xl restore /u1`)");
    }

    #[test]
    fn that_nobody_could_follow_is_told() {
        let hindrance = Some("its kernel /boot/k is no file any more".to_string());
        let told = LookedAfter { state: "up".into(), hindrance, ..LookedAfter::default() };
        assert_eq!(state(&told), "up; no other one could be created: its kernel /boot/k is no file any more");
    }

    #[test]
    fn a_service_is_told_with_its_guests_and_counts() {
        let told = Told::Tandemd { services: vec![service()] };
        let said = status(&told);
        assert!(said.starts_with("net: twin-mirror, by dd\n  eth0 (e1000): twin-mirror, twin 0"), "{said}");
        assert!(said.contains("  u1 vif 0: "), "{said}");
        let said = stats(&told);
        assert!(said.contains("net outside sent: 1000 packets, 1000000 bytes, 1 lost"), "{said}");
        assert!(said.contains("net twin: 50000 cycles") && said.contains("net upcall netif_carrier_ok: 4"), "{said}");
        let disk = Disk { guest: "u1".into(), number: 51712, state: "connected".into(), writes: 7, ..Disk::default() };
        let (name, driver_domain) = ("disk".into(), Some("dd".into()));
        let disks = Service {
            name,
            driver_domain,
            is_of_disks: true,
            disks: vec![disk],
            looked_after: None,
            ..Service::default()
        };
        let told = Told::Tandemd { services: vec![disks] };
        assert_eq!(status(&told), "disk: disks, of dd\n  u1 disk 51712: connected\n");
        assert!(stats(&told).contains("disk u1/51712: 0 reads, 0 bytes; 7 writes, "), "{}", stats(&told));
        let nobody = Service { name: "lab".into(), ..Service::default() };
        assert!(status(&Told::Tandemd { services: vec![nobody] }).contains("names no driver domain"));
    }
}
