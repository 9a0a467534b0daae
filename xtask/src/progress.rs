//! What the user sees while something takes long: one line a step, with the seconds it took.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Says `what`, does it, and says how long it took.
pub fn step<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    let mut out = std::io::stdout();
    let _ = write!(out, "  {what} ...");
    let _ = out.flush();
    let result = work();
    let seconds = start.elapsed().as_secs_f32();
    match &result {
        Ok(_) => println!(" {seconds:.1} s"),
        Err(_) => println!(" failed after {seconds:.1} s"),
    }
    result
}

/// A line that is overwritten by the next one on a terminal, and left out elsewhere.
pub fn transient(text: &str) {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        let shown: String = text.chars().take(100).collect();
        let _ = write!(out, "\r\x1b[K{shown}\r");
        let _ = out.flush();
    }
}

/// Removes what `transient` left.
pub fn clear() {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K");
        let _ = out.flush();
    }
}
