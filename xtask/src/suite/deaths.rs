//! Driver domains that die many times in a row, while three guests are busy.
//!
//! The checks are `images/xen/tests/many-deaths.sh`. `--operations` and `--seed` say how often, and in which order of
//! causes.

use super::driving::machine;
use super::refused::Record;
use super::xl::judge_but;
use super::{Bed, Test};
use anyhow::{ensure, Context, Result};
use std::path::Path;
use testbed::machine::{field, Disk, Machine, Outcome};
use testbed::peer::Peer;
use testbed::{host, medium};

/// Deaths, unless `--operations` says how many.
const DEATHS: (u64, u64) = (6, 1000);
/// Until all is ready and until all is over, and for each death, on a busy host.
const BOOT_S: u64 = 1800;
const DEATH_S: u64 = 120;
/// Each comes in turn. After `destroyed` another one has to boot, which takes as long as all the others together.
const CAUSES: &str = "panic:destroyed/4:wedged:wild";

/// Mebibytes that each of two guests writes blocks to; and by which partition, and behind how many others.
const MIB: u64 = 8;
const HALVES: [(usize, u64, &str); 2] = [(1, 0, "u1"), (2, MIB, "u2")];

/// What the hypervisor says of damaged kernels, of their devices and of their drivers' twins.
const DAMAGED: &[&str] = &["was stopped", "accesses were stopped", "crashed", "is disabled"];

pub fn tests() -> Vec<Test> {
    let test = |name: &str, run: super::Body| Test { level: "xl", name: name.into(), long: false, run };
    vec![
        test("a-networks-driver-domain-dies-many-times", Box::new(of_the_network)),
        test("a-networks-driver-domain-with-a-twin-dies-many-times", Box::new(of_the_network_with_a_twin)),
        test("a-disks-driver-domain-dies-many-times", Box::new(|bed| of_disks(bed, "nvme", "many-deaths-disk"))),
        test(
            "a-disks-driver-domain-with-ahci-dies-many-times",
            Box::new(|bed| of_disks(bed, "ahci", "many-deaths-ahci")),
        ),
    ]
}

/// So many deaths, in an order that follows from the seed.
fn chosen(bed: &Bed) -> (u64, u64) {
    (bed.operations.unwrap_or(if bed.full { DEATHS.1 } else { DEATHS.0 }), bed.seed.unwrap_or(1))
}

/// The checks, with count and seed in the place of `*`, in a machine with this network card.
fn machine_for(bed: &Bed, name: &str, checks: &str, nic: &'static str, peer: &Peer) -> Result<Machine> {
    let (count, seed) = chosen(bed);
    let checks = format!("many-deaths:{}", checks.replace('*', &format!("{count}:{seed}")));
    let mut machine = machine(bed, name, &checks, nic, peer)?;
    // Two driver domains, copies of their memory, and three guests.
    machine.memory_mib = 3584;
    machine.timeout_s = BOOT_S + DEATH_S * count;
    Ok(machine)
}

/// Streams, datagrams and pings of three guests, by a card whose link is kept.
fn of_the_network(bed: &Bed) -> Result<String> {
    network(bed, "many-deaths-net", &format!("e1000e:kept:vm:*:{CAUSES}:text:ring:killed/2"))
}

/// The same by the twin of the card's driver. Its daemon dies, too.
fn of_the_network_with_a_twin(bed: &Bed) -> Result<String> {
    network(bed, "many-deaths-twin", &format!("e1000e:kept:twin-mirror:*:{CAUSES}:text:ring:twind/2"))
}

fn network(bed: &Bed, name: &str, checks: &str) -> Result<String> {
    let peer = Peer::start(name)?;
    let running = machine_for(bed, name, checks, "e1000e", &peer)?.start()?;
    peer.outlives_empty_frames(running.monitor());
    let outcome = running.finish(|_| false)?;
    let said = judge_but(bed, &outcome, DAMAGED)?;
    // A damaged driver may have sent more than guests asked it to; what guests asked for was right.
    let streams = peer.counts().streams;
    ensure!(streams.wrong == 0 && streams.received > 0 && streams.sent > 0, "streams were not right: {streams:?}");
    Ok(format!("{said}, seed {}, {}", chosen(bed).1, died(&outcome)?))
}

/// How often, by each cause.
fn died(outcome: &Outcome) -> Result<&str> {
    Ok(outcome.report("deaths").context("nobody died")?.trim())
}

