//! A generator of operations and a naive model, for the fuzz target `evtchn` and the property tests.
//!
//! Input bytes choose operations on three domains. The model is a map of bindings and a set of raised ports per domain;
//! each result is compared with it, and the invariants of the real state are checked after each step. Polite guests
//! consume events as a kernel does, and must get every event that was raised on an unmasked port. Rude guests scribble
//! over the shared words; then only bindings and termination are checked.
#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::*;
use crate::room::boundless;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::vec;
use xen_abi::event::{fifo_control, FIFO_LINKED, FIFO_LINK_MASK, FIFO_MASKED, FIFO_PENDING};

/// A page of guest memory.
#[derive(Clone)]
pub struct TestPage(pub Arc<PageWords>);

impl TestPage {
    /// A page of words that are all `word`.
    pub fn filled(word: u32) -> TestPage {
        TestPage(Arc::new(core::array::from_fn(|_| AtomicU32::new(word))))
    }
}

impl AsRef<PageWords> for TestPage {
    fn as_ref(&self) -> &PageWords {
        &self.0
    }
}

/// Shared words of a domain that records what it was told.
pub struct Fake {
    /// 2-level pending words.
    pub pending: [AtomicU64; 64],
    /// 2-level mask words.
    pub mask: [AtomicU64; 64],
    /// Selector by vCPU.
    pub sel: Vec<AtomicU64>,
    /// Upcall byte by vCPU.
    pub upcall: Vec<AtomicU8>,
    /// vCPUs notified, in order.
    pub notified: std::sync::Mutex<Vec<u32>>,
    /// vCPUs whose poll ended, in order.
    pub polls_ended: std::sync::Mutex<Vec<u32>>,
}

impl Fake {
    /// For `vcpus` vCPUs.
    pub fn new(vcpus: usize) -> Fake {
        Fake {
            pending: core::array::from_fn(|_| AtomicU64::new(0)),
            mask: core::array::from_fn(|_| AtomicU64::new(0)),
            sel: (0..vcpus).map(|_| AtomicU64::new(0)).collect(),
            upcall: (0..vcpus).map(|_| AtomicU8::new(0)).collect(),
            notified: Default::default(),
            polls_ended: Default::default(),
        }
    }
}

impl Shared for Fake {
    fn pending(&self, word: usize) -> &AtomicU64 {
        &self.pending[word]
    }
    fn mask(&self, word: usize) -> &AtomicU64 {
        &self.mask[word]
    }
    fn pending_sel(&self, vcpu: u32) -> &AtomicU64 {
        &self.sel[vcpu as usize]
    }
    fn upcall_pending(&self, vcpu: u32) -> &AtomicU8 {
        &self.upcall[vcpu as usize]
    }
    fn notify(&self, vcpu: u32) {
        self.notified.lock().unwrap().push(vcpu);
    }
    fn wake_poller(&self, vcpu: u32) {
        self.polls_ended.lock().unwrap().push(vcpu);
    }
}

const DOMS: usize = 3;
const VCPUS: u32 = 3;
/// Few ports, so that limits are met.
const MAX_PORT: Port = 200;

struct Dom {
    ev: EventChannels<TestPage>,
    mem: Fake,
    /// The guest's own view of its FIFO pages.
    array: Vec<TestPage>,
    control: BTreeMap<u32, (TestPage, usize)>,
    model: BTreeMap<Port, Binding>,
    /// Raised and not consumed since.
    raised: BTreeSet<Port>,
}

/// A source of choices.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
    fn below(&mut self, n: u32) -> u32 {
        u32::from(self.next().unwrap_or(0)) % n
    }
}

struct World {
    doms: Vec<Dom>,
    polite: bool,
}

/// Runs one input. Panics if the channels disagree with the model.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let polite = bytes.next().unwrap_or(0) & 1 == 0;
    let doms = (0..DOMS as DomId)
        .map(|id| {
            let mut ev = EventChannels::new(id, MAX_PORT, boundless);
            ev.set_vcpus(VCPUS).unwrap();
            Dom {
                ev,
                mem: Fake::new(VCPUS as usize),
                array: vec![],
                control: BTreeMap::new(),
                model: BTreeMap::new(),
                raised: BTreeSet::new(),
            }
        })
        .collect();
    let mut w = World { doms, polite };
    while let Some(op) = bytes.next() {
        let d = bytes.below(DOMS as u32) as usize;
        w.step(op, d, &mut bytes);
        w.check();
    }
    if polite {
        for d in 0..DOMS {
            w.consume(d);
        }
    }
    w.close_all();
}

