//! The back end's end of a shared ring.
//!
//! The page belongs to the guest, who may write anything anywhere at any time. So the only truth are the two indices
//! kept here: how far requests were taken (`req_cons`) and how far responses were written (`rsp_prod`). Of the page
//! four things are used: the guest's `req_prod`, read once for each batch and refused if it claims what cannot be; a
//! request's words, each read once into a copy; the guest's `rsp_event`, compared and no more; and the slots that
//! responses go to, which are written and never read back.
//!
//! Between them holds `rsp_prod <= req_cons <= req_prod <= rsp_prod + SIZE` (modulo 2^32). The first part is the
//! owner's promise (one response for each request taken), kept here by refusing to respond beyond it; the last is the
//! guest's.

use crate::page::SharedPage;
use core::sync::atomic::{fence, Ordering::SeqCst};

const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 1;
const RSP_PROD: usize = 2;
const RSP_EVENT: usize = 3;
/// First word of the slots.
const SLOTS: usize = 16;

/// Why a ring can be used no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// The guest's `req_prod` leaves more requests than the ring has slots, or went backwards.
    Overflow {
        /// What it says.
        req_prod: u32,
        /// Requests taken so far.
        req_cons: u32,
        /// Responses written so far.
        rsp_prod: u32,
    },
}

/// Where a ring is, for who looks into it: what the guest says may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    /// Requests that the guest has made, as it says.
    pub req_prod: u32,
    /// Requests taken.
    pub req_cons: u32,
    /// Responses written.
    pub rsp_prod: u32,
    /// Of these, those that the guest was told of.
    pub pushed: u32,
    /// The guest was asked for an event at this request, as the page says.
    pub req_event: u32,
    /// The guest asks for an event at this response.
    pub rsp_event: u32,
}

/// A ring of `SIZE` slots (a power of two) of `WORDS` 32-bit words each, in the page `P`.
pub struct BackRing<P, const WORDS: usize, const SIZE: u32> {
    page: P,
    /// Next request to take.
    req_cons: u32,
    /// Next response to write.
    rsp_prod: u32,
    /// The guest was told of responses up to here.
    pushed: u32,
    /// The guest was asked for an event at this request, if it was.
    asked_for: Option<u32>,
}

impl<P: SharedPage, const WORDS: usize, const SIZE: u32> BackRing<P, WORDS, SIZE> {
    /// Takes up the ring in `page` where its back end left it: a fresh ring at 0, one that another back end served at
    /// its `rsp_prod`. Requests that were taken there and not answered are taken again; this is right if they were
    /// answered in order.
    pub fn attach(page: P) -> Result<Self, RingError> {
        const { assert!(SIZE.is_power_of_two() && SLOTS + WORDS * SIZE as usize <= 1024) };
        let at = page.load(RSP_PROD);
        let ring = BackRing { page, req_cons: at, rsp_prod: at, pushed: at, asked_for: None };
        ring.available()?;
        Ok(ring)
    }

    /// The page.
    pub fn page(&self) -> &P {
        &self.page
    }

    /// Where it is.
    pub fn indices(&self) -> Indices {
        Indices {
            req_prod: self.page.load(REQ_PROD),
            req_cons: self.req_cons,
            rsp_prod: self.rsp_prod,
            pushed: self.pushed,
            req_event: self.page.load(REQ_EVENT),
            rsp_event: self.page.load(RSP_EVENT),
        }
    }

    /// Next request to take.
    pub fn req_cons(&self) -> u32 {
        self.req_cons
    }

    /// Next response to write.
    pub fn rsp_prod(&self) -> u32 {
        self.rsp_prod
    }

    /// Requests taken and not answered.
    pub fn unanswered(&self) -> u32 {
        self.req_cons.wrapping_sub(self.rsp_prod)
    }

    /// Number of requests that wait. What [`BackRing::request`] then reads of them is what the guest wrote before it
    /// said so.
    #[inline]
    pub fn available(&self) -> Result<u32, RingError> {
        let req_prod = self.page.load_acquire(REQ_PROD);
        if req_prod.wrapping_sub(self.rsp_prod) > SIZE || req_prod.wrapping_sub(self.req_cons) > SIZE {
            return Err(RingError::Overflow { req_prod, req_cons: self.req_cons, rsp_prod: self.rsp_prod });
        }
        Ok(req_prod.wrapping_sub(self.req_cons))
    }

    /// A copy of the request `ahead` places behind the next one; `ahead` is less than what [`BackRing::available`]
    /// said. Each word is read once.
    #[inline]
    pub fn request(&self, ahead: u32) -> [u32; WORDS] {
        let at = Self::slot(self.req_cons.wrapping_add(ahead));
        core::array::from_fn(|i| self.page.load(at + i))
    }

    /// Reads words of that request, by their places.
    #[inline]
    pub fn words(&self, ahead: u32) -> impl Fn(usize) -> u32 + '_ {
        let first = Self::slot(self.req_cons.wrapping_add(ahead));
        move |at| {
            debug_assert!(at < WORDS);
            self.page.load(first + at)
        }
    }

    /// The next `n` requests are taken: each needs a response from now on.
    #[inline]
    pub fn consume(&mut self, n: u32) {
        self.req_cons = self.req_cons.wrapping_add(n);
    }

    /// Writes the next response; the guest sees it after [`BackRing::push`]. Words beyond `response` keep what the
    /// guest wrote. `false`: every request taken was answered already; nothing is written.
    #[inline]
    #[must_use = "a response too many is a mistake in the caller's books"]
    pub fn respond<const N: usize>(&mut self, response: [u32; N]) -> bool {
        const { assert!(N <= WORDS) };
        if self.rsp_prod == self.req_cons {
            return false;
        }
        let at = Self::slot(self.rsp_prod);
        for (i, word) in response.into_iter().enumerate() {
            self.page.store(at + i, word);
        }
        self.rsp_prod = self.rsp_prod.wrapping_add(1);
        true
    }

    /// Lets the guest see all responses so far. `true`: it has asked for an event at one of them. If there is none that
    /// it has not seen the answer is `false`: front ends punish events without news.
    #[inline]
    pub fn push(&mut self) -> bool {
        let (old, new) = (self.pushed, self.rsp_prod);
        if old == new {
            return false;
        }
        self.pushed = new;
        self.page.store_release(RSP_PROD, new);
        // The guest writes `rsp_event` and then looks at `rsp_prod`; here it is the other way round. One sees the
        // other's.
        fence(SeqCst);
        new.wrapping_sub(self.page.load(RSP_EVENT)) < new.wrapping_sub(old)
    }

    /// Responses that the guest was not yet told of.
    #[inline]
    pub fn unpushed(&self) -> u32 {
        self.rsp_prod.wrapping_sub(self.pushed)
    }

    /// Asks the guest for an event when `n` (at least 1) requests wait, and looks whether they already do. To be called
    /// before the ring is left alone; if it says `true` there is work instead of an event.
    #[inline]
    pub fn ask_for_event(&mut self, n: u32) -> Result<bool, RingError> {
        let n = n.clamp(1, SIZE);
        let at = self.req_cons.wrapping_add(n);
        if self.asked_for != Some(at) {
            self.asked_for = Some(at);
            self.page.store(REQ_EVENT, at);
            fence(SeqCst);
        }
        // Who was asked before, and has written it since, has seen that and notifies.
        Ok(self.available()? >= n)
    }

    fn slot(index: u32) -> usize {
        SLOTS + (index & (SIZE - 1)) as usize * WORDS
    }
}

#[cfg(test)]
mod tests;
