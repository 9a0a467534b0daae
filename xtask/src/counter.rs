//! Counting instructions: the plugins for QEMU and how a machine is started with them.

use crate::host;
use crate::images::{cached, fingerprint};
use anyhow::{ensure, Context, Result};
use bench::marks::Marks;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mark that the first user program makes (images/src/init.c).
pub const USERSPACE: u8 = 1;

/// The plugin, compiled.
pub struct Counter(PathBuf);

impl Counter {
    pub fn build() -> Result<Self> {
        compile("count").map(Self)
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

/// The plugins that tell where instructions are executed and that connect the NIC to a peer in virtual time.
pub struct Profiler {
    profile: PathBuf,
    wire: PathBuf,
}

impl Profiler {
    pub fn build() -> Result<Self> {
        // The wire uses functions of QEMU that no interface promises.
        let said = host::output(Command::new("qemu-system-x86_64").arg("--version"))?;
        ensure!(said.contains("version 7.2."), "this bench needs Debian 12's QEMU 7.2, not: {}", said.trim());
        Ok(Self { profile: compile("profile")?, wire: compile("wire")? })
    }

    /// QEMU's arguments to write what ran to `file`, with a network back end `wire` that asks at `socket`.
    pub fn accel(&self, file: &Path, socket: &Path) -> Vec<String> {
        let profile = format!("{},out={}", self.profile.display(), file.display());
        let wire = format!("{},socket={}", self.wire.display(), socket.display());
        ["-accel", "tcg,thread=single", "-plugin", &profile, "-plugin", &wire].map(String::from).to_vec()
    }
}

fn compile(name: &str) -> Result<PathBuf> {
    let source = host::root().join(format!("bench/plugin/{name}.c"));
    let out = host::target("images")?.join(format!("{name}.so"));
    cached(&format!("compiling the plugin {name}"), &out, &fingerprint(std::slice::from_ref(&source))?, |path| {
        host::run(Command::new("gcc").args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]).arg(path).arg(&source))
    })?;
    Ok(out)
}

/// Instructions from power-on to the first user program.
pub fn to_userspace(file: &Path) -> Result<u64> {
    let marks = Marks::read(file)?;
    Ok(marks.first(USERSPACE).context("no mark from the first user program")?.total())
}
