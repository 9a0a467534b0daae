//! Our own test programs for the guest: static C, one file each in `images/src`.

use super::{cached, files, fingerprint};
use crate::host;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds every program; gives the folder they are in.
pub fn build() -> Result<PathBuf> {
    let sources = files(&host::root().join("images/src"))?;
    let out = host::target("images")?.join("tools");
    cached("compiling the test tools", &out, &fingerprint(&sources)?, |dir| {
        std::fs::create_dir_all(dir)?;
        for source in sources.iter().filter(|p| p.extension().is_some_and(|e| e == "c")) {
            compile(source, &dir.join(source.file_stem().unwrap_or_default()))?;
        }
        Ok(())
    })?;
    Ok(out)
}

/// Builds one of them.
pub fn compile(source: &Path, program: &Path) -> Result<()> {
    host::run(
        Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-static", "-s", "-pthread", "-o"])
            .arg(program)
            .arg(source),
    )
}
