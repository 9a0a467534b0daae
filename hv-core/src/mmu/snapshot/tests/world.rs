//! A domain, what it may do, and how its memory is noted and brought back.

use super::*;

pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) copies: Copies,
    pub(super) lock: Deferred,
    pub(super) roots: Vec<RootRef>,
    pub(super) gdts: Vec<GdtFrames>,
    /// What domain 0 holds for writing.
    pub(super) held: Vec<Mfn>,
}

/// All that can be seen of the domain's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// References, type, type count, whether it is pinned.
    pub(super) frames: Vec<(u32, FrameType, u32, bool)>,
    pub(super) contents: Vec<u64>,
    pub(super) m2p: Vec<u64>,
}

fn frame_near(level: u8, choice: u8) -> Mfn {
    let (first, count) = [(11, 9), (7, 4), (4, 3), (2, 2), (0, 2)][usize::from(level)];
    let n = u64::from(choice >> 2);
    Mfn::new(FIRST + if choice & 3 == 0 { n % (OWN + MORE) } else { first + n % count })
}

/// Gives the domain a frame of the allocator's, if there is one.
pub(super) fn grow(machine: &Machine) -> Option<Mfn> {
    let all = (FIRST..FIRST + OWN + MORE).map(Mfn::new);
    let mfn = all.into_iter().find(|mfn| machine.at(*mfn).count() == CountWord::FREE)?;
    machine.mmu().flush_before_reuse(mfn);
    machine.clear_page(mfn);
    machine.at(mfn).assign(DOM1);
    Some(mfn)
}

impl World {
    pub(super) fn new() -> Self {
        let machine = Machine::new(FRAMES);
        machine.log.store(false, Ordering::Relaxed);
        machine.populate(DOM1, FIRST, OWN);
        machine.spare.lock().unwrap().extend((FIRST + OWN + MORE..FRAMES).map(Mfn::new));
        let entry = |n: u64| Pte((FIRST + n) << 12 | 7);
        for (table, index, to) in
            [(0, 0, 2), (2, 0, 4), (2, 1, 5), (4, 0, 7), (4, 1, 8), (5, 0, 9), (7, 0, 12), (8, 0, 13)]
        {
            machine.poke(Slot::new(Mfn::new(FIRST + table), index), entry(to));
        }
        for n in 0..OWN {
            machine.m2p[usize::try_from(FIRST + n).unwrap()].store(n, Ordering::SeqCst);
        }
        Self { machine, copies: Copies::new(), lock: Deferred::new(), roots: vec![], gdts: vec![], held: vec![] }
    }

