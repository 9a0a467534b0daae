//! The kernel of dom0: Debian's newest linux-image-6.1, as it is in its package.

use super::packages;
use crate::host;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// A distribution kernel with its modules.
pub struct Kernel {
    /// As `uname -r` says it.
    pub version: String,
    /// The bzImage.
    pub vmlinuz: PathBuf,
    /// The folder that has `lib/modules/VERSION` with a `modules.dep`.
    pub root: PathBuf,
}

impl Kernel {
    /// The file of module `name`; `-` and `_` are the same in module names.
    pub fn module(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(format!("lib/modules/{}", self.version));
        let index = std::fs::read_to_string(dir.join("modules.dep"))?;
        let files = index.lines().filter_map(|line| Some(line.split_once(':')?.0));
        let found = { files }.find(|file| module_name(file) == name.replace('-', "_"));
        Ok(dir.join(found.with_context(|| format!("kernel {} has no module {name}", self.version))?))
    }
}

/// The name of the module in `file`, as /proc/modules has it.
pub fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

/// Fetches it, unless it is there, and indexes its modules.
pub fn debian() -> Result<Kernel> {
    let name = newest()?;
    let root = packages::unpacked(&name)?;
    let version = name.trim_start_matches("linux-image-").to_string();
    let vmlinuz = root.join(format!("boot/vmlinuz-{version}"));
    if !root.join(format!("lib/modules/{version}/modules.dep")).exists() {
        let depmod = host::find_program("depmod").context("depmod is not there")?;
        host::run(Command::new(depmod).arg("-b").arg(&root).arg(&version))?;
    }
    Ok(Kernel { version, vmlinuz, root })
}

/// The package that Debian's linux-image-amd64 depends on today, or the one fetched last when apt does not answer.
fn newest() -> Result<String> {
    let note = host::target("images")?.join("kernel.name");
    const META: &str = "linux-image-amd64";
    const PREFIX: &str = "linux-image-6.1.";
    let found = packages::dependency(META, PREFIX)
        .or_else(|| host::apt_update().ok().and_then(|()| packages::dependency(META, PREFIX)));
    match found {
        Some(name) => {
            std::fs::write(&note, &name)?;
            Ok(name)
        }
        None => std::fs::read_to_string(&note)
            .ok()
            .with_context(|| format!("apt knows no Debian 12 kernel ({META}, which depends on a {PREFIX}...)")),
    }
}
