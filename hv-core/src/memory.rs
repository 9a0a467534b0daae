//! `memory_op`: growing, shrinking and exchanging a domain's memory.
//!
//! The shell copies arguments in and out and repeats preempted calls; here is what is checked, in which order things
//! happen, and how a failure is undone. A page changes hands only when nothing refers to it, and a domain's account is
//! charged before it gets a page and credited after it lost one, so that racing calls never beat the limit.

use crate::frame::Gone;
use crate::mmu::{Mmu, MmuEnv, MmuError};
use alloc::vec::Vec;
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, INVALID_M2P_ENTRY};
use xen_abi::memory::{MemoryExchange, MemoryReservation, MEMF_ADDRESS_BITS_MASK, MEMOP_EXTENT_SHIFT};

/// Largest extents that the control domain and those with devices may ask for, as log2 of pages. Extents are wiped,
/// exchanged and given up without a look at what else there is to do.
///
/// Differs from Xen: there the control domain may ask for 18, and a GiB is wiped at once. The tools build domains of
/// this kind from extents of order 9 and 0.
pub const DEVICE_MAX_ORDER: u32 = 12;
/// The same for all others.
pub const GUEST_MAX_ORDER: u32 = 9;

/// The largest extents that a domain may ask for.
pub const fn max_order(is_privileged: bool, has_io: bool) -> u32 {
    if is_privileged || has_io {
        DEVICE_MAX_ORDER
    } else {
        GUEST_MAX_ORDER
    }
}
/// `address_bits` that mean any address.
pub const ANYWHERE: u32 = 64;

/// The allocator of free frames.
pub trait FrameSource {
    /// Takes 2^`order` frames that nobody has claimed, aligned to their size, below 2^`address_bits` bytes, which no
    /// TLB knows and which hold no data of anybody. They are not the domain's claim.
    fn alloc(&self, order: u32, address_bits: u32) -> Option<Mfn>;
    /// The same for a domain that shall have as many more than before: its own claim is for them, and used up by them.
    fn alloc_more(&self, order: u32, address_bits: u32) -> Option<Mfn>;
    /// Gives back what `alloc` gave, unused.
    fn free(&self, mfn: Mfn, order: u32);
    /// Takes a frame that was in use; TLBs may still know it. Or it is not free, but away for a snapshot.
    fn release(&self, mfn: Mfn, gone: Gone);
}

/// A domain's account of pages.
pub trait Account {
    /// Whose it is.
    fn owner(&self) -> DomId;
    /// Enters `pages` more, unless that is more than the domain may have.
    fn charge(&self, pages: u64) -> bool;
    /// Takes `pages` out.
    fn uncharge(&self, pages: u64);
}

/// A reservation that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Guest address of the list.
    pub list: u64,
    /// How many.
    pub count: u64,
    /// Pages in each.
    pub order: u32,
    /// Address limit.
    pub address_bits: u32,
}

impl Extents {
    /// Checks the arguments of `increase_reservation`, `decrease_reservation` and `populate_physmap`. EPERM for extents
    /// that are too large for the caller; E2BIG for more of them than a continued call can count.
    pub fn new(r: &MemoryReservation, max_order: u32) -> Result<Self, Errno> {
        if r.extent_order > max_order {
            return Err(Errno::EPERM);
        }
        if r.nr_extents > u64::from(u32::MAX >> MEMOP_EXTENT_SHIFT) {
            return Err(Errno::E2BIG);
        }
        Ok(Self {
            list: r.extent_start,
            count: r.nr_extents,
            order: r.extent_order,
            address_bits: match r.mem_flags & MEMF_ADDRESS_BITS_MASK {
                0 => ANYWHERE,
                bits => bits,
            },
        })
    }

    /// Pages in each extent.
    pub const fn pages(&self) -> u64 {
        1 << self.order
    }
}

/// Gives the domain one more extent. Its pages get the pseudo-physical numbers from `pfn` on, if there is one.
pub fn populate<E: MmuEnv, S: FrameSource, A: Account>(
    mmu: Mmu<'_, E>,
    source: &S,
    account: &A,
    extents: &Extents,
    pfn: Option<u64>,
) -> Result<Mfn, Errno> {
    if !account.charge(extents.pages()) {
        return Err(Errno::ENOMEM);
    }
    let Some(first) = source.alloc_more(extents.order, extents.address_bits) else {
        account.uncharge(extents.pages());
        return Err(Errno::ENOMEM);
    };
    for n in 0..extents.pages() {
        hand_over(mmu, first.add(n), account.owner(), pfn.map(|p| p.wrapping_add(n)));
    }
    Ok(first)
}

