#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::*;
use crate::mmu::fake::{Machine, DOM1};
use crate::mmu::PtMem;
use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

#[derive(Default)]
struct Log(Mutex<BTreeSet<u64>>);

impl Log {
    fn clear(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().collect()
    }
}

impl WriteLog for Log {
    fn mark(&self, mfn: Mfn) {
        self.0.lock().unwrap().insert(mfn.raw());
    }
    fn is_marked(&self, mfn: Mfn) -> bool {
        self.0.lock().unwrap().contains(&mfn.raw())
    }
}

const ROOT: Mfn = Mfn::new(10);
const READ: Access = Access { write: false, fetch: false };
const WRITE: Access = Access { write: true, fetch: false };
const FETCH: Access = Access { write: false, fetch: true };
const RW: PteFlags = PteFlags::RW;

/// Guest tables in frames 10-13 that map pages from `BASE` on; caches use frames from 40 on.
const BASE: u64 = 0x40_0000;

fn machine() -> Machine {
    let machine = Machine::new(80);
    machine.populate(DOM1, 10, 30);
    let table = |at: u64, index: usize, to: u64, flags: PteFlags| {
        machine.poke(Slot::new(Mfn::new(at), index), Pte::new(Mfn::new(to), flags | PteFlags::P | PteFlags::US));
    };
    table(10, 0, 11, RW);
    table(11, 0, 12, RW);
    table(12, 2, 13, RW);
    machine
}

fn map(machine: &Machine, page: usize, to: u64, flags: PteFlags) {
    machine.poke(Slot::new(Mfn::new(13), page), Pte::new(Mfn::new(to), flags | PteFlags::P | PteFlags::US));
}

fn cache(pool: u64) -> Vtlb {
    Vtlb::new([Mfn::new(40), Mfn::new(41)], (42..42 + pool).map(Mfn::new).collect())
}

fn va(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * 4096).unwrap()
}

fn fill(m: &Machine, c: &Vtlb, log: &Log, page: u64, access: Access) -> Fill {
    c.fill(m, log, (Space::Kernel, ROOT), va(page), access)
}

/// What the CPU would find in the cache.
fn cached(m: &Machine, c: &Vtlb, space: Space, page: u64) -> Option<Pte> {
    c.lookup(m, c.root(space), va(page)).map(|slot| m.read(slot)).filter(|e| e.is_present())
}

#[test]
fn a_page_is_read_only_until_it_is_written_and_then_in_the_log() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    map(&m, 0, 20, RW);
    assert_eq!(fill(&m, &c, &log, 0, READ), Fill::Done(Stale::Nothing));
    let entry = cached(&m, &c, Space::Kernel, 0).unwrap();
    assert!(!entry.is_writable() && entry.mfn() == Mfn::new(20));
    assert!(log.clear().is_empty());
    let guest = m.read(Slot::new(Mfn::new(13), 0));
    assert!(guest.contains(PteFlags::A) && !guest.contains(PteFlags::D) && guest.is_writable());

    assert_eq!(fill(&m, &c, &log, 0, WRITE), Fill::Done(Stale::Page));
    assert!(cached(&m, &c, Space::Kernel, 0).unwrap().is_writable());
    assert_eq!(log.clear(), [20]);
    assert!(m.read(Slot::new(Mfn::new(13), 0)).contains(PteFlags::D));
    assert!(cached(&m, &c, Space::User, 0).is_none(), "the other space has its own entries");
}

#[test]
fn after_a_clean_every_page_faults_again() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    map(&m, 0, 20, RW);
    fill(&m, &c, &log, 0, WRITE);
    // Still logged: no second fault for a write after a read.
    c.wipe(&m, || ());
    fill(&m, &c, &log, 0, READ);
    assert!(cached(&m, &c, Space::Kernel, 0).unwrap().is_writable());
    log.clear();
    c.wipe(&m, || ());
    assert!(cached(&m, &c, Space::Kernel, 0).is_none());
    fill(&m, &c, &log, 0, READ);
    assert!(!cached(&m, &c, Space::Kernel, 0).unwrap().is_writable(), "dirty in the guest's table, but not in the log");
}

#[test]
fn a_logged_page_whose_entry_is_clean_stays_read_only() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    map(&m, 0, 20, RW);
    log.mark(Mfn::new(20));
    fill(&m, &c, &log, 0, READ);
    assert!(!cached(&m, &c, Space::Kernel, 0).unwrap().is_writable(), "the dirty bit must be set by a write");
}

