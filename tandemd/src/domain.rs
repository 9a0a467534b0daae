//! The domain that a service's interfaces are granted to: permanent, never run, of 4 MiB (what the toolstack maps for a kernel at least).
//!
//! Guests' front ends keep its domid for life, so it outlives this process. It is made by the toolstack itself, so `xl list`,
//! `xl destroy` and everything else know it as they know any domain; it is told from others of its name by its UUID.

use crate::departure;
use crate::hypercall::{GRANT_FRAMES, SERVICE_MIB};
use crate::kernel;
use crate::store::Store;
use anyhow::{bail, ensure, Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{mpsc, Mutex, PoisonError};
use std::time::Duration;

/// Files of the daemon's while it runs.
pub const RUN: &str = "/run/tandem";

/// So long is waited for xl where guests wait.
const SOON: Duration = Duration::from_secs(10);

/// The domid of a service's domain, which is made if there is none. That may take any time. Errors: another domain has the name; the toolstack refuses.
pub fn find_or_make(store: &mut impl Store, service: &str) -> Result<u16> {
    if let Some(domain) = find(store, service)? {
        return Ok(domain);
    }
    // Whoever ends them waits until none of its name is there.
    ensure!(!departure::is_under_way(), "all domains are being ended; its own is made when that is over");
    make(service)?;
    find(store, service)?.with_context(|| format!("the toolstack has made the domain {service}, and it is not there"))
}

fn find(store: &mut impl Store, service: &str) -> Result<Option<u16>> {
    let asked = Command::new("xl").args(["domid", service]).stdin(Stdio::null()).output().context("cannot start xl")?;
    if !asked.status.success() {
        return Ok(None);
    }
    let domain = String::from_utf8_lossy(&asked.stdout).trim().parse().context("`xl domid` does not say a number")?;
    let is_ours = store.read(&format!("/local/domain/{domain}/vm"))? == Some(format!("/vm/{}", uuid(service)));
    ensure!(is_ours, "there is a domain {service} (domid {domain}) already, and it is not this service's");
    Ok(Some(domain))
}

fn make(service: &str) -> Result<()> {
    // One after the other: all have the same image, and xl has a lock, too.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let place = |name: String| Path::new(RUN).join(name);
    let (image, configuration) = (place("backend.elf".into()), place(format!("{service}.cfg")));
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&image, &kernel::image())?;
    let text = format!(
        "# Made by tandemd. The guests of the service {service} grant to this domain; it never runs.\n\
         type=\"pv\"\nname=\"{service}\"\nuuid=\"{}\"\nkernel=\"{}\"\nmemory={SERVICE_MIB}\nvcpus=1\n\
         max_grant_frames={GRANT_FRAMES}\n\
         on_poweroff=\"destroy\"\non_reboot=\"destroy\"\non_crash=\"destroy\"\n",
        uuid(service),
        image.display()
    );
    write(&configuration, text.as_bytes())?;
    run(Command::new("xl").args(["create", "-q", "-p", "-e"]).arg(&configuration))
}

/// Lets the toolstack end a service's domain.
pub fn destroy(domain: u16) -> Result<()> {
    let (tell, ended) = mpsc::channel();
    let destroy = move || {
        let _ = tell.send(run(Command::new("xl").args(["destroy", &domain.to_string()])));
    };
    std::thread::Builder::new().name("domain".into()).spawn(destroy).context("no thread")?;
    ended.recv_timeout(SOON).with_context(|| format!("xl destroy {domain} is at work still"))?
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output().context("cannot start xl")?;
    if !done.status.success() {
        bail!("xl: {}", String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; "));
    }
    Ok(())
}

/// The UUID of a service's domain: the same each time, so that it is found again.
fn uuid(service: &str) -> String {
    let hash = hash(service);
    // Of the kind whose bits mean nothing, with a beginning that people recognise.
    format!("74616e64-656d-8000-{:04x}-{:012x}", 0x8000 | (hash >> 48 & 0x3fff), hash & 0xffff_ffff_ffff)
}

/// FNV-1a of a name.
pub fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_uuids_of_their_own() {
        assert_eq!(uuid("net"), uuid("net"));
        assert_ne!(uuid("net"), uuid("lab"));
        assert_eq!(uuid("net").len(), 36);
    }
}
