//! `tandemd --list`: interfaces that are plugged in and disks that are connected, what they have done, and the
//! switches' ways out.

use crate::hypercall::{DiskList, Hypervisor, Switches};
use crate::look;
use crate::store::Store;
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fmt::Write;
use xen_abi::channel_op as op;

/// The list, as text.
pub fn show(store: &mut impl Store, hypervisor: &mut Hypervisor) -> Result<String> {
    let mut out = heading();
    let mut switches = BTreeSet::new();
    let mut place = 0;
    loop {
        let status = match hypervisor.next(place) {
            Err(Errno::NOENT) => break,
            status => status.context("the list of interfaces")?,
        };
        place = status.next;
        switches.insert(status.switch);
        out.push_str(&line(&name(store, status.guest)?, &status));
    }
    let mut place = 0;
    let mut disks = String::new();
    loop {
        let status = match hypervisor.next_disk(place) {
            Err(Errno::NOENT) => break,
            status => status.context("the list of disks")?,
        };
        place = status.next;
        disks.push_str(&disk_line(&name(store, status.guest)?, &status));
    }
    if !disks.is_empty() {
        out.push_str(&disk_heading());
        out.push_str(&disks);
    }
    for switch in switches {
        let way = hypervisor.way_out(switch).context("a switch's way out")?;
        if way.kind != op::WAY_OUT_NONE {
            out.push_str(&outside(&name(store, way.domain)?, &way));
        }
    }
    Ok(out)
}

fn name(store: &mut impl Store, domain: u16) -> Result<String> {
    Ok(store.read(&format!("/local/domain/{domain}/name"))?.unwrap_or_else(|| domain.to_string()))
}

fn heading() -> String {
    format!(
        "{:<20} {:>3} {:<17} {:>12} {:>15} {:>9} {:>12} {:>15} {:>9} state\n",
        "guest", "vif", "address", "sent", "bytes", "lost", "received", "bytes", "lost"
    )
}

/// What a guest has sent to nobody, or from an address that is not its own, counts as lost.
fn line(guest: &str, status: &op::ChannelStatus) -> String {
    let mac: Vec<String> = status.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    let said = look::state(status.state);
    format!(
        "{guest:<20} {:>3} {} {:>12} {:>15} {:>9} {:>12} {:>15} {:>9} {said}\n",
        status.device,
        mac.join(":"),
        status.tx_packets,
        status.tx_bytes,
        status.tx_errors + status.tx_dropped + status.tx_refused,
        status.rx_packets,
        status.rx_bytes,
        status.rx_errors + status.rx_dropped,
    )
}

fn disk_heading() -> String {
    format!(
        "{:<20} {:>9} {:>9} {:>13} {:>9} {:>13} {:>8} {:>8} {:>6} {:>8} {:>5} state\n",
        "guest", "disk", "reads", "sectors", "writes", "sectors", "flushes", "discards", "errors", "repeated", "wait"
    )
}

fn disk_line(guest: &str, status: &op::ChannelDiskStatus) -> String {
    format!(
        "{guest:<20} {:>9} {:>9} {:>13} {:>9} {:>13} {:>8} {:>8} {:>6} {:>8} {:>5} {}\n",
        status.device,
        status.reads,
        status.read_sectors,
        status.writes,
        status.written_sectors,
        status.flushes,
        status.discards,
        status.errors,
        status.repeated,
        status.waiting,
        look::disk_state(status),
    )
}

fn outside(domain: &str, way: &op::ChannelWayOut) -> String {
    let mut out = String::new();
    let what = if way.kind == op::WAY_OUT_CARD { "its card" } else { "its interface" };
    let _ = writeln!(
        out,
        "way out: {domain} by {what}; out {} packets, {} bytes, {} lost; in {} packets, {} bytes, {} lost; {} wait",
        way.out_packets, way.out_bytes, way.out_dropped, way.in_packets, way.in_bytes, way.in_dropped, way.waiting
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_column_for_each_word_of_the_heading() {
        let status = op::ChannelStatus { tx_packets: 5, tx_refused: 2, rx_bytes: 9, ..op::ChannelStatus::default() };
        let line = line("a", &status);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["a", "0", "00:00:00:00:00:00", "5", "0", "2", "0", "9", "0", "connected"]);
        assert_eq!(words.len(), heading().split_whitespace().count());
        let stopped = op::ChannelStatus { state: op::STATE_RX_ENDED | op::STATE_STALLED, ..status };
        assert!(self::line("a", &stopped).contains(" receives-nonsense,takes-nothing\n"));
    }

    #[test]
    fn a_disks_line_has_them_too() {
        let status = op::ChannelDiskStatus { device: 51712, writes: 5, back: 3, ..op::ChannelDiskStatus::default() };
        let line = disk_line("a", &status);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["a", "51712", "0", "0", "5", "0", "0", "0", "0", "0", "0", "connected"]);
        assert_eq!(words.len(), disk_heading().split_whitespace().count());
        let said = |back, state| disk_line("a", &op::ChannelDiskStatus { back, state, ..status });
        assert!(said(op::DISK_NO_BACK, 0).ends_with(" waits\n"));
        assert!(said(op::DISK_NO_BACK, op::DISK_GIVEN_UP).ends_with(" answered-with-errors\n"));
        assert!(said(3, op::DISK_BACK_ENDED).ends_with(" answered-nonsense\n"));
        assert!(said(3, op::DISK_BACK_EMPTY).ends_with(" answered-without-reading\n"));
    }

    #[test]
    fn the_way_out_is_named() {
        let way = op::ChannelWayOut { kind: op::WAY_OUT_CARD, out_packets: 3, ..op::ChannelWayOut::default() };
        assert!(outside("dd", &way).starts_with("way out: dd by its card; out 3 packets"));
    }
}
