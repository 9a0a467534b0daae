//! Our own daemons for domains: Rust, linked statically, so that they run whatever the image's libraries are.

use crate::host;
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Named, so that flags for the program are not flags for what the compiler itself loads.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "program";

/// Builds the workspace's program of this name, once; gives its path.
pub fn build(name: &'static str) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !built.contains(name) {
        crate::progress::step(&format!("compiling {name}"), || compile(name))?;
        built.insert(name);
    }
    Ok(host::target(TARGET)?.join(PROFILE).join(name))
}

fn compile(name: &str) -> Result<()> {
    host::run(
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(host::root())
            .args(["build", "--quiet", "--package", name, "--bin", name, "--target", TARGET, "--profile", PROFILE])
            .env("RUSTFLAGS", "-Ctarget-feature=+crt-static"),
    )
}
