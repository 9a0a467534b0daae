use super::*;
use crate::evtchn::oracle::{Fake, TestPage};
use crate::room::boundless;
use core::sync::atomic::Ordering::SeqCst;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;
use xen_abi::event::{fifo_control, FIFO_LINKED, FIFO_LINK_MASK, FIFO_PENDING};

const SELF: DomId = 1;
const PEER: DomId = 2;
const VCPUS: u32 = 2;

/// A domain with its pages, and another to which it has ports.
struct World {
    ev: EventChannels<TestPage>,
    mem: Fake,
    /// Array, then a control block for each vCPU.
    pages: Vec<TestPage>,
    peer: EventChannels<TestPage>,
    peer_mem: Fake,
}

/// What the guest's words hold.
type Words = (Vec<u64>, Vec<u64>, Vec<Vec<u32>>);

impl World {
    fn new(is_fifo: bool) -> Self {
        let make = |id| {
            let mut ev = EventChannels::new(id, 1000, boundless);
            ev.set_vcpus(VCPUS).unwrap();
            ev
        };
        let mut world = Self {
            ev: make(SELF),
            mem: Fake::new(VCPUS as usize),
            pages: (0..=VCPUS).map(|_| TestPage::filled(0)).collect(),
            peer: make(PEER),
            peer_mem: Fake::new(VCPUS as usize),
        };
        for vcpu in (0..VCPUS).filter(|_| is_fifo) {
            let page = world.pages[1 + vcpu as usize].clone();
            world.ev.init_control(&world.mem, vcpu, 8, || Ok(page)).unwrap();
        }
        if is_fifo {
            let page = world.pages[0].clone();
            world.ev.expand_array(&world.mem, || Ok(page)).unwrap();
        }
        world
    }

    fn name(&self, page: &TestPage) -> u64 {
        self.pages.iter().position(|p| core::ptr::eq(p.as_ref(), page.as_ref())).unwrap() as u64
    }

    fn words(&self) -> Words {
        let page = |p: &TestPage| p.as_ref().iter().map(|w| w.load(SeqCst)).collect();
        let pending =
            self.mem.pending.iter().chain(&self.mem.mask).chain(&self.mem.sel).map(|w| w.load(SeqCst)).collect();
        let upcall = self.mem.upcall.iter().map(|b| b.load(SeqCst).into()).collect();
        (pending, upcall, self.pages.iter().map(page).collect())
    }

    fn set_words(&self, words: &Words) {
        for (word, then) in self.mem.pending.iter().chain(&self.mem.mask).chain(&self.mem.sel).zip(&words.0) {
            word.store(*then, SeqCst);
        }
        for (byte, then) in self.mem.upcall.iter().zip(&words.1) {
            byte.store(u8::from(*then != 0), SeqCst);
        }
        for (page, then) in self.pages.iter().zip(&words.2) {
            page.as_ref().iter().zip(then).for_each(|(word, then)| word.store(*then, SeqCst));
        }
    }

    fn close(&mut self, port: Port) {
        let peer = Peer::Locked(&mut self.peer);
        let _ = self.ev.close(&self.mem, port, peer);
    }

    /// Something that the domain, its peer or a device does.
    fn step(&mut self, [op, a, b]: [u8; 3]) {
        let (port, vcpu) = (u32::from(a) % 24, u32::from(b) % VCPUS);
        let mem = &self.mem;
        match op % 13 {
            0 => drop(self.ev.alloc_unbound(if b & 2 == 0 { PEER } else { SELF })),
            1 => drop(self.ev.bind_virq(u32::from(b) % NR_VIRQS, vcpu)),
            2 => drop(self.ev.bind_ipi(vcpu)),
            3 => drop(self.ev.bind_pirq(a.into(), |_| Ok(()))),
            4 => drop(self.ev.bind_interdomain(mem, Remote::Own, port)),
            5 => drop(self.peer.bind_interdomain(&self.peer_mem, Remote::Other(&mut self.ev), port)),
            6 if !matches!(self.ev.binding(port), Ok(Binding::Interdomain { dom: PEER, .. })) => self.close(port),
            7 => drop(self.ev.bind_vcpu(port, vcpu)),
            8 => drop(self.ev.send(mem, port)),
            9 => drop(self.ev.raise_virq(mem, vcpu, u32::from(a) % NR_VIRQS)),
            10 => {
                if let Ok(Binding::Interdomain { dom: PEER, port: from }) = self.ev.binding(port) {
                    self.ev.raise_from(mem, port, PEER, from);
                }
            }
            11 if !self.ev.is_fifo() => drop(mem.mask[0].fetch_xor(1 << port, SeqCst)),
            _ => drop(self.ev.set_priority(port, u32::from(b) % 16)),
        }
    }

