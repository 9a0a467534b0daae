//! One interface's twin: what is wanted of it, and what is done to have it so.
//!
//! Each is on a thread of its own, which has the module's file. It waits for requests and for the module to say that
//! something has changed; what there is it leaves where everybody may look.

use control::request::Mode;
use control::told::{self, Counts};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twind::device::{Irq, Refusal, State, Status};

mod rest;

use rest::Rest;

/// What can be asked of a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// To say what there is now.
    Look,
    /// To load the driver's twin (again), and give it the card.
    Load,
    /// To unload it.
    Unload,
    /// To have packets carried so.
    Mode(Mode),
    /// To damage what it works on.
    Damage,
}

type Done = Sender<Result<(), String>>;

/// A twin's thread, for those who ask.
pub struct Handle {
    commands: Sender<(Command, Done)>,
    wake: UnixStream,
    told: Arc<Mutex<told::Twin>>,
}

impl Handle {
    /// Asks, and waits until it is done. Errors: in words.
    pub fn ask(&self, command: Command) -> Result<(), String> {
        let (done, is_done) = channel();
        let gone = "the twin's thread is gone";
        self.commands.send((command, done)).map_err(|_| gone)?;
        (&self.wake).write_all(&[0]).map_err(|_| gone)?;
        is_done.recv().map_err(|_| gone)?
    }

    /// What there was when it looked last.
    pub fn told(&self) -> told::Twin {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The driver, and what has its twin. Errors: in words.
pub trait Driver {
    /// Name of the driver's module.
    fn module(&self) -> &str;
    /// The interface is there, and will do.
    fn is_there(&self) -> bool;
    /// What there is.
    fn status(&mut self) -> Result<Status, String>;
    /// Makes a twin of this mode and loads it; none is loaded.
    fn load(&mut self, mode: Mode) -> Result<Status, String>;
    /// The twin goes, if it is not gone already.
    fn unload(&mut self) -> Result<(), String>;
    /// The interrupts that the card has now. They are read without a lock, so they may be others when this returns.
    fn interrupts(&mut self) -> Result<Vec<Irq>, String>;
    /// Gives it the card with these interrupts, at the switch of this interface of the domain's own. It is an error if
    /// one is no more.
    fn attach(&mut self, vif: u32, irqs: &[Irq]) -> Result<(), Refusal>;
    /// Takes the card away.
    fn detach(&mut self) -> Result<(), String>;
    /// Damages what the twin works on, until it is aborted.
    fn damage(&mut self) -> Result<(), String>;
    /// Functions that the twin had called.
    fn upcalls(&self, status: &Status) -> Vec<told::Upcall>;
    /// How the twin ended, if it is loaded, which it was.
    fn aborted(&self, status: &Status) -> Option<told::Aborted>;
}

/// The mode of a twin that carries packets so. `None`: no twin does.
fn kind_of(mode: Mode) -> Option<Mode> {
    (mode != Mode::Vm).then_some(mode)
}

/// A link takes about three seconds.
const LINK: Duration = Duration::from_secs(5);

/// See the module.
pub struct Twin<D> {
    driver: D,
    /// Begins lines of the log.
    label: String,
    /// What was logged last.
    said: String,
    /// Loaded, as far as is known here.
    is_loaded: bool,
    /// The mode of the twin that is loaded, or is to be.
    kind: Mode,
    /// It is to be loaded when the interface is there: that went, and with it the twin, or the twin could not be loaded
    /// to begin with.
    is_due: bool,
    /// What has failed is not tried again yet.
    rest: Rest,
    /// Its card had no link when it was looked at last.
    has_no_link: bool,
    /// For so long who asks for the twin waits for that link.
    patience: Duration,
    /// What is told.
    told: told::Twin,
    shared: Arc<Mutex<told::Twin>>,
}

impl<D: Driver> Twin<D> {
    /// Of interface `name`; none is loaded yet. `vif`: the domain's own interface at the switch.
    pub fn new(driver: D, name: &str, vif: u32, wanted: Mode, label: String) -> Self {
        let told = told::Twin {
            interface: name.into(),
            vif,
            driver: driver.module().into(),
            wanted,
            mode: Mode::Vm,
            state: told::State::Absent,
            why: None,
            number: None,
            loads: 0,
            aborts: 0,
            functions: 0,
            lent: 0,
            counts: None,
            upcalls: Vec::new(),
            aborted: None,
        };
        let shared = Arc::new(Mutex::new(told.clone()));
        let kind = kind_of(wanted).unwrap_or(Mode::TwinMirror);
        Self {
            driver,
            label,
            said: String::new(),
            is_loaded: false,
            kind,
            is_due: false,
            rest: Rest::default(),
            has_no_link: false,
            patience: LINK,
            told,
            shared,
        }
    }

    /// Loads the driver's twin; another one goes before. It gets the card when the module is looked at. Errors: in
    /// words.
    pub fn load(&mut self) -> Result<(), String> {
        self.unload()?;
        let status = self.driver.load(self.kind)?;
        (self.is_loaded, self.is_due, self.rest) = (true, false, Rest::default());
        (self.told.why, self.told.aborted) = (None, None);
        self.told.driver = self.driver.module().into();
        self.told.loads += 1;
        let (number, functions) = (status.stats.twin, status.stats.functions);
        self.say(&format!(
            "loaded as twin {number}, {}: {functions} functions, {} buffers lent",
            self.kind, status.lent
        ));
        Ok(())
    }

    /// The same to begin with: if it fails it is tried again from now on.
    fn load_or_wait(&mut self) -> Result<(), String> {
        self.load().inspect_err(|why| {
            self.is_due = true;
            self.set(Some(why.clone()));
        })
    }

    /// The same on request. If it fails, what was loaded, or was tried again, is tried again. What was aborted is not.
    fn load_anew(&mut self) -> Result<(), String> {
        self.is_due |= self.is_loaded;
        self.load().inspect_err(|why| {
            let news = self.driver.status().map_or(0, |status| status.news);
            self.rest.failed(why, news, Instant::now());
        })
    }

    /// The driver, when its twin is loaded or not.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    fn unload(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.is_loaded) {
            self.driver.unload()?;
        }
        Ok(())
    }

