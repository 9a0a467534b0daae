//! Lines of JSON on a Unix socket that only root may use.

use crate::request::Request;
use crate::told::Answer;
use anyhow::{bail, Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A request's bytes at most.
const MAX_REQUEST: u64 = 1 << 16;
/// An answer's.
const MAX_ANSWER: u64 = 1 << 22;
/// Who is served at one time at most.
const MAX_CLIENTS: usize = 16;
/// Nobody waits longer for an answer; loading a twin on a busy machine takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Listens at a path, where nobody else does. What one who was killed left there is removed.
pub fn listen(path: &Path) -> Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    if UnixStream::connect(path).is_ok() {
        bail!("another one serves {}: twinctl tells it what is wanted", path.display());
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot protect {}", path.display()))?;
    Ok(listener)
}

/// Serves requests from now on, each connection on a thread of its own.
pub fn serve(listener: UnixListener, handle: impl Fn(Request) -> Answer + Send + Sync + 'static) {
    let handle = Arc::new(handle);
    each(listener, move |stream| {
        // Whoever hangs up has what he wanted.
        let _ = converse(stream, handle.as_ref());
    });
}

/// Gives each connection to `work`, on a thread of its own. Those that are too many are closed.
pub fn each(listener: UnixListener, work: impl Fn(UnixStream) + Send + Sync + 'static) {
    let (work, clients) = (Arc::new(work), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // No more files: others go.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
                clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (work, clients) = (Arc::clone(&work), Arc::clone(&clients));
            std::thread::spawn(move || {
                work(stream);
                clients.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

fn converse(mut stream: UnixStream, handle: &impl Fn(Request) -> Answer) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        let Some(line) = line(&mut lines, MAX_REQUEST)? else { return Ok(()) };
        let answer = Request::parse(&line).map_or_else(Answer::Error, handle);
        stream.write_all(format!("{}\n", answer.line()).as_bytes())?;
    }
}

/// The next line without its end; `None` at the end, and for one that is too long.
fn line(from: &mut impl BufRead, limit: u64) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    from.take(limit).read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// A connection to a daemon.
pub struct Connection {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    /// Connects. Errors: in words; that nobody is there.
    pub fn open(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("nobody serves {}", path.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { lines: BufReader::new(stream.try_clone()?), stream, path: path.into() })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer> {
        let path = self.path.display();
        let request = serde_json::to_string(request)?;
        self.stream.write_all(format!("{request}\n").as_bytes()).with_context(|| format!("{path} does not listen"))?;
        match line(&mut self.lines, MAX_ANSWER).with_context(|| format!("{path} does not answer"))? {
            Some(line) => Answer::parse(&line).map_err(anyhow::Error::msg),
            None => bail!("{path} has hung up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Which;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("control-{}-{name}/one.sock", std::process::id()))
    }

    #[test]
    fn who_asks_is_answered_and_nonsense_too() {
        let path = place("asks");
        serve(listen(&path).unwrap(), |request| Answer::Error(format!("no {request:?}")));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut connection = Connection::open(&path).unwrap();
        for _ in 0..2 {
            let answer = connection.ask(&Request::Load { which: Which::default() }).unwrap();
            assert!(matches!(answer, Answer::Error(words) if words.starts_with("no Load")));
        }
        connection.stream.write_all(b"fly\n\n").unwrap();
        for _ in 0..2 {
            let said = line(&mut connection.lines, MAX_ANSWER).unwrap().unwrap();
            assert!(matches!(Answer::parse(&said), Ok(Answer::Error(words)) if words.contains("not a request")));
        }
        assert!(listen(&path).unwrap_err().to_string().contains("another one serves"));
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn an_endless_line_ends_the_connection() {
        let path = place("endless");
        serve(listen(&path).unwrap(), |_| Answer::Error(String::new()));
        let mut connection = Connection::open(&path).unwrap();
        let long = vec![b'x'; 1 << 17];
        let _ = connection.stream.write_all(&long);
        // What was not read resets the connection, or it ends.
        assert!(!matches!(line(&mut connection.lines, MAX_ANSWER), Ok(Some(_))));
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_a_dead_one_left_is_no_hindrance() {
        let path = place("left");
        drop(listen(&path).unwrap());
        assert!(path.exists() && Connection::open(&path).is_err());
        drop(listen(&path).unwrap());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
