use super::*;
use std::cell::Cell;
use std::rc::Rc;

/// A store that others write into, too. It counts what it is asked.
#[derive(Default)]
struct Shared {
    nodes: BTreeMap<String, String>,
    watches: Vec<(String, String)>,
    told: VecDeque<Event>,
    nr_asked: u32,
}

impl Shared {
    /// As xenstored has it: a watch tells of what is at and below it, and of its own removal with what it is in.
    fn tell(&mut self, path: &str, is_removal: bool) {
        for (watched, token) in &self.watches {
            let is_below = path == watched || path.starts_with(&format!("{watched}/"));
            if is_below || (is_removal && watched.starts_with(&format!("{path}/"))) {
                let path = if is_below { path } else { watched };
                self.told.push_back(Event { path: path.into(), token: token.clone() });
            }
        }
    }

    fn write(&mut self, path: &str, value: &str) {
        for above in all_above(path).filter(|above| !above.is_empty()) {
            self.nodes.entry(above.into()).or_default();
        }
        self.nodes.insert(path.into(), value.into());
        self.tell(path, false);
    }

    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        if self.nodes.contains_key(path) {
            self.nodes.retain(|node, _| node != path && !node.starts_with(&below));
            self.tell(path, true);
        }
    }

    fn names(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let names = self.nodes.keys().filter_map(|node| node.strip_prefix(&below));
        names.filter(|name| !name.contains('/')).map(Into::into).collect()
    }
}

impl Store for Shared {
    fn read(&mut self, path: &str) -> Result<Option<String>> {
        self.nr_asked += 1;
        Ok(self.nodes.get(path).cloned())
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        self.nr_asked += 1;
        Ok(self.names(path))
    }

    fn change(&mut self, guard: &str, changes: &[Change]) -> Result<bool> {
        if !self.nodes.contains_key(guard) {
            return Ok(false);
        }
        for change in changes {
            match change {
                Change::Write(path, value) => self.write(path, value),
                Change::Remove(path) => self.remove(path),
                other => unreachable!("{other:?}"),
            }
        }
        Ok(true)
    }

    fn watch(&mut self, path: &str, token: &str) -> Result<()> {
        self.watches.push((path.into(), token.into()));
        self.told.push_back(Event { path: path.into(), token: token.into() });
        Ok(())
    }

    fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
        self.watches.retain(|watch| *watch != (path.into(), token.into()));
        Ok(())
    }

    fn next_event(&mut self, _: Option<Duration>) -> Result<Option<Event>> {
        Ok(self.told.pop_front())
    }
}

/// All domains are there.
fn kept(nodes: &[&str]) -> Kept<Shared> {
    kept_but(nodes, |_| true)
}

fn kept_but(nodes: &[&str], is_there: impl FnMut(u16) -> bool + 'static) -> Kept<Shared> {
    let mut store = Shared::default();
    for node in nodes {
        store.write(node, "1");
    }
    let mut kept = Kept::new(store, is_there).unwrap();
    kept.next_event(None).unwrap();
    kept
}

#[test]
fn what_is_watched_is_asked_once_and_all_else_each_time() {
    let mut store = kept(&["/a/state", "/b/state", "/c/x/y"]);
    store.watch("/a", "t").unwrap();
    store.own("/c");
    let mut asked = |path: &str| {
        let before = store.store.nr_asked;
        for _ in 0..3 {
            store.read(path).unwrap();
            store.list(path).unwrap();
        }
        store.store.nr_asked - before
    };
    assert_eq!(["/a/state", "/a", "/a/no", "/c/x/y", "/c/x"].map(&mut asked), [2; 5]);
    assert_eq!(["/b/state", "/ab", "/", "/d"].map(&mut asked), [6; 4]);
}

#[test]
fn a_change_here_leaves_all_else_known() {
    let mut store = kept(&["/a", "/a/state", "/a/other/x", "/a/z"]);
    store.watch("/a", "t").unwrap();
    while store.next_event(None).unwrap().is_some() {}
    for path in ["/a/state", "/a/other/x", "/a/z"] {
        store.read(path).unwrap();
    }
    let changes = [Change::Write("/a/state".into(), "2".into()), Change::Remove("/a/other".into())];
    assert!(store.change("/a", &changes).unwrap());
    let before = store.store.nr_asked;
    assert_eq!(store.read("/a/z").unwrap().as_deref(), Some("1"));
    assert_eq!(store.store.nr_asked, before);
    assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("2"));
    assert_eq!(store.read("/a/other/x").unwrap(), None);
}

#[test]
fn a_change_counts_before_its_event_is_taken_and_events_stay_in_order() {
    let mut store = kept(&["/a/state", "/a/other"]);
    store.watch("/a", "t").unwrap();
    assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("1"));
    store.store.write("/a/state", "2");
    store.store.write("/a/other", "3");
    assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("2"));
    store.store.remove("/a");
    assert_eq!(store.read("/a/state").unwrap(), None);
    let events = std::iter::from_fn(|| store.next_event(Some(Duration::ZERO)).unwrap());
    assert_eq!(events.map(|event| event.path).collect::<Vec<_>>(), ["/a", "/a/state", "/a/other", "/a"]);
}

#[test]
fn what_is_not_watched_any_more_is_not_known_any_more() {
    let mut store = kept(&["/a/state"]);
    for token in ["t", "u"] {
        store.watch("/a/state", token).unwrap();
    }
    let read = |store: &mut Kept<Shared>| store.read("/a/state").unwrap().unwrap();
    assert_eq!(read(&mut store), "1");
    store.unwatch("/a/state", "u").unwrap();
    store.store.write("/a/state", "2");
    assert_eq!(read(&mut store), "2", "one token is left");
    store.unwatch("/a/state", "t").unwrap();
    store.store.write("/a/state", "3");
    assert_eq!(read(&mut store), "3");
}

