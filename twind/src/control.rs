//! What is asked of the daemon: at its socket, by whoever is root here, and by xenstore, from domain 0.

use crate::live::Live;
use crate::twin::{Command, Driver, Handle, Twin};
use control::request::{Mode, Which};
use control::store::Client;
use control::{errand, socket, Answer, Request, Told};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// So long after domain 0 could not be served that is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The twins of this domain, by their interfaces.
#[derive(Clone, Default)]
pub struct Twins(Arc<Mutex<BTreeMap<String, Arc<Handle>>>>);

impl Twins {
    fn all(&self) -> BTreeMap<String, Arc<Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The twin of this interface; if there is none, that which is made. Two who ask at once get the same one: nobody
    /// else looks meanwhile.
    pub fn known_or_begun<D: Driver + AsFd + Send + 'static>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Twin<D>, String>,
    ) -> Result<Arc<Handle>, String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(name) {
            return Ok(Arc::clone(known));
        }
        let begun = Arc::new(make()?.start()?);
        all.insert(name.into(), Arc::clone(&begun));
        Ok(begun)
    }

    /// Until each has answered.
    pub fn wait_for_all(&self) {
        for twin in self.all().values() {
            // What it could not do it says elsewhere.
            let _ = twin.ask(Command::Look);
        }
    }

    /// All of them go.
    pub fn end(&self) {
        for (name, twin) in self.all() {
            if let Err(why) = twin.ask(Command::Unload) {
                println!("twind: {name}: {why}");
            }
        }
    }

    /// Those that are meant. Errors: in words, if there is none.
    fn chosen(&self, which: &Which) -> Result<Vec<Arc<Handle>>, String> {
        let all = self.all();
        if let Some(name) = &which.interface {
            let there: Vec<&str> = all.keys().map(String::as_str).collect();
            let found = all.get(name).cloned().ok_or_else(|| match &there[..] {
                [] => format!("{name} has no twin, and nothing else has; `twinctl load {name}` makes one"),
                there => format!("{name} has no twin; there are those of {}", there.join(", ")),
            })?;
            return Ok(vec![found]);
        }
        let is_meant = |twin: &Arc<Handle>| which.vif.is_none_or(|vif| twin.told().vif == vif);
        Ok(all.into_values().filter(is_meant).collect())
    }

    fn one(&self, which: &Which) -> Result<Arc<Handle>, String> {
        let mut chosen = self.chosen(which)?;
        match (chosen.pop(), chosen.is_empty()) {
            (Some(twin), true) => Ok(twin),
            (Some(_), false) => Err("say of which interface: there are several".into()),
            (None, _) => Err("say of which interface the twin is to be: none has one".into()),
        }
    }

    /// Carries a request out.
    pub fn answer(&self, request: &Request) -> Answer {
        self.carry_out(request).map(|twins| Told::Twind { twins }).into()
    }

    fn carry_out(&self, request: &Request) -> Result<Vec<control::told::Twin>, String> {
        let which = request.which();
        let (twin, command) = match request {
            Request::Status { .. } => {
                let chosen = self.chosen(which)?;
                chosen.iter().try_for_each(|twin| twin.ask(Command::Look))?;
                return Ok(chosen.iter().map(|twin| twin.told()).collect());
            }
            Request::Load { .. } => (self.known_or_new(which)?, Command::Load),
            Request::Unload { .. } => (self.one(which)?, Command::Unload),
            Request::Mode { mode, .. } => {
                let mode = *mode;
                let twin = if mode == Mode::Vm { self.one(which)? } else { self.known_or_new(which)? };
                (twin, Command::Mode(mode))
            }
            Request::Damage { .. } => (self.one(which)?, Command::Damage),
            Request::DriverDomain { .. } | Request::Upgrade { .. } | Request::Reload { .. } => {
                return Err("that is tandemd's, in domain 0".into());
            }
        };
        twin.ask(command)?;
        Ok(vec![twin.told()])
    }

    /// The twin that is meant; that of an interface that is named is begun with if there is none.
    fn known_or_new(&self, which: &Which) -> Result<Arc<Handle>, String> {
        let Some(name) = &which.interface else { return self.one(which) };
        let vif = which.vif.unwrap_or(0);
        self.known_or_begun(name, || Ok(Twin::new(Live::of(name)?, name, vif, Mode::TwinMirror, label(name))))
    }
}

