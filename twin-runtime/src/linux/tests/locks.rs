//! Polls and locks, which one has at a time.

use super::{call, structure};
use crate::abort::Reason;
use crate::linux::fake::{domain, Event, DEVICE};
use crate::linux::Stop;
use crate::memory::{Fault, Memory};

#[test]
fn polling_is_owned_once_and_a_missed_poll_runs_again() {
    let (mut f, s) = domain(1);
    let napi = DEVICE;
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(1));
    assert_eq!(f.taken, Some(napi), "who ends now owns it");
    call("__napi_schedule", &s, &mut f, &[napi]).expect("scheduled");
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(0), "owned");
    assert_eq!(f.taken, None, "it is scheduled, or was not taken");
    assert_eq!(f.u64(napi + 16), Ok(3), "SCHED and MISSED");
    assert_eq!(call("napi_complete_done", &s, &mut f, &[napi, 1]), Ok(0), "again");
    assert_eq!((f.u64(napi + 16), f.events.len()), (Ok(1), 2));
    assert_eq!(call("napi_complete_done", &s, &mut f, &[napi, 1]), Ok(1));
    assert_eq!((f.u64(napi + 16), &f.completed[..]), (Ok(0), &[napi, napi][..]));
    f.put_u64(napi + 16, 4).expect("mapped");
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(0), "disabled");
    f.put_u64(napi + 16, 1 | 8).expect("mapped");
    assert_eq!(call("napi_complete_done", &s, &mut f, &[napi, 1]), Ok(0), "netpoll has it");
    assert_eq!((f.u64(napi + 16), f.taken, f.completed.len()), (Ok(9), None, 2));
    // The domain schedules what it runs itself.
    f.has_card = false;
    f.put_u64(napi + 16, 0).expect("mapped");
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(1));
    assert_eq!((call("__napi_schedule", &s, &mut f, &[napi]), f.taken), (Err(Stop::Upcall), None));
}

#[test]
fn locks_are_tried_for_a_bounded_time() {
    let (mut f, s) = domain(1);
    let lock = DEVICE + 64;
    assert_eq!(call("_raw_spin_lock_irqsave", &s, &mut f, &[lock]), Ok(0));
    assert_eq!(call("_raw_spin_trylock", &s, &mut f, &[lock]), Ok(0));
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[lock]), Err(Stop::Abort(Reason::Lock(lock))));
    assert_eq!(f.events, [Event::Busy(1), Event::Busy(2), Event::Busy(3)]);
    f.frees_after = Some((2, lock));
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[lock]), Ok(0), "freed while waiting");
    f.put_u32(lock, 0x0004_0001).expect("mapped");
    assert_eq!(call("_raw_spin_unlock_irqrestore", &s, &mut f, &[lock]), Ok(0));
    assert_eq!(f.u32(lock), Ok(0x0004_0000), "the queue behind it stays");
    f.put_u32(lock, 3).expect("mapped");
    assert_eq!(call("_raw_spin_unlock", &s, &mut f, &[lock]), Err(Stop::Upcall), "paravirtual waiter");
    f.put_u32(lock, 0).expect("mapped");
    assert!(structure(call("_raw_spin_unlock", &s, &mut f, &[lock])));
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[0x10]), Err(Fault { address: 0x10, write: false }.into()));
}
