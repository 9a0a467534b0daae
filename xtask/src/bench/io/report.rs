//! What `bench net`, `disk` and `files` have measured: tables, CSV, pictures, and which aims are missed.

use super::{bytes, Cost, Kind, Place};
use crate::bench::BASELINE;
use crate::run;
use anyhow::Result;
use bench::profile::{Event, Part};
use bench::stacked::{self, Group};
use bench::table::Table;
use std::fmt::Write;
use testbed::host;

/// Tables on the terminal, all figures as CSV, pictures.
pub(super) fn report(kind: Kind, costs: &[Cost]) -> Result<()> {
    let stem = kind.word();
    let title = match kind {
        Kind::Net | Kind::Few => "Network",
        Kind::Disk => "Disk",
        Kind::Files => "Files",
    };
    for place in Place::ALL.into_iter().filter(|p| costs.iter().any(|c| c.place == *p)) {
        let mut total = Table {
            title: format!("{title}, {}: all components", place.name()),
            unit: "instructions".into(),
            ..Table::default()
        };
        let mut own = Table { title: format!("{title}, {}: the hypervisor", place.name()), ..total.clone() };
        for cost in costs.iter().filter(|c| c.place == place || c.system == "native") {
            total.set(cost.system, &cost.load, cost.total());
            if cost.system != "native" {
                own.set(cost.system, &cost.load, cost.part(Part::Hypervisor));
            }
        }
        println!("\n{}\n{}", total.text("tandem", BASELINE), own.text("tandem", BASELINE));
    }
    print!("{}\n{}", per_component(costs), bytes::as_text(costs));
    print!("{}{}", channel_aims(costs), aims(costs));
    let dir = host::target("bench")?;
    let csv = dir.join(format!("{stem}.csv"));
    std::fs::write(&csv, as_csv(costs))?;
    let functions = dir.join(format!("{stem}-functions.csv"));
    std::fs::write(&functions, functions_as_csv(costs))?;
    let by_byte = dir.join(format!("{stem}-bytes.csv"));
    std::fs::write(&by_byte, bytes::as_csv(costs))?;
    let mut written = vec![run::relative(&csv), run::relative(&by_byte), run::relative(&functions)];
    for (name, heading, loads) in pictures(kind) {
        let picture = dir.join(format!("{name}.svg"));
        let groups: Vec<Group> = loads.iter().map(|load| group(costs, load)).collect();
        let parts: Vec<&str> = Part::ALL.iter().map(|p| p.name()).collect();
        stacked::bars(heading, "instructions", &parts, &groups, &picture)?;
        written.push(run::relative(&picture));
    }
    println!("Written: {}", written.join(" "));
    Ok(())
}

/// Name, heading, and loads of each picture.
type Picture = (&'static str, &'static str, &'static [&'static str]);

fn pictures(kind: Kind) -> &'static [Picture] {
    match kind {
        Kind::Net | Kind::Few => &[
            ("net-transmit", "Instructions for a packet that is sent", &["send-1500", "tcp-send"]),
            ("net-receive", "Instructions for a packet that is received", &["receive-1500", "tcp-receive"]),
            ("net-ping", "Instructions for a ping's round trip", &["ping"]),
            ("net-web", "Instructions for a web page", &["web-1k", "web-16k", "web-fork-1k", "web-fork-16k"]),
        ],
        Kind::Disk => &[
            ("disk-read", "Instructions for a request", &["random-read-32", "sequential-read-32", "random-read-1"]),
            ("disk-write", "Instructions for a request", &["random-write-32", "sequential-write-32", "random-write-1"]),
        ],
        Kind::Files => &[
            ("files-build", "Instructions for a C file that is compiled", &["build"]),
            ("files-data", "Instructions for 64 KiB of a file", &["file-write", "file-read"]),
        ],
    }
}

