//! The front end's end of a shared ring whose back end is not trusted.
//!
//! The driver domain may write anything anywhere in the page, at any time. The truth are the two indices kept here: how
//! far requests were written and how far responses were taken. Of the page the back end's `rsp_prod` is read once for
//! each batch, and refused if it claims more than was asked for; a response's words, each once into a copy; and the
//! back end's `req_event`, compared and no more.

use crate::page::SharedPage;
use core::sync::atomic::{fence, Ordering::SeqCst};

const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 1;
const RSP_PROD: usize = 2;
const RSP_EVENT: usize = 3;
/// First word of the slots.
const SLOTS: usize = 16;

/// The back end's `rsp_prod` claims responses to what was not asked, or went backwards: its ring is used no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// A ring of `SIZE` slots (a power of two) of `WORDS` 32-bit words each, in the page `P`.
pub struct FrontRing<P, const WORDS: usize, const SIZE: u32> {
    page: P,
    /// Next request to write.
    req_prod: u32,
    /// The back end was told of requests up to here.
    pushed: u32,
    /// Next response to take.
    rsp_cons: u32,
    /// The back end was asked for an event at this response, if it was.
    asked_for: Option<u32>,
}

impl<P: SharedPage, const WORDS: usize, const SIZE: u32> FrontRing<P, WORDS, SIZE> {
    /// Makes an empty ring of `page`.
    pub fn new(page: P) -> Self {
        const { assert!(SIZE.is_power_of_two() && SLOTS + WORDS * SIZE as usize <= 1024) };
        page.store(REQ_PROD, 0);
        page.store(REQ_EVENT, 1);
        page.store(RSP_PROD, 0);
        page.store_release(RSP_EVENT, 1);
        FrontRing { page, req_prod: 0, pushed: 0, rsp_cons: 0, asked_for: None }
    }

    /// The page.
    pub fn page(&self) -> &P {
        &self.page
    }

    /// Slots without a request.
    pub fn free(&self) -> u32 {
        SIZE - self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// Writes the next request, the first words and those that follow; others of the slot are left what they were. The
    /// back end sees it after
    /// [`FrontRing::push`]. `false`: there is no room.
    #[inline]
    #[must_use = "a request that was not written is not answered"]
    pub fn put<const N: usize>(&mut self, first: [u32; N], more: &[u32]) -> bool {
        const { assert!(N <= WORDS) };
        if self.free() == 0 {
            return false;
        }
        let at = Self::slot(self.req_prod);
        for (i, word) in first.into_iter().enumerate() {
            self.page.store(at + i, word);
        }
        for (i, word) in (N..WORDS).zip(more) {
            self.page.store(at + i, *word);
        }
        self.req_prod = self.req_prod.wrapping_add(1);
        true
    }

    /// Lets the back end see all requests so far. `true`: it has asked for an event at one of them.
    pub fn push(&mut self) -> bool {
        let (old, new) = (self.pushed, self.req_prod);
        if old == new {
            return false;
        }
        self.pushed = new;
        self.page.store_release(REQ_PROD, new);
        // The back end writes `req_event` and then looks at `req_prod`; here it is the other way round. One sees the
        // other's.
        fence(SeqCst);
        new.wrapping_sub(self.page.load(REQ_EVENT)) < new.wrapping_sub(old)
    }

    /// Number of responses that wait.
    pub fn available(&self) -> Result<u32, Overflow> {
        let waiting = self.page.load_acquire(RSP_PROD).wrapping_sub(self.rsp_cons);
        // What was not shown cannot have been answered.
        (waiting <= self.pushed.wrapping_sub(self.rsp_cons)).then_some(waiting).ok_or(Overflow)
    }

    /// Takes the next response, of those that [`FrontRing::available`] has counted. Each word is read once.
    pub fn take<const N: usize>(&mut self) -> [u32; N] {
        const { assert!(N <= WORDS) };
        let at = Self::slot(self.rsp_cons);
        self.rsp_cons = self.rsp_cons.wrapping_add(1);
        core::array::from_fn(|i| self.page.load(at + i))
    }

    /// Responses taken so far.
    pub fn rsp_cons(&self) -> u32 {
        self.rsp_cons
    }

    /// Asks the back end for an event when `n` (at least 1) responses wait, and looks whether they already do.
    #[inline]
    pub fn ask_for_event(&mut self, n: u32) -> Result<bool, Overflow> {
        let n = n.clamp(1, SIZE);
        let at = self.rsp_cons.wrapping_add(n);
        if self.asked_for != Some(at) {
            self.asked_for = Some(at);
            self.page.store(RSP_EVENT, at);
            fence(SeqCst);
        }
        Ok(self.available()? >= n)
    }

    fn slot(index: u32) -> usize {
        SLOTS + (index & (SIZE - 1)) as usize * WORDS
    }
}
