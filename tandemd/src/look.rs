//! What there is: services, their interfaces, their ways out, and what carries packets there. Only looks; nothing
//! changes by it.

use crate::config::{self, Config, Kind};
use crate::hypercall::{disks_of, DiskList, Switches};
use crate::store::Store;
use ::control::told::{Counts, Disk, Service, Traffic, Vif, WayOut};
use ::control::Mode;
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;
use twin_abi::op::{TwinStats, MODE_STLB};
use xen_abi::channel_op::{self as op, ChannelDiskStatus, ChannelStatus, ChannelWayOut};

/// Bytes of a sector, as counts have it.
const SECTOR_BYTES: u64 = 512;

/// Names of domains.
type Names = BTreeMap<u16, String>;

/// The services of this name, or all. What twind says is not there yet. Errors: in words, for a name that is none.
pub fn services(
    config: &Config,
    name: Option<&str>,
    store: &mut impl Store,
    hypervisor: &mut (impl Switches + DiskList),
) -> Result<Vec<Service>> {
    if let Some(name) = name.filter(|name| !config.service.contains_key(*name)) {
        let there: Vec<&str> = config.service.keys().map(String::as_str).collect();
        anyhow::bail!("there is no service {name}: there is {}", there.join(", "));
    }
    let names = names(store)?;
    let vifs = vifs(hypervisor)?;
    let chosen = config.service.iter().filter(|(of, _)| name.is_none_or(|name| name == *of));
    let one = |(name, service): (&String, &config::Service)| match service.kind {
        Kind::Net => one(name, service, (&names, &vifs), store, hypervisor),
        Kind::Disk => of_disks(name, service, &names, hypervisor),
    };
    chosen.map(one).collect()
}

fn of_disks(name: &str, configured: &config::Service, names: &Names, disks: &mut impl DiskList) -> Result<Service> {
    let domain = names.iter().find(|(_, of)| *of == name).map(|(domain, _)| *domain);
    let driver_domain = configured.driver_domain.clone();
    let mut service = Service { name: name.into(), domain, driver_domain, is_of_disks: true, ..Service::default() };
    if let Some(domain) = domain {
        let all = disks_of(disks, domain).context("the list of disks")?;
        service.disks = all.iter().map(|disk| disk_of(disk, names)).collect();
    }
    Ok(service)
}

fn disk_of(disk: &ChannelDiskStatus, names: &Names) -> Disk {
    Disk {
        guest: names.get(&disk.guest).cloned().unwrap_or_else(|| disk.guest.to_string()),
        domain: disk.guest,
        number: disk.device,
        state: disk_state(disk).into(),
        reads: disk.reads,
        writes: disk.writes,
        flushes: disk.flushes,
        discards: disk.discards,
        read_bytes: disk.read_sectors.saturating_mul(SECTOR_BYTES),
        written_bytes: disk.written_sectors.saturating_mul(SECTOR_BYTES),
        errors: disk.errors,
        repeated: disk.repeated,
        passed_on: disk.passed_on,
        merged: disk.merged,
        waiting: disk.waiting,
        oldest_ms: disk.oldest_ns / 1_000_000,
        overdue_ms: disk.overdue_ns / 1_000_000,
        bad_answers: disk.bad_answers,
        bad_rings: disk.bad_rings,
        empty_reads: disk.empty_reads,
    }
}

/// How a disk is, in a word.
pub fn disk_state(disk: &ChannelDiskStatus) -> &'static str {
    match disk.state {
        state if state & op::DISK_ENDED != 0 => "asks-nonsense",
        state if state & op::DISK_BACK_ENDED != 0 => "answered-nonsense",
        state if state & op::DISK_BACK_EMPTY != 0 => "answered-without-reading",
        state if state & op::DISK_GIVEN_UP != 0 => "answered-with-errors",
        _ if disk.back == op::DISK_NO_BACK => "waits",
        _ => "connected",
    }
}

fn one(
    name: &str,
    configured: &config::Service,
    (names, vifs): (&Names, &[ChannelStatus]),
    store: &mut impl Store,
    switches: &mut impl Switches,
) -> Result<Service> {
    let domain = names.iter().find(|(_, of)| *of == name).map(|(domain, _)| *domain);
    let mut service =
        Service { name: name.into(), domain, driver_domain: configured.driver_domain.clone(), ..Service::default() };
    let said = store.read(&format!("/tool/tandem/{name}/switch"))?;
    let Some(switch) = said.and_then(|switch| switch.parse().ok()) else { return Ok(service) };
    let way = match switches.way_out(switch) {
        Ok(way) => way,
        // It is the one of an earlier hypervisor's.
        Err(Errno::NOENT) => return Ok(service),
        Err(error) => return Err(error).context("a switch's way out"),
    };
    service.switch = Some(switch);
    let own: Vec<&ChannelStatus> = vifs.iter().filter(|vif| vif.switch == switch).collect();
    service.vifs = own.iter().map(|vif| describe(vif, names)).collect();
    service.mode = match way.kind {
        op::WAY_OUT_CARD => Some(twin_mode(switches, way.domain)?),
        op::WAY_OUT_INTERFACE => Some(Mode::Vm),
        _ => None,
    };
    let number = own.iter().find(|vif| vif.vif == way.vif).map_or(0, |vif| vif.device);
    service.way_out = service.mode.map(|_| outside(&way, number));
    service.counts = service.mode.and(counts(switches, way.domain)?);
    Ok(service)
}

