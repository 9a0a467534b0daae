//! The FIFO layout: an array of event words that grows by pages, and per vCPU a control block with sixteen queue heads.
//!
//! A queue is a list through the link fields of the event words, in guest memory. Only its tail is known here, and only
//! as a port to append after; links are never followed, so a guest that garbles them harms itself. One lock a domain
//! (the shell's) covers all its queues; the guest consumes concurrently.

use super::deliver::mark_upcall;
use super::*;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use xen_abi::event::{
    fifo_control, FIFO_BUSY, FIFO_LINKED, FIFO_LINK_MASK, FIFO_MASKED, FIFO_MAX_PAGES, FIFO_MAX_QUEUES, FIFO_PENDING,
    FIFO_WORDS_PER_PAGE,
};

/// How often a word that the guest keeps changing is tried again. A guest that keeps the rules makes at most four
/// changes to a linked word while it is marked busy.
const LINK_TRIES: u32 = 8;

/// The event array.
pub(super) struct Fifo<P> {
    pub pages: Vec<P>,
}

/// A vCPU's control block and queues.
pub(super) struct VcpuQueues<P> {
    pub control: Option<ControlBlock<P>>,
    /// Last port of each queue, 0: none known.
    pub tail: [Port; FIFO_MAX_QUEUES as usize],
}

pub(super) struct ControlBlock<P> {
    pub page: P,
    /// Index of its first word in the page; the block fits.
    pub first: usize,
}

impl<P: AsRef<PageWords>> ControlBlock<P> {
    fn word(&self, byte: usize) -> &AtomicU32 {
        // `first` was checked when the block was registered, so the remainder changes nothing; it keeps the index in
        // range.
        &self.page.as_ref()[(self.first + byte / 4) % 1024]
    }

    fn ready(&self) -> &AtomicU32 {
        self.word(fifo_control::READY)
    }

    fn head(&self, queue: u8) -> &AtomicU32 {
        self.word(fifo_control::HEAD + 4 * usize::from(queue))
    }
}

impl<P> VcpuQueues<P> {
    pub fn new() -> VcpuQueues<P> {
        VcpuQueues { control: None, tail: [0; FIFO_MAX_QUEUES as usize] }
    }
}

impl<P: AsRef<PageWords>> VcpuQueues<P> {
    /// Is there a queue that the guest has not looked at since something came on it?
    pub fn has_ready(&self) -> bool {
        self.control.as_ref().is_some_and(|block| block.ready().load(Acquire) != 0)
    }
}

impl<P: AsRef<PageWords>> EventChannels<P> {
    /// Calls `f` with every page of the domain that events are written to.
    pub fn for_each_page(&self, mut f: impl FnMut(&P)) {
        if let Layout::Fifo(fifo) = &self.layout {
            fifo.pages.iter().for_each(&mut f);
        }
        self.vcpus.iter().filter_map(|v| v.fifo.control.as_ref()).for_each(|block| f(&block.page));
    }

    /// Registers a vCPU's control block at byte `offset` of a page; the first call changes the layout to FIFO. `map`
    /// gets hold of the page. `ENOENT`: no such vCPU. `EINVAL`: the block does not fit, is misaligned, or is there
    /// already.
    pub fn init_control(
        &mut self,
        mem: &impl Shared,
        vcpu: u32,
        offset: u32,
        map: impl FnOnce() -> Result<P, Errno>,
    ) -> Result<(), Errno> {
        let nr = self.vcpu_exists(vcpu)?;
        let first = offset as usize;
        if !first.is_multiple_of(8) || first > 4096 - fifo_control::SIZE {
            return Err(Errno::EINVAL);
        }
        let Some(v) = self.vcpus.get_mut(usize::from(nr)) else { return Err(Errno::ENOENT) };
        if v.fifo.control.is_some() {
            return Err(Errno::EINVAL);
        }
        let block = ControlBlock { page: map()?, first: first / 4 };
        v.fifo.control = Some(block);
        if !self.is_fifo() {
            self.switch_to_fifo(mem);
        }
        self.raise_again(mem, |ch| ch.notify == nr);
        Ok(())
    }

