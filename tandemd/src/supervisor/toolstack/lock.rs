//! xl's lock, and how long a process is at work that may wait for it.
//!
//! Who creates a domain, restores one or takes one in from another machine has that lock from the beginning to the end,
//! be it a stream of gigabytes or the menu of a bootloader. Anybody may do that, so an xl that only waits for the lock
//! has done nothing yet, and has as much time as it takes. The lock is a record lock (`fcntl`) on a file. Linux tells
//! in /proc/locks who waits for one, below who has it (`fs/locks.c`, `lock_get_status`).

use super::children;
use std::time::{Duration, Instant};

const LOCKS: &str = "/proc/locks";
/// So often is looked whether somebody waits.
const EACH: Duration = Duration::from_secs(1);
/// Who waits for no longer than this is not worth a word: it takes about so long to create a domain.
const TOLD: Duration = Duration::from_secs(5);
/// So much is told of a command line.
const LONGEST_LINE: usize = 160;
/// A process of xl's has no more ancestors up to the one that was started.
const GENERATIONS: u32 = 8;

/// A process that waits for a record lock, and the one that has it, as far as Linux tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    process: u32,
    held_by: Option<u32>,
}

/// Those who wait to write, by what Linux tells of all locks. What it may tell some day in other words counts for
/// nothing.
///
/// `5: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF`, and below it with the same number
/// `5: -> POSIX  ADVISORY  WRITE 1240 08:01:5678 0 EOF`.
fn waiters(locks: &str) -> Vec<Waiter> {
    let (mut waiters, mut held) = (Vec::new(), None);
    for line in locks.lines() {
        let mut words = line.split_whitespace();
        let Some(number) = words.next() else { continue };
        let mut words = words.peekable();
        let waits = words.next_if_eq(&"->").is_some();
        let (kind, _, way, process) = (words.next(), words.next(), words.next(), words.next());
        // A lock that belongs to an open file has -1 in place of a process.
        let process = process.and_then(|process| process.parse().ok());
        if !waits {
            held = Some((number, process));
            continue;
        }
        if let (Some("POSIX"), Some("WRITE"), Some(process)) = (kind, way, process) {
            let held_by = held.filter(|(of, _)| *of == number).and_then(|(_, process)| process);
            waiters.push(Waiter { process, held_by });
        }
    }
    waiters
}

/// The one for which this process waits, or an xl that it has started.
fn waits(process: u32) -> Option<Waiter> {
    let locks = std::fs::read_to_string(LOCKS).ok()?;
    waiters(&locks).into_iter().find(|waiter| waiter.process == process || is_xl_of(waiter.process, process))
}

/// Whether this is an xl that comes from that process. Others, as hotplug scripts, have locks of their own.
fn is_xl_of(process: u32, from: u32) -> bool {
    let is_xl = std::fs::read(format!("/proc/{process}/comm")).is_ok_and(|name| name == b"xl\n");
    let mut ancestor = Some(process).filter(|_| is_xl);
    for _ in 0..GENERATIONS {
        ancestor = ancestor.and_then(children::parent_of);
        if ancestor == Some(from) {
            return true;
        }
    }
    false
}

/// The process that has it, for people. Its arguments may be anything.
fn describe(process: Option<u32>) -> String {
    let Some(process) = process else { return "somebody has".into() };
    let arguments = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    match legible(&arguments) {
        line if line.is_empty() => format!("process {process} has"),
        line => format!("process {process} has (`{line}`)"),
    }
}

/// Arguments that end with a 0 each, in one line.
fn legible(arguments: &[u8]) -> String {
    let all = String::from_utf8_lossy(arguments);
    let all = all.trim_end_matches('\0').replace('\0', " ");
    let is_long = all.chars().count() > LONGEST_LINE;
    let line = all.chars().take(LONGEST_LINE).map(|c| if c.is_control() || c == '`' { '?' } else { c });
    line.chain(is_long.then_some('…')).collect()
}

/// A wait for the lock.
#[derive(Debug)]
struct Wait {
    from: Instant,
    /// Who has it, for people.
    held_by: String,
    is_told: bool,
}

