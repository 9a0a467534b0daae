//! What the tools are told about a domain (`XEN_DOMCTL_getdomaininfo`, `XEN_SYSCTL_getdomaininfolist`).

use super::guest_ptr::plain;
use crate::domain::{Domain, RUNNING};
use crate::pv::time;
use crate::vcpu::stop;
use core::sync::atomic::Ordering;
use xen_abi::domctl::{
    GetDomainInfo, DOMINF_BLOCKED, DOMINF_PAUSED, DOMINF_RUNNING, DOMINF_SHUTDOWN, DOMINF_SHUTDOWN_SHIFT,
    INVALID_MAX_VCPU_ID,
};
use xen_abi::shared::{RUNSTATE_RUNNING, VcpuRunstateInfo};

plain!(GetDomainInfo);

/// Describes `d`.
pub fn describe(d: &Domain) -> GetDomainInfo {
    let mut info = GetDomainInfo {
        domain: d.id,
        tot_pages: d.mm.tot_pages(),
        max_pages: d.mm.max_pages(),
        shared_info_frame: d.shared_info.raw(),
        max_vcpu_id: INVALID_MAX_VCPU_ID,
        handle: d.handle(),
        ..GetDomainInfo::default()
    };
    // All of its vCPUs that are up are blocked, unless one is found that is not.
    let mut flags = DOMINF_BLOCKED;
    for v in d.vcpus() {
        let VcpuRunstateInfo { state, time, .. } = time::runstate(v);
        info.cpu_time = info.cpu_time.saturating_add(time[RUNSTATE_RUNNING as usize]);
        info.max_vcpu_id = v.id;
        let why = v.stop.load(Ordering::Relaxed);
        if why & stop::DOWN != 0 {
            continue;
        }
        info.nr_online_vcpus += 1;
        if why & (stop::BLOCKED | stop::POLLING) == 0 {
            flags &= !DOMINF_BLOCKED;
        }
        if state == RUNSTATE_RUNNING {
            flags |= DOMINF_RUNNING;
        }
        if why & stop::PAUSED != 0 {
            flags |= DOMINF_PAUSED;
        }
    }
    let code = d.shutdown_code.load(Ordering::Relaxed);
    if code != RUNNING {
        flags |= DOMINF_SHUTDOWN | (code & 0xff) << DOMINF_SHUTDOWN_SHIFT;
    }
    info.flags = flags;
    info
}
