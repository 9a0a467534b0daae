//! A driver domain's twind is asked from domain 0 by xenstore, in the driver domain's own `data`, where both may write.
//!
//! | node below `data/tandem/twind` | who writes it | what |
//! |---|---|---|
//! | `up` | twind | it is there while twind runs |
//! | `request` | tandemd | a number, a blank, a [`Request`] in JSON; another number is another request |
//! | `request/NUMBER` | tandemd | it is there until somebody takes the request: twind, which then does it, or tandemd, which then says that nothing is done |
//! | `answer/0`, `answer/1`... | twind | the [`Answer`] in JSON, in pieces, since the length of a value is limited |
//! | `answer` | twind | the number of the request, a blank, how many pieces; written with them at once |
//!
//! What the driver domain writes is its own affair: domain 0 reads it as words and numbers, shows them without what a
//! terminal would obey, and decides nothing by them.

use crate::request::Request;
use crate::store::{Change, Store};
use crate::told::Answer;
use anyhow::{bail, ensure, Context, Result};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The domain's own directory, as it names it itself.
pub const OWN: &str = "data";
const BELOW: &str = "tandem/twind";
/// Bytes of a piece: less than any domain may have in a value.
const PIECE: usize = 1024;
/// Pieces that are read at most.
const MAX_PIECES: usize = 64;

/// That directory of a domain, for domain 0.
#[must_use]
pub fn of_domain(domain: u16) -> String {
    format!("/local/domain/{domain}/{OWN}")
}

/// What is there while a domain's twind runs, for domain 0.
#[must_use]
pub fn up_of(domain: u16) -> String {
    format!("{}/{BELOW}/up", of_domain(domain))
}

/// twind's side: answers what is asked.
pub struct Server {
    base: String,
    seen: String,
}

impl Server {
    /// Begins; what was asked before does not count.
    pub fn begin(store: &mut impl Store, base: &str) -> Result<Self> {
        let at = |node: &str| format!("{base}/{BELOW}/{node}");
        let there = [Change::Remove(at("answer")), Change::Remove(at("request")), Change::Write(at("up"), "1".into())];
        ensure!(store.change(base, &there)?, "there is no {base} in xenstore");
        store.watch(&at("request"), BELOW)?;
        Ok(Self { base: base.into(), seen: String::new() })
    }

    /// Waits for the next request, at most so long, and answers it.
    pub fn serve(
        &mut self,
        store: &mut impl Store,
        limit: Option<Duration>,
        handle: &impl Fn(Request) -> Answer,
    ) -> Result<()> {
        if store.next_event(limit)?.is_none() {
            return Ok(());
        }
        let at = |node: &str| format!("{}/{BELOW}/{node}", self.base);
        let Some(asked) = store.read(&at("request"))? else { return Ok(()) };
        let Some((number, request)) = asked.split_once(' ').filter(|(number, _)| *number != self.seen) else {
            return Ok(());
        };
        self.seen = number.into();
        if !take(store, &at("request"), number)? {
            // Whoever asked was told that it is not done.
            return Ok(());
        }
        let answer = Request::parse(request).map_or_else(Answer::Error, handle).line();
        let pieces = pieces(&answer);
        let mut changes = vec![Change::Write(at("answer"), format!("{number} {}", pieces.len()))];
        changes.extend((0..).zip(&pieces).map(|(n, piece)| Change::Write(at(&format!("answer/{n}")), (*piece).into())));
        store.change(&at("up"), &changes)?;
        Ok(())
    }
}

/// Takes the request of this number, unless somebody else has.
fn take(store: &mut impl Store, at: &str, number: &str) -> Result<bool> {
    let place = format!("{at}/{number}");
    store.change(&place, &[Change::Clear(place.clone())])
}

/// Nobody answers there from now on.
pub fn end(store: &mut impl Store, base: &str) -> Result<()> {
    let up = format!("{base}/{BELOW}/up");
    store.change(&up, &[Change::Remove(up.clone())])?;
    Ok(())
}

