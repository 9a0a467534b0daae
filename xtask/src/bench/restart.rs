//! `./tandem bench restart`: driver domains die in a row, by each cause, under verified loads of a guest. What the
//! guest lost, and how long it was without, in its own clock.
//!
//! What happens in the machine is images/xen/restart.sh. A boot is for one driver, one way to come back and one mode.
//! Beside it the same driver on the bare machine says how long the device itself takes. `--operations N`: so many
//! deaths by each cause.

mod choice;
mod rows;

use crate::options::Options;
use crate::run;
use anyhow::{bail, ensure, Context, Result};
use choice::{chosen, Boot, Cause, Driver, Way};
use rows::{aims, arrivals, as_csv, as_text, segments_csv, Crash, Row};
use std::collections::BTreeMap;
use std::fmt::Write;
use testbed::images::{self, Images};
use testbed::machine::{field, Disk, Ending, Hypervisor, Machine, Outcome, IOMMU};
use testbed::peer::{Peer, StreamCounts};
use testbed::progress::step;
use testbed::{host, pattern};

/// Deaths by each cause, unless `--operations` says how many.
const FEW: u64 = 1;
/// A death and all that comes after it has to be over in so many seconds, on a busy host.
const DEATH_S: u64 = 400;
const BOOT_S: u64 = 900;
/// How often the driver is loaded on the bare machine.
const BARE: u32 = 3;
/// Of the disk, as in `restart.sh`.
const DISK_MIB: u64 = 4;
/// A block of a stream that was wrong counts as so many wrong bytes.
const BLOCK: u64 = 65536;

/// Measures and shows; false if a machine did not get to its end, if nobody died where somebody was to, or if somebody
/// lost something.
pub fn run(options: &Options) -> Result<bool> {
    let boots = chosen(options.words.get(1..).unwrap_or_default())?;
    let count = options.operations.unwrap_or(FEW);
    ensure!((1..=100_000).contains(&count), "--operations is to be from 1 to 100000");
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    ensure!(
        hypervisor != Hypervisor::None && !hypervisor.is_stock_xen(),
        "only Tandem's driver domains come back; --hypervisor is not for `bench restart`"
    );
    let images = images::toolstack()?;
    let mut failures = Vec::new();
    let mut bare = BTreeMap::new();
    let mut rows = Vec::new();
    for boot in &boots {
        if !bare.contains_key(boot.driver.name()) {
            match step(&format!("{} on the bare machine", boot.driver.name()), || reinits(boot.driver, &images)) {
                Ok(times) => drop(bare.insert(boot.driver.name(), times)),
                Err(error) => failures.push(error),
            }
        }
        match step(&boot.to_string(), || crashes(boot, count, &hypervisor, &images)) {
            Ok((found, trouble)) => {
                rows.extend(found);
                failures.extend(trouble);
            }
            // Hours of other boots are behind it, or before it.
            Err(error) => {
                rows.extend(boot.causes.iter().map(|cause| Row::new(boot, *cause, &[])));
                failures.push(error.context(boot.to_string()));
            }
        }
        // What there is by now is kept, whatever becomes of the rest.
        write(&rows)?;
    }
    print!("\n{}", shown(&rows, &bare, &write(&rows)?, &failures, count));
    Ok(failures.is_empty() && rows.iter().all(|row| row.is_whole(count)))
}

/// Both files of figures; their names.
fn write(rows: &[Row]) -> Result<Vec<String>> {
    let dir = host::target("bench")?;
    let files = [("restart.csv", as_csv(rows)), ("restart-segments.csv", segments_csv(rows))];
    let write = |(name, text): (&str, String)| {
        let path = dir.join(name);
        std::fs::write(&path, text)?;
        Ok(run::relative(&path))
    };
    files.into_iter().map(write).collect()
}

/// All that is said at the end. Its last line says how many aims are met.
fn shown(
    rows: &[Row],
    bare: &BTreeMap<&'static str, Vec<u64>>,
    written: &[String],
    failures: &[anyhow::Error],
    count: u64,
) -> String {
    let mut out = as_text(rows, count) + "\n";
    for (driver, times) in bare {
        let _ = writeln!(out, "{driver} on the bare machine, from its reset until it works: {times:?} ms");
    }
    let _ = writeln!(out, "Written: {}", written.join(" "));
    for failure in failures {
        let _ = writeln!(out, "FAIL: {failure:#}");
    }
    out + &aims(rows, count)
}

