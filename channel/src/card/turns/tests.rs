use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;

const SECOND: u64 = 1_000_000_000;

fn turns(n: u16) -> Turns<(u16, u32)> {
    Turns::new(n, 0).unwrap()
}

#[test]
fn one_sender_is_served_in_its_order() {
    let mut t = turns(3);
    assert_eq!((t.first().copied(), t.pop(0), t.drain(), t.expire(1)), (None, None, None, None));
    assert!((0..200).all(|n| t.push(1, (1, n), Size::whole(1500), 0).is_ok()));
    assert!((0..200).all(|n| t.first().copied() == Some((1, n)) && t.pop(0) == Some((1, n))));
    assert!(t.is_empty() && t.first().is_none());
    assert_eq!(t.push(3, (3, 0), Size::whole(60), 0), Err((3, 0)), "there is no such sender");
}

/// Who makes one asks before whether there is as much memory.
#[test]
fn it_takes_as_many_bytes_as_it_says() {
    let mut t = turns(1024);
    let taken = [size_of_val(t.waiting.spare_capacity_mut()), size_of_val(&*t.senders)];
    assert_eq!(Turns::<(u16, u32)>::bytes(1024), taken);
}

#[test]
fn what_is_at_hand_stays_until_it_is_taken() {
    let mut t = turns(2);
    for n in 0..60 {
        t.push(0, (0, n), Size::whole(9000), 0).unwrap();
        t.push(1, (1, n), Size::whole(60), 0).unwrap();
    }
    while let Some(first) = t.first().copied() {
        assert_eq!((t.first().copied(), t.pop(0)), (Some(first), Some(first)));
    }
}

/// However much one leaves waiting, whoever comes later has room as soon as the card has sent something.
#[test]
fn nobody_keeps_others_from_waiting() {
    let mut t = turns(10);
    assert_eq!((0..).find(|n| t.push(0, (0, *n), Size::whole(60), 0).is_err()), Some(CAPACITY.into()));
    assert!(t.push(1, (1, 0), Size::whole(60), 0).is_err(), "full");
    // The first goes on filling it, and gets nothing in.
    for n in 0..9 {
        t.pop(0).unwrap();
        assert!(t.push(1, (1, n), Size::whole(60), 0).is_ok());
        assert!(t.push(0, (0, 0), Size::whole(60), 0).is_err());
    }
    for sender in 2..10 {
        t.pop(0).unwrap();
        assert!(t.push(sender, (sender, 0), Size::whole(60), 0).is_ok());
    }
}

/// Packets that go out as many are as much work as these would be.
#[test]
fn what_is_cut_counts_for_all_that_it_goes_out_as() {
    let mut t = turns(2);
    let cut = Size { bytes: 6000, segments: 60 };
    for n in 0..400 {
        t.push(0, (0, n), cut, 0).unwrap();
        t.push(1, (1, n), Size::whole(LEAST), 0).unwrap();
    }
    let mut sent = [0; 2];
    for _ in 0..305 {
        sent[usize::from(t.pop(0).unwrap().0)] += 1;
    }
    assert!((4..=6).contains(&sent[0]), "{sent:?}: one packet of the first for 60 of the other");
    // As long as its segments are long its bytes count.
    assert_eq!(cost(Size { bytes: 65000, segments: 45 }), 65000);
    assert_eq!(cost(Size { bytes: 65535, segments: u32::MAX }), u32::MAX);
}

/// Whoever sends a little beside one who sends much waits for a turn of the other's, not for all that he has.
#[test]
fn who_sends_little_goes_soon() {
    let mut t = turns(2);
    assert!(
        (0..500).all(|n| t.push(0, (0, n), Size::whole(60), 0).is_ok())
            && t.push(1, (1, 0), Size::whole(60), 0).is_ok()
    );
    let before = (0..).find(|_| t.pop(0) == Some((1, 0)));
    assert_eq!(before, Some(QUANTUM / LEAST));
}

#[test]
fn packets_wait_for_ten_seconds() {
    let mut t = turns(2);
    t.push(0, (0, 0), Size::whole(60), 0).unwrap();
    t.push(1, (1, 0), Size::whole(60), 5 * SECOND).unwrap();
    t.push(0, (0, 1), Size::whole(60), 6 * SECOND).unwrap();
    assert_eq!(t.expire(10 * SECOND - 1), None);
    assert_eq!((t.expire(10 * SECOND), t.expire(10 * SECOND)), (Some((0, 0)), None));
    assert_eq!((t.expire(15 * SECOND), t.expire(15 * SECOND)), (Some((1, 0)), None));
    assert_eq!((t.len(), t.drain(), t.drain()), (1, Some((0, 1)), None));
}

#[test]
fn for_a_card_that_takes_nothing_nothing_waits() {
    let mut t = turns(1);
    for s in 0..60 {
        assert!(t.push(0, (0, 0), Size::whole(60), s * SECOND).is_ok());
        while t.len() > 5 && t.expire(s * SECOND).is_some() {}
    }
    assert!(t.push(0, (0, 0), Size::whole(60), 60 * SECOND).is_err());
    while t.expire(60 * SECOND).is_some() {}
    assert!(t.is_empty() && t.push(0, (0, 0), Size::whole(60), 61 * SECOND).is_err());
    t.has_room(62 * SECOND);
    assert!(t.push(0, (0, 0), Size::whole(60), 62 * SECOND).is_ok());
}

#[test]
fn idle_time_is_no_stall() {
    let mut t = turns(1);
    // Looked at while nothing waits.
    assert_eq!(t.expire(100 * SECOND), None);
    assert!(t.push(0, (0, 0), Size::whole(60), 101 * SECOND).is_ok());
}