/// Blocks of two guests and files of a third, on one medium behind this controller, which the host looks at afterwards.
/// A driver whose instructions are damaged may write other bytes than it was told before it dies, as nobody notices.
/// One whose memory is damaged may answer a write that its controller has refused, and only that ([`Record`]).
fn of_disks(bed: &Bed, device: &'static str, name: &str) -> Result<String> {
    let peer = Peer::start(name)?;
    let checks = format!("{device}:turns:vm:*:{CAUSES}:dma:killed/2");
    let mut machine = machine_for(bed, name, &checks, "e1000e", &peer)?;
    let file = host::target("images")?.join(format!("{name}.raw"));
    medium::make(&file)?;
    machine.disks = vec![Disk { device, file: file.clone(), writable: true }];
    machine.tells_misuse = true;
    let running = machine.start()?;
    let guests = HALVES.map(|(partition, first_mib, guest)| (guest, medium::first_block(partition, first_mib)));
    let mut record = Record::of(running.errors(), guests.into());
    let outcome = running.finish(|line| {
        record.hears(line);
        false
    })?;
    let refused = record.verdict();
    let said = judge_but(bed, &outcome, DAMAGED).with_context(|| record.to_string())?;
    let refused = refused?;
    let files = medium_is_right(&file, &outcome, &HALVES, MIB)?;
    std::fs::remove_file(&file)?;
    Ok(format!("{said}, {files} files, seed {}, {}, {refused}", chosen(bed).1, died(&outcome)?))
}

/// Checks that the medium holds what guests have said that it should: of some guests `mib` mebibytes of blocks, each in
/// a partition, behind so many others; and files of one, in the last partition. How many files there are.
pub(super) fn medium_is_right(
    medium: &Path,
    outcome: &Outcome,
    blocks: &[(usize, u64, &str)],
    mib: u64,
) -> Result<usize> {
    for (partition, first_mib, guest) in blocks {
        let sum = outcome.report(&format!("medium {guest}")).and_then(|report| field(report, "sum"));
        let sum = u64::from_str_radix(sum.with_context(|| format!("{guest} says no sum"))?, 16)?;
        medium::verify_blocks(medium, *partition, *first_mib, mib, sum)?;
    }
    let files = outcome.lines.iter().filter_map(|l| file_of(l)).collect::<Vec<_>>();
    ensure!(!files.is_empty(), "nobody says a file");
    medium::verify_files(medium, &files)?;
    Ok(files.len())
}

/// The name and the generation of a file that a guest has told of.
fn file_of(line: &str) -> Option<(u64, u64)> {
    let (name, generation) = line.split_once("TANDEM: medium file ")?.1.trim().split_once(' ')?;
    Some((name.parse().ok()?, generation.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What `is_undone_only` of `images/xen/tests/many-deaths.sh` says, twice, and comes to, if these guests' loads
    /// have said this, and others do not answer.
    fn undone_only(loads: &[(&str, &str)]) -> String {
        let script = include_str!("../../../images/xen/tests/many-deaths.sh");
        let start = script.find("\nis_undone_only() {\n").unwrap();
        let function = script[start..].split_inclusive("\n}\n").next().unwrap();
        let thread = std::thread::current().id();
        let dir = host::target("logs").unwrap().join(format!("deaths.{}.{thread:?}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (guest, load) in loads {
            std::fs::write(dir.join(guest), load).unwrap();
        }
        let around = format!(
            "guests='u1 u2 u3'; declare -A known; say() {{ echo \"$*\"; }}; tells() {{ :; }}
            in_guest() {{ local load=\"{0}/$1\"; shift 2; [ -e \"$load\" ] || {{ echo 'no answer'; return 2; }}; eval \"${{*/\\/tmp\\/load/'$load'}}\"; }}",
            dir.display()
        );
        let text = format!("{around}\n{function}\nis_undone_only; echo $?; is_undone_only; echo $?");
        let said = host::output(Command::new("bash").args(["-c", &text])).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        said
    }

    const UNDONE: &str = "gap 3 40\nwrong 612 at 9: of write 4 0 bytes are right, it is write 3 of block 612, of which 4 is the last\nbins 1\n";

    #[test]
    fn a_block_that_is_undone_is_said_once() {
        let said = undone_only(&[("u1", UNDONE), ("u2", &UNDONE.replace("612", "7").repeat(2)), ("u3", "gap 1 60\n")]);
        let expected =
            ["undone u1 612 4 holds 3 of 612", "undone u2 7 4 holds 3 of 7", "undone u2 7 4 holds 3 of 7", "0", "0"];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
        assert_eq!(undone_only(&[("u1", ""), ("u2", ""), ("u3", "")]), "0\n0\n");
    }

    #[test]
    fn what_is_not_said_or_is_something_else_is_not_undone() {
        let ends = |loads: &[(&str, &str)]| undone_only(loads).lines().filter(|line| *line == "1").count();
        // Who does not answer may have found anything.
        assert_eq!(ends(&[("u2", ""), ("u3", "")]), 2);
        assert_eq!(ends(&[("u1", UNDONE), ("u2", "")]), 2);
        // It begins as another write, or as none; a request failed; a file of the third one's.
        for (guest, load) in [
            ("u1", UNDONE.replace("it is write", "it begins as write")),
            ("u1", "wrong 612 at 9: of write 4 0 bytes are right, it begins with 0000000000000000\n".into()),
            ("u2", "error 612\n".into()),
            ("u3", "wrong 3\n".into()),
        ] {
            let others = ["u1", "u2", "u3"].into_iter().filter(|name| *name != guest).map(|name| (name, ""));
            let loads = others.chain([(guest, load.as_str())]).collect::<Vec<_>>();
            assert_eq!(ends(&loads), 2, "{load}");
        }
    }
}