/// How long the driver takes on the bare machine until its device works, in ms.
fn reinits(driver: Driver, images: &Images) -> Result<Vec<u64>> {
    let name = format!("restart-bare-{}", driver.name());
    let peer = Peer::start(&name)?;
    let jobs = format!("reinits:{}:{BARE}+poweroff", driver.name());
    let mut machine = Machine::new(&name, &Hypervisor::None, images, 1, &jobs);
    machine.chipset = "q35";
    machine.memory_mib = 2048;
    machine.accel.extend(["-icount".into(), "shift=0".into()]);
    fit(&mut machine, driver, &peer)?;
    let outcome = machine.start()?.finish(|_| false)?;
    let times: Vec<u64> =
        outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: bare reinit ")?.1.trim().parse().ok()).collect();
    ensure!(
        times.len() == BARE as usize,
        "{name}: {} of {BARE} times (log {})",
        times.len(),
        run::relative(&outcome.log)
    );
    Ok(times)
}

/// The device, and what is at its other end.
fn fit(machine: &mut Machine, driver: Driver, peer: &Peer) -> Result<()> {
    if let Some(device) = driver.disk() {
        let file = host::target("images")?.join(format!("{}.raw", machine.name));
        pattern::make_disk(&file, DISK_MIB)?;
        machine.disks = vec![Disk { device, file, writable: true }];
    } else {
        machine.nic = Some((driver.model(), peer.socket().to_path_buf()));
    }
    Ok(())
}

/// The rows of a boot, and what went wrong.
fn crashes(
    boot: &Boot,
    count: u64,
    hypervisor: &Hypervisor,
    images: &Images,
) -> Result<(Vec<Row>, Vec<anyhow::Error>)> {
    let name = boot.to_string().replace(' ', "-");
    let peer = Peer::start(&name)?;
    let jobs = format!("toolstack+{}+poweroff", boot.job(count));
    let mut machine = Machine::with_guests(&name, hypervisor, images, 1, &jobs);
    machine.keep_packets();
    // The host's own work is not to count: an instruction takes a nanosecond. With several CPUs QEMU's clock stands
    // still at times then.
    machine.cpus = 1;
    machine.accel.extend(["-icount".into(), "shift=0".into()]);
    machine.chipset = "q35";
    machine.devices = vec![IOMMU];
    // Two instances of the driver domain at once, or one and copies of its memory.
    machine.memory_mib = if boot.way == Way::Fresh { 3072 } else { 3584 };
    machine.timeout_s = BOOT_S + DEATH_S * count * boot.causes.len() as u64;
    fit(&mut machine, boot.driver, &peer)?;
    let mut found: Vec<Crash> = Vec::new();
    let mut unread = Vec::new();
    let mut before = StreamCounts::default();
    let outcome = machine.start()?.finish(|line| {
        let Some((_, report)) = line.split_once("TANDEM: crash ") else { return false };
        if let Some(mut crash) = Crash::parse(report, boot.driver.least_gap_ms()) {
            // What came out of the machine until now.
            let now = peer.counts().streams;
            crash.wrong_bytes += (now.wrong - before.wrong) * BLOCK;
            crash.came_again(now.again - before.again);
            before = now;
            found.push(crash);
        } else {
            unread.push(report.trim().to_string());
        }
        false
    })?;
    picture(boot, &outcome, &found)?;
    let rows = boot.causes.iter().map(|cause| Row::new(boot, *cause, &found)).collect();
    let log = run::relative(&outcome.log);
    let trouble = [ends(&outcome), all_read(&unread), remains(boot, count, &outcome), whole(boot, &machine)];
    let told = |error: anyhow::Error| error.context(format!("{boot} (log {log})"));
    Ok((rows, trouble.into_iter().filter_map(|each| each.err().map(told)).collect()))
}

/// It got to its end, and the hypervisor said nothing of itself.
fn ends(outcome: &Outcome) -> Result<()> {
    let reports = || outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: ").map(|(_, report)| report.trim()));
    let failed: Vec<&str> = reports().filter(|r| r.contains("FAIL") && !r.starts_with("told ")).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    ensure!(
        outcome.ending == Ending::PowerOff && outcome.report("restart").is_some(),
        "it did not get to its end: {}, after: {}",
        run::ended(&outcome.ending),
        reports().next_back().unwrap_or("nothing")
    );
    let worries = ["Kernel panic", "hypervisor panic", "soft lockup", "BUG:"];
    let worry = outcome.lines.iter().find(|line| worries.iter().any(|w| line.contains(w)));
    ensure!(worry.is_none(), "on the console: {}", worry.map_or("", String::as_str));
    Ok(())
}

