#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::oracle::front_ring::FrontRing;
use core::cell::RefCell;
use core::sync::atomic::Ordering::SeqCst;
use hv_core::evtchn::oracle::TestPage;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::thread;
use std::vec::Vec;

type Front = FrontRing<3, 256>;
type Back<P> = BackRing<P, 3, 256>;

fn pair(at: u32) -> (Front, Back<TestPage>) {
    let front = Front::new(at);
    let back = Back::attach(front.page.clone()).unwrap();
    (front, back)
}

#[test]
fn a_request_that_claims_what_cannot_be_ends_the_ring() {
    for (at, req_prod, ok) in
        [(0, 256, true), (0, 257, false), (0, u32::MAX, false), (u32::MAX, 255, true), (u32::MAX, 256, false)]
    {
        let (front, mut back) = pair(at);
        front.page.0[0].store(req_prod, SeqCst);
        assert_eq!(back.available().is_ok(), ok, "{at} {req_prod}");
        assert_eq!(back.ask_for_event(1).is_ok(), ok);
        assert_eq!(Back::attach(front.page.clone()).is_ok(), ok);
    }
}

#[test]
fn requests_are_not_promised_over_unanswered_ones() {
    let (front, mut back) = pair(0);
    front.page.0[0].store(256, SeqCst);
    back.consume(100);
    assert_eq!(back.available(), Ok(156));
    // Room for one more only when one is answered.
    front.page.0[0].store(257, SeqCst);
    assert_eq!(back.available(), Err(RingError::Overflow { req_prod: 257, req_cons: 100, rsp_prod: 0 }));
    assert!(back.respond([0; 1]));
    assert_eq!(back.available(), Ok(157));
    // Backwards, but not by so much that it would look like many.
    front.page.0[0].store(99, SeqCst);
    assert!(back.available().is_err());
}

#[test]
fn nothing_is_answered_twice() {
    let (mut front, mut back) = pair(7);
    assert!(!back.respond([1]));
    front.put([1, 2, 3]);
    front.push();
    assert!(!back.respond([1]), "not taken yet");
    back.consume(1);
    assert!(back.respond([9]));
    assert!(!back.respond([9]));
    assert!(back.push());
    assert_eq!(front.take(), Some((7, [9, 2, 3])));
    assert!(!back.push(), "no news");
}

#[test]
fn a_ring_that_another_back_end_served_goes_on() {
    let (mut front, mut back) = pair(u32::MAX - 2);
    for n in 0..10 {
        front.put([n, 0, 0]);
    }
    front.push();
    back.consume(4);
    assert!(back.respond([100]) && back.respond([101]));
    back.push();
    let mut heir = Back::attach(front.page.clone()).unwrap();
    assert_eq!(heir.available(), Ok(8));
    assert_eq!(heir.request(0), [2, 0, 0]);
    heir.consume(8);
    for n in 102..110 {
        assert!(heir.respond([n]));
    }
    heir.push();
    assert_eq!(
        core::iter::from_fn(|| front.take()).map(|r| r.1[0]).collect::<Vec<_>>(),
        (100..110).collect::<Vec<_>>()
    );
}

/// A page that counts how often its words are read and never says the same twice.
struct Fickle(RefCell<(Vec<u32>, u32)>);

impl SharedPage for Fickle {
    fn load(&self, at: usize) -> u32 {
        let mut all = self.0.borrow_mut();
        all.0[at] += 1;
        all.1 += 1;
        if at < SLOTS {
            0
        } else {
            all.1
        }
    }
    fn load_acquire(&self, at: usize) -> u32 {
        self.load(at)
    }
    fn store(&self, _: usize, _: u32) {}
    fn store_release(&self, _: usize, _: u32) {}
}

#[test]
fn each_word_of_a_request_is_read_once() {
    let mut back: Back<Fickle> = Back::attach(Fickle(RefCell::new((std::vec![0; 1024], 0)))).unwrap();
    for _ in 0..256 {
        back.request(0);
        back.consume(1);
    }
    assert!(back.page.0.borrow().0[SLOTS..SLOTS + 768].iter().all(|n| *n == 1));
}

