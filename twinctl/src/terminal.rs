//! The terminal while `top` has it: keys come one by one and are not shown, and the screen that was there comes back.
//!
//! A key or a signal ends the program wherever it waits: a daemon that hangs does not answer for minutes. So both are
//! waited for beside all else.

use anyhow::{Context, Result};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{isatty, tcgetattr, tcgetwinsize, tcsetattr, LocalModes, OptionalActions, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{Read, Write};

/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left corner; what is behind on the line goes; what is below goes.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K\r\n";
const REST: &str = "\x1b[J";

/// What ends it is told so, as a shell tells of who was ended by it.
const BY_SIGNAL: i32 = 128;

/// See the module.
pub struct Terminal {
    before: Termios,
}

impl Terminal {
    /// Takes it. `None`: it is none.
    pub fn take() -> Result<Option<Self>> {
        if !isatty(stdin()) || !isatty(stdout()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin()).context("the terminal's settings")?;
        let mut settings = before.clone();
        // Control-C ends it as `q` does, so that all is put back.
        settings.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("signals")?;
        tcsetattr(stdin(), OptionalActions::Now, &settings).context("the terminal's settings")?;
        let terminal = Self { before };
        let of_signals = terminal.before.clone();
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(&of_signals, BY_SIGNAL + signal);
            }
        });
        let of_keys = terminal.before.clone();
        std::thread::spawn(move || {
            until_ended_by_a_key();
            end(&of_keys, 0);
        });
        write(ENTER)?;
        Ok(Some(terminal))
    }

    /// Shows lines, as far as they fit.
    pub fn show(&self, lines: &[String]) -> Result<()> {
        let size = tcgetwinsize(stdout()).map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
        // A serial line does not know how large it is.
        let (rows, columns) = size.ok().filter(|(rows, columns)| *rows > 0 && *columns > 0).unwrap_or((24, 80));
        let mut out = HOME.to_owned();
        for line in lines.iter().take(rows - 1) {
            out.extend(line.chars().filter(|c| !c.is_control()).take(columns));
            out.push_str(REST_OF_LINE);
        }
        write(&(out + REST))
    }
}

/// Reads keys until one comes that ends it, or none can come any more.
fn until_ended_by_a_key() {
    let is_end = |key: &u8| matches!(key, b'q' | b'Q' | 3 | 4);
    let mut keys = [0; 16];
    while let Ok(count @ 1..) = std::io::stdin().read(&mut keys) {
        if keys.iter().take(count).any(is_end) {
            return;
        }
    }
}

/// Puts the terminal back and ends the program. Nobody shows anything meanwhile.
fn end(before: &Termios, status: i32) -> ! {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
    let _ = tcsetattr(stdin(), OptionalActions::Now, before);
    std::process::exit(status)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
