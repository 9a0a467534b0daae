//! Key `u`: what is in use, in a line for the machine and one for each domain. What came with a domain and its devices
//! is gone when it is; so a test compares the lines from before and after.

use super::{each_domain, say};
use crate::arch::vectors;
use crate::domain::memory::claims;
use crate::domain::snapshot::{self, Said, Sizes};
use crate::domain::{passthrough, Domain};
use crate::{iommu, irq};

pub fn print() {
    let (mut domains, mut dying) = (0, 0);
    each_domain(|d| {
        domains += 1;
        dying += u64::from(d.is_dying());
    });
    say!(
        "use: machine: {domains} domains, {dying} of them dying, {} claimed pages, {} vectors, \
         {} IOMMU domains, {} functions away, {} frames of packed copies",
        claims::outstanding(),
        vectors::count(),
        iommu::nr_domains(),
        passthrough::nr_away(),
        snapshot::packs(),
    );
    each_domain(of_domain);
}

fn of_domain(d: &Domain) {
    let ports = d.events.lock().nr_open();
    let (grant_frames, grants) = {
        let table = d.grants.table();
        (table.frames().len(), table.nr_used())
    };
    let (handles, _) = d.grants.track().sizes();
    let pirqs = irq::guest::lock().sizes(d.id);
    say!(
        "use: d{}: {} pages, {ports} ports, {grants} grants in {grant_frames} frames, {handles} handles, \
         {} pirqs, {} of them bound, {} functions{}{}",
        d.id,
        d.mm.tot_pages(),
        pirqs.mapped,
        pirqs.bound,
        passthrough::nr_functions(d),
        if d.dma.has_tables() { ", tables for devices" } else { "" },
        Noted(snapshot::sizes(d)),
    );
}

/// A snapshot, if there is one.
struct Noted(Option<Sizes>);

impl core::fmt::Display for Noted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Some(Sizes { noted, copies, away }) = self.0 else { return Ok(()) };
        write!(f, ", a snapshot of {noted} frames, {away} of them away, with {}", Said(copies))
    }
}
