//! The part of `./tandem run` that is about domains beside dom0: what `images/xen/show.sh` reported, checked and made
//! tables of: who owned what, and what went through whom, how fast and at what cost.

use super::millions;
use anyhow::{bail, ensure, Context, Result};
use testbed::counter::{Span, DISK, PACKETS, STREAM};
use testbed::machine::{field, Outcome};
use testbed::peer::Counts;

/// What is claimed of a domain, and what is said of it.
struct Row {
    name: &'static str,
    vcpus: &'static str,
    has: &'static str,
    serves: &'static str,
    /// Of a guest: the other one and its address.
    other: Option<(&'static str, &'static str)>,
}

const ROWS: &[Row] = &[
    Row { name: "driver", vcpus: "1", has: "e1000 behind VT-d,", serves: "the network of all guests", other: None },
    Row { name: "alice", vcpus: "1", has: "", serves: "", other: Some(("bob", "10.9.0.4")) },
    Row { name: "bob", vcpus: "2", has: "", serves: "", other: Some(("alice", "10.9.0.3")) },
];
/// The guest at the hypervisor's switch.
const AT_SWITCH: Row = Row { name: "carol", vcpus: "1", has: "", serves: "", other: None };

/// What went through whom.
struct Flow {
    what: &'static str,
    through: &'static str,
    amount: u64,
    unit: &'static str,
    bytes: u64,
    milliseconds: u64,
    cost: Span,
}

/// Checks every claim and prints the tables. `mib`: what each test moved; `spans`: what its instructions were;
/// `has_switch`: the hypervisor has one, and twins.
pub fn judge(outcome: &Outcome, kernel: &str, wire: Counts, mib: u64, spans: &[Span], has_switch: bool) -> Result<()> {
    let said = |subject: &str| outcome.report(&format!("show {subject}"));
    if let Some(why) = said("FAIL") {
        bail!("guests: {why}");
    }
    let over = said("over").context("the part with guests did not end")?;
    let mut domids = Vec::new();
    let rows: Vec<&Row> = ROWS.iter().chain(has_switch.then_some(&AT_SWITCH)).collect();
    for row in &rows {
        domids.push(domain(outcome, kernel, row)?);
    }
    let nic = said("nic").context("nobody says who has the NIC")?;
    let address = field(nic, "is").context("the NIC has no address")?;
    ensure!(
        field(nic, "owner") == Some(domids[0])
            && field(nic, "module") == Some("e1000")
            && field(nic, "dom0") == Some("lo,"),
        "the NIC is not the driver domain's: {nic}"
    );
    // Either hypervisor names the IOMMU that it found.
    ensure!(outcome.find("VT-d").is_some() && outcome.find("WITHOUT AN IOMMU").is_none(), "no IOMMU is in use");
    let served = said("served").context("nobody says who serves the guests")?;
    let by_driver = ["alice", "bob"].iter().all(|name| field(served, name) == Some(domids[0]));
    ensure!(by_driver && field(served, "disk") == Some("0"), "others serve the guests: {served}");
    ensure!(wire.streams.pages >= 2, "the other end of the wire served {} pages", wire.streams.pages);
    ensure!(field(over, "domains") == Some("1"), "domains stay after their end: {over}");

    let dom0s = outcome.report("cpus").and_then(|r| field(r, "nproc")).unwrap_or("?");
    println!("  {:<8} {:>5} {:>6}  {:<32} serves", "domain", "domid", "vCPUs", "has");
    println!("  {:<8} {:>5} {dom0s:>6}  {:<32} bob's disk", "dom0", 0, "two nvme disks");
    for (row, domid) in rows.iter().zip(&domids) {
        let has = if row.has.is_empty() { String::new() } else { format!("{} {address}", row.has) };
        println!("  {:<8} {domid:>5} {:>6}  {has:<32} {}", row.name, row.vcpus, row.serves);
    }
    println!("  alice and bob fetched the page from outside and each other's; all four right");
    print_flows(&flows(outcome, mib, spans, has_switch)?);
    println!("  every byte checked");
    if has_switch {
        judge_ways(outcome)?;
        judge_deaths(outcome, mib)?;
    }
    println!("  alice shut down, the others destroyed, nothing stays");
    Ok(())
}

