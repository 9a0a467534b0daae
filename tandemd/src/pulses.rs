//! Whether the daemon's threads go round: its own loop, and each supervisor's. systemd is told so, and starts a daemon
//! again of which one does not.
//!
//! A false alarm would be worse than none: who waits for xl, which may wait for others' xl for long, does not count
//! meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What does not wait for xl goes round within seconds. Some minutes later systemd, which has heard nothing meanwhile,
/// ends the daemon.
const LIMIT: Duration = Duration::from_secs(120);

/// Of each thread by its name, when it has passed last; `None`: it waits for xl.
static PASSED: Mutex<BTreeMap<String, Option<Instant>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// As what this thread passes.
    static NAME: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn passed() -> MutexGuard<'static, BTreeMap<String, Option<Instant>>> {
    PASSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This thread has gone round, and is to go on to.
pub fn pass(name: &str) {
    NAME.with(|own| {
        if own.borrow().as_deref() != Some(name) {
            *own.borrow_mut() = Some(name.into());
        }
    });
    passed().insert(name.into(), Some(Instant::now()));
}

/// Does what may take any time.
pub fn aside<T>(what: impl FnOnce() -> T) -> T {
    let name = NAME.with(|own| own.borrow().clone());
    if let Some(name) = &name {
        passed().insert(name.clone(), None);
    }
    let done = what();
    if let Some(name) = name {
        passed().insert(name, Some(Instant::now()));
    }
    done
}

/// Whether all that have begun go round. What does not is said, once.
pub fn all_go_round() -> bool {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let late = late(&passed(), Instant::now());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for name in late.iter().filter(|name| !said.contains(name)) {
        eprintln!("tandemd: {name} has not gone round for {} s: systemd is told nothing", LIMIT.as_secs());
    }
    *said = late;
    said.is_empty()
}

fn late(passed: &BTreeMap<String, Option<Instant>>, now: Instant) -> Vec<String> {
    let is_late = |at: &Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) > LIMIT);
    passed.iter().filter(|(_, at)| is_late(at)).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_go_round_is_late_but_not_who_waits_for_xl() {
        // Which others begin meanwhile: tests of supervisors.
        let of = |name: &str| passed().iter().filter(|(of, _)| *of == name).map(|(of, at)| (of.clone(), *at)).collect();
        let late_at = |name: &str, s: u64| late(&of(name), Instant::now() + Duration::from_secs(s));
        assert!(late_at("own", 1000).is_empty(), "it has not begun");
        std::thread::spawn(|| pass("own")).join().unwrap();
        assert!(late_at("own", 100).is_empty());
        assert_eq!(late_at("own", 130), ["own"]);
        pass("other");
        let told = aside(|| {
            assert!(late_at("other", 100_000).is_empty() && !late_at("own", 130).is_empty());
            5
        });
        assert_eq!((told, late_at("other", 130)), (5, vec!["other".to_string()]), "it counts again");
        // Who never passes has no place to come back to.
        std::thread::spawn(|| aside(|| ())).join().unwrap();
    }
}