    fn say(&self, words: &str) {
        println!("twind: {}{words}", self.label);
    }

    /// Looks at the module's state, and does what is to be done to have it as it is wanted.
    fn look(&mut self) -> Result<(), String> {
        let mut status = self.driver.status()?;
        if self.is_loaded && status.state == State::Empty {
            (self.is_loaded, self.is_due) = (false, true);
            self.set(Some(format!("interface {} is gone", self.told.interface)));
        }
        if self.is_loaded && status.is_disabled {
            self.fell(&status)?;
            status = self.driver.status()?;
        }
        if self.is_due && self.rest.is_over(status.news, Instant::now()) && self.driver.is_there() {
            if let Err(why) = self.load() {
                self.rest.failed(&why, status.news, Instant::now());
                self.set(Some(why));
            }
            status = self.driver.status()?;
        }
        if self.is_loaded {
            self.strive(&status);
            status = self.driver.status()?;
        }
        self.has_no_link = self.is_loaded && status.has_no_link();
        self.tell(&status);
        Ok(())
    }

    /// A link that is just being negotiated, as after an abort, is there soon.
    fn wait_for_link(&mut self) -> Result<(), String> {
        const LOOK: Duration = Duration::from_millis(50);
        let end = Instant::now() + self.patience;
        while self.has_no_link && Instant::now() < end {
            std::thread::sleep(LOOK);
            self.look()?;
        }
        Ok(())
    }

