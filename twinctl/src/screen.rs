//! A screen of `top`: what happened between two looks.

use crate::say;
use control::told::{Counts, Disk, LookedAfter, Service, Traffic, Twin};
use control::Told;

/// The lines of a screen. `seconds` lie between both looks.
pub fn lines(before: &Told, after: &Told, seconds: f64) -> Vec<String> {
    match (before, after) {
        (Told::Tandemd { services: old }, Told::Tandemd { services: new }) => {
            let of = |service: &Service| {
                let old = old.iter().find(|one| one.name == service.name).unwrap_or(service);
                service_lines(old, service, seconds)
            };
            new.iter().flat_map(of).collect()
        }
        (Told::Twind { twins: old }, Told::Twind { twins: new }) => {
            let of = |twin: &Twin| {
                let old = old.iter().find(|one| one.interface == twin.interface).unwrap_or(twin);
                let mut out = vec![head(twin)];
                let packets = twin.counts.zip(old.counts).map_or(0, |(new, old)| since(old.packets, new.packets));
                out.extend(counts_line(old.counts.as_ref(), twin.counts.as_ref(), packets, seconds));
                out.extend(upcall_line(old, twin, seconds));
                out
            };
            new.iter().flat_map(of).collect()
        }
        _ => vec!["another daemon answers now".into()],
    }
}

