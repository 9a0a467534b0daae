//! Asks a driver domain's twind how it goes, beside all else: who waits for another domain's answer looks after nobody
//! meanwhile.
//!
//! It is asked now and then, and at once when its card comes or goes. What it says is believed as far as it concerns
//! itself: that it is there, and how often its twin was aborted.

use super::look::{TwinSeen, Twind};
use crate::control::{hear_twind, load_twin, Heard};
use anyhow::{Context, Result};
use control::told::{self, State};
use control::Mode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So long it has for an answer.
const LIMIT: Duration = Duration::from_secs(3);

/// Whom to ask: domain, number of its own interface, and whether its card is the way out.
pub type Whom = (u16, u32, bool);

/// See the module.
pub struct Pulse {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<Asked>,
    changed: Condvar,
}

/// What is to be asked, and what was said.
#[derive(Debug, Default)]
struct Asked {
    whom: Option<Whom>,
    /// It is to be asked at once.
    is_urgent: bool,
    /// Its twin is to be loaded first.
    loads: bool,
    /// Changes with each instance, also when that has the number of the one before.
    life: u64,
    /// When it was heard last, or was not to be, and its twin; nothing until it has answered once.
    heard: Option<(Duration, Option<TwinSeen>)>,
    ends: bool,
}

impl Asked {
    fn follow(&mut self, whom: Option<Whom>) {
        if self.whom == whom {
            return;
        }
        if self.whom.map(|(domain, ..)| domain) != whom.map(|(domain, ..)| domain) {
            (self.life, self.heard, self.loads) = (self.life + 1, None, false);
        }
        (self.whom, self.is_urgent) = (whom, whom.is_some());
    }

    /// This was heard at that time by who began to ask in that life.
    fn hear(&mut self, heard: Heard, now: Duration, life: u64) {
        if life != self.life {
            return;
        }
        match heard {
            Heard::Twin(twin) => self.heard = Some((now, twin.as_deref().map(TwinSeen::from))),
            // It has ended as it should, or does what somebody else wants. Of its twin nothing is known.
            Heard::Other => self.heard = self.heard.map(|_| (now, None)),
            Heard::Silence => {}
        }
    }

    fn twind(&self, now: Duration) -> Option<Twind> {
        self.heard.map(|(at, twin)| Twind { silent_for: now.saturating_sub(at), twin })
    }
}

