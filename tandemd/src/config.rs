//! What the operator says: `/etc/tandem/tandemd.toml`.
//!
//! ```toml
//! [service.net]                # guests say vif = ['backend=net']
//! driver-domain = "dd"         # its interface is the way out
//! ```

use anyhow::{ensure, Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// Where it is looked for, if nothing else is said.
pub const PATH: &str = "/etc/tandem/tandemd.toml";

/// All that can be said.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Services by name: a switch each, and a domain of this name as the back end of guests' interfaces.
    pub service: BTreeMap<String, Service>,
}

/// A service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Service {
    /// Name of the domain whose interface is the way out.
    pub driver_domain: Option<String>,
}

impl Config {
    /// Reads a file. Without one there is a service `net`, and no way out.
    pub fn read(path: &Path) -> Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("{}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Self { service: BTreeMap::from([("net".into(), Service::default())]) })
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// From the file's text.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)?;
        ensure!(!config.service.is_empty(), "there is no service; a section `[service.net]` makes one");
        for (name, service) in &config.service {
            ensure!(is_name(name), "`{name}` cannot be a domain's name: letters, digits and -_.+ are");
            if let Some(driver) = &service.driver_domain {
                ensure!(is_name(driver), "`{driver}` cannot be a domain's name: letters, digits and -_.+ are");
                ensure!(driver != name, "`{name}` cannot be its own driver domain");
            }
        }
        Ok(config)
    }
}

/// Whether a domain can be called so; it is written into a configuration of the toolstack's.
fn is_name(name: &str) -> bool {
    let is_number = name.bytes().all(|b| b.is_ascii_digit());
    !is_number && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_driver_domains_or_not() {
        let config = Config::parse("[service.net]\ndriver-domain = \"dd\"\n[service.lab]\n").unwrap();
        assert_eq!(config.service["net"].driver_domain.as_deref(), Some("dd"));
        assert_eq!(config.service["lab"].driver_domain, None);
    }

    #[test]
    fn without_a_file_there_is_net() {
        let config = Config::read(Path::new("/nowhere/tandemd.toml")).unwrap();
        assert_eq!(config.service.keys().collect::<Vec<_>>(), ["net"]);
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let said = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        let unknown = said("[service.net]\ndriver_domain = \"dd\"\n");
        assert!(unknown.contains("driver_domain") && unknown.contains("driver-domain"), "{unknown}");
        assert!(said("[services.net]\n").contains("`service`"));
        assert!(said("[service]\n").contains("[service.net]"));
        assert!(said("").contains("service"));
        assert!(said("[service.net]\ndriver-domain = 5\n").contains("string"));
        assert!(said("[service.\"a b\"]\n").contains("a b"));
        assert!(said("[service.7]\n").contains('7'));
        assert!(said("[service.net]\ndriver-domain = \"net\"\n").contains("its own"));
    }
}
