//! Interfaces and the service's switch in the hypervisor.

use super::{places, Service};
use crate::device::{self, Device};
use crate::hypercall::Switches;
use crate::store::{Change, Store};
use crate::supervisor::{candidate_of, remains_of, standby_of};
use anyhow::{Context, Result};
use channel::vif::features::max_queues;
use rustix::io::Errno;
use std::collections::BTreeMap;
use xen_abi::channel_op::{
    ChannelConnect, CONNECT_CSUM_IPV4, CONNECT_CSUM_IPV6, CONNECT_GSO_TCPV4, CONNECT_GSO_TCPV6, CONNECT_NO_OFFLOAD,
    CONNECT_UPLINK,
};

/// What a front end may be left to do with packets that it gets.
const CONNECT_OFFLOAD: u32 = CONNECT_GSO_TCPV4 | CONNECT_GSO_TCPV6 | CONNECT_CSUM_IPV4 | CONNECT_CSUM_IPV6;

impl Service {
    /// Plugs a device in; or says why not, in words for the operator.
    pub(super) fn plug(
        &mut self,
        device: Device,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Result<(), String>> {
        let (front, back) = self.keys_of(device, store)?;
        let terms = match device::terms(|k| front.get(k).map(String::as_str), |k| back.get(k).map(String::as_str)) {
            Ok(terms) => terms,
            Err(why) => return Ok(Err(format!("{} {why}", Errno::INVAL.raw_os_error()))),
        };
        let guest_name = store.read(&format!("/local/domain/{}/name", device.guest))?;
        let weight = guest_name.as_ref().and_then(|guest| self.weights.get(guest)).copied().unwrap_or(0);
        let is_way_out = self.driver_domain.is_some() && guest_name == self.driver_domain;
        if is_way_out && terms.nr_queues > 1 {
            return Ok(Err(format!("{} the way out has one queue", Errno::INVAL.raw_os_error())));
        }
        let mut request = ChannelConnect {
            guest: device.guest,
            backend: self.at.domain,
            device: device.number,
            weight,
            flags: match is_way_out {
                true if self.offload => terms.flags | CONNECT_UPLINK,
                true => terms.flags & !CONNECT_OFFLOAD | CONNECT_UPLINK | CONNECT_NO_OFFLOAD,
                false => terms.flags,
            },
            ..terms
        };
        let mut answer = self.connect(&mut request, store, switches)?;
        if answer == Err(Errno::NOENT) {
            // The switch that xenstore names is none of this hypervisor's.
            self.switch = None;
            answer = self.connect(&mut request, store, switches)?;
        }
        let error = match answer {
            Ok(vif) => {
                self.devices.insert(device, Some(vif));
                let rate = back.get("rate").map_or(String::new(), |rate| format!(", rate {rate}"));
                let weight = if weight == 0 { String::new() } else { format!(", weight {weight}") };
                let queues = match request.nr_queues {
                    1 => String::new(),
                    count => format!(", {count} queues"),
                };
                let way_out = if is_way_out { ", the way out" } else { "" };
                let address = back.get("mac").map_or("", String::as_str);
                let name = guest_name.map_or(String::new(), |name| format!(", {name}"));
                self.say(device, &format!("{name}: connected, {address}{rate}{weight}{queues}{way_out}"));
                return Ok(Ok(()));
            }
            Err(error) => error,
        };
        Ok(Err(format!("{} {}", error.raw_os_error(), explain(error, is_way_out))))
    }

    /// What both ends have written that matters when it is plugged in.
    pub(super) fn keys_of(&self, device: Device, store: &mut impl Store) -> Result<(Keys, Keys)> {
        let path = places::front(device);
        let mut front = read_keys(store, &path, device::FRONT_KEYS, "")?;
        for place in device::places_of_queues(|key| front.get(key).map(String::as_str)) {
            front.append(&mut read_keys(store, &path, device::QUEUE_KEYS, &place)?);
        }
        Ok((front, read_keys(store, &self.at.back(device), device::BACK_KEYS, "")?))
    }

    /// So many queues a guest's interface may have: one for each of its vCPUs. One that is the way out, or may become
    /// it, has one, and so has one with a limit, which holds for all that it sends.
    pub(super) fn queues_for(&self, device: Device, store: &mut impl Store) -> Result<u32> {
        let name = store.read(&places::name_of(device.guest))?;
        let may_be_way_out = self.driver_domain.as_ref().zip(name).is_some_and(|(driver, name)| {
            [standby_of(driver), candidate_of(driver), remains_of(driver), driver.clone()].contains(&name)
        });
        if may_be_way_out || store.read(&format!("{}/rate", self.at.back(device)))?.is_some() {
            return Ok(1);
        }
        let vcpus = store.list(&format!("/local/domain/{}/cpu", device.guest))?;
        Ok(max_queues(vcpus.len().try_into().unwrap_or(u32::MAX)))
    }

    /// Connects it to the service's switch, which is made if there is none yet. The inner error is the hypervisor's:
    /// one that has no memory for one interface, or for the switch, may have some for others, and guests of other
    /// services need us.
    fn connect(
        &mut self,
        request: &mut ChannelConnect,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Result<u32, Errno>> {
        request.switch = match self.switch {
            Some(switch) => switch,
            None => {
                let switch = match switches.create() {
                    Ok(switch) => switch,
                    Err(error) => return Ok(Err(error)),
                };
                store.change("/local", &[Change::Write(self.at.switch(), switch.to_string())])?;
                (self.switch, self.is_held) = (Some(switch), false);
                switch
            }
        };
        if !self.is_held {
            if let Err(error) = switches.hold(request.switch, self.hold_ms) {
                return Ok(Err(error));
            }
            self.is_held = true;
        }
        Ok(switches.connect(request))
    }

    /// This service's interfaces that are plugged in.
    pub(super) fn plugged(&self, switches: &mut impl Switches) -> Result<Vec<(Device, u32)>> {
        let mut found = Vec::new();
        let mut place = 0;
        loop {
            match switches.next(place) {
                Ok(status) => {
                    place = status.next;
                    if status.backend == self.at.domain {
                        found.push((Device { guest: status.guest, number: status.device }, status.vif));
                    }
                }
                Err(Errno::NOENT) => return Ok(found),
                Err(error) => return Err(error).context("the list of interfaces"),
            }
        }
    }
}

/// Keys of one end, and their values.
type Keys = BTreeMap<String, String>;

/// Those that are there, with what is put before them.
fn read_keys(store: &mut impl Store, path: &str, keys: &[&str], before: &str) -> Result<Keys> {
    let mut found = BTreeMap::new();
    for key in keys {
        let key = format!("{before}{key}");
        if let Some(value) = store.read(&format!("{path}/{key}"))? {
            found.insert(key, value);
        }
    }
    Ok(found)
}

/// What an error of the hypervisor's means here.
fn explain(error: Errno, is_way_out: bool) -> String {
    match error {
        Errno::INVAL => "a grant or port that the front end named does not hold, or a ring that cannot be".into(),
        Errno::SRCH => "the guest is gone".into(),
        Errno::BUSY if is_way_out => "the switch has a way out already".into(),
        Errno::BUSY => "a port that the front end named is connected already".into(),
        Errno::NOSPC => "there are as many interfaces, or switches, as there can be".into(),
        Errno::NOMEM => "the hypervisor has no memory".into(),
        other => other.to_string(),
    }
}
