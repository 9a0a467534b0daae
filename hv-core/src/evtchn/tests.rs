use super::oracle::{Fake, TestPage};
use super::*;
use crate::room::boundless;
use core::sync::atomic::Ordering::SeqCst;
use proptest::prelude::*;
use std::sync::Arc;
use std::{thread, vec};
use xen_abi::event::{fifo_control, FIFO_BUSY, FIFO_LINKED, FIFO_LINK_MASK, FIFO_MASKED, FIFO_PENDING};

fn domain(id: DomId, vcpus: u32) -> (EventChannels<TestPage>, Fake) {
    let mut ev = EventChannels::new(id, 200_000, boundless);
    ev.set_vcpus(vcpus).unwrap();
    (ev, Fake::new(vcpus as usize))
}

type Domain = (EventChannels<TestPage>, Fake);

fn connected() -> (Domain, Domain, Port, Port) {
    let (mut a, mem_a) = domain(1, 1);
    let (mut b, mem_b) = domain(2, 1);
    let pa = a.alloc_unbound(2).unwrap();
    let pb = b.bind_interdomain(&mem_b, Remote::Other(&mut a), pa).unwrap();
    ((a, mem_a), (b, mem_b), pa, pb)
}

#[test]
fn two_level_raises_pending_selector_and_upcall_once() {
    let (mut ev, mem) = domain(0, 2);
    let port = ev.bind_virq(event::VIRQ_TIMER, 1).unwrap();
    assert_eq!(port, 1, "port 0 is reserved");
    assert!(ev.raise_virq(&mem, 1, event::VIRQ_TIMER));
    assert_eq!(mem.pending[0].load(SeqCst), 1 << 1);
    assert_eq!(mem.sel[1].load(SeqCst), 1);
    assert_eq!(mem.upcall[1].load(SeqCst), 1);
    ev.raise_virq(&mem, 1, event::VIRQ_TIMER);
    assert_eq!(*mem.notified.lock().unwrap(), [1], "told once");
    assert!(!ev.raise_virq(&mem, 0, event::VIRQ_TIMER), "not bound on vCPU 0");
    assert!(!ev.raise_virq(&mem, 9, 99));
}

#[test]
fn two_level_masked_events_wait_for_unmask() {
    let (mut ev, mem) = domain(0, 1);
    let port = ev.bind_ipi(0).unwrap();
    mem.mask[0].store(u64::MAX, SeqCst);
    assert_eq!(ev.send(&mem, port), Ok(Sent::Done));
    assert_eq!(mem.upcall[0].load(SeqCst), 0);
    ev.unmask(&mem, port).unwrap();
    assert_eq!(mem.upcall[0].load(SeqCst), 1);
    assert_eq!(ev.unmask(&mem, 100_000), Err(Errno::EINVAL));
}

#[test]
fn errno_of_each_operation() {
    let (mut ev, mem) = domain(1, 2);
    assert_eq!(ev.bind_virq(24, 0), Err(Errno::EINVAL));
    assert_eq!(ev.bind_virq(event::VIRQ_CONSOLE, 1), Err(Errno::EINVAL), "global ones on vCPU 0 only");
    assert_eq!(ev.bind_virq(event::VIRQ_TIMER, 2), Err(Errno::ENOENT));
    let timer = ev.bind_virq(event::VIRQ_TIMER, 0).unwrap();
    assert_eq!(ev.bind_virq(event::VIRQ_TIMER, 0), Err(Errno::EEXIST));
    assert_eq!(ev.bind_ipi(2), Err(Errno::ENOENT));
    let ipi = ev.bind_ipi(1).unwrap();
    let unbound = ev.alloc_unbound(7).unwrap();
    assert_eq!(ev.send(&mem, timer), Err(Errno::EINVAL));
    assert_eq!(ev.send(&mem, 77), Err(Errno::EINVAL));
    assert_eq!(ev.send(&mem, unbound), Ok(Sent::Done), "nobody is there: dropped");
    assert_eq!(ev.bind_vcpu(timer, 1), Err(Errno::EINVAL));
    assert_eq!(ev.bind_vcpu(ipi, 0), Err(Errno::EINVAL));
    assert_eq!(ev.bind_vcpu(unbound, 5), Err(Errno::ENOENT));
    assert_eq!(ev.bind_vcpu(unbound, 1), Ok(None));
    assert_eq!(ev.bind_interdomain(&mem, Remote::Own, unbound), Err(Errno::EINVAL), "meant for somebody else");
    assert_eq!(ev.set_priority(ipi, 3), Err(Errno::ENOSYS), "FIFO only");
    assert_eq!(ev.expand_array(&mem, || Ok(TestPage::filled(0))), Err(Errno::EOPNOTSUPP));
    assert_eq!(ev.close(&mem, 0, Peer::Unlocked), Err(CloseError::Invalid));
    assert_eq!(ev.close(&mem, timer, Peer::Unlocked), Ok(Closed::Done));
    assert_eq!(ev.close(&mem, timer, Peer::Unlocked), Err(CloseError::Invalid));
    assert_eq!(ev.bind_virq(event::VIRQ_TIMER, 0), Ok(timer), "the lowest free port");
    let refused = ev.bind_pirq(4, |_| Err(Errno::EBUSY));
    assert_eq!((refused, ev.nr_open()), (Err(Errno::EBUSY), 3));
}