/// Each death was told of in words that have all figures.
fn all_read(unread: &[String]) -> Result<()> {
    ensure!(unread.is_empty(), "figures are missing: {}", unread.join("; "));
    Ok(())
}

/// `tandemd` holds as many files at the end as before. That is told if driver domains died more than once, and not only
/// daemons in them.
fn remains(boot: &Boot, count: u64, outcome: &Outcome) -> Result<()> {
    let causes = boot.causes.iter().filter(|cause| **cause != Cause::Twind).count() as u64;
    if causes * count < 2 {
        return Ok(());
    }
    let files = |when: &str| {
        let report = outcome.report(&format!("daemon {when}"))?;
        field(report, "files")?.parse::<u32>().ok()
    };
    let (Some(first), Some(last)) = (files("first"), files("last")) else {
        bail!("how many files tandemd has open is not told");
    };
    ensure!(last <= first, "tandemd has {last} files open, after the first death it had {first}");
    Ok(())
}

/// The medium, as the host finds it.
fn whole(boot: &Boot, machine: &Machine) -> Result<()> {
    let (Some(_), [disk]) = (boot.driver.disk(), machine.disks.as_slice()) else { return Ok(()) };
    pattern::verify_disk(&disk.file, DISK_MIB).context("the medium")?;
    Ok(std::fs::remove_file(&disk.file)?)
}

/// What came when, and where it died.
fn picture(boot: &Boot, outcome: &Outcome, crashes: &[Crash]) -> Result<()> {
    let came = arrivals(outcome.lines.iter().filter_map(|l| l.split_once("TANDEM: arrivals ").map(|(_, rest)| rest)));
    if came.is_empty() {
        return Ok(());
    }
    let died: Vec<f64> = crashes.iter().filter_map(Crash::begins_s).collect();
    let path = host::target("bench")?.join(format!("{}.svg", boot.to_string().replace(' ', "-")));
    let unit = if boot.driver.disk().is_some() { "requests" } else { "datagrams" };
    bench::arrivals::draw(&boot.to_string(), &format!("{unit} in 100 ms"), &came, &died, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_how_many_aims_are_met_whatever_else_is_said() {
        let boot = chosen(&["nvme", "turns", "panic"].map(String::from)).unwrap().remove(0);
        let report = "panic outage=9 from=1 lost=0 wrong=0 errors=0 reinit=1 | panicked: noticed 4 ms";
        let rows = [Row::new(&boot, Cause::Panic, &[Crash::parse(report, 5).unwrap()])];
        let bare = BTreeMap::from([("nvme", vec![3, 4])]);
        let (written, failures) = (["a.csv".into(), "b.csv".into()], [anyhow::anyhow!("the medium")]);
        let text = shown(&rows, &bare, &written, &failures, 1);
        let ends = "Written: a.csv b.csv\nFAIL: the medium\n6 of 6 aims met\n";
        assert!(text.ends_with(ends), "{text}");
        assert!(text.contains("nvme on the bare machine, from its reset until it works: [3, 4] ms\n"), "{text}");
        assert!(shown(&rows, &bare, &written, &[], 1).ends_with("b.csv\n6 of 6 aims met\n"));
        assert!(shown(&[], &bare, &written, &failures, 1).ends_with("FAIL: the medium\n0 of 0 aims met\n"));
    }

    #[test]
    fn the_daemon_has_no_more_files_and_says_how_many() {
        let has = |words: &[&str], count: u64, lines: &[&str]| {
            let boot = chosen(&words.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap().remove(0);
            let lines = lines.iter().map(|line| format!("TANDEM: daemon {line}")).collect();
            remains(&boot, count, &Outcome { ending: Ending::PowerOff, lines, log: "x.log".into() }).is_ok()
        };
        let panics = ["nvme", "fresh", "panic"];
        assert!(has(&panics, 2, &["first files=20 kib=900", "last files=20 kib=950"]));
        assert!(!has(&panics, 2, &["first files=20 kib=900", "last files=21 kib=900"]));
        assert!(!has(&panics, 2, &["last files=20 kib=950"]));
        assert!(!has(&panics, 2, &["first files=20 kib=900", "last files= kib="]));
        assert!(has(&panics, 1, &["last files=20 kib=950"]), "there is none before");
        let twind = ["e1000", "twin-mirror", "fresh", "twind"];
        assert!(has(&twind, 9, &["last files=20 kib=950"]), "no driver domain died");
    }
}
