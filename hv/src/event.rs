//! Event channels: the shell around `hv_core::evtchn`.

use crate::vcpu::Vcpu;

/// A domain's event channels.
pub struct DomainEvents {}

impl DomainEvents {
    /// None yet.
    pub fn new(_domid: u16) -> Self {
        Self {}
    }
    /// Do all of `ports` exist?
    pub fn are_valid_ports(&self, _ports: &[u32]) -> bool {
        false
    }
    /// Is one of `ports` pending, masked or not?
    pub fn any_pending(&self, _ports: &[u32]) -> bool {
        false
    }
}

/// Raises a per-vCPU virtual interrupt.
pub fn raise_virq(_v: &Vcpu, _virq: u32) {}
/// Raises a global virtual interrupt at the domain that handles it.
pub fn raise_global_virq(_virq: u32) {}