#[test]
fn what_went_with_a_domain_is_not_known_any_more_and_all_else_is() {
    let paths = ["/local/domain/7/x", "/local/domain/70/x", "/local/domain/1/serves/7", "/a/7"];
    // It ends first, and goes later.
    let (has_gone, seen) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let told = (Rc::clone(&has_gone), Rc::clone(&seen));
    let mut store = kept_but(&paths, move |domain| {
        told.1.set(told.1.get() + 1);
        domain != 7 || !told.0.get()
    });
    for path in ["/local/domain", "/a"] {
        store.watch(path, "t").unwrap();
    }
    while store.next_event(None).unwrap().is_some() {}
    for path in paths {
        assert_eq!(store.read(path).unwrap().as_deref(), Some("1"));
    }
    let asked = |store: &mut Kept<Shared>| {
        let before = store.store.nr_asked;
        let there = paths.map(|path| store.read(path).unwrap().is_some());
        (there, store.store.nr_asked - before)
    };
    store.store.tell(GOES, false);
    assert_eq!(asked(&mut store), ([true; 4], 0), "it has only ended");
    store.store.nodes.remove(paths[0]);
    has_gone.set(true);
    store.store.tell(GOES, false);
    assert_eq!(asked(&mut store), ([false, true, true, true], 1));
    assert_eq!(seen.get(), 6, "each domain of which something is known is looked at once for each event");
}

/// Whatever is written by whom, and however many events are heeded at once, what is kept is what is there.
#[test]
fn what_is_kept_is_what_is_there() {
    for room in [1000, 5, 1] {
        let nr_asked = keeps_what_is_there(room);
        // It keeps something at all.
        assert!(nr_asked < 330_000, "{nr_asked} of 360,000 questions were asked with room for {room}");
    }
}

fn keeps_what_is_there(room: usize) -> u32 {
    let mut seed = 1_u32;
    let mut any = |n: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as usize % n
    };
    let paths = ["/a", "/a/b", "/a/b/c", "/a/b-c", "/a/b0", "/d", "/d/e", "/d/e/f", "/g/h"];
    let mut store = kept(&["/guard", "/a/b/c"]);
    store.room = room;
    store.own("/g");
    let mut watched = BTreeSet::new();
    for n in 0..20_000 {
        let path = paths[any(paths.len())];
        match any(9) {
            0 if watched.insert(path) => store.watch(path, "t").unwrap(),
            1 if watched.remove(path) => store.unwatch(path, "t").unwrap(),
            2 if !path.starts_with("/g") => store.store.write(path, &n.to_string()),
            3 if !path.starts_with("/g") => store.store.remove(path),
            4 => drop(store.change("/guard", &[Change::Write(path.into(), n.to_string())]).unwrap()),
            5 => drop(store.change("/guard", &[Change::Remove(path.into())]).unwrap()),
            6 => drop(store.next_event(Some(Duration::ZERO)).unwrap()),
            7 => drop(store.next_events(Some(Duration::ZERO)).unwrap()),
            _ => {}
        }
        assert!(store.events.len() <= room);
        for path in paths {
            assert_eq!(store.read(path).unwrap(), store.store.nodes.get(path).cloned(), "{path} after {n}");
            assert_eq!(store.list(path).unwrap(), store.store.names(path), "in {path} after {n}");
        }
    }
    store.store.nr_asked
}

/// A store in which a guest writes faster than anybody listens.
struct Endless {
    nr_told: u32,
}

impl Store for Endless {
    fn read(&mut self, _: &str) -> Result<Option<String>> {
        Ok(Some("1".into()))
    }

    fn list(&mut self, _: &str) -> Result<Vec<String>> {
        Ok(vec!["b".into()])
    }

    fn change(&mut self, _: &str, _: &[Change]) -> Result<bool> {
        Ok(true)
    }

    fn watch(&mut self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn unwatch(&mut self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn next_event(&mut self, _: Option<Duration>) -> Result<Option<Event>> {
        self.nr_told += 1;
        assert!(self.nr_told < 100_000, "it is listened to without an end");
        Ok(Some(Event { path: "/a/b".into(), token: "t".into() }))
    }
}

#[test]
fn who_never_stops_writing_keeps_nobody_from_his_work() {
    let mut store = Kept::new(Endless { nr_told: 0 }, |_| true).unwrap();
    store.watch("/a", "t").unwrap();
    for _ in 0..20 {
        assert_eq!(store.next_events(Some(Duration::ZERO)).unwrap().len(), PORTION);
        assert_eq!(store.read("/a/state").unwrap().as_deref(), Some("1"));
        assert_eq!(store.list("/a").unwrap(), ["b"]);
        assert!(store.events.len() <= PORTION);
    }
    assert!(store.store.nr_told < 50 * 1000, "{}", store.store.nr_told);
}

#[test]
fn how_deep_below_all_that_is_kept_a_change_is_costs_nothing() {
    let deep = format!("/a/b{}", "/x".repeat(1000));
    assert_eq!(above_within(&deep, 6).collect::<Vec<_>>(), ["", "/a", "/a/b", "/a/b/x"]);
    assert_eq!(above_within("/a/b", 100).collect::<Vec<_>>(), ["", "/a"]);
    let mut store = kept(&["/a/b"]);
    store.watch("/a", "t").unwrap();
    store.read("/a/b").unwrap();
    store.list("/a/b").unwrap();
    assert_eq!(store.longest, 4);
    // It is heeded, for what is above may be new.
    store.store.write(&deep, "1");
    assert_eq!(store.list("/a/b").unwrap(), ["x"]);
}