/// Packets of the guest at the switch went by Linux and then by the twin, and a stream outlived the end of the twin.
fn judge_ways(outcome: &Outcome) -> Result<()> {
    for way in ["linux", "twin"] {
        let said = reports(outcome, "way").find(|r| field(r, "is") == Some(way));
        let said = said.with_context(|| format!("nobody says that {way} is the way out"))?;
        ensure!(field(said, "by") == Some(way), "{way} is not the way out: {said}");
    }
    let stream = outcome.report("show stream").context("nobody says what became of the stream")?;
    let goes_on = |by| field(stream, by) == Some("yes");
    ensure!(goes_on("twin") && goes_on("linux"), "carol's stream does not outlive the twin: {stream}");
    println!("  the twin of e1000 in the hypervisor was killed in a stream of carol's: the same stream went on through Linux");
    Ok(())
}

/// Two driver domains crashed under a download and under writes, and both guests went on.
fn judge_deaths(outcome: &Outcome, mib: u64) -> Result<()> {
    let of = |what| {
        let said = reports(outcome, "outlived").find(|r| field(r, "what") == Some(what));
        let said = said.with_context(|| format!("nobody says what became of the {what}"))?;
        said.split_once(" | ").with_context(|| format!("nobody says how the {what} came back: {said}"))
    };
    let seconds = |said| {
        let ms = number(said, "pause_ms");
        format!("{}.{} s", ms / 1000, ms % 1000 / 100)
    };
    let (network, came_back) = of("network")?;
    let (before, blocks) = (number(network, "before"), number(network, "blocks"));
    ensure!(network.contains("tcp ok get") && blocks == 64 * mib, "dave's download: {network}");
    ensure!(before < blocks, "dave's download was over before the driver domain crashed: {network}");
    println!("  two driver domains that tandemd looks after crashed while dave downloaded and erin wrote to a disk of theirs");
    println!(
        "    network: dave waited {}, the same connection went on, {blocks} blocks right; {came_back}",
        seconds(network)
    );
    let (disk, came_back) = of("disk")?;
    ensure!(
        disk.contains("disk ok") && field(disk, "errors") == Some("0") && field(disk, "wrong") == Some("0"),
        "erin's disk: {disk}"
    );
    println!(
        "    disk: erin waited {}, no error, {} blocks right; {came_back}",
        seconds(disk),
        number(disk, "verified")
    );
    Ok(())
}

/// Checks what is claimed of a domain; gives its number.
fn domain<'a>(outcome: &'a Outcome, kernel: &str, row: &Row) -> Result<&'a str> {
    let is_of = |r: &&str, key: &str| field(r, key) == Some(row.name);
    let of = reports(outcome, "domain").find(|r| is_of(r, "name"));
    let of = of.with_context(|| format!("{} did not boot", row.name))?;
    ensure!(field(of, "vcpus") == Some(row.vcpus) && field(of, "kernel") == Some(kernel), "domain: {of}");
    if let Some((other, address)) = row.other {
        for (from, text) in [("10.9.0.1", "a_page_from_outside".into()), (address, format!("page_of_{other}"))] {
            let page = reports(outcome, "page").find(|r| is_of(r, "by") && field(r, "from") == Some(from));
            let page = page.with_context(|| format!("{} fetched nothing from {from}", row.name))?;
            ensure!(field(page, "text") == Some(&text), "{} fetched something else: {page}", row.name);
        }
    }
    field(of, "domid").context("a domain without a number")
}

