//! Faults in the driver's data: its structures, rings and buffers in the domain's memory.

use super::stage::Stage;
use super::Injection;
use crate::mutate::{DataFault, DATA_FAULTS};
use crate::random::Random;
use crate::rig::make;
use twin_faults::text::AT_ONCE;

const PAGE: u64 = 4096;
/// Indices into rings are below this.
const MOST_INDEX: u64 = 4096;

impl Injection<'_> {
    /// Injects `count` faults, one to four a run.
    pub(super) fn data(&mut self, count: u64) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        let made = make(&self.hot.module, &self.options)?;
        if let Some(refused) = made.output.refused.first() {
            return Err(format!("{}: {}", refused.function, refused.reason));
        }
        let verified = made.verified()?;
        let (written, around) = self.places();
        let (mut done, mut run) = (0, self.order.first);
        while done < count {
            let mut r = self.dice(1, run);
            let fault = DATA_FAULTS[r.below(DATA_FAULTS.len() as u64) as usize];
            let mut injected = 0;
            for _ in 0..1 + r.below(AT_ONCE) {
                // Half of them where the work writes for certain.
                let places = if r.one_in(2) { &written } else { &around };
                injected += u64::from(spoil(self.stage(run), places, fault, &mut r));
            }
            let class = format!("data {fault:?}");
            done += injected;
            self.count(&class, injected);
            self.run(&class, verified, &mut r, run)?;
            run += 1;
        }
        Ok(())
    }

    /// The words that the work writes; and all words of their pages and of the driver's own structure.
    fn places(&self) -> (Places, Places) {
        let own = |k: u64| self.rig.snapshot.translate(self.rig.live.net.private + k * PAGE);
        let mut pages: Vec<u64> = self.hot.touched.iter().map(|pa| pa / PAGE).collect();
        pages.extend((0..2).filter_map(own).map(|pa| pa / PAGE));
        pages.sort_unstable();
        pages.dedup();
        let all = pages.iter().flat_map(|p| (p * PAGE..(p + 1) * PAGE).step_by(8));
        (self.sorted(self.hot.touched.iter().copied()), self.sorted(all))
    }

    fn sorted(&self, places: impl Iterator<Item = u64>) -> Places {
        let ram = &self.interpreted.lab.world.ram;
        let mut out = Places::default();
        for pa in places {
            let Some(value) = ram.int(pa, 8) else { continue };
            out.words.push(pa);
            match value {
                v if self.rig.module.is_text(v) => out.functions.push(pa),
                v if v >> 47 == 0x1_ffff => out.pointers.push(pa),
                PAGE.. if value < ram.len() => out.dma.push(pa),
                _ => {}
            }
            let index = |v: u64| v < MOST_INDEX;
            out.indices
                .extend([(pa, value & 0xffff_ffff), (pa + 4, value >> 32)].iter().filter(|p| index(p.1)).map(|p| p.0));
        }
        out
    }
}

/// Words worth spoiling, by what they look like.
#[derive(Default)]
struct Places {
    words: Vec<u64>,
    pointers: Vec<u64>,
    functions: Vec<u64>,
    /// Physical addresses, as descriptors hold them.
    dma: Vec<u64>,
    /// Small numbers of four bytes: ring indices, counts, lengths.
    indices: Vec<u64>,
}

fn spoil(stage: &Stage, places: &Places, fault: DataFault, r: &mut Random) -> bool {
    let ram = &stage.lab.world.ram;
    let from = match fault {
        DataFault::BitFlip => &places.words,
        DataFault::DmaAddress => &places.dma,
        DataFault::NullPointer | DataFault::WildPointer => &places.pointers,
        DataFault::FunctionPointer => &places.functions,
        DataFault::RingIndex => &places.indices,
    };
    if from.is_empty() {
        return false;
    }
    let pa = from[r.below(from.len() as u64) as usize];
    let old = ram.int(pa, 8).unwrap_or(0);
    let wild = match r.below(4) {
        0 => r.draw(),
        1 => r.draw() | 0xffff_8000_0000_0000,
        2 => old ^ 1 << r.below(48),
        _ => r.below(1 << 47),
    };
    let (new, len) = match fault {
        DataFault::BitFlip => (old ^ 1 << r.below(64), 8),
        DataFault::NullPointer => (0, 8),
        DataFault::WildPointer | DataFault::FunctionPointer | DataFault::DmaAddress => (wild, 8),
        DataFault::RingIndex if r.one_in(4) => (r.draw(), 4),
        DataFault::RingIndex => (r.below(1 << 16), 4),
    };
    ram.write(pa, &new.to_le_bytes()[..len])
}
