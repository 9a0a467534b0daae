//! A twin that was aborted is loaded again, but not one that is aborted again and again: then Linux is the way until
//! another instance comes, or somebody loads it (`twinctl load`).
//!
//! twind itself loads nothing again: it does not know whether it is looked after.

use super::super::look::{Act, Look};
use super::Machine;
use std::time::Duration;

/// Within this time so many aborts are too many.
const WITHIN: Duration = Duration::from_secs(60);

/// What was seen of the twins of an instance.
#[derive(Debug, Default)]
pub struct Twins {
    of: Option<u16>,
    /// How often one was aborted, as twind counts.
    aborts: u64,
    /// When that was seen, of late.
    at: Vec<Duration>,
    /// The one that was aborted last was asked for again.
    is_asked: bool,
}

impl Machine {
    /// The driver domain is up, and does what it should.
    pub(super) fn look_after_twin(&mut self, domain: u16, look: &Look) -> Option<Act> {
        let most = self.settings.most_aborts();
        let twin = look.twind.and_then(|twind| twind.twin).filter(|_| most > 0)?;
        // The one that is gone now counts, whoever was there when it was aborted.
        let before = twin.aborts.saturating_sub(u64::from(twin.was_aborted));
        if self.twins.of != Some(domain) {
            self.twins = Twins { of: Some(domain), aborts: before, ..Twins::default() };
        }
        if twin.aborts < self.twins.aborts {
            // Another twind counts from nothing.
            self.twins.aborts = before;
        }
        let is_given_up = self.record.twin_given_up == Some(domain);
        if twin.aborts > self.twins.aborts {
            let new = usize::try_from(twin.aborts - self.twins.aborts).unwrap_or(usize::MAX).min(most as usize);
            (self.twins.aborts, self.twins.is_asked) = (twin.aborts, false);
            self.twins.at.retain(|at| look.now.saturating_sub(*at) < WITHIN);
            self.twins.at.extend(std::iter::repeat_n(look.now, new));
            if self.twins.at.len() >= most as usize && !is_given_up {
                self.record.twin_given_up = Some(domain);
                self.record.count("twin-given-up");
                self.say(format!(
                    "its driver's twin was aborted {} times within {} s, and is not loaded again; Linux's driver is the way until `twinctl restart` or `twinctl load`",
                    self.twins.at.len(),
                    WITHIN.as_secs()
                ));
                return None;
            }
        } else if twin.is_loaded && is_given_up {
            self.say("somebody has loaded its driver's twin again");
            self.record.twin_given_up = None;
            self.twins.at.clear();
        }
        let is_to_be = twin.was_aborted && twin.is_wanted && self.record.twin_given_up != Some(domain);
        if !is_to_be || std::mem::replace(&mut self.twins.is_asked, true) {
            return None;
        }
        self.record.count("twin-loaded-again");
        self.say("its driver's twin was aborted, and is loaded again");
        Some(Act::LoadTwin(domain))
    }
}
