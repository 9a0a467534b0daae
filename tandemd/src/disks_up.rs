//! `tandemd --wait`: whoever starts guests with the machine waits until the driver domains of their disks are there. A
//! guest waits for its disk as long as it takes, but who looks for its root file system in a guest's initramfs gives
//! up: Debian's after half a minute.

use ::control::request::Which;
use ::control::socket::Connection;
use ::control::told::{LookedAfter, Service};
use ::control::{Answer, Request, Told};
use anyhow::{bail, ensure, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// So often is asked how it goes.
const OFTEN: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
/// One that does this does not come by itself, or is there.
const IS_SETTLED: [&str; 3] = ["up", "off", "parked"];

/// Waits until those that are looked after are up, or do not come. Errors: which are not, so long after; nobody says
/// so.
pub fn wait(limit: Duration) -> Result<()> {
    wait_for(limit, || {
        let status = Request::Status { which: Which::default() };
        match Connection::open(Path::new(::control::TANDEMD))?.ask(&status)? {
            Answer::Ok(Told::Tandemd { services }) => Ok(services),
            Answer::Ok(Told::Twind { .. }) => bail!("that is no answer of tandemd's"),
            Answer::Error(why) => bail!("{why}"),
        }
    })
}

fn wait_for(limit: Duration, mut ask: impl FnMut() -> Result<Vec<Service>>) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let coming = ask().map(|services| coming(&services).into_iter().map(String::from).collect::<Vec<_>>());
        match coming {
            Ok(coming) if coming.is_empty() => return Ok(()),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => {}
            Ok(coming) => {
                ensure!(Instant::now() < end, "not up after {} s: {}", limit.as_secs(), coming.join(", "));
            }
        }
        std::thread::sleep(OFTEN);
    }
}

/// Driver domains of disks that are on their way. One may be looked after for another of its services.
fn coming(services: &[Service]) -> BTreeSet<&str> {
    let is_coming = |told: &LookedAfter| !IS_SETTLED.contains(&told.state.as_str());
    let of_disks = services.iter().filter(|service| service.is_of_disks);
    let drivers: BTreeSet<&str> = of_disks.filter_map(|service| service.driver_domain.as_deref()).collect();
    let looked_after = services.iter().filter(|service| service.looked_after.as_ref().is_some_and(is_coming));
    looked_after.filter_map(|service| service.driver_domain.as_deref()).filter(|of| drivers.contains(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, driver: &str, is_of_disks: bool, state: Option<&str>) -> Service {
        let looked_after = state.map(|state| LookedAfter { state: state.into(), ..LookedAfter::default() });
        Service {
            name: name.into(),
            driver_domain: Some(driver.into()),
            is_of_disks,
            looked_after,
            ..Service::default()
        }
    }

    #[test]
    fn who_starts_guests_waits_for_driver_domains_of_disks() {
        let services = |disk: &str, both: &str| {
            vec![
                service("net", "dd-net", false, Some("starting")),
                service("disk", "dd-disk", true, Some(disk)),
                service("lan", "dd-both", false, Some(both)),
                service("media", "dd-both", true, None),
                service("alone", "dd-alone", true, None),
            ]
        };
        assert_eq!(
            coming(&services("starting", "up")),
            BTreeSet::from(["dd-disk"]),
            "guests wait for packets as they are"
        );
        assert_eq!(coming(&services("unknown", "waiting")), BTreeSet::from(["dd-both", "dd-disk"]));
        for state in ["up", "off", "parked"] {
            assert!(coming(&services(state, state)).is_empty(), "{state}");
        }
        // Nobody answers at first; then they come one after the other.
        let mut looks = 0;
        let answer = |looks| match looks {
            1 => bail!("nobody is there"),
            2 => Ok(services("unknown", "unknown")),
            3 => Ok(services("up", "starting")),
            _ => Ok(services("up", "parked")),
        };
        let ask = || {
            looks += 1;
            answer(looks)
        };
        assert!(wait_for(Duration::from_secs(60), ask).is_ok());
        assert_eq!(looks, 4);
        let said = wait_for(Duration::ZERO, || answer(2)).unwrap_err().to_string();
        assert_eq!(said, "not up after 0 s: dd-both, dd-disk");
        assert!(wait_for(Duration::ZERO, || answer(1)).is_err());
    }
}
