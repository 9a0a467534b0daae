//! A process of the toolstack's that this daemon has started.

use super::children;
use super::lock::Clock;
use anyhow::{Context, Result};
use rustix::process::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One that is at work for so long is told of, and for so long is ended, unless it has less time. What it waits for
/// itself it gives up much earlier: ten seconds for each device. Only for xl's lock it waits without a limit, and that
/// is no work.
const SLOW: Duration = Duration::from_secs(30);
pub const LONGEST: Duration = Duration::from_secs(180);

/// A process, and where it writes what it says.
pub struct Running {
    /// Whose it is and what it does, for people.
    what: String,
    /// `None`: it was ended, and nobody waits for it.
    pub(super) child: Option<Child>,
    said: PathBuf,
    pub(super) clock: Clock,
    /// It is ended after so long.
    limit: Duration,
    is_told: bool,
}

impl Running {
    /// Starts it with these arguments, for this service. It writes into that file.
    pub fn start(service: &str, arguments: &[&str], said: &Path) -> Result<Self> {
        let mut xl = Command::new("xl");
        xl.args(arguments);
        Self::start_as(&format!("{service}: xl {}", arguments.join(" ")), xl, said)
    }

    pub(super) fn start_as(what: &str, mut command: Command, said: &Path) -> Result<Self> {
        let file = File::create(said).with_context(|| format!("cannot make {}", said.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {what}"))?;
        let (child, clock, limit) = (Some(child), Clock::new(Instant::now()), LONGEST);
        Ok(Self { what: what.into(), child, said: said.into(), clock, limit, is_told: false })
    }

    /// It is ended after so long.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How it has ended; an error is what it has said. `None`: it is at work.
    pub fn end(&mut self) -> Option<Result<(), String>> {
        let Some(child) = &mut self.child else { return Some(Err("it was ended".into())) };
        match child.try_wait() {
            Ok(None) => self.watch(),
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(_)) => Some(Err(self.told())),
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// What it waits for that others have, for people.
    pub fn waits_for_others(&self) -> Option<String> {
        self.clock.waits_for()
    }

    /// It is at work still; one that is so for too long is ended.
    fn watch(&mut self) -> Option<Result<(), String>> {
        let process = self.child.as_ref()?.id();
        let past = self.clock.past(process, |line| eprintln!("{}: {line}", self.what));
        if past >= SLOW && !std::mem::replace(&mut self.is_told, true) {
            eprintln!("{}: it is at work for {} s, and waits: {}", self.what, past.as_secs(), self.waits_for());
        }
        if past < self.limit {
            return None;
        }
        let why = format!("it was at work for {} s, and is ended; it waited: {}", past.as_secs(), self.waits_for());
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            // It may take any time to end, if it ever does.
            wait_for(&child);
        }
        Some(Err(why))
    }

    /// Where in Linux it waits, and what it has said.
    fn waits_for(&self) -> String {
        let place = self.child.as_ref().map(|child| format!("/proc/{}/wchan", child.id()));
        let place = place.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        format!("{place} {}", self.told())
    }

    /// What it has said, in a line.
    fn told(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default().trim().replace('\n', "; ")
    }

    /// Another one may write where it does; from now on what it says is in that file.
    pub fn say_elsewhere(&mut self, said: PathBuf) {
        match std::fs::rename(&self.said, &said) {
            Ok(()) => self.said = said,
            Err(error) => eprintln!("{}: what it says may be lost: {error}", self.what),
        }
    }

    /// Nobody wants to know any more what it has said.
    pub fn forget_said(&self) {
        let _ = std::fs::remove_file(&self.said);
    }
}

impl Drop for Running {
    /// It goes on without it.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if matches!(child.try_wait(), Ok(None)) {
                wait_for(&child);
            }
        }
    }
}

/// Somebody waits for it, so that nothing stays of it.
fn wait_for(child: &Child) {
    children::wait(Pid::from_child(child));
}