    /// It was aborted: what it had goes back, and Linux is the way.
    fn fell(&mut self, status: &Status) -> Result<(), String> {
        let aborted = self.driver.aborted(status);
        self.told.upcalls = self.driver.upcalls(status);
        if let Some(aborted) = &aborted {
            let told::Aborted { reason, at, detail, .. } = aborted;
            self.say(&format!("the twin was aborted at {at}: {reason} ({detail}); packets go by this domain's Linux"));
        }
        self.told.counts = Some(Counts::from(&status.stats));
        self.told.aborted = aborted;
        self.told.aborts += 1;
        // The module does so by itself, and has the driver begin anew, but may not have come to it.
        if status.state == State::Attached {
            self.driver.detach()?;
        }
        self.unload()?;
        self.set(Some("the twin was aborted; `twinctl load` loads it again".into()));
        Ok(())
    }

    /// Gives the card, or takes it.
    fn strive(&mut self, status: &Status) {
        let is_wanted = self.told.wanted != Mode::Vm;
        let result = match (status.state, is_wanted) {
            (State::Attached, true) => Ok(()),
            (State::Attached, false) => self.driver.detach(),
            _ => match status.obstacle(&self.told.interface).filter(|_| is_wanted || status.is_down()) {
                Some(why) => Err(why),
                None if !is_wanted => Ok(()),
                None if !self.rest.is_over(status.news, Instant::now()) => return,
                None => self.try_to_attach(status.news),
            },
        };
        match result {
            Ok(()) if is_wanted => self.set_said(None, "attached".into()),
            Ok(()) => self.set_said(None, "not attached, as asked for".into()),
            Err(why) => self.set(Some(why)),
        }
    }

    /// The same. If it cannot be, that is tried again each second if it may pass, and else more and more rarely until
    /// there is news: a try costs time, and has Linux merge nothing for a moment.
    fn try_to_attach(&mut self, news: u32) -> Result<(), String> {
        self.attach().map_err(|Refusal { why, passes }| {
            if passes {
                self.rest = Rest::default();
            } else {
                self.rest.failed(&why, news, Instant::now());
            }
            why
        })?;
        self.rest = Rest::default();
        Ok(())
    }

    /// Gives the card with the interrupts that it has. The module finds those that are no more, but not others that
    /// have come meanwhile.
    fn attach(&mut self) -> Result<(), Refusal> {
        /// A driver that is told to use another number of queues has others once.
        const TRIES: u32 = 3;
        let mut irqs = self.driver.interrupts()?;
        for _ in 0..TRIES {
            self.driver.attach(self.told.vif, &irqs)?;
            match self.driver.interrupts() {
                Ok(now) if now == irqs => return Ok(()),
                Ok(now) => irqs = now,
                Err(why) => return Ok(self.driver.detach().and(Err(why))?),
            }
            self.driver.detach()?;
        }
        Err("its driver is given other interrupts again and again".into())
    }

    /// Notes why it is not as it is wanted.
    fn set(&mut self, why: Option<String>) {
        let words = why.as_ref().map_or_else(String::new, |why| format!("not attached: {why}"));
        self.set_said(why, words);
    }

    /// The same, and logs it if it is new.
    fn set_said(&mut self, why: Option<String>, words: String) {
        if words != self.said {
            self.say(&words);
            self.said = words;
        }
        self.told.why = why;
    }

    /// Leaves what there is where everybody may look.
    fn tell(&mut self, status: &Status) {
        let told = &mut self.told;
        told.state = match status.state {
            _ if !self.is_loaded => told::State::Absent,
            State::Empty => told::State::Absent,
            State::Loaded => told::State::Loaded,
            State::Attached => told::State::Attached,
        };
        told.mode = if told.state == told::State::Attached { self.kind } else { Mode::Vm };
        told.number = self.is_loaded.then_some(status.stats.twin);
        (told.functions, told.lent) = (status.stats.functions, status.lent);
        if self.is_loaded {
            told.counts = Some(Counts::from(&status.stats));
            told.upcalls = self.driver.upcalls(status);
        }
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = told.clone();
    }

