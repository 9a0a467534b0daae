//! Whether all domains are being ended: the machine goes down, or whoever starts guests with it stops them.
//!
//! Debian's `xendomains` waits for names. A service's domain that had gone and came again at once would be waited for until the script gives up.

use std::fmt;
use std::process::{Command, Stdio};

/// systemd answers within so many seconds, or is not asked any longer.
const LIMIT_S: &str = "2";
/// What it is asked, and what it says then.
const SIGNS: [(&[&str], &str); 2] = [
    (&["is-system-running"], "stopping"),
    (&["show", "--property=ActiveState", "--value", "xendomains.service"], "deactivating"),
];

/// Why something is not made: all domains are being ended. When that is over it is wanted at once, as guests may be started then.
#[derive(Debug)]
pub struct UnderWay;

impl fmt::Display for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all domains are being ended; its own is made when that is over")
    }
}

impl std::error::Error for UnderWay {}

/// Asks systemd. Without it nobody knows, and it is not so.
pub fn is_under_way() -> bool {
    is_said(|question| {
        let mut ask = Command::new("timeout");
        ask.args([LIMIT_S, "systemctl"]).args(question).stdin(Stdio::null());
        // It ends with an error if the machine goes down.
        ask.output().map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default()
    })
}

fn is_said(ask: impl Fn(&[&str]) -> String) -> bool {
    SIGNS.iter().any(|(question, sign)| ask(question).trim() == *sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_go_with_the_machine_and_with_who_starts_them() {
        let said = |system: &str, guests: &str| {
            is_said(|question| format!("{}\n", if question == SIGNS[0].0 { system } else { guests }))
        };
        assert!(said("stopping", "inactive") && said("running", "deactivating") && said("stopping", "deactivating"));
        for (system, guests) in [("running", "active"), ("starting", "activating"), ("degraded", "inactive"), ("", "")]
        {
            assert!(!said(system, guests), "{system}, {guests}");
        }
    }
}
