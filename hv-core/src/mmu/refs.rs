//! References to pages and the writable type.

use super::{Mmu, MmuEnv, MmuError};
use crate::frame::{Frame, FrameType, Gone, Knowers, LastRef, Usage, UsageState};
use x86::Mfn;
use xen_abi::layout::DomId;

impl<'a, E: MmuEnv> Mmu<'a, E> {
    /// A reference to a page that `dom` owns: it stays its page while the reference lives.
    pub fn get_page(self, mfn: Mfn, dom: DomId) -> Result<PageRef<'a, E>, MmuError> {
        if self.ram(mfn)?.get(dom) {
            Ok(PageRef { mmu: self, mfn })
        } else {
            Err(MmuError::NotOwned)
        }
    }

    /// A reference to a page of `dom` that also keeps it from becoming a page table: for writing to it.
    pub fn get_writable(self, mfn: Mfn, dom: DomId) -> Result<WritableRef<'a, E>, MmuError> {
        let frame = self.ram(mfn)?;
        self.get_frame_writable(mfn, frame, dom)?;
        Ok(WritableRef { mmu: self, mfn })
    }

    /// Takes back a reference that was given up by [`PageRef::keep`].
    ///
    /// The count must really be held: a reference that was not kept would free somebody else's.
    pub fn page_from_kept(self, mfn: Mfn) -> PageRef<'a, E> {
        PageRef { mmu: self, mfn }
    }

    /// Takes back a reference that was given up by [`WritableRef::keep`]; the same caution.
    pub fn writable_from_kept(self, mfn: Mfn) -> WritableRef<'a, E> {
        WritableRef { mmu: self, mfn }
    }

    /// Drops a general reference; the last one frees the page.
    #[inline]
    pub(super) fn put_frame(&self, mfn: Mfn, frame: &Frame) {
        if let Some(last) = frame.put() {
            self.freed(mfn, frame, last);
        }
    }

    #[cold]
    pub(super) fn freed(&self, mfn: Mfn, frame: &Frame, last: LastRef) {
        if !last.heap && frame.usage().ty() == FrameType::Writable {
            self.env.dma_release(last.owner, mfn);
        }
        frame.stamp_free(self.env.tlb_clock());
        self.env.frame_left(mfn, last.owner, last.heap);
        if !last.heap {
            self.env.frame_gone(mfn, if last.noted { frame.let_go() } else { Gone::Free });
        }
    }

    /// Flushes the TLBs that may still know a free frame, those of IOMMUs too; to be called before the frame gets a new
    /// use or another owner, whatever that is.
    pub fn flush_before_reuse(&self, mfn: Mfn) {
        if let Some(frame) = self.env.frame(mfn) {
            let usage = frame.usage();
            if usage.state() == UsageState::Idle && usage.ty() != FrameType::None {
                self.env.flush_since(usage.stamp(), Knowers::Everyone);
            }
        }
        self.env.dma_flush();
    }

    /// Takes a general and a writable reference.
    #[inline]
    pub(super) fn get_frame_writable(&self, mfn: Mfn, frame: &Frame, dom: DomId) -> Result<(), MmuError> {
        if !frame.get(dom) {
            return Err(MmuError::NotOwned);
        }
        self.get_writable_type(mfn, frame, dom).inspect_err(|_| self.put_frame(mfn, frame))
    }

    #[inline]
    pub(super) fn put_frame_writable(&self, mfn: Mfn, frame: &Frame) {
        self.put_writable_type(frame);
        self.put_frame(mfn, frame);
    }

    /// Takes a writable type reference on a frame of `dom` on which the caller holds a general one.
    #[inline(always)]
    pub(super) fn get_writable_type(&self, mfn: Mfn, frame: &Frame, dom: DomId) -> Result<(), MmuError> {
        loop {
            let usage = frame.usage();
            let new = if usage.is_valid_as(FrameType::Writable) {
                usage.plus_one().ok_or(MmuError::Overflow)?
            } else if usage.is_idle_as(FrameType::Writable) {
                usage.again()
            } else if self.make_writable(mfn, frame, dom, usage)? {
                return Ok(());
            } else {
                continue;
            };
            if frame.change_usage(usage, new) {
                return Ok(());
            }
        }
    }

    /// Gives a frame its first writable reference after another use. `false`: it is no longer used as `usage` says.
    #[cold]
    #[inline(never)]
    fn make_writable(&self, mfn: Mfn, frame: &Frame, dom: DomId, usage: Usage) -> Result<bool, MmuError> {
        if usage.state() != UsageState::Idle {
            return Err(MmuError::WrongType);
        }
        if usage.needs_flush_for(FrameType::Writable) {
            self.env.flush_since(usage.stamp(), usage.knowers(dom));
        }
        // A frame that had another use in between has a later stamp: the clock had moved on before the flush.
        let is_ours = frame.change_usage(usage, Usage::valid(FrameType::Writable, 1));
        if is_ours {
            // Devices keep what they may until the frame gets another type. It cannot get one before this returns.
            self.env.dma_allow(dom, mfn);
        }
        Ok(is_ours)
    }

    #[inline]
    pub(super) fn put_writable_type(&self, frame: &Frame) {
        self.put_simple_type(frame, FrameType::Writable);
    }

    /// Drops a reference of a type that needs no taking apart.
    #[inline]
    pub(super) fn put_simple_type(&self, frame: &Frame, ty: FrameType) {
        loop {
            let usage = frame.usage();
            debug_assert!(usage.is_valid_as(ty), "{ty:?} reference dropped on {usage:?}");
            if !usage.is_valid_as(ty) {
                return;
            }
            // If a reference is taken after the word was read, the exchange fails, also if it is gone again: the clock
            // was read too early for it.
            let new = if usage.count() > 1 { usage.minus_one() } else { usage.ended(self.env.tlb_clock()) };
            if frame.change_usage(usage, new) {
                return;
            }
        }
    }
}

