//! Lines of JSON on a Unix socket that only root may use.

use crate::request::Request;
use crate::told::Answer;
use anyhow::{bail, Context, Result};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
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
/// Who says nothing for so long is served no longer if all places are taken.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });
/// Nor is who does not take an answer within this time.
const UNTIL_TAKEN: Duration = Duration::from_secs(10);
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

/// An answer, and what is done when whoever asked has it, or will never have.
pub struct Reply {
    answer: Answer,
    then: Option<Box<dyn FnOnce()>>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, then: None }
    }
}

impl Reply {
    /// With something to be done.
    pub fn and(answer: Answer, then: impl FnOnce() + 'static) -> Self {
        Self { answer, then: Some(Box::new(then)) }
    }
}

/// Serves requests from now on, each connection on a thread of its own.
pub fn serve<R: Into<Reply>>(listener: UnixListener, handle: impl Fn(Request) -> R + Send + Sync + 'static) {
    let handle = Arc::new(handle);
    let refuse = |mut stream: UnixStream| {
        let why =
            Answer::Error(format!("{MAX_CLIENTS} others are connected: one that says nothing for a minute has to go"));
        // It fits into the socket; and whoever has hung up needs no answer.
        let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(format!("{}\n", why.line()).as_bytes()));
    };
    each(listener, refuse, move |stream, clients| {
        // Whoever hangs up has what he wanted.
        let _ = converse(stream, clients, handle.as_ref());
    });
}

/// Gives each connection to `work`, on a thread of its own, which may look how many there are; those that are too many
/// to `refuse`, which is not to take time.
pub fn each(
    listener: UnixListener,
    refuse: impl Fn(UnixStream) + Send + 'static,
    work: impl Fn(UnixStream, &AtomicUsize) + Send + Sync + 'static,
) {
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
                refuse(stream);
                continue;
            }
            let (work, clients) = (Arc::clone(&work), Arc::clone(&clients));
            std::thread::spawn(move || {
                work(stream, &clients);
                clients.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

fn converse<R: Into<Reply>>(
    mut stream: UnixStream,
    clients: &AtomicUsize,
    handle: &impl Fn(Request) -> R,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(UNTIL_TAKEN))?;
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        match lines.fill_buf() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock && clients.load(Ordering::Relaxed) < MAX_CLIENTS => {
                continue
            }
            Err(error) => return Err(error),
        }
        let line = match whole_line(&mut lines, MAX_REQUEST)? {
            Ok(line) => line,
            Err(None) => return Ok(()),
            // What follows cannot be told from the rest of it.
            Err(Some(why)) => return stream.write_all(format!("{}\n", Answer::Error(why).line()).as_bytes()),
        };
        let reply =
            Request::parse(&line).map_or_else(|why| Answer::Error(why).into(), |request| handle(request).into());
        let is_told = stream.write_all(format!("{}\n", reply.answer.line()).as_bytes());
        if let Some(then) = reply.then {
            then();
        }
        is_told?;
    }
}

/// The next line without its end; `None` at the end, and for one that is too long.
fn line(from: &mut impl BufRead, limit: u64) -> std::io::Result<Option<String>> {
    Ok(whole_line(from, limit)?.ok())
}

/// The next line without its end. The inner error: there is none, and why that is wrong, if it is.
fn whole_line(from: &mut impl BufRead, limit: u64) -> std::io::Result<Result<String, Option<String>>> {
    let mut bytes = Vec::new();
    from.take(limit).read_until(b'\n', &mut bytes)?;
    Ok(match bytes.pop() {
        Some(b'\n') => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Some(_) if bytes.len() as u64 + 1 == limit => {
            Err(Some(format!("not a request: a line has {limit} bytes at most")))
        }
        Some(_) => Err(Some("not a request: a line ends with a newline".into())),
        None => Err(None),
    })
}

/// A connection to a daemon.
pub struct Connection {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    /// Connects. Errors: in words; that nobody is there, or who may ask.
    pub fn open(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| {
            let (at, daemon) = (path.display(), path.file_stem().unwrap_or_default().to_string_lossy());
            match error.kind() {
                ErrorKind::PermissionDenied => anyhow::format_err!("only root may ask {at}"),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    anyhow::format_err!("nobody serves {at}: {daemon} does not run; `journalctl -u {daemon}` says why")
                }
                _ => anyhow::Error::new(error).context(format!("nobody serves {at}")),
            }
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { lines: BufReader::new(stream.try_clone()?), stream, path: path.into() })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer> {
        let path = self.path.display();
        let request = serde_json::to_string(request)?;
        // Who is refused is told why, and is not listened to.
        let sent = self.stream.write_all(format!("{request}\n").as_bytes());
        let said = line(&mut self.lines, MAX_ANSWER);
        if let Ok(Some(line)) = &said {
            return Answer::parse(line).map_err(anyhow::Error::msg);
        }
        sent.with_context(|| format!("{path} does not listen"))?;
        said.with_context(|| format!("{path} does not answer"))?;
        bail!("{path} has hung up")
    }

