//! The bench of the twins: instructions and cycles per packet, times of rewriting and verifying; a table and a plot.

use crate::device::Arrival;
use crate::lab::{Executor, Lab, Outgoing, Sent};
use crate::measure;
use crate::native::arena::{Arena, Watch};
use crate::native::quiet::{Learned, Learning, Quiet, Shown};
use crate::native::{original, Native, CALL_CYCLES, GATE_CYCLES};
use crate::random::Random;
use crate::rig::{loaded, make, Rig};
use crate::scenario::frame;
use crate::world::MASK_BITS;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;
use twin_rewrite::options::{Mode, Options, Reuse};

/// Drivers that have a model of their device.
pub const DRIVERS: [&str; 3] = ["e1000", "e1000e", "8139cp"];

/// One line of the table.
#[derive(Debug, Clone)]
struct Row {
    driver: &'static str,
    scheme: String,
    path: &'static str,
    original: f64,
    twin: f64,
    /// Accesses to the domain's memory and device.
    accesses: f64,
    original_cycles: Cycles,
    twin_cycles: Cycles,
    rewrite_ms: f64,
    verify_ms: f64,
}

/// Time stamps per packet.
#[derive(Debug, Clone, Copy, Default)]
struct Cycles {
    /// In driver text.
    text: f64,
    /// With the support routines that it calls.
    all: f64,
}

impl Row {
    /// What an access costs more than in the original.
    fn per_access(&self) -> f64 {
        (self.twin_cycles.text - self.original_cycles.text) / self.accesses
    }
}

/// Measures all drivers and schemes; writes `twin.csv`, `twin.svg` and `twin-cycles.svg` to `dir`; returns the table.
pub fn run(dir: &Path) -> Result<String, String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut rows = Vec::new();
    for driver in DRIVERS {
        let rig = Rig::open(driver)?;
        let learned = learn(&rig).map_err(|e| format!("{driver}, learning: {e}"))?;
        let before = original_cycles(&rig, &learned).map_err(|e| format!("{driver}, original: {e}"))?;
        for options in schemes() {
            let made = make(&rig.module, &options)?;
            let start = Instant::now();
            let verified = made.verified()?;
            let verify_ms = start.elapsed().as_secs_f64() * 1000.0;
            let measured = measure::run(&rig, &made)?;
            let after = twin_cycles(&rig, verified, &learned)?;
            let rewrite_ms = made.rewriting.as_secs_f64() * 1000.0;
            let scheme = name(&options);
            for (path, share, original_cycles, twin_cycles) in
                [("transmit", measured.transmit, before.0, after.0), ("receive", measured.receive, before.1, after.1)]
            {
                let per = |n: u64| n as f64 / share.packets as f64;
                rows.push(Row {
                    driver,
                    scheme: scheme.clone(),
                    path,
                    original: per(share.original),
                    twin: per(share.twin),
                    accesses: per(share.accesses),
                    original_cycles,
                    twin_cycles,
                    rewrite_ms,
                    verify_ms,
                });
            }
        }
    }
    let write = |name: &str, content: String| std::fs::write(dir.join(name), content).map_err(|e| e.to_string());
    write("twin.csv", csv(&rows))?;
    write("twin.svg", plot("Instructions of driver text per packet", &rows, |r| (r.original, r.twin)))?;
    let cycles = |r: &Row| (r.original_cycles.text, r.twin_cycles.text);
    write("twin-cycles.svg", plot("Cycles in driver text per packet", &rows, cycles))?;
    Ok(csv(&rows))
}

fn schemes() -> Vec<Options> {
    let flow = Rig::options;
    let reuse = |mode, reuse| Options { reuse, ..flow(mode) };
    vec![
        flow(Mode::Mirror),
        reuse(Mode::Mirror, Reuse::Block),
        reuse(Mode::Mirror, Reuse::Access),
        Options { bmi: false, ..flow(Mode::Mirror) },
        Options { counted: true, ..flow(Mode::Mirror) },
        flow(Mode::Stlb),
        reuse(Mode::Stlb, Reuse::Access),
        Options { counted: true, ..flow(Mode::Stlb) },
    ]
}

