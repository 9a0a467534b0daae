//! The commands on the twin: they are programs of `twin-harness`, built for speed, with their files in `target/images/twin`.

use crate::host;
use anyhow::{bail, Result};
use std::process::Command;

/// Commands that are passed on.
const COMMANDS: [&str; 5] = ["capture", "twin", "equivalence", "traffic", "faults"];

/// Runs `args` if they are a command of the twin's; `None` if not.
pub fn run(args: &[String]) -> Result<Option<bool>> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let passed: Vec<&str> = match words.as_slice() {
        [command, ..] if COMMANDS.contains(command) => words.clone(),
        ["bench", "twin", rest @ ..] => [&["bench"], rest].concat(),
        _ => return Ok(None),
    };
    host::provide(host::For::Boot)?;
    if host::run(Command::new("busybox").arg("true")).is_err() {
        bail!("missing packages; run: sudo apt-get install --no-install-recommends busybox-static");
    }
    let cache = host::target("images/twin")?;
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--release", "--quiet", "--package", "twin-harness", "--"])
        .args(passed)
        .env("TANDEM_CACHE", cache)
        .current_dir(host::root())
        .status()?;
    Ok(Some(status.success()))
}
