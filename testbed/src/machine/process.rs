//! A running QEMU: its serial console line by line, its time limit, how it ended.

use super::{commands, qmp, stuck, Hypervisor, Machine};
use crate::host;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a machine's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Powered off by the guest (ACPI).
    PowerOff,
    /// Reset by the guest.
    Reset,
    /// We stopped it: the time was up.
    TimeOut,
    /// We stopped it: what was waited for had been seen.
    Stopped,
    /// QEMU itself gave up, with what it said.
    Broken(String),
}

/// The result of a run.
pub struct Outcome {
    /// Why it ended.
    pub ending: Ending,
    /// The serial console, line by line, without line ends.
    pub lines: Vec<String>,
    /// The file that has the console as it came.
    pub log: PathBuf,
}

impl Outcome {
    /// The first line with `needle`.
    pub fn find(&self, needle: &str) -> Option<&str> {
        self.lines.iter().map(String::as_str).find(|l| l.contains(needle))
    }

    /// What the guest reported after "TANDEM: `subject` ".
    pub fn report(&self, subject: &str) -> Option<&str> {
        let key = format!("TANDEM: {subject} ");
        self.lines.iter().find_map(|l| l.split_once(key.as_str()).map(|(_, rest)| rest.trim()))
    }
}

/// The value of `key=value` in a report.
pub fn field<'a>(report: &'a str, key: &str) -> Option<&'a str> {
    report.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
}

/// Names of the machines at work. Their logs and sockets have these names.
static AT_WORK: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The right to use a name, until it is dropped.
struct Name(String);

impl Name {
    fn take(name: &str) -> Result<Self> {
        let is_new = AT_WORK.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into());
        ensure!(is_new, "another machine named {name} is at work");
        Ok(Self(name.into()))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        AT_WORK.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// A QEMU at work.
pub struct Running {
    _name: Name,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    ending: Receiver<qmp::Shutdown>,
    monitor: qmp::Monitor,
    /// The hypervisor, if there is one.
    image: Option<PathBuf>,
    started: Instant,
    limit: Duration,
    log: PathBuf,
    errors: PathBuf,
    /// Who writes that file, if that is not QEMU itself.
    sieve: Option<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl Running {
    pub(super) fn start(machine: &Machine) -> Result<Self> {
        let name = Name::take(&machine.name)?;
        let log = host::target("logs")?.join(format!("{}.log", machine.name));
        let errors = log.with_extension("qemu");
        let control = std::env::temp_dir().join(format!("tandem-{}-{}.qmp", std::process::id(), machine.name));
        let (ending, monitor) = qmp::listen(&control)?;
        let mut command = machine.qemu.command()?;
        command.args(machine.arguments()?);
        command.arg("-qmp").arg(format!("unix:{},server=off", control.display()));
        std::fs::write(log.with_extension("cmd"), format!("{command:?}\n"))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if machine.tells_misuse { Stdio::piped() } else { File::create(&errors)?.into() })
            .spawn()
            .context("cannot start QEMU")?;
        let sieve = match child.stderr.take() {
            Some(said) => Some(commands::keep(said, File::create(&errors)?)),
            None => None,
        };
        let serial = child.stdout.take().context("QEMU has no output")?;
        let lines = read_lines(serial, File::create(&log)?);
        Ok(Self {
            _name: name,
            child,
            lines,
            seen: Vec::new(),
            ending,
            monitor,
            image: match &machine.hypervisor {
                Hypervisor::Elf(path) => Some(path.clone()),
                Hypervisor::None => None,
            },
            started: Instant::now(),
            limit: Duration::from_secs(machine.timeout_s),
            log,
            errors,
            sieve,
            sockets: vec![control],
        })
    }

    /// QEMU's serial input, for a person at the console.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The file with what QEMU itself says.
    pub fn errors(&self) -> &Path {
        &self.errors
    }