fn name(options: &Options) -> String {
    let reuse = match options.reuse {
        Reuse::Access => "access",
        Reuse::Block => "block",
        Reuse::Flow => "flow",
    };
    let without = if options.bmi { "" } else { " no-bmi" };
    let counted = if options.counted { " counted" } else { "" };
    format!("{} {reuse}{without}{counted}", options.mode.name())
}

const ROUNDS: usize = 400;
const BATCH: usize = 8;

/// Which registers the driver's functions use, seen in the interpreter.
fn learn(rig: &Rig) -> Result<Learned, String> {
    let mut learned = Learned::default();
    let (mut lab, inner) = rig.original()?;
    let mut e = Learning { inner, learned: &mut learned };
    let mut r = Random::new(3);
    for _ in 0..20 {
        for out in [true, false] {
            round(&mut lab, &mut e, &mut r, out)?;
        }
    }
    Ok(learned)
}

/// Time stamps per packet of the original text, transmit and receive.
fn original_cycles(rig: &Rig, learned: &Learned) -> Result<(Cycles, Cycles), String> {
    let (mut lab, mut original, quiet) = original::moved(rig)?;
    let high = !((1 << MASK_BITS) - 1);
    rounds(&mut lab, &mut Shown { inner: &mut original, quiet, learned, high })
}

/// Time stamps per packet of the twin.
fn twin_cycles(rig: &Rig, verified: twin_verify::Verified<'_>, learned: &Learned) -> Result<(Cycles, Cycles), String> {
    let mut world = rig.world()?;
    let quiet = Quiet::new(&world)?;
    let capacity = verified.image().code().len() as u64;
    let watch = Watch::Quiet(quiet.clone());
    let arena = Arena::new(verified.policy().mode, capacity, &mut world, rig.live.percpu, watch)?;
    let mut native = Native::load(arena, loaded(verified)?, None)?;
    let mut lab = Lab::new(world, &rig.live)?;
    rounds(&mut lab, &mut Shown { inner: &mut native, quiet, learned, high: 0 })
}

/// What a round takes that nothing disturbs: of many rounds, the one that is longer than a tenth of them.
fn rounds(lab: &mut Lab, e: &mut Shown<'_>) -> Result<(Cycles, Cycles), String> {
    lab.world.keep_received = false;
    let mut r = Random::new(3);
    let mut seen: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (n, out) in [true, false].into_iter().enumerate() {
            CALL_CYCLES.store(0, Ordering::Relaxed);
            GATE_CYCLES.store(0, Ordering::Relaxed);
            round(lab, e, &mut r, out)?;
            let (calls, gates) = (CALL_CYCLES.load(Ordering::Relaxed), GATE_CYCLES.load(Ordering::Relaxed));
            seen[n][0].push((calls - gates) as f64 / BATCH as f64);
            seen[n][1].push(calls as f64 / BATCH as f64);
        }
    }
    let typical = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 10]
    };
    let [mut transmit, mut receive] = seen;
    let cycles = |v: &mut [Vec<f64>; 2]| Cycles { text: typical(&mut v[0]), all: typical(&mut v[1]) };
    Ok((cycles(&mut transmit), cycles(&mut receive)))
}

