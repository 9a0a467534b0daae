//! What the domain's kernel has freed comes home: nothing tells of it but the count of references.

use super::{Fragment, FragmentUse, Lent, Pool, Use, PORTION, USERS_OUT};
use crate::linux::offsets::Offsets;
use crate::memory::{Fault, Memory};

impl Pool {
    /// Takes back what the domain freed; returns how many objects. `sent` is given the cookies of those that were to be transmitted; while
    /// it has no room for one, they are left for the next time. All of those are looked at, unless the driver has given some back since
    /// the last time; of all objects a portion each time, and the next portion the next time. Of a pool that is short all are looked at:
    /// what is missing may be what the domain has freed, and nothing goes on before it is found.
    ///
    /// # Errors
    /// If a lent object is no longer there.
    pub fn reclaim(
        &mut self,
        memory: &impl Memory,
        o: &Offsets,
        mut sent: impl FnMut(u64) -> bool,
    ) -> Result<usize, Fault> {
        let (is_moving, is_short) = (core::mem::take(&mut self.has_sent), self.is_short());
        self.exhausted_before = self.exhausted;
        let (mut found, mut left) = (0, if is_moving || is_short { 0 } else { self.nr_transmitting });
        for n in 0..self.skbs.objects.len() {
            if left == 0 {
                break;
            }
            if self.skbs.objects.get(n).is_some_and(|(_, lent)| matches!(lent.out, Use::Transmit(_))) {
                left -= 1;
                found += usize::from(self.reclaim_skb(n, memory, o, &mut sent)?);
            }
        }
        let nr_skbs = self.skbs.objects.len();
        let nr_all = nr_skbs + self.fragments.objects.len();
        for _ in 0..if is_short { nr_all } else { PORTION.min(nr_all) } {
            let n = if self.look_next < nr_all { self.look_next } else { 0 };
            self.look_next = n + 1;
            let is_found = match n.checked_sub(nr_skbs) {
                None => self.reclaim_skb(n, memory, o, &mut sent)?,
                Some(n) => self.reclaim_fragment(n, memory, o)?,
            };
            found += usize::from(is_found);
        }
        Ok(found)
    }

    /// The `n`th `sk_buff` comes home if it was freed.
    fn reclaim_skb(
        &mut self,
        n: usize,
        memory: &impl Memory,
        o: &Offsets,
        sent: &mut impl FnMut(u64) -> bool,
    ) -> Result<bool, Fault> {
        let is_out = |lent: &Lent| !matches!(lent.out, Use::Home | Use::Reserved | Use::Kept);
        let Some((skb, lent)) = self.skbs.objects.get(n).copied().filter(|(_, lent)| is_out(lent)) else {
            return Ok(false);
        };
        if memory.u32(skb.wrapping_add(o.skb_users))? >= USERS_OUT
            || matches!(lent.out, Use::Transmit(cookie) if !sent(cookie))
        {
            return Ok(false);
        }
        self.give(skb);
        Self::at_home(memory, o, skb)?;
        Ok(true)
    }

    /// The `n`th fragment does.
    fn reclaim_fragment(&mut self, n: usize, memory: &impl Memory, o: &Offsets) -> Result<bool, Fault> {
        let is_out = |fragment: &Fragment| fragment.out == FragmentUse::Driver;
        let Some((data, fragment)) = self.fragments.objects.get(n).copied().filter(|(_, f)| is_out(f)) else {
            return Ok(false);
        };
        let at = fragment.page.wrapping_add(o.page_refcount);
        let restore = |now: u32| (now < fragment.references).then_some(fragment.references);
        let (_, is_freed) = memory.update_u32(at, restore)?;
        if is_freed {
            self.give_fragment(data);
        }
        Ok(is_freed)
    }
}
