//! Our own kernel modules for driver domains, built for the kernel that the images boot, by the headers of its
//! packages.

use super::kernel::Kernel;
use super::{cached, files, fingerprint, packages};
use crate::host;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// The tools with which Debian's kernels of this series were built.
const KBUILD: &str = "linux-kbuild-6.1";

/// The one that gives drivers twins; gives the file.
pub fn build(kernel: &Kernel) -> Result<PathBuf> {
    build_one(kernel, "tandem", "linux")
}

/// With which a kernel stops taking interrupts, and with which it is damaged.
const BAD: [&str; 3] = ["wedge", "harm", "poke"];

/// Those that are bad for the kernel that loads them.
pub fn build_bad(kernel: &Kernel) -> Result<Vec<PathBuf>> {
    BAD.iter().map(|name| build_one(kernel, name, "images/module")).collect()
}

/// The one that frees what a small driver domain's kernel has in vain.
pub fn build_spare(kernel: &Kernel) -> Result<PathBuf> {
    build_one(kernel, "spare", "images/small/module")
}

/// Builds or finds the module `name` from a folder of the project's.
fn build_one(kernel: &Kernel, name: &str, folder: &str) -> Result<PathBuf> {
    let version = &kernel.version;
    let common = format!("{}-common", version.rsplit_once('-').map_or(version.as_str(), |(abi, _)| abi));
    let names = [format!("linux-headers-{version}"), format!("linux-headers-{common}"), KBUILD.into()];
    let headers = packages::together("headers", &names.each_ref().map(String::as_str))?;
    let source = host::root().join(folder);
    let mut sources = files(&source)?;
    if source.join("include").is_dir() {
        sources.extend(files(&source.join("include"))?);
    }
    let key = format!("{} {}", packages::versions(&names.each_ref().map(String::as_str)), fingerprint(&sources)?);
    let out = host::target("images")?.join(format!("{name}.ko"));
    cached("compiling a kernel module", &out, &key, |path| {
        let work = host::target("images")?.join(format!("{name}.dir"));
        super::remove(&work)?;
        std::fs::create_dir_all(work.join("include"))?;
        for file in &sources {
            std::fs::copy(file, work.join(file.strip_prefix(&source)?))
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
        // The packages believe that they are installed: the makefile of the one names that of the other by its place.
        let src = headers.join("usr/src");
        host::run(
            Command::new("make")
                .arg("-C")
                .arg(src.join(format!("linux-headers-{version}")))
                .arg("-f")
                .arg(src.join(format!("linux-headers-{common}/Makefile")))
                .arg(format!("M={}", work.display()))
                .args(["KCFLAGS=-Werror", "modules"])
                // What a make that started us left behind is not for this one.
                .env_remove("MAKEFLAGS"),
        )?;
        // What is for debuggers is nearly all of it.
        host::run(Command::new("strip").args(["--strip-debug", "-o"]).arg(path).arg(work.join(format!("{name}.ko"))))?;
        super::remove(&work)
    })?;
    Ok(out)
}
