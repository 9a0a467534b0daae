//! Front ends of a domain that is to be noted, and who is at their rings.
//!
//! The rings go back with the domain's memory. Who serves them from another domain knows of that nothing: Linux' back
//! ends count requests and answers themselves, and take the next request of a ring that is what it was before for
//! nonsense. The hypervisor refuses what has an end in itself.

use super::own;
use crate::device::state;
use crate::store::Store;
use anyhow::{ensure, Result};

/// An error says which device of the domain's has somebody at its ring who would not go back with it. At interfaces of
/// the services `nets` there is nobody: those of one that waits for their driver domain's place are plugged in when it
/// has that.
pub fn check(domain: u16, nets: &[u16], store: &mut impl Store) -> Result<()> {
    let devices = format!("{}/device", own(domain));
    for kind in store.list(&devices)? {
        for number in store.list(&format!("{devices}/{kind}"))? {
            let front = format!("{devices}/{kind}/{number}");
            let Some(far) = store.read(&format!("{front}/backend"))? else { continue };
            let shown = store.read(&format!("{front}/state"))?.and_then(|shown| shown.parse().ok());
            let is_begun =
                ![state::UNKNOWN, state::INITIALISING, state::CLOSED].contains(&shown.unwrap_or(state::UNKNOWN));
            let whose = whose(&far);
            let is_plugged_in_later = kind == "vif" && whose.is_some_and(|whose| nets.contains(&whose));
            let who = whose.map_or("somebody".into(), |whose| format!("domain {whose}"));
            ensure!(
                !is_begun || is_plugged_in_later,
                "its {kind} {number} is served by {who}, which does not go back with it"
            );
        }
    }
    Ok(())
}

/// In whose directory a back end is.
fn whose(far: &str) -> Option<u16> {
    far.strip_prefix("/local/domain/")?.split('/').next()?.parse().ok()
}
