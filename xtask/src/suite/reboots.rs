//! The machine is shut down in order and starts anew, with what domain 0 has kept on a disk.
//!
//! The checks are `images/xen/tests/reboot.sh`. QEMU ends with the first run of the machine, and the second one is
//! another QEMU with the same disk: so each has a log of its own, and where it ended is seen.

use super::driving::machine;
use super::xl::judge_end;
use super::{Bed, Test};
use anyhow::{ensure, Result};
use testbed::host;
use testbed::machine::{Disk, Ending};
use testbed::peer::Peer;

/// Domain 0's disk: a few records of a KiB.
const DISK_BYTES: u64 = 32 << 20;

pub fn tests() -> Vec<Test> {
    let run = Box::new(comes_back);
    vec![Test { level: "xl", name: "a-driver-domain-comes-again-with-the-machine".into(), long: false, run }]
}

/// A driver domain that was shut down with the machine is the way out again when that has started.
fn comes_back(bed: &Bed) -> Result<String> {
    let disk = host::target("images")?.join("reboot.raw");
    std::fs::File::create(&disk)?.set_len(DISK_BYTES)?;
    let mut said = Vec::new();
    for (moment, end, ending) in [("down", "reboot", Ending::Reset), ("up", "poweroff", Ending::PowerOff)] {
        let name = format!("reboot-{moment}");
        let peer = Peer::start(&name)?;
        let mut machine = machine(bed, &name, &format!("reboot:{moment}:e1000e"), "e1000e", &peer)?;
        machine.kernel_args = machine.kernel_args.replace("+poweroff", &format!("+{end}"));
        machine.cpus = 1;
        machine.disks = vec![Disk { device: "nvme", file: disk.clone(), writable: true }];
        said.push(judge_end(bed, &machine.start()?.finish(|_| false)?, &ending)?);
        let wire = peer.counts();
        ensure!(
            wire.received > 0 && wire.damaged == 0 && wire.missing == 0,
            "the other end of the wire got no frames, or damaged ones, or missed some: {wire:?}"
        );
    }
    std::fs::remove_file(&disk)?;
    Ok(said.join(", then "))
}
