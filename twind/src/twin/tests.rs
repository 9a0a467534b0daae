//! A driver and a module that are made of a few numbers.

use super::*;
use crate::control::Twins;
use control::told::{Aborted, Upcall};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Barrier;
use twin_abi::op::TwinStats;
use twind::device::{Call, ENETDOWN, ENOLINK};

/// What there is in the kernel and in the hypervisor.
struct Fake {
    state: State,
    is_up: bool,
    /// What else keeps a twin from the card.
    obstacle: i32,
    has_link: Arc<AtomicBool>,
    is_there: bool,
    is_disabled: bool,
    /// Loads that were tried.
    loads: u64,
    refuses: Option<&'static str>,
    /// Not because of what may pass.
    attach_fails: bool,
    /// Attachments that were tried.
    attaches: u32,
    is_no_way_out: bool,
    /// So many interrupts it is found to have, one after the other; the last is what it has from then on.
    irqs: Vec<u32>,
    news: u32,
    /// With as many the card was attached.
    attached_with: Vec<usize>,
    has_no_stlb: bool,
    /// Of the twin that was loaded last.
    mode: Mode,
    /// The module's file, and its other end as long as nobody takes it.
    file: (UnixStream, Option<UnixStream>),
}

impl AsFd for Fake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.0.as_fd()
    }
}

impl Driver for Fake {
    fn module(&self) -> &str {
        "fake"
    }
    fn is_there(&self) -> bool {
        self.is_there
    }
    fn status(&mut self) -> Result<Status, String> {
        let stats = TwinStats { twin: 3, functions: 7, disabled: self.is_disabled.into(), ..TwinStats::default() };
        let call = Call { reason: 0, result: 0, detail: 0, original: 0 };
        let state = self.state;
        let obstacle = match (self.is_up, self.has_link.load(Ordering::Relaxed)) {
            _ if state != State::Loaded => 0,
            (false, _) => ENETDOWN,
            (true, false) => ENOLINK,
            (true, true) => self.obstacle,
        };
        Ok(Status {
            state,
            obstacle,
            is_disabled: self.is_disabled,
            stats,
            areas: 0,
            refused: None,
            lent: 5,
            news: self.news,
            call,
            called: Vec::new(),
        })
    }
    fn load(&mut self, mode: Mode) -> Result<Status, String> {
        self.loads += 1;
        assert_eq!(self.state, State::Empty, "loaded twice");
        if let Some(why) = self.refuses {
            return Err(why.into());
        }
        if mode == Mode::TwinStlb && self.has_no_stlb {
            return Err("no stlb".into());
        }
        self.mode = mode;
        (self.state, self.is_disabled) = (State::Loaded, false);
        self.status()
    }
    fn unload(&mut self) -> Result<(), String> {
        (self.state, self.is_disabled) = (State::Empty, false);
        Ok(())
    }
    fn interrupts(&mut self) -> Result<Vec<Irq>, String> {
        let now = if self.irqs.len() > 1 { self.irqs.remove(0) } else { self.irqs[0] };
        if now == 0 {
            return Err("unreadable".into());
        }
        Ok((0..now).map(|number| (number, 0x1000, 0x2000)).collect())
    }
    fn attach(&mut self, vif: u32, irqs: &[Irq]) -> Result<(), Refusal> {
        self.attaches += 1;
        assert!(
            self.state == State::Loaded
                && self.is_up
                && self.has_link.load(Ordering::Relaxed)
                && !self.is_disabled
                && vif == 2
        );
        if self.attach_fails {
            return Err("no switch".into());
        }
        if self.is_no_way_out {
            return Err(Refusal { why: "no way out".into(), passes: true });
        }
        self.attached_with.push(irqs.len());
        self.state = State::Attached;
        Ok(())
    }
    fn detach(&mut self) -> Result<(), String> {
        assert_eq!(self.state, State::Attached);
        self.state = State::Loaded;
        Ok(())
    }
    fn damage(&mut self) -> Result<(), String> {
        self.is_disabled = true;
        Ok(())
    }
    fn upcalls(&self, _: &Status) -> Vec<Upcall> {
        vec![Upcall { function: "napi_schedule".into(), count: 1 }]
    }
    fn aborted(&self, _: &Status) -> Option<Aborted> {
        Some(Aborted { reason: "a BUG".into(), at: "xmit+0x10".into(), detail: "0x0".into(), time: 0 })
    }
}

