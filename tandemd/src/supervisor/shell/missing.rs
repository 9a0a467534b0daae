//! Devices of a driver domain that are not in the machine: what is said of them.

/// Those that were missed at the last look.
#[derive(Debug, Default)]
pub struct Missing(Vec<String>);

impl Missing {
    /// These are missed now. What there is to say of that, once. `by`: who names them, in words.
    pub fn look(&mut self, missing: Vec<String>, by: &str) -> Option<String> {
        if self.0 == missing {
            return None;
        }
        self.0 = missing;
        Some(match self.0.as_slice() {
            [] => "all its devices are in the machine now".into(),
            missing => of(&missing.join(", "), by),
        })
    }
}

/// What there is to say of devices that are missed.
pub fn of(missing: &str, by: &str) -> String {
    format!("{missing}: not in the machine, or not free, though {by}; `lspci -D` lists what is there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_said_once_with_the_file_and_so_is_that_it_came() {
        let by = "/etc/xen/dd.cfg names that";
        let mut missing = Missing::default();
        let mut look = |missed: &[&str]| missing.look(missed.iter().map(|name| (*name).into()).collect(), by);
        assert_eq!((look(&[]), look(&[])), (None, None), "they are there");
        let said = look(&["0000:00:03.0", "0000:00:1f.0"]).unwrap();
        assert!(said.starts_with("0000:00:03.0, 0000:00:1f.0: not in the machine") && said.contains("/etc/xen/dd.cfg"));
        assert_eq!(look(&["0000:00:03.0", "0000:00:1f.0"]), None);
        assert!(look(&["0000:00:1f.0"]).unwrap().starts_with("0000:00:1f.0: not in"));
        assert!(look(&[]).unwrap().contains("are in the machine now"));
    }
}
