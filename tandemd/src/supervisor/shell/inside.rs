//! What a driver domain says of itself, which nobody has to believe.

use super::super::last_words;
use super::super::look::Domain;
use super::Shell;
use crate::store::Store;
use anyhow::Result;
use xen_abi::sched as reason;

impl Shell {
    /// Notes of one that has panicked whether its kernel was out of memory. Its console is read once.
    pub(super) fn hear_last_words(&mut self, domain: Option<&mut Domain>) -> Result<()> {
        let Some(domain) = domain.filter(|d| d.end == Some((reason::SHUTDOWN_CRASH, false)) && !d.is_dying) else {
            self.died = None;
            return Ok(());
        };
        let known = self.died.filter(|(id, _)| *id == domain.id).map(|(_, known)| known);
        let is_out_of_memory = match known {
            Some(known) => known,
            None => self.ran_out_of_memory(domain.id)?,
        };
        self.died = Some((domain.id, is_out_of_memory));
        domain.is_out_of_memory = is_out_of_memory;
        Ok(())
    }

    /// Whether its console says so. One that cannot be read says nothing.
    fn ran_out_of_memory(&mut self, domain: u16) -> Result<bool> {
        let frame = self.store.read(&format!("/local/domain/{domain}/console/ring-ref"))?;
        let page = frame.and_then(|frame| frame.parse().ok()).map(|frame| self.hypervisor.map(domain, frame));
        Ok(matches!(page, Some(Ok(page)) if last_words::is_out_of_memory(&last_words::read(page.words()))))
    }
}