fn twin(wanted: Mode) -> Twin<Fake> {
    let (state, is_up, is_there, is_disabled) = (State::Empty, true, true, false);
    let (file, other) = UnixStream::pair().unwrap();
    let fake = Fake {
        state,
        is_up,
        obstacle: 0,
        has_link: Arc::new(true.into()),
        is_there,
        is_disabled,
        loads: 0,
        refuses: None,
        attach_fails: false,
        attaches: 0,
        is_no_way_out: false,
        irqs: vec![1],
        news: 0,
        attached_with: Vec::new(),
        has_no_stlb: false,
        mode: Mode::Vm,
        file: (file, Some(other)),
    };
    Twin { patience: Duration::ZERO, ..Twin::new(fake, "eth0", 2, wanted, String::new()) }
}

fn loaded(wanted: Mode) -> Twin<Fake> {
    let mut twin = twin(wanted);
    twin.load().unwrap();
    twin.look().unwrap();
    twin
}

fn told(twin: &Twin<Fake>) -> (Mode, told::State) {
    let told = twin.shared.lock().unwrap();
    (told.mode, told.state)
}

const ATTACHED: (Mode, told::State) = (Mode::TwinMirror, told::State::Attached);
const LOADED: (Mode, told::State) = (Mode::Vm, told::State::Loaded);
const ABSENT: (Mode, told::State) = (Mode::Vm, told::State::Absent);

#[test]
fn the_card_is_the_twins_while_it_is_wanted_and_the_interface_up() {
    let mut twin = loaded(Mode::TwinMirror);
    assert_eq!(told(&twin), ATTACHED);
    // The module takes the card away before the interface goes down.
    (twin.driver.is_up, twin.driver.state) = (false, State::Loaded);
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.told.why.as_deref()), (LOADED, Some("eth0 is down")));
    twin.driver.is_up = true;
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.told.why.as_deref()), (ATTACHED, None));
    twin.serve(Command::Mode(Mode::Vm)).unwrap();
    assert_eq!(told(&twin), LOADED);
    twin.serve(Command::Mode(Mode::TwinMirror)).unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (ATTACHED, 1));
    twin.serve(Command::Unload).unwrap();
    assert_eq!((told(&twin), twin.told.why.as_deref()), (ABSENT, None));
    twin.serve(Command::Unload).unwrap();
    twin.serve(Command::Mode(Mode::TwinMirror)).unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (ATTACHED, 2));
    twin.serve(Command::Load).unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (ATTACHED, 3));
    assert_eq!(told(&loaded(Mode::Vm)), LOADED);
}

#[test]
fn a_twin_of_another_mode_takes_the_place_of_one() {
    const STLB: (Mode, told::State) = (Mode::TwinStlb, told::State::Attached);
    let mut twin = loaded(Mode::TwinMirror);
    twin.serve(Command::Mode(Mode::TwinStlb)).unwrap();
    assert_eq!((told(&twin), twin.driver.mode, twin.driver.loads), (STLB, Mode::TwinStlb, 2));
    twin.serve(Command::Mode(Mode::Vm)).unwrap();
    twin.serve(Command::Mode(Mode::TwinStlb)).unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (STLB, 2), "it stays loaded");
    twin.serve(Command::Load).unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (STLB, 3), "loaded again it has the mode that it had");
    twin.serve(Command::Damage).unwrap();
    assert_eq!(told(&twin), ABSENT);
    twin.serve(Command::Load).unwrap();
    assert_eq!(told(&twin), STLB);
    twin.serve(Command::Mode(Mode::TwinMirror)).unwrap();
    assert_eq!((told(&twin), twin.driver.mode), (ATTACHED, Mode::TwinMirror));
    assert_eq!(told(&loaded(Mode::TwinStlb)), STLB);
}