/// What was counted since; from nothing, if the count began anew.
fn since(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

#[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
fn rate(old: u64, new: u64, seconds: f64) -> f64 {
    since(old, new) as f64 / seconds
}

fn head(twin: &Twin) -> String {
    let mut line = format!("{} ({}): {}", twin.interface, twin.driver, twin.mode);
    if twin.wanted != twin.mode {
        line += &format!(", {} was asked for", twin.wanted);
    }
    if let Some(aborted) = &twin.aborted {
        line += &format!(", {} aborts, the last at {}", twin.aborts, aborted.at);
    }
    line
}

fn service_lines(old: &Service, new: &Service, seconds: f64) -> Vec<String> {
    let mode = match new.mode {
        _ if new.is_of_disks => "disks".into(),
        Some(mode) => mode.to_string(),
        None => "no way out".into(),
    };
    let driver = new.driver_domain.as_ref().map_or(String::new(), |name| format!(", by {name}"));
    let mut out = vec![format!("{}: {mode}{driver}", new.name)];
    out.extend(new.looked_after.iter().flat_map(looked_after_lines));
    let ways = new.way_out.zip(new.way_out.map(|_| old.way_out.unwrap_or_default()));
    if let Some((way, before)) = ways {
        out.push(format!("  out  {}  {} wait", traffic(&before.sent, &way.sent, seconds), way.waiting));
        out.push(format!("  in   {}", traffic(&before.received, &way.received, seconds)));
    }
    let packets = ways.map_or(0, |(new, old)| {
        since(old.sent.packets, new.sent.packets) + since(old.received.packets, new.received.packets)
    });
    out.extend(counts_line(old.counts.as_ref(), new.counts.as_ref(), packets, seconds));
    if let Some(twin) = &new.twin {
        out.push(format!("  {}", head(twin)));
        out.extend(upcall_line(old.twin.as_ref().unwrap_or(twin), twin, seconds));
    }
    out.extend(new.twind_error.as_ref().map(|error| format!("  twin: {error}")));
    for vif in &new.vifs {
        let is_it = |one: &&control::told::Vif| (one.domain, one.number) == (vif.domain, vif.number);
        let before = old.vifs.iter().find(is_it).unwrap_or(vif);
        let name = format!("{}/{}", vif.guest, vif.number);
        out.push(format!("  {name:<16} sends    {}  {}", traffic(&before.sent, &vif.sent, seconds), vif.state));
        out.push(format!("  {:<16} receives {}", "", traffic(&before.received, &vif.received, seconds)));
    }
    for disk in &new.disks {
        let is_it = |one: &&Disk| (one.domain, one.number) == (disk.domain, disk.number);
        let before = old.disks.iter().find(is_it).unwrap_or(disk);
        let name = format!("{}/{}", disk.guest, disk.number);
        let reads = requests((before.reads, before.read_bytes), (disk.reads, disk.read_bytes), seconds);
        let writes = requests((before.writes, before.written_bytes), (disk.writes, disk.written_bytes), seconds);
        let others = rate(before.flushes + before.discards, disk.flushes + disk.discards, seconds);
        let errors = rate(before.errors, disk.errors, seconds);
        out.push(format!("  {name:<16} reads    {reads}  {}", disk.state));
        out.push(format!("  {:<16} writes   {writes}  {} wait", "", disk.waiting));
        out.push(format!("  {:<16} flushes and discards {others:.0}/s, errors {errors:.0}/s", ""));
    }
    out
}

/// What it does, how often it went and came back, and for how long guests were without it. These are since it is looked
/// after, not since the last look.
fn looked_after_lines(told: &LookedAfter) -> Vec<String> {
    let ended: u64 = told.ends().map(|(_, count)| count).sum();
    let causes: Vec<String> = told.ends().map(|(cause, count)| format!("{cause} {count}")).collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
    let recovered = told.count(LookedAfter::RECOVERED);
    let last = told.last_outage_ms.map_or(String::new(), |last| format!("the last {last} ms, "));
    let mut out = vec![
        format!("  looked after: {}", say::state(told)),
        format!("  restarts: {recovered} recovered, {ended} ended{causes}"),
        format!("  outages: {last}all {} ms", told.outage_ms),
    ];
    out.extend(told.recoveries.last().map(|line| format!("  last {line}")));
    out
}

/// Requests and bytes.
fn requests(old: (u64, u64), new: (u64, u64), seconds: f64) -> String {
    let megabytes = rate(old.1, new.1, seconds) / 1e6;
    format!("{:>9.0} requests/s {megabytes:>9.2} MB/s", rate(old.0, new.0, seconds))
}

fn traffic(old: &Traffic, new: &Traffic, seconds: f64) -> String {
    let megabits = rate(old.bytes, new.bytes, seconds) * 8.0 / 1e6;
    let (packets, lost) = (rate(old.packets, new.packets, seconds), rate(old.lost, new.lost, seconds));
    format!("{packets:>9.0} packets/s {megabits:>9.2} Mbit/s {lost:>7.0} lost/s")
}

fn counts_line(old: Option<&Counts>, new: Option<&Counts>, packets: u64, seconds: f64) -> Option<String> {
    let new = new?;
    let none = Counts::default();
    // Counts of another twin, loaded meanwhile, begin at nothing.
    let old = old.filter(|old| old.turns <= new.turns).unwrap_or(&none);
    let each = match since(old.cycles, new.cycles).checked_div(packets) {
        Some(each) => each.to_string(),
        None => "-".into(),
    };
    let per_second = |old, new| rate(old, new, seconds);
    Some(format!(
        "  twin {each:>9} cycles/packet {:>7.0} turns/s {:>7.0} interrupts/s {:>7.0} polls/s {:>5.0} upcalls/s {:>5.0} locks/s",
        per_second(old.turns, new.turns),
        per_second(old.handlers, new.handlers),
        per_second(old.polls, new.polls),
        per_second(old.upcalls, new.upcalls),
        per_second(old.lock_waits, new.lock_waits),
    ))
}

/// The functions of the kernel's that were called most.
fn upcall_line(old: &Twin, new: &Twin, seconds: f64) -> Option<String> {
    /// So many fit.
    const SHOWN: usize = 5;
    let before =
        |name: &str| old.upcalls.iter().find(|upcall| upcall.function == name).map_or(0, |upcall| upcall.count);
    let mut called: Vec<(f64, &str)> = new
        .upcalls
        .iter()
        .map(|upcall| (rate(before(&upcall.function), upcall.count, seconds), upcall.function.as_str()))
        .filter(|(count, _)| *count > 0.0)
        .collect();
    called.sort_by(|one, other| other.0.total_cmp(&one.0));
    let words: Vec<String> = called.iter().take(SHOWN).map(|(count, name)| format!("{name} {count:.0}/s")).collect();
    (!words.is_empty()).then(|| format!("  upcalls: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::say::tests::{service, twin};
    use control::told::Upcall;

    #[test]
    fn what_happened_is_shown_for_each_second_and_packet() {
        let old = service();
        let mut new = service();
        let way = new.way_out.as_mut().unwrap();
        (way.sent.packets, way.sent.bytes) = (1100, 1_100_000);
        let counts = new.counts.as_mut().unwrap();
        (counts.cycles, counts.turns) = (150_000, 45);
        new.twin.as_mut().unwrap().upcalls = vec![Upcall { function: "netif_carrier_ok".into(), count: 24 }];
        let of = |service| Told::Tandemd { services: vec![service] };
        let shown = lines(&of(old), &of(new), 2.0).join("\n");
        assert!(shown.starts_with("net: twin-mirror, by dd"), "{shown}");
        assert!(shown.contains(" 50 packets/s      0.40 Mbit/s       0 lost/s  3 wait"), "{shown}");
        assert!(shown.contains(" 1000 cycles/packet      10 turns/s"), "{shown}");
        assert!(shown.contains("upcalls: netif_carrier_ok 10/s"), "{shown}");
        assert!(shown.contains("u1/0 ") && shown.contains("receives"), "{shown}");
    }

    #[test]
    fn disks_are_shown_and_want_no_way_out() {
        let disk = Disk { guest: "u1".into(), number: 51712, state: "connected".into(), ..Disk::default() };
        let service = |disk| Service {
            name: "disk".into(),
            driver_domain: Some("dd".into()),
            is_of_disks: true,
            disks: vec![disk],
            ..Service::default()
        };
        let of = |disk| Told::Tandemd { services: vec![service(disk)] };
        let later = Disk {
            reads: 100,
            read_bytes: 4_000_000,
            writes: 20,
            written_bytes: 1_000_000,
            flushes: 6,
            waiting: 9,
            errors: 4,
            ..disk.clone()
        };
        assert_eq!(
            lines(&of(disk), &of(later), 2.0),
            [
                "disk: disks, by dd",
                "  u1/51712         reads           50 requests/s      2.00 MB/s  connected",
                "                   writes          10 requests/s      0.50 MB/s  9 wait",
                "                   flushes and discards 3/s, errors 2/s",
            ]
        );
    }

    #[test]
    fn restarts_and_outages_of_who_is_looked_after_are_shown() {
        let told = LookedAfter {
            state: "up".into(),
            counts: [("wedged", 1), ("panicked", 2), ("recovered", 4), ("rolled-back", 3), ("without-twin", 1)]
                .map(|(what, count)| (what.into(), count))
                .into(),
            standby: Some(true),
            snapshot: Some(true),
            outage_ms: 4100,
            last_outage_ms: Some(670),
            recoveries: vec![
                "started: interface 9000 ms".into(),
                "wedged: noticed 465 ms, first packet in 670 ms".into(),
            ],
            ..LookedAfter::default()
        };
        let of = |told: &LookedAfter| Service { looked_after: Some(told.clone()), ..service() };
        let all = |told: &LookedAfter| Told::Tandemd { services: vec![of(told)] };
        let shown = lines(&all(&told), &all(&told), 1.0);
        assert_eq!(
            shown[..6],
            [
                "net: twin-mirror, by dd",
                "  looked after: up; another one waits; it can be rolled back",
                "  restarts: 4 recovered, 3 ended (panicked 2, wedged 1)",
                "  outages: the last 670 ms, all 4100 ms",
                "  last wedged: noticed 465 ms, first packet in 670 ms",
                "  out          0 packets/s      0.00 Mbit/s       0 lost/s  3 wait",
            ]
        );
        let aging = LookedAfter { age_s: Some(77), available_kib: Some(4096), ..told.clone() };
        assert_eq!(
            lines(&all(&aging), &all(&aging), 1.0)[1],
            "  looked after: up; another one waits; it can be rolled back; of use for 77 s; 4096 KiB of memory left"
        );
        let given_up = LookedAfter { twin_given_up: true, snapshot: None, standby: None, ..told.clone() };
        assert_eq!(
            lines(&all(&given_up), &all(&given_up), 1.0)[1],
            "  looked after: up; its twin was aborted too often, and is not loaded again"
        );
        let parked = LookedAfter { state: "parked".into(), why: Some("it failed 6 times".into()), ..told };
        assert_eq!(
            lines(&all(&parked), &all(&parked), 1.0)[1],
            "  looked after: parked: it failed 6 times; another one waits; it can be rolled back"
        );
        let new = LookedAfter { state: "starting".into(), ..LookedAfter::default() };
        assert_eq!(
            lines(&all(&new), &all(&new), 1.0)[1..4],
            ["  looked after: starting", "  restarts: 0 recovered, 0 ended", "  outages: all 0 ms"]
        );
        let disks = Service { name: "disk".into(), is_of_disks: true, ..of(&new) };
        let told = Told::Tandemd { services: vec![disks] };
        assert_eq!(lines(&told, &told, 1.0)[1], "  looked after: starting");
    }

    #[test]
    fn who_is_not_looked_after_has_none_of_that() {
        let told = Told::Tandemd { services: vec![service()] };
        let shown = lines(&told, &told, 1.0).join("\n");
        assert!(!shown.contains("restarts") && !shown.contains("outages"), "{shown}");
    }

    #[test]
    fn nothing_is_divided_by_nothing_and_counts_may_begin_anew() {
        let of = |service| Told::Tandemd { services: vec![service] };
        let shown = lines(&of(service()), &of(service()), 1.0).join("\n");
        assert!(shown.contains("- cycles/packet"), "{shown}");
        let mut later = service();
        later.counts.as_mut().unwrap().turns = 5;
        later.way_out.as_mut().unwrap().sent.packets = 10;
        let shown = lines(&of(service()), &of(later), 1.0).join("\n");
        assert!(shown.contains(" 10 packets/s") && shown.contains(" 5 turns/s"), "{shown}");
        let twind = || Told::Twind { twins: vec![twin()] };
        let shown = lines(&twind(), &twind(), 1.0).join("\n");
        assert!(shown.contains("1 aborts, the last at e1000_xmit_frame+0x1b"), "{shown}");
        assert_eq!(lines(&twind(), &of(service()), 1.0).len(), 1);
    }
}
