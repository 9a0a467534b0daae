//! Where faulty twins run: the captured driver with a small piece of work, brought back to its first state after each
//! run.

use crate::device::Arrival;
use crate::emulate::{Original, TwinEmulator};
use crate::lab::{Checkpoint, Ended, Executor, Lab, Outgoing};
use crate::native::arena::{Arena, Watch};
use crate::native::Native;
use crate::random::Random;
use crate::rig::{loaded, Rig};
use crate::scenario::frame;
use crate::world::Deed;
use twin_abi::image::Mode;
use twin_rewrite::module::Module;
use twin_verify::Verified;

/// Steps (loops, calls) that one invocation may take. The work needs a few hundred.
const STEPS: i64 = 4000;
/// Instructions after which the interpreter gives up on a twin that does not charge itself.
const INSTRUCTIONS: u64 = 3_000_000;
/// Ticks of processor time after which a native invocation is ended.
const TICKS: u64 = 50;
/// Packets of each direction.
const PACKETS: usize = 2;

/// A lab that can be brought back to its first state.
pub struct Stage {
    /// The lab.
    pub lab: Lab,
    start: Checkpoint,
    arena: Option<Box<Arena>>,
    percpu: u64,
}

impl Stage {
    /// For interpreted twins.
    pub fn interpreted(rig: &Rig) -> Result<Self, String> {
        let mut world = rig.world()?;
        TwinEmulator::prepare(&mut world);
        Ok(Self::new(Lab::new(world, &rig.live)?, None, rig.live.percpu))
    }

    /// For twins on the host's own processor, of up to `capacity` bytes of code.
    pub fn native(rig: &Rig, mode: Mode, capacity: usize) -> Result<Self, String> {
        let mut world = rig.world()?;
        let arena = Arena::new(mode, capacity as u64, &mut world, rig.live.percpu, Watch::Memory)?;
        Native::set_time_limit(TICKS);
        Ok(Self::new(Lab::new(world, &rig.live)?, Some(arena), rig.live.percpu))
    }

    fn new(lab: Lab, arena: Option<Box<Arena>>, percpu: u64) -> Self {
        Self { start: Checkpoint::of(&lab), lab, arena, percpu }
    }

    /// Whether twins run on the host's own processor here.
    pub fn is_native(&self) -> bool {
        self.arena.is_some()
    }

    /// Does the work with an accepted image.
    pub fn run(&mut self, verified: Verified<'_>, r: &mut Random, number: u64) -> Result<Result<(), Ended>, String> {
        let twin = loaded(verified)?;
        let Some(arena) = self.arena.take() else {
            let mut e = TwinEmulator::new(twin, self.percpu);
            e.set_budget(STEPS, INSTRUCTIONS);
            let result = self.work(&mut e, r);
            self.reset()?;
            return Ok(result);
        };
        let mut native = Native::load(arena, twin, None)?;
        native.set_budget(STEPS);
        Native::set_run(number);
        let result = self.work(&mut native, r);
        self.arena = Some(native.unload());
        self.reset()?;
        Ok(result)
    }

    /// Does the work with code that nobody accepted, in the interpreter. `verified` lends the tables.
    pub fn run_unverified(
        &mut self,
        verified: Verified<'_>,
        code: &[u8],
        r: &mut Random,
    ) -> Result<Result<(), Ended>, String> {
        let twin = loaded(verified)?;
        let mut e = TwinEmulator::with_code(twin, self.percpu, code.to_vec());
        e.set_budget(STEPS, INSTRUCTIONS);
        let result = self.work(&mut e, r);
        self.reset()?;
        Ok(result)
    }

    fn reset(&mut self) -> Result<(), String> {
        match &mut self.arena {
            Some(arena) => {
                arena.rewind(&self.lab.world)?;
                self.start.restore_beside_memory(&mut self.lab);
            }
            None => self.start.restore(&mut self.lab),
        }
        Ok(())
    }

    /// Packets out and in, of sizes that `r` chooses.
    fn work(&mut self, e: &mut dyn Executor, r: &mut Random) -> Result<(), Ended> {
        for n in 0..PACKETS {
            let len = 60 + r.below(1455) as usize;
            let cuts = if n == 0 && len > 400 { vec![64, 300, 1600] } else { Vec::new() };
            let out = Outgoing { frame: frame(r, len, [2, 1, 1, 1, 1, 1]), cuts, checksum: n == 0 };
            self.lab.transmit(e, &out)?;
            self.lab.settle(e)?;
        }
        for n in 0..PACKETS {
            let f = frame(r, 60 + 900 * n, self.lab.live.net.mac);
            self.lab.arrive(&f, Arrival::default());
            self.lab.settle(e)?;
        }
        Ok(())
    }
}

/// The part of the module that the work runs through: executed instructions, and a module of only those functions.
pub struct Hot {
    /// The functions.
    pub module: Module,
    /// Addresses of the executed instructions.
    pub executed: Vec<u64>,
    /// Physical words that the work writes.
    pub touched: Vec<u64>,
}

/// Does the work with the original and looks at what it runs through.
pub fn hot(rig: &Rig) -> Result<Hot, String> {
    let (lab, mut original): (Lab, Original) = rig.original()?;
    let mut bench = Stage::new(lab, None, rig.live.percpu);
    *bench.lab.world.deeds.borrow_mut() = Some(Vec::new());
    bench.work(&mut original, &mut Random::new(1)).map_err(|e| format!("{e:?}"))?;
    let mut touched: Vec<u64> = bench
        .lab
        .world
        .deeds
        .borrow_mut()
        .take()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|d| if let Deed::Write(pa, ..) = d { Some(pa & !7) } else { None })
        .collect();
    touched.sort_unstable();
    touched.dedup();
    let executed = original.visited();
    let mut module = (*rig.module).clone();
    let functions = module.functions.clone();
    let is_hot = |name: &str, from: u64, len: u64| {
        name.contains(".cold") || executed.iter().any(|a| (from..from + len).contains(a))
    };
    module.functions.retain(|f| is_hot(&f.name, f.address, f.len));
    // Functions left out are called where they are; they keep their names as symbols outside.
    for f in functions.iter().filter(|f| !module.functions.contains(f)) {
        module.externs.add(f.address, &f.name);
    }
    Ok(Hot { module, executed, touched })
}
