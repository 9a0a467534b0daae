//! Whether all domains are being ended: the machine goes down, or whoever starts guests with it stops them.
//!
//! Debian's `xendomains` waits for names. A service's domain that had gone and came again at once would be waited for
//! until the script gives up.

use std::fmt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// systemd answers a question within so many seconds, or is not asked any longer. On a busy host it takes some.
const LIMIT_S: &str = "20";
/// What it is asked, and what it says then.
const SIGNS: [(&[&str], &str); 2] = [
    (&["is-system-running"], "stopping"),
    (&["show", "--property=ActiveState", "--value", "xendomains.service"], "deactivating"),
];
/// It says so, too, if it does not know, and if it is not what runs this machine.
const NOT_KNOWN: &str = "unknown";
const NOT_HERE: &str = "offline";
/// What `timeout` ends with: the limit has come; there is no such program, or it cannot be run.
const TOO_LATE: i32 = 124;
const NO_PROGRAM: [i32; 2] = [126, 127];

/// So long is waited for an answer at once. What comes later is heard when it is asked again.
pub const AT_ONCE: Duration = Duration::from_secs(2);
/// An answer to what was asked longer ago than this is none any more.
const STALE: Duration = Duration::from_secs(60);
/// So long nobody may know it until that counts as no.
const DOUBT: Duration = Duration::from_secs(60);

/// Why something is not made: all domains are being ended. When that is over it is wanted at once, as guests may be
/// started then.
#[derive(Debug)]
pub struct UnderWay;

impl fmt::Display for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all domains are being ended; its own is made when that is over")
    }
}

impl std::error::Error for UnderWay {}

/// Whether all domains are being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    /// Nobody has said it yet: it is to be asked again.
    Unknown,
}

/// Who asks, again and again. Nobody waits for an answer for long: one thread does.
pub struct Asker {
    ask: fn() -> Answer,
    /// When it was asked, and where the answer comes.
    asked: Option<(Instant, Receiver<Answer>)>,
    doubt: Doubt,
}

impl Asker {
    /// By this, which may take its time.
    const fn of(ask: fn() -> Answer) -> Self {
        Self { ask, asked: None, doubt: Doubt { since: None, last: None, is_over: false } }
    }

    /// Of systemd.
    pub const fn new() -> Self {
        Self::of(ask_systemd)
    }

    /// What is said within `patience`; that may be the answer to what was asked a moment before.
    pub fn ask(&mut self, patience: Duration) -> Answer {
        let answer = self.hear(patience);
        self.doubt.settle(answer, Instant::now())
    }

    fn hear(&mut self, patience: Duration) -> Answer {
        let asked = self.asked.take().filter(|(since, _)| since.elapsed() < STALE).or_else(|| self.begin());
        let Some((since, answer)) = asked else { return Answer::Unknown };
        match answer.recv_timeout(patience) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.asked = Some((since, answer));
                Answer::Unknown
            }
            Err(RecvTimeoutError::Disconnected) => Answer::Unknown,
        }
    }

    fn begin(&self) -> Option<(Instant, Receiver<Answer>)> {
        let (tell, answer) = mpsc::channel();
        let ask = self.ask;
        let work = move || {
            let _ = tell.send(ask());
        };
        std::thread::Builder::new().name("departure".into()).spawn(work).ok()?;
        Some((Instant::now(), answer))
    }
}

/// For how long nobody has known it.
struct Doubt {
    since: Option<Instant>,
    last: Option<Instant>,
    /// It was said that it counts as no.
    is_over: bool,
}

impl Doubt {
    /// What is not known for too long counts as no. Who has not asked for long begins anew.
    fn settle(&mut self, answer: Answer, now: Instant) -> Answer {
        if answer != Answer::Unknown || self.last.is_some_and(|last| now.saturating_duration_since(last) > DOUBT) {
            (self.since, self.is_over) = (None, false);
        }
        if answer != Answer::Unknown {
            return answer;
        }
        self.last = Some(now);
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < DOUBT {
            return Answer::Unknown;
        }
        if !std::mem::replace(&mut self.is_over, true) {
            let s = DOUBT.as_secs();
            eprintln!("tandemd: systemd has not said for {s} s whether all domains are being ended: that counts as no");
        }
        Answer::No
    }
}

