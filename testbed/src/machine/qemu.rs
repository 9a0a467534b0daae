//! Which QEMU runs a machine: the one that is installed, or version 10 from Debian's backports beside it.
//!
//! Debian 12 has QEMU 7.2, for which the bench's plugins are made. Its software CPU cannot do SMAP, SMEP or UMIP; that
//! of version 10 can. The newer one is unpacked into `target/images` with every library that it needs, and nothing is
//! installed.

use crate::host;
use crate::images::packages;
use anyhow::{bail, ensure, Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qemu {
    /// The one that is installed: 7.2 on Debian 12.
    Installed,
    /// Version 10, with a processor that has SMEP, SMAP and UMIP.
    Ten,
}

/// What [`Qemu::choose`] was told.
static CHOSEN: OnceLock<Qemu> = OnceLock::new();

impl Qemu {
    /// From `--qemu`: 7.2 or 10.
    pub fn parse(version: &str) -> Result<Self> {
        match version {
            "7.2" => Ok(Self::Installed),
            "10" => Ok(Self::Ten),
            _ => {
                bail!("no QEMU {version}: --qemu takes 7.2 (the one that is installed) or 10 (from Debian's backports)")
            }
        }
    }

    /// Has all machines that do not ask for a version of their own run in this one. The first call counts.
    pub fn choose(self) {
        CHOSEN.get_or_init(|| self);
    }

    /// What was chosen, or the one that is installed.
    pub fn chosen() -> Self {
        CHOSEN.get().copied().unwrap_or(Self::Installed)
    }

    /// `-cpu` for a machine that wants `model`. With version 10 every processor has SMEP, SMAP and UMIP; with 7.2 none
    /// has
    /// SMAP, as its model of that is wrong. One that nobody chose has RDRAND, as real ones do: without it a kernel has
    /// no random numbers for its first minute, and `xl create` waits for three seconds for some.
    pub fn processor(self, model: Option<&str>) -> Option<String> {
        match (self, model) {
            (Self::Installed, Some(model)) if model.starts_with("max") => Some(format!("{model},-smap")),
            (Self::Installed, None) => Some("qemu64,+rdrand".into()),
            (Self::Installed, Some(model)) => Some(model.into()),
            (Self::Ten, None) => Some("max".into()),
            (Self::Ten, Some(model)) if model.starts_with("max") => Some(model.into()),
            (Self::Ten, Some(model)) => Some(format!("{model},+smep,+smap,+umip")),
        }
    }

    /// The program, without arguments of a machine's; fetched first if need be.
    pub fn command(self) -> Result<Command> {
        match self {
            Self::Installed => {
                Ok(Command::new(host::find_program("qemu-system-x86_64").context("qemu-system-x86_64 is not there")?))
            }
            Self::Ten => ten(),
        }
    }
}

/// The unpacked version 10, run by its own loader with its own libraries, modules and firmware.
fn ten() -> Result<Command> {
    static TREE: OnceLock<PathBuf> = OnceLock::new();
    let tree = match TREE.get() {
        Some(tree) => tree,
        None => {
            let tree = packages::from_backports("qemu-10", &["qemu-system-x86", "seabios"])?;
            let said = host::output(program(&tree).arg("--version"))?;
            ensure!(said.contains("version 10."), "Debian's backports have another QEMU than 10: {}", said.trim());
            TREE.get_or_init(|| tree)
        }
    };
    Ok(program(tree))
}

fn program(tree: &std::path::Path) -> Command {
    let libraries = ["lib", "usr/lib"].map(|dir| tree.join(dir).join("x86_64-linux-gnu").display().to_string());
    let mut command = Command::new(tree.join("lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(libraries.join(":")).arg(tree.join("usr/bin/qemu-system-x86_64"));
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(tree.join(data));
    }
    command.env("QEMU_MODULE_DIR", tree.join("usr/lib/x86_64-linux-gnu/qemu"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_name() {
        assert_eq!(Qemu::parse("7.2").unwrap(), Qemu::Installed);
        assert_eq!(Qemu::parse("10").unwrap(), Qemu::Ten);
        let said = Qemu::parse("9").unwrap_err().to_string();
        assert!(said.contains("QEMU 9") && said.contains("7.2") && said.contains("10"), "{said}");
    }

    #[test]
    fn version_10_has_the_features_that_it_is_for() {
        assert_eq!(Qemu::Installed.processor(None).as_deref(), Some("qemu64,+rdrand"));
        assert_eq!(Qemu::Installed.processor(Some("max")).as_deref(), Some("max,-smap"));
        assert_eq!(Qemu::Ten.processor(None).as_deref(), Some("max"));
        assert_eq!(Qemu::Ten.processor(Some("max,-avx")).as_deref(), Some("max,-avx"));
        assert_eq!(Qemu::Ten.processor(Some("qemu64")).as_deref(), Some("qemu64,+smep,+smap,+umip"));
    }
}