impl World {
    fn step(&mut self, op: u8, d: usize, b: &mut Bytes) {
        let id = d as DomId;
        match op % 17 {
            0 => {
                let remote = b.below(DOMS as u32) as DomId;
                let got = self.doms[d].ev.alloc_unbound(remote);
                self.opened(d, got, Binding::Unbound { remote });
            }
            1 | 2 => self.bind_interdomain(d, b.below(DOMS as u32) as usize, b.below(48)),
            3 => {
                let (virq, vcpu) = (b.below(26), b.below(VCPUS + 1));
                let got = self.doms[d].ev.bind_virq(virq, vcpu);
                let bad = virq >= NR_VIRQS || (virq_is_global(virq) && vcpu != 0);
                if bad {
                    assert_eq!(got, Err(Errno::EINVAL));
                } else if vcpu >= VCPUS {
                    assert_eq!(got, Err(Errno::ENOENT));
                } else if got != Err(Errno::EEXIST) {
                    self.opened(d, got, Binding::Virq(virq));
                }
            }
            4 => {
                let vcpu = b.below(VCPUS + 1);
                let got = self.doms[d].ev.bind_ipi(vcpu);
                if vcpu >= VCPUS {
                    assert_eq!(got, Err(Errno::ENOENT));
                } else {
                    self.opened(d, got, Binding::Ipi);
                }
            }
            5 => {
                let (pirq, refuse) = (b.below(8), b.below(4) == 0);
                let got = self.doms[d].ev.bind_pirq(pirq, |_| if refuse { Err(Errno::EBUSY) } else { Ok(()) });
                if !refuse {
                    self.opened(d, got, Binding::Pirq(pirq));
                } else {
                    assert!(got.is_err());
                }
            }
            6 => {
                let port = b.below(64);
                self.close(d, port);
            }
            7..=9 => {
                let port = b.below(64);
                self.send(d, port);
            }
            10 => {
                let (virq, vcpu) = (b.below(26), b.below(VCPUS + 1));
                let port = self.doms[d].ev.virq_port(vcpu, virq);
                let dom = &mut self.doms[d];
                assert_eq!(dom.ev.raise_virq(&dom.mem, vcpu, virq), port != 0);
                if port != 0 {
                    assert_eq!(dom.model.get(&port), Some(&Binding::Virq(virq)));
                    dom.raised.insert(port);
                }
            }
            11 => {
                let (port, vcpu) = (b.below(64), b.below(VCPUS + 1));
                let dom = &mut self.doms[d];
                let got = dom.ev.bind_vcpu(port, vcpu);
                match dom.model.get(&port) {
                    _ if vcpu >= VCPUS => assert_eq!(got, Err(Errno::ENOENT)),
                    None | Some(Binding::Ipi) => assert_eq!(got, Err(Errno::EINVAL)),
                    Some(Binding::Virq(v)) if !virq_is_global(*v) => assert_eq!(got, Err(Errno::EINVAL)),
                    Some(Binding::Pirq(p)) => assert_eq!(got, Ok(Some(*p))),
                    Some(_) => assert_eq!(got, Ok(None)),
                }
                // Kernels mask a port while they move it. An event that came while its old vCPU had no control block is
                // on no queue, and the unmask finds it.
                if self.polite && got.is_ok() {
                    self.guest_mask(d, port);
                    let dom = &mut self.doms[d];
                    let _ = dom.ev.unmask(&dom.mem, port);
                }
            }
            12 => {
                let port = b.below(64);
                if self.polite {
                    self.guest_mask(d, port);
                }
                if b.below(2) == 0 {
                    let dom = &mut self.doms[d];
                    let _ = dom.ev.unmask(&dom.mem, port);
                }
            }
            13 => self.grow_fifo(d, b),
            14 => {
                let dom = &mut self.doms[d];
                let ports = [b.below(64), b.below(64)];
                let ports = &ports[..1 + b.below(2) as usize];
                let vcpu = b.below(VCPUS);
                let got = dom.ev.poll(&dom.mem, vcpu, ports);
                if got == Ok(Poll::Wait) {
                    assert!(ports.iter().all(|p| !dom.ev.pending(&dom.mem, *p)));
                    if b.below(2) == 0 {
                        dom.ev.end_poll(vcpu);
                    }
                }
                let (port, priority) = (b.below(64), b.below(20));
                let got = dom.ev.set_priority(port, priority);
                assert_eq!(got.is_ok(), dom.ev.is_fifo() && priority < 16 && port < dom.ev.ports.end());
            }
            15 => {
                let (port, cookie) = (b.below(64), b.below(4));
                let remote = b.below(DOMS as u32) as DomId;
                let dom = &mut self.doms[d];
                if b.below(2) == 0 {
                    let got = dom.ev.bind_hypervisor(port, remote, cookie);
                    let free = dom.model.get(&port) == Some(&Binding::Unbound { remote });
                    assert_eq!(got.is_ok(), free);
                    if free {
                        dom.model.insert(port, Binding::Hypervisor { dom: remote, cookie });
                    }
                } else {
                    dom.ev.raise_hypervisor(&dom.mem, port, cookie);
                    if matches!(dom.model.get(&port), Some(Binding::Hypervisor { cookie: c, .. }) if *c == cookie) {
                        dom.raised.insert(port);
                    }
                    // A late signal from a peer that is gone must not get through.
                    dom.ev.raise_from(&dom.mem, port, id.wrapping_add(100), 1);
                }
            }
            _ if self.polite => self.consume(d),
            _ => self.scribble(d, b),
        }
    }