#[test]
fn status_reports_each_kind() {
    let ((mut a, _), (b, _), pa, pb) = connected();
    let s = b.status(pb).unwrap();
    assert_eq!((s.status, s.u0, s.u1), (event::EVTCHNSTAT_INTERDOMAIN, 1, pa));
    let p = a.bind_pirq(9, |_| Ok(())).unwrap();
    let s = a.status(p).unwrap();
    assert_eq!((s.status, s.u0), (event::EVTCHNSTAT_PIRQ, 9));
    let i = a.bind_ipi(0).unwrap();
    assert_eq!(a.status(i).unwrap().status, event::EVTCHNSTAT_IPI);
    let u = a.alloc_unbound(5).unwrap();
    assert_eq!((a.status(u).unwrap().status, a.status(u).unwrap().u0), (event::EVTCHNSTAT_UNBOUND, 5));
    assert_eq!(a.status(100).unwrap().status, event::EVTCHNSTAT_CLOSED, "exists, free");
    assert_eq!(a.status(1000), Err(Errno::EINVAL));
}

#[test]
fn limits_follow_layout_and_toolstack() {
    let (mut ev, mem) = domain(1, 1);
    ev.set_max_port(10);
    for _ in 0..10 {
        ev.alloc_unbound(0).unwrap();
    }
    assert_eq!(ev.alloc_unbound(0), Err(Errno::ENOSPC));
    ev.set_max_port(u32::MAX);
    let mut last = 0;
    while let Ok(port) = ev.alloc_unbound(0) {
        last = port;
    }
    assert_eq!(last, 4095);
    ev.init_control(&mem, 0, 0, || Ok(TestPage::filled(0))).unwrap();
    assert_eq!(ev.alloc_unbound(0), Ok(4096), "the limit is that of the layout in use");
}

#[test]
fn a_send_reaches_the_peer_and_only_the_peer() {
    let ((mut a, mem_a), (mut b, mem_b), pa, pb) = connected();
    assert_eq!(mem_b.upcall[0].load(SeqCst), 1, "one event from the start");
    assert_eq!(b.send(&mem_b, pb), Ok(Sent::To { dom: 1, port: pa }));
    a.raise_from(&mem_a, pa, 3, pb);
    a.raise_from(&mem_a, pa, 2, pb + 1);
    assert_eq!(mem_a.upcall[0].load(SeqCst), 0, "not from the peer");
    a.raise_from(&mem_a, pa, 2, pb);
    assert_eq!(mem_a.upcall[0].load(SeqCst), 1);
}

