//! What a domain's vCPUs do just now, in words.

use crate::domain::vcpu::{stop, Vcpu};
use crate::domain::Domain;
use core::fmt::{Display, Formatter, Result};
use core::sync::atomic::Ordering;
use hv_core::sched::Runstate;

/// Of each vCPU that is up, what it does; and where, if it is on no CPU.
pub struct Doing<'a>(pub &'a Domain);

impl Display for Doing<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let is_up = |v: &&Vcpu| v.stop.load(Ordering::Relaxed) & stop::DOWN == 0;
        for (n, v) in self.0.vcpus().filter(is_up).enumerate() {
            let runstate =
                super::with(|s, now| s.runstate(v.sched_id, now).map(|(is, since, _)| (is, now.saturating_sub(since))));
            let Some((runstate, ns)) = runstate else { continue };
            let does = match runstate {
                Runstate::Running => "runs",
                Runstate::Runnable => "wants a CPU",
                Runstate::Blocked => "sleeps",
                Runstate::Offline => "is paused",
            };
            write!(f, "{}{v} {does} since {} ms", if n == 0 { "" } else { ", " }, ns / 1_000_000)?;
            if runstate != Runstate::Running {
                write!(f, " at {:#x}", v.glimpse().regs.rip)?;
            }
        }
        Ok(())
    }
}
