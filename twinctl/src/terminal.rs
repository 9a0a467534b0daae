//! The terminal while `top` has it: keys come one by one and are not shown, and the screen that was there comes back.

use anyhow::{Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{isatty, tcgetattr, tcgetwinsize, tcsetattr, LocalModes, OptionalActions, Termios};
use std::io::{Read, Write};
use std::time::Duration;

/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left corner; what is behind on the line goes; what is below goes.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K\r\n";
const REST: &str = "\x1b[J";

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
        tcsetattr(stdin(), OptionalActions::Now, &settings).context("the terminal's settings")?;
        let terminal = Self { before };
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

    /// Waits. `true`: a key was pressed that ends it.
    pub fn wait(&self, time: Duration) -> Result<bool> {
        let mut ready = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
        match poll(&mut ready, Some(&Timespec::try_from(time)?)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error).context("the terminal"),
        }
        let mut keys = [0; 16];
        let count = std::io::stdin().read(&mut keys)?;
        let is_end = |key: &u8| matches!(key, b'q' | b'Q' | 3 | 4);
        Ok(count == 0 || keys.iter().take(count).any(is_end))
    }
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