proptest! {
    /// What is said of a turn is what follows: so many of one sender's, and then another's, if he has something. (A
    /// turn is enough for each packet.)
    #[test]
    fn a_turn_is_what_is_said_of_it(sizes in prop::collection::vec((0u16..3, 60..=QUANTUM), 1..200), most in 1u16..10) {
        let mut t = turns(3);
        let mut left = [0; 3];
        for (n, (sender, size)) in (0..).zip(&sizes) {
            left[usize::from(*sender)] += 1;
            t.push(*sender, (*sender, n), Size::whole(*size), 0).unwrap();
        }
        while let Some((sender, _)) = t.first().copied() {
            let run = t.in_turn(most);
            prop_assert!((1..=most).contains(&run));
            for _ in 0..run {
                prop_assert_eq!(t.pop(0).map(|(sender, _)| sender), Some(sender));
                left[usize::from(sender)] -= 1;
            }
            let have_others = (0..3).any(|other| other != usize::from(sender) && left[other] > 0);
            if run < most && have_others {
                prop_assert_ne!(t.first().map(|(sender, _)| *sender), Some(sender));
            }
        }
        prop_assert_eq!(t.in_turn(most), 0);
    }

    /// Senders that always have something send as much, but for a turn.
    #[test]
    fn shares_are_equal(sizes in prop::collection::vec(60u32..65536, 2..6), nr in 1000usize..3000) {
        let mut t = turns(6);
        let mut sent = vec![0i64; sizes.len()];
        let fill = |t: &mut Turns<_>, s: u16| while t.push(s, (s, 0), Size::whole(sizes[usize::from(s)]), 0).is_ok() {};
        (0..).zip(&sizes).for_each(|(s, _)| t.push(s, (s, 0), Size::whole(sizes[usize::from(s)]), 0).unwrap());
        for _ in 0..nr {
            let (s, _) = t.pop(0).unwrap();
            fill(&mut t, s);
            sent[usize::from(s)] += i64::from(sizes[usize::from(s)].max(LEAST));
        }
        let (min, max) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        prop_assert!(max - min <= i64::from(QUANTUM) + 65536, "{:?}", sent);
    }

    /// Senders that always have something send by their weights, but for a turn and a packet.
    #[test]
    fn shares_are_by_weight(senders in prop::collection::vec((60u32..65536, 1u16..2000), 2..6), nr in 1000usize..3000) {
        let mut t = turns(6);
        let mut sent = vec![0u64; senders.len()];
        let bytes = |s: u16| senders[usize::from(s)].0;
        let fill = |t: &mut Turns<_>, s: u16| while t.push(s, (s, 0), Size::whole(bytes(s)), 0).is_ok() {};
        for (s, (bytes, weight)) in (0..).zip(&senders) {
            t.weigh(s, *weight);
            t.push(s, (s, 0), Size::whole(*bytes), 0).unwrap();
        }
        for _ in 0..nr {
            let (s, _) = t.pop(0).unwrap();
            fill(&mut t, s);
            sent[usize::from(s)] += u64::from(bytes(s).max(LEAST));
        }
        let heaviest = senders.iter().map(|(_, weight)| *weight).max().unwrap();
        // A turn is a whole number of bytes.
        let turn = |weight: u16| u64::from((QUANTUM * u32::from(weight) / u32::from(heaviest)).max(1));
        let turns: Vec<u64> = sent.iter().zip(&senders).map(|(sent, (_, weight))| sent / turn(*weight)).collect();
        let slack = |weight: u16| 65536 / turn(weight) + 2;
        for (one, (_, one_weight)) in turns.iter().zip(&senders) {
            for (other, (_, other_weight)) in turns.iter().zip(&senders) {
                prop_assert!(one.abs_diff(*other) <= slack(*one_weight) + slack(*other_weight), "{:?} {:?}", turns, senders);
            }
        }
    }

    /// Against a queue for each sender: nothing is lost or made, orders are kept, and what is forgotten is gone.
    #[test]
    fn agrees_with_queues(ops in prop::collection::vec((0u8..16, 0u16..5, 60u32..65536), 0..2000)) {
        let mut t = turns(5);
        let mut queues = vec![VecDeque::new(); 5];
        for (n, (op, sender, bytes)) in (0..).zip(ops) {
            let now = u64::from(n) * 10_000_000;
            match op {
                0..=8 => if t.push(sender, (sender, n), Size::whole(bytes), now).is_ok() {
                    queues[usize::from(sender)].push_back((now, n));
                },
                9..=13 => match t.pop(now) {
                    Some((s, n)) => prop_assert_eq!(queues[usize::from(s)].pop_front().map(|(_, n)| n), Some(n)),
                    None => prop_assert!(queues.iter().all(VecDeque::is_empty)),
                },
                14 => while let Some((s, n)) = t.expire(now) {
                    let (since, first) = queues[usize::from(s)].pop_front().unwrap();
                    prop_assert!(first == n && since + MAX_WAIT_NS <= now);
                },
                _ => {
                    t.forget(sender);
                    queues[usize::from(sender)].clear();
                }
            }
            prop_assert_eq!(usize::from(t.len()), queues.iter().map(VecDeque::len).sum::<usize>());
            let nr_senders = queues.iter().filter(|q| !q.is_empty()).count();
            prop_assert_eq!((usize::from(t.nr_senders), t.turn == NONE), (nr_senders, nr_senders == 0));
        }
        while let Some((s, n)) = t.drain() {
            prop_assert_eq!(queues[usize::from(s)].pop_front().map(|(_, n)| n), Some(n));
        }
        prop_assert!(queues.iter().all(VecDeque::is_empty));
    }
}
