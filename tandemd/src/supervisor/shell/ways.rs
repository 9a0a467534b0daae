//! What a look finds out of a domain, and of the way of a service that it may be.

use super::others::link_at;
use super::{Shell, ANSWERS, ASKS};
use crate::hypercall::{is_missed, Switches};
use crate::look::number_of;
use crate::store::Store;
use crate::supervisor::answered::Heard;
use crate::supervisor::health::{Beat, Queue};
use crate::supervisor::look::{Domain, Way};
use crate::supervisor::passthrough::{self, Meeting};
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::time::Duration;
use xen_abi::channel_op::{self as op, ChannelDiskStatus, ChannelWayOut};
use xen_abi::domctl::{DOMINF_DYING, DOMINF_PAUSED, DOMINF_SHUTDOWN, DOMINF_SHUTDOWN_SHIFT, INVALID_MAX_VCPU_ID};

impl Shell {
    /// Whether it has said that its link is up; who did once is not asked again.
    pub(super) fn has_link(&mut self, domain: u16) -> Result<bool> {
        if self.linked != Some(domain) {
            let said = match self.served {
                Some(served) => link_at(served, domain, &mut self.store)?,
                None => None,
            };
            self.linked = said.filter(|said| said == "up").map(|_| domain);
        }
        Ok(self.linked == Some(domain))
    }

    /// Whether a domain and the PCI back end get to know each other. One that does not answer the PCI back end is not
    /// waited for.
    pub(super) fn is_meeting(&mut self, domain: u16) -> Result<bool> {
        let Some(since) = self.introduced.get(&domain) else { return Ok(false) };
        let past = Self::now().saturating_sub(*since);
        if past >= ASKS {
            return Ok(false);
        }
        Ok(match passthrough::meeting(domain, &mut self.store)? {
            Some(Meeting::Begins) => past < ANSWERS,
            Some(Meeting::Asks) => true,
            None => false,
        })
    }

    pub(super) fn look_at(&mut self, id: u16) -> Result<Option<Domain>> {
        let info = match self.hypervisor.domain(id) {
            Ok(info) => info,
            // The toolstack has not cleared its directory away yet.
            Err(Errno::SRCH) => return Ok(Some(Domain { id, is_dying: true, ..Domain::default() })),
            Err(error) => return Err(error).context("what a domain is"),
        };
        let mut beats = Vec::new();
        let (mut was_ended, mut is_bereft, mut ended_for) = (false, false, Duration::ZERO);
        let vcpus = if info.max_vcpu_id == INVALID_MAX_VCPU_ID { 0..=0 } else { 0..=info.max_vcpu_id };
        for vcpu in vcpus {
            let Ok(beat) = self.hypervisor.beat(id, vcpu) else { continue };
            was_ended |= beat.flags & op::BEAT_CRASHED != 0;
            is_bereft |= beat.flags & op::BEAT_BEREFT != 0;
            ended_for = Duration::from_nanos(beat.ended_ns);
            beats.push(Beat {
                vcpu,
                upcalls: beat.upcalls,
                run: Duration::from_nanos(beat.run_ns),
                waited: Duration::from_nanos(beat.waited_ns),
                dma_fault_for: (beat.flags & op::BEAT_DMA_FAULT != 0).then(|| Duration::from_nanos(beat.dma_fault_ns)),
                wedged_for: (beat.flags & op::BEAT_WEDGED != 0).then(|| Duration::from_nanos(beat.wedged_ns)),
            });
        }
        let code = info.flags >> DOMINF_SHUTDOWN_SHIFT & 0xff;
        Ok(Some(Domain {
            id,
            end: (info.flags & DOMINF_SHUTDOWN != 0).then_some((code, was_ended)),
            ended_for,
            is_out_of_memory: false,
            is_dying: info.flags & DOMINF_DYING != 0,
            is_paused: info.flags & DOMINF_PAUSED != 0,
            is_bereft,
            max_pages: info.max_pages,
            beats,
        }))
    }

    /// The service's way out, if it is by this domain.
    pub(super) fn way_of(&mut self, domain: u16) -> Result<Option<Way>> {
        let (service, mut switch) = (self.service.clone(), self.switch);
        let found = self.way_out(&service, &mut switch)?.filter(|way| way.domain == domain);
        self.switch = switch;
        // Its twind knows it by its own number, and the hypervisor by another one for each connection.
        if let Some(way) = found.as_ref().filter(|way| self.vif.0 != way.vif) {
            let Some(number) = number_of(way.vif, &mut self.hypervisor)? else { return Ok(None) };
            self.vif = (way.vif, number);
        }
        Ok(found.as_ref().map(through))
    }

