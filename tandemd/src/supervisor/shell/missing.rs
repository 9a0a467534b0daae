//! Devices of a driver domain's configuration that are not in the machine: what is said of them.

use std::path::Path;

/// Those that were missed at the last look.
#[derive(Debug, Default)]
pub struct Missing(Vec<String>);

impl Missing {
    /// These are missed now. What there is to say of that, once.
    pub fn look(&mut self, missing: Vec<String>, config: &Path) -> Option<String> {
        if self.0 == missing {
            return None;
        }
        self.0 = missing;
        Some(match self.0.as_slice() {
            [] => format!("all devices of {} are in the machine now", config.display()),
            missing => of(&missing.join(", "), config),
        })
    }
}

/// What there is to say of devices that are missed.
pub fn of(missing: &str, config: &Path) -> String {
    let config = config.display();
    format!("{missing}: not in the machine, though {config} names that (`pci`); `lspci -D` lists what is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_said_once_with_the_file_and_so_is_that_it_came() {
        let config = Path::new("/etc/xen/dd.cfg");
        let mut missing = Missing::default();
        let mut look = |missed: &[&str]| missing.look(missed.iter().map(|name| (*name).into()).collect(), config);
        assert_eq!((look(&[]), look(&[])), (None, None), "they are there");
        let said = look(&["0000:00:03.0", "0000:00:1f.0"]).unwrap();
        assert!(said.starts_with("0000:00:03.0, 0000:00:1f.0: not in the machine") && said.contains("/etc/xen/dd.cfg"));
        assert_eq!(look(&["0000:00:03.0", "0000:00:1f.0"]), None);
        assert!(look(&["0000:00:1f.0"]).unwrap().starts_with("0000:00:1f.0: not in"));
        assert!(look(&[]).unwrap().contains("are in the machine now"));
    }
}