    fn obey(&mut self, command: Command) -> Result<(), String> {
        if command != Command::Look {
            self.rest = Rest::default();
        }
        match command {
            Command::Look => Ok(()),
            Command::Load => {
                self.told.wanted = self.kind;
                self.load_anew()
            }
            Command::Unload => {
                self.told.wanted = Mode::Vm;
                self.is_due = false;
                self.unload().inspect(|()| self.set_said(None, "no twin is loaded, as asked for".into()))
            }
            Command::Mode(mode) => {
                let before = std::mem::replace(&mut self.told.wanted, mode);
                match kind_of(mode) {
                    Some(kind) => self.load_of(kind, before),
                    None => Ok(()),
                }
            }
            Command::Damage => self.driver.damage(),
        }
    }

    /// Sees to it that a twin of this mode is loaded. If it cannot be, what was loaded comes back, and `wanted` is
    /// wanted again.
    fn load_of(&mut self, kind: Mode, wanted: Mode) -> Result<(), String> {
        let before = std::mem::replace(&mut self.kind, kind);
        let was_loaded = self.is_loaded;
        if was_loaded && before == kind {
            return Ok(());
        }
        self.load().inspect_err(|_| {
            self.kind = before;
            if was_loaded {
                self.told.wanted = wanted;
                self.is_due = true;
                if let Err(why) = self.load_anew() {
                    self.say(&format!("the twin that was there does not come back: {why}"));
                }
            }
        })
    }

    /// Obeys, looks, and says what came of it.
    fn serve(&mut self, command: Command) -> Result<(), String> {
        let done = self.obey(command);
        if let Err(why) = &done {
            if matches!(command, Command::Load | Command::Mode(_)) {
                self.told.why = Some(why.clone());
            }
        }
        self.look()?;
        done?;
        if matches!(command, Command::Load | Command::Mode(Mode::TwinMirror | Mode::TwinStlb)) {
            self.wait_for_link()?;
        }
        match (command, &self.told.why) {
            (Command::Load | Command::Mode(Mode::TwinMirror | Mode::TwinStlb), Some(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }
}

/// Loads the twins of several interfaces; one that cannot be loaded keeps no other from it. Errors: the last one's, if
/// none can be.
pub fn load_all<'t, D: Driver + 't>(twins: impl IntoIterator<Item = &'t mut Twin<D>>) -> Result<(), String> {
    let mut all = Ok(());
    let mut is_any = false;
    for twin in twins {
        match twin.load_or_wait() {
            Ok(()) => is_any = true,
            Err(why) => all = Err(why),
        }
    }
    if is_any {
        return Ok(());
    }
    all
}

impl<D: Driver + AsFd + Send + 'static> Twin<D> {
    /// Goes on from now on, on a thread of its own.
    pub fn start(mut self) -> Result<Handle, String> {
        let (wake, woken) = UnixStream::pair().map_err(|error| error.to_string())?;
        woken.set_nonblocking(true).map_err(|error| error.to_string())?;
        let (commands, wanted) = channel();
        let told = Arc::clone(&self.shared);
        std::thread::spawn(move || self.run(&wanted, &woken));
        Ok(Handle { commands, wake, told })
    }

    /// Until nobody has its handle any more.
    fn run(&mut self, wanted: &Receiver<(Command, Done)>, mut woken: &UnixStream) {
        loop {
            if let Err(why) = self.look() {
                self.set(Some(why));
            }
            self.wait(woken);
            let _ = woken.read(&mut [0; 64]);
            loop {
                match wanted.try_recv() {
                    Ok((command, done)) => drop(done.send(self.serve(command))),
                    Err(TryRecvError::Empty) => break,
                    // Nobody can ask any more.
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Until the module or somebody else has something to say, or the time has come to try again.
    fn wait(&self, woken: &UnixStream) {
        /// From one try to the next, in seconds.
        const AGAIN_S: i64 = 1;
        let mut ready = [PollFd::new(&self.driver, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        match poll(&mut ready, Some(&Timespec { tv_sec: AGAIN_S, tv_nsec: 0 })) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                println!("twind: {}cannot wait: {error}", self.label);
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

#[cfg(test)]
mod tests;