#[test]
fn closing_leaves_the_peer_unbound_for_us() {
    let ((mut a, mem_a), (mut b, mem_b), pa, pb) = connected();
    assert_eq!(b.close(&mem_b, pb, Peer::Unlocked), Err(CloseError::NeedsPeer(1)));
    assert_eq!(b.close(&mem_b, pb, Peer::Gone(9)), Err(CloseError::NeedsPeer(1)), "a stale answer");
    assert_eq!(b.close(&mem_b, pb, Peer::Locked(&mut a)), Ok(Closed::Done));
    assert_eq!(a.binding(pa), Ok(Binding::Unbound { remote: 2 }));
    assert_eq!(b.bind_interdomain(&mem_b, Remote::Other(&mut a), pa), Ok(pb));
    assert_eq!(a.close(&mem_a, pa, Peer::Gone(2)), Ok(Closed::Done));
}

#[test]
fn a_channel_to_oneself_works() {
    let (mut a, mem) = domain(1, 1);
    let p = a.alloc_unbound(1).unwrap();
    let q = a.bind_interdomain(&mem, Remote::Own, p).unwrap();
    mem.pending[0].store(0, SeqCst);
    assert_eq!(a.send(&mem, q), Ok(Sent::Done));
    assert_eq!(mem.pending[0].load(SeqCst), 1 << p);
    assert_eq!(a.close(&mem, q, Peer::Unlocked), Ok(Closed::Done));
    assert_eq!(a.binding(p), Ok(Binding::Unbound { remote: 1 }));
}

#[test]
fn the_hypervisor_can_be_the_peer() {
    let (mut a, mem) = domain(1, 1);
    let p = a.alloc_unbound(7).unwrap();
    assert_eq!(a.bind_hypervisor(p, 6, 42), Err(Errno::EINVAL), "it waits for domain 7");
    a.bind_hypervisor(p, 7, 42).unwrap();
    assert_eq!(a.status(p).unwrap().u0, 7);
    assert_eq!(a.send(&mem, p), Ok(Sent::Hypervisor(42)));
    a.raise_hypervisor(&mem, p, 41);
    assert_eq!(mem.upcall[0].load(SeqCst), 0);
    a.raise_hypervisor(&mem, p, 42);
    assert_eq!(mem.upcall[0].load(SeqCst), 1);
    a.unbind_hypervisor(p, 42).unwrap();
    assert_eq!(a.binding(p), Ok(Binding::Unbound { remote: 7 }), "the channel can be taken up again");
}

#[test]
fn the_hypervisor_can_take_a_domains_place() {
    let ((mut a, mem_a), (mut b, mem_b)) = (domain(1, 1), domain(2, 1));
    let (first, second) = (a.alloc_unbound(2).unwrap(), a.alloc_unbound(2).unwrap());
    let of_b = b.bind_interdomain(&mem_b, Remote::Other(&mut a), first).unwrap();
    mem_b.upcall[0].store(0, SeqCst);
    mem_b.pending[0].store(0, SeqCst);
    mem_b.sel[0].store(0, SeqCst);
    let (mut c, _mem_c) = domain(3, 1);
    assert_eq!(a.hand_over(&mem_a, second, Remote::Other(&mut b), 42), Err(Errno::EINVAL), "not connected");
    assert_eq!(a.hand_over(&mem_a, first, Remote::Other(&mut c), 42), Err(Errno::EINVAL), "connected with another");
    assert_eq!(a.hand_over(&mem_a, first, Remote::Own, 42), Err(Errno::EINVAL), "connected with another");
    // An event that was on its way goes with the port.
    b.send(&mem_b, of_b).unwrap();
    a.raise_from(&mem_a, first, 2, of_b);
    assert_eq!(a.hand_over(&mem_a, first, Remote::Other(&mut b), 42), Ok(of_b));
    assert_ne!(a.binding(first), Ok(Binding::Interdomain { dom: 2, port: of_b }), "it is closed");
    assert_eq!(mem_a.pending[0].load(SeqCst) & 1 << first, 0);
    assert_eq!((b.binding(of_b), b.status(of_b).unwrap().u0), (Ok(Binding::Hypervisor { dom: 1, cookie: 42 }), 1));
    assert_eq!(b.send(&mem_b, of_b), Ok(Sent::Hypervisor(42)));
    b.raise_hypervisor(&mem_b, of_b, 42);
    assert_eq!(mem_b.upcall[0].load(SeqCst), 1);
    assert_eq!(b.close(&mem_b, of_b, Peer::Unlocked), Ok(Closed::Hypervisor(42)));
    // With both ends in one domain.
    let p = a.alloc_unbound(1).unwrap();
    let q = a.bind_interdomain(&mem_a, Remote::Own, p).unwrap();
    assert_eq!(a.hand_over(&mem_a, p, Remote::Own, 43), Ok(q));
    assert_eq!(a.binding(q), Ok(Binding::Hypervisor { dom: 1, cookie: 43 }));
}