fn group(costs: &[Cost], load: &str) -> Group {
    let bar = |cost: &Cost| {
        let place = if cost.system == "native" { "" } else { cost.place.short() };
        (format!("{} {place}", cost.system).trim_end().into(), cost.parts.clone())
    };
    let mut found: Vec<&Cost> = costs.iter().filter(|c| c.load == load).collect();
    found.sort_by_key(|c| (c.system != "native", Place::ALL.iter().position(|p| *p == c.place)));
    Group { name: load.into(), bars: found.into_iter().map(bar).collect() }
}

/// What happens beside instructions, for a unit of each load.
pub fn per_event(costs: &[Cost]) -> String {
    let mut out = format!("{:<22}{:<8}{:<30}", "events", "", "");
    for event in Event::ALL {
        let _ = write!(out, "{:>20}", event.name());
    }
    out.push('\n');
    for load in loads(costs) {
        for place in Place::ALL {
            for cost in costs.iter().filter(|c| c.load == load && c.place == place) {
                let place = if cost.system == "native" { "" } else { place.name() };
                let _ = write!(out, "{load:<22}{:<8}{place:<30}", cost.system);
                for count in &cost.events {
                    let _ = write!(out, "{count:>20.2}");
                }
                out.push('\n');
            }
        }
    }
    out
}

/// What each load costs, by component.
pub fn per_component(costs: &[Cost]) -> String {
    let mut out = format!("{:<22}{:<8}{:<30}", "by component", "", "");
    for part in Part::ALL {
        let _ = write!(out, "{:>18}", part.name());
    }
    out.push_str(&format!("{:>10}\n", "all"));
    for load in loads(costs) {
        for place in Place::ALL {
            for cost in costs.iter().filter(|c| c.load == load && c.place == place) {
                let place = if cost.system == "native" { "" } else { place.name() };
                let _ = write!(out, "{load:<22}{:<8}{place:<30}", cost.system);
                for part in &cost.parts {
                    let _ = write!(out, "{:>18}", if *part < 0.5 { "-".into() } else { format!("{part:.0}") });
                }
                let _ = writeln!(out, "{:>10.0}", cost.total());
            }
        }
    }
    out
}

fn as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,place");
    for part in Part::ALL {
        let _ = write!(out, ",{}", part.name());
    }
    out.push_str(",all\n");
    for cost in costs {
        let place = if cost.system == "native" { "" } else { cost.place.name() };
        let _ = write!(out, "{},{},{place}", cost.load, cost.system);
        for part in &cost.parts {
            let _ = write!(out, ",{part:.1}");
        }
        let _ = writeln!(out, ",{:.1}", cost.total());
    }
    out
}

/// A line for each load, system, place and function that runs more than once in twenty units. Names have commas.
fn functions_as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,place,component,function,instructions\n");
    for cost in costs {
        let place = if cost.system == "native" { "" } else { cost.place.name() };
        for (part, name, figure) in cost.functions.iter().filter(|(.., figure)| *figure >= 0.05) {
            let _ = writeln!(out, "{},{},{place},{},\"{name}\",{figure:.1}", cost.load, cost.system, part.name());
        }
    }
    out
}

/// The loads in the order in which they ran.
pub fn loads(costs: &[Cost]) -> Vec<&str> {
    let mut loads: Vec<&str> = Vec::new();
    for cost in costs {
        if !loads.contains(&cost.load.as_str()) {
            loads.push(&cost.load);
        }
    }
    loads
}

/// What is aimed at, as a share of stock Xen's figure: of all, and of the hypervisor's own instructions.
fn aim(load: &str) -> (f64, f64) {
    match load {
        "ping" => (0.75, 0.75),
        // Most of a page from a server of one process is Linux' own.
        _ if load.starts_with("web-fork") => (0.8, 0.75),
        _ => (1.0, 0.75),
    }
}

