//! The front end's end of a shared ring, written from the description in public/io/ring.h.

use hv_core::evtchn::oracle::TestPage;
use std::sync::atomic::Ordering::SeqCst;

const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 1;
const RSP_PROD: usize = 2;
const RSP_EVENT: usize = 3;

/// A front end's ring of `SIZE` slots of `WORDS` words.
pub struct FrontRing<const WORDS: usize, const SIZE: u32> {
    /// The shared page.
    pub page: TestPage,
    /// Requests written.
    pub req_prod: u32,
    /// Responses read.
    pub rsp_cons: u32,
}

impl<const WORDS: usize, const SIZE: u32> FrontRing<WORDS, SIZE> {
    /// A fresh ring whose indices begin at `at` (0 in life; others to see them wrap).
    pub fn new(at: u32) -> Self {
        let page = TestPage::filled(0);
        for (word, value) in
            [(REQ_PROD, at), (REQ_EVENT, at.wrapping_add(1)), (RSP_PROD, at), (RSP_EVENT, at.wrapping_add(1))]
        {
            page.0[word].store(value, SeqCst);
        }
        FrontRing { page, req_prod: at, rsp_cons: at }
    }

    /// Word `at` of the page.
    pub fn word(&self, at: usize) -> u32 {
        self.page.0[at].load(SeqCst)
    }

    /// Slots without a request.
    pub fn free(&self) -> u32 {
        SIZE - self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// Index of the slot that the next request goes to.
    pub fn next_slot(&self) -> u32 {
        self.req_prod % SIZE
    }

    /// Writes a request.
    pub fn put(&mut self, request: [u32; WORDS]) {
        assert!(self.free() > 0, "a front end that overruns its ring");
        for (i, word) in request.into_iter().enumerate() {
            self.page.0[16 + (self.req_prod % SIZE) as usize * WORDS + i].store(word, SeqCst);
        }
        self.req_prod = self.req_prod.wrapping_add(1);
    }

    /// Shows the back end the requests. `true`: it wants an event.
    pub fn push(&mut self) -> bool {
        let old = self.page.0[REQ_PROD].swap(self.req_prod, SeqCst);
        let event = self.word(REQ_EVENT);
        self.req_prod.wrapping_sub(event) < self.req_prod.wrapping_sub(old)
    }

    /// The next response, if there is one: its slot, and its words.
    pub fn take(&mut self) -> Option<(u32, [u32; WORDS])> {
        let rsp_prod = self.word(RSP_PROD);
        let waiting = rsp_prod.wrapping_sub(self.rsp_cons);
        assert!(waiting <= self.req_prod.wrapping_sub(self.rsp_cons), "more responses than requests");
        if waiting == 0 {
            return None;
        }
        let slot = self.rsp_cons % SIZE;
        self.rsp_cons = self.rsp_cons.wrapping_add(1);
        Some((slot, std::array::from_fn(|i| self.word(16 + slot as usize * WORDS + i))))
    }

    /// Asks for an event at the next response. `true`: there is one already.
    pub fn ask_for_event(&mut self) -> bool {
        self.page.0[RSP_EVENT].store(self.rsp_cons.wrapping_add(1), SeqCst);
        self.word(RSP_PROD) != self.rsp_cons
    }
}