    /// Adds a page to the event array. `EOPNOTSUPP`: no control block yet. `ENOSPC`: the array is complete.
    pub fn expand_array(&mut self, mem: &impl Shared, map: impl FnOnce() -> Result<P, Errno>) -> Result<(), Errno> {
        let Layout::Fifo(f) = &mut self.layout else { return Err(Errno::EOPNOTSUPP) };
        if f.pages.len() >= FIFO_MAX_PAGES as usize {
            return Err(Errno::ENOSPC);
        }
        f.pages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        f.pages.push(map()?);
        self.raise_again(mem, |ch| ch.pending);
        Ok(())
    }

    /// Sets the queue that a port goes on, from its next event. `EINVAL`: no such port or queue. `ENOSYS`: not FIFO.
    pub fn set_priority(&mut self, port: Port, priority: u32) -> Result<(), Errno> {
        let ch = self.ports.get_mut(port).ok_or(Errno::EINVAL)?;
        if !matches!(self.layout, Layout::Fifo(_)) {
            return Err(Errno::ENOSYS);
        }
        if priority >= FIFO_MAX_QUEUES {
            return Err(Errno::EINVAL);
        }
        ch.priority = u8::try_from(priority).map_err(|_| Errno::EINVAL)?;
        Ok(())
    }

    /// The ports from `first` on are new, or were away: those that end a queue are told which.
    pub(super) fn find_queues(&mut self, first: Port) {
        for (vcpu, v) in (0u16..).zip(&self.vcpus) {
            for (queue, tail) in (0u8..).zip(&v.fifo.tail).filter(|(_, tail)| **tail >= first) {
                if let Some(ch) = self.ports.get_mut(*tail) {
                    ch.queued_on = (vcpu, queue);
                }
            }
        }
    }

    /// What is pending in the shared-info page must survive the change of the layout.
    fn switch_to_fifo(&mut self, mem: &impl Shared) {
        let mut port = 0;
        while let Some(open) = self.next_open(port) {
            let pending = deliver::two_level_is_pending(mem, open);
            if let Some(ch) = self.ports.get_mut(open) {
                ch.pending = pending;
            }
            port = open + 1;
        }
        self.layout = Layout::Fifo(Fifo { pages: Vec::new() });
    }

    /// Delivers again what is pending on ports that `which` chooses: their word or their queue has just come to be.
    fn raise_again(&mut self, mem: &impl Shared, which: impl Fn(&Channel) -> bool) {
        let mut port = 0;
        while let Some(open) = self.next_open(port) {
            port = open + 1;
            let (Some(ch), Layout::Fifo(f)) = (self.ports.get_mut(open), &mut self.layout) else { return };
            if which(ch) && f.is_pending(open, ch) && f.word(open).is_some() {
                ch.pending = false;
                f.raise(mem, &mut self.vcpus, ch, open);
            }
        }
    }
}

impl<P: AsRef<PageWords>> Fifo<P> {
    #[inline]
    fn word(&self, port: Port) -> Option<&AtomicU32> {
        let page = self.pages.get((port / FIFO_WORDS_PER_PAGE) as usize)?;
        page.as_ref().get((port % FIFO_WORDS_PER_PAGE) as usize)
    }

    pub fn is_pending(&self, port: Port, ch: &Channel) -> bool {
        ch.pending || self.word(port).is_some_and(|w| w.load(Acquire) & FIFO_PENDING != 0)
    }

    /// Also if it has no word yet.
    pub fn is_masked(&self, port: Port) -> bool {
        self.word(port).is_none_or(|w| w.load(Acquire) & FIFO_MASKED != 0)
    }

    pub fn is_linked(&self, port: Port) -> bool {
        self.word(port).is_some_and(|w| w.load(Acquire) & FIFO_LINKED != 0)
    }

