//! SMEP and SMAP: what ring 0 may not do with pages of ring 3. UMIP: what ring 3 may not ask.
//!
//! All memory of PV guests belongs to ring 3, their kernels' too. With SMEP the hypervisor cannot execute it; with SMAP
//! it cannot touch it by a guest's address, except between STAC and CLAC (EFLAGS.AC), which only the copies and the
//! short ways of system calls in entry.S contain. Everything else it reaches through its own mappings.
//!
//! With UMIP, SGDT, SIDT, SLDT, STR and SMSW raise #GP in ring 3, where they would tell addresses of the hypervisor's.
//! Guests may execute them all the same, as on Xen, which leaves UMIP off: they are emulated
//! (`hv_core::emul::privileged`), without the addresses.
//!
//! Processors without SMAP execute not one instruction more: the gates of the IDT lead past the CLAC at the beginning
//! of each stub, and the copies (`trap::patches`) and the entry of system calls exist twice.

use crate::cpu::{self, cr};
use crate::sync::Once;
use core::arch::asm;
use hv_core::cmdline::Options;
use x86::cpuid::feature;

/// Bits of CR4 that are in use on every CPU.
static BITS: Once<u64> = Once::new();

/// Decides what is used. On the first CPU, before its IDT is loaded and before any other CPU runs.
pub fn init(options: &Options) {
    let leaf = if cpu::cpuid(0, 0).eax >= 7 { cpu::cpuid(7, 0) } else { Default::default() };
    let mut bits = 0;
    let mut choose = |has: bool, wanted: bool, bit: u64| bits |= if has && wanted { bit } else { 0 };
    choose(leaf.ebx & feature::SMEP.mask() != 0, options.smep, cr::CR4_SMEP);
    choose(leaf.ebx & feature::SMAP.mask() != 0, options.smap, cr::CR4_SMAP);
    choose(leaf.ecx & feature::UMIP.mask() != 0, options.umip, cr::CR4_UMIP);
    BITS.call_once(|| bits);
    let said = |bit| word(bits & bit != 0);
    crate::info!("CPU: SMEP {}, SMAP {}, UMIP {}", said(cr::CR4_SMEP), said(cr::CR4_SMAP), said(cr::CR4_UMIP));
}

const fn word(is_on: bool) -> &'static str {
    if is_on {
        "on"
    } else {
        "off"
    }
}

/// Whether SMAP is in use.
#[inline]
pub fn is_on() -> bool {
    BITS.get().is_some_and(|bits| bits & cr::CR4_SMAP != 0)
}

/// Switches on what was decided, on the running CPU.
pub fn init_cpu() {
    let bits = BITS.get().copied().unwrap_or(0);
    // SAFETY: the first CPU has the features, and so have the others of the machine. No page that the hypervisor
    // executes, and none that it touches outside the copies, belongs to ring 3.
    unsafe {
        cpu::write_cr4(cpu::read_cr4() | bits);
        if is_on() {
            asm!("clac", options(nomem, nostack));
        }
    }
}