    /// A port was opened, or there was no room.
    fn opened(&mut self, d: usize, got: Result<Port, Errno>, binding: Binding) {
        let dom = &mut self.doms[d];
        match got {
            Ok(port) => {
                assert!((1..=MAX_PORT).contains(&port));
                assert!(dom.model.insert(port, binding).is_none(), "port {port} was in use");
                if self.polite {
                    assert!(!dom.ev.pending(&dom.mem, port), "a new port has an old event");
                }
            }
            Err(e) => {
                assert_eq!(e, Errno::ENOSPC);
                assert!(dom.model.len() as u32 == MAX_PORT || dom.ev.is_fifo(), "there was room");
            }
        }
    }

    fn bind_interdomain(&mut self, d: usize, r: usize, remote_port: Port) {
        let open = self.doms[r].model.get(&remote_port) == Some(&Binding::Unbound { remote: d as DomId });
        let got = if d == r {
            let dom = &mut self.doms[d];
            dom.ev.bind_interdomain(&dom.mem, Remote::Own, remote_port)
        } else {
            let (dom, peer) = two(&mut self.doms, d, r);
            dom.ev.bind_interdomain(&dom.mem, Remote::Other(&mut peer.ev), remote_port)
        };
        if !open {
            assert_eq!(got, Err(Errno::EINVAL));
            return;
        }
        if let Ok(port) = got {
            self.doms[r].model.insert(remote_port, Binding::Interdomain { dom: d as DomId, port });
            let binding = Binding::Interdomain { dom: r as DomId, port: remote_port };
            assert!(self.doms[d].model.insert(port, binding).is_none());
            self.doms[d].raised.insert(port);
        }
    }

    fn close(&mut self, d: usize, port: Port) {
        let expected = self.doms[d].model.remove(&port);
        let dom = &mut self.doms[d];
        let mut got = dom.ev.close(&dom.mem, port, Peer::Unlocked);
        if let Err(CloseError::NeedsPeer(r)) = got {
            assert_eq!(dom.ev.binding(port).ok(), expected, "nothing is done until the peer is locked");
            let (dom, peer) = two(&mut self.doms, d, r.into());
            got = dom.ev.close(&dom.mem, port, Peer::Locked(&mut peer.ev));
        }
        self.doms[d].raised.remove(&port);
        match expected {
            None => assert_eq!(got, Err(CloseError::Invalid)),
            Some(Binding::Pirq(p)) => assert_eq!(got, Ok(Closed::Pirq(p))),
            Some(Binding::Hypervisor { cookie, .. }) => assert_eq!(got, Ok(Closed::Hypervisor(cookie))),
            Some(Binding::Interdomain { dom, port: peer }) => {
                assert_eq!(got, Ok(Closed::Done));
                // A port connected to itself has no other end that could be left.
                if (usize::from(dom), peer) != (d, port) {
                    self.doms[usize::from(dom)].model.insert(peer, Binding::Unbound { remote: d as DomId });
                }
            }
            Some(_) => assert_eq!(got, Ok(Closed::Done)),
        }
    }