#[test]
fn polls_end_with_any_event_masked_or_not() {
    let (mut ev, mem) = domain(1, 2);
    mem.mask[0].store(u64::MAX, SeqCst);
    let (p, q) = (ev.bind_ipi(0).unwrap(), ev.bind_ipi(0).unwrap());
    assert_eq!(ev.poll(&mem, 1, &[p, 5000]), Err(Errno::EINVAL), "each port is checked");
    assert_eq!(ev.poll(&mem, 2, &[p]), Err(Errno::ENOENT));
    assert_eq!(ev.poll(&mem, 1, &[p]), Ok(Poll::Wait));
    ev.send(&mem, q).unwrap();
    assert!(mem.polls_ended.lock().unwrap().is_empty());
    ev.send(&mem, p).unwrap();
    assert_eq!(*mem.polls_ended.lock().unwrap(), [1]);
    assert_eq!(ev.poll(&mem, 1, &[q, p]), Ok(Poll::Ready));
    mem.pending[0].store(0, SeqCst);
    assert_eq!(ev.poll(&mem, 1, &[q, p]), Ok(Poll::Wait));
    ev.end_poll(1);
    ev.send(&mem, p).unwrap();
    assert_eq!(mem.polls_ended.lock().unwrap().len(), 1);
    assert_eq!(ev.pollers, 0);
}

/// An upcall that was marked without an event is none any more, unless one came meanwhile: it found the mark, and told
/// nobody.
#[test]
fn a_mark_without_an_event_is_taken_back() {
    let (mut two_level, mem) = domain(1, 2);
    let p = two_level.bind_ipi(1).unwrap();
    let (mut fifo, fifo_mem, control, _) = fifo_domain(1);
    let q = fifo.bind_ipi(0).unwrap();
    let is_marked = |mem: &Fake, vcpu| mem.upcall_pending(vcpu).load(SeqCst) != 0;
    mem.upcall_pending(1).store(1, SeqCst);
    fifo_mem.upcall_pending(0).store(1, SeqCst);
    assert!(!two_level.unmark_upcall(&mem, 1) && !fifo.unmark_upcall(&fifo_mem, 0));
    assert!(!is_marked(&mem, 1) && !is_marked(&fifo_mem, 0));

    mem.upcall_pending(1).store(1, SeqCst);
    fifo_mem.upcall_pending(0).store(1, SeqCst);
    two_level.send(&mem, p).unwrap();
    fifo.send(&fifo_mem, q).unwrap();
    assert!(mem.notified.lock().unwrap().is_empty() && fifo_mem.notified.lock().unwrap().is_empty());
    assert!(two_level.unmark_upcall(&mem, 1) && fifo.unmark_upcall(&fifo_mem, 0));
    assert!(is_marked(&mem, 1) && is_marked(&fifo_mem, 0));
    assert_eq!((&mem.notified.lock().unwrap()[..], &fifo_mem.notified.lock().unwrap()[..]), (&[1][..], &[0][..]));

    // The guest has seen to both.
    mem.pending_sel(1).store(0, SeqCst);
    control.0[(64 + fifo_control::READY) / 4].store(0, SeqCst);
    assert!(!two_level.unmark_upcall(&mem, 1) && !fifo.unmark_upcall(&fifo_mem, 0));
    assert!(!is_marked(&mem, 1) && !is_marked(&fifo_mem, 0));
    // A vCPU without a control block has no queues.
    let (fifo, mem, ..) = fifo_domain(2);
    mem.upcall_pending(1).store(1, SeqCst);
    assert!(!fifo.unmark_upcall(&mem, 1));
    assert!(!is_marked(&mem, 1));
}

