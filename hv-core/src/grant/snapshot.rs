//! A domain's grants as they once were, and the way back to them.
//!
//! What the domain has written is in pages that it shares with the hypervisor, and goes back. Who uses a grant has not
//! asked for that: a use goes on. So a grant in use must be the one that it was, of the same frame to the same user;
//! and no other may be in use.

use super::table::entry;
use super::{DomId, GrantTable, SharedFrame};
use crate::room::Room;
use crate::snapshot::Refusal;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Release};
use xen_abi::errno::Errno;
use xen_abi::grant::{GTF_READING, GTF_WRITING};

/// A grant that was in use.
#[derive(Clone, Copy, Debug)]
struct Used {
    gref: u32,
    user: DomId,
    frame: u64,
    is_written: bool,
}

/// Words of a page of shared entries.
const WORDS: usize = 1024;

/// Grants as they were.
pub struct Saved {
    pages: Vec<Box<[u32; WORDS]>>,
    /// In the order of their numbers.
    used: Vec<Used>,
}

impl Saved {
    /// Was a grant in use so?
    fn allows(&self, now: &Used) -> bool {
        self.used.binary_search_by_key(&now.gref, |used| used.gref).is_ok_and(|place| {
            self.used.get(place).is_some_and(|then| {
                then.user == now.user && then.frame == now.frame && (then.is_written || !now.is_written)
            })
        })
    }
}

impl<P: SharedFrame> GrantTable<P> {
    /// Notes what it is; `room` is asked for each frame, and for the uses. ENOMEM.
    pub fn save(&self, room: Room) -> Result<Saved, Errno> {
        let mut pages = Vec::new();
        pages.try_reserve_exact(self.frames().len()).map_err(|_| Errno::ENOMEM)?;
        for page in self.frames() {
            let mut words = Vec::new();
            let mut take = || words.try_reserve_exact(WORDS).is_ok();
            room(WORDS * size_of::<u32>(), &mut take).then_some(()).ok_or(Errno::ENOMEM)?;
            words.extend(page.as_ref().iter().map(|word| word.load(Acquire)));
            pages.push(words.try_into().map_err(|_| Errno::EINVAL)?);
        }
        let (mut used, nr_used) = (Vec::new(), self.nr_used());
        let mut take = || used.try_reserve_exact(nr_used).is_ok();
        room(nr_used * size_of::<Used>(), &mut take).then_some(()).ok_or(Errno::ENOMEM)?;
        self.for_each_used(|gref, user, frame, [_, _, host, device]| {
            used.push(Used { gref, user, frame, is_written: host != 0 || device != 0 });
        });
        Ok(Saved { pages, used })
    }

    /// Could it be as it was? Changes nothing.
    pub fn check(&self, saved: &Saved) -> Result<(), Refusal> {
        let mut other = None;
        self.for_each_used(|gref, user, frame, [_, _, host, device]| {
            let now = Used { gref, user, frame, is_written: host != 0 || device != 0 };
            if other.is_none() && !saved.allows(&now) {
                other = Some(gref);
            }
        });
        other.map_or(Ok(()), |gref| Err(Refusal::Grant(gref)))
    }

