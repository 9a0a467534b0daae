//! A domain's pirqs as they once were, and the way back to them.

use super::{Interrupts, Irq, IrqChip};
use crate::evtchn::{DomId, PageWords};
use crate::snapshot::Refusal;
use alloc::vec::Vec;
use xen_abi::errno::Errno;
use xen_abi::event::Port;

/// A pirq that was mapped.
struct SavedPirq<M> {
    pirq: u32,
    irq: Irq,
    msi: Option<M>,
    port: Port,
    /// The domain agreed to share the line.
    agrees_to_share: bool,
}

/// A domain's pirqs as they were. `M` names message sources.
pub struct Saved<M> {
    pirqs: Vec<SavedPirq<M>>,
    has_eoi_map: bool,
}

impl<C: IrqChip, P: AsRef<PageWords>> Interrupts<C, P> {
    /// Notes the pirqs of a domain. ENOMEM.
    pub fn save(&self, dom: DomId) -> Result<Saved<C::Msi>, Errno> {
        let mut pirqs = Vec::new();
        let Some(d) = self.domains.get(&dom) else { return Ok(Saved { pirqs, has_eoi_map: false }) };
        for (pirq, entry) in (0u32..).zip(&d.pirqs) {
            let Some(irq) = entry.irq.checked_sub(1) else { continue };
            let Some(line) = self.lines.get(irq as usize) else { continue };
            pirqs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            let agrees_to_share = line.shareable;
            pirqs.push(SavedPirq { pirq, irq, msi: line.msi, port: entry.port, agrees_to_share });
        }
        Ok(Saved { pirqs, has_eoi_map: d.eoi_map.is_some() })
    }

    /// Does each stand for what it stood for? Changes nothing.
    pub fn check(&self, dom: DomId, saved: &Saved<C::Msi>) -> Result<(), Refusal> {
        let is_same = |then: &SavedPirq<C::Msi>| {
            self.irq_of(dom, then.pirq) == Some(then.irq)
                && self.lines.get(then.irq as usize).is_some_and(|line| line.msi == then.msi)
        };
        match saved.pirqs.iter().find(|then| !is_same(then)) {
            Some(other) => Err(Refusal::Pirq(other.pirq)),
            None => Ok(()),
        }
    }

    /// Calls `f` with the page that the domain has registered and had not then.
    pub fn for_new_page(&self, dom: DomId, saved: &Saved<C::Msi>, mut f: impl FnMut(&P)) {
        let map = self.domains.get(&dom).and_then(|d| d.eoi_map.as_ref());
        if let Some((page, _)) = map.filter(|_| !saved.has_eoi_map) {
            f(page);
        }
    }

    /// Takes back what the domain did not have: pirqs and its page.
    pub fn let_go(&mut self, dom: DomId, saved: &Saved<C::Msi>) {
        for pirq in 0..self.nr_pirqs(dom) {
            let is_new = saved.pirqs.binary_search_by_key(&pirq, |then| then.pirq).is_err();
            if is_new && self.irq_of(dom, pirq).is_some() {
                let _ = self.unmap(dom, pirq);
            }
        }
        if let Some(d) = self.domains.get_mut(&dom).filter(|_| !saved.has_eoi_map) {
            d.eoi_map = None;
        }
    }

