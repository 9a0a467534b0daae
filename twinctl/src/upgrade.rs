//! Waiting for the end of an upgrade.

use anyhow::{bail, Context, Result};
use control::request::Which;
use control::socket::Connection;
use control::told::{LookedAfter, Service};
use control::{Answer, Request, Told};
use std::path::Path;
use std::time::{Duration, Instant};

/// So often is asked how it goes.
const OFTEN: Duration = Duration::from_millis(500);
/// So long nobody has to answer: the daemon may be started anew meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// What there is when the upgrade that `told` shows has ended. Errors: why it was refused.
pub fn wait(socket: &Path, told: &Told) -> Result<Told> {
    let (service, before) = one(told)?;
    let which = Which { service: Some(service.name.clone()), ..Which::default() };
    let status = Request::Status { which };
    let before = before.upgrades - u64::from(before.upgrade.is_none());
    let mut shown = String::new();
    let mut heard = Instant::now();
    loop {
        match ask(socket, &status) {
            Ok(told) => {
                heard = Instant::now();
                let (_, now) = one(&told)?;
                if now.upgrades > before {
                    return match &now.refused {
                        Some(why) => bail!("the upgrade is refused: {why}"),
                        None => Ok(told),
                    };
                }
                let words = now.upgrade.clone().unwrap_or_default();
                if words != shown {
                    eprintln!("{words}");
                    shown = words;
                }
            }
            Err(error) if heard.elapsed() > PATIENCE => return Err(error.context("how the upgrade goes")),
            Err(_) => {}
        }
        std::thread::sleep(OFTEN);
    }
}

/// A daemon that has just begun does not know of all yet.
fn ask(socket: &Path, status: &Request) -> Result<Told> {
    match Connection::open(socket)?.ask(status)? {
        Answer::Ok(told) => {
            one(&told)?;
            Ok(told)
        }
        Answer::Error(why) => bail!("{why}"),
    }
}

fn one(told: &Told) -> Result<(&Service, &LookedAfter)> {
    let Told::Tandemd { services } = told else { bail!("that is no answer of tandemd's") };
    let service = services.first().context("the service is gone")?;
    Ok((service, service.looked_after.as_ref().context("nobody looks after it any more")?))
}