fn pieces(text: &str) -> Vec<&str> {
    let (mut rest, mut pieces) = (text, Vec::new());
    while !rest.is_empty() {
        let end = (0..=PIECE.min(rest.len())).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(rest.len());
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Domain 0's side: asks, and waits for the answer. Errors: that none runs there, or does not answer for so long; and
/// then, whether it may be done yet.
pub fn ask(store: &mut impl Store, base: &str, request: &Request, limit: Duration) -> Result<Answer> {
    let at = |node: &str| format!("{base}/{BELOW}/{node}");
    let number = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string();
    let line = format!("{number} {}", serde_json::to_string(request)?);
    store.watch(&at("answer"), BELOW)?;
    let place = at(&format!("request/{number}"));
    let asks = [Change::Clear(at("request")), Change::Write(at("request"), line), Change::Write(place, String::new())];
    let answer = if store.change(&at("up"), &asks)? {
        wait(store, &at("answer"), &number, Instant::now() + limit)
    } else {
        Err(anyhow::Error::msg("no twind runs in the driver domain"))
    };
    store.unwatch(&at("answer"), BELOW)?;
    if let Some(answer) = answer? {
        return Ok(answer);
    }
    let is_taken_back = take(store, &at("request"), &number)?;
    let told = match request {
        Request::Status { .. } => "",
        _ if is_taken_back => ": nothing is done",
        _ => "; it has begun with it, or has begun anew: `twinctl status` says how it goes",
    };
    bail!("the driver domain's twind does not answer{told}")
}

/// `None`: there is none yet.
fn wait(store: &mut impl Store, at: &str, number: &str, end: Instant) -> Result<Option<Answer>> {
    loop {
        let said = store.read(at)?.unwrap_or_default();
        if let Some((_, count)) = said.split_once(' ').filter(|(of, _)| *of == number) {
            let count: usize = count.parse().context("the driver domain answers nonsense")?;
            ensure!(count <= MAX_PIECES, "the driver domain answers too much");
            let mut text = String::new();
            for n in 0..count {
                text.push_str(&store.read(&format!("{at}/{n}"))?.unwrap_or_default());
            }
            // Why it is none may quote it.
            let answer = Answer::parse(&text).ok().context("the driver domain answers nonsense")?;
            return Ok(Some(answer.tamed()));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        store.next_event(Some(left))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Which;
    use crate::store::{above, Event};
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    /// A store that two share; every look at it may find something new.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<BTreeMap<String, String>>>);

    impl Store for Shared {
        fn read(&mut self, path: &str) -> Result<Option<String>> {
            Ok(self.0.lock().unwrap().get(path).cloned())
        }
        fn list(&mut self, _: &str) -> Result<Vec<String>> {
            Ok(Vec::new())
        }
        fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
            let mut nodes = self.0.lock().unwrap();
            if !nodes.contains_key(guard) {
                return Ok(false);
            }
            for change in changes {
                match change {
                    Change::Write(path, value) => {
                        assert!(value.len() <= 2048 && above(path).is_some(), "{path}");
                        nodes.insert(path.clone(), value.clone());
                    }
                    Change::Make { .. } | Change::Repeat(_) => panic!("no errand needs that"),
                    Change::Remove(path) | Change::Clear(path) => nodes.retain(|node, _| !node.starts_with(path)),
                }
            }
            Ok(true)
        }
        fn watch(&mut self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }
        fn unwatch(&mut self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }
        fn next_event(&mut self, _: Option<Duration>) -> Result<Option<Event>> {
            std::thread::sleep(Duration::from_millis(1));
            Ok(Some(Event { path: String::new(), token: String::new() }))
        }
    }

    fn base() -> String {
        of_domain(5)
    }

    fn with_domain() -> Shared {
        let shared = Shared::default();
        shared.0.lock().unwrap().insert(base(), String::new());
        shared
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_long_answer_comes_in_pieces_and_each_request_is_served_once() {
        let shared = with_domain();
        let mut there = shared.clone();
        let mut server = Server::begin(&mut there, &base()).unwrap();
        let twin = r#"{"interface":"eth0","vif":0,"driver":"\u001b[2J","wanted":"vm","mode":"vm","state":"absent","why":"WHY","loads":0,
            "aborts":0,"functions":0,"lent":0}"#;
        let twins = vec![twin.replace("WHY", &"ö".repeat(200)); 12].join(",");
        let long = Answer::parse(&format!(r#"{{"ok":{{"from":"twind","twins":[{twins}]}}}}"#)).unwrap();
        assert!(long.line().len() > 4 * PIECE);
        let said = long.clone();
        let served = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&served);
        let thread = std::thread::spawn(move || {
            let handle = |request: Request| {
                *counted.lock().unwrap() += 1;
                assert_eq!(request, Request::Unload { which: Which::default() });
                said.clone()
            };
            while *counted.lock().unwrap() < 3 {
                server.serve(&mut there, None, &handle).unwrap();
            }
            end(&mut there, &base()).unwrap();
        });
        let mut here = shared.clone();
        for _ in 0..3 {
            let request = Request::Unload { which: Which::default() };
            assert_eq!(ask(&mut here, &base(), &request, SOON).unwrap(), long.clone().tamed());
        }
        thread.join().unwrap();
        assert_eq!(*served.lock().unwrap(), 3);
        let request = Request::Status { which: Which::default() };
        let none = ask(&mut here, &base(), &request, SOON).unwrap_err();
        assert!(none.to_string().contains("no twind runs"), "{none}");
    }

    #[test]
    fn who_is_dead_or_lies_harms_nobody() {
        let shared = with_domain();
        let request = Request::Status { which: Which::default() };
        let mut there = shared.clone();
        Server::begin(&mut there, &base()).unwrap();
        let ask = |limit| ask(&mut shared.clone(), &base(), &request, Duration::from_millis(limit));
        assert!(ask(5).unwrap_err().to_string().contains("does not answer"));
        for (pieces, first, said) in
            [("1", "{}", "nonsense"), ("x", "", "nonsense"), ("-1", "", "nonsense"), ("99", "", "too much")]
        {
            // The request of the one before is of no concern to the one who answers.
            shared.0.lock().unwrap().remove(&format!("{}/{BELOW}/request", base()));
            let thread = std::thread::spawn({
                let (shared, base) = (shared.clone(), base());
                move || loop {
                    let mut nodes = shared.0.lock().unwrap();
                    if let Some(asked) = nodes.remove(&format!("{base}/{BELOW}/request")) {
                        let number = asked.split(' ').next().unwrap();
                        nodes.insert(format!("{base}/{BELOW}/answer/0"), first.into());
                        nodes.insert(format!("{base}/{BELOW}/answer"), format!("{number} {pieces}"));
                        return;
                    }
                }
            });
            let error = ask(20_000).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            thread.join().unwrap();
        }
    }

    #[test]
    fn what_is_not_heard_in_time_is_not_done_later() {
        let shared = with_domain();
        let mut there = shared.clone();
        let mut server = Server::begin(&mut there, &base()).unwrap();
        let request = Request::Unload { which: Which::default() };
        let ask = |limit| ask(&mut shared.clone(), &base(), &request, Duration::from_millis(limit));
        let error = ask(0).unwrap_err().to_string();
        assert!(error.ends_with("nothing is done"), "{error}");
        server.serve(&mut there, None, &|_| panic!("it is done")).unwrap();
        // Whoever asked hears which of both it is, whoever was faster.
        let has_begun = Cell::new(false);
        while !has_begun.get() {
            std::thread::scope(|threads| {
                let asks = threads.spawn(|| ask(100));
                let handle = |_| {
                    has_begun.set(true);
                    while !asks.is_finished() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Answer::Error("late".into())
                };
                while !has_begun.get() && !asks.is_finished() {
                    server.serve(&mut there, None, &handle).unwrap();
                }
                let error = asks.join().unwrap().unwrap_err().to_string();
                assert_eq!(error.contains("has begun"), has_begun.get(), "{error}");
                assert_eq!(error.contains("nothing is done"), !has_begun.get(), "{error}");
            });
        }
    }

    #[test]
    fn what_a_predecessor_was_asked_does_not_count() {
        let mut shared = with_domain();
        let at = format!("{}/{BELOW}/request", base());
        shared.0.lock().unwrap().insert(at.clone(), r#"7 {"command":"unload"}"#.into());
        let mut server = Server::begin(&mut shared, &base()).unwrap();
        server.serve(&mut shared, None, &|_| panic!("served")).unwrap();
        assert!(Server::begin(&mut shared, "data").is_err());
    }
}
