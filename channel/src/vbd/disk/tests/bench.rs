//! A disk, its guest and its back end.

use super::*;

pub(super) struct Bench {
    pub(super) memory: Memory,
    pub(super) guest: Guest,
    pub(super) front: GuestRing<28, 32>,
    pub(super) disk: Disk<TestPage, u32>,
    pub(super) back: TestPage,
    /// What the back end has seen.
    pub(super) seen: Vec<[u32; 28]>,
    /// Responses of the back end's.
    pub(super) rsp_prod: u32,
    /// The time, in ns.
    pub(super) now: u64,
    /// What the next back end takes.
    pub(super) max_segments: u16,
    /// It is looked at soon though nobody notifies.
    pub(super) may_be_late: bool,
}

pub(super) fn pages() -> Box<[Page<u32>]> {
    (0..PAGES).map(|n| Page { gref: 500 + n, frame: 100 + n }).collect()
}

impl Bench {
    pub(super) fn new() -> Bench {
        let memory = Memory::new(200);
        (1..200).for_each(|frame| memory.write(frame, 0, &[0xee; 4096]));
        let front = GuestRing::new(0);
        let disk = Disk::connect(front.page.clone(), ALL, SECRET).expect("a fresh ring");
        let back = TestPage::filled(0);
        let mut bench = Bench {
            memory,
            guest: Guest::new(1..100),
            front,
            disk,
            back,
            seen: Vec::new(),
            rsp_prod: 0,
            now: 7,
            max_segments: 0,
            may_be_late: false,
        };
        bench.attach();
        bench
    }

    pub(super) fn attach(&mut self) {
        self.attach_to(pages());
    }

    pub(super) fn attach_to(&mut self, pages: Box<[Page<u32>]>) {
        self.back = TestPage::filled(0);
        self.rsp_prod = 0;
        self.seen.clear();
        let guest = &mut self.guest;
        self.disk
            .attach(self.back.clone(), pages, self.max_segments, guest, &self.memory, self.now)
            .expect("good pages");
    }

    /// The guest asks; the grants and frames of its pages.
    pub(super) fn ask(&mut self, operation: u8, id: u32, sector: u32, nr: usize) -> Vec<(u32, u32)> {
        let granted: Vec<_> = (0..nr).map(|_| self.guest.grant(operation == BLKIF_OP_READ).expect("frames")).collect();
        let mut words = [0; 28];
        words[0] = u32::from(operation) | (nr as u32) << 8;
        (words[2], words[4]) = (id, sector);
        for (pair, (gref, _)) in words[6..].chunks_exact_mut(2).zip(&granted) {
            pair.copy_from_slice(&[*gref, 7 << 8]);
        }
        self.front.put(words);
        self.front.push();
        granted
    }

    /// The guest asks to read 32 pages.
    pub(super) fn ask_long(&mut self, id: u32, sector: u32) {
        let (list, frame) = self.guest.grant(false).expect("a frame");
        for n in 0..32u16 {
            let (gref, _) = self.guest.grant(true).expect("a frame");
            self.memory.write(frame, n * 8, &gref.to_le_bytes());
            self.memory.write(frame, n * 8 + 4, &[0, 7, 0, 0]);
        }
        let mut words = [0; 28];
        (words[0], words[2], words[4], words[7]) = (u32::from(BLKIF_OP_INDIRECT) | 32 << 16, id, sector, list);
        self.front.put(words);
        self.front.push();
    }

    pub(super) fn serve(&mut self) -> Served {
        self.serve_some(1_000_000)
    }

    pub(super) fn serve_some(&mut self, budget: u32) -> Served {
        self.serve_in_turn(&mut Alone, budget)
    }

    pub(super) fn serve_in_turn(&mut self, turns: &mut impl Turns, mut budget: u32) -> Served {
        let served =
            self.disk.serve(&mut self.guest, &self.memory, turns, &|| self.now, &mut budget, &|| self.may_be_late);
        self.look();
        served
    }

    /// What the back end sees is noted.
    pub(super) fn look(&mut self) {
        // Answers go over requests.
        for index in self.seen.len()..self.nr_passed_on() as usize {
            self.seen.push(core::array::from_fn(|i| self.back.0[16 + index % 32 * 28 + i].load(SeqCst)));
        }
    }

    /// Requests that the back end sees.
    pub(super) fn nr_passed_on(&self) -> u32 {
        self.back.0[0].load(SeqCst)
    }

    /// Words of one of them.
    pub(super) fn passed_on(&self, index: usize) -> [u32; 28] {
        self.seen[index]
    }

    /// The back end answers what has these words, and has read what is not there yet.
    pub(super) fn back_answers(&mut self, words: [u32; 28], status: i16) {
        for page in self.disk.pages() {
            let mut bytes = [0; 8];
            self.memory.read(page.frame, 4088, &mut bytes);
            if bytes == SECRET.to_le_bytes() && status >= BLKIF_RSP_OKAY && self.grefs(&words).contains(&page.gref) {
                self.memory.write(page.frame, 0, &[0xda; 4096]);
            }
        }
        self.back_says(words, status);
    }

    /// The grants of segments of what has these words.
    pub(super) fn grefs(&self, words: &[u32; 28]) -> Vec<u32> {
        let [operation, nr, low, high] = words[0].to_le_bytes();
        if operation != BLKIF_OP_INDIRECT {
            return words[6..].chunks(2).take(nr.into()).map(|segment| segment[0]).collect();
        }
        let list = self.disk.pages().iter().find(|page| page.gref == words[7]).expect("its page");
        let mut bytes = std::vec![0; 8 * usize::from(u16::from_le_bytes([low, high]))];
        self.memory.read(list.frame, 0, &mut bytes);
        bytes.chunks(8).map(|s| u32::from_le_bytes([s[0], s[1], s[2], s[3]])).collect()
    }

    /// The back end answers what has these words, and has done nothing.
    pub(super) fn back_says(&mut self, words: [u32; 28], status: i16) {
        let at = 16 + (self.rsp_prod % 32) as usize * 28;
        let status = u32::from(u16::from_ne_bytes(status.to_ne_bytes()));
        for (i, word) in [words[2], words[3], words[0] & 0xff | status << 16].into_iter().enumerate() {
            self.back.0[at + i].store(word, SeqCst);
        }
        self.rsp_prod += 1;
        self.back.0[2].store(self.rsp_prod, SeqCst);
    }

    /// What the guest is answered: id and status.
    pub(super) fn answers(&mut self) -> Vec<(u32, i16)> {
        core::iter::from_fn(|| self.front.take())
            .map(|(_, words)| (words[0], Answer::decode([words[0], words[1], words[2]]).status))
            .collect()
    }
}