/// What the test tools said, with what QEMU's plugin counted meanwhile, in the order in which they ran.
fn flows(outcome: &Outcome, mib: u64, spans: &[Span], has_switch: bool) -> Result<Vec<Flow>> {
    let mut spans = spans.iter();
    let mut flow = |what, through, unit, report: &str, kind| -> Result<Flow> {
        let sum = |keys: &[&str]| keys.iter().map(|key| number(report, key)).sum::<u64>();
        let cost = *spans.next().with_context(|| format!("no instructions counted for: {what}"))?;
        ensure!(cost.kind == kind, "the marks of the test tools are out of order at: {what}");
        let amount = sum(&["sent", "received", "read", "written", "blocks"]);
        let bytes = if kind == PACKETS { (2 * mib) << 20 } else { amount << 16 };
        Ok(Flow { what, through, amount, unit, bytes, milliseconds: sum(&["send_ms", "receive_ms", "ms"]), cost })
    };
    let dom0s = |subject: &str| outcome.report(subject).with_context(|| format!("dom0: no word about its {subject}"));
    // The guest at the switch says all of it twice.
    let nth = |name: &str, start: &str, n| -> Result<&str> {
        let report = reports(outcome, name).filter(|r| r.starts_with(start)).nth(n);
        report.with_context(|| format!("{name}: no `{start}` ({:?})", reports(outcome, name).collect::<Vec<_>>()))
    };
    let of = |name, start| nth(name, start, 0);
    let mut flows = vec![
        flow("dom0 <-> outside", "its e1000, before it gave it away", "packets", dom0s("net ok")?, PACKETS)?,
        flow("dom0's disk", "its nvme", "blocks", dom0s("disk ok")?, DISK)?,
        flow("alice <-> outside", "driver: netback, bridge, e1000", "packets", of("alice", "net ok")?, PACKETS)?,
        flow("bob -> alice, TCP", "driver: netback, bridge, netback", "blocks", of("bob", "tcp ok put")?, STREAM)?,
        flow("alice -> bob, TCP", "driver: netback, bridge, netback", "blocks", of("bob", "tcp ok get")?, STREAM)?,
        flow("bob's disk", "dom0: blkback, nvme", "blocks", of("bob", "disk ok")?, DISK)?,
    ];
    let ways = ["switch, driver: netfront, bridge, e1000", "switch, twin of driver's e1000"];
    for (n, way) in ways.into_iter().enumerate().filter(|_| has_switch) {
        flows.push(flow("carol <-> outside", way, "packets", nth("carol", "net ok", n)?, PACKETS)?);
        flows.push(flow("carol -> outside, TCP", way, "blocks", nth("carol", "tcp ok put", n)?, STREAM)?);
        flows.push(flow("outside -> carol, TCP", way, "blocks", nth("carol", "tcp ok get", n)?, STREAM)?);
    }
    Ok(flows)
}

/// A block is of 64 KiB; the cost is in instructions of all CPUs.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn print_flows(flows: &[Flow]) {
    println!(
        "  {:<21} {:<39} {:>13} {:>8} {:>14} {:>13}",
        "what", "through", "", "MB/s", "instr. each", "hypervisor's"
    );
    for f in flows {
        let amount = format!("{} {}", f.amount, f.unit);
        let rate = millions(f.bytes) / (f.milliseconds.max(1) as f64 / 1e3);
        let each = |instructions: u64| instructions / f.amount.max(1);
        println!(
            "  {:<21} {:<39} {amount:>13} {rate:>8.1} {:>14} {:>13}",
            f.what,
            f.through,
            each(f.cost.count.total()),
            each(f.cost.count.hypervisor)
        );
    }
}

fn reports<'a>(outcome: &'a Outcome, subject: &str) -> impl Iterator<Item = &'a str> {
    let key = format!("TANDEM: show {subject} ");
    outcome.lines.iter().filter_map(move |l| l.split_once(key.as_str()).map(|(_, report)| report.trim()))
}

fn number(report: &str, key: &str) -> u64 {
    field(report, key).and_then(|v| v.parse().ok()).unwrap_or(0)
}
