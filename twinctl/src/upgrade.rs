//! Waiting for the end of an upgrade.

use anyhow::{bail, Context, Result};
use control::request::Which;
use control::socket::Connection;
use control::told::{LookedAfter, Service};
use control::{Answer, Request, Told};
use std::path::Path;
use std::time::{Duration, Instant};

/// So often is asked how it goes.
const OFTEN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 500 });
/// So long nobody has to answer, or to know of it: the daemon may be started anew meanwhile, and has a look at all
/// first.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 30_000 });

/// What there is when the upgrade that `told` shows has ended. Errors: why it was refused.
pub fn wait(socket: &Path, told: &Told) -> Result<Told> {
    let (service, before) = one(told)?;
    let which = Which { service: Some(service.name.clone()), ..Which::default() };
    let status = Request::Status { which };
    let before = before.upgrades.saturating_sub(u64::from(before.upgrade.is_none()));
    let mut shown = String::new();
    let mut heard = Instant::now();
    loop {
        match ask(socket, &status) {
            Ok(told) => {
                let (_, now) = one(&told)?;
                if now.upgrades > before {
                    return match &now.refused {
                        Some(why) => bail!("the upgrade is refused: {why}"),
                        None => Ok(told),
                    };
                }
                match &now.upgrade {
                    Some(words) => {
                        heard = Instant::now();
                        if *words != shown {
                            eprintln!("{words}");
                            shown.clone_from(words);
                        }
                    }
                    // What the daemon could not write down is forgotten when it is killed.
                    None if heard.elapsed() > PATIENCE => {
                        bail!("nobody knows any more of the upgrade, nor how it ended: `twinctl status` says what runs")
                    }
                    None => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use control::socket::{listen, serve};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn told(upgrade: Option<&str>, upgrades: u64, refused: Option<&str>) -> Told {
        let (upgrade, refused) = (upgrade.map(String::from), refused.map(String::from));
        let looked_after = Some(LookedAfter { upgrade, upgrades, refused, ..LookedAfter::default() });
        Told::Tandemd { services: vec![Service { name: "net".into(), looked_after, ..Service::default() }] }
    }

    /// What comes of it if the daemon tells these one after the other, and then the last for ever.
    fn wait_for(name: &str, all: Vec<Told>) -> Result<Told> {
        let path = std::env::temp_dir().join(format!("twinctl-upgrade-{}-{name}/one.sock", std::process::id()));
        let (first, looks) = (all[0].clone(), AtomicUsize::new(1));
        serve(listen(&path).unwrap(), move |_| {
            let n = looks.fetch_add(1, Ordering::Relaxed).min(all.len() - 1);
            Answer::Ok(all[n].clone())
        });
        let end = wait(&path, &first);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        end
    }

    #[test]
    fn an_upgrade_ends_well_or_not_or_nobody_knows() {
        let (begins, ends) = (told(Some("it boots"), 4, None), told(None, 5, None));
        assert_eq!(wait_for("ends", vec![begins.clone(), begins.clone(), ends.clone()]).unwrap(), ends);
        assert_eq!(wait_for("at-once", vec![ends.clone()]).unwrap(), ends);
        let refused = wait_for("refused", vec![begins.clone(), told(None, 5, Some("it has panicked"))]).unwrap_err();
        assert_eq!(refused.to_string(), "the upgrade is refused: it has panicked");
        // A daemon that has just begun.
        let anew = told(None, 0, None);
        let all = vec![begins.clone(), anew.clone(), begins.clone(), anew.clone(), ends.clone()];
        assert_eq!(wait_for("anew", all).unwrap(), ends);
        for (name, forgotten) in [("as-before", told(None, 4, None)), ("none", anew.clone())] {
            let error = wait_for(name, vec![begins.clone(), begins.clone(), forgotten]).unwrap_err();
            assert!(error.to_string().contains("nobody knows any more"), "{error}");
        }
        assert!(wait_for("never", vec![anew]).unwrap_err().to_string().contains("nobody knows any more"));
    }
}