#[test]
fn a_mode_that_is_refused_leaves_what_there_was() {
    for (wanted, there) in [(Mode::TwinMirror, ATTACHED), (Mode::Vm, LOADED)] {
        let mut twin = loaded(wanted);
        twin.driver.has_no_stlb = true;
        assert_eq!(twin.serve(Command::Mode(Mode::TwinStlb)), Err("no stlb".into()));
        assert_eq!((told(&twin), twin.driver.mode, twin.told.wanted), (there, Mode::TwinMirror, wanted));
    }
}

#[test]
fn an_aborted_twin_goes_and_says_where_and_is_loaded_again_only_when_asked_for() {
    let mut twin = loaded(Mode::TwinMirror);
    twin.serve(Command::Damage).unwrap();
    for _ in 0..3 {
        assert_eq!((told(&twin), twin.driver.loads, twin.driver.state), (ABSENT, 1, State::Empty));
        assert_eq!(twin.told.aborted.as_ref().map(|aborted| aborted.at.as_str()), Some("xmit+0x10"));
        assert_eq!((twin.told.aborts, twin.told.upcalls.len()), (1, 1));
        assert!(twin.told.why.as_ref().unwrap().contains("aborted"));
        twin.look().unwrap();
    }
    twin.driver.refuses = Some("the image is refused");
    assert_eq!(twin.serve(Command::Load), Err("the image is refused".into()));
    assert_eq!(twin.told.why.as_deref(), Some("the image is refused"));
    assert!(twin.told.aborted.is_some());
    twin.driver.refuses = None;
    twin.serve(Command::Load).unwrap();
    assert_eq!((told(&twin), twin.told.aborted.is_some(), twin.told.aborts, twin.told.loads), (ATTACHED, false, 1, 2));
}

#[test]
fn an_interface_that_comes_back_has_its_twin_again() {
    let mut twin = loaded(Mode::Vm);
    (twin.driver.state, twin.driver.is_there) = (State::Empty, false);
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.told.why.as_deref()), (ABSENT, Some("interface eth0 is gone")));
    twin.driver.is_there = true;
    // Its driver has not come up yet.
    twin.driver.refuses = Some("no handler");
    for _ in 0..3 {
        twin.look().unwrap();
        assert_eq!((told(&twin), twin.told.why.as_deref()), (ABSENT, Some("no handler")));
    }
    twin.driver.refuses = None;
    twin.rest = Rest::default();
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (LOADED, 3));
    // Not what was unloaded meanwhile.
    (twin.driver.state, twin.driver.is_there) = (State::Empty, false);
    twin.look().unwrap();
    twin.serve(Command::Unload).unwrap();
    twin.driver.is_there = true;
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (ABSENT, 3));
}

#[test]
fn a_load_that_fails_does_not_end_what_is_tried_again() {
    // It is tried again, has been loaded, or has just gone unseen.
    for case in 0..3 {
        let mut twin = loaded(Mode::TwinMirror);
        if case != 1 {
            twin.driver.state = State::Empty;
        }
        twin.driver.refuses = Some("no handler");
        if case == 0 {
            twin.look().unwrap();
        }
        let before = twin.driver.loads;
        assert_eq!(twin.serve(Command::Load), Err("no handler".into()), "{case}");
        assert_eq!((told(&twin), twin.driver.loads - before), (ABSENT, 1), "{case}: not at once");
        assert_eq!(twin.told.why.as_deref(), Some("no handler"));
        twin.driver.refuses = None;
        twin.driver.news += 1;
        twin.look().unwrap();
        assert_eq!((told(&twin), twin.told.wanted), (ATTACHED, Mode::TwinMirror), "{case}");
    }
    // What was there before another mode was asked for.
    let mut twin = loaded(Mode::Vm);
    twin.driver.refuses = Some("no memory");
    twin.serve(Command::Mode(Mode::TwinStlb)).unwrap_err();
    twin.driver.refuses = None;
    twin.driver.news += 1;
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.driver.mode), (LOADED, Mode::TwinMirror));
    // Not what was aborted, nor what was unloaded.
    for command in [Command::Damage, Command::Unload] {
        let mut twin = loaded(Mode::TwinMirror);
        twin.serve(command).unwrap();
        twin.driver.refuses = Some("no handler");
        twin.serve(Command::Load).unwrap_err();
        twin.driver.refuses = None;
        twin.driver.news += 1;
        twin.look().unwrap();
        assert_eq!(told(&twin), ABSENT, "{command:?}");
    }
}

