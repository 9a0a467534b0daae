//! Stlb mode: what a twin's table translates to.
//!
//! The windows of a twin are where its domain's mirror shows the pages ([`hv_core::mmu::mirror`]): two pages of the
//! domain's that follow each other do so there as well, and the entries behind them are the domain's own. So a window
//! has the domain's rights and its kind of caching, and needs no care of its own: what the domain changes in its tables
//! is changed there too, and no frame gets another use before all CPUs of the mirror have flushed it (R15). Windows
//! with entries of their own would be copies of the domain's, each of which had to hold its frame or to be found when
//! the domain changes an entry; and as the routines that serve a twin's imports work on the mirror, its root is loaded
//! anyway.
//!
//! A miss asks only whether the page is in the domain's kernel half. If the domain has nothing there, the access itself
//! faults, as its own would; a look before would be out of date at once, and a device's register may not be read to
//! find out.
//!
//! The comparison of a look-up is a branch, which a processor may guess wrong. Who runs the machine says by `twin-stlb`
//! that its driver domains are trusted not to make use of that (R22).

use crate::{info, warn};
use core::sync::atomic::{AtomicBool, Ordering};
use hv_core::cmdline::Options;
use hv_core::mmu::mirror;
use twin_abi::layout::STACK_SIZE;

/// Pairs that the table of an instance knows beside what it shows; 24 bytes each. As many as the table has entries, for
/// a driver that uses more pages at once has them collide there.
pub const PAIRS: usize = twin_abi::layout::STLB_ENTRIES as usize;

/// Whether images of this mode are loaded.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Takes the decision from the options.
pub fn init(options: &Options) {
    IS_ALLOWED.store(options.twin_stlb, Ordering::Relaxed);
    if options.twin_stlb {
        warn!("*** twin-stlb: drivers' twins that check addresses by a branch may be loaded; they can SPECULATE past it ***");
    } else {
        info!("Twins in stlb mode are refused (twin-stlb allows them)");
    }
}

/// Are images of this mode loaded?
pub fn is_allowed() -> bool {
    IS_ALLOWED.load(Ordering::Relaxed)
}

/// Where a twin whose unsafe area is at `unsafe_area` has the domain's page at `page`, and the one after it. `None`: it
/// is not the domain's.
pub fn window(unsafe_area: u64, page: u64) -> Option<u64> {
    if page.wrapping_sub(unsafe_area) < STACK_SIZE {
        return Some(page);
    }
    mirror::place_of(page)
}
