//! Driver domains that nothing is wrong with, under all the load that three guests make: nobody takes them for failed.
//!
//! The checks are `images/xen/tests/quiet.sh`. `--operations` says for how many seconds.

use super::driving::machine;
use super::xl::judge;
use super::{Bed, Test};
use anyhow::{ensure, Context, Result};
use testbed::machine::Disk;
use testbed::peer::Peer;
use testbed::{host, medium};

/// Seconds, unless `--operations` says how many.
const SECONDS: (u64, u64) = (30, 600);
/// Until all is ready and until all is over, on a busy host.
const BOOT_S: u64 = 1800;

pub fn tests() -> Vec<Test> {
    let test = |name: &str, run: super::Body| Test { level: "xl", name: name.into(), long: false, run };
    vec![
        test("a-busy-network-gives-no-alarm", Box::new(|bed| run(bed, "e1000e", "vm"))),
        test("a-busy-network-with-a-twin-gives-no-alarm", Box::new(|bed| run(bed, "e1000e", "twin-mirror"))),
        test("a-busy-disk-gives-no-alarm", Box::new(|bed| run(bed, "nvme", "vm"))),
    ]
}

/// By this driver, with another driver domain that waits, so that one taken for failed would be replaced at once.
fn run(bed: &Bed, driver: &'static str, mode: &str) -> Result<String> {
    let seconds = bed.operations.unwrap_or(if bed.full { SECONDS.1 } else { SECONDS.0 });
    let name = format!("quiet-{driver}-{mode}");
    let peer = Peer::start(&name)?;
    let checks = format!("quiet:{driver}:standby:{mode}:{seconds}");
    let mut machine = machine(bed, &name, &checks, "e1000e", &peer)?;
    machine.memory_mib = 3584;
    machine.timeout_s = BOOT_S + 2 * seconds;
    let file = host::target("images")?.join(format!("{name}.raw"));
    if driver == "nvme" {
        medium::make(&file)?;
        machine.disks = vec![Disk { device: driver, file: file.clone(), writable: true }];
    }
    let outcome = machine.start()?.finish(|_| false)?;
    let said = judge(bed, &outcome)?;
    let streams = peer.counts().streams;
    ensure!(streams.wrong == 0, "streams were not right: {streams:?}");
    let busy = outcome.report("quiet").context("nobody was busy")?.trim();
    if file.exists() {
        std::fs::remove_file(&file)?;
    }
    Ok(format!("{said}, {busy}"))
}