/// The mode of the domain's twins that have cards. One of its twins has this way out; if they differ, which one it is
/// its twind knows.
fn twin_mode(switches: &mut impl Switches, domain: u16) -> Result<Mode> {
    let mut own =
        twins(switches)?.into_iter().filter(|twin| twin.domain == u32::from(domain) && twin.has_card != 0).peekable();
    let is_stlb = own.peek().is_some() && own.all(|twin| twin.flags == MODE_STLB);
    Ok(if is_stlb { Mode::TwinStlb } else { Mode::TwinMirror })
}

/// What the domain's only twin has done. If it has several, who asks its twind knows which it is.
fn counts(switches: &mut impl Switches, domain: u16) -> Result<Option<Counts>> {
    let own = twins(switches)?.into_iter().filter(|twin| twin.domain == u32::from(domain));
    let mut found: Vec<TwinStats> = own.collect();
    Ok(found.pop().filter(|_| found.is_empty()).map(|twin| Counts::from(&twin)))
}

/// All twins.
pub fn twins(switches: &mut impl Switches) -> Result<Vec<TwinStats>> {
    let mut found = Vec::new();
    let mut number = 0;
    loop {
        match switches.next_twin(number) {
            Ok(twin) => {
                number = twin.twin + 1;
                found.push(twin);
            }
            Err(Errno::NOENT) => return Ok(found),
            // An older hypervisor does not tell.
            Err(Errno::NOSYS) => return Ok(found),
            Err(error) => return Err(error).context("the list of twins"),
        }
    }
}

/// All interfaces that are plugged in.
pub fn vifs(switches: &mut impl Switches) -> Result<Vec<ChannelStatus>> {
    let mut found = Vec::new();
    let mut place = 0;
    loop {
        match switches.next(place) {
            Ok(vif) => {
                place = vif.next;
                found.push(vif);
            }
            Err(Errno::NOENT) => return Ok(found),
            Err(error) => return Err(error).context("the list of interfaces"),
        }
    }
}

/// The number that a domain has for an interface of its own, by the hypervisor's name of it. `None`: it is gone.
pub fn number_of(vif: u32, switches: &mut impl Switches) -> Result<Option<u32>> {
    match switches.status(vif) {
        Ok(status) => Ok(Some(status.device)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error).context("what an interface is"),
    }
}

fn names(store: &mut impl Store) -> Result<Names> {
    let mut names = Names::new();
    for domain in store.list("/local/domain")? {
        let name = store.read(&format!("/local/domain/{domain}/name"))?;
        if let (Ok(domain), Some(name)) = (domain.parse(), name) {
            names.insert(domain, name);
        }
    }
    Ok(names)
}

fn outside(way: &ChannelWayOut, vif: u32) -> WayOut {
    WayOut {
        domain: way.domain,
        vif,
        sent: Traffic { packets: way.out_packets, bytes: way.out_bytes, lost: way.out_dropped },
        received: Traffic { packets: way.in_packets, bytes: way.in_bytes, lost: way.in_dropped },
        waiting: way.waiting,
    }
}

fn describe(vif: &ChannelStatus, names: &Names) -> Vif {
    let address: Vec<String> = vif.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    Vif {
        guest: names.get(&vif.guest).cloned().unwrap_or_else(|| vif.guest.to_string()),
        domain: vif.guest,
        number: vif.device,
        address: address.join(":"),
        state: state(vif.state),
        sent: Traffic {
            packets: vif.tx_packets,
            bytes: vif.tx_bytes,
            lost: vif.tx_errors + vif.tx_dropped + vif.tx_refused,
        },
        received: Traffic { packets: vif.rx_packets, bytes: vif.rx_bytes, lost: vif.rx_errors + vif.rx_dropped },
    }
}

/// What is wrong with an interface, in words with commas between them.
pub fn state(bits: u32) -> String {
    let words = [
        (op::STATE_TX_ENDED, "sends-nonsense"),
        (op::STATE_RX_ENDED, "receives-nonsense"),
        (op::STATE_STALLED, "takes-nothing"),
    ];
    let said: Vec<&str> = words.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| *word).collect();
    if said.is_empty() {
        "connected".into()
    } else {
        said.join(",")
    }
}
