//! Debian packages: fetched with apt, unpacked with dpkg-deb, never installed.

use super::cached;
use crate::host;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// apt as any user, without its download sandbox (our folders are not readable by apt's own user).
fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-o", "APT::Sandbox::User=root", "-q"]);
    command
}

/// The version apt would install, or `None` when it does not know the package.
pub fn candidate(name: &str) -> Option<String> {
    let text = host::output(apt("apt-cache").args(["policy", name])).ok()?;
    let version = text.lines().find_map(|l| l.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_string())
}

/// The newest package that `name` depends on and that starts with `prefix`.
pub fn dependency(name: &str, prefix: &str) -> Option<String> {
    let text = host::output(apt("apt-cache").args(["depends", name])).ok()?;
    text.lines().find_map(|l| l.trim().strip_prefix("Depends: ").filter(|p| p.starts_with(prefix))).map(String::from)
}

/// Fetches and unpacks one package; gives the folder it is in. What is there from before serves when apt knows nothing.
pub fn unpacked(name: &str) -> Result<PathBuf> {
    let out = host::target("images/packages")?.join(name);
    let Some(version) = candidate(name).or_else(|| host::apt_update().ok().and_then(|()| candidate(name))) else {
        if out.exists() {
            return Ok(out);
        }
        bail!("apt knows no package {name}; is `apt-get update` possible here?");
    };
    cached(&format!("fetching {name} {version}"), &out, &version, |dir| {
        std::fs::create_dir_all(dir)?;
        let deb = download(name, dir)?;
        host::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(dir))?;
        std::fs::remove_file(&deb)?;
        Ok(())
    })?;
    Ok(out)
}

/// A folder with what is in all of `names`, without what they depend on; what is there from before serves when apt does
/// not answer.
pub fn together(set: &str, names: &[&str]) -> Result<PathBuf> {
    let out = host::target("images/packages")?.join(set);
    let mut key = versions(names);
    if key.is_empty() {
        if out.exists() {
            return Ok(out);
        }
        host::apt_update()?;
        key = versions(names);
    }
    cached(&format!("fetching {}", names.join(" ")), &out, &key, |dir| {
        std::fs::create_dir_all(dir)?;
        for name in names {
            let deb = download(name, dir)?;
            host::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(dir))?;
            std::fs::remove_file(&deb)?;
        }
        Ok(())
    })?;
    Ok(out)
}

fn download(name: &str, dir: &Path) -> Result<PathBuf> {
    let attempt = || host::run(apt("apt-get").args(["download", name]).current_dir(dir));
    if attempt().is_err() {
        // The lists may be older than the archive.
        if host::is_root() {
            host::run(Command::new("apt-get").args(["update", "-q"]))?;
        }
        attempt()?;
    }
    super::files(dir)?
        .into_iter()
        .find(|p| p.extension().is_some_and(|e| e == "deb"))
        .with_context(|| format!("apt-get download {name} left no package"))
}

/// `name=version` of each package, as apt would install it: a key for what is made of them.
pub fn versions(names: &[&str]) -> String {
    let text = host::output(apt("apt-cache").arg("policy").args(names)).unwrap_or_default();
    let mut name = "";
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(version) = line.trim().strip_prefix("Candidate: ") {
            found.push(format!("{name}={version}"));
        } else if !line.starts_with(' ') {
            name = line.trim_end_matches(':');
        }
    }
    found.join(" ")
}

/// A folder with `names` and everything they depend on, as the packages have it; what is there from before serves when
/// apt does not answer.
pub fn closure(set: &str, names: &[&str]) -> Result<PathBuf> {
    let out = host::target("images")?.join(format!("{set}.tree"));
    let mut key = versions(names);
    if key.is_empty() {
        if out.exists() {
            return Ok(out);
        }
        host::apt_update()?;
        key = versions(names);
    }
    cached(&format!("fetching packages for {set}"), &out, &key, |dir| unpack_closure(names, dir))?;
    Ok(out)
}

/// A folder with `names` of Debian 12's backports and everything they depend on. The machine's own package sources stay
/// as they are: apt has lists of its own for this. What was fetched once serves for ever.
pub fn from_backports(set: &str, names: &[&str]) -> Result<PathBuf> {
    let out = host::target("images")?.join(format!("{set}.tree"));
    let key = format!("bookworm-backports {}", names.join(" "));
    cached(&format!("fetching {set} from Debian's backports"), &out, &key, |dir| {
        let lists = host::target("images/backports")?;
        std::fs::create_dir_all(lists.join("lists/partial"))?;
        let sources = lists.join("sources.list");
        std::fs::write(&sources, BACKPORTS)?;
        let place = |what: &str, at: &Path| ["-o".into(), format!("{what}={}", at.display())];
        let mut own = place("Dir::Etc::sourcelist", &sources).to_vec();
        own.extend(place("Dir::Etc::sourceparts", Path::new("-")));
        own.extend(place("Dir::State::lists", &lists.join("lists")));
        own.extend(place("Dir::Cache", &lists));
        host::run(apt("apt-get").args(&own).arg("update"))?;
        own.extend(["-t", "bookworm-backports"].map(String::from));
        unpack_with(&own, names, dir)
    })?;
    Ok(out)
}

/// Debian 12 and its backports.
const BACKPORTS: &str = "\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main
";

/// Fetches `names` and everything they depend on, as if nothing were installed, and unpacks it all into `dir`.
pub fn unpack_closure(names: &[&str], dir: &Path) -> Result<()> {
    host::apt_update()?;
    unpack_with(&[], names, dir)
}

/// The same with further `options` for apt, whose lists are fresh.
fn unpack_with(options: &[String], names: &[&str], dir: &Path) -> Result<()> {
    let set = dir.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let archives = host::target("images/archives")?.join(set);
    std::fs::create_dir_all(archives.join("partial"))?;
    let status = archives.join("empty-status");
    std::fs::write(&status, "")?;
    host::run(
        apt("apt-get")
            .args(options)
            .arg("-o")
            .arg(format!("Dir::State::status={}", status.display()))
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}", archives.display()))
            .args(["-o", "Debug::NoLocking=1", "--download-only", "--no-install-recommends", "-y", "install"])
            .args(names),
    )?;
    std::fs::create_dir_all(dir)?;
    for deb in super::files(&archives)?.iter().filter(|p| p.extension().is_some_and(|e| e == "deb")) {
        host::run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(dir))?;
    }
    Ok(())
}

/// Debian's Xen 4.17 as an ELF that QEMU's `-kernel` takes.
pub fn stock_xen() -> Result<PathBuf> {
    let package = unpacked("xen-hypervisor-4.17-amd64")?;
    let out = host::target("images")?.join("xen-4.17.elf");
    let packed = package.join("boot/xen-4.17-amd64.gz");
    let key = super::fingerprint(std::slice::from_ref(&packed))?;
    cached("unpacking stock Xen", &out, &key, |path| {
        let done = Command::new("gzip").arg("-dc").arg(&packed).output()?;
        anyhow::ensure!(done.status.success(), "gzip cannot unpack {}", packed.display());
        Ok(std::fs::write(path, done.stdout)?)
    })?;
    Ok(out)
}
