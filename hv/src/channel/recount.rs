//! What device channels hold, for the audit.

use super::vif::VIFS;
use alloc::collections::TryReserveError;
use hv_core::grant::audit::{Ledger, Named};

/// Names every grant that is in use here. Nothing may change meanwhile. Errors: no memory.
pub fn tell(ledger: &mut Ledger) -> Result<(), TryReserveError> {
    for sides in VIFS.iter().take(super::timed::places()) {
        if let Some(rx) = sides.rx.lock().as_deref() {
            ledger.own_use(rx.queue.page().named(), true)?;
        }
        let side = sides.tx.lock();
        let Some(tx) = side.as_deref() else { continue };
        let ring = tx.queue.page().named();
        ledger.own_use(ring, true)?;
        let journal = tx.queue.journal();
        let mut last = None;
        while let Some(token) = journal.next_packet(last) {
            last = Some(token);
            for slot in journal.slots(token) {
                ledger.own_use(Named { gref: slot.gref, frame: slot.frame.mfn(), ..ring }, false)?;
            }
        }
    }
    super::disk::tell(ledger)?;
    super::pci::tell(ledger)
}
