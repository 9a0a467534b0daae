//! What is done to a guest while the driver domain of its network or its disk dies and another one boots.
//!
//! The checks are `images/xen/tests/meanwhile.sh`. `--seed` says at which moment each thing is done; with `--full` it
//! is done at all of them.

use super::deaths::medium_is_right;
use super::driving::machine;
use super::xl::judge;
use super::{Bed, Test};
use anyhow::{ensure, Result};
use testbed::machine::{Disk, Machine};
use testbed::peer::Peer;
use testbed::{host, medium};

/// What is done to a guest.
const TO_A_GUEST: &str = "saved:moved:rested:paused:destroyed:attached:detached";
/// And to who looks after it all.
const TO_DAEMONS: &str = "tandemd:consoles:store";

/// Mebibytes that each of two guests writes blocks to; and by which partition, and behind how many others.
const MIB: u64 = 8;
const BLOCKS: [(usize, u64, &str); 2] = [(1, 0, "u1"), (2, MIB, "g1")];

/// Until all is ready and until all is over, on a busy host.
const TIMEOUT_S: u64 = 3600;

pub fn tests() -> Vec<Test> {
    let test = |name: &str, run: super::Body| Test { level: "xl", name: name.into(), long: false, run };
    vec![
        test(
            "guests-are-moved-while-a-networks-driver-domain-recovers",
            Box::new(|bed| of_the_network(bed, "meanwhile-net", TO_A_GUEST)),
        ),
        test("guests-are-moved-while-a-disks-driver-domain-recovers", Box::new(of_disks)),
        test(
            "daemons-are-restarted-while-a-driver-domain-recovers",
            Box::new(|bed| of_the_network(bed, "meanwhile-daemons", TO_DAEMONS)),
        ),
    ]
}

fn machine_for(bed: &Bed, name: &str, driver: &str, what: &str, peer: &Peer) -> Result<Machine> {
    let moments = if bed.full { 3 } else { 1 };
    let checks = format!("meanwhile:{driver}:{}:{moments}:{what}", bed.seed.unwrap_or(1));
    let mut machine = machine(bed, name, &checks, "e1000e", peer)?;
    machine.timeout_s = TIMEOUT_S * moments;
    Ok(machine)
}

/// Streams, datagrams and pings.
fn of_the_network(bed: &Bed, name: &str, what: &str) -> Result<String> {
    let peer = Peer::start(name)?;
    let outcome = machine_for(bed, name, "e1000e", what, &peer)?.start()?.finish(|_| false)?;
    let said = judge(bed, &outcome)?;
    let streams = peer.counts().streams;
    ensure!(streams.wrong == 0 && streams.received > 0 && streams.sent > 0, "streams were not right: {streams:?}");
    Ok(said)
}

/// Blocks of two guests and files of a third, on one medium, which the host looks at afterwards.
fn of_disks(bed: &Bed) -> Result<String> {
    let name = "meanwhile-disk";
    let peer = Peer::start(name)?;
    let mut machine = machine_for(bed, name, "nvme", TO_A_GUEST, &peer)?;
    let file = host::target("images")?.join(format!("{name}.raw"));
    medium::make(&file)?;
    machine.disks = vec![Disk { device: "nvme", file: file.clone(), writable: true }];
    let outcome = machine.start()?.finish(|_| false)?;
    let said = judge(bed, &outcome)?;
    let files = medium_is_right(&file, &outcome, &BLOCKS, MIB)?;
    std::fs::remove_file(&file)?;
    Ok(format!("{said}, {files} files"))
}
