//! Services' domains are found, or made, and ended, beside what else the daemon does: xl may take any time, or refuse,
//! and what one service lacks is no reason to serve the others no longer.

use crate::departure::UnderWay;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

/// So often is asked whether one is there that is looked for; and so much later one is looked for again that was not to
/// be made yet.
const OFTEN: Duration = Duration::from_millis(100);
/// So much later it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Who finds or makes the domain of a service. An error says why there is none.
type Make = dyn Fn(&str) -> Result<u16> + Send + Sync;
/// Who ends the domain of a service. An error says why it is there still.
type End = dyn Fn(&str, u16) -> Result<()> + Send + Sync;

/// What has come of it, for a service.
enum Done {
    Found(Result<u16>),
    Ended(u16, Result<()>),
}

/// How it goes with a domain that is to be ended.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
    /// Somebody is at work.
    Runs,
    /// It was tried. It may be again then, if it is there still.
    Tried(Instant),
    /// It is, if somebody wants it.
    Again,
}

/// Those that are looked for, or ended.
pub struct Domains {
    make: Arc<Make>,
    end: Arc<End>,
    tell: mpsc::Sender<(String, Done)>,
    done: mpsc::Receiver<(String, Done)>,
    /// Somebody looks for these.
    asked: BTreeSet<String>,
    /// These are looked for again then.
    again: BTreeMap<String, Instant>,
    /// Domains that are to be ended.
    ending: BTreeMap<u16, Ending>,
    /// Why there was none, or it did not end, as was said.
    troubles: BTreeMap<String, String>,
}

impl Domains {
    /// None is looked for yet.
    pub fn new(
        make: impl Fn(&str) -> Result<u16> + Send + Sync + 'static,
        end: impl Fn(&str, u16) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (tell, done) = mpsc::channel();
        let (asked, again, troubles) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let (make, end, ending) = (Arc::new(make), Arc::new(end), BTreeMap::new());
        Self { make, end, tell, done, asked, again, ending, troubles }
    }

    /// That of this service is looked for from now on, until it is there.
    pub fn want(&mut self, service: &str) -> Result<()> {
        self.again.remove(service);
        if !self.asked.insert(service.into()) {
            return Ok(());
        }
        let make = Arc::clone(&self.make);
        self.begin(service, move |service| Done::Found(make(service)))
    }

    /// This one is to go, for this reason, and nobody needs it: it is ended. Who says so again and again has that tried
    /// again, some time later each time.
    pub fn end(&mut self, service: &str, domain: u16, why: &str) -> Result<()> {
        match self.ending.get(&domain) {
            None => eprintln!("{service}: its domain {domain} {why}"),
            Some(Ending::Again) => {}
            Some(Ending::Runs | Ending::Tried(_)) => return Ok(()),
        }
        self.ending.insert(domain, Ending::Runs);
        let end = Arc::clone(&self.end);
        self.begin(service, move |service| Done::Ended(domain, end(service, domain)))
    }

    /// It is gone.
    pub fn forget(&mut self, domain: u16) {
        self.ending.remove(&domain);
    }

    /// Does this beside all else.
    fn begin(&self, service: &str, what: impl FnOnce(&str) -> Done + Send + 'static) -> Result<()> {
        let (tell, service) = (self.tell.clone(), service.to_string());
        let work = move || {
            let done = what(&service);
            let _ = tell.send((service, done));
        };
        std::thread::Builder::new().name("domain".into()).spawn(work).context("no thread").map(|_| ())
    }

    /// Those that are there now, and were not before. What is wrong with others is said, once.
    pub fn found(&mut self, now: Instant) -> Result<Vec<(String, u16)>> {
        let due: Vec<String> = self.again.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        due.iter().try_for_each(|service| self.want(service))?;
        for ending in self.ending.values_mut().filter(|ending| matches!(ending, Ending::Tried(until) if *until <= now))
        {
            *ending = Ending::Again;
        }
        let mut there = Vec::new();
        while let Ok((service, done)) = self.done.try_recv() {
            match done {
                Done::Found(Ok(domain)) => {
                    self.asked.remove(&service);
                    self.troubles.remove(&service);
                    there.push((service, domain));
                }
                Done::Found(Err(error)) => {
                    self.asked.remove(&service);
                    self.bear(&service, &format!("not served: {error:#}"));
                    let later = if error.is::<UnderWay>() { OFTEN } else { AGAIN };
                    self.again.insert(service, now + later);
                }
                Done::Ended(domain, result) => {
                    if let Some(ending) = self.ending.get_mut(&domain) {
                        *ending = Ending::Tried(now + AGAIN);
                    }
                    if let Err(error) = result {
                        self.bear(&service, &format!("its domain {domain} does not go: {error:#}"));
                    }
                }
            }
        }
        Ok(there)
    }

    fn bear(&mut self, service: &str, why: &str) {
        if self.troubles.get(service).is_none_or(|said| said != why) {
            eprintln!("{service}: {why}");
        }
        self.troubles.insert(service.into(), why.into());
    }

    /// Says of those for which somebody is at work that it takes long.
    pub fn tell_who_is_late(&self) {
        self.asked
            .iter()
            .for_each(|service| eprintln!("{service}: not served yet: xl is at work for its domain, or another one's"));
    }

    /// Somebody is at work.
    pub fn are_asked_for(&self) -> bool {
        !self.asked.is_empty()
    }