fn fifo_domain(vcpus: u32) -> (EventChannels<TestPage>, Fake, TestPage, TestPage) {
    let (mut ev, mem) = domain(1, vcpus);
    let (control, array) = (TestPage::filled(0), TestPage::filled(0));
    ev.init_control(&mem, 0, 64, || Ok(control.clone())).unwrap();
    ev.expand_array(&mem, || Ok(array.clone())).unwrap();
    (ev, mem, control, array)
}

#[test]
fn fifo_queues_keep_order_and_priority() {
    let (mut ev, mem, control, array) = fifo_domain(1);
    let ports: Vec<_> = (0..3).map(|_| ev.bind_ipi(0).unwrap()).collect();
    ev.set_priority(ports[2], 0).unwrap();
    assert_eq!(ev.set_priority(ports[2], 16), Err(Errno::EINVAL));
    for p in &ports {
        ev.send(&mem, *p).unwrap();
    }
    let word = |p: Port| array.0[p as usize].load(SeqCst);
    let ready = control.0[(64 + fifo_control::READY) / 4].load(SeqCst);
    assert_eq!(ready, 1 << 7 | 1);
    assert_eq!(control.0[(64 + fifo_control::HEAD) / 4].load(SeqCst), ports[2]);
    assert_eq!(control.0[(64 + fifo_control::HEAD) / 4 + 7].load(SeqCst), ports[0]);
    assert_eq!(word(ports[0]), FIFO_PENDING | FIFO_LINKED | ports[1]);
    assert_eq!(word(ports[1]), FIFO_PENDING | FIFO_LINKED);
    assert_eq!(mem.notified.lock().unwrap().len(), 1, "one upcall for both queues");
}

#[test]
fn fifo_masked_events_are_linked_by_unmask() {
    let (mut ev, mem, _, array) = fifo_domain(1);
    let p = ev.bind_ipi(0).unwrap();
    array.0[p as usize].store(FIFO_MASKED, SeqCst);
    ev.send(&mem, p).unwrap();
    assert_eq!(array.0[p as usize].load(SeqCst), FIFO_MASKED | FIFO_PENDING);
    ev.unmask(&mem, p).unwrap();
    assert_eq!(array.0[p as usize].load(SeqCst), FIFO_LINKED | FIFO_PENDING);
}

#[test]
fn fifo_set_up_is_all_or_nothing() {
    let (mut ev, mem) = domain(1, 2);
    for (vcpu, offset, e) in [(2, 0, Errno::ENOENT), (0, 4, Errno::EINVAL), (0, 4096 - 64, Errno::EINVAL)] {
        assert_eq!(ev.init_control(&mem, vcpu, offset, || panic!("mapped before the check")), Err(e));
    }
    assert_eq!(ev.init_control(&mem, 0, 0, || Err(Errno::EINVAL)), Err(Errno::EINVAL));
    assert!(!ev.is_fifo());
    ev.init_control(&mem, 0, 4096 - 72, || Ok(TestPage::filled(0))).unwrap();
    assert!(ev.is_fifo());
    assert_eq!(ev.init_control(&mem, 0, 0, || Ok(TestPage::filled(0))), Err(Errno::EINVAL), "once");
    for _ in 0..128 {
        ev.expand_array(&mem, || Ok(TestPage::filled(0))).unwrap();
    }
    assert_eq!(ev.expand_array(&mem, || Ok(TestPage::filled(0))), Err(Errno::ENOSPC));
}

