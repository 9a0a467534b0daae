//! A recount of grants: every use that a granter counts is a handle of somebody's, or the hypervisor's own, and every
//! one of those is counted.
//!
//! Both sides name what they have, and what they name must cancel out: a handle whose granter is gone, or is another
//! domain of that number, and a use whose mapper is gone are left over. Nothing may change meanwhile, and no copy may
//! be under way.

use super::table::GrantTable;
use super::{DomId, Maptrack, SharedFrame};
use alloc::collections::{BinaryHeap, TryReserveError};
use alloc::vec::Vec;

/// A grant in use, as either side names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// Who granted it.
    pub granter: DomId,
    /// Which of the domains of that number.
    pub incarnation: u32,
    /// Which grant.
    pub gref: u32,
    /// Who uses it.
    pub user: DomId,
    /// The frame.
    pub frame: u64,
}

/// By kind: host reads, device reads, host writes, device writes.
type Kinds = [i64; 4];

/// What was named so far.
#[derive(Debug, Default)]
pub struct Ledger(Vec<(Named, Kinds)>);

impl Ledger {
    /// Nothing.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The handles of `mapper`. Errors: no memory.
    pub fn handles(&mut self, mapper: DomId, track: &Maptrack) -> Result<(), TryReserveError> {
        let mut from = 0;
        while let Some(handle) = track.next_used(from) {
            from = handle + 1;
            let Some(m) = track.get(handle) else { continue };
            let at = 2 * usize::from(m.writable);
            let mut kinds = Kinds::default();
            for (kind, has) in kinds.iter_mut().skip(at).zip([m.host, m.device]) {
                *kind = i64::from(has);
            }
            let super::Mapping { granter, incarnation, gref, frame, .. } = m;
            self.push(Named { granter, incarnation, gref, user: mapper, frame }, kinds)?;
        }
        Ok(())
    }

    /// A use that the hypervisor itself makes of a grant, by a CPU. Errors: no memory.
    pub fn own_use(&mut self, named: Named, writable: bool) -> Result<(), TryReserveError> {
        let mut kinds = Kinds::default();
        kinds[2 * usize::from(writable)] = 1;
        self.push(named, kinds)
    }

    /// The uses that a granter counts. Errors: no memory.
    pub fn table<P: SharedFrame>(&mut self, table: &GrantTable<P>) -> Result<(), TryReserveError> {
        let (granter, incarnation) = (table.dom(), table.incarnation());
        let mut result = Ok(());
        table.for_each_used(|gref, user, frame, uses| {
            if result.is_ok() {
                let named = Named { granter, incarnation, gref, user, frame };
                result = self.push(named, uses.map(|n| -i64::from(n)));
            }
        });
        result
    }

    fn push(&mut self, named: Named, kinds: Kinds) -> Result<(), TryReserveError> {
        self.0.try_reserve(1)?;
        self.0.push((named, kinds));
        Ok(())
    }

    /// Shows what is left over, and of each kind how many handles there are more than uses.
    pub fn finish(self, mut show: impl FnMut(Named, Kinds)) {
        let sorted = BinaryHeap::from(self.0).into_sorted_vec();
        for same in sorted.chunk_by(|(a, _), (b, _)| a == b) {
            let mut sum = Kinds::default();
            for (_, kinds) in same {
                sum.iter_mut().zip(kinds).for_each(|(sum, n)| *sum += n);
            }
            if let Some((named, _)) = same.first().filter(|_| sum != Kinds::default()) {
                show(*named, sum);
            }
        }
    }
}