    /// When [`Self::found`] may have something to tell.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let is_at_work = self.are_asked_for() || self.ending.values().any(|ending| *ending == Ending::Runs);
        let often = is_at_work.then_some(now + OFTEN);
        let tried = self.ending.values().filter_map(|ending| match ending {
            Ending::Tried(until) => Some(*until),
            Ending::Runs | Ending::Again => None,
        });
        often.into_iter().chain(self.again.values().copied()).chain(tried).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Looks until so many are there.
    fn until(domains: &mut Domains, count: usize, now: Instant) -> Vec<(String, u16)> {
        let end = Instant::now() + Duration::from_secs(60);
        let mut there = Vec::new();
        while there.len() < count {
            assert!(Instant::now() < end, "only {there:?} are there");
            there.extend(domains.found(now).unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        there.sort();
        there
    }

    #[test]
    fn what_one_service_lacks_keeps_nobody_from_the_others() {
        let (go, wait) = mpsc::channel::<()>();
        let (wait, is_refused) = (Mutex::new(wait), Arc::new(Mutex::new(true)));
        let refused = Arc::clone(&is_refused);
        let make = move |service: &str| match service {
            "hangs" => wait.lock().unwrap().recv().map(|()| 7).context("never"),
            "refused" if *refused.lock().unwrap() => anyhow::bail!("it is another's"),
            service => Ok(u16::try_from(service.len())?),
        };
        let mut domains = Domains::new(make, |_, _| panic!("none is to go"));
        let now = Instant::now();
        for service in ["hangs", "refused", "disk", "net"] {
            domains.want(service).unwrap();
        }
        assert_eq!(until(&mut domains, 2, now), [("disk".to_string(), 4), ("net".into(), 3)]);
        while domains.troubles.is_empty() {
            assert!(domains.found(now).unwrap().is_empty());
        }
        assert_eq!(domains.due(now), Some(now + OFTEN));
        // Nobody looks for one twice at one time.
        domains.want("hangs").unwrap();
        go.send(()).unwrap();
        assert_eq!(until(&mut domains, 1, now), [("hangs".to_string(), 7)]);
        // What was refused is tried again, later.
        *is_refused.lock().unwrap() = false;
        assert!(!domains.are_asked_for() && domains.found(now).unwrap().is_empty());
        assert_eq!(domains.due(now), Some(now + AGAIN));
        assert_eq!(until(&mut domains, 1, now + AGAIN), [("refused".to_string(), 7)]);
        assert_eq!((domains.due(now), domains.troubles.len()), (None, 0));
    }

    #[test]
    fn as_soon_as_it_may_be_made_it_is() {
        let left = Mutex::new(3);
        let make = move |_: &str| {
            let mut left = left.lock().unwrap();
            *left -= 1;
            if *left > 0 {
                Err(UnderWay.into())
            } else {
                Ok(7)
            }
        };
        let mut domains = Domains::new(make, |_, _| panic!("none is to go"));
        let now = Instant::now();
        domains.want("net").unwrap();
        for n in 0..3 {
            let end = Instant::now() + Duration::from_secs(60);
            let at = now + n * OFTEN;
            let mut there = domains.found(at).unwrap();
            while domains.are_asked_for() {
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(1));
                there.extend(domains.found(at).unwrap());
            }
            let expected = if n < 2 { (Some(at + OFTEN), 0) } else { (None, 1) };
            assert_eq!((domains.due(at), there.len()), expected, "{n}");
        }
    }

    #[test]
    fn one_that_does_not_go_is_asked_to_again_and_keeps_nobody() {
        let (go, wait) = mpsc::channel::<Result<()>>();
        let wait = Mutex::new(wait);
        let mut domains = Domains::new(
            |service| Ok(u16::try_from(service.len())?),
            move |service, domain| {
                assert_eq!((service, domain), ("net", 7));
                wait.lock().unwrap().recv().unwrap()
            },
        );
        let mut now = Instant::now();
        // Until nobody is at work.
        let rest = |domains: &mut Domains, now| {
            let end = Instant::now() + Duration::from_secs(60);
            while domains.ending[&7] == Ending::Runs {
                assert!(Instant::now() < end && domains.found(now).unwrap().is_empty());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for n in 0..3 {
            (0..100).for_each(|_| domains.end("net", 7, "is to go").unwrap());
            assert_eq!((&domains.ending[&7], domains.due(now)), (&Ending::Runs, Some(now + OFTEN)));
            // Another one is found meanwhile.
            domains.want("disk").unwrap();
            assert_eq!(until(&mut domains, 1, now), [("disk".to_string(), 4)]);
            let refused = n < 2;
            go.send(if refused { Err(anyhow::Error::msg("xl")) } else { Ok(()) }).unwrap();
            rest(&mut domains, now);
            assert_eq!(domains.troubles["net"], "its domain 7 does not go: xl");
            // Somebody still says so, and nothing is done yet; who asks at once whether it is gone need not wait.
            domains.end("net", 7, "is to go").unwrap();
            assert_eq!((&domains.ending[&7], domains.due(now)), (&Ending::Tried(now + AGAIN), Some(now + AGAIN)));
            now += AGAIN;
            assert!(domains.found(now).unwrap().is_empty());
            // If nobody says so any more nobody is woken for it.
            assert_eq!((&domains.ending[&7], domains.due(now)), (&Ending::Again, None));
        }
        domains.forget(7);
        assert!(domains.ending.is_empty());
    }
}
