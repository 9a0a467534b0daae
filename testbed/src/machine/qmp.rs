//! QEMU's control socket, as far as we need it: why the machine stopped, and commands of its monitor.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The guest's own end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    PowerOff,
    Reset,
}

/// Sends commands to the monitor of a running QEMU.
#[derive(Clone, Debug)]
pub struct Monitor {
    stream: Arc<OnceLock<UnixStream>>,
    answers: Arc<Mutex<Receiver<String>>>,
}

/// What names a command whose answer is wanted, and that answer.
const ASKED: &str = "\"id\": \"asked\"";

impl Monitor {
    /// Sends `command`, of the monitor that QEMU offers to people. What it answers is lost.
    pub fn send(&self, command: &str) -> Result<()> {
        self.write(command, "")
    }

    /// Sends `command` and gives the answer, as JSON has it, when it comes within `patience`.
    pub fn ask(&self, command: &str, patience: Duration) -> Result<String> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(command, &format!(",{ASKED}"))?;
        answers.recv_timeout(patience).with_context(|| format!("QEMU does not answer `{command}`"))
    }

    /// Has QEMU write `file` by `command`, and gives what it wrote, which is whole when QEMU has answered. What an
    /// earlier run left is gone before.
    pub fn dump(&self, command: &str, file: &Path) -> Result<Vec<u8>> {
        let _ = std::fs::remove_file(file);
        self.ask(command, Duration::from_secs(30))?;
        std::fs::read(file).with_context(|| format!("QEMU wrote no {}", file.display()))
    }

    fn write(&self, command: &str, id: &str) -> Result<()> {
        let mut stream = self.stream.get().context("QEMU has not connected yet")?;
        writeln!(stream, "{{\"execute\":\"human-monitor-command\",\"arguments\":{{\"command-line\":{command:?}}}{id}}}")
            .context("cannot reach QEMU's monitor")
    }
}

/// Waits for QEMU at `path`: tells when the guest shuts down, and takes commands.
pub fn listen(path: &Path) -> Result<(Receiver<Shutdown>, Monitor)> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let (answer, answers) = std::sync::mpsc::channel();
    let monitor = Monitor { stream: Arc::default(), answers: Arc::new(Mutex::new(answers)) };
    let connected = monitor.clone();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        // The greeting comes by itself; without this command QEMU sends no events.
        let _ = stream.write_all(b"{\"execute\":\"qmp_capabilities\"}\n");
        if let Ok(commands) = stream.try_clone() {
            let _ = connected.stream.set(commands);
        }
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(shutdown) = parse(&line) {
                let _ = sender.send(shutdown);
            } else if line.contains(ASKED) {
                let _ = answer.send(line);
            }
        }
    });
    Ok((receiver, monitor))
}

fn parse(event: &str) -> Option<Shutdown> {
    if !event.contains("\"SHUTDOWN\"") {
        return None;
    }
    if event.contains("\"guest-reset\"") {
        Some(Shutdown::Reset)
    } else if event.contains("\"guest-shutdown\"") {
        Some(Shutdown::PowerOff)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_and_power_off_are_told_apart() {
        let event = |reason: &str| {
            format!("{{\"event\": \"SHUTDOWN\", \"data\": {{\"guest\": true, \"reason\": \"{reason}\"}}}}")
        };
        assert_eq!(parse(&event("guest-reset")), Some(Shutdown::Reset));
        assert_eq!(parse(&event("guest-shutdown")), Some(Shutdown::PowerOff));
        assert_eq!(parse(&event("host-signal")), None);
        assert_eq!(parse("{\"event\": \"RESET\", \"data\": {\"reason\": \"guest-reset\"}}"), None);
    }
}
