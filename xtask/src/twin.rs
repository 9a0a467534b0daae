//! The commands on the twin: they are programs of `twin-harness`, built for speed, with their files in
//! `target/images/twin`.

use crate::options::command_at;
use anyhow::{bail, ensure, Result};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use testbed::images::kernel;
use testbed::machine::DEVICES;
use testbed::{cli, host};

/// Commands that are passed on.
pub const COMMANDS: [&str; 6] = ["capture", "twin", "equivalence", "traffic", "faults", "show"];

/// Runs `args` if they are a command of the twin's; `None` if not.
pub fn run(args: &[OsString]) -> Result<Option<bool>> {
    let mut words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let at = command_at(args);
    // Behind options it is the program that looks at the driver.
    let driver = at.and_then(|at| words.get(at + 1)).copied().filter(|word| !word.starts_with('-'));
    // Options may come first; they are passed on, too.
    if let Some(before) = at.and_then(|at| words.get_mut(..=at)) {
        before.rotate_right(1);
    }
    let passed: Vec<&str> = match words.as_slice() {
        [command, ..] if COMMANDS.contains(command) => {
            driver.map_or(Ok(()), |driver| check_driver(command, driver))?;
            words.clone()
        }
        ["bench", "twin", rest @ ..] => [&["bench"], rest].concat(),
        _ => return Ok(None),
    };
    Ok(Some(harness(&passed)?.status()?.success()))
}

/// An error if nothing is known of `driver`: the program takes minutes to build. Commands that let it run want a device
/// for it, and the others a module.
fn check_driver(command: &str, driver: &str) -> Result<()> {
    let mut known = DEVICES.iter().map(|(name, _)| *name);
    if known.clone().any(|name| name == driver) {
        return Ok(());
    }
    if !["twin", "faults"].contains(&command) {
        let all: Vec<&str> = known.collect();
        bail!("no emulated device for driver {driver}; there are devices for {}", all.join(", "));
    }
    if driver.ends_with(".ko") {
        ensure!(Path::new(driver).is_file(), "{driver}: there is no such file");
        return Ok(());
    }
    let Err(error) = kernel::debian()?.module(driver) else { return Ok(()) };
    match cli::meant(driver, &mut known) {
        Some(meant) => bail!("{error:#}; did you mean {meant}?"),
        None => Err(error),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a driver, before anything is built.
    fn said(line: &str) -> String {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        format!("{:#}", run(&args).unwrap_err())
    }

    #[test]
    fn an_unknown_driver_is_refused_at_once() {
        for command in ["capture", "equivalence", "traffic"] {
            assert!(said(&format!("{command} nosuch --count 5"))
                .starts_with("no emulated device for driver nosuch; there are"));
        }
        for command in ["twin", "faults"] {
            assert_eq!(said(&format!("{command} nosuch.ko")), "nosuch.ko: there is no such file");
        }
        assert!(said("-v traffic nosuch").contains("driver nosuch"));
        for (driver, _) in DEVICES {
            assert!(COMMANDS.iter().all(|command| check_driver(command, driver).is_ok()));
        }
    }
}
