//! Services' domains are found, or made, beside what else the daemon does: xl may take any time, or refuse, and what one service lacks is no reason
//! to serve the others no longer.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

/// So often is asked whether one is there that is looked for.
const OFTEN: Duration = Duration::from_millis(100);
/// So much later it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Who finds or makes the domain of a service. An error says why there is none.
type Make = dyn Fn(&str) -> Result<u16> + Send + Sync;

/// Those that are looked for.
pub struct Domains {
    make: Arc<Make>,
    tell: mpsc::Sender<(String, Result<u16>)>,
    found: mpsc::Receiver<(String, Result<u16>)>,
    /// Somebody looks for these.
    asked: BTreeSet<String>,
    /// These are looked for again then.
    again: BTreeMap<String, Instant>,
    /// Why there was none, as was said.
    troubles: BTreeMap<String, String>,
}

impl Domains {
    /// None is looked for yet.
    pub fn new(make: impl Fn(&str) -> Result<u16> + Send + Sync + 'static) -> Self {
        let (tell, found) = mpsc::channel();
        let (asked, again, troubles) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { make: Arc::new(make), tell, found, asked, again, troubles }
    }

    /// That of this service is looked for from now on, until it is there.
    pub fn want(&mut self, service: &str) -> Result<()> {
        self.again.remove(service);
        if !self.asked.insert(service.into()) {
            return Ok(());
        }
        let (make, tell, service) = (Arc::clone(&self.make), self.tell.clone(), service.to_string());
        let look = move || {
            let found = make(&service);
            let _ = tell.send((service, found));
        };
        std::thread::Builder::new().name("domain".into()).spawn(look).context("no thread").map(|_| ())
    }

    /// Those that are there now, and were not before. What is wrong with others is said, once.
    pub fn found(&mut self, now: Instant) -> Result<Vec<(String, u16)>> {
        let due: Vec<String> = self.again.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        due.iter().try_for_each(|service| self.want(service))?;
        let mut there = Vec::new();
        while let Ok((service, found)) = self.found.try_recv() {
            self.asked.remove(&service);
            match found {
                Ok(domain) => {
                    self.troubles.remove(&service);
                    there.push((service, domain));
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    if self.troubles.get(&service) != Some(&why) {
                        eprintln!("{service}: not served: {why}");
                    }
                    self.troubles.insert(service.clone(), why);
                    self.again.insert(service, now + AGAIN);
                }
            }
        }
        Ok(there)
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
        let often = self.are_asked_for().then_some(now + OFTEN);
        often.into_iter().chain(self.again.values().copied()).min()
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
        let mut domains = Domains::new(make);
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
}
