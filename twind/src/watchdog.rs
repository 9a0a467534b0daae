//! Tells systemd that all twins' threads answer, so that it starts a daemon again of which one does not any more (systemd.service(5), `WatchdogSec=`).
//!
//! What hangs is no more when the file of the kernel module is closed with the process: Linux has the card then, and the next daemon makes the twin anew.

use crate::control::Twins;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// So often within the time after which it would be started again.
const TIMES: u32 = 4;

/// Tells it from now on, if it has started us and waits for that.
pub fn begin(twins: &Twins) {
    let Some((place, limit)) = std::env::var_os("NOTIFY_SOCKET").zip(limit(std::env::var("WATCHDOG_USEC").ok())) else {
        return;
    };
    let twins = twins.clone();
    std::thread::spawn(move || loop {
        twins.wait_for_all();
        if let Err(error) = tell(&place) {
            println!("twind: systemd cannot be told: {error}");
        }
        std::thread::sleep(limit / TIMES);
    });
}

fn limit(said: Option<String>) -> Option<Duration> {
    said?.parse().ok().filter(|us| *us > 0).map(Duration::from_micros)
}

/// `@NAME` has no file.
fn tell(place: &OsStr) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    socket.send_to_addr(b"WATCHDOG=1", &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_of_it_wherever_it_listens() {
        let name = format!("twind-watchdog-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let at_path = (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap());
        let at_name = (format!("@{name}").into(), UnixDatagram::bind_addr(&abstract_name).unwrap());
        for (place, listener) in [at_path, at_name] {
            tell(&place).unwrap();
            let mut said = [0; 32];
            let len = listener.recv(&mut said).unwrap();
            assert_eq!(&said[..len], b"WATCHDOG=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(tell(path.as_os_str()).is_err());
    }

    #[test]
    fn who_is_not_watched_tells_nobody() {
        let limits = [None, Some(""), Some("0"), Some("x"), Some("180000000")].map(|said| limit(said.map(Into::into)));
        assert_eq!(limits, [None, None, None, None, Some(Duration::from_secs(180))]);
    }
}
