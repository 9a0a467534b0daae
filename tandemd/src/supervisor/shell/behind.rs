//! A driver domain that is a guest of other services: its disks are a network's, say, whose driver domain is another
//! one.

use super::Shell;
use crate::config::{Config, Kind};
use crate::hypercall::Switches;
use crate::store::Store;
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::collections::BTreeSet;
use xen_abi::channel_op as op;

/// A service whose guest it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Behind {
    /// Its name.
    pub name: String,
    /// Its own domain, if that is there. Without it the toolstack creates no guest of its.
    pub domain: Option<u16>,
    /// It is a network whose way out is a driver domain.
    has_way_out: bool,
}

/// Those of these back ends that are services, other than the driver domain's own.
pub fn of(config: &Config, service: &str, driver: &str, back_ends: &BTreeSet<String>) -> Vec<Behind> {
    let named = config.service.iter().filter(|(name, _)| *name != service && back_ends.contains(*name));
    let behind = |(name, of): (&String, &crate::config::Service)| Behind {
        name: name.clone(),
        domain: None,
        has_way_out: of.kind == Kind::Net && of.driver_domain.as_deref().is_some_and(|other| other != driver),
    };
    named.map(behind).collect()
}

impl Shell {
    /// Whether a network that it needs has no way out just now.
    pub(super) fn is_cut_off(&mut self) -> Result<bool> {
        for service in self.behind.iter().filter(|service| service.has_way_out) {
            let path = format!("/tool/tandem/{}/switch", service.name);
            let switch = self.store.read(&path)?.and_then(|number| number.parse().ok());
            match switch.map(|switch| self.hypervisor.way_out(switch)) {
                Some(Ok(way)) if way.kind != op::WAY_OUT_NONE => {}
                // There is no switch yet, or it has nobody's interface.
                None | Some(Ok(_) | Err(Errno::NOENT)) => return Ok(true),
                Some(Err(error)) => return Err(error).context("a switch's way out"),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_whose_guest_it_is() {
        let config: Config = toml::from_str(
            "[service.net]\ndriver-domain='dd'\n[service.lab]\n[service.own]\ndriver-domain='dd-disk'\n\
             [service.disk]\nkind='disk'\ndriver-domain='dd-disk'\n[service.other]\ndriver-domain='dd'",
        )
        .unwrap();
        let back_ends = ["net", "lab", "own", "disk", "dom"].map(String::from).into();
        let found: Vec<(String, bool)> =
            of(&config, "disk", "dd-disk", &back_ends).into_iter().map(|of| (of.name, of.has_way_out)).collect();
        assert_eq!(found, [("lab".to_string(), false), ("net".into(), true), ("own".into(), false)]);
    }
}