    /// QEMU's monitor, for what happens to a machine from outside.
    pub fn monitor(&self) -> qmp::Monitor {
        self.monitor.clone()
    }

    /// Runs to the end, or until `stop` says that a line is what it waited for.
    pub fn finish(self, stop: impl FnMut(&str) -> bool) -> Result<Outcome> {
        self.finish_unless_silent(Duration::MAX, stop)
    }

    /// As [`Running::finish`], but a machine that says nothing for `patience` does not come to an end either.
    pub fn finish_unless_silent(mut self, patience: Duration, mut stop: impl FnMut(&str) -> bool) -> Result<Outcome> {
        let mut heard = Instant::now();
        let ending = loop {
            let left = self.limit.saturating_sub(self.started.elapsed());
            if left.is_zero() || heard.elapsed() > patience {
                self.tell_places();
                break Ending::TimeOut;
            }
            match self.lines.recv_timeout(left.min(Duration::from_millis(500))) {
                Ok(line) => {
                    heard = Instant::now();
                    let stopping = stop(&line);
                    self.seen.push(line);
                    if stopping {
                        break Ending::Stopped;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break self.ended()?,
            }
        };
        self.end();
        Ok(Outcome { ending, lines: std::mem::take(&mut self.seen), log: self.log.clone() })
    }

    /// Puts where the CPUs are behind what the machine said, and into its log.
    fn tell_places(&mut self) {
        let places = stuck::places(&self.monitor, self.image.as_deref());
        let places = places.unwrap_or_else(|why| vec![format!("where the CPUs are is not known: {why:#}")]);
        if let Ok(mut log) = File::options().append(true).open(&self.log) {
            let _ = writeln!(log, "\nNo end came.\n{}", places.join("\n"));
        }
        self.seen.extend(places.iter().map(|place| format!("  {place}")));
    }

    /// QEMU closed its console: asks how it ended.
    fn ended(&mut self) -> Result<Ending> {
        let status = self.child.wait()?;
        Ok(match self.ending.recv_timeout(Duration::from_secs(2)) {
            Ok(qmp::Shutdown::PowerOff) => Ending::PowerOff,
            Ok(qmp::Shutdown::Reset) => Ending::Reset,
            _ => {
                let _ = self.sieve.take().map(JoinHandle::join);
                let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
                Ending::Broken(format!("{status}: {}", said.trim()))
            }
        })
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Splits the console into lines in a thread of its own, and keeps all of it in the log.
fn read_lines(mut serial: impl Read + Send + 'static, mut log: File) -> Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut pending = Vec::new();
        let mut reports = Reports::default();
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = serial.read(&mut buffer) {
            let _ = log.write_all(&buffer[..n]);
            pending.extend_from_slice(&buffer[..n]);
            while let Some(end) = pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).filter(|b| *b != b'\r' && *b != b'\n').collect();
                for line in reports.mended(String::from_utf8_lossy(&line).into_owned()) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            }
        }
        let rest = String::from_utf8_lossy(&pending).into_owned();
        for line in reports.mended(rest).into_iter().chain(reports.begun).filter(|line| !line.is_empty()) {
            let _ = sender.send(line);
        }
    });
    receiver
}

/// A kernel and the hypervisor write their messages to the console at once, also into the middle of a program's line:
/// puts reports that were broken in two by one together again.
#[derive(Default)]
struct Reports {
    begun: Option<String>,
}

impl Reports {
    /// The lines that are known to be whole when `line` has come.
    fn mended(&mut self, mut line: String) -> Vec<String> {
        let is_message =
            |text: &str| is_kernel_message(text) || text.starts_with("(TDM) ") || text.starts_with("(XEN) ");
        let mut whole = Vec::new();
        if let Some(begun) = self.begun.take() {
            if is_message(&line) {
                self.begun = Some(begun);
                return vec![line];
            }
            // Another report: what has begun was whole, and quoted a message.
            if line.contains("TANDEM: ") {
                whole.push(begun);
            } else {
                line.insert_str(0, &begun);
            }
        }
        let report = line.find("TANDEM: ");
        let message = report
            .and_then(|from| line.match_indices(['[', '(']).find(|(at, _)| *at > from && is_message(&line[*at..])));
        if let Some((at, _)) = message {
            whole.push(line.split_off(at));
            self.begun = Some(line);
        } else {
            whole.push(line);
        }
        whole
    }
}

/// Whether this starts with the time as Linux prints it, `[   12.345678] `.
fn is_kernel_message(text: &str) -> bool {
    let time =
        text.strip_prefix('[').and_then(|rest| rest.split_once("] ")).and_then(|(time, _)| time.trim().split_once('.'));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    time.is_some_and(|(seconds, fraction)| digits(seconds) && fraction.len() == 6 && digits(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_in_the_middle_of_a_line() {
        let outcome = Outcome {
            ending: Ending::PowerOff,
            lines: vec!["(XEN) noise".into(), "[ 1.0] TANDEM: cpus nproc=2 online=0-1".into()],
            log: PathBuf::new(),
        };
        let report = outcome.report("cpus").unwrap();
        assert_eq!(field(report, "nproc"), Some("2"));
        assert_eq!(field(report, "online"), Some("0-1"));
        assert_eq!(field(report, "pro"), None);
        assert!(outcome.report("cpu").is_none());
    }

    #[test]
    fn two_machines_cannot_have_one_name_at_once() {
        let first = Name::take("one-name").unwrap();
        assert!(Name::take("one-name").is_err());
        assert!(Name::take("another-name").is_ok());
        drop(first);
        assert!(Name::take("one-name").is_ok());
    }

    #[test]
    fn reports_broken_by_messages_are_put_together() {
        let mended = |text: &str| {
            let mut reports = Reports::default();
            let mut lines: Vec<String> = text.lines().flat_map(|line| reports.mended(line.into())).collect();
            lines.extend(reports.begun);
            lines
        };
        assert_eq!(
            mended("TANDEM: show bob [   34.524476] hrtimer: slow\n[   34.6] x\ntcp ok [1]\nend"),
            ["[   34.524476] hrtimer: slow", "TANDEM: show bob [   34.6] x", "tcp ok [1]", "end"],
            "a time has six digits behind the point"
        );
        assert_eq!(
            mended("TANDEM: show bob [   34.524476] hrtimer: slow\n[   34.600000] x\n(TDM) y\ntcp ok [1]\nend"),
            ["[   34.524476] hrtimer: slow", "[   34.600000] x", "(TDM) y", "TANDEM: show bob tcp ok [1]", "end"]
        );
        assert_eq!(
            mended("TANDEM: net (TDM) y\nok [1.000000] z\n (a)"),
            ["(TDM) y", "[1.000000] z", "TANDEM: net ok  (a)"]
        );
        let whole = "[    1.000000] TANDEM: cpus [2] (3)\nlogin [    2.000000] x\n(TDM) TANDEM: no";
        assert_eq!(mended(whole), whole.lines().collect::<Vec<_>>());
        // One that quotes a message takes nothing from the next.
        assert_eq!(
            mended("TANDEM: check FAIL a: [    1.000000] x\nTANDEM: check ok b"),
            ["[    1.000000] x", "TANDEM: check FAIL a: ", "TANDEM: check ok b"]
        );
    }

    #[test]
    fn lines_are_split_and_an_unfinished_last_one_is_kept() {
        let path = std::env::temp_dir().join(format!("tandem-lines-{}", std::process::id()));
        let lines = read_lines(&b"one\r\ntwo\nthree"[..], File::create(&path).unwrap());
        assert_eq!(lines.iter().collect::<Vec<_>>(), ["one", "two", "three"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"one\r\ntwo\nthree");
        std::fs::remove_file(path).unwrap();
    }
}