/// How long a process is at work. While it waits for the lock it is not.
#[derive(Debug)]
pub struct Clock {
    pub(super) since: Instant,
    looked: Instant,
    wait: Option<Wait>,
}

impl Clock {
    pub fn new(since: Instant) -> Self {
        Self { since, looked: since, wait: None }
    }

    /// For how long this process is at work by now. It may be called seldom: a look is taken before anybody hears that
    /// it was for long. `say` gets what there is to say to people.
    pub fn past(&mut self, process: u32, say: impl FnMut(String)) -> Duration {
        let now = Instant::now();
        if now.saturating_duration_since(self.looked) >= EACH {
            self.looked = now;
            let held_by = waits(process).map(|waiter| describe(waiter.held_by));
            self.see(held_by, now, say);
        }
        now.saturating_duration_since(self.since)
    }

    /// It waits for the lock, which somebody has; or does not.
    fn see(&mut self, held_by: Option<String>, now: Instant, mut say: impl FnMut(String)) {
        let Some(held_by) = held_by else {
            if let Some(wait) = self.wait.take().filter(|wait| wait.is_told) {
                say(format!("it has waited for xl's lock for {} s, and goes on", (now - wait.from).as_secs()));
            }
            return;
        };
        self.since = now;
        let wait = self.wait.get_or_insert(Wait { from: now, held_by: String::new(), is_told: false });
        wait.held_by = held_by;
        if now - wait.from >= TOLD && !std::mem::replace(&mut wait.is_told, true) {
            say(format!("it waits for xl's lock, which {}, for as long as that takes", wait.held_by));
        }
    }

    /// What it waits for, for people, if that is worth a word.
    pub fn waits_for(&self) -> Option<String> {
        let wait = self.wait.as_ref().filter(|wait| wait.is_told)?;
        Some(format!("xl waits for its lock, which {}", wait.held_by))
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::Running;
    use super::super::LONGEST;
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{fcntl_lock, FlockOperation};
    use std::fs::File;
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn who_waits_for_a_record_lock_is_told_with_who_has_it() {
        let locks = "1: FLOCK  ADVISORY  WRITE 700 00:18:1024 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 701 00:18:1024 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF\n\
                     2: -> POSIX  ADVISORY  WRITE 1240 08:01:5678 0 EOF\n\
                     2:  -> POSIX  ADVISORY  WRITE 1241 08:01:5678 0 EOF\n\
                     2: -> POSIX  ADVISORY  READ  1242 08:01:5678 0 EOF\n\
                     3: OFDLCK ADVISORY  WRITE -1 08:01:5679 0 EOF\n\
                     3: -> POSIX ADVISORY WRITE 1243 08:01:5679 0 EOF\n\
                     4: -> POSIX  ADVISORY  WRITE 1244\n";
        let waiter = |process, held_by| Waiter { process, held_by };
        let by = Some(1234);
        assert_eq!(waiters(locks), [waiter(1240, by), waiter(1241, by), waiter(1243, None), waiter(1244, None)]);
    }

    #[test]
    fn lines_that_are_not_understood_count_for_nothing() {
        for line in ["", "\n\n", "->", "5:", "5: ->", "5: -> POSIX", "5: -> POSIX  ADVISORY  WRITE", "-> -> -> ->"] {
            assert_eq!(waiters(line), [], "{line}");
        }
        for process in ["-1", "0x10", "99999999999", "xl"] {
            assert_eq!(waiters(&format!("5: -> POSIX  ADVISORY  WRITE {process} 08:01:5678 0 EOF")), []);
        }
    }

    #[test]
    fn a_command_line_is_told_in_one_line_whatever_it_says() {
        assert_eq!(legible(b"xl\0restore\0/save/u1\0"), "xl restore /save/u1");
        assert_eq!(legible(b"xl\0a\nnet: dd: parked\x1b[2J`\xff\0"), "xl a?net: dd: parked?[2J?\u{fffd}");
        assert_eq!(legible(b""), "");
        let long = legible(&[b'x'; 5000]);
        assert!(long.chars().count() == LONGEST_LINE + 1 && long.ends_with('…'), "{long}");
        assert_eq!(describe(None), "somebody has");
    }

    #[test]
    fn a_wait_is_said_once_and_does_not_count() {
        let began = Instant::now();
        let (mut clock, mut said) = (Clock::new(began), Vec::new());
        let at = |s| began + Duration::from_secs(s);
        clock.see(Some("process 7 has".into()), at(1), |line| said.push(line));
        assert_eq!((clock.since, clock.waits_for()), (at(1), None), "it is usual that it waits for a moment");
        for s in 2..1000 {
            clock.see(Some("process 7 has".into()), at(s), |line| said.push(line));
            assert_eq!(clock.since, at(s));
        }
        assert!(clock.waits_for().is_some_and(|what| what.ends_with("which process 7 has")));
        clock.see(None, at(1000), |line| said.push(line));
        clock.see(None, at(1100), |line| said.push(line));
        assert_eq!((clock.since, clock.waits_for()), (at(999), None));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("which process 7 has") && said[1].contains("for 999 s"), "{said:?}");
    }