    /// The way out of a service, whose ever that is. `switch`: the service's, as far as that is known.
    pub(super) fn way_out(&mut self, service: &str, switch: &mut Option<u32>) -> Result<Option<ChannelWayOut>> {
        if switch.is_none() {
            let path = format!("/tool/tandem/{service}/switch");
            *switch = self.store.read(&path)?.and_then(|name| name.parse().ok());
        }
        match switch.map(|switch| self.hypervisor.way_out(switch)) {
            Some(Ok(way)) => Ok(Some(way).filter(|way| way.kind != op::WAY_OUT_NONE)),
            None => Ok(None),
            Some(Err(Errno::NOENT)) => {
                *switch = None;
                Ok(None)
            }
            Some(Err(error)) => Err(error).context("a switch's way out"),
        }
    }

    /// The way to the service's disks, if it is by this domain: it is the back end of one, or could be and none waits
    /// for it.
    pub(super) fn way_to_disks(&mut self, domain: &Domain, all: &[ChannelDiskStatus]) -> Result<Option<Way>> {
        let Some(served) = self.served else { return Ok(None) };
        let all: Vec<&ChannelDiskStatus> = all.iter().filter(|disk| disk.backend == served).collect();
        let answered = |disk: &ChannelDiskStatus| disk.reads + disk.writes + disk.flushes + disk.discards + disk.errors;
        let count: u64 = all.iter().copied().map(answered).sum();
        let way = to_disks(domain.id, all.iter().copied(), &self.heard);
        let nobody_waits = !all.iter().copied().any(is_missed) || self.answered.is_of(domain.id);
        let has_booted = domain.beats.iter().any(|beat| beat.upcalls > 0);
        if way.is_none() && !(nobody_waits && has_booted && self.drives_its_own(domain.id)?) {
            self.answered.see_none(count);
            return Ok(None);
        }
        let came = self.answered.see(domain.id, count);
        let idle = Way { queue: Queue { taken: 1, ..Queue::default() }, is_idle: true, ..Way::default() };
        Ok(Some(Way { came, ..way.unwrap_or(idle) }))
    }
}

/// What a way out does.
pub fn through(way: &ChannelWayOut) -> Way {
    let is_card = way.kind == op::WAY_OUT_CARD;
    let is_waiting = way.waiting > 0 || way.state & op::STATE_STALLED != 0;
    let queue = Queue { is_waiting, taken: way.out_packets, ..Queue::default() };
    Way { is_card, queue, came: way.in_packets, ..Way::default() }
}

/// The way to those of these disks of a service's that this domain serves, if there is one: how much it has answered is
/// not known.
pub fn to_disks<'a>(back: u16, disks: impl IntoIterator<Item = &'a ChannelDiskStatus>, heard: &Heard) -> Option<Way> {
    let own: Vec<&ChannelDiskStatus> = disks.into_iter().filter(|disk| disk.back == back).collect();
    if own.is_empty() {
        return None;
    }
    // What the one before has not answered either is blamed on nobody, by no limit: the hypervisor does not count it.
    let is_waiting = own.iter().any(|disk| disk.overdue_ns > 0);
    let is_idle = own.iter().all(|disk| disk.waiting == 0);
    let has_answered = own.iter().any(|disk| heard.has(disk));
    let says = |what| own.iter().any(|disk| disk.state & what != 0);
    let (has_lied, has_lost) = (says(op::DISK_BACK_ENDED), says(op::DISK_BACK_EMPTY));
    let has_failed = says(op::DISK_BACK_DOUBTED);
    let overdue_for = Duration::from_nanos(own.iter().map(|disk| disk.overdue_ns).max().unwrap_or(0));
    // A long request is answered in parts, and what the hypervisor refuses is no answer of the domain's. Who has never
    // answered is to be judged, too.
    let taken = own.iter().map(|disk| disk.answered).sum::<u64>() + 1;
    let queue = Queue { is_waiting, taken, overdue_for };
    Some(Way { queue, is_idle, has_answered, has_lied, has_lost, has_failed, ..Way::default() })
}
