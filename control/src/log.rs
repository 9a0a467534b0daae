//! Lines that a daemon says, and text that a tool shows.
//!
//! What Rust has for this (`println`) ends the program when it cannot write: when the disk with the log is full, or
//! when whoever reads it has gone. A daemon goes on without a line; a tool whose reader has seen enough has nothing
//! more to do.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// A line for the log, at the standard error. It is lost if it cannot be written.
pub fn error(line: Arguments<'_>) {
    say(io::stderr().lock(), line);
}

/// The same at the standard output.
pub fn output(line: Arguments<'_>) {
    say(io::stdout().lock(), line);
}

fn say(mut to: impl Write, line: Arguments<'_>) {
    // In one piece: others may write there, too.
    let _ = to.write_all(format!("{line}\n").as_bytes()).and_then(|()| to.flush());
}

/// Shows text at the standard output. `false`: nobody reads that any more. Errors: it cannot be written.
pub fn show(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
