//! Faults in the driver's data: its structures, rings and buffers in the domain's memory.

use super::stage::Stage;
use super::Injection;
use crate::mutate::{DataFault, DATA_FAULTS};
use crate::random::Random;
use crate::rig::make;
use twin_faults::data::{spoilt, Places};
use twin_faults::text::AT_ONCE;

const PAGE: u64 = 4096;

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
            if let Some(value) = ram.int(pa, 8) {
                out.note(pa, value, |address| self.rig.module.is_text(address), ram.len());
            }
        }
        out
    }
}

fn spoil(stage: &Stage, places: &Places, fault: DataFault, r: &mut Random) -> bool {
    let ram = &stage.lab.world.ram;
    let Some(pa) = places.choose(fault, r) else { return false };
    let (new, len) = spoilt(fault, ram.int(pa, 8).unwrap_or(0), r);
    ram.write(pa, &new.to_le_bytes()[..len])
}