    /// One operation of the kernel's; those that are refused change nothing.
    pub(super) fn step(&mut self, [op, a, b, c, e]: [u8; 5]) {
        let mmu = self.machine.mmu();
        let fuel = if op & 0x80 != 0 { i64::from(e >> 5) } else { -1 };
        self.machine.fuel.store(fuel, Ordering::SeqCst);
        let lock = &mut self.lock;
        match op & 0x7f {
            0..=49 => {
                let level = 1 + (a & 3);
                let slot = Slot::new(frame_near(level, b), INDICES[usize::from(a >> 2) % INDICES.len()]);
                let new = frame_near(level - 1, c).raw() << 12 | u64::from(e & 7) | u64::from(e >> 3 & 3) << 5;
                let _ = mmu.mmu_update(slot.addr(), new, Owners::both(DOM1), lock);
            }
            50..=64 => {
                let _ = mmu.pin(DOM1, frame_near(1 + (a & 3), b), LEVELS[usize::from(a & 3)], lock);
            }
            65..=79 => {
                let _ = mmu.unpin(DOM1, frame_near(1 + (a & 3), b), lock);
            }
            80..=89 => {
                if let Ok(root) = mmu.acquire_root(DOM1, frame_near(4, b), lock) {
                    self.roots.push(root);
                }
            }
            90..=97 => {
                if !self.roots.is_empty() && mmu.drain(lock).is_ok() {
                    let root = self.roots.swap_remove(usize::from(a) % self.roots.len());
                    mmu.release_root(root, lock).unwrap();
                }
            }
            98..=103 => {
                if let Ok(gdt) = mmu.take_gdt(DOM1, &[frame_near(0, b)]) {
                    self.gdts.push(gdt);
                }
            }
            104..=107 => {
                if let Some(mut gdt) = self.gdts.pop() {
                    mmu.drop_gdt(&mut gdt);
                }
            }
            108..=109 => self.machine.m2p[frame_near(0, b).index()].store(c.into(), Ordering::SeqCst),
            110..=111 => {
                let _ = mmu.give_up(DOM1, frame_near(a & 3, b));
            }
            112..=114 => {
                let _ = grow(&self.machine);
            }
            115..=117 => {
                let mfn = frame_near(a & 3, b);
                if mmu.steal(DOM1, mfn).is_ok() {
                    if e & 1 == 0 {
                        mmu.unsteal(DOM1, mfn);
                    } else {
                        let gone = mmu.let_go(mfn);
                        self.machine.frame_gone(mfn, gone);
                        let _ = grow(&self.machine);
                    }
                }
            }
            _ => {
                // It writes to what it may write to: now and then what looks like an entry.
                let page = frame_near(a & 3, b);
                if let Ok(page) = mmu.get_writable(page, DOM1) {
                    let value = if e & 1 == 0 { c.into() } else { frame_near(a >> 2 & 3, c).raw() << 12 | 7 };
                    self.machine.poke(Slot::new(page.mfn(), INDICES[usize::from(e >> 1) % INDICES.len()]), Pte(value));
                }
            }
        }
        self.machine.fuel.store(-1, Ordering::SeqCst);
    }

    /// As when a domain has run on and all its operations have ended.
    pub(super) fn settle(&mut self) {
        self.machine.mmu().abandon(&mut self.lock).unwrap();
    }

    pub(super) fn seen(&self) -> Seen {
        let own = FIRST..FIRST + OWN;
        let frames = own.clone().map(|n| {
            let frame = self.machine.at(Mfn::new(n));
            let usage = frame.usage();
            // Without references the last type is only of interest to TLBs.
            let ty = if usage.state() == UsageState::Idle { FrameType::None } else { usage.ty() };
            (frame.count().refs(), ty, usage.count(), usage.is_pinned())
        });
        let words = own.clone().flat_map(|n| (0..ENTRIES).map(move |i| Slot::new(Mfn::new(n), i)));
        Seen {
            frames: frames.collect(),
            contents: words.map(|slot| self.machine.read(slot).0).collect(),
            m2p: own.map(|n| self.machine.pfn(Mfn::new(n))).collect(),
        }
    }

    /// The same frames as ever are the domain's, and it has no others.
    pub(super) fn has_its_own(&self) -> bool {
        let is_part = |n: u64| self.machine.at(Mfn::new(n)).count().is_part_of(DOM1);
        (FIRST..FIRST + OWN).all(is_part) && !(FIRST + OWN..FRAMES).any(is_part)
    }

    pub(super) fn audit(&self) {
        let mut table = Table::new(self.machine.frames.len()).unwrap();
        let mut audit = Audit::new(self.machine.mmu(), &mut table);
        audit.deferred(&self.lock);
        self.roots.iter().for_each(|root| audit.root(root.mfn()));
        self.gdts.iter().flat_map(GdtFrames::frames).filter(|mfn| mfn.raw() != 0).for_each(|mfn| audit.segdesc(*mfn));
        self.held.iter().for_each(|mfn| audit.writable(*mfn));
        audit.finish(|mfn, frame, found, agrees| assert!(agrees, "{mfn:?}: {frame:?}, but {found:?}"));
    }

    /// Repeats `step` as long as it is preempted, which is after `fuel` steps each time.
    pub(super) fn until_done(
        &mut self,
        fuel: i64,
        mut step: impl FnMut(&Machine, &mut Deferred) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        for _ in 0..10_000 {
            self.machine.fuel.store(fuel, Ordering::SeqCst);
            let result = step(&self.machine, &mut self.lock);
            self.machine.fuel.store(-1, Ordering::SeqCst);
            if result != Err(Stop::Preempted) {
                return result;
            }
        }
        panic!("it never ends");
    }