#[test]
fn what_was_pending_survives_the_change_to_fifo() {
    let (mut ev, mem) = domain(1, 2);
    let p = ev.bind_ipi(0).unwrap();
    let q = ev.bind_ipi(1).unwrap();
    ev.send(&mem, p).unwrap();
    ev.send(&mem, q).unwrap();
    mem.upcall.iter().for_each(|u| u.store(0, SeqCst));
    let (c0, c1, array) = (TestPage::filled(0), TestPage::filled(0), TestPage::filled(0));
    ev.init_control(&mem, 0, 0, || Ok(c0.clone())).unwrap();
    ev.expand_array(&mem, || Ok(array.clone())).unwrap();
    assert_eq!(c0.0[(fifo_control::HEAD) / 4 + 7].load(SeqCst), p);
    assert_eq!(mem.upcall[0].load(SeqCst), 1);
    assert_eq!(mem.upcall[1].load(SeqCst), 0, "no queues yet");
    ev.init_control(&mem, 1, 0, || Ok(c1.clone())).unwrap();
    assert_eq!(c1.0[(fifo_control::HEAD) / 4 + 7].load(SeqCst), q);
    assert_eq!(mem.upcall[1].load(SeqCst), 1);
}

#[test]
fn a_port_that_is_still_queued_is_not_reused() {
    let (mut ev, mem, _, array) = fifo_domain(1);
    let p = ev.bind_ipi(0).unwrap();
    ev.send(&mem, p).unwrap();
    ev.close(&mem, p, Peer::Unlocked).unwrap();
    assert_eq!(array.0[p as usize].load(SeqCst), FIFO_LINKED, "no longer pending, still linked");
    assert_eq!(ev.bind_ipi(0), Ok(p + 1));
    array.0[p as usize].store(0, SeqCst);
    assert_eq!(ev.bind_ipi(0), Ok(p));
}

#[test]
fn chunks_go_back_with_their_last_port() {
    let (mut ev, mem) = domain(1, 1);
    let ports: Vec<_> = (0..300).map(|_| ev.bind_ipi(0).unwrap()).collect();
    assert_eq!(ev.ports.end(), 384);
    for p in ports.iter().filter(|p| **p != 130) {
        ev.close(&mem, *p, Peer::Unlocked).unwrap();
    }
    assert_eq!(ev.ports.end(), 256, "one port keeps its chunk and those below");
    assert_eq!(ev.binding(260), Err(Errno::EINVAL));
    ev.close(&mem, 130, Peer::Unlocked).unwrap();
    assert_eq!(ev.ports.end(), 128, "the first stays");
    assert_eq!(ev.bind_ipi(0), Ok(1));
}

/// What a port must know of the queue that it was last on is known again when its chunk comes back.
#[test]
fn a_port_that_was_away_still_ends_its_queue() {
    let (mut ev, mem, control, array) = fifo_domain(1);
    let ports: Vec<_> = (0..128).map(|_| ev.bind_ipi(0).unwrap()).collect();
    let (low, high) = (ports[0], ports[127]);
    assert_eq!((high, ev.ports.end()), (128, 256));
    let head = |queue: usize| control.0[(64 + fifo_control::HEAD) / 4 + queue].load(SeqCst);
    ev.set_priority(high, 3).unwrap();
    ev.send(&mem, high).unwrap();
    assert_eq!(head(3), high);
    // The guest takes it off its queue and closes it; the next one there has the default priority.
    array.0[high as usize].store(0, SeqCst);
    ev.close(&mem, high, Peer::Unlocked).unwrap();
    assert_eq!(ev.ports.end(), 128);
    assert_eq!(ev.bind_ipi(0), Ok(high));
    ev.send(&mem, high).unwrap();
    assert_eq!(head(7), high);
    // The queue that it ended once is empty, so this one heads it and is not appended to the other.
    ev.set_priority(low, 3).unwrap();
    ev.send(&mem, low).unwrap();
    assert_eq!(head(3), low);
    assert_eq!(array.0[high as usize].load(SeqCst), FIFO_PENDING | FIFO_LINKED);
}

