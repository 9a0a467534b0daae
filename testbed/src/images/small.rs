//! Small driver domains: an initramfs for each kind of device, with its driver, the back ends of what it serves,
//! busybox, and a program that plugs guests in without a toolstack. See `images/small`.

use super::cpio::Archive;
use super::initramfs::{add_modules, read};
use super::kernel::Kernel;
use super::{cached, files, fingerprint, module, packages, tools};
use crate::host;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// What an image is for, and the modules of its own; what these depend on is added.
const KINDS: &[(&str, &[&str])] = &[
    ("e1000e", &["e1000e", "bridge", "xen-netback", "xen-netfront"]),
    ("nvme", &["nvme", "xen-blkback"]),
    ("ahci", &["ahci", "sd_mod", "xen-blkback"]),
];

/// Of all of them.
const MODULES: &[&str] = &["xen-pcifront"];

/// What the kernel runs when the toolstack asks for an end.
const ENDS: [&str; 2] = ["poweroff", "reboot"];

/// What they are made from.
pub struct Small {
    busybox: PathBuf,
    init: PathBuf,
    plug: PathBuf,
    joins: PathBuf,
    spare: PathBuf,
}

impl Small {
    /// Fetches and compiles what goes in.
    pub fn gather(kernel: &Kernel) -> Result<Self> {
        let folder = host::root().join("images/small");
        let compiled = |name: &str| {
            let program = host::target("images")?.join(name);
            let source = folder.join(name).with_extension("c");
            cached(&format!("compiling {name}"), &program, &fingerprint(std::slice::from_ref(&source))?, |path| {
                tools::compile(&source, path)
            })?;
            Ok::<_, anyhow::Error>(program)
        };
        let (plug, joins) = (compiled("plug")?, compiled("joins")?);
        let busybox = packages::unpacked("busybox-static")?.join("bin/busybox");
        Ok(Self { busybox, init: folder.join("init.sh"), plug, joins, spare: module::build_spare(kernel)? })
    }

    /// The program that plugs guests in.
    pub fn plug(&self) -> &Path {
        &self.plug
    }

    /// The files that they are made from.
    pub fn inputs(&self) -> Result<Vec<PathBuf>> {
        let mut inputs = files(&host::root().join("images/small"))?;
        inputs.extend([self.busybox.clone(), self.spare.clone(), host::root().join("testbed/src/images/small.rs")]);
        Ok(inputs)
    }

    /// Each kind's name and archive.
    pub fn images(&self, kernel: &Kernel) -> Result<Vec<(&'static str, Vec<u8>)>> {
        KINDS.iter().map(|(name, modules)| Ok((*name, self.image(kernel, modules)?))).collect()
    }

    fn image(&self, kernel: &Kernel, modules: &[&str]) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for dir in ["proc", "sys", "dev"] {
            archive.dir(dir);
        }
        archive.char_device("dev/console", 5, 1);
        archive.char_device("dev/null", 1, 3);
        archive.file("bin/busybox", read(&self.busybox)?, 0o755);
        archive.file("bin/plug", read(&self.plug)?, 0o755);
        archive.file("bin/joins", read(&self.joins)?, 0o755);
        archive.file("spare.ko", read(&self.spare)?, 0o644);
        archive.file("init", read(&self.init)?, 0o755);
        for end in ENDS {
            let script = format!("#!/bin/busybox sh\nexec /bin/busybox {end} -f\n");
            archive.file(&format!("sbin/{end}"), script.into_bytes(), 0o755);
        }
        add_modules(&mut archive, kernel, &[MODULES, modules].concat())?;
        Ok(archive.bytes())
    }
}

#[cfg(test)]
mod tests;