    /// Makes its entries what they were, but for the flags that say what is in use, which say what is in use now. What
    /// it has grown by is empty.
    pub fn go_back(&mut self, saved: &Saved) -> Result<(), Refusal> {
        self.check(saved)?;
        for (gref, in_use) in (0u32..).zip(self.flags_in_use()) {
            let Some((head, frame)) = entry(self.frames(), gref) else { break };
            let place = gref as usize * 2;
            let word = |at: usize| saved.pages.get(at / WORDS).map_or(0, |page| page[at % WORDS]);
            let then = word(place) & !u32::from(GTF_READING | GTF_WRITING);
            // What it grants first, then that it does.
            frame.store(word(place + 1), Release);
            head.store(then | u32::from(in_use), Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{grant, in_use_flags, Frames};
    use super::super::Use;
    use super::*;
    use crate::evtchn::oracle::TestPage;
    use crate::room::boundless;
    use core::sync::atomic::Ordering::SeqCst;
    use xen_abi::grant::GTF_PERMIT_ACCESS;

    fn words(table: &GrantTable<TestPage>, gref: usize) -> (u32, u32) {
        let page = table.frames()[gref / 512].as_ref();
        (page[gref % 512 * 2].load(SeqCst), page[gref % 512 * 2 + 1].load(SeqCst))
    }

    #[test]
    fn entries_go_back_and_uses_go_on() {
        let (mut t, f) = (GrantTable::new(1, 1, 4), Frames::default());
        t.grow(1, boundless, || Some(TestPage::filled(0))).unwrap();
        for gref in 3..6 {
            grant(&t, gref, GTF_PERMIT_ACCESS, 2, 100 + gref);
        }
        t.pin(&f, 2, 3, Use::host(true)).unwrap();
        t.pin(&f, 2, 4, Use::host(true)).unwrap();
        let saved = t.save(boundless).unwrap();
        let then = words(&t, 5);
        // One use ends, one becomes less; the rest is scribbled over, and there is more.
        t.unpin(&f, 3, Use::host(true));
        t.pin(&f, 2, 4, Use::device(false)).unwrap();
        t.unpin(&f, 4, Use::host(true));
        t.grow(2, boundless, || Some(TestPage::filled(0))).unwrap();
        for page in t.frames() {
            page.as_ref().iter().for_each(|word| word.store(!0, SeqCst));
        }
        assert_eq!(t.check(&saved), Ok(()));
        t.go_back(&saved).unwrap();
        assert_eq!((in_use_flags(&t, 3), in_use_flags(&t, 4)), (0, GTF_READING));
        let access = u32::from(GTF_PERMIT_ACCESS) | 2 << 16;
        assert_eq!((words(&t, 3), words(&t, 5)), ((access, 103), then));
        assert_eq!(words(&t, 4), (access | u32::from(GTF_READING), 104));
        assert_eq!((words(&t, 512), words(&t, 1023)), ((0, 0), (0, 0)));
        t.unpin(&f, 4, Use::device(false));
        assert!(f.counts.borrow().is_empty());
    }

    #[test]
    fn other_uses_are_named() {
        let (mut t, f) = (GrantTable::new(1, 1, 4), Frames::default());
        t.grow(1, boundless, || Some(TestPage::filled(0))).unwrap();
        for (gref, user) in [(3, 2), (4, 2), (5, 2)] {
            grant(&t, gref, GTF_PERMIT_ACCESS, user, 105);
        }
        t.pin(&f, 2, 4, Use::host(false)).unwrap();
        let saved = t.save(boundless).unwrap();
        t.pin(&f, 2, 4, Use::host(true)).unwrap();
        assert_eq!(t.check(&saved), Err(Refusal::Grant(4)), "for writing now");
        t.unpin(&f, 4, Use::host(true));
        t.check(&saved).unwrap();
        t.pin(&f, 2, 5, Use::host(false)).unwrap();
        assert_eq!((t.check(&saved), t.go_back(&saved)), (Err(Refusal::Grant(5)), Err(Refusal::Grant(5))));
        t.unpin(&f, 5, Use::host(false));
        t.unpin(&f, 4, Use::host(false));
        grant(&t, 4, GTF_PERMIT_ACCESS, 3, 105);
        t.pin(&f, 3, 4, Use::host(false)).unwrap();
        assert_eq!(t.check(&saved), Err(Refusal::Grant(4)), "another user");
        t.unpin(&f, 4, Use::host(false));
        grant(&t, 4, GTF_PERMIT_ACCESS, 2, 106);
        t.pin(&f, 2, 4, Use::host(false)).unwrap();
        assert_eq!(t.check(&saved), Err(Refusal::Grant(4)), "another frame");
        t.unpin(&f, 4, Use::host(false));
        assert_eq!(t.check(&saved), Ok(()));
    }

    #[test]
    fn who_has_no_room_is_not_noted() {
        let mut t = GrantTable::<TestPage>::new(1, 1, 4);
        t.grow(2, boundless, || Some(TestPage::filled(0))).unwrap();
        let full: Room = |bytes, _take| {
            assert_eq!(bytes, 4096, "a frame each");
            false
        };
        assert_eq!(t.save(full).err(), Some(Errno::ENOMEM));
    }
}
