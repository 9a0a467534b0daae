//! The kernel comes from the distribution's package, fetched by its own package manager and unpacked once.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An unpacked kernel package.
#[derive(Debug, Clone)]
pub struct KernelPackage {
    /// Root of the unpacked tree.
    pub root: PathBuf,
    /// Release as `uname -r` would say it.
    pub release: String,
}

impl KernelPackage {
    /// The bootable image.
    pub fn vmlinuz(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.release))
    }

    /// The directory of the loadable modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// The file of module `name`; `-` and `_` are the same in module names.
    pub fn module(&self, name: &str) -> Result<PathBuf> {
        let wanted = name.replace('-', "_");
        let mut stack = vec![self.modules().join("kernel")];
        while let Some(dir) = stack.pop() {
            for entry in std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?.flatten() {
                let path = entry.path();
                if path.is_dir() {
                    stack.push(path);
                } else if path.extension().is_some_and(|x| x == "ko")
                    && path.file_stem().is_some_and(|s| s.to_string_lossy().replace('-', "_") == wanted)
                {
                    return Ok(path);
                }
            }
        }
        Err(format!("kernel {} has no module {name}", self.release))
    }
}

/// Runs a command to its end; an error carries what it said.
pub fn run(command: &mut Command) -> Result<String> {
    let out = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{:?} failed ({}): {}", command.get_program(), out.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Finds the kernel package in `cache`, or fetches the distribution's current one, and unpacks it.
pub fn kernel(cache: &Path) -> Result<KernelPackage> {
    std::fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let root = cache.join("kernel");
    if let Some(found) = unpacked(&root) {
        return Ok(found);
    }
    let deb = match cached_deb(cache) {
        Some(deb) => deb,
        None => {
            let package = current_package()?;
            eprintln!("fetching {package}");
            run(Command::new("apt-get").arg("download").arg(&package).current_dir(cache))?;
            cached_deb(cache).ok_or(format!("{package} was fetched but is not in {}", cache.display()))?
        }
    };
    let partial = cache.join("kernel.partial");
    let _ = std::fs::remove_dir_all(&partial);
    run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&partial))?;
    std::fs::rename(&partial, &root).map_err(|e| e.to_string())?;
    unpacked(&root).ok_or("the kernel package has no modules".into())
}

fn unpacked(root: &Path) -> Option<KernelPackage> {
    let modules = root.join("lib/modules");
    let release = std::fs::read_dir(modules).ok()?.flatten().next()?.file_name().into_string().ok()?;
    Some(KernelPackage { root: root.to_path_buf(), release })
}

fn cached_deb(cache: &Path) -> Option<PathBuf> {
    let mut debs: Vec<PathBuf> = std::fs::read_dir(cache)
        .ok()?
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("linux-image-6.1.") && name.ends_with("_amd64.deb")
        })
        .collect();
    debs.sort();
    debs.pop()
}

/// The package that the distribution's meta package currently stands for.
fn current_package() -> Result<String> {
    let said = run(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))?;
    said.split_whitespace()
        .find(|w| w.starts_with("linux-image-6.1."))
        .map(str::to_owned)
        .ok_or("the package lists name no 6.1 kernel; run apt-get update".into())
}