    /// Ports in the order in which a guest that handles all finds them.
    fn consume(&self) -> Vec<Port> {
        let mut found = vec![];
        if !self.ev.is_fifo() {
            for ((n, word), mask) in (0u32..).zip(&self.mem.pending).zip(&self.mem.mask) {
                let is_selected = self.mem.sel.iter().any(|sel| sel.load(SeqCst) >> n & 1 != 0);
                let bits = word.swap(0, SeqCst);
                let is_masked = bits & !mask.load(SeqCst) == 0;
                assert!(is_masked || is_selected, "an event of which no vCPU is told");
                found.extend((0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| 64 * n + bit));
            }
            self.mem.sel.iter().for_each(|sel| sel.store(0, SeqCst));
        }
        for page in self.pages[1..].iter().filter(|_| self.ev.is_fifo()) {
            for queue in 0..16 {
                let head = &page.as_ref()[2 + fifo_control::HEAD / 4 + queue];
                while head.load(SeqCst) != 0 {
                    let port = head.load(SeqCst);
                    let word = &self.pages[0].as_ref()[port as usize];
                    let old = word.fetch_and(!(FIFO_LINKED | FIFO_LINK_MASK), SeqCst);
                    head.store(old & FIFO_LINK_MASK, SeqCst);
                    word.fetch_and(!FIFO_PENDING, SeqCst);
                    found.push(port);
                }
            }
            page.as_ref()[2 + fifo_control::READY / 4].store(0, SeqCst);
        }
        self.mem.upcall.iter().for_each(|byte| byte.store(0, SeqCst));
        found.sort_unstable();
        found
    }

    fn all(&self) -> Vec<(Binding, u16, u8)> {
        (0..self.ev.ports.end())
            .filter_map(|port| self.ev.ports.get(port))
            .map(|ch| (ch.binding, ch.notify, ch.priority))
            .collect()
    }

    fn virqs(&self) -> Vec<Port> {
        (0..VCPUS)
            .flat_map(|vcpu| (0..NR_VIRQS).map(move |virq| (vcpu, virq)))
            .map(|(c, v)| self.ev.virq_port(c, v))
            .collect()
    }

    fn go_back(&mut self, saved: &Saved, words: &Words) {
        self.ev.let_go();
        let mut from = 0;
        while let Some(port) = self.ev.next_changed(saved, from) {
            self.close(port);
            from = port + 1;
        }
        self.set_words(words);
        let pages = self.pages.clone();
        self.ev.go_back(saved, |name| Ok(pages[usize::try_from(name).unwrap()].clone())).unwrap();
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.ev.raise_all(&self.mem, from, 3);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]
    #[test]
    fn ports_are_what_they_were_and_no_event_is_lost(is_fifo: bool, before in proptest::collection::vec(any::<[u8; 3]>(), 0..60),
        lives in proptest::collection::vec(proptest::collection::vec(any::<[u8; 3]>(), 0..60), 1..4), handles: bool) {
        let mut world = World::new(is_fifo);
        before.into_iter().for_each(|op| world.step(op));
        if handles {
            world.consume();
        }
        let saved = world.ev.save(|page| world.name(page)).unwrap().unwrap();
        let (all, virqs, open, words) = (world.all(), world.virqs(), world.ev.nr_open(), world.words());
        for life in lives {
            let peers: Vec<_> = (0..24).map(|port| world.peer.binding(port)).collect();
            life.into_iter().for_each(|op| world.step(op));
            prop_assert_eq!(world.ev.check(&saved), Ok(()));
            world.go_back(&saved, &words);
            let now = world.all();
            prop_assert_eq!(&now[..all.len().min(now.len())], &all[..all.len().min(now.len())]);
            prop_assert!(now.iter().skip(all.len()).all(|ch| ch.0 == Binding::Free));
            prop_assert_eq!((world.virqs(), world.ev.nr_open()), (virqs.clone(), open));
            // The peer's ends of what came since lead nowhere.
            for (port, was) in (0..24).zip(peers) {
                if let Ok(Binding::Interdomain { dom: SELF, port: to }) = world.peer.binding(port) {
                    prop_assert_eq!(world.peer.binding(port), was);
                    let back = Ok(Binding::Interdomain { dom: PEER, port });
                    prop_assert_eq!(world.ev.binding(to), back);
                }
            }
            let told = world.consume();
            for (port, (binding, ..)) in (0u32..).zip(&all) {
                let must = matches!(binding, Binding::Interdomain { .. } | Binding::Pirq(_) | Binding::Ipi)
                    || matches!(binding, Binding::Virq(virq) if *virq != VIRQ_DEBUG);
                prop_assert!(!must || told.contains(&port), "port {} ({:?}) is not told: {:?}", port, binding, told);
            }
            // And afterwards each event comes once.
            for (port, (binding, ..)) in (0u32..).zip(&all) {
                if *binding == Binding::Ipi {
                    world.ev.send(&world.mem, port).unwrap();
                    prop_assert_eq!(world.consume(), vec![port]);
                }
            }
        }
    }
}

