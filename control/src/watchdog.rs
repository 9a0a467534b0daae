//! Tells systemd how it goes with a daemon (sd_notify(3)): that it is ready, and, again and again, that it works. One
//! that does not any more is started again (systemd.service(5), `WatchdogSec=`).

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// So often within the time after which it would be started again.
const TIMES: u32 = 4;

/// Tells it from now on while `works` says so, if it has started us and waits for that. `works` may take its time, and
/// then nothing is told. `say`: for what goes wrong.
pub fn begin(works: impl FnMut() -> bool + Send + 'static, say: fn(Arguments<'_>)) {
    let Some((place, limit)) = std::env::var_os("NOTIFY_SOCKET").zip(limit(std::env::var("WATCHDOG_USEC").ok())) else {
        return;
    };
    std::thread::spawn(move || watch(&place, limit / TIMES, works, say));
}

/// Tells it that what it has started is ready, if it waits for that. Errors: it cannot be told.
pub fn tell_ready() -> io::Result<()> {
    std::env::var_os("NOTIFY_SOCKET").map_or(Ok(()), |place| tell(&place, b"READY=1"))
}

fn watch(place: &OsStr, pause: Duration, mut works: impl FnMut() -> bool, say: fn(Arguments<'_>)) {
    loop {
        if works() {
            if let Err(error) = tell(place, b"WATCHDOG=1") {
                say(format_args!("systemd cannot be told that all is well: {error}"));
            }
        }
        std::thread::sleep(pause);
    }
}

fn limit(said: Option<String>) -> Option<Duration> {
    said?.parse().ok().filter(|us| *us > 0).map(Duration::from_micros)
}

/// `@NAME` has no file.
fn tell(place: &OsStr, what: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    socket.send_to_addr(what, &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn systemd_hears_of_it_wherever_it_listens() {
        let name = format!("control-watchdog-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let at_path = (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap());
        let at_name = (format!("@{name}").into(), UnixDatagram::bind_addr(&abstract_name).unwrap());
        for (place, listener) in [at_path, at_name] {
            tell(&place, b"READY=1").unwrap();
            let mut said = [0; 32];
            let len = listener.recv(&mut said).unwrap();
            assert_eq!(&said[..len], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(tell(path.as_os_str(), b"READY=1").is_err());
    }

    #[test]
    fn it_is_told_as_long_as_all_works() {
        static WORKS: AtomicBool = AtomicBool::new(true);
        let place = format!("control-watchdog-works-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&place).unwrap()).unwrap();
        let place = format!("@{place}");
        std::thread::spawn(move || {
            watch(place.as_ref(), Duration::from_millis(1), || WORKS.load(Ordering::SeqCst), |_| ());
        });
        let hears = || {
            let mut said = [0; 32];
            let len = listener.recv(&mut said)?;
            assert_eq!(&said[..len], b"WATCHDOG=1");
            io::Result::Ok(())
        };
        (0..3).for_each(|_| hears().unwrap());
        WORKS.store(false, Ordering::SeqCst);
        listener.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        // What was on its way comes.
        let is_silent = (0..10_000).any(|_| hears().is_err());
        assert!(is_silent && hears().is_err());
        WORKS.store(true, Ordering::SeqCst);
        listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(hears().is_ok());
    }

    #[test]
    fn who_is_not_watched_tells_nobody() {
        let limits = [None, Some(""), Some("0"), Some("x"), Some("180000000")].map(|said| limit(said.map(Into::into)));
        assert_eq!(limits, [None, None, None, None, Some(Duration::from_secs(180))]);
    }
}
