//! Which requests look lost: a damaged kernel may lose one, and answer all others.
//!
//! For how long a request has waited does not say that. It may wait for its turn, or for writes before it; and of what
//! a back end was given it may do one thing at a time. A guest can make any of that last as long as it likes. So a
//! request looks lost since it was *overtaken*: another one of the same disk, which was passed on after it, was
//! answered. Of a back end that works in order nothing is ever overtaken. A medium with a queue does the next ones
//! first as it likes, and may hold one back while it tries it again: whoever judges has to wait for longer than any
//! medium does that. What nothing follows cannot be overtaken: so the requests of a disk look lost, too, since nothing
//! at all was answered of those that it has under way.
//!
//! A medium may hold a request back for longer still, and a guest may know how to have it do so. So what has looked
//! lost for [`SLOW_NS`] when its back end goes is *excused*: if the next one does not answer it either, that is no
//! kernel's doing.
//!
//! When requests come and go nothing is noted of this but which run was answered last. All else is found by who looks:
//! times begin with a look.

use super::run::{Runs, RUNS};

/// What has looked lost for so long when its back end goes is not blamed on the next one, in ns. A back end may go for
/// another reason, and what is overtaken at that moment is nothing special.
pub const SLOW_NS: u64 = 10_000_000_000;

/// What earlier looks have found, at the runs of one back end.
#[derive(Default)]
pub struct Watch {
    /// By place, the number of a run that was overtaken, and when that was first seen, in ns.
    overtaken: [Option<(u32, u64)>; RUNS],
    /// Runs are under way, and none is answered: the number of the one that was answered last, and when this was first
    /// seen, in ns.
    still: Option<(u32, u64)>,
    /// The last look, in ns.
    looked_at: u64,
}

impl Watch {
    /// A look, `now` (ns): for how long a run has looked lost that has segments of none of the requests in the places
    /// `excused`, in ns. 0: there is none.
    pub fn look(&mut self, runs: &Runs, excused: u32, now: u64) -> u64 {
        let (last, mut first, mut is_any, mut is_any_excused) = (runs.last_answered(), now, false, false);
        for (place, number, members) in runs.waiting() {
            let Some(note) = self.overtaken.get_mut(place) else { continue };
            let seen = note.filter(|(of, _)| *of == number);
            *note = seen.or_else(|| is_before(number, last).then_some((number, now)));
            is_any = true;
            if members & excused != 0 {
                is_any_excused = true;
            } else if let Some((_, since)) = note {
                first = first.min(*since);
            }
        }
        self.still = is_any.then(|| self.still.filter(|(of, _)| *of == last).unwrap_or((last, now)));
        // What is excused may be what the others wait for.
        if let Some((_, since)) = self.still.filter(|_| !is_any_excused) {
            first = first.min(since);
        }
        self.looked_at = now;
        now.saturating_sub(first)
    }

    /// The back end of these runs goes: the requests that had looked lost for [`SLOW_NS`] at the last look, by place, a
    /// bit each.
    pub fn end(&mut self, runs: &Runs) -> u32 {
        let Watch { overtaken, still, looked_at } = core::mem::take(self);
        let is_slow = |since: u64| looked_at.saturating_sub(since) >= SLOW_NS;
        let are_all = still.is_some_and(|(last, since)| last == runs.last_answered() && is_slow(since));
        let is_its = |place: usize, number| {
            let note = overtaken.get(place).copied().flatten();
            note.is_some_and(|(of, since)| of == number && is_slow(since))
        };
        let slow = runs.waiting().filter(|(place, number, _)| are_all || is_its(*place, *number));
        slow.fold(0, |all, (_, _, members)| all | members)
    }
}

/// Whether the run `number` was passed on before `other`: numbers are counted modulo 2^32, and fewer than half as many
/// are passed on between two looks.
fn is_before(number: u32, other: u32) -> bool {
    (1..1 << 31).contains(&other.wrapping_sub(number))
}