    pub(super) fn keep(&mut self, fuel: i64) -> Result<Memory, Stop> {
        self.keep_as(Form::Whole, fuel)
    }

    pub(super) fn keep_as(&mut self, form: Form, fuel: i64) -> Result<Memory, Stop> {
        let (mut memory, mut copies) = (Memory::new(form), core::mem::replace(&mut self.copies, Copies::new()));
        let kept = self.until_done(fuel, |m, lock| m.mmu().keep_memory(DOM1, &mut memory, &mut copies, lock));
        self.copies = copies;
        kept.map(|()| memory)
    }

    pub(super) fn check(&mut self, memory: &Memory, fuel: i64) -> Result<(), Stop> {
        let mut check = Check::new();
        self.until_done(fuel, |m, lock| m.mmu().check_memory(DOM1, memory, &mut check, lock))?;
        Ok(check.finish()?)
    }

    /// Goes back to `memory`, in which the vCPUs had `roots` and descriptor tables `gdts`.
    pub(super) fn go_back(&mut self, memory: &Memory, roots: &[Mfn], gdts: &[Mfn], fuel: i64) -> Result<(), Stop> {
        for root in core::mem::take(&mut self.roots) {
            let mut root = Some(root);
            self.until_done(fuel, |m, lock| {
                m.mmu().drain(lock).map_err(|_| Stop::Preempted)?;
                if let Some(root) = root.take() {
                    m.mmu().release_root(root, lock).unwrap();
                }
                Ok(())
            })?;
        }
        for mut gdt in core::mem::take(&mut self.gdts) {
            self.machine.mmu().drop_gdt(&mut gdt);
        }
        let mut next = 0;
        self.until_done(fuel, |m, lock| m.mmu().take_down(DOM1, &mut next, lock))?;
        let mut next = 0;
        self.until_done(fuel, |m, _| m.mmu().take_again(DOM1, memory, &mut next))?;
        let mut next = 0;
        let mut copies = core::mem::replace(&mut self.copies, Copies::new());
        let copied = self.until_done(fuel, |m, _| m.mmu().copy_back(DOM1, memory, &mut copies, &mut next));
        self.copies = copies;
        copied?;
        let mut next = 0;
        self.until_done(fuel, |m, lock| m.mmu().pin_again(DOM1, memory, &mut next, lock))?;
        for &mfn in roots {
            let mut taken = None;
            self.until_done(fuel, |m, lock| match m.mmu().acquire_root(DOM1, mfn, lock) {
                Ok(root) => {
                    taken = Some(root);
                    Ok(())
                }
                Err(MmuError::Preempted) => Err(Stop::Preempted),
                Err(_) => Err(Refusal::Held(mfn.raw()).into()),
            })?;
            self.roots.extend(taken);
        }
        for &mfn in gdts {
            self.gdts.push(self.machine.mmu().take_gdt(DOM1, &[mfn]).map_err(|_| Refusal::Held(mfn.raw()))?);
        }
        let mut next = 0;
        self.until_done(fuel, |m, _| m.mmu().check_types(DOM1, memory, &mut next))
    }

    pub(super) fn end(mut self, mut memory: Memory) {
        while !memory.release(&mut self.copies, &self.machine, 1) {}
        assert_eq!(memory.counts(), Counts::default());
        assert_eq!((self.copies.count(), self.copies.nr_packs()), (0, 0));
        assert!(self.machine.away.lock().unwrap().is_empty(), "frames are away for nobody");
        assert!(self.machine.frames.iter().all(|frame| !frame.count().is_noted()), "noted by nobody");
        assert_eq!(self.machine.spare.lock().unwrap().len() as u64, SPARE, "copies are lost");
        let holds = core::mem::take(&mut self.held);
        holds.into_iter().for_each(|mfn| drop(self.machine.mmu().writable_from_kept(mfn)));
        self.audit();
    }
}
