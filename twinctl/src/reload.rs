//! Waiting for the end of a reload: the daemon answers, and begins anew. Whoever asks it next is not to find that
//! nobody is there.

use anyhow::{bail, ensure, Context, Result};
use control::request::Which;
use control::socket::Connection;
use control::{Answer, Request, Told};
use std::path::Path;
use std::time::{Duration, Instant};

/// So often it is tried whether the next one is there.
const OFTEN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 100 });
/// So long the next one may take. It waits for what the one before has asked the toolstack for.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 60_000 });
/// So long the one that has answered has to go: only if it cannot be started again it stays.
const UNTIL_GONE: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });

/// What the next daemon tells of all that there is. `connection`: where the one before has answered. Errors: it has
/// stayed; the next one does not answer.
pub fn wait(socket: &Path, mut connection: Connection) -> Result<Told> {
    ensure!(connection.ends_within(UNTIL_GONE)?, "it has not begun anew: its log says why (`journalctl -u tandemd`)");
    let end = Instant::now() + PATIENCE;
    loop {
        match ask(socket) {
            Err(error) if Instant::now() > end => {
                return Err(error
                    .context("it has begun anew, and does not answer yet: `journalctl -u tandemd` says how it goes"))
            }
            Err(_) => std::thread::sleep(OFTEN),
            told => return told,
        }
    }
}

fn ask(socket: &Path) -> Result<Told> {
    let answer = Connection::open(socket)?.ask(&Request::Status { which: Which::default() });
    match answer.context("how it goes")? {
        Answer::Ok(told) => Ok(told),
        Answer::Error(why) => bail!("{why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::socket::{listen, serve};
    use control::told::Service;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("twinctl-reload-{}-{name}/one.sock", std::process::id()))
    }

    fn told(name: &str) -> Answer {
        Answer::Ok(Told::Tandemd { services: vec![Service { name: name.into(), ..Service::default() }] })
    }

    /// A daemon that answers once and then does this, with the connection still there.
    fn old(listener: UnixListener, then: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            stream.write_all(format!("{}\n", told("old").line()).as_bytes()).unwrap();
            drop(listener);
            then();
        })
    }

    fn reload(path: &Path) -> Result<Told> {
        let mut connection = Connection::open(path)?;
        connection.ask(&Request::Reload { which: Which::default() })?;
        wait(path, connection)
    }

    #[test]
    fn a_reload_is_over_when_the_next_daemon_answers() {
        let path = place("over");
        let first = old(listen(&path).unwrap(), || {});
        let next = path.clone();
        let begins = std::thread::spawn(move || {
            first.join().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let begun = Instant::now();
            let is_there = move || begun.elapsed() > Duration::from_millis(50);
            // At first it has no connection to xenstore.
            serve(
                listen(&next).unwrap(),
                move |_| if is_there() { told("new") } else { Answer::Error("xenstore".into()) },
            );
        });
        assert_eq!(Answer::Ok(reload(&path).unwrap()), told("new"));
        begins.join().unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn one_that_stays_or_never_comes_is_said() {
        let path = place("stays");
        let stays = old(listen(&path).unwrap(), || std::thread::sleep(10 * UNTIL_GONE));
        assert!(reload(&path).unwrap_err().to_string().contains("has not begun anew"));
        stays.join().unwrap();
        let goes = old(listen(&path).unwrap(), || {});
        let error = reload(&path).unwrap_err().to_string();
        assert!(error.contains("does not answer yet"), "{error}");
        goes.join().unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