/// Asks for who makes services' domains.
pub fn is_under_way() -> Answer {
    static ASKER: Mutex<Asker> = Mutex::new(Asker::new());
    ASKER.lock().unwrap_or_else(PoisonError::into_inner).ask(AT_ONCE)
}

/// Asks systemd. Without it nobody knows, and it is not so.
fn ask_systemd() -> Answer {
    answer_of(|question| {
        let mut ask = Command::new("timeout");
        ask.args([LIMIT_S, "systemctl"]).args(question).stdin(Stdio::null());
        let Ok(done) = ask.output() else { return (NO_PROGRAM.first().copied(), String::new()) };
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    })
}

/// `ask` gives how the program has ended, and what it has said. It ends with an error, and says something, if the
/// machine goes down.
fn answer_of(ask: impl Fn(&[&str]) -> (Option<i32>, String)) -> Answer {
    let mut answer = Answer::No;
    for (question, sign) in SIGNS {
        let (code, said) = ask(question);
        match (said.trim(), code) {
            (said, _) if said == sign => return Answer::Yes,
            (NOT_HERE, _) => return Answer::No,
            (_, Some(code)) if NO_PROGRAM.contains(&code) => return Answer::No,
            (NOT_KNOWN, _) | (_, None | Some(TOO_LATE)) => answer = Answer::Unknown,
            // It could not be reached.
            ("", Some(code)) if code != 0 => answer = Answer::Unknown,
            _ => {}
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(system: (i32, &str), guests: (i32, &str)) -> Answer {
        answer_of(|question| {
            let (code, said) = if question == SIGNS[0].0 { system } else { guests };
            (Some(code), format!("{said}\n"))
        })
    }

    #[test]
    fn all_go_with_the_machine_and_with_who_starts_them() {
        for (system, guests) in [("stopping", "inactive"), ("running", "deactivating"), ("stopping", "deactivating")] {
            assert_eq!(said((1, system), (0, guests)), Answer::Yes, "{system}, {guests}");
        }
        for (system, guests) in [("running", "active"), ("starting", "activating"), ("degraded", "inactive"), ("", "")]
        {
            assert_eq!(said((0, system), (0, guests)), Answer::No, "{system}, {guests}");
        }
    }

    #[test]
    fn that_nobody_answers_is_no_answer() {
        let late = (TOO_LATE, "");
        assert_eq!(said(late, late), Answer::Unknown);
        assert_eq!((said(late, (0, "active")), said((0, "running"), late)), (Answer::Unknown, Answer::Unknown));
        assert_eq!((said(late, (0, "deactivating")), said((1, "stopping"), late)), (Answer::Yes, Answer::Yes));
        // There is no bus, or it breaks down; systemctl knows no better.
        assert_eq!((said((1, ""), (1, "")), said((1, "unknown"), (0, "active"))), (Answer::Unknown, Answer::Unknown));
        assert_eq!(answer_of(|_| (None, String::new())), Answer::Unknown, "it was killed");
        // Without systemd nobody will ever know.
        assert_eq!((said((1, "offline"), (1, "")), said((127, ""), (127, ""))), (Answer::No, Answer::No));
    }

    #[test]
    fn an_answer_that_takes_long_is_heard_when_it_is_asked_again() {
        let mut asker = Asker::of(|| {
            std::thread::sleep(Duration::from_millis(300));
            Answer::Yes
        });
        assert_eq!(asker.ask(Duration::ZERO), Answer::Unknown);
        let end = Instant::now() + Duration::from_secs(30);
        while asker.ask(Duration::from_millis(10)) == Answer::Unknown {
            assert!(Instant::now() < end);
        }
        assert!(asker.asked.is_none() && asker.doubt.since.is_none());
    }

    #[test]
    fn what_is_not_known_for_long_counts_as_no() {
        let begin = Instant::now();
        let mut doubt = Doubt { since: None, last: None, is_over: false };
        let mut at = |s: u64, answer| doubt.settle(answer, begin + Duration::from_secs(s));
        assert_eq!(at(0, Answer::Unknown), Answer::Unknown);
        assert_eq!(at(40, Answer::Yes), Answer::Yes);
        for (s, expected) in [(50, Answer::Unknown), (100, Answer::Unknown), (110, Answer::No), (120, Answer::No)] {
            assert_eq!(at(s, Answer::Unknown), expected, "{s}");
        }
        assert_eq!(at(3600, Answer::Unknown), Answer::Unknown, "that is another time");
    }
}
