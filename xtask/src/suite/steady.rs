//! While guests' packets go by a twin, no domain is switched to, nothing is called and no grant is asked for: all of it
//! is counted, by the loads and the machine of `./tandem bench twin-net`.

use super::{Bed, Test};
use crate::bench::io::{record, Boot, Kind, Load, Mode};
use crate::bench::System;
use anyhow::{bail, ensure, Context, Result};
use bench::profile::{self, Map, Part};
use std::fmt::{Display, Formatter};
use testbed::counter::Profiler;
use testbed::images::symbols::Symbols;
use testbed::machine::Hypervisor;

/// The hypervisor's function for hypercalls for grants. (Of a kernel that makes all hypercalls in one place nothing
/// else tells them apart.)
const GRANT_TABLE_OP: &str = "grant_table_op";

/// So many of anything may happen to a hundred packets: clocks tick, and dom0's and the driver domain's daemons wake,
/// whatever the packets do.
const PER_HUNDRED: f64 = 5.0;

/// And so many loads of CR3 to go into the twin or back: a session has two, and takes a few packets.
const SESSIONS_PER_HUNDRED: f64 = 100.0;

pub fn tests() -> Vec<Test> {
    vec![Test {
        level: "xl",
        name: "packets-through-a-twin-need-no-other-domain".into(),
        long: false,
        run: Box::new(needs_nothing),
    }]
}

fn needs_nothing(bed: &Bed) -> Result<String> {
    let Hypervisor::Elf(elf) = &bed.hypervisor else { bail!("stock systems have no twins") };
    let symbols = Symbols::read(&std::fs::read(elf)?).with_context(|| elf.display().to_string())?;
    ensure!(symbols.has(GRANT_TABLE_OP), "the hypervisor's function `{GRANT_TABLE_OP}` has another name now");
    let system = System { name: "steady", hypervisor: bed.hypervisor.clone() };
    let count = bed.operations.unwrap_or(1000);
    let boot = Boot::Twin(Mode::Mirror);
    let (loads, map) = record(Kind::Few, boot, count, &system, &bed.toolstack()?, &Profiler::build()?)?;
    let mut said = Vec::new();
    for load in &loads {
        let happened = Happened::during(load, &map, &symbols);
        happened.judge(load.units).with_context(|| load.name.clone())?;
        said.push(format!("{}, {} packets: {happened}", load.name, load.units));
    }
    Ok(said.join("; "))
}

/// What happened beside the packets' own work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Happened {
    /// Instructions of hypercalls for grants, of any domain.
    grants: u64,
    /// Hypercalls of other domains than the guest: a driver domain that is called makes one to go on.
    hypercalls: u64,
    /// Loads of CR3 by the scheduler: another domain runs, or the CPU is idle.
    switches: u64,
    /// Loads of CR3 on the way into the twin and back.
    sessions: u64,
    /// Any others but those that a system call of a PV guest's program has, one on the way in and one back.
    others: u64,
}

impl Happened {
    fn during(load: &Load, map: &Map, symbols: &Symbols) -> Self {
        let mut seen = Self::default();
        let (mut loads, mut system_calls) = (0, 0);
        let is_for_grants = |address| symbols.at(address).is_some_and(|name| name.contains(GRANT_TABLE_OP));
        seen.grants = load.window.blocks.iter().filter(|b| is_for_grants(b.address)).map(|b| b.count).sum();
        for (kind, block) in &load.window.events {
            match (kind, map.part(block, load.place.domain())) {
                (profile::Kind::Tlb, _) => {}
                (profile::Kind::Syscall, Part::Programs) => system_calls += block.count,
                (profile::Kind::Syscall, Part::Kernel | Part::FrontEnd) => {}
                (profile::Kind::Syscall, _) => seen.hypercalls += block.count,
                (profile::Kind::Cr3, _) => {
                    let name = symbols.at(block.address).unwrap_or_default();
                    if ["5sched", "tandem..sched"].iter().any(|part| name.contains(part)) {
                        seen.switches += block.count;
                    } else if ["4twin7session", "twin..session"].iter().any(|part| name.contains(part)) {
                        seen.sessions += block.count;
                    } else {
                        loads += block.count;
                    }
                }
            }
        }
        seen.others = loads.saturating_sub(2 * system_calls);
        seen
    }

    fn judge(&self, packets: u32) -> Result<()> {
        ensure!(
            self.sessions > 0,
            "no session of a twin's was seen: the packets went elsewhere, or its functions have other names now"
        );
        let bounds = [
            (self.grants, "instructions of hypercalls for grants", 0.0),
            (self.hypercalls, "hypercalls of other domains", PER_HUNDRED),
            (self.switches, "switches between domains", PER_HUNDRED),
            (self.sessions, "loads of CR3 for the twin", SESSIONS_PER_HUNDRED),
            (self.others, "other loads of CR3", PER_HUNDRED),
        ];
        for (count, what, most) in bounds {
            let share = per_hundred(count, packets);
            ensure!(
                share <= most,
                "{share:.1} {what} for a hundred of {packets} packets, at most {most} are expected ({self})"
            );
        }
        Ok(())
    }
}

impl Display for Happened {
    fn fmt(&self, out: &mut Formatter) -> std::fmt::Result {
        let Self { grants, hypercalls, switches, sessions, others } = self;
        write!(out, "{grants} instructions for grants, {hypercalls} hypercalls of others, {switches} + {sessions} + {others} loads of CR3 by scheduler, twin and others")
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn per_hundred(count: u64, units: u32) -> f64 {
    count as f64 * 100.0 / f64::from(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_the_clocks_do_is_refused() {
        let quiet = Happened { grants: 0, hypercalls: 2, switches: 3, sessions: 70, others: 1 };
        quiet.judge(100).unwrap();
        let worse = [
            Happened { grants: 1, ..quiet },
            Happened { hypercalls: 6, ..quiet },
            Happened { switches: 6, ..quiet },
            Happened { sessions: 101, ..quiet },
            Happened { sessions: 0, ..quiet },
            Happened { others: 6, ..quiet },
        ];
        for happened in worse {
            assert!(happened.judge(100).is_err(), "{happened}");
        }
    }
}
