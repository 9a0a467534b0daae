//! `twinctl top`: a live screen, or so many below each other.

use crate::arguments::Top;
use crate::screen;
use crate::terminal::Terminal;
use anyhow::{bail, Result};
use control::log;
use control::socket::Connection;
use control::{Answer, Request, Told};
use std::path::Path;
use std::time::{Duration, Instant};

/// So often it is tried whether a daemon is there again that begins anew; and for how long.
const OFTEN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 200 });
const PATIENCE: Duration = Duration::from_secs(30);

/// Shows screens until a key is pressed, or as many as are wanted.
pub fn run(socket: &Path, mut connection: Connection, top: &Top) -> Result<()> {
    let terminal = if top.count.is_none() { Terminal::take()? } else { None };
    let mut ask = || ask(socket, &mut connection, &top.request, PATIENCE);
    let mut before = (Instant::now(), ask()?);
    let mut left = top.count.unwrap_or(if terminal.is_some() { u32::MAX } else { 1 });
    while left > 0 {
        std::thread::sleep(top.every);
        let after = (Instant::now(), ask()?);
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

/// What there is. A daemon that has hung up may be beginning anew, and at first it does not know all.
fn ask(socket: &Path, connection: &mut Connection, request: &Request, patience: Duration) -> Result<Told> {
    let end = Instant::now() + patience;
    let mut is_new = false;
    loop {
        let error = match connection.ask(request) {
            Ok(Answer::Ok(told)) => return Ok(told),
            Ok(Answer::Error(why)) if !is_new => bail!("{why}"),
            Ok(Answer::Error(why)) => anyhow::Error::msg(why),
            Err(error) => error,
        };
        if Instant::now() > end {
            return Err(error);
        }
        std::thread::sleep(OFTEN);
        if let Ok(next) = Connection::open(socket) {
            (*connection, is_new) = (next, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::request::Which;
    use control::socket::{listen, serve};

    #[test]
    fn the_daemon_may_begin_anew_while_top_runs() {
        let path = std::env::temp_dir().join(format!("twinctl-top-{}/one.sock", std::process::id()));
        let request = Request::Status { which: Which::default() };
        // One that goes at once.
        let first = listen(&path).unwrap();
        let goes = std::thread::spawn(move || drop((first.accept().unwrap(), first)));
        let mut connection = Connection::open(&path).unwrap();
        goes.join().unwrap();
        assert!(ask(&path, &mut connection, &request, Duration::ZERO).is_err());
        let begun = Instant::now();
        let next = listen(&path).unwrap();
        serve(next, move |_| match begun.elapsed() > Duration::from_millis(50) {
            true => Answer::Ok(Told::Twind { twins: Vec::new() }),
            false => Answer::Error("xenstore".into()),
        });
        let told = ask(&path, &mut connection, &request, PATIENCE).unwrap();
        assert_eq!(told, Told::Twind { twins: Vec::new() });
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
