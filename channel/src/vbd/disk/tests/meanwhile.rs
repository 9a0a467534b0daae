//! A guest asks for more on another CPU, while what it has asked for is done.

use super::*;
use std::cell::{Cell, RefCell};

/// A page whose guest does something right after it was read for the so many-th time how far it has asked.
struct Watched<'a> {
    page: TestPage,
    looks: &'a Cell<u32>,
    then: &'a dyn Fn(),
}

impl Watched<'_> {
    fn looked(&self, at: usize, word: u32) -> u32 {
        if at == 0 {
            self.looks.set(self.looks.get().wrapping_sub(1));
            if self.looks.get() == 0 {
                (self.then)();
            }
        }
        word
    }
}

impl SharedPage for Watched<'_> {
    fn load(&self, at: usize) -> u32 {
        self.looked(at, self.page.load(at))
    }
    fn load_acquire(&self, at: usize) -> u32 {
        self.looked(at, self.page.load_acquire(at))
    }
    fn store(&self, at: usize, value: u32) {
        self.page.store(at, value);
    }
    fn store_release(&self, at: usize, value: u32) {
        self.page.store_release(at, value);
    }
}

/// A flush, which needs no pages. Whether the guest notifies.
fn ask(front: &RefCell<GuestRing<28, 32>>, id: u32) -> bool {
    let mut words = [0; 28];
    (words[0], words[2]) = (u32::from(BLKIF_OP_FLUSH_DISKCACHE), id);
    front.borrow_mut().put(words);
    front.borrow_mut().push()
}

/// Two requests wait, and a third comes at a look. How many were taken, and whether it came and somebody knows of it.
fn served(looks: u32, has_given_up: bool) -> (u64, bool, bool) {
    let (memory, mut guest) = (Memory::new(200), Guest::new(1..100));
    let front = RefCell::new(GuestRing::new(0));
    let (page, back) = (front.borrow().page.clone(), TestPage::filled(0));
    let (left, never) = (Cell::new(0), Cell::new(0));
    let is_told = Cell::new(false);
    let then = || is_told.set(ask(&front, 3));
    let mut disk = Disk::connect(Watched { page, looks: &left, then: &then }, ALL, SECRET).expect("a fresh ring");
    if has_given_up {
        disk.give_up(true);
    } else {
        let back = Watched { page: back, looks: &never, then: &|| {} };
        disk.attach(back, pages(), 0, &mut guest, &memory, 0).expect("good pages");
    }
    (1..3).for_each(|id| _ = ask(&front, id));
    left.set(looks);
    let served = disk.serve(&mut guest, &memory, &mut Alone, &|| 7, &mut 1_000_000, &|| false);
    let has_come = front.borrow().req_prod == 3;
    let is_known = is_told.get() || served.more || served.is_late || served.look_at.is_some();
    (disk.stats.errors + u64::from(disk.waiting()), has_come, is_known)
}

#[test]
fn what_is_asked_meanwhile_is_taken_or_the_guest_notifies() {
    for has_given_up in [false, true] {
        let mut came = 0;
        for looks in 1..20 {
            let (taken, has_come, is_known) = served(looks, has_given_up);
            assert!(taken == 3 || is_known || !has_come, "after {looks} looks; given up: {has_given_up}");
            came += u32::from(has_come);
        }
        assert!((2..19).contains(&came), "it comes in the middle, and after the end: {came}");
    }
}

/// A write whose page is not granted: it costs as much as another one, and nothing of it goes to the back end.
fn ask_in_vain(bench: &mut Bench, id: u32) {
    let mut words = [0; 28];
    (words[0], words[2], words[6], words[7]) = (u32::from(BLKIF_OP_WRITE) | 1 << 8, id, 9999, 7 << 8);
    bench.front.put(words);
    bench.front.push();
}

#[test]
fn a_guest_that_goes_on_asking_is_not_the_work_of_a_back_end_that_has_answered() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_READ, 1, 8, 1);
    let _ = bench.serve();
    bench.back_answers(bench.passed_on(0), BLKIF_RSP_OKAY);
    (2..20).for_each(|id| ask_in_vain(&mut bench, id));
    let served = bench.serve_some(16 << 10);
    assert!(served.more && !served.has_answers, "{served:?}");
    assert!(bench.answers().contains(&(1, BLKIF_RSP_OKAY)));
}

#[test]
fn it_is_known_that_answers_are_left() {
    let mut bench = Bench::new();
    for id in 1..3 {
        bench.ask(BLKIF_OP_READ, id, 100 * id, 1);
    }
    let _ = bench.serve();
    (0..2).for_each(|n| bench.back_answers(bench.passed_on(n), BLKIF_RSP_OKAY));
    let served = bench.serve_some(1);
    assert!(served.more && served.has_answers, "{served:?}");
    let served = bench.serve();
    assert!(!served.more && !served.has_answers, "{served:?}");
}
