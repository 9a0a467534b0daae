//! The small initramfs of dom0: busybox, the drivers that the tests load, our test tools.

use super::cpio::Archive;
use super::kernel::{module_name, Kernel};
use super::{cached, fingerprint, packages, tools};
use crate::host;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the tests load by modprobe; what these depend on is added.
pub const MODULES: &[&str] = &[
    "e1000",
    "e1000e",
    "8139cp",
    "ne2k-pci",
    "virtio_net",
    "vmxnet3",
    "nvme",
    "ahci",
    "sd_mod",
    "virtio_blk",
    "virtio_pci",
    "ext4",
    "crc32c_generic",
    "xenfs",
    "xen-privcmd",
    "efivarfs",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
];

/// Builds or finds it; gives the archive.
pub fn build(kernel: &Kernel) -> Result<PathBuf> {
    let base = Base::gather()?;
    let key = format!("{} {} {}", kernel.version, MODULES.join(" "), fingerprint(&base.inputs()?)?);
    let out = host::target("images")?.join("dom0.cpio");
    cached("building the initramfs", &out, &key, |path| {
        let mut archive = Archive::default();
        base.add(&mut archive)?;
        add_modules(&mut archive, kernel, MODULES)?;
        Ok(std::fs::write(path, archive.bytes())?)
    })?;
    Ok(out)
}

/// What every initramfs of ours has: busybox, our test tools, the first program and its scripts.
pub struct Base {
    /// The program, linked statically.
    pub busybox: PathBuf,
    scripts: PathBuf,
    tools: PathBuf,
}

impl Base {
    /// Fetches and compiles what goes in.
    pub fn gather() -> Result<Self> {
        Ok(Self {
            busybox: packages::unpacked("busybox-static")?.join("bin/busybox"),
            scripts: host::root().join("images/init"),
            tools: tools::build()?,
        })
    }

    /// The files that it is made from.
    pub fn inputs(&self) -> Result<Vec<PathBuf>> {
        let mut inputs = vec![self.busybox.clone()];
        inputs.extend(super::files(&self.scripts)?);
        inputs.extend(super::files(&self.tools)?);
        Ok(inputs)
    }

    /// Puts all of it into an archive.
    pub fn add(&self, archive: &mut Archive) -> Result<()> {
        for dir in ["proc", "sys", "dev", "tmp", "run", "etc", "sbin", "usr/bin", "usr/sbin", "tree", "root"] {
            archive.dir(dir);
        }
        archive.char_device("dev/console", 5, 1);
        archive.char_device("dev/null", 1, 3);
        archive.file("bin/busybox", read(&self.busybox)?, 0o755);
        archive.link("bin/sh", "busybox");
        for script in super::files(&self.scripts)? {
            let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
            archive.file(&name, read(&script)?, 0o755);
        }
        for tool in super::files(&self.tools)? {
            let name = tool.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let place = if name == "init" { name } else { format!("tools/{name}") };
            archive.file(&place, read(&tool)?, 0o755);
        }
        Ok(())
    }
}

/// A file's contents; an error names the file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Adds the modules with their dependencies and the index files that modprobe reads.
pub fn add_modules(archive: &mut Archive, kernel: &Kernel, names: &[&str]) -> Result<()> {
    let relative = format!("lib/modules/{}", kernel.version);
    let dir = kernel.root.join(&relative);
    let index = String::from_utf8(read(&dir.join("modules.dep"))?)?;
    let wanted = closure(&index, names)?;
    let mut kept = String::new();
    for line in index.lines() {
        let Some((file, _)) = line.split_once(':') else { continue };
        if wanted.contains(file) {
            archive.file(&format!("{relative}/{file}"), read(&dir.join(file))?, 0o644);
            kept.push_str(line);
            kept.push('\n');
        }
    }
    archive.file(&format!("{relative}/modules.dep"), kept.into_bytes(), 0o644);
    for name in ["modules.builtin", "modules.order"] {
        archive.file(&format!("{relative}/{name}"), read(&dir.join(name))?, 0o644);
    }
    Ok(())
}

/// The files of `names` and of all they need, by the lines of a modules.dep.
fn closure<'a>(index: &'a str, names: &[&str]) -> Result<BTreeSet<&'a str>> {
    let mut wanted = BTreeSet::new();
    for name in names {
        let line = index
            .lines()
            .find(|l| l.split_once(':').is_some_and(|(file, _)| module_name(file) == name.replace('-', "_")))
            .with_context(|| format!("the kernel has no module {name}"))?;
        let (file, needs) = line.split_once(':').unwrap_or((line, ""));
        wanted.insert(file);
        wanted.extend(needs.split_whitespace());
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_brings_what_it_needs() {
        let index = "kernel/a/foo-bar.ko: kernel/b/base.ko\nkernel/b/base.ko:\nkernel/c/other.ko:\n";
        let found = closure(index, &["foo_bar"]).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["kernel/a/foo-bar.ko", "kernel/b/base.ko"]);
        assert!(closure(index, &["foo"]).is_err());
    }
}