#[test]
fn a_card_that_cannot_be_had_is_tried_again() {
    let mut twin = twin(Mode::TwinMirror);
    twin.driver.attach_fails = true;
    assert_eq!(twin.serve(Command::Load), Err("no switch".into()));
    assert_eq!((told(&twin), twin.said.as_str()), (LOADED, "not attached: no switch"));
    twin.driver.attach_fails = false;
    // Not at once.
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.said.as_str(), twin.driver.attaches), (LOADED, "not attached: no switch", 1));
    twin.rest = Rest::default();
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.said.as_str()), (ATTACHED, "attached"));
}

#[test]
fn one_that_cannot_be_loaded_keeps_no_other_from_it_and_is_tried_again() {
    let mut both = [twin(Mode::TwinMirror), twin(Mode::TwinMirror)];
    both[0].driver.refuses = Some("no twin");
    assert_eq!(load_all(&mut both), Ok(()));
    both.iter_mut().for_each(|twin| twin.look().unwrap());
    assert_eq!([told(&both[0]), told(&both[1])], [ABSENT, ATTACHED]);
    assert_eq!(both[0].told.why.as_deref(), Some("no twin"));
    both[0].driver.refuses = None;
    both[0].rest = Rest::default();
    both[0].look().unwrap();
    assert_eq!((told(&both[0]), both[1].driver.loads), (ATTACHED, 1));
    // Nobody would be served.
    both.iter_mut().for_each(|twin| {
        twin.serve(Command::Unload).unwrap();
        twin.driver.refuses = Some("none at all");
    });
    assert_eq!(load_all(&mut both), Err("none at all".into()));
}

/// Nor is it waited for when it is gone.
#[test]
fn what_is_seen_to_be_in_the_way_is_not_tried() {
    const EXDEV: i32 = 18;
    let mut twin = twin(Mode::TwinMirror);
    twin.driver.obstacle = EXDEV;
    twin.serve(Command::Load).unwrap_err();
    for _ in 0..3 {
        twin.look().unwrap();
        assert_eq!((told(&twin), twin.driver.attaches), (LOADED, 0));
        assert!(twin.told.why.as_ref().unwrap().contains("filters VLANs"));
    }
    twin.driver.obstacle = 0;
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.driver.attaches), (ATTACHED, 1));
}

#[test]
fn what_has_failed_is_tried_again_at_once_if_there_is_news_or_somebody_asks() {
    let mut twin = twin(Mode::TwinMirror);
    twin.driver.attach_fails = true;
    twin.serve(Command::Load).unwrap_err();
    let mut tried = |then: &mut dyn FnMut(&mut Twin<Fake>)| {
        let before = twin.driver.attaches;
        then(&mut twin);
        twin.look().unwrap();
        twin.driver.attaches - before
    };
    assert_eq!(tried(&mut |_| ()), 0);
    assert_eq!(tried(&mut |twin| twin.serve(Command::Look).unwrap()), 0);
    assert_eq!(tried(&mut |twin| twin.driver.news += 1), 1);
    assert_eq!(tried(&mut |twin| twin.serve(Command::Mode(Mode::TwinMirror)).unwrap_err().clear()), 1);
    // What may pass without anybody hearing of it is tried each time.
    assert_eq!(tried(&mut |twin| (twin.driver.attach_fails, twin.driver.is_no_way_out) = (false, true)), 0);
    assert_eq!(tried(&mut |twin| twin.driver.news += 1), 1);
    assert_eq!([tried(&mut |_| ()), tried(&mut |_| ()), tried(&mut |twin| twin.driver.is_no_way_out = false)], [1; 3]);
    assert_eq!(told(&twin), ATTACHED);
}