    fn send(&mut self, d: usize, port: Port) {
        let dom = &mut self.doms[d];
        let got = dom.ev.send(&dom.mem, port);
        match dom.model.get(&port).copied() {
            None | Some(Binding::Virq(_) | Binding::Pirq(_) | Binding::Free) => assert_eq!(got, Err(Errno::EINVAL)),
            Some(Binding::Unbound { .. }) => assert_eq!(got, Ok(Sent::Done)),
            Some(Binding::Hypervisor { cookie, .. }) => assert_eq!(got, Ok(Sent::Hypervisor(cookie))),
            Some(Binding::Ipi) => {
                assert_eq!(got, Ok(Sent::Done));
                dom.raised.insert(port);
            }
            Some(Binding::Interdomain { dom: r, port: peer }) if usize::from(r) == d => {
                assert_eq!(got, Ok(Sent::Done));
                dom.raised.insert(peer);
            }
            Some(Binding::Interdomain { dom: r, port: peer }) => {
                assert_eq!(got, Ok(Sent::To { dom: r, port: peer }));
                let peer_dom = &mut self.doms[usize::from(r)];
                peer_dom.ev.raise_from(&peer_dom.mem, peer, d as DomId, port);
                peer_dom.raised.insert(peer);
            }
        }
    }

    fn grow_fifo(&mut self, d: usize, b: &mut Bytes) {
        let dom = &mut self.doms[d];
        if b.below(3) == 0 {
            let page = TestPage::filled(0);
            let got = dom.ev.expand_array(&dom.mem, || Ok(page.clone()));
            assert_eq!(got.is_ok(), dom.ev.is_fifo() && dom.array.len() < 128);
            if got.is_ok() {
                dom.array.push(page);
            }
            return;
        }
        let (vcpu, offset) = (b.below(VCPUS + 1), b.below(8) * 4);
        let page = TestPage::filled(0);
        let refuse = b.below(8) == 0;
        let got =
            dom.ev.init_control(&dom.mem, vcpu, offset, || if refuse { Err(Errno::EINVAL) } else { Ok(page.clone()) });
        if vcpu >= VCPUS {
            assert_eq!(got, Err(Errno::ENOENT));
        } else if offset % 8 != 0 || dom.control.contains_key(&vcpu) || refuse {
            assert_eq!(got, Err(Errno::EINVAL));
        } else {
            assert_eq!(got, Ok(()));
            dom.control.insert(vcpu, (page, offset as usize / 4));
        }
    }

    /// The guest masks a port.
    fn guest_mask(&mut self, d: usize, port: Port) {
        let dom = &mut self.doms[d];
        if dom.ev.is_fifo() {
            if let Some(page) = dom.array.get(port as usize / 1024) {
                page.0[port as usize % 1024].fetch_or(FIFO_MASKED, SeqCst);
            }
        } else {
            dom.mem.mask[port as usize / 64].fetch_or(1 << (port % 64), SeqCst);
        }
    }

