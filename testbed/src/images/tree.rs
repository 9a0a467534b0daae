//! The extended image: a Debian tree with stress-ng, xz, gcc and make on an ext4 disk, for the heavy tests.

use super::{cached, packages};
use crate::host;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

const PACKAGES: &[&str] =
    &["stress-ng", "xz-utils", "gcc", "libc6-dev", "make", "dash", "coreutils", "mawk", "bash", "busybox-static"];

/// Builds or finds the disk; gives the file.
pub fn build() -> Result<PathBuf> {
    crate::host::provide(crate::host::For::Boot)?;
    let out = host::target("images")?.join("tree.ext4");
    cached("building the image with stress-ng, xz and gcc", &out, &packages::versions(PACKAGES), |path| {
        let dir = host::target("images")?.join("tree.dir");
        super::remove(&dir)?;
        packages::unpack_closure(PACKAGES, &dir)?;
        merge_usr(&dir)?;
        for mount in ["proc", "sys", "dev", "tmp", "work"] {
            std::fs::create_dir_all(dir.join(mount))?;
        }
        for unneeded in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"] {
            super::remove(&dir.join(unneeded))?;
        }
        host::run(Command::new("ldconfig").arg("-r").arg(&dir))?;
        let mke2fs = host::find_program("mke2fs").context("mke2fs is not there")?;
        host::run(Command::new(mke2fs).args(["-q", "-t", "ext4", "-m", "0", "-d"]).arg(&dir).arg(path).arg("1200M"))?;
        super::remove(&dir)
    })?;
    Ok(out)
}

/// Moves /bin, /sbin and /lib* into /usr, as an installed Debian 12 has them, and sets the links that maintainer
/// scripts would have made.
fn merge_usr(dir: &std::path::Path) -> Result<()> {
    for name in ["bin", "sbin", "lib", "lib64"] {
        let top = dir.join(name);
        let merged = dir.join("usr").join(name);
        std::fs::create_dir_all(&merged)?;
        if top.is_dir() && !top.is_symlink() {
            host::run(Command::new("cp").arg("-a").arg(top.join(".")).arg(&merged))?;
            std::fs::remove_dir_all(&top)?;
        }
        if !top.exists() {
            std::os::unix::fs::symlink(format!("usr/{name}"), &top)?;
        }
    }
    for (link, target) in [("usr/bin/awk", "mawk"), ("usr/bin/sh", "dash")] {
        if std::fs::symlink_metadata(dir.join(link)).is_err() {
            std::os::unix::fs::symlink(target, dir.join(link))?;
        }
    }
    Ok(())
}
