//! What slots grant to domains that have no place there any more is taken back. A domain's number may be another one's
//! some day, a guest's perhaps, and pages hold what was last in them.
//!
//! What is in use cannot be taken back before it is not: a driver domain keeps what it has mapped until it is gone. So
//! slots are looked at again. What an earlier daemon has left is found by looking at all that ever had pages, which are
//! the first ones.

use super::{DiskService, Disks};
use crate::hypercall::Left;
use crate::store::Store;
use anyhow::{Context, Result};
use std::collections::BTreeSet;

/// So many slots are looked at after one look.
const AT_ONCE: usize = 8;

/// Where something may be left.
#[derive(Debug)]
pub(super) struct Leftovers {
    slots: BTreeSet<u32>,
    /// The slot that was looked at last.
    last: u32,
    /// From this one on an earlier daemon may have left something.
    unseen: Option<u32>,
}

impl Leftovers {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self { slots: BTreeSet::new(), last: 0, unseen: Some(0) }
    }

    /// A slot grants to somebody who loses his place there.
    pub(super) fn add(&mut self, slot: u32) {
        self.slots.insert(slot);
    }

    /// Whether somebody has to look again.
    pub(super) fn are_there(&self) -> bool {
        self.unseen.is_some() || !self.slots.is_empty()
    }

    /// Those whose turn it is.
    fn next(&self) -> Vec<u32> {
        let behind = self.slots.range(self.last + 1..).chain(self.slots.range(..=self.last));
        behind.copied().take(AT_ONCE).collect()
    }
}

impl DiskService {
    /// Takes back what a slot grants, but what it grants to `but`.
    pub(super) fn revoke(&mut self, slot: u32, but: Option<u16>, disks: &mut impl Disks) -> Result<Left> {
        let left = disks.revoke(self.domain, slot, but).context("what a slot grants cannot be taken back")?;
        if left == Left::InUse {
            self.leftovers.slots.insert(slot);
        } else {
            self.leftovers.slots.remove(&slot);
        }
        Ok(left)
    }

    /// Takes back what is left, of some slots.
    pub(super) fn revoke_left(&mut self, store: &mut impl Store, disks: &mut impl Disks) -> Result<()> {
        for slot in self.leftovers.next() {
            self.leftovers.last = slot;
            self.revoke_but_its(slot, store, disks)?;
        }
        for _ in 0..AT_ONCE {
            let Some(slot) = self.leftovers.unseen.filter(|slot| *slot < self.nr_slots) else {
                self.leftovers.unseen = None;
                break;
            };
            let left = self.revoke_but_its(slot, store, disks)?;
            self.leftovers.unseen = (left != Left::NoPages).then_some(slot + 1);
        }
        Ok(())
    }

    /// The same of one slot, but what it grants to the domain whose place it is. What fails is tried again.
    fn revoke_but_its(&mut self, slot: u32, store: &mut impl Store, disks: &mut impl Disks) -> Result<Left> {
        let its = store.read(&format!("{}/{slot}/backend-id", self.slots_at()))?.and_then(|id| id.parse().ok());
        Ok(self.revoke(slot, its, disks).unwrap_or_else(|_| {
            self.leftovers.slots.insert(slot);
            Left::InUse
        }))
    }
}
