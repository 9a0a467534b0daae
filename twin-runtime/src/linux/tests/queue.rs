//! Transmit queues: who has one, when it wakes, and how much it takes.

use super::{call, structure};
use crate::linux::fake::{domain, Event, DEVICE};
use crate::linux::queue::{Begun, Limits};
use crate::memory::Memory;

#[test]
fn queues_wake_once() {
    let (mut f, s) = domain(1);
    let queue = DEVICE;
    f.put_u64(queue + 144, 1).expect("mapped");
    call("netif_schedule_queue", &s, &mut f, &[queue]).expect("looked at");
    assert_eq!(f.events, [], "still stopped by the driver");
    call("netif_tx_wake_queue", &s, &mut f, &[queue]).expect("woken");
    call("netif_tx_wake_queue", &s, &mut f, &[queue]).expect("nothing to do");
    call("netif_schedule_queue", &s, &mut f, &[queue]).expect("scheduled");
    assert_eq!(f.events, [Event::Queue(queue), Event::Queue(queue)]);
}

#[test]
fn a_sender_takes_the_queue_as_linux_does() {
    let (mut f, s) = domain(1);
    let queue = DEVICE;
    f.put_u64(DEVICE + 0x800, 4321).expect("mapped");
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Open));
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Busy));
    assert_eq!((f.u32(queue + 128), f.u32(queue + 132)), (Ok(1), Ok(0x7fff_fff0)));
    s.end_transmit(&mut f, queue, true).expect("released");
    assert_eq!((f.u32(queue + 128), f.u32(queue + 132), f.u64(queue + 136)), (Ok(0), Ok(u32::MAX), Ok(4321)));
    f.put_u64(queue + 144, 4).expect("mapped");
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Stopped), "frozen");
    assert_eq!(f.u32(queue + 128), Ok(0));
}

fn limits() -> Limits {
    Limits {
        queued: 3000,
        last: 1500,
        limit: 0,
        completed: 0,
        prev_over: 0,
        prev_queued: 0,
        prev_last: 0,
        slack: u32::MAX,
        since: 0,
        bounds: (0, 10_000),
        hold: 250,
    }
}

#[test]
fn the_queue_limit_grows_when_the_device_runs_dry() {
    let after = limits().after(3000, 10);
    assert_eq!((after.limit, after.completed, after.prev_queued, after.prev_over), (3000, 3000, 3000, 0));
    assert_eq!((after.since, after.slack), (10, u32::MAX));
}

#[test]
fn the_queue_limit_shrinks_by_what_was_not_needed_for_a_period() {
    let before = Limits { queued: 9000, prev_queued: 8000, completed: 5000, limit: 6000, slack: 9999, ..limits() };
    let held = before.after(1000, 100);
    assert_eq!((held.limit, held.slack), (6000, 4000), "6000 - 2 * 1000 unused");
    let ended = before.after(1000, 251);
    assert_eq!((ended.limit, ended.slack, ended.since), (2000, u32::MAX, 251));
}

#[test]
fn completing_more_than_was_queued_ends_the_invocation() {
    let (mut f, s) = domain(1);
    f.put_u32(DEVICE, 3000).expect("mapped");
    f.put_u32(DEVICE + 9 * 8, 10_000).expect("mapped");
    assert!(structure(call("dql_completed", &s, &mut f, &[DEVICE, 3001])));
    assert_eq!(call("dql_completed", &s, &mut f, &[DEVICE, 3000]), Ok(0));
    assert_eq!((f.u32(DEVICE + 8), f.u32(DEVICE + 24)), (Ok(6000), Ok(3000)), "adj_limit, limit");
}
