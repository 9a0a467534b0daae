//! Other domains' CPUs use frames while their owner makes page tables of them.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::thread;

const ROUNDS: u32 = 3000;

/// Two CPUs pin and unpin an L1 table and a descriptor page under the owner's lock; two CPUs of others take writable
/// and general references on the same frames. A frame is never both, and in the end nothing is left over.
#[test]
fn counts_stay_right_under_concurrency() {
    let (m, lock) = machine();
    m.log.store(false, Ordering::Relaxed);
    let lock = Mutex::new(lock);
    let (pinned, written) = (AtomicU32::new(0), AtomicU32::new(0));
    let (contested, data) = (mfn(L1), mfn(20));
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for round in 0..ROUNDS {
                    thread::yield_now();
                    let mut lock = lock.lock().unwrap();
                    if m.mmu().pin(DOM1, contested, Level::L1, &mut lock).is_ok() {
                        assert_eq!(m.at(contested).usage().ty(), FrameType::L1);
                        assert!(m.mmu().get_writable(contested, DOM1).is_err(), "a table is never writable");
                        pinned.fetch_add(1, Ordering::Relaxed);
                        m.mmu().unpin(DOM1, contested, &mut lock).unwrap();
                    }
                    if round % 3 == 0 {
                        if let Ok(mut gdt) = m.mmu().take_gdt(DOM1, &[data]) {
                            assert_eq!(m.at(data).usage().ty(), FrameType::SegDesc);
                            m.mmu().drop_gdt(&mut gdt);
                        }
                    }
                }
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                for round in 0..ROUNDS * 10 {
                    if round % 8 == 0 {
                        thread::yield_now();
                    }
                    if let Ok(page) = m.mmu().get_writable(contested, DOM1) {
                        assert_eq!(m.at(contested).usage().ty(), FrameType::Writable);
                        written.fetch_add(1, Ordering::Relaxed);
                        drop(page);
                    }
                    drop(m.mmu().get_page(contested, DOM1).unwrap());
                    drop(m.mmu().get_writable(data, DOM1));
                }
            });
        }
    });
    assert!(pinned.load(Ordering::Relaxed) > 0, "never pinned");
    assert!(written.load(Ordering::Relaxed) > 0, "never written");
    for n in 10..40 {
        assert_eq!(counts(&m, n), (FrameType::None, 0, 1), "frame {n}");
    }
}

/// The last reference is dropped by whoever is last, and the frame is freed exactly once.
#[test]
fn a_frame_is_freed_once() {
    for _ in 0..200 {
        let (m, _) = machine();
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| (0..20).for_each(|_| drop(m.mmu().get_writable(mfn(20), DOM1))));
            }
            s.spawn(|| m.mmu().give_up(DOM1, mfn(20)).unwrap());
        });
        assert_eq!(*m.freed.lock().unwrap(), [(mfn(20), DOM1)]);
        assert_eq!(m.at(mfn(20)).usage().state(), UsageState::Idle);
    }
}

/// One CPU drops the last reference to a page that the hypervisor wrote to. When it has read the clock another one, of
/// the same domain, flushes its TLB, maps the page, writes to it and unmaps it.
#[test]
fn an_end_that_was_overtaken_by_another_use_is_as_late_as_that() {
    let (m, mut lock) = machine();
    let page = m.mmu().get_writable(mfn(20), DOM1).unwrap();
    *m.behind_clock.lock().unwrap() = Some(|m| {
        m.flush(DOM1);
        drop(m.mmu().get_writable(mfn(20), DOM1).unwrap());
    });
    drop(page);
    assert!(m.behind_clock.lock().unwrap().is_none(), "it looked at the clock");
    let flushes = m.flushes();
    m.mmu().pin(DOM1, mfn(20), Level::L1, &mut lock).unwrap();
    assert_eq!(m.flushes()[1], flushes[1] + 1, "its TLB knows the table as a writable page");
}

/// The same with descriptors, which are dropped without the lock, too.
#[test]
fn the_end_of_descriptors_is_overtaken_in_the_same_way() {
    let (m, _) = machine();
    m.mmu().take_segdesc(DOM1, mfn(20)).unwrap();
    *m.behind_clock.lock().unwrap() = Some(|m| {
        m.flush(DOM1);
        m.mmu().take_segdesc(DOM1, mfn(20)).unwrap();
        m.mmu().drop_segdesc(mfn(20));
    });
    m.mmu().drop_segdesc(mfn(20));
    let flushes = m.flushes();
    drop(m.mmu().get_writable(mfn(20), DOM1).unwrap());
    assert_eq!(m.flushes()[1], flushes[1] + 1);
}