#[test]
fn who_asks_for_a_twin_waits_for_a_link_that_is_there_soon() {
    let mut twin = Twin { patience: Duration::from_secs(60), ..twin(Mode::TwinMirror) };
    let link = Arc::clone(&twin.driver.has_link);
    link.store(false, Ordering::Relaxed);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            link.store(true, Ordering::Relaxed);
        });
        twin.serve(Command::Load).unwrap();
    });
    assert_eq!(told(&twin), ATTACHED);
}

/// The module hears of the link; what it tells is waited for.
#[test]
fn a_thread_that_waits_for_a_link_hears_of_it() {
    let mut twin = twin(Mode::TwinMirror);
    let (link, mut module) = (Arc::clone(&twin.driver.has_link), twin.driver.file.1.take().unwrap());
    link.store(false, Ordering::Relaxed);
    twin.load().unwrap();
    let handle = twin.start().unwrap();
    let wait_for = |state| {
        while handle.told().state != state {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(told::State::Loaded);
    link.store(true, Ordering::Relaxed);
    module.write_all(&[0]).unwrap();
    wait_for(told::State::Attached);
}

/// They are found without a lock, before the module attaches the card with them.
#[test]
fn a_card_is_the_twins_with_the_interrupts_that_it_has() {
    let with = |irqs: &[u32]| {
        let mut twin = twin(Mode::TwinMirror);
        twin.driver.irqs = irqs.to_vec();
        let done = twin.serve(Command::Load);
        (done, told(&twin), twin.driver.attached_with)
    };
    assert_eq!(with(&[2]), (Ok(()), ATTACHED, vec![2]));
    assert_eq!(with(&[1, 2]), (Ok(()), ATTACHED, vec![1, 2]), "it has got one more meanwhile");
    let again_and_again = "its driver is given other interrupts again and again";
    assert_eq!(with(&[1, 2, 3, 4]), (Err(again_and_again.into()), LOADED, vec![1, 2, 3]));
    assert_eq!(with(&[1, 0]), (Err("unreadable".into()), LOADED, vec![1]));
}

/// Linux has it meanwhile, and the twin stays loaded.
#[test]
fn a_card_is_the_twins_only_while_it_has_a_link() {
    let mut twin = twin(Mode::TwinMirror);
    twin.driver.has_link.store(false, Ordering::Relaxed);
    assert_eq!(twin.serve(Command::Load), Err("eth0 has no link".into()));
    assert_eq!((told(&twin), twin.said.as_str()), (LOADED, "not attached: eth0 has no link"));
    twin.driver.has_link.store(true, Ordering::Relaxed);
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.told.why.as_deref()), (ATTACHED, None));
    // The module takes the card away when the link goes.
    twin.driver.has_link.store(false, Ordering::Relaxed);
    twin.driver.state = State::Loaded;
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.told.why.as_deref()), (LOADED, Some("eth0 has no link")));
    twin.driver.has_link.store(true, Ordering::Relaxed);
    twin.look().unwrap();
    assert_eq!((told(&twin), twin.driver.loads), (ATTACHED, 1));
}

#[test]
fn the_thread_of_one_that_nobody_can_ask_any_more_ends_and_leaves_the_module() {
    let mut twin = twin(Mode::Vm);
    let mut module = twin.driver.file.1.take().unwrap();
    module.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let handle = twin.start().unwrap();
    handle.ask(Command::Look).unwrap();
    drop(handle);
    assert_eq!(module.read(&mut [0]).unwrap(), 0, "its file is closed");
}

#[test]
fn who_load_one_twin_at_once_have_one() {
    const MANY: u32 = 8;
    let (twins, nr_made) = (Twins::default(), AtomicU32::new(0));
    let barrier = Barrier::new(MANY as usize);
    std::thread::scope(|threads| {
        let load = || {
            barrier.wait();
            let make = || {
                nr_made.fetch_add(1, Ordering::Relaxed);
                // What finding the driver takes.
                std::thread::sleep(Duration::from_millis(20));
                Ok(twin(Mode::TwinMirror))
            };
            twins.known_or_begun("eth0", make).unwrap().ask(Command::Load).unwrap();
        };
        (0..MANY).for_each(|_| drop(threads.spawn(load)));
    });
    assert_eq!(nr_made.load(Ordering::Relaxed), 1);
}
