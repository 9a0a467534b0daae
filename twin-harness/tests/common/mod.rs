//! The captured e1000, which the tests here run on. It is captured if it was not yet.

use std::io::Write;
use std::sync::OnceLock;
use twin_capture::guest;
use twin_harness::rig::{cache, Rig};

/// The rig; `None`, with a word on the terminal, if this machine cannot capture.
pub fn rig(test: &str) -> Option<Rig> {
    static DIR: OnceLock<std::path::PathBuf> = OnceLock::new();
    let known = cache().join("snapshots/e1000/index").exists();
    if let Some(program) = guest::missing().filter(|_| !known) {
        // Past the test runner, which keeps what tests print.
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no snapshot, and no {program} to take one");
        return None;
    }
    let dir = DIR.get_or_init(|| guest::capture("e1000", &cache()).expect("captured"));
    Some(Rig::from_dir(dir).expect("the snapshot opens"))
}
