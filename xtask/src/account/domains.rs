//! The part of the account that is about guests: what `images/xen/show.sh` reported, checked and made a table of.

use crate::machine::{field, Outcome};
use crate::peer::Counts;
use anyhow::{bail, ensure, Context, Result};

/// What is claimed of one guest.
struct Row {
    name: &'static str,
    vcpus: &'static str,
    /// The other guest and its address.
    other: (&'static str, &'static str),
}

const ROWS: &[Row] = &[
    Row { name: "alice", vcpus: "1", other: ("bob", "10.9.0.4") },
    Row { name: "bob", vcpus: "2", other: ("alice", "10.9.0.3") },
];

/// Checks every claim and prints the table.
pub fn judge(outcome: &Outcome, kernel: &str, wire: Counts) -> Result<()> {
    let said = |subject: &str| outcome.report(&format!("show {subject}"));
    if let Some(why) = said("FAIL") {
        bail!("guests: {why}");
    }
    let over = said("over").context("the part with guests did not end")?;
    let mut lines = Vec::new();
    for row in ROWS {
        let is_of = |r: &&str, key: &str| field(r, key) == Some(row.name);
        let guest = reports(outcome, "guest").find(|r| is_of(r, "name")).context("a guest did not boot")?;
        ensure!(field(guest, "vcpus") == Some(row.vcpus) && field(guest, "kernel") == Some(kernel), "guest: {guest}");
        for (from, text) in
            [("10.9.0.1", "a_page_from_outside".into()), (row.other.1, format!("page_of_{}", row.other.0))]
        {
            let page = reports(outcome, "page").find(|r| is_of(r, "by") && field(r, "from") == Some(from));
            let page = page.with_context(|| format!("{} fetched nothing from {from}", row.name))?;
            ensure!(field(page, "text") == Some(&text), "{} fetched something else: {page}", row.name);
        }
        let domid = field(guest, "domid").unwrap_or("?");
        lines.push(format!("  {:<7} {domid:>5} {:>6}  right         right", row.name, row.vcpus));
    }
    ensure!(wire.streams.pages >= 2, "the other end of the wire served {} pages", wire.streams.pages);
    let net = reports(outcome, "alice").find(|r| r.starts_with("net ")).context("alice's packets: no word")?;
    ensure!(net.starts_with("net ok"), "alice: {net}");
    lines[0].push_str(&format!("            {} packets out, {} in", number(net, "sent"), number(net, "received")));
    for direction in ["put", "get"] {
        let stream = reports(outcome, "bob").find(|r| r.starts_with(&format!("tcp ok {direction}")));
        stream.with_context(|| format!("the stream between the guests ({direction}) did not arrive"))?;
    }
    let disk = reports(outcome, "bob").find(|r| r.starts_with("disk ")).context("bob's disk: no word")?;
    ensure!(disk.starts_with("disk ok"), "bob: {disk}");
    let blocks = number(disk, "read") + number(disk, "written");
    lines[1].push_str(&format!("            {blocks} blocks read or written"));
    ensure!(field(over, "domains") == Some("1"), "domains stay after their end: {over}");
    println!("  guest   domid  vCPUs  page outside  page of the other");
    lines.iter().for_each(|line| println!("{line}"));
    println!(
        "  a TCP stream from guest to guest and back, every byte right; alice shut down, bob destroyed, nothing stays"
    );
    Ok(())
}

fn reports<'a>(outcome: &'a Outcome, subject: &str) -> impl Iterator<Item = &'a str> {
    let key = format!("TANDEM: show {subject} ");
    outcome.lines.iter().filter_map(move |l| l.split_once(key.as_str()).map(|(_, report)| report.trim()))
}

fn number(report: &str, key: &str) -> u64 {
    field(report, key).and_then(|v| v.parse().ok()).unwrap_or(0)
}
