//! Everything about one driver: snapshot, module, image, and worlds to run it in.

use crate::device;
use crate::emulate::{Original, TwinEmulator};
use crate::lab::Lab;
use crate::native::arena::{Arena, Watch};
use crate::native::Native;
use crate::world::{World, MASK_BITS};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use twin_capture::snapshot::Snapshot;
use twin_kernel::driver::{self, Live};
use twin_kernel::{image, LiveKernel};
use twin_rewrite::module::Module;
use twin_rewrite::options::{Mode, Options};
use twin_rewrite::rewrite::Output;
use twin_runtime::gate::Twin;
use twin_verify::{verify, Policy, Verified, Verifier};

/// Address of two pages that are never mapped.
pub const HOLE: u64 = 0x7400_0000_0000;
/// Pairs of pages that stay mapped in stlb mode.
pub const STLB_LIMIT: usize = 16384;

/// A captured driver.
pub struct Rig {
    /// Its snapshot.
    pub snapshot: Snapshot,
    /// Its final text.
    pub module: Rc<Module>,
    /// What was found in the snapshot.
    pub live: Live,
    template: World,
}

/// A rewritten driver.
pub struct Made {
    /// Image and report.
    pub output: Output,
    /// What the verifier is to demand.
    pub policy: Policy,
    /// How long rewriting took.
    pub rewriting: Duration,
}

/// Where packages, snapshots and results of the build are kept.
pub fn cache() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/images/twin");
    std::env::var_os("TANDEM_CACHE").map_or_else(usual, PathBuf::from)
}

/// A twin of an accepted image.
pub fn loaded(verified: Verified<'_>) -> Result<Twin<'_>, String> {
    Twin::new(verified, STLB_LIMIT, HOLE).map_err(|e| e.to_string())
}

/// Rewrites a module. What the verifier does not accept is left to the domain.
pub fn make(module: &Module, options: &Options) -> Result<Made, String> {
    let start = Instant::now();
    let output = image::make(module, options)?;
    Ok(Made { output, policy: image::policy(options), rewriting: start.elapsed() })
}

/// Steps of the verifier in one portion, as a loader does them that may not stay away for long.
pub const PORTION: u32 = 1000;

impl Made {
    /// Verifies the image in portions of [`PORTION`] steps; the time that all and that the longest of them took. The
    /// best of a few tries, since others use this processor as well.
    pub fn verified_in_portions(&self) -> Result<(Duration, Duration), String> {
        let mut best = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            let (all, longest) = self.in_portions()?;
            best = (best.0.min(all), best.1.min(longest));
        }
        Ok(best)
    }

    fn in_portions(&self) -> Result<(Duration, Duration), String> {
        let refused = |e| format!("the verifier refuses the image: {e}");
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        let mut verifier = Verifier::new(&self.output.image, &self.policy).map_err(refused)?;
        loop {
            let start = Instant::now();
            let ended = verifier.advance(PORTION).map_err(refused)?;
            longest = longest.max(start.elapsed());
            if ended.is_some() {
                return Ok((begun.elapsed(), longest));
            }
        }
    }

    /// Verifies the image.
    pub fn verified(&self) -> Result<Verified<'_>, String> {
        verify(&self.output.image, &self.policy).map_err(|e| format!("the verifier refuses the image: {e}"))
    }
}

impl Rig {
    /// Opens the snapshot of `driver`, taking it first if there is none.
    pub fn open(driver: &str) -> Result<Self, String> {
        let dir = twin_capture::guest::capture(driver, &cache())?;
        Self::from_dir(&dir)
    }

    /// Opens the snapshot in `dir`.
    pub fn from_dir(dir: &Path) -> Result<Self, String> {
        let snapshot = Snapshot::open(dir)?;
        let name = snapshot.driver.replace('-', "_");
        let module = Rc::new(driver::module(&snapshot, &name)?);
        let live = snapshot.live()?;
        const IORESOURCE_MEM: u64 = 0x200;
        let window = snapshot.windows.iter().find(|w| w.2 & IORESOURCE_MEM != 0).map_or(0, |w| w.0);
        let file = std::fs::read(dir.join("module.ko")).map_err(|e| format!("module.ko: {e}"))?;
        let types = driver::module_types(&snapshot, &file, &snapshot.release)?;
        let member = |structure: &str, member: &str| {
            let at = live.net.private + types.offset(structure, member).ok()?;
            snapshot.read_int(at, 4).map(|v| v as u32)
        };
        let device = device::for_driver(&name, window, &snapshot.registers, &member)
            .ok_or(format!("no model of the device of {name}"))?;
        let template = World::new(&snapshot, device)?;
        Ok(Self { snapshot, module, live, template })
    }

    /// Options for this harness.
    pub fn options(mode: Mode) -> Options {
        Options { mask_bits: MASK_BITS, ..Options::new(mode) }
    }

    /// A lab for the original, and the original.
    pub fn original(&self) -> Result<(Lab, Original), String> {
        let mut world = self.template.copy()?;
        Original::prepare(&mut world);
        Ok((Lab::new(world, &self.live)?, Original::new(self.module.clone(), self.live.percpu)))
    }

    /// A lab for the interpreted twin, and the twin.
    pub fn twin<'a>(&self, verified: Verified<'a>) -> Result<(Lab, TwinEmulator<'a>), String> {
        let mut world = self.template.copy()?;
        TwinEmulator::prepare(&mut world);
        let twin = loaded(verified)?;
        Ok((Lab::new(world, &self.live)?, TwinEmulator::new(twin, self.live.percpu)))
    }

    /// A lab for the twin on the host's own processor, and the twin. There is room for one in a process.
    pub fn native<'a>(&self, verified: Verified<'a>) -> Result<(Lab, Native<'a>), String> {
        let mut world = self.template.copy()?;
        let capacity = verified.image().code().len() as u64;
        let arena = Arena::new(verified.policy().mode, capacity, &mut world, self.live.percpu, Watch::Device)?;
        let native = Native::load(arena, loaded(verified)?, None)?;
        Ok((Lab::new(world, &self.live)?, native))
    }

    /// A world in the captured state.
    pub fn world(&self) -> Result<World, String> {
        self.template.copy()
    }
}