/// Front and back end on two threads that sleep until they are told: every request is answered once, in order, and no
/// event is lost (or the test would hang: it gives up instead).
#[test]
fn no_event_is_lost_between_two_cpus() {
    use std::sync::mpsc::{channel, RecvTimeoutError};
    use std::time::Duration;
    const N: u32 = 60_000;
    let (mut front, mut back) = pair(0);
    let (kick_back, back_hears) = channel::<()>();
    let (kick_front, front_hears) = channel::<()>();
    let patience = Duration::from_secs(20);
    thread::scope(|s| {
        s.spawn(move || {
            let mut served = 0;
            while served < N {
                if !back.ask_for_event(1).unwrap() {
                    match back_hears.recv_timeout(patience) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                        Err(RecvTimeoutError::Timeout) => panic!("the back end waits for an event"),
                    }
                }
                while back.available().unwrap() > 0 {
                    let [n, ..] = back.request(0);
                    back.consume(1);
                    assert!(back.respond([n + 1]));
                    served += 1;
                    if served % 3 == 0 && back.push() {
                        let _ = kick_front.send(());
                    }
                }
                if back.push() {
                    let _ = kick_front.send(());
                }
            }
        });
        let (mut sent, mut answered) = (0, 0);
        while answered < N {
            while sent < N && front.free() > 0 {
                front.put([sent, 0, 0]);
                sent += 1;
                if sent % 5 == 0 && front.push() {
                    let _ = kick_back.send(());
                }
            }
            if front.push() {
                let _ = kick_back.send(());
            }
            while let Some((_, [n, ..])) = front.take() {
                answered += 1;
                assert_eq!(n, answered);
            }
            if answered < N && (front.free() == 0 || sent == N) && !front.ask_for_event() {
                front_hears.recv_timeout(patience).expect("the front end waits for an event");
            }
        }
    });
}

proptest! {
    /// Any interleaving of a front end that keeps the rules and a back end that answers out of order.
    #[test]
    fn every_request_gets_one_answer(at: u32, ops in prop::collection::vec((0u8..6, 1u32..40), 0..400)) {
        let (mut front, mut back) = pair(at);
        let (mut asked, mut answered) = (0u32, 0u32);
        let mut taken: VecDeque<u32> = VecDeque::new();
        let mut open = std::collections::BTreeSet::new();
        for (op, n) in ops {
            match op {
                0 => (0..n.min(front.free())).for_each(|_| {
                    front.put([asked, !asked, 5]);
                    open.insert(asked);
                    asked += 1;
                }),
                1 => { front.push(); }
                2 => {
                    let n = back.available().unwrap().min(n);
                    (0..n).for_each(|i| {
                        let [a, b, c] = back.request(i);
                        assert_eq!((!a, 5), (b, c));
                        taken.push_back(a);
                    });
                    back.consume(n);
                }
                3 => {
                    if n % 2 == 0 { taken.make_contiguous().reverse(); }
                    for _ in 0..n.min(taken.len() as u32) {
                        assert!(back.respond([taken.pop_front().unwrap()]));
                    }
                }
                4 => { back.push(); }
                _ => while let Some((_, [id, ..])) = front.take() {
                    assert!(open.remove(&id), "answered twice, or never asked");
                    answered += 1;
                },
            }
            assert_eq!(back.unanswered() as usize, taken.len());
            assert_eq!(open.len() as u32, asked - answered);
        }
    }

    /// Whatever is in the page: no panic, and never more requests than slots.
    #[test]
    fn garbage_is_refused(words in prop::collection::vec(any::<u32>(), 4), steps in prop::collection::vec(any::<u32>(), 0..50)) {
        let page = TestPage::filled(0);
        words.iter().enumerate().for_each(|(i, w)| page.0[i].store(*w, SeqCst));
        let Ok(mut back) = Back::attach(page.clone()) else { return Ok(()) };
        for step in steps {
            page.0[0].store(if step % 2 == 0 { back.req_cons().wrapping_add(step >> 1 & 0x1ff) } else { step }, SeqCst);
            page.0[3].store(step.rotate_left(9), SeqCst);
            let Ok(n) = back.available() else { continue };
            assert!(n + back.unanswered() <= 256);
            back.consume(n);
            for _ in 0..back.unanswered() / 2 { assert!(back.respond([0])); }
            back.push();
        }
    }
}