    /// What file the program locks that a test starts, and how it is called.
    const FILE: &str = "TANDEMD_TEST_LOCK";
    const NAME: &str = "TANDEMD_TEST_NAME";

    /// Such a program.
    #[test]
    fn a_program_that_locks() {
        let Some(path) = std::env::var_os(FILE) else { return };
        std::fs::write("/proc/self/comm", std::env::var(NAME).unwrap()).unwrap();
        fcntl_lock(File::options().write(true).open(path).unwrap(), FlockOperation::LockExclusive).unwrap();
    }

    /// Starts it, by a shell or not, and waits until it waits.
    fn one_that_waits(shell: bool, name: &str, file: &Path) -> Running {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(if shell { "sh".as_ref() } else { program.as_os_str() });
        if shell {
            command.args(["-c", "\"$0\" \"$@\"; exit $?"]).arg(&program);
        }
        command.args(["--exact", "supervisor::toolstack::lock::tests::a_program_that_locks"]);
        command.env(FILE, file).env(NAME, name);
        let mut running = Running::start_as("xl", command, &file.with_extension(format!("{shell}-{name}"))).unwrap();
        let (began, ours) = (Instant::now(), Some(std::process::id()));
        while !waiters(&std::fs::read_to_string(LOCKS).unwrap()).iter().any(|waiter| waiter.held_by == ours) {
            assert_eq!(running.end(), None);
            assert!(began.elapsed() < Duration::from_secs(60), "it does not wait");
            std::thread::sleep(Duration::from_millis(1));
        }
        running.clock = Clock::new(began - LONGEST);
        running
    }

    #[test]
    fn one_that_only_waits_for_the_lock_is_not_ended() {
        let place = std::env::temp_dir().join(format!("tandemd-lock-{}", std::process::id()));
        let file = File::create(&place).unwrap();
        for (shell, name, is_xl) in [(false, "tandemd", true), (true, "xl", true), (true, "lvs", false)] {
            fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
            let mut running = one_that_waits(shell, name, &place);
            let ended = running.end();
            if is_xl {
                assert_eq!(ended, None, "it has done nothing yet");
                assert!(running.clock.since.elapsed() < LONGEST);
            } else {
                assert!(ended.is_some_and(|ended| ended.unwrap_err().contains("is ended")), "its locks are its own");
            }
            fcntl_lock(&file, FlockOperation::Unlock).unwrap();
            let mut ended = None;
            while is_xl && ended.is_none() {
                std::thread::sleep(Duration::from_millis(1));
                ended = running.end();
            }
            assert!(ended.is_none_or(|ended| ended.is_ok()), "it goes on when it has the lock");
            running.forget_said();
        }
        std::fs::remove_file(place).unwrap();
    }

    proptest! {
        #[test]
        fn nothing_that_may_stand_there_is_too_much(locks in any::<String>(), line in "[0-9:>\\- POSIXWRTEA\n]{0,80}") {
            waiters(&locks);
            waiters(&line);
        }
    }
}
