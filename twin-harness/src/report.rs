//! What the command `twin` prints about a rewritten driver.

use crate::measure::Measured;
use crate::rig::{Made, PORTION};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;
use twin_kernel::path::is_among;
use twin_rewrite::module::Module;
use twin_runtime::linux::Routine;

/// The report, its last line included, and whether the twin is good: accepted, with all functions on its transmit and
/// receive `path`, as far as that is known.
pub fn text(
    driver: &str,
    mode: &str,
    module: &Module,
    made: &Made,
    verified: Result<(Duration, Duration), String>,
    measured: Option<Measured>,
    path: Option<&BTreeSet<u64>>,
) -> (String, bool) {
    let mut out = String::new();
    let c = &made.output.counts;
    let share = |part: u32, of: u32| f64::from(part) * 100.0 / f64::from(of.max(1));
    let _ = writeln!(
        out,
        "{driver}: {} functions, {} instructions, {} bytes of image",
        made.output.functions,
        c.insns_in,
        made.output.image.len()
    );
    let _ = writeln!(
        out,
        "memory operands {} ({:.1} %), on the stack {} ({:.1} %), translated {} ({:.1} %)",
        c.memory_operands,
        share(c.memory_operands, c.insns_in),
        c.stack_operands,
        share(c.stack_operands, c.insns_in),
        c.translated,
        share(c.translated, c.insns_in)
    );
    let _ = writeln!(
        out,
        "translations emitted {}, used again {}; spills {}, flags saved {}",
        c.masks_emitted, c.masks_elided, c.spills, c.flag_saves
    );
    let _ = writeln!(
        out,
        "per-CPU {}, string {}, locked {}, indirect {}, BUG {}, WARN {}, unsafe stack operands {}",
        c.percpu_sites, c.string_sites, c.locked_sites, c.indirect_sites, c.bug_sites, c.warn_sites, c.unsafe_slots
    );
    let native: Vec<&str> =
        made.output.imports.iter().map(|i| i.0.as_str()).filter(|n| Routine::by_name(n).is_some()).collect();
    let upcalls = made.output.imports.len() - native.len();
    let _ = writeln!(
        out,
        "imports {}: native {} ({}), by upcall {upcalls}",
        made.output.imports.len(),
        native.len(),
        native.join(" ")
    );
    let mut is_whole = true;
    for r in &made.output.refused {
        let is_hot = path.map(|path| is_among(module, r, path));
        is_whole &= is_hot != Some(true);
        let what = match is_hot {
            Some(true) => "ON THE TRANSMIT OR RECEIVE PATH",
            Some(false) => "an upcall",
            None => "an upcall; no live driver tells its paths",
        };
        let _ = writeln!(out, "refused: {} ({what}) at {}: {}", r.function, module.describe(r.address), r.reason);
    }
    let rewritten = made.output.functions - made.output.refused.len();
    let ok = match &verified {
        Ok((time, longest)) => {
            let _ = writeln!(
                out,
                "rewritten in {:.0} ms, verified in {:.1} ms, the longest {PORTION} steps {:.2} ms",
                ms(made.rewriting),
                ms(*time),
                ms(*longest)
            );
            is_whole
        }
        Err(e) => {
            let _ = writeln!(out, "{e}");
            false
        }
    };
    let hot = measured.map_or(("-".into(), "-".into()), |m| {
        (format!("{:.2}", m.transmit.ratio()), format!("{:.2}", m.receive.ratio()))
    });
    if let Some(m) = measured {
        for (name, s) in [("transmit", m.transmit), ("receive", m.receive)] {
            let per = |n: u64| n as f64 / s.packets as f64;
            let _ = writeln!(
                out,
                "{name}: {:.0} -> {:.0} instructions a packet ({:.3})",
                per(s.original),
                per(s.twin),
                s.ratio()
            );
        }
    }
    let accepted = if verified.is_ok() { rewritten } else { 0 };
    let left = match made.output.refused.len() {
        0 => String::new(),
        n => format!(", {n} by upcall"),
    };
    let _ = write!(
        out,
        "twin {driver} {mode}: functions {accepted}/{} verified{left}, insns {} -> {}, tx {} rx {}",
        made.output.functions, c.insns_in, c.insns_out, hot.0, hot.1
    );
    (out, ok)
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}
