//! Counting instructions: the plugin for QEMU and how a machine is started with it.

use crate::host;
use crate::images::{cached, fingerprint};
use anyhow::{Context, Result};
use bench::marks::Marks;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mark that the first user program makes (images/src/init.c).
pub const USERSPACE: u8 = 1;

/// The plugin, compiled.
pub struct Counter(PathBuf);

impl Counter {
    pub fn build() -> Result<Self> {
        let source = host::root().join("bench/plugin/count.c");
        let out = host::target("images")?.join("count.so");
        cached("compiling the counting plugin", &out, &fingerprint(std::slice::from_ref(&source))?, |path| {
            host::run(Command::new("gcc").args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]).arg(path).arg(&source))
        })?;
        Ok(Self(out))
    }

    /// QEMU's arguments to count into `file`, with all CPUs in one thread; `places` are addresses to mark.
    pub fn accel(&self, file: &Path, places: &[(u64, u8)]) -> Vec<String> {
        let mut plugin = format!("{},out={}", self.0.display(), file.display());
        for (address, number) in places {
            plugin.push_str(&format!(",at={address:x}:{number}"));
        }
        ["-accel", "tcg,thread=single", "-plugin", &plugin].map(String::from).to_vec()
    }
}

/// Instructions from power-on to the first user program.
pub fn to_userspace(file: &Path) -> Result<u64> {
    let marks = Marks::read(file)?;
    Ok(marks.first(USERSPACE).context("no mark from the first user program")?.total())
}
