//! QEMU's control socket, as far as we need it: why the machine stopped, and commands of its monitor.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};

/// The guest's own end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    PowerOff,
    Reset,
}

/// Sends commands to the monitor of a running QEMU.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Arc<OnceLock<UnixStream>>);

impl Monitor {
    /// Sends `command`, of the monitor that QEMU offers to people. What it answers is lost.
    pub fn send(&self, command: &str) -> Result<()> {
        let mut stream = self.0.get().context("QEMU has not connected yet")?;
        writeln!(stream, "{{\"execute\":\"human-monitor-command\",\"arguments\":{{\"command-line\":{command:?}}}}}")
            .context("cannot reach QEMU's monitor")
    }
}

/// Waits for QEMU at `path`: tells when the guest shuts down, and takes commands.
pub fn listen(path: &Path) -> Result<(Receiver<Shutdown>, Monitor)> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let monitor = Monitor::default();
    let connected = monitor.clone();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        // The greeting comes by itself; without this command QEMU sends no events.
        let _ = stream.write_all(b"{\"execute\":\"qmp_capabilities\"}\n");
        if let Ok(commands) = stream.try_clone() {
            let _ = connected.0.set(commands);
        }
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(shutdown) = parse(&line) {
                let _ = sender.send(shutdown);
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
