//! `./tandem bench twin-net`: what a packet costs on its way from a guest to the wire and back: through dom0, through a
//! driver domain, through the hypervisor's switch and a driver domain, and through a twin. Beside native Linux and
//! stock Xen.
//!
//! The loads and the machine are those of `bench net`. `./tandem bench twin-net mirror` measures only the way through
//! the twin, `stlb` that through a twin of either mode, and `vm` only the two ways through a driver domain: with the
//! switch and without it.

use super::io::{bytes, channel_aims, loads, measure_all, per_component, per_event, Boot, Cost, Kind, Mode, Place};
use crate::options::Options;
use crate::run;
use anyhow::Result;
use bench::profile::{Event, Part};
use std::fmt::Write;
use testbed::host;

const BOOTS: [Boot; 5] =
    [Boot::Dom0, Boot::DriverDomain, Boot::Switch, Boot::Twin(Mode::Mirror), Boot::Twin(Mode::Stlb)];

/// Measures and shows; false if a system could not be measured.
pub fn run(options: &Options) -> Result<bool> {
    let some: &[Boot] = match options.words.get(1).map(String::as_str) {
        Some("vm") => &BOOTS[1..3],
        Some("mirror") => &BOOTS[3..4],
        Some("stlb") => &BOOTS[3..],
        _ => &[],
    };
    if !some.is_empty() {
        options.takes_words(2)?;
    }
    let (costs, failures) = if some.is_empty() {
        measure_all(Kind::Net, options, &BOOTS)?
    } else {
        let options = Options { words: vec!["twin-net".into(), "tandem".into()], ..options.clone() };
        measure_all(Kind::Net, &options, some)?
    };
    let costs: Vec<Cost> = costs.into_iter().filter(|cost| system(cost).is_some()).collect();
    print!("\n{}\n{}\n{}\n", per_component(&costs), bytes::as_text(&costs), per_event(&costs));
    print!("{}{}", channel_aims(&costs), aims(&costs));
    let csv = host::target("bench")?.join("twin-net.csv");
    std::fs::write(&csv, as_csv(&costs))?;
    let events = host::target("bench")?.join("twin-net-events.csv");
    std::fs::write(&events, events_as_csv(&costs))?;
    let functions = host::target("bench")?.join("twin-net-functions.csv");
    std::fs::write(&functions, functions_as_csv(&costs))?;
    let by_byte = host::target("bench")?.join("twin-net-bytes.csv");
    std::fs::write(&by_byte, bytes::as_csv(&costs))?;
    let written = [&csv, &by_byte, &events, &functions].map(|path| run::relative(path));
    println!("Written: {}", written.join(", "));
    for failure in &failures {
        println!("FAIL: {failure:#}");
    }
    Ok(failures.is_empty())
}

/// What a system and the way of its packets are called here; `None` for dom0's own loads.
fn system(cost: &Cost) -> Option<&'static str> {
    Some(match (cost.system, cost.place) {
        ("native", _) => "native",
        ("xen", Place::Guest) => "xen-dom0",
        ("xen", Place::Driven) => "xen-driver",
        ("tandem", Place::Guest) => "tandem-dom0",
        ("tandem", Place::Driven) => "tandem-driver",
        ("tandem", Place::Switched) => "tandem-vm",
        ("tandem", Place::Twinned(Mode::Mirror)) => "tandem-mirror",
        ("tandem", Place::Twinned(Mode::Stlb)) => "tandem-stlb",
        _ => return None,
    })
}

/// A line for each load, system and component.
fn as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,component,instructions\n");
    for cost in costs {
        let Some(system) = system(cost) else { continue };
        for (part, figure) in Part::ALL.iter().zip(&cost.parts) {
            let _ = writeln!(out, "{},{system},{},{figure:.1}", cost.load, part.name());
        }
        let _ = writeln!(out, "{},{system},all,{:.1}", cost.load, cost.total());
    }
    out
}

/// A line for each load, system and event.
fn events_as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,event,count\n");
    for cost in costs {
        let Some(system) = system(cost) else { continue };
        for (event, count) in Event::ALL.iter().zip(&cost.events) {
            let _ = writeln!(out, "{},{system},{},{count:.3}", cost.load, event.name());
        }
    }
    out
}

/// A line for each load, system and function that runs more than once in twenty units. Names have commas.
fn functions_as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,component,function,instructions\n");
    for cost in costs {
        let Some(system) = system(cost) else { continue };
        for (part, name, figure) in cost.functions.iter().filter(|(.., figure)| *figure >= 0.05) {
            let _ = writeln!(out, "{},{system},{},\"{name}\",{figure:.1}", cost.load, part.name());
        }
    }
    out
}

/// Instructions for a unit of a load through a twin in mirror mode, all components.
const AIMS: [(&str, f64); 9] = [
    ("send-1500", 7_700.0),
    ("send-64", 7_100.0),
    ("receive-1500", 8_100.0),
    ("receive-64", 7_300.0),
    ("tcp-send", 1_500.0),
    ("tcp-receive", 5_800.0),
    ("ping", 36_000.0),
    ("web-1k", 100_000.0),
    ("web-16k", 145_000.0),
];

