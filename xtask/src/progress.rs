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

/// The latest of many lines: on a terminal each is overwritten by the next; elsewhere one is shown every ten seconds.
pub struct Latest {
    shown: Instant,
}

impl Latest {
    pub fn new() -> Self {
        Self { shown: Instant::now() }
    }

    pub fn line(&mut self, text: &str) {
        let mut out = std::io::stdout();
        let text: String = text.chars().take(100).collect();
        if out.is_terminal() {
            let _ = write!(out, "\r\x1b[K{text}\r");
            let _ = out.flush();
        } else if self.shown.elapsed().as_secs() >= 10 {
            self.shown = Instant::now();
            println!("  ... {text}");
        }
    }
}

/// Removes the latest line.
pub fn clear() {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K");
        let _ = out.flush();
    }
}