#[test]
fn rights_are_those_of_all_levels() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    map(&m, 0, 20, PteFlags::empty());
    map(&m, 1, 21, RW | PteFlags::NX);
    assert_eq!(fill(&m, &c, &log, 0, WRITE), Fill::Refused { present: true });
    assert_eq!(fill(&m, &c, &log, 1, FETCH), Fill::Refused { present: true });
    assert_eq!(fill(&m, &c, &log, 0, FETCH), Fill::Done(Stale::Nothing));
    assert_eq!(fill(&m, &c, &log, 2, READ), Fill::Refused { present: false });
    let upper = Slot::new(Mfn::new(12), 2);
    m.poke(upper, m.read(upper).without(RW).with(PteFlags::NX));
    map(&m, 3, 22, RW);
    assert_eq!(fill(&m, &c, &log, 3, WRITE), Fill::Refused { present: true });
    assert_eq!(fill(&m, &c, &log, 3, FETCH), Fill::Refused { present: true });
    assert_eq!(fill(&m, &c, &log, 3, READ), Fill::Done(Stale::Nothing));
    assert!(cached(&m, &c, Space::Kernel, 3).unwrap().contains(PteFlags::NX));
    assert!(log.clear().is_empty(), "what is refused is not logged");
}

#[test]
fn the_hypervisors_range_is_never_entered() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    let theirs = VirtAddr::new(HYPERVISOR_VIRT_START + 0x1000).unwrap();
    let fill = c.fill(&m, &log, (Space::Kernel, ROOT), theirs, READ);
    assert_eq!(fill, Fill::Refused { present: true });
    c.forget(&m, theirs);
    assert!(m.writes.lock().unwrap().is_empty());
}

#[test]
fn a_full_cache_starts_anew() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    // Further L1 tables are the same one, seen at other addresses: each needs a table of the cache's.
    for index in 3..40 {
        m.poke(Slot::new(Mfn::new(12), index), m.read(Slot::new(Mfn::new(12), 2)));
    }
    map(&m, 0, 20, RW);
    let far = |n: u64| VirtAddr::new(BASE + n * (2 << 20)).unwrap();
    let mut emptied = 0;
    for n in 0..30 {
        match c.fill(&m, &log, (Space::Kernel, ROOT), far(n), READ) {
            Fill::Done(Stale::All) => {
                assert!(
                    c.lookup(&m, c.root(Space::Kernel), far(n)).is_none(),
                    "nothing is entered before the CPU has flushed"
                );
                c.wipe(&m, || emptied += 1);
                assert!(cached(&m, &c, Space::Kernel, 0).is_none());
                assert_eq!(c.fill(&m, &log, (Space::Kernel, ROOT), far(n), READ), Fill::Done(Stale::Nothing));
            }
            Fill::Done(Stale::Nothing) => {}
            other => panic!("{other:?}"),
        }
        assert!(c.lookup(&m, c.root(Space::Kernel), far(n)).is_some_and(|slot| m.read(slot).is_present()));
    }
    assert!(emptied >= 3);
    let written = m.writes.lock().unwrap().iter().all(|(slot, _)| slot.page().raw() >= 40 || slot.page().raw() == 13);
    assert!(written, "only the cache's frames and accessed bits are written");
}

#[test]
fn one_page_can_be_forgotten() {
    let (m, c, log) = (machine(), cache(8), Log::default());
    map(&m, 0, 20, RW);
    map(&m, 1, 21, RW);
    for space in [Space::Kernel, Space::User] {
        for page in 0..2 {
            c.fill(&m, &log, (space, ROOT), va(page), READ);
        }
    }
    c.forget(&m, va(0));
    for space in [Space::Kernel, Space::User] {
        assert!(cached(&m, &c, space, 0).is_none());
        assert!(cached(&m, &c, space, 1).is_some());
    }
}

/// Whatever the guest does to its entries between flushes, after a flush the cache never allows more than its tables.
#[test]
fn the_cache_never_allows_more_than_the_tables() {
    let (m, c, log) = (machine(), cache(9), Log::default());
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..20_000 {
        let r = random();
        let page = r >> 8 & 7;
        match r & 15 {
            0 => {
                let flags = [PteFlags::empty(), RW, PteFlags::NX, RW | PteFlags::NX][(r >> 16 & 3) as usize];
                map(&m, page as usize, 20 + (r >> 20 & 7), flags);
                c.forget(&m, va(page));
            }
            1 => {
                m.poke(Slot::new(Mfn::new(13), page as usize), Pte::EMPTY);
                c.forget(&m, va(page));
            }
            2 => c.wipe(&m, || ()),
            3 => {
                log.clear();
                c.wipe(&m, || ());
            }
            n => {
                let access = Access { write: n & 1 != 0, fetch: n & 2 != 0 };
                let space = if n & 4 != 0 { Space::Kernel } else { Space::User };
                c.fill(&m, &log, (space, ROOT), va(page), access);
            }
        }
        for space in [Space::Kernel, Space::User] {
            for page in 0..8 {
                let Some(seen) = cached(&m, &c, space, page) else { continue };
                let guest = m.read(Slot::new(Mfn::new(13), page as usize));
                assert!(guest.is_present() && guest.mfn() == seen.mfn());
                assert!(!seen.is_writable() || guest.is_writable());
                assert!(seen.contains(PteFlags::NX) || !guest.contains(PteFlags::NX));
                assert!(!seen.is_writable() || log.is_marked(seen.mfn()), "writable only when logged");
            }
        }
    }
}