    /// Connects each pirq with the port that it had, or none, and lets its line fire: nobody handles it now. Whatever
    /// comes of it, the caller asks for [`Interrupts::next_wake`] then. EBUSY and others: it cannot be, and the domain
    /// must not run.
    pub fn go_back(&mut self, dom: DomId, saved: &Saved<C::Msi>, now: u64) -> Result<(), Errno> {
        if self.check(dom, saved).is_err() {
            return Err(Errno::EBUSY);
        }
        for then in &saved.pirqs {
            let port = self.pirq(dom, then.pirq)?.port;
            if port != then.port {
                self.unbind(dom, then.pirq, port);
                if then.port != 0 {
                    self.bind(dom, then.pirq, then.port, then.agrees_to_share)?;
                }
            } else if port != 0 {
                self.eoi(dom, then.pirq, now)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{open, two_domains, LEVEL};
    use super::*;
    use crate::evtchn::oracle::TestPage;

    #[test]
    fn pirqs_have_their_ports_again_and_fire() {
        let mut i = two_domains();
        i.setup_gsi(20, LEVEL).unwrap();
        i.map_gsi(5, 20, Some(20)).unwrap();
        let message = i.map_msi(5, 77, None).unwrap();
        let idle = i.map_msi(5, 78, None).unwrap();
        i.bind(5, 20, 3, true).unwrap();
        i.bind(5, message, 4, false).unwrap();
        let saved = i.save(5).unwrap();
        // It fired and was not answered; others got ports, or lost theirs; there is one more.
        i.fired(20, 1);
        i.unbind(5, message, 4);
        i.bind(5, idle, 4, false).unwrap();
        let more = i.map_msi(5, 79, None).unwrap();
        i.bind(5, more, 9, false).unwrap();
        i.set_eoi_map(5, false, || Ok(TestPage::filled(0))).unwrap();
        let mut pages = 0;
        i.for_new_page(5, &saved, |_| pages += 1);
        assert_eq!((i.check(5, &saved), pages, open(&mut i, 20)), (Ok(()), 1, false));
        i.let_go(5, &saved);
        i.for_new_page(5, &saved, |_| panic!("it was given back"));
        i.go_back(5, &saved, 0).unwrap();
        assert!(open(&mut i, 20), "nobody answers for it any more");
        assert_eq!((i.irq_of(5, more), i.sizes(5).mapped, i.sizes(5).bound), (None, 3, 2));
        let (irq, idle_irq) = (i.irq_of(5, message).unwrap(), i.irq_of(5, idle).unwrap());
        assert!(open(&mut i, irq) && !open(&mut i, idle_irq));
        let told: Vec<_> = i.fired(irq, 2).turns(|_| false).map(|(d, _)| (d.dom, d.pirq, d.port)).collect();
        assert_eq!(told, [(5, message, 4)]);
    }

    #[test]
    fn who_agreed_to_share_a_line_has_it_again_beside_others() {
        let mut i = two_domains();
        i.setup_gsi(20, LEVEL).unwrap();
        i.map_gsi(5, 20, Some(20)).unwrap();
        i.map_gsi(0, 20, Some(20)).unwrap();
        i.bind(5, 20, 3, true).unwrap();
        let saved = i.save(5).unwrap();
        i.unbind(5, 20, 3);
        i.bind(0, 20, 7, true).unwrap();
        i.fired(20, 0);
        assert_eq!((i.check(5, &saved), i.next_wake()), (Ok(()), None));
        i.let_go(5, &saved);
        assert_eq!(i.go_back(5, &saved, 0), Ok(()));
        assert_eq!(i.next_wake(), Some(100_000_000), "the other one has not answered");
        i.eoi(0, 20, 0).unwrap();
        let mut told: Vec<_> = i.fired(20, 1).turns(|_| false).map(|(d, _)| (d.dom, d.port)).collect();
        told.sort_unstable();
        assert_eq!(told, [(0, 7), (5, 3)]);
    }

    #[test]
    fn another_message_or_none_is_named() {
        let mut i = two_domains();
        let message = i.map_msi(5, 77, None).unwrap();
        let saved = i.save(5).unwrap();
        i.unmap(5, message).unwrap();
        assert_eq!((i.check(5, &saved), i.go_back(5, &saved, 0)), (Err(Refusal::Pirq(message)), Err(Errno::EBUSY)));
        i.map_msi(5, 78, Some(message)).unwrap();
        assert_eq!(i.check(5, &saved), Err(Refusal::Pirq(message)), "the same line, and another device");
        i.unmap(5, message).unwrap();
        i.map_msi(5, 77, Some(message)).unwrap();
        assert_eq!(i.check(5, &saved), Ok(()));
        let nothing = i.save(9).unwrap();
        assert_eq!((i.check(9, &nothing), i.go_back(9, &nothing, 0)), (Ok(()), Ok(())));
    }
}
