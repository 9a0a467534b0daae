//! What the domain's kernel has freed comes home: nothing tells of it but the count of references.

use super::{Fragment, FragmentUse, Lent, Pool, Use, PORTION, USERS};
use crate::linux::offsets::Offsets;
use crate::linux::skb::end_of;
use crate::memory::{Fault, Memory};

/// A search for what the domain freed, which is done in portions: what is lent may be registers of a device by now,
/// which take their time to answer, and whoever has the pool locked is waited for.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is found before a portion is done"]
pub struct Search {
    /// The first `sk_buff` that may be one to be transmitted and was not looked at, and how many of those are left.
    transmit_next: usize,
    transmitting: usize,
    /// How many of all objects are left to be looked at.
    any: usize,
}

impl Search {
    /// Was it all looked at?
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.transmitting == 0 && self.any == 0
    }
}

/// Has somebody else the data of an `sk_buff`? Whoever gets one in the domain that has another user makes a copy of it
/// (`skb_share_check`) which shares its data, and frees it; the copy may wait in a queue for as long as it likes, and
/// who frees it last frees the data.
fn data_is_used(lent: &Lent, memory: &impl Memory, o: &Offsets) -> Result<bool, Fault> {
    if lent.head == 0 {
        // Its data is a fragment, whose page counts those that have it.
        return Ok(false);
    }
    let info = lent.head.wrapping_add(end_of(o, lent.size.into()));
    // The high half counts those who use the payload only.
    Ok(memory.member_u32(info, o.info_dataref)? & 0xffff > 1)
}

/// Has the driver put page fragments or other `sk_buff`s into one to receive? The domain has freed it but for the
/// lender's reference, so it did not free those, and whoever uses it next does not know of them: the domain frees them
/// when it is asked about what it has lent.
fn has_more(lent: &Lent, memory: &impl Memory, o: &Offsets) -> Result<bool, Fault> {
    if lent.head == 0 || lent.out != Use::Driver {
        // Nobody but the host has put any into what it sends.
        return Ok(false);
    }
    let info = lent.head.wrapping_add(end_of(o, lent.size.into()));
    Ok(memory.u8(info.wrapping_add(o.info_nr_frags))? != 0 || memory.member_u64(info, o.info_frag_list)? != 0)
}

impl Pool {
    /// A search. It looks at all that are to be transmitted, unless the driver has given some back since the last time,
    /// and of all objects at a portion each time, and at the next portion the next time. Of a pool that is short it
    /// looks at all: what is missing may be what the domain has freed, and nothing goes on before it is found.
    pub fn search(&mut self) -> Search {
        let (is_moving, is_short) = (core::mem::take(&mut self.has_sent), self.is_short());
        self.exhausted_before = self.exhausted;
        let all = self.skbs.objects.len() + self.fragments.objects.len();
        Search {
            transmit_next: 0,
            transmitting: if is_moving || is_short { 0 } else { self.nr_transmitting },
            any: if is_short { all } else { PORTION.min(all) },
        }
    }

    /// Takes back what the domain freed, of [`PORTION`] objects; returns how many of them. `sent` is given the cookies
    /// of those that were to be transmitted; while it has no room for one, they are left for the next time. Other lanes
    /// may be in the middle of giving and taking.
    ///
    /// # Errors
    /// If a lent object is no longer there.
    pub fn reclaim(
        &mut self,
        memory: &impl Memory,
        o: &Offsets,
        search: &mut Search,
        mut sent: impl FnMut(u64) -> bool,
    ) -> Result<usize, Fault> {
        let (mut found, mut looks) = (0, PORTION);
        while search.transmitting != 0 && looks != 0 {
            let n = search.transmit_next;
            let Some((_, lent)) = self.skbs.objects.get(n) else {
                // Others have come back meanwhile.
                search.transmitting = 0;
                break;
            };
            search.transmit_next = n + 1;
            if matches!(lent.out, Use::Transmit(_)) {
                (search.transmitting, looks) = (search.transmitting - 1, looks - 1);
                found += usize::from(self.reclaim_skb(n, memory, o, &mut sent)?);
            }
        }
        let nr_skbs = self.skbs.objects.len();
        let nr_all = nr_skbs + self.fragments.objects.len();
        if nr_all == 0 {
            search.any = 0;
        }
        while search.any != 0 && looks != 0 {
            (search.any, looks) = (search.any - 1, looks - 1);
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
        if memory.u32(skb.wrapping_add(o.skb_users))? >= USERS
            || data_is_used(&lent, memory, o)?
            || has_more(&lent, memory, o)?
            || matches!(lent.out, Use::Transmit(cookie) if !sent(cookie))
        {
            return Ok(false);
        }
        self.give(skb);
        // Nobody takes it before this returns.
        memory.put_member_u32(skb, o.skb_users, USERS)?;
        Ok(true)
    }

    /// The `n`th fragment does.
    fn reclaim_fragment(&mut self, n: usize, memory: &impl Memory, o: &Offsets) -> Result<bool, Fault> {
        let is_out = |fragment: &Fragment| fragment.out == FragmentUse::Driver;
        let Some((data, fragment)) = self.fragments.objects.get(n).copied().filter(|(_, f)| is_out(f)) else {
            return Ok(false);
        };
        let at = fragment.page.wrapping_add(o.page_refcount);
        let now = memory.u32(at)?;
        // If somebody else changes it just now it is looked at the next time.
        let is_freed = now < fragment.references && memory.exchange_u32(at, now, fragment.references)? == now;
        if is_freed {
            self.give_fragment(data);
        }
        Ok(is_freed)
    }
}