/// Begins a line of the log about one of several.
pub fn label(name: &str) -> String {
    format!("{name}: ")
}

/// Serves both from now on. Without a store only the socket is served.
pub fn begin(twins: &Twins, listener: UnixListener) {
    let asked = twins.clone();
    socket::serve(listener, move |request| asked.answer(&request));
    let asked = twins.clone();
    std::thread::spawn(move || {
        let say = |why: &str| println!("twind: domain 0 cannot ask, and it is tried again: {why}");
        serve_on(
            || serve_store(&asked),
            say,
            || {
                std::thread::sleep(AGAIN);
                true
            },
        );
    });
}

/// Serves, and begins anew when that has failed, as long as it `goes_on`. What went wrong is said once, until it is
/// something else.
fn serve_on(
    mut serve: impl FnMut() -> Result<(), control::Error>,
    mut say: impl FnMut(&str),
    mut goes_on: impl FnMut() -> bool,
) {
    let mut said = String::new();
    while let Err(error) = serve() {
        let why = format!("{error:#}");
        if why != said {
            say(&why);
            said = why;
        }
        if !goes_on() {
            return;
        }
    }
}

/// By a connection of its own, until that or something else fails.
fn serve_store(twins: &Twins) -> Result<(), control::Error> {
    let mut store = Client::open()?;
    let mut server = errand::Server::begin(&mut store, errand::OWN)?;
    loop {
        server.serve(&mut store, None, &|request| twins.answer(&request))?;
    }
}

/// Nobody is served yet: one that was killed may have left there that it serves domain 0. Unless another one does.
pub fn not_yet(path: &Path) {
    if UnixStream::connect(path).is_err() {
        let _ = Client::open().and_then(|mut store| errand::end(&mut store, errand::OWN));
    }
}

/// Nobody is served any more.
pub fn end(path: &Path) {
    let _ = std::fs::remove_file(path);
    if let Ok(mut store) = Client::open() {
        let _ = errand::end(&mut store, errand::OWN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_in_words() {
        let twins = Twins::default();
        let said = |line: &str| match twins.answer(&Request::parse(line).unwrap()) {
            Answer::Error(why) => why,
            told => panic!("{told:?}"),
        };
        let none = twins.answer(&Request::parse(r#"{"command":"status"}"#).unwrap());
        assert_eq!(none, Answer::Ok(Told::Twind { twins: Vec::new() }));
        assert!(said(r#"{"command":"unload"}"#).contains("which interface"));
        assert!(said(r#"{"command":"load"}"#).contains("which interface"));
        assert!(said(r#"{"command":"load","which":{"interface":"no/such"}}"#).contains("no name of an interface"));
        assert!(said(r#"{"command":"unload","which":{"interface":"eth9"}}"#).contains("eth9 has no twin"));
        assert!(said(r#"{"command":"mode","mode":"vm","which":{"vif":3}}"#).contains("which interface"));
        assert!(said(r#"{"command":"mode","mode":"twin-stlb"}"#).contains("which interface"));
    }

    #[test]
    fn who_cannot_be_served_is_served_again_and_that_is_said_once() {
        let (mut nr_tries, mut said) = (0, Vec::new());
        let serve = || {
            nr_tries += 1;
            Err(control::Error::msg(if nr_tries < 5 { "xenstore has gone" } else { "another" }))
        };
        let mut left = 9;
        let goes_on = || {
            left -= 1;
            left > 0
        };
        serve_on(serve, |why| said.push(why.to_string()), goes_on);
        assert_eq!((nr_tries, said), (9, vec!["xenstore has gone".to_string(), "another".to_string()]));
    }
}