/// Which aims are missed, and how many there are.
fn aims(costs: &[Cost]) -> String {
    let mut out = String::new();
    let (mut met, mut all) = (0, 0);
    for load in loads(costs) {
        for place in Place::ALL {
            let of = |system| costs.iter().find(|c| c.system == system && c.load == load && c.place == place);
            let (Some(ours), Some(xen)) = (of("tandem"), of(BASELINE)) else { continue };
            let (total, own) = aim(load);
            let pairs = [
                ("all", ours.total() / xen.total(), total),
                ("hypervisor", ours.part(Part::Hypervisor) / xen.part(Part::Hypervisor), own),
            ];
            for (what, ratio, aim) in pairs {
                all += 1;
                if ratio <= aim {
                    met += 1;
                } else {
                    let _ = writeln!(out, "missed: {load}, {}, {what}: {ratio:.3} of Xen's, aim {aim}", place.name());
                }
            }
        }
    }
    if all == 0 {
        return out;
    }
    format!("{out}{met} of {all} aims met\n")
}

/// What a load may cost with the hypervisor's device channels, of what it costs by the driver domain's own back end.
const CHANNEL_AIM: f64 = 1.03;

/// What device channels cost where a driver domain is behind them.
pub fn channel_aims(costs: &[Cost]) -> String {
    let mut out = String::new();
    let (mut met, mut all) = (0, 0);
    for load in loads(costs) {
        let by = |place| costs.iter().find(|c| c.system == "tandem" && c.load == load && c.place == place);
        let (Some(with), Some(without)) = (by(Place::Switched), by(Place::Driven)) else { continue };
        let share = with.total() / without.total();
        all += 1;
        met += u32::from(share <= CHANNEL_AIM);
        let _ = writeln!(
            out,
            "{load} through channel and domain: {:.0}, {share:.3} of {:.0} without the channel",
            with.total(),
            without.total()
        );
    }
    if all > 0 {
        let _ =
            writeln!(out, "{met} of {all} loads cost at most {CHANNEL_AIM} of what they cost without the channel\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(system: &'static str, place: Place, hypervisor: f64) -> Cost {
        let mut parts = vec![100.0; Part::ALL.len()];
        parts[7] = hypervisor;
        Cost { system, place, load: "ping".into(), parts, events: Vec::new(), functions: Vec::new() }
    }

    #[test]
    fn an_aim_that_is_missed_is_named() {
        let costs = [cost(BASELINE, Place::Guest, 1000.0), cost("tandem", Place::Guest, 700.0)];
        let said = aims(&costs);
        assert!(said.contains("missed: ping, guest through dom0, all: 0.833"), "{said}");
        assert!(said.ends_with("1 of 2 aims met\n"), "{said}");
        assert_eq!(aims(&costs[..1]), "");
    }

    #[test]
    fn the_csv_has_every_component() {
        let text = as_csv(&[cost("native", Place::Dom0, 0.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        assert_eq!(lines[1], "ping,native,,100.0,100.0,100.0,100.0,100.0,100.0,100.0,0.0,100.0,800.0");
    }

    #[test]
    fn functions_that_hardly_run_are_left_out() {
        let functions = vec![(Part::Hypervisor, "f<a, b>".into(), 2.0), (Part::Kernel, "g".into(), 0.04)];
        let text = functions_as_csv(&[Cost { functions, ..cost("tandem", Place::Guest, 0.0) }]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1..], ["ping,tandem,guest through dom0,hypervisor,\"f<a, b>\",2.0"]);
    }

    #[test]
    fn channels_are_compared_with_the_way_without_them() {
        let with = |hypervisor| cost("tandem", Place::Switched, hypervisor);
        let without = cost("tandem", Place::Driven, 100.0);
        let said = channel_aims(&[with(145.0), without]);
        assert!(said.contains("ping through channel and domain: 945, 1.050 of 900 without the channel"), "{said}");
        assert!(said.contains("0 of 1 loads cost at most 1.03"), "{said}");
        let said = channel_aims(&[with(118.0), cost("tandem", Place::Driven, 100.0)]);
        assert!(said.contains("1 of 1 loads"), "{said}");
        assert_eq!(channel_aims(&[with(1.0), cost(BASELINE, Place::Driven, 1.0)]), "", "only of one hypervisor");
    }
}