impl From<&told::Twin> for TwinSeen {
    fn from(twin: &told::Twin) -> Self {
        Self {
            aborts: twin.aborts,
            is_loaded: twin.state != State::Absent,
            is_wanted: twin.wanted != Mode::Vm,
            was_aborted: twin.state == State::Absent && twin.aborted.is_some(),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pulse {
    /// Asks each time after `every` from now on. `service`: for the log.
    pub fn begin(service: &str, every: Duration, now: impl Fn() -> Duration + Send + 'static) -> Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let (here, service) = (Arc::clone(&shared), service.to_string());
        let run = move || {
            while let Some(((domain, vif, _), loads, life)) = next(&here, every) {
                if loads {
                    if let Err(error) = load_twin(domain, vif) {
                        eprintln!("{service}: domain {domain}'s twin: {error:#}");
                    }
                }
                let heard = hear_twind(domain, vif, LIMIT).unwrap_or(Heard::Other);
                here.lock().hear(heard, now(), life);
            }
        };
        std::thread::Builder::new().name("pulse".into()).spawn(run).context("no thread")?;
        Ok(Self { shared })
    }

    /// This one is asked from now on, or nobody.
    pub fn follow(&self, whom: Option<Whom>) {
        let mut asked = self.shared.lock();
        asked.follow(whom);
        if asked.is_urgent {
            self.shared.changed.notify_all();
        }
    }

    /// The twin of who is followed is to be loaded again.
    pub fn load(&self) {
        let mut asked = self.shared.lock();
        (asked.loads, asked.is_urgent) = (asked.whom.is_some(), asked.whom.is_some());
        self.shared.changed.notify_all();
    }

    /// What is known of who is followed, if it has ever answered.
    pub fn twind(&self, now: Duration) -> Option<Twind> {
        self.shared.lock().twind(now)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.changed.notify_all();
    }
}

/// Waits until somebody is to be asked: whom, whether its twin is to be loaded, and its life. `None`: never again.
fn next(shared: &Shared, every: Duration) -> Option<(Whom, bool, u64)> {
    let rests = |asked: &mut Asked| !asked.ends && !asked.is_urgent;
    let waited = shared.changed.wait_timeout_while(shared.lock(), every, rests);
    let (mut asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
    loop {
        if asked.ends {
            return None;
        }
        if let Some(whom) = asked.whom {
            asked.is_urgent = false;
            return Some((whom, std::mem::take(&mut asked.loads), asked.life));
        }
        asked = shared.changed.wait(asked).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{Answer, Told};

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn twin(aborts: u64) -> Heard {
        let text = r#"{"ok":{"from":"twind","twins":[{"interface":"eth0","vif":0,"driver":"e1000","wanted":"twin-mirror","mode":"vm",
            "state":"absent","loads":2,"aborts":ABORTS,"functions":0,"lent":0,"aborted":{"reason":"r","at":"a","detail":"0","time":0}}]}}"#;
        let said = Answer::parse(&text.replace("ABORTS", &aborts.to_string()));
        let Ok(Answer::Ok(Told::Twind { mut twins })) = said else { panic!("{said:?}") };
        Heard::Twin(twins.pop().map(Box::new))
    }

    #[test]
    fn who_never_answered_is_not_silent_and_who_did_is_until_it_does_again() {
        let mut asked = Asked::default();
        asked.follow(Some((5, 0, false)));
        asked.hear(Heard::Silence, s(10), 1);
        asked.hear(Heard::Other, s(20), 1);
        assert_eq!(asked.twind(s(90)), None, "none runs there, or it still loads its first twin");
        asked.hear(twin(2), s(100), 1);
        let seen = TwinSeen { aborts: 2, is_loaded: false, is_wanted: true, was_aborted: true };
        assert_eq!(asked.twind(s(103)), Some(Twind { silent_for: s(3), twin: Some(seen) }));
        asked.hear(Heard::Silence, s(110), 1);
        assert_eq!(asked.twind(s(110)).map(|twind| twind.silent_for), Some(s(10)));
        // It was ended, or is busy.
        asked.hear(Heard::Other, s(120), 1);
        assert_eq!(asked.twind(s(121)), Some(Twind { silent_for: s(1), twin: None }));
    }

    #[test]
    fn what_one_has_said_is_not_the_next_ones_also_if_it_has_the_same_number() {
        let mut asked = Asked::default();
        asked.follow(Some((5, 0, true)));
        asked.hear(twin(1), s(10), 1);
        asked.is_urgent = false;
        asked.follow(Some((5, 0, false)));
        assert!(asked.is_urgent && asked.twind(s(11)).is_some(), "it has lost its card: why?");
        asked.loads = true;
        asked.follow(None);
        asked.follow(Some((5, 0, false)));
        assert_eq!((asked.twind(s(11)), asked.loads, asked.life), (None, false, 3));
        asked.hear(twin(1), s(12), 1);
        assert_eq!(asked.twind(s(12)), None, "that was of the one before");
    }

    #[test]
    fn who_is_followed_is_asked_at_once_and_then_now_and_then_until_the_end() {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new() };
        std::thread::scope(|threads| {
            let asks = threads.spawn(|| [s(0), s(3600), Duration::from_millis(1)].map(|every| next(&shared, every)));
            for whom in [(5, 1, false), (5, 1, true)] {
                while shared.lock().is_urgent {
                    std::thread::yield_now();
                }
                let mut asked = shared.lock();
                asked.follow(Some(whom));
                asked.loads = whom.2;
                drop(asked);
                shared.changed.notify_all();
            }
            let asked = asks.join().unwrap();
            assert!(asked.iter().all(|asked| asked.is_some_and(|((domain, vif, _), ..)| (domain, vif) == (5, 1))));
            assert_eq!(asked.iter().flatten().filter(|(_, loads, _)| *loads).count(), 1, "once: {asked:?}");
        });
        shared.lock().ends = true;
        assert_eq!(next(&shared, s(3600)), None);
    }
}