/// The same outside of the guest's kernel and programs.
const OUTSIDE_AIMS: [(&str, f64); 2] = [("send-1500", 1_800.0), ("receive-1500", 1_500.0)];

/// The same of the hypervisor, without the twin.
const HYPERVISOR_AIM: f64 = 1_100.0;

/// What a load may cost through a twin in stlb mode, of what it costs in mirror mode.
const STLB_AIM: f64 = 1.25;

/// Which aims are missed, and how many there are.
fn aims(costs: &[Cost]) -> String {
    let mut out = String::new();
    let (mut met, mut all) = (0, 0);
    let mut judge = |load: &str, mode: Mode, what: &str, figure: f64, aim: f64| {
        all += 1;
        if figure <= aim {
            met += 1;
        } else {
            let _ = writeln!(out, "missed: {load}, {}, {what}: {figure:.0}, aim {aim:.0}", mode.word());
        }
    };
    let by = |mode: Mode, load: &str| costs.iter().find(|c| c.load == load && c.place == Place::Twinned(mode));
    let twinned = |load: &str| by(Mode::Mirror, load);
    for (load, aim) in AIMS {
        if let Some(cost) = twinned(load) {
            judge(load, Mode::Mirror, "all", cost.total(), aim);
        }
    }
    for (load, aim) in OUTSIDE_AIMS {
        if let Some(cost) = twinned(load) {
            let inside = [Part::Kernel, Part::FrontEnd, Part::Programs];
            judge(
                load,
                Mode::Mirror,
                "outside the guest",
                cost.total() - inside.map(|p| cost.part(p)).iter().sum::<f64>(),
                aim,
            );
            judge(load, Mode::Mirror, "hypervisor", cost.part(Part::Hypervisor), HYPERVISOR_AIM);
        }
    }
    for load in loads(costs) {
        if let (Some(mirror), Some(stlb)) = (by(Mode::Mirror, load), by(Mode::Stlb, load)) {
            judge(load, Mode::Stlb, "all", stlb.total(), STLB_AIM * mirror.total());
        }
    }
    let _ = writeln!(out, "{met} of {all} aims met");
    let without: Vec<&str> = loads(costs).into_iter().filter(|load| twinned(load).is_none()).collect();
    if !without.is_empty() {
        out = format!("no figures through a twin: {}\n{out}", without.join(" "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(place: Place, load: &str, each: f64) -> Cost {
        Cost {
            system: "tandem",
            place,
            load: load.into(),
            parts: vec![each; Part::ALL.len()],
            events: vec![0.25; Event::ALL.len()],
            functions: vec![(Part::Hypervisor, "f<a, b>".into(), each), (Part::Kernel, "g".into(), 0.04)],
        }
    }

    #[test]
    fn aims_are_for_the_twin_and_say_what_is_missed() {
        let mirror = Place::Twinned(Mode::Mirror);
        let said = aims(&[cost(mirror, "send-1500", 850.0), cost(Place::Driven, "send-1500", 1.0)]);
        assert!(said.contains("missed: send-1500, mirror, outside the guest: 5100, aim 1800"), "{said}");
        assert!(said.ends_with("2 of 3 aims met\n"), "{said}");
        let stlb = Place::Twinned(Mode::Stlb);
        // The load itself has an aim in mirror mode, which is met.
        let parts = Part::ALL.len() as f64;
        let both = |each| aims(&[cost(mirror, "tcp-send", 100.0 / parts), cost(stlb, "tcp-send", each / parts)]);
        assert!(both(125.0).ends_with("2 of 2 aims met\n"), "{}", both(125.0));
        assert!(both(126.0).contains("missed: tcp-send, stlb, all: 126, aim 125"), "{}", both(126.0));
        let said = aims(&[cost(Place::Driven, "ping", 1.0)]);
        assert_eq!(said, "no figures through a twin: ping\n0 of 0 aims met\n");
    }

    #[test]
    fn the_csv_names_system_and_component() {
        let text = as_csv(&[cost(Place::Dom0, "ping", 1.0), cost(Place::Twinned(Mode::Mirror), "ping", 2.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + Part::ALL.len() + 1);
        assert!(lines.contains(&"ping,tandem-mirror,twin,2.0"), "{text}");
        assert_eq!(lines.last(), Some(&"ping,tandem-mirror,all,18.0"));
        let text = events_as_csv(&[cost(Place::Dom0, "ping", 1.0), cost(Place::Guest, "ping", 2.0)]);
        assert!(text.starts_with("load,system,event,count\nping,tandem-dom0,CR3 loads,0.250\n"), "{text}");
        assert_eq!(text.lines().count(), 1 + Event::ALL.len());
        let text = functions_as_csv(&[cost(Place::Twinned(Mode::Mirror), "ping", 2.0)]);
        assert_eq!(
            text,
            "load,system,component,function,instructions\nping,tandem-mirror,hypervisor,\"f<a, b>\",2.0\n"
        );
    }
}