fn hand_over<E: MmuEnv>(mmu: Mmu<'_, E>, mfn: Mfn, to: DomId, pfn: Option<u64>) {
    if let Some(pfn) = pfn {
        mmu.env.m2p_set(mfn, pfn);
    }
    if let Some(frame) = mmu.env.frame(mfn) {
        frame.assign(to);
    }
}

/// The domain gives up the pages of the extent at `first`. EINVAL if one of them is not its own: those before are gone.
pub fn decrease<E: MmuEnv>(mmu: Mmu<'_, E>, dom: DomId, extents: &Extents, first: Mfn) -> Result<(), Errno> {
    for n in 0..extents.pages() {
        mmu.give_up(dom, first.add(n))?;
    }
    Ok(())
}

/// An exchange that makes sense: the work is cut in chunks, each of which happens as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What goes.
    pub input: Extents,
    /// What comes.
    pub output: Extents,
    /// Extents of `input` in a chunk.
    pub inputs_per_chunk: u64,
    /// Extents of `output` in a chunk.
    pub outputs_per_chunk: u64,
    /// The chunk to begin with.
    pub first_chunk: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl Exchange {
    /// Checks the arguments. EINVAL if the two sides do not match; EPERM for extents that are too large for the caller.
    pub fn new(x: &MemoryExchange, max_order: u32) -> Result<Self, Errno> {
        let input = Extents::new(&x.input, max_order)?;
        let output = Extents::new(&x.output, max_order)?;
        // Both counts have at most 26 bits, and the orders are small: this cannot overflow.
        let pages = input.count << input.order;
        if input.count == 0 || pages != output.count << output.order || x.input.domid != x.output.domid {
            return Err(Errno::EINVAL);
        }
        let chunk_order = input.order.max(output.order);
        let inputs_per_chunk = 1 << (chunk_order - input.order);
        let outputs_per_chunk = 1 << (chunk_order - output.order);
        if x.nr_exchanged > input.count
            || !x.nr_exchanged.is_multiple_of(inputs_per_chunk)
            || pages % (1 << chunk_order) != 0
        {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            input,
            output,
            inputs_per_chunk,
            outputs_per_chunk,
            first_chunk: x.nr_exchanged / inputs_per_chunk,
            chunks: pages >> chunk_order,
        })
    }

    /// Exchanges one chunk: takes the extents at `inputs` from `dom`, gives it new ones, whose pages get the numbers
    /// from `pfns` on. Returns their first frames. On an error nothing has changed. EINVAL for pages that are not the
    /// domain's or that something refers to; ENOMEM, also if others have claimed what there is.
    pub fn chunk<E: MmuEnv, S: FrameSource>(
        &self,
        mmu: Mmu<'_, E>,
        source: &S,
        dom: DomId,
        inputs: &[Mfn],
        pfns: &[u64],
    ) -> Result<Vec<Mfn>, Errno> {
        let mut new = Vec::new();
        new.try_reserve_exact(pfns.len()).map_err(|_| Errno::ENOMEM)?;
        for _ in pfns {
            match source.alloc(self.output.order, self.output.address_bits) {
                Some(first) => new.push(first),
                None => {
                    self.give_back(source, &new);
                    return Err(Errno::ENOMEM);
                }
            }
        }
        if let Err(why) = self.steal(mmu, dom, inputs) {
            self.give_back(source, &new);
            return Err(why.into());
        }
        // From here on nothing can fail.
        for mfn in self.pages_of(inputs) {
            mmu.env.m2p_set(mfn, INVALID_M2P_ENTRY);
            source.release(mfn, mmu.let_go(mfn));
        }
        for (first, pfn) in new.iter().zip(pfns) {
            for n in 0..self.output.pages() {
                hand_over(mmu, first.add(n), dom, Some(pfn.wrapping_add(n)));
            }
        }
        Ok(new)
    }

    fn pages_of<'a>(&'a self, inputs: &'a [Mfn]) -> impl Iterator<Item = Mfn> + 'a {
        inputs.iter().flat_map(|first| (0..self.input.pages()).map(|n| first.add(n)))
    }

    fn give_back<S: FrameSource>(&self, source: &S, new: &[Mfn]) {
        new.iter().for_each(|first| source.free(*first, self.output.order));
    }

    /// All of the pages or none. They stay in the account: as many come back.
    fn steal<E: MmuEnv>(&self, mmu: Mmu<'_, E>, dom: DomId, inputs: &[Mfn]) -> Result<(), MmuError> {
        for (taken, mfn) in self.pages_of(inputs).enumerate() {
            if let Err(why) = mmu.steal(dom, mfn) {
                self.pages_of(inputs).take(taken).for_each(|mfn| mmu.unsteal(dom, mfn));
                return Err(why);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