    /// Whether the daemon hangs up within this time, as one does that ends. It has nothing more to say.
    pub fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        self.stream.set_read_timeout(Some(limit))?;
        let end = self.lines.fill_buf().map(<[u8]>::is_empty);
        self.stream.set_read_timeout(Some(PATIENCE))?;
        match end {
            Ok(is_end) => Ok(is_end),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", self.path.display())),
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
    fn who_says_nothing_does_not_shut_others_out() {
        let path = place("silent");
        serve(listen(&path).unwrap(), |_| Answer::Error("served".into()));
        let request = Request::Load { which: Which::default() };
        let ask = |path: &Path| match Connection::open(path).unwrap().ask(&request).unwrap() {
            Answer::Error(words) => words,
            Answer::Ok(told) => panic!("{told:?}"),
        };
        let mut silent: Vec<Connection> = (0..MAX_CLIENTS).map(|_| Connection::open(&path).unwrap()).collect();
        let words = ask(&path);
        assert!(words.contains("16 others are connected"), "{words}");
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while ask(&path) != "served" {
            assert!(std::time::Instant::now() < until, "they have all places still");
            std::thread::sleep(Duration::from_millis(1));
        }
        // One place was enough, and who has one may be silent for longer.
        std::thread::sleep(2 * SILENCE);
        let left = silent.iter_mut().filter_map(|connection| connection.ask(&request).ok()).count();
        assert!(left > 0 && left < MAX_CLIENTS, "{left}");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_comes_after_an_answer_comes_when_it_is_there_or_nobody_waits_for_it() {
        let path = place("then");
        let (done, is_done) = std::sync::mpsc::channel();
        serve(listen(&path).unwrap(), move |_| {
            // Whoever looks meanwhile has not been answered.
            std::thread::sleep(Duration::from_millis(100));
            let done = done.clone();
            Reply::and(Answer::Error("soon".into()), move || done.send(()).unwrap())
        });
        let request = Request::Load { which: Which::default() };
        let mut connection = Connection::open(&path).unwrap();
        connection.stream.write_all(format!("{}\n", serde_json::to_string(&request).unwrap()).as_bytes()).unwrap();
        is_done.recv_timeout(Duration::from_secs(30)).unwrap();
        connection.stream.set_nonblocking(true).unwrap();
        assert!(line(&mut connection.lines, MAX_ANSWER).unwrap().is_some(), "it is there by then");
        let mut gone = Connection::open(&path).unwrap();
        gone.stream.write_all(format!("{}\n", serde_json::to_string(&request).unwrap()).as_bytes()).unwrap();
        drop(gone);
        is_done.recv_timeout(Duration::from_secs(30)).unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_whole_line_is_answered_and_ends_the_connection() {
        let path = place("endless");
        serve(listen(&path).unwrap(), |_| Answer::Error("served".into()));
        for (says, words) in [(vec![b'x'; 1 << 17], "at most"), (br#"{"command":"status"}"#.to_vec(), "newline")] {
            let mut connection = Connection::open(&path).unwrap();
            let _ = connection.stream.write_all(&says);
            let _ = connection.stream.shutdown(std::net::Shutdown::Write);
            let said = line(&mut connection.lines, MAX_ANSWER).unwrap().unwrap();
            assert!(matches!(Answer::parse(&said), Ok(Answer::Error(why)) if why.contains(words)), "{said}");
            // What was not read resets the connection, or it ends.
            assert!(!matches!(line(&mut connection.lines, MAX_ANSWER), Ok(Some(_))));
        }
        // Who says nothing is told nothing.
        let mut connection = Connection::open(&path).unwrap();
        connection.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(line(&mut connection.lines, MAX_ANSWER).unwrap(), None);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_a_dead_one_left_is_no_hindrance() {
        let path = place("left");
        let said = || Connection::open(&path).err().unwrap().to_string();
        assert!(said().contains("one does not run"), "nothing is there");
        drop(listen(&path).unwrap());
        assert!(path.exists() && said().contains("`journalctl -u one`"));
        drop(listen(&path).unwrap());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
