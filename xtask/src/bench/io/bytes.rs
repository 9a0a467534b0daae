//! What a byte costs, of loads that move bytes: how much one CPU moves in a time, on native Linux and on each way. With
//! the same throughput it is the CPU's utilization.

use super::{Cost, Place};
use std::fmt::Write;

/// Bytes of a unit of these loads: of a frame that is a datagram, of TCP's data in a segment, of a request. A ping's
/// and a page's round trips are counted by themselves.
pub fn of_unit(load: &str) -> Option<u32> {
    Some(match load {
        "send-64" | "receive-64" => 60,
        "send-512" => 508,
        "send-1500" | "receive-1500" => 1514,
        "tcp-send" | "tcp-receive" | "tcp-send-plain" | "tcp-receive-plain" => 1448,
        "read-64k" | "write-64k" | "file-read" | "file-write" => 65536,
        _ if load.starts_with("random-") || load.starts_with("sequential-") => 4096,
        _ => return None,
    })
}

/// A load on a way: bytes of a unit, instructions for one of them, and how many times native Linux' these are.
struct Line<'a> {
    load: &'a str,
    system: &'static str,
    place: &'static str,
    bytes: u32,
    each: f64,
    of_native: Option<f64>,
}

fn lines(costs: &[Cost]) -> Vec<Line<'_>> {
    let line = |cost: &'_ Cost| {
        let native = costs.iter().find(|c| c.system == "native" && c.load == cost.load);
        let bytes = of_unit(&cost.load)?;
        Some((bytes, cost.total() / f64::from(bytes), native.map(|native| cost.total() / native.total())))
    };
    let place = |cost: &Cost| if cost.system == "native" { "" } else { cost.place.name() };
    let known = |cost| line(cost).map(|found| (cost, found));
    let mut all = Vec::new();
    for load in super::loads(costs) {
        for of in Place::ALL {
            for (cost, (bytes, each, of_native)) in
                costs.iter().filter(|c| c.load == load && c.place == of).filter_map(known)
            {
                all.push(Line { load: &cost.load, system: cost.system, place: place(cost), bytes, each, of_native });
            }
        }
    }
    all
}

/// For people. A thousand millions of instructions are a second of a CPU that executes as many in one.
pub fn as_text(costs: &[Cost]) -> String {
    let mut out = format!(
        "{:<22}{:<8}{:<32}{:>18}{:>12}{:>24}\n",
        "by byte", "", "", "instructions/byte", "of native", "MB in 10^9 instructions"
    );
    for Line { load, system, place, each, of_native, .. } in lines(costs) {
        let native = of_native.map_or("-".into(), |share| format!("{share:.2}"));
        let _ = writeln!(out, "{load:<22}{system:<8}{place:<32}{each:>18.3}{native:>12}{:>24.0}", 1000.0 / each);
    }
    out
}

/// For programs.
pub fn as_csv(costs: &[Cost]) -> String {
    let mut out = String::from("load,system,place,bytes,instructions_per_byte,of_native\n");
    for Line { load, system, place, bytes, each, of_native } in lines(costs) {
        let native = of_native.map_or(String::new(), |share| format!("{share:.3}"));
        let _ = writeln!(out, "{load},{system},{place},{bytes},{each:.4},{native}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::profile::Part;

    fn cost(system: &'static str, place: Place, load: &str, total: f64) -> Cost {
        let mut parts = vec![0.0; Part::ALL.len()];
        parts[0] = total;
        Cost { system, place, load: load.into(), parts, events: Vec::new(), functions: Vec::new() }
    }

    #[test]
    fn a_byte_costs_a_units_share_and_is_compared_with_native_linux() {
        let costs = [
            cost("tandem", Place::Driven, "tcp-send", 2896.0),
            cost("native", Place::Dom0, "tcp-send", 724.0),
            cost("native", Place::Dom0, "ping", 21_000.0),
            cost("tandem", Place::Driven, "write-64k", 32_768.0),
        ];
        assert_eq!(
            as_csv(&costs),
            "load,system,place,bytes,instructions_per_byte,of_native\n\
             tcp-send,native,,1448,0.5000,1.000\n\
             tcp-send,tandem,guest through a driver domain,1448,2.0000,4.000\n\
             write-64k,tandem,guest through a driver domain,65536,0.5000,\n"
        );
        let text = as_text(&costs);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().rev().take(3).collect();
        assert_eq!(last, ["2000", "-", "0.500"], "{text}");
        assert!(!text.contains("ping"), "{text}");
    }

    /// Each load that the machines run, by the scripts that run them.
    #[test]
    fn all_loads_have_bytes_but_those_that_are_round_trips() {
        let script = include_str!("../../../../images/init/load.sh");
        let mut loads = 0;
        for line in script.lines().map(str::trim) {
            let words: Vec<&str> = line.split(' ').collect();
            let (load, bytes) = match words[..] {
                ["traffic", "send" | "receive", load, bytes, ..] => (load, Some(bytes)),
                ["traffic", "put" | "get", load, ..] => (load, Some("1448")),
                ["traffic", "ping", ..] => ("ping", None),
                ["traffic", "web", load, ..] => (load, None),
                ["blocks", load, _, _, _, bytes, ..] => (load, Some(bytes)),
                _ => continue,
            };
            loads += 1;
            assert_eq!(of_unit(load).map(|bytes| bytes.to_string()).as_deref(), bytes, "{line}");
        }
        assert!(loads > 20, "{loads}");
    }
}