    pub fn clear_pending(&self, port: Port) {
        if let Some(w) = self.word(port) {
            w.fetch_and(!FIFO_PENDING, AcqRel);
        }
    }

    /// Makes an event pending. Returns whether it was.
    #[inline]
    pub fn raise(&self, mem: &impl Shared, vcpus: &mut [VcpuEvents<P>], ch: &mut Channel, port: Port) -> bool {
        let Some(word) = self.word(port) else {
            return core::mem::replace(&mut ch.pending, true);
        };
        let before = word.fetch_or(FIFO_PENDING, AcqRel);
        if before & (FIFO_MASKED | FIFO_LINKED) == 0 {
            self.link(mem, vcpus, ch, port, word);
        }
        before & FIFO_PENDING != 0
    }

    pub fn unmask(&self, mem: &impl Shared, vcpus: &mut [VcpuEvents<P>], ch: &mut Channel, port: Port) {
        let Some(word) = self.word(port) else { return };
        let before = word.fetch_and(!FIFO_MASKED, AcqRel);
        if before & FIFO_PENDING != 0 && before & FIFO_LINKED == 0 {
            self.link(mem, vcpus, ch, port, word);
        }
    }

    /// Puts a port at the end of its queue.
    fn link(&self, mem: &impl Shared, vcpus: &mut [VcpuEvents<P>], ch: &mut Channel, port: Port, word: &AtomicU32) {
        // A vCPU without a control block: the event stays pending and is looked at again when the block comes.
        if vcpus.get(usize::from(ch.notify)).is_none_or(|v| v.fifo.control.is_none()) {
            return;
        }
        if word.fetch_or(FIFO_LINKED, AcqRel) & FIFO_LINKED != 0 {
            return;
        }
        // It was not linked: if it is the tail of a queue, the guest has emptied that queue.
        let (old_vcpu, old_queue) = ch.queued_on;
        if let Some(tail) = tail_of(vcpus, old_vcpu, old_queue) {
            if *tail == port {
                *tail = 0;
            }
        }
        ch.queued_on = (ch.notify, ch.priority);
        let Some(tail) = tail_of(vcpus, ch.notify, ch.priority) else { return };
        let last = core::mem::replace(tail, port);
        if last != 0 && self.word(last).is_some_and(|w| set_link(w, port)) {
            return;
        }
        // The queue is (or was just made) empty: start it anew.
        let Some(control) = vcpus.get(usize::from(ch.notify)).and_then(|v| v.fifo.control.as_ref()) else { return };
        control.head(ch.priority).store(port, Release);
        let bit = 1u32 << ch.priority;
        if control.ready().fetch_or(bit, AcqRel) & bit == 0 {
            mark_upcall(mem, ch.notify.into());
        }
    }
}

fn tail_of<P>(vcpus: &mut [VcpuEvents<P>], vcpu: u16, queue: u8) -> Option<&mut Port> {
    vcpus.get_mut(usize::from(vcpu))?.fifo.tail.get_mut(usize::from(queue))
}

/// Appends `port` after the event of `word`, if that is still on the queue. `false`: the guest has taken it off, or
/// keeps changing the word.
fn set_link(word: &AtomicU32, port: Port) -> bool {
    let mut seen = word.load(Acquire);
    for attempt in 0..LINK_TRIES {
        if seen & FIFO_LINKED == 0 {
            break;
        }
        let new = seen & !(FIFO_BUSY | FIFO_LINK_MASK) | (port & FIFO_LINK_MASK);
        match word.compare_exchange(seen, new, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
        if attempt == 0 {
            // Asks the guest not to unmask until the link is there.
            seen = word.fetch_or(FIFO_BUSY, AcqRel) | FIFO_BUSY;
        }
    }
    if word.load(Relaxed) & FIFO_BUSY != 0 {
        word.fetch_and(!FIFO_BUSY, AcqRel);
    }
    false
}