macro_rules! page_reference {
    ($(#[$doc:meta])* $name:ident, $put:ident) => {
        $(#[$doc])*
        #[must_use = "a reference that is dropped at once protects nothing"]
        pub struct $name<'a, E: MmuEnv> {
            mmu: Mmu<'a, E>,
            mfn: Mfn,
        }

        impl<E: MmuEnv> $name<'_, E> {
            /// The page.
            pub const fn mfn(&self) -> Mfn {
                self.mfn
            }
            /// Gives up the value and keeps the count, for a reference that lives in a table.
            pub fn keep(self) -> Mfn {
                let mfn = self.mfn;
                core::mem::forget(self);
                mfn
            }
        }

        impl<E: MmuEnv> Drop for $name<'_, E> {
            fn drop(&mut self) {
                if let Some(frame) = self.mmu.env.frame(self.mfn) {
                    self.mmu.$put(self.mfn, frame);
                }
            }
        }

        impl<E: MmuEnv> core::fmt::Debug for $name<'_, E> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), " to {:?}"), self.mfn)
            }
        }
    };
}

page_reference!(
    /// A page stays what it is and whose it is while this lives.
    PageRef, put_frame
);
page_reference!(
    /// A page may be written while this lives: it cannot become a page table or hold descriptors.
    WritableRef, put_frame_writable
);

impl<'a, E: MmuEnv> PageRef<'a, E> {
    /// Makes a reference to a page of `dom` one for writing, if the page may be written; else it stays what it is.
    pub fn into_writable(self, dom: DomId) -> Result<WritableRef<'a, E>, Self> {
        let (mmu, mfn) = (self.mmu, self.mfn);
        let is_writable = mmu.ram(mfn).and_then(|frame| mmu.get_writable_type(mfn, frame, dom)).is_ok();
        if !is_writable {
            return Err(self);
        }
        self.keep();
        Ok(WritableRef { mmu, mfn })
    }
}

impl<'a, E: MmuEnv> WritableRef<'a, E> {
    /// Makes it a reference that is not for writing.
    pub fn into_page(self) -> PageRef<'a, E> {
        let (mmu, mfn) = (self.mmu, self.keep());
        if let Some(frame) = mmu.env.frame(mfn) {
            mmu.put_writable_type(frame);
        }
        PageRef { mmu, mfn }
    }
}
