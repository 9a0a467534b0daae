//! `twinctl top`: a live screen, or so many below each other.

use crate::arguments::Top;
use crate::screen;
use crate::terminal::Terminal;
use anyhow::{bail, Result};
use control::log;
use control::socket::Connection;
use control::{Answer, Told};
use std::time::Instant;

/// Shows screens until a key is pressed, or as many as are wanted.
pub fn run(connection: &mut Connection, top: &Top) -> Result<()> {
    let mut before = (Instant::now(), ask(connection, top)?);
    let terminal = if top.count.is_none() { Terminal::take()? } else { None };
    let mut left = top.count.unwrap_or(if terminal.is_some() { u32::MAX } else { 1 });
    while left > 0 {
        match &terminal {
            Some(terminal) if terminal.wait(top.every)? => return Ok(()),
            Some(_) => {}
            None => std::thread::sleep(top.every),
        }
        let after = (Instant::now(), ask(connection, top)?);
        let seconds = after.0.duration_since(before.0).as_secs_f64();
        let lines = screen::lines(&before.1, &after.1, seconds);
        match &terminal {
            Some(terminal) => terminal.show(&lines)?,
            // Who reads that may have seen enough.
            None if !log::show(&(lines.join("\n") + "\n"))? => return Ok(()),
            None => {}
        }
        before = after;
        // Without a count it ends by a key.
        left -= u32::from(top.count.is_some() || terminal.is_none());
    }
    Ok(())
}

fn ask(connection: &mut Connection, top: &Top) -> Result<Told> {
    match connection.ask(&top.request)? {
        Answer::Ok(told) => Ok(told),
        Answer::Error(why) => bail!("{why}"),
    }
}
