//! The commands on the twin: they are programs of `twin-harness`, built for speed, with their files in `target/images/twin`.

use crate::options::command_at;
use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;
use testbed::host;

/// Commands that are passed on.
pub const COMMANDS: [&str; 6] = ["capture", "twin", "equivalence", "traffic", "faults", "show"];

/// Runs `args` if they are a command of the twin's; `None` if not.
pub fn run(args: &[OsString]) -> Result<Option<bool>> {
    let mut words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    // Options may come first; they are passed on, too.
    if let Some(before) = command_at(args).and_then(|at| words.get_mut(..=at)) {
        before.rotate_right(1);
    }
    let passed: Vec<&str> = match words.as_slice() {
        [command, ..] if COMMANDS.contains(command) => words.clone(),
        ["bench", "twin", rest @ ..] => [&["bench"], rest].concat(),
        _ => return Ok(None),
    };
    Ok(Some(harness(&passed)?.status()?.success()))
}

/// The program with these arguments.
pub fn harness(args: &[&str]) -> Result<Command> {
    host::provide(host::For::Boot)?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["run", "--release", "--quiet", "--package", "twin-harness", "--"])
        .args(args)
        .env("TANDEM_CACHE", host::target("images/twin")?)
        .current_dir(host::root());
    Ok(command)
}
