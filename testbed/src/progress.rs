//! What the user sees while something takes long: one line a step, with the seconds it took. Threads that work side by
//! side say it when it is done, so that lines stay whole.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Says `what`, does it, and says how long it took; in other threads than the first all at once.
pub fn step<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    let before = format!("  {what} ...");
    let is_alone = std::thread::current().name() == Some("main");
    if is_alone {
        let mut out = std::io::stdout();
        let _ = write!(out, "{before}");
        let _ = out.flush();
    }
    let result = work();
    let seconds = start.elapsed().as_secs_f32();
    let failed = if result.is_ok() { "" } else { " failed after" };
    println!("{}{failed} {seconds:.1} s", if is_alone { "" } else { &before });
    result
}

/// The latest of many lines: on a terminal each is overwritten by the next; elsewhere one is shown every ten seconds.
pub struct Latest {
    shown: Instant,
}

impl Default for Latest {
    /// Nothing was shown yet.
    fn default() -> Self {
        Self { shown: Instant::now() }
    }
}

impl Latest {
    /// Shows `text`, or leaves it out.
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