/// A batch of packets in one direction; each must arrive.
fn round(lab: &mut Lab, e: &mut dyn Executor, r: &mut Random, out: bool) -> Result<(), String> {
    let before = lab.world.nr_received;
    for _ in 0..BATCH {
        let len = 60 + r.below(1455) as usize;
        if out {
            let packet = Outgoing { frame: frame(r, len, [2, 1, 1, 1, 1, 1]), cuts: Vec::new(), checksum: false };
            // At first the queue takes only a few bytes before some are completed.
            while lab.transmit(e, &packet).map_err(|x| format!("{x:?}"))? == Sent::Stopped {
                lab.settle(e).map_err(|x| format!("{x:?}"))?;
            }
        } else {
            let f = frame(r, len, lab.live.net.mac);
            lab.arrive(&f, Arrival::default());
        }
    }
    lab.settle(e).map_err(|x| format!("{x:?}"))?;
    let (sent, completed) = (lab.world.device.borrow_mut().sent().len(), lab.world.told.transmitted.len());
    lab.world.told.transmitted.clear();
    let received = (lab.world.nr_received - before) as usize;
    let wanted = if out { (BATCH, BATCH, 0) } else { (0, 0, BATCH) };
    if (sent, completed, received) != wanted {
        return Err(format!("{sent} packets sent, {completed} completed, {received} received, not {wanted:?}"));
    }
    Ok(())
}

fn csv(rows: &[Row]) -> String {
    let mut out = String::from(
        "driver,scheme,path,original_insns,twin_insns,ratio,accesses,original_cycles,twin_cycles,cycle_ratio,\
         cycles_per_access,original_with_routines,twin_with_routines,rewrite_ms,verify_ms\n",
    );
    for r in rows {
        let (before, after) = (r.original_cycles, r.twin_cycles);
        let _ = writeln!(
            out,
            "{},{},{},{:.1},{:.1},{:.3},{:.1},{:.0},{:.0},{:.3},{:.2},{:.0},{:.0},{:.1},{:.2}",
            r.driver,
            r.scheme,
            r.path,
            r.original,
            r.twin,
            r.twin / r.original,
            r.accesses,
            before.text,
            after.text,
            after.text / before.text,
            r.per_access(),
            before.all,
            after.all,
            r.rewrite_ms,
            r.verify_ms
        );
    }
    out
}

/// Bars per packet: the original first, then each scheme, by driver and direction.
fn plot(title: &str, rows: &[Row], values: impl Fn(&Row) -> (f64, f64)) -> String {
    const COLOURS: [&str; 9] =
        ["#444444", "#1b6ca8", "#4f9bd0", "#9cc7e6", "#2a9d63", "#0b3d63", "#c8553d", "#e3a08f", "#7d2f1f"];
    const HEIGHT: f64 = 320.0;
    const BAR: f64 = 16.0;
    let most = rows.iter().map(|r| values(r).0.max(values(r).1)).fold(1.0, f64::max);
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    let mut schemes: Vec<String> = vec!["original".into()];
    for r in rows {
        let key = format!("{} {}", r.driver, r.path);
        if !schemes.contains(&r.scheme) {
            schemes.push(r.scheme.clone());
        }
        match groups.iter_mut().find(|g| g.0 == key) {
            Some(g) => g.1.push(values(r).1),
            None => groups.push((key, vec![values(r).0, values(r).1])),
        }
    }
    let width = 60.0 + groups.len() as f64 * (schemes.len() as f64 + 2.0) * BAR;
    let mut out = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n", HEIGHT + 150.0);
    let _ = writeln!(out, "<text x=\"10\" y=\"18\">{title}</text>");
    let mut x = 50.0;
    for (key, values) in &groups {
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{}\">{key}</text>", HEIGHT + 48.0);
        for (n, v) in values.iter().enumerate() {
            let h = v / most * HEIGHT;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"{}\" height=\"{h:.1}\" fill=\"{}\"><title>{}: {v:.0}</title></rect>",
                HEIGHT + 30.0 - h, BAR - 2.0, COLOURS[n % COLOURS.len()], schemes[n % schemes.len()]
            );
            x += BAR;
        }
        x += 2.0 * BAR;
    }
    for (n, s) in schemes.iter().enumerate() {
        let (x, y) = (50.0 + (n % 4) as f64 * 170.0, HEIGHT + 80.0 + (n / 4) as f64 * 22.0);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{s}</text>",
            y - 11.0,
            COLOURS[n % COLOURS.len()],
            x + 18.0,
            y
        );
    }
    out + "</svg>\n"
}
