//! `mmuext_op`.

use crate::vcpu::Vcpu;
use x86::Mfn;

/// Takes the frame that backs byte `offset` of the vCPU's LDT as a descriptor page.
pub fn take_ldt_page(_v: &Vcpu, _offset: u64) -> Option<Mfn> {
    None
}