#[test]
fn who_is_being_destroyed_gets_no_port() {
    let ((mut a, mem_a), (mut b, mem_b), pa, pb) = connected();
    let waits = b.alloc_unbound(1).unwrap();
    a.close_for_good();
    assert_eq!(a.alloc_unbound(2), Err(Errno::EINVAL), "the tools are refused, too");
    assert_eq!(a.bind_interdomain(&mem_a, Remote::Other(&mut b), waits), Err(Errno::EINVAL));
    assert_eq!(b.binding(waits), Ok(Binding::Unbound { remote: 1 }), "nobody came");
    assert_eq!(a.bind_virq(event::VIRQ_TIMER, 0), Err(Errno::EINVAL));
    assert_eq!(a.bind_ipi(0), Err(Errno::EINVAL));
    assert_eq!(a.bind_pirq(3, |_| unreachable!("no port")), Err(Errno::EINVAL));
    assert_eq!(a.close(&mem_a, pa, Peer::Locked(&mut b)), Ok(Closed::Done));
    assert_eq!((a.next_open(0), a.finish_reset()), (None, Ok(())), "all that were open are closed, and stay so");
    assert_eq!(a.alloc_unbound(2), Err(Errno::EINVAL));
    // The other end waits for one that never comes again.
    b.close(&mem_b, pb, Peer::Unlocked).unwrap();
    b.alloc_unbound(1).unwrap();
}

#[test]
fn reset_needs_all_ports_closed_and_gives_pages_back() {
    let (mut ev, mem, control, array) = fifo_domain(1);
    let p = ev.bind_ipi(0).unwrap();
    assert_eq!(ev.finish_reset(), Err(Errno::EBUSY));
    ev.close(&mem, p, Peer::Unlocked).unwrap();
    ev.finish_reset().unwrap();
    assert_eq!((Arc::strong_count(&control.0), Arc::strong_count(&array.0)), (1, 1));
    assert!(!ev.is_fifo());
    assert_eq!(ev.expand_array(&mem, || panic!("mapped")), Err(Errno::EOPNOTSUPP));
}

/// A guest consumes on another CPU while events are raised: nothing is lost, nothing hangs.
#[test]
fn fifo_events_are_not_lost_to_a_concurrent_consumer() {
    const PORTS: u32 = 8;
    const ROUNDS: u32 = 40_000;
    let (mut ev, mem, control, array) = fifo_domain(1);
    for _ in 0..PORTS {
        ev.bind_ipi(0).unwrap();
    }
    let done = AtomicU32::new(0);
    thread::scope(|s| {
        let consumer = s.spawn(|| {
            let mut seen = vec![0u32; PORTS as usize + 1];
            loop {
                let last = done.load(SeqCst) == 1;
                let mut ready = 0;
                if mem.upcall[0].swap(0, SeqCst) != 0 {
                    ready = control.0[64 / 4].swap(0, SeqCst);
                }
                if ready != 0 {
                    let head = &control.0[(64 + fifo_control::HEAD) / 4 + 7];
                    let mut port = head.load(SeqCst);
                    while port != 0 {
                        let word = &array.0[port as usize];
                        // As a kernel does: leave the queue first, then handle.
                        let before = word.fetch_and(!(FIFO_LINKED | FIFO_LINK_MASK), SeqCst);
                        if word.fetch_and(!FIFO_PENDING, SeqCst) & FIFO_PENDING != 0 {
                            seen[port as usize] += 1;
                        }
                        port = before & FIFO_LINK_MASK;
                    }
                }
                if last {
                    return seen;
                }
            }
        });
        for i in 0..ROUNDS {
            ev.send(&mem, 1 + i % PORTS).unwrap();
        }
        done.store(1, SeqCst);
        let seen = consumer.join().unwrap();
        assert!(seen[1..].iter().all(|n| *n > 0), "{seen:?}");
        for p in 1..=PORTS {
            assert_eq!(array.0[p as usize].load(SeqCst) & (FIFO_PENDING | FIFO_BUSY), 0, "port {p} was left behind");
        }
    });
}

/// A guest that keeps changing the tail word cannot hold the hypervisor up.
#[test]
fn a_guest_that_fights_over_a_word_does_not_stop_delivery() {
    let (mut ev, mem, _, array) = fifo_domain(1);
    let (p, q) = (ev.bind_ipi(0).unwrap(), ev.bind_ipi(0).unwrap());
    let stop = AtomicU32::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            let mut x = 1u32;
            while stop.load(SeqCst) == 0 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                array.0[p as usize].store(x | FIFO_LINKED, SeqCst);
                array.0[q as usize].store(x & !FIFO_LINKED, SeqCst);
            }
        });
        for _ in 0..20_000 {
            ev.send(&mem, p).unwrap();
            ev.send(&mem, q).unwrap();
        }
        stop.store(1, SeqCst);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn agrees_with_the_model(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        oracle::run(&data);
    }
}

