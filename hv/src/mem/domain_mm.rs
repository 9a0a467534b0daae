//! A domain's memory: its MMU lock and accounting.

use crate::sync::{Mutex, MutexGuard};
use x86::Mfn;

/// Page tables and accounting of a domain.
pub struct DomainMm {
    lock: Mutex<()>,
}

impl DomainMm {
    /// No memory yet.
    pub fn new(_domid: u16) -> Self {
        Self { lock: Mutex::new(()) }
    }
    /// Serialises setting vCPU contexts.
    pub fn lock_context(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }
    /// Takes a writable reference to a frame of the domain; its direct-map address.
    pub fn take_writable(&self, _mfn: Mfn) -> Option<*mut u8> {
        None
    }
    /// Gives such a reference back.
    pub fn drop_writable(&self, _mfn: Mfn) {}
}

/// Takes the roots and GDT pages of a new vCPU context.
pub fn set_context(
    v: &crate::vcpu::Vcpu,
    kernel_root: Mfn,
    user_root: Mfn,
    _gdt_frames: &[u64],
    _gdt_entries: u32,
) -> Result<(), xen_abi::errno::Errno> {
    v.kernel_root.set(kernel_root);
    v.user_root.set(user_root);
    Ok(())
}