    /// The guest handles all it is told of, as a kernel does. Afterwards nothing unmasked may be left.
    fn consume(&mut self, d: usize) {
        let dom = &mut self.doms[d];
        let mut got = BTreeSet::new();
        for vcpu in 0..VCPUS {
            if dom.mem.upcall[vcpu as usize].swap(0, SeqCst) == 0 {
                continue;
            }
            if dom.ev.is_fifo() {
                consume_fifo(dom, vcpu, &mut got);
            }
            let mut sel = dom.mem.sel[vcpu as usize].swap(0, SeqCst);
            while sel != 0 && !dom.ev.is_fifo() {
                let word = sel.trailing_zeros() as usize;
                sel &= sel - 1;
                let mut bits = dom.mem.pending[word].load(SeqCst) & !dom.mem.mask[word].load(SeqCst);
                dom.mem.pending[word].fetch_and(!bits, SeqCst);
                while bits != 0 {
                    got.insert(word as Port * 64 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
        for port in &got {
            assert!(dom.raised.remove(port), "port {port} was not raised");
        }
        for port in dom.raised.clone() {
            assert!(!self.must_be_delivered(d, port), "an event on port {port} was lost");
        }
    }

    /// Is there nothing that keeps an event of `port` from its vCPU?
    fn must_be_delivered(&self, d: usize, port: Port) -> bool {
        let dom = &self.doms[d];
        if !dom.ev.is_fifo() {
            return dom.mem.mask[port as usize / 64].load(SeqCst) >> (port % 64) & 1 == 0;
        }
        let Some(page) = dom.array.get(port as usize / 1024) else { return false };
        let vcpu = dom.ev.status(port).unwrap().vcpu;
        let word = page.0[port as usize % 1024].load(SeqCst);
        word & FIFO_MASKED == 0 && dom.control.contains_key(&vcpu)
    }

    fn scribble(&mut self, d: usize, b: &mut Bytes) {
        let dom = &mut self.doms[d];
        for _ in 0..4 {
            let value = u32::from_le_bytes([b.below(256) as u8, b.below(2) as u8, 0, b.below(256) as u8]);
            let at = b.below(64) as usize;
            dom.mem.pending[0].store(value.into(), SeqCst);
            dom.mem.mask[0].store(u64::from(value) << 8, SeqCst);
            if let Some(page) = dom.array.first() {
                page.0[at].store(value, SeqCst);
            }
            for (page, first) in dom.control.values() {
                page.0[first + at % 18].store(value, SeqCst);
            }
        }
    }

    fn check(&self) {
        for (d, dom) in self.doms.iter().enumerate() {
            assert_eq!(dom.ev.nr_open() as usize, dom.model.len());
            for (port, binding) in &dom.model {
                assert_eq!(dom.ev.binding(*port), Ok(*binding), "domain {d} port {port}");
                if let Binding::Interdomain { dom: r, port: peer } = binding {
                    let back = Binding::Interdomain { dom: d as DomId, port: *port };
                    assert_eq!(self.doms[usize::from(*r)].ev.binding(*peer), Ok(back), "peers disagree");
                }
            }
            for vcpu in 0..VCPUS {
                for virq in 0..NR_VIRQS {
                    let port = dom.ev.virq_port(vcpu, virq);
                    assert!(port == 0 || dom.model.get(&port) == Some(&Binding::Virq(virq)));
                }
            }
        }
    }

    fn close_all(&mut self) {
        for d in 0..DOMS {
            let mut port = 0;
            while let Some(open) = self.doms[d].ev.next_open(port) {
                assert_eq!(self.doms[d].ev.finish_reset(), Err(Errno::EBUSY));
                self.close(d, open);
                port = open;
            }
            self.doms[d].ev.finish_reset().unwrap();
            assert!(!self.doms[d].ev.is_fifo());
            for page in self.doms[d].array.iter().chain(self.doms[d].control.values().map(|c| &c.0)) {
                assert_eq!(Arc::strong_count(&page.0), 1, "a guest page is still held");
            }
        }
        self.check();
    }
}

/// Takes every event off the queues of a vCPU.
fn consume_fifo(dom: &Dom, vcpu: u32, got: &mut BTreeSet<Port>) {
    let Some((page, first)) = dom.control.get(&vcpu) else { return };
    let word = |byte: usize| &page.0[first + byte / 4];
    let mut ready = word(fifo_control::READY).swap(0, SeqCst);
    while ready != 0 {
        let queue = ready.trailing_zeros() as usize;
        ready &= ready - 1;
        let mut port = word(fifo_control::HEAD + 4 * queue).load(SeqCst);
        for _ in 0..=MAX_PORT {
            if port == 0 {
                break;
            }
            let event = &dom.array[port as usize / 1024].0[port as usize % 1024];
            let before = event.fetch_and(!(FIFO_LINKED | FIFO_LINK_MASK), SeqCst);
            assert!(before & FIFO_LINKED != 0, "port {port} is on a queue but not linked");
            if before & FIFO_PENDING != 0 && before & FIFO_MASKED == 0 {
                event.fetch_and(!FIFO_PENDING, SeqCst);
                got.insert(port);
            }
            port = before & FIFO_LINK_MASK;
        }
        assert_eq!(port, 0, "a queue without end");
    }
}

fn two(doms: &mut [Dom], a: usize, b: usize) -> (&mut Dom, &mut Dom) {
    let (low, high) = doms.split_at_mut(a.max(b));
    if a < b {
        (&mut low[a], &mut high[0])
    } else {
        (&mut high[0], &mut low[b])
    }
}
