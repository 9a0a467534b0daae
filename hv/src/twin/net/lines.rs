//! A card's interrupts: which come here instead of to the domain.
//!
//! One is taken if the domain has not masked its event channel, and nothing of it is pending. It is handled when the
//! vCPU that it is bound to takes events: so never while the domain's own handler runs or is kept out. The domain would
//! pass on to itself what its own handler finds, so it is not asked to help, unless the interrupt seems to be another
//! device's of its, or wants a thread.

use super::attached::{Attached, Line};
use super::lane::wanted;
use super::place::{want, with_card, Place, NR_ATTACHED, PLACES};
use crate::arch::tsc;
use crate::domain::event::Receiver;
use crate::domain::{self, Domain};
use crate::irq;
use crate::sched::Cause;
use core::sync::atomic::Ordering;
use twin_runtime::linux::irq::{Answer, Unclaimed, Wiring};
use xen_abi::event::Port;
use xen_abi::physdev::{XENIRQSTAT_NEEDS_EOI, XENIRQSTAT_SHARED};

/// An interrupt for `d` came. `true`: it is handled here.
pub fn came(d: &Domain, port: Port, pirq: u32) -> bool {
    if NR_ATTACHED.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let line = Line { port, pirq };
    let find = |(place, own): (usize, &Place)| own.lines.lock().find(d.id, line).map(|n| (place, n));
    let Some((place, number)) = with_card().find_map(find) else { return false };
    if d.events.lock().would_tell(d, port, pirq).is_none() {
        return false;
    }
    let lane = {
        let lines = PLACES[place].lines.lock();
        if lines.find(d.id, line) != Some(number) {
            return false;
        }
        PLACES[place].taken.fetch_or(1 << number, Ordering::SeqCst);
        lines.lane(number)
    };
    want(place, lane, wanted::LINES);
    true
}

/// Can an interrupt of domain `owner` that was taken be handled now?
pub fn may_handle(owner: u16, line: Line) -> bool {
    let Some(d) = domain::find(owner) else { return false };
    let told = d.events.lock().would_tell(&*d, line.port, line.pirq);
    told.and_then(|vcpu| d.vcpu(vcpu)).is_some_and(|v| !v.events_masked())
}

/// Those interrupts of `lines`, which were taken before, that can be handled now. One whose port was closed meanwhile
/// the domain handles, if it has bound it anew: its vCPU would never be told of it, so it is taken out.
pub fn ready(card: &Attached, lines: &mut u32) -> u32 {
    let (mut ready, before) = (0, *lines);
    for (n, (_, line)) in card.irqs.iter().enumerate().filter(|(n, _)| before >> n & 1 != 0) {
        if may_handle(card.owner, *line) {
            ready |= 1 << n;
        } else if let Some(d) = domain::find(card.owner).filter(|d| !is_cards(d, *line)) {
            *lines &= !(1 << n);
            hand_over(&d, *line);
        }
    }
    ready
}

/// Is it still the interrupt of that port, which was not closed meanwhile? Who closes it frees the handler's argument.
fn is_cards(d: &Domain, line: Line) -> bool {
    d.events.lock().is_cards(line.port, line.pirq)
}

/// The handler of interrupt `n` of a lane has run and returned `value`: the line may fire again, or the domain handles
/// it as well.
pub fn answered(owner: u16, (n, line): (usize, Line), value: u32, unclaimed: &mut Unclaimed) {
    let now = tsc::now_ns();
    let wiring = || {
        let status = irq::guest::lock().status(owner, line.pirq).unwrap_or(0);
        Wiring { is_level: status & XENIRQSTAT_NEEDS_EOI != 0, has_others: status & XENIRQSTAT_SHARED != 0 }
    };
    match unclaimed.answer(n, value, wiring, now) {
        Answer::Ended { is_its } => handled(owner, line, is_its),
        Answer::Domain => match domain::find(owner) {
            Some(d) => hand_over(&d, line),
            None => handled(owner, line, false),
        },
    }
}

/// The handler of an interrupt has run and said whether it was its device's: the line may fire again.
fn handled(owner: u16, line: Line, is_its: bool) {
    let mut table = irq::guest::lock();
    table.found(owner, line.pirq, is_its);
    let _ = table.eoi(owner, line.pirq, tsc::now_ns());
}

/// The domain handles an interrupt that was taken.
pub fn hand_over(d: &Domain, line: Line) {
    irq::guest::lock().found(d.id, line.pirq, false);
    let told = d.events.lock().raise_pirq(&Receiver(d, Cause::Sender), line.port, line.pirq);
    if told.is_none() {
        handled(d.id, line, false);
    }
}
