//! The bench of the twins: instructions and cycles per packet, times of rewriting and verifying; a table and a plot.

use crate::device::Arrival;
use crate::lab::{Ended, Executor, Lab, Outgoing};
use crate::measure;
use crate::random::Random;
use crate::rig::{make, Rig};
use crate::scenario::frame;
use crate::world::World;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;
use twin_rewrite::options::{Mode, Options, Reuse};
use twin_runtime::linux::Support;

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
    cycles: f64,
    rewrite_ms: f64,
    verify_ms: f64,
}

/// Measures all drivers and schemes; writes `twin.csv` and `twin.svg` to `dir`; returns a summary.
pub fn run(dir: &Path) -> Result<String, String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut rows = Vec::new();
    for driver in DRIVERS {
        let rig = Rig::open(driver)?;
        for (mode, reuse, bmi) in schemes() {
            let options = Options { reuse, bmi, ..Rig::options(mode) };
            let made = make(&rig.module, &options)?;
            let start = Instant::now();
            let verified = made.verified()?;
            let verify_ms = start.elapsed().as_secs_f64() * 1000.0;
            let measured = measure::run(&rig, &made)?;
            let (transmit, receive) = cycles(&rig, verified)?;
            let rewrite_ms = made.rewriting.as_secs_f64() * 1000.0;
            let scheme = name(mode, reuse, bmi);
            for (path, share, cycles) in
                [("transmit", measured.transmit, transmit), ("receive", measured.receive, receive)]
            {
                let per = |n: u64| n as f64 / share.packets as f64;
                let (original, twin) = (per(share.original), per(share.twin));
                rows.push(Row { driver, scheme: scheme.clone(), path, original, twin, cycles, rewrite_ms, verify_ms });
            }
        }
    }
    std::fs::write(dir.join("twin.csv"), csv(&rows)).map_err(|e| e.to_string())?;
    std::fs::write(dir.join("twin.svg"), plot(&rows)).map_err(|e| e.to_string())?;
    Ok(csv(&rows))
}

fn schemes() -> Vec<(Mode, Reuse, bool)> {
    vec![
        (Mode::Mirror, Reuse::Flow, true),
        (Mode::Mirror, Reuse::Block, true),
        (Mode::Mirror, Reuse::Access, true),
        (Mode::Mirror, Reuse::Flow, false),
        (Mode::Stlb, Reuse::Flow, true),
        (Mode::Stlb, Reuse::Access, true),
    ]
}

fn name(mode: Mode, reuse: Reuse, bmi: bool) -> String {
    let reuse = match reuse {
        Reuse::Access => "access",
        Reuse::Block => "block",
        Reuse::Flow => "flow",
    };
    let without = if bmi { "" } else { " no-bmi" };
    format!("{} {reuse}{without}", mode.name())
}

/// Counts the processor's time stamps spent in calls of the twin.
struct Timed<'a>(&'a mut dyn Executor, u64);

impl Executor for Timed<'_> {
    fn call(&mut self, world: &mut World, support: &mut Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        // SAFETY: reads a counter.
        let start = unsafe { core::arch::x86_64::_rdtsc() };
        let result = self.0.call(world, support, function, args);
        // SAFETY: as above.
        self.1 += unsafe { core::arch::x86_64::_rdtsc() } - start;
        result
    }
    fn instructions(&self) -> u64 {
        self.0.instructions()
    }
}

/// Cycles per packet of the native twin, with support routines and device accesses (each of which costs a fault here).
fn cycles(rig: &Rig, verified: twin_verify::Verified<'_>) -> Result<(f64, f64), String> {
    const ROUNDS: usize = 200;
    const BATCH: usize = 8;
    let (mut lab, mut native) = rig.native(verified)?;
    lab.world.keep_received = false;
    let mut timed = Timed(&mut native, 0);
    let (mut transmit, mut receive) = (Vec::new(), Vec::new());
    let mut r = Random::new(3);
    for _ in 0..ROUNDS {
        transmit.push(round(&mut lab, &mut timed, &mut r, BATCH, true)?);
        receive.push(round(&mut lab, &mut timed, &mut r, BATCH, false)?);
    }
    // The median is what a quiet machine would show.
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    Ok((median(&mut transmit), median(&mut receive)))
}

fn round(lab: &mut Lab, e: &mut Timed<'_>, r: &mut Random, batch: usize, out: bool) -> Result<f64, String> {
    let before = e.1;
    for _ in 0..batch {
        let len = 60 + r.below(1455) as usize;
        if out {
            let packet = Outgoing { frame: frame(r, len, [2, 1, 1, 1, 1, 1]), cuts: Vec::new(), checksum: false };
            lab.transmit(e, &packet).map_err(|x| format!("{x:?}"))?;
        } else {
            let f = frame(r, len, lab.live.net.mac);
            lab.arrive(&f, Arrival::default());
        }
    }
    lab.settle(e).map_err(|x| format!("{x:?}"))?;
    lab.world.told.transmitted.clear();
    lab.world.device.borrow_mut().sent();
    Ok((e.1 - before) as f64 / batch as f64)
}

fn csv(rows: &[Row]) -> String {
    let mut out =
        String::from("driver,scheme,path,original_insns,twin_insns,ratio,native_cycles,rewrite_ms,verify_ms\n");
    for r in rows {
        let ratio = r.twin / r.original;
        let _ = writeln!(
            out,
            "{},{},{},{:.1},{:.1},{ratio:.3},{:.0},{:.1},{:.2}",
            r.driver, r.scheme, r.path, r.original, r.twin, r.cycles, r.rewrite_ms, r.verify_ms
        );
    }
    out
}

/// Bars of instructions per packet: the original first, then each scheme, by driver and direction.
fn plot(rows: &[Row]) -> String {
    const COLOURS: [&str; 7] = ["#444444", "#1b6ca8", "#4f9bd0", "#9cc7e6", "#2a9d63", "#c8553d", "#e3a08f"];
    const HEIGHT: f64 = 320.0;
    const BAR: f64 = 16.0;
    let most = rows.iter().map(|r| r.twin.max(r.original)).fold(1.0, f64::max);
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    let mut schemes: Vec<String> = vec!["original".into()];
    for r in rows {
        let key = format!("{} {}", r.driver, r.path);
        if !schemes.contains(&r.scheme) {
            schemes.push(r.scheme.clone());
        }
        match groups.iter_mut().find(|g| g.0 == key) {
            Some(g) => g.1.push(r.twin),
            None => groups.push((key, vec![r.original, r.twin])),
        }
    }
    let width = 60.0 + groups.len() as f64 * (schemes.len() as f64 + 2.0) * BAR;
    let mut out = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n", HEIGHT + 150.0);
    let _ = writeln!(out, "<text x=\"10\" y=\"18\">Instructions of driver text per packet</text>");
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