/// A CPU that remembers tables as well as the manual lets it: it walks on from any that an entry led to, until it loads
/// CR3, or is told to forget the address, or faults there.
struct Cpu<'a> {
    memory: &'a Machine,
    cr3: Cell<Mfn>,
    /// By the entry's level and the part of the address that selects it: the table that it led to.
    remembered: RefCell<BTreeMap<(u32, u64), Mfn>>,
}

impl Cpu<'_> {
    const fn key(level: u32, va: VirtAddr) -> (u32, u64) {
        (level, va.raw() >> (12 + 9 * (level - 1)))
    }

    /// Walks to the page at `va`, from a table of a level below `below` if one is remembered.
    fn walk(&self, va: VirtAddr, below: u32) -> Option<Pte> {
        let mut remembered = self.remembered.borrow_mut();
        let known = (2..=below).find_map(|level| Some((level - 1, *remembered.get(&Self::key(level, va))?)));
        let (mut level, mut table) = known.unwrap_or((4, self.cr3.get()));
        loop {
            let entry = self.memory.read(Slot::new(table, va.table_index(level)));
            if level == 1 || !entry.is_present() {
                return Some(entry).filter(|entry| entry.is_present());
            }
            remembered.insert(Self::key(level, va), entry.mfn());
            (level, table) = (level - 1, entry.mfn());
        }
    }

    /// INVLPG, and what a fault does.
    fn forget(&self, va: VirtAddr) {
        self.remembered.borrow_mut().retain(|&(level, of), _| (level, of) != Self::key(level, va));
    }

    fn load_cr3(&self, root: Mfn) {
        self.cr3.set(root);
        self.remembered.borrow_mut().clear();
    }
}

/// No frame that the CPU may walk on from becomes another table, whatever empties the cache; so it finds nothing but
/// what the guest has mapped there.
#[test]
fn a_table_that_the_cpu_remembers_gets_no_other_use() {
    let (m, log) = (machine(), Log::default());
    // Four tables of each level, as the CPU sees them: they are the same ones.
    for index in 0..4 {
        for (table, first) in [(10, 0), (11, 0), (12, 2)] {
            m.poke(Slot::new(Mfn::new(table), index), m.read(Slot::new(Mfn::new(table), first)));
        }
        map(&m, index, 20 + index as u64, RW);
    }
    m.log.store(false, std::sync::atomic::Ordering::Relaxed);
    let cpu = Cpu { memory: &m, cr3: Cell::new(Mfn::new(0)), remembered: RefCell::default() };
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let address = |r: u64| {
        let index = |level: u32| (r >> (2 * level) & 3) << (12 + 9 * level);
        VirtAddr::new(index(0) | index(1) | index(2) | index(3)).unwrap()
    };
    let (c, mut space, mut emptied) = (cache(30), Space::Kernel, 0);
    cpu.load_cr3(c.root(space));
    for _ in 0..50_000 {
        let r = random();
        let (va, below) = (address(r >> 8), 1 + (r >> 16 & 3) as u32);
        // What empties the cache loads CR3, and the CPU may look ahead until then.
        let load_cr3 = || {
            cpu.walk(va, below);
            cpu.load_cr3(cpu.cr3.get());
        };
        match r & 31 {
            0 => {
                space = if space == Space::Kernel { Space::User } else { Space::Kernel };
                cpu.load_cr3(c.root(space));
            }
            // A flush of everything, or another user root.
            1 => c.wipe(&m, load_cr3),
            2 => {
                c.forget(&m, va);
                cpu.forget(va);
            }
            n => {
                let found = cpu.walk(va, below);
                assert!(found.is_none_or(|page| page.mfn().raw() == 20 + (r >> 8 & 3)), "{va:?} {found:?}");
                let write = n & 1 != 0;
                if found.is_some_and(|page| page.is_writable() || !write) {
                    continue;
                }
                cpu.forget(va);
                let before = c.taken.get();
                let filled = c.fill(&m, &log, (space, ROOT), va, Access { write, fetch: false });
                let taken = c.taken.get();
                let handed_out = &c.pool[if taken < before { 0 } else { before }..taken];
                let remembered = cpu.remembered.borrow().values().any(|table| handed_out.contains(table));
                assert!(!remembered, "a table got another use while the CPU remembers it");
                match filled {
                    Fill::Done(Stale::Nothing) => {}
                    Fill::Done(Stale::Page) => cpu.forget(va),
                    Fill::Done(Stale::All) => {
                        emptied += 1;
                        c.wipe(&m, load_cr3);
                    }
                    refused @ Fill::Refused { .. } => panic!("{refused:?}"),
                }
            }
        }
    }
    assert!(emptied > 100, "the cache is to be full now and then: {emptied}");
}