#[test]
fn what_leads_elsewhere_is_named() {
    let mut world = World::new(false);
    let port = world.ev.alloc_unbound(PEER).unwrap();
    let theirs = world.peer.bind_interdomain(&world.peer_mem, Remote::Other(&mut world.ev), port).unwrap();
    let waits = world.ev.alloc_unbound(0).unwrap();
    let saved = world.ev.save(|_| 0).unwrap().unwrap();
    assert_eq!((saved.nr_open(), world.ev.check(&saved)), (2, Ok(())));
    world.ev.bind_hypervisor(waits, 0, 7).unwrap();
    assert_eq!(world.ev.check(&saved), Err(Refusal::Channel(waits)));
    assert!(matches!(world.ev.save(|_| 0), Ok(Err(Refusal::Channel(port))) if port == waits));
    world.ev.unbind_hypervisor(waits, 7).unwrap();
    let peer = Peer::Locked(&mut world.ev);
    world.peer.close(&world.peer_mem, theirs, peer).unwrap();
    assert_eq!(world.ev.check(&saved), Err(Refusal::Port(port)));
    assert_eq!(world.ev.go_back(&saved, |_| Err(Errno::EINVAL)), Err(Errno::EBUSY));
}

#[test]
fn who_is_told_of_a_port_stays_so_when_the_next_one_is_masked() {
    let mut world = World::new(false);
    let (open, masked) = (world.ev.bind_ipi(1).unwrap(), world.ev.bind_ipi(1).unwrap());
    world.mem.mask[0].store(1 << masked, SeqCst);
    let saved = world.ev.save(|_| 0).unwrap().unwrap();
    world.go_back(&saved, &world.words());
    assert_eq!(world.mem.pending[0].load(SeqCst), 1 << open | 1 << masked);
    assert_eq!((world.mem.sel[1].load(SeqCst), world.mem.upcall[1].load(SeqCst)), (1, 1));
    assert_eq!((world.mem.sel[0].load(SeqCst), world.mem.upcall[0].load(SeqCst)), (0, 0));
}

#[test]
fn ports_are_noted_where_there_is_room_and_go_back_without() {
    let full: Room = |bytes, _take| {
        assert_eq!(bytes, 128 * size_of::<Channel>(), "of a chunk");
        false
    };
    let mut world = World::new(false);
    let ports: Vec<_> = (0..300).map(|_| world.ev.bind_ipi(0).unwrap()).collect();
    world.ev.room = full;
    assert_eq!(world.ev.save(|_| 0).err(), Some(Errno::ENOMEM));
    world.ev.room = boundless;
    let saved = world.ev.save(|_| 0).unwrap().unwrap();
    let (all, words) = (world.all(), world.words());
    world.close(ports[7]);
    world.ev.bind_virq(3, 0).unwrap();
    world.ev.room = full;
    world.go_back(&saved, &words);
    assert_eq!(world.all(), all);
    // There is nothing in their place to take.
    ports.iter().for_each(|port| world.close(*port));
    world.ev.let_go();
    assert_eq!(world.ev.go_back(&saved, |_| Err(Errno::EINVAL)), Err(Errno::ENOMEM));
    world.ev.room = boundless;
    world.go_back(&saved, &words);
    assert_eq!(world.all(), all);
}

/// Its twin and its handler are not what they were: it is given anew.
#[test]
fn no_interrupt_is_a_cards_after_the_way_back() {
    let mut world = World::new(false);
    let port = world.ev.bind_pirq(7, |_| Ok(())).unwrap();
    world.ev.give_to_card(port).unwrap();
    let saved = world.ev.save(|page| world.name(page)).unwrap().unwrap();
    assert!(world.ev.is_cards(port, 7), "it goes on meanwhile");
    world.ev.let_go();
    world.ev.go_back(&saved, |_| unreachable!("no page is the guest's")).unwrap();
    assert_eq!(world.ev.binding(port), Ok(Binding::Pirq(7)));
    assert!(!world.ev.is_cards(port, 7));
}