#[test]
fn an_interrupt_would_tell_who_has_neither_masked_it_nor_one_pending() {
    for is_fifo in [false, true] {
        let (mut ev, mem) = domain(0, 2);
        let array = TestPage::filled(0);
        if is_fifo {
            ev.init_control(&mem, 0, 0, || Ok(TestPage::filled(0))).unwrap();
            ev.init_control(&mem, 1, 64, || Ok(TestPage::filled(0))).unwrap();
            ev.expand_array(&mem, || Ok(array.clone())).unwrap();
        }
        let port = ev.bind_pirq(4, |_| Ok(())).unwrap();
        let ipi = ev.bind_ipi(0).unwrap();
        ev.bind_vcpu(port, 1).unwrap();
        let set_masked = |masked: bool| {
            mem.mask[0].store(if masked { 1 << port } else { 0 }, SeqCst);
            array.0[port as usize].store(if masked { FIFO_MASKED } else { 0 }, SeqCst);
        };
        set_masked(false);
        assert_eq!(ev.would_tell(&mem, port, 4), None, "no card's");
        assert_eq!(ev.give_to_card(port), Ok(4));
        assert_eq!(ev.would_tell(&mem, port, 4), Some(1));
        assert_eq!(ev.would_tell(&mem, port, 5), None, "another interrupt");
        assert_eq!(ev.would_tell(&mem, ipi, 4), None, "no interrupt's");
        assert_eq!(ev.would_tell(&mem, 100, 4), None, "no port");
        set_masked(true);
        assert_eq!(ev.would_tell(&mem, port, 4), None, "masked");
        set_masked(false);
        ev.raise_pirq(&mem, port, 4).unwrap();
        assert_eq!(ev.would_tell(&mem, port, 4), None, "pending");
    }
}

/// A driver that frees its interrupt and asks for it anew gets the same numbers, and its handler's argument is another.
#[test]
fn a_card_does_not_keep_an_interrupt_that_is_bound_anew() {
    let (mut ev, mem) = domain(0, 1);
    let port = ev.bind_pirq(4, |_| Ok(())).unwrap();
    assert!(!ev.is_cards(port, 4));
    assert_eq!(ev.give_to_card(port), Ok(4));
    assert!(ev.is_cards(port, 4) && !ev.is_cards(port, 5));
    assert_eq!(ev.close(&mem, port, Peer::Unlocked), Ok(Closed::Pirq(4)));
    assert!(!ev.is_cards(port, 4));
    assert_eq!(ev.bind_pirq(4, |_| Ok(())), Ok(port));
    assert!(!ev.is_cards(port, 4) && ev.would_tell(&mem, port, 4).is_none());
    assert_eq!(ev.raise_pirq(&mem, port, 4), Some(0), "it is the domain's");
    let ipi = ev.bind_ipi(0).unwrap();
    for none in [ipi, ipi + 1, 100_000] {
        assert_eq!(ev.give_to_card(none), Err(Errno::EINVAL));
        assert!(!ev.is_cards(none, 4));
    }
}

#[test]
fn room_is_asked_before_there_are_more_ports() {
    fn refuse(bytes: usize, _: &mut dyn FnMut() -> bool) -> bool {
        assert!(bytes > 0);
        false
    }
    let (mut ev, _) = domain(1, 1);
    let first = ev.alloc_unbound(2).unwrap();
    ev.room = refuse;
    // Those that there is memory for are there.
    let last = (first + 1..).map_while(|_| ev.alloc_unbound(2).ok()).last().unwrap();
    assert_eq!(last, ev.ports.end() - 1);
    assert_eq!(ev.alloc_unbound(2), Err(Errno::ENOMEM));
    ev.room = boundless;
    assert_eq!(ev.alloc_unbound(2), Ok(last + 1));
}
