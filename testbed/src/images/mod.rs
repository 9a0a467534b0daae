//! What boots, made from the distribution's packages and our own test tools, and kept in `target/images`.
//!
//! Every product has a key: the names and versions of what it was made from. It is made again when the key changes.

pub mod cpio;
pub mod elf;
pub mod initramfs;
pub mod kernel;
pub mod module;
pub mod packages;
pub mod programs;
mod small;
pub mod symbols;
pub mod tools;
pub mod toolstack;
pub mod tree;

use anyhow::{Context, Result};
use rustix::fs::{flock, FlockOperation};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The files a machine boots from.
#[derive(Clone, Debug)]
pub struct Images {
    /// Linux, a bzImage.
    pub kernel: PathBuf,
    /// Its version, as `uname -r` says it.
    pub kernel_version: String,
    /// An uncompressed cpio archive.
    pub initramfs: PathBuf,
}

/// Builds or finds the kernel and the small initramfs.
pub fn basic() -> Result<Images> {
    crate::host::provide(crate::host::For::Boot)?;
    let kernel = kernel::debian()?;
    let initramfs = initramfs::build(&kernel)?;
    Ok(Images { kernel: kernel.vmlinuz, kernel_version: kernel.version, initramfs })
}

/// The same kernel with the toolstack's image: dom0 with stock `xl`, and images of guests in it.
pub fn toolstack() -> Result<Images> {
    crate::host::provide(crate::host::For::Boot)?;
    let kernel = kernel::debian()?;
    let initramfs = toolstack::build(&kernel)?;
    Ok(Images { kernel: kernel.vmlinuz, kernel_version: kernel.version, initramfs })
}

/// Makes `out` by `make`, unless it is there and was made from the same `key`.
///
/// `make` gets the path to write; only when it succeeds is that moved to `out`. Tests that run side by side may ask for
/// the same: one product is made at a time, so `make` must have what it needs before. So may another process in the
/// same folder: who comes second to a product waits for the first.
pub fn cached(what: &str, out: &Path, key: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let lock = sibling(out, "lock");
    let lock = std::fs::File::create(&lock).with_context(|| format!("cannot create {}", lock.display()))?;
    flock(&lock, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", out.display()))?;
    let key_file = sibling(out, "key");
    if out.exists() && std::fs::read_to_string(&key_file).is_ok_and(|k| k == key) {
        return Ok(());
    }
    crate::progress::step(what, || {
        let fresh = sibling(out, "new");
        remove(&fresh)?;
        remove(&key_file)?;
        make(&fresh)?;
        remove(out)?;
        std::fs::rename(&fresh, out).with_context(|| format!("cannot place {}", out.display()))?;
        std::fs::write(&key_file, key)?;
        Ok(())
    })
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path).with_context(|| format!("{}", path.display())),
        Ok(_) => std::fs::remove_file(path).with_context(|| format!("{}", path.display())),
    }
}

/// A key for the contents of files.
pub fn fingerprint(paths: &[PathBuf]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The files of a folder, sorted.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.is_file())
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in another process: a lock of a file opened twice is two locks.
    #[test]
    fn who_comes_second_to_a_product_waits_for_the_first() {
        let dir = std::env::temp_dir().join(format!("tandem-lock-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let out = dir.join("product");
        let lock = std::fs::File::create(sibling(&out, "lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let made = std::thread::spawn({
            let out = out.clone();
            move || cached("late", &out, "k", |p| Ok(std::fs::write(p, "late")?))
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!out.exists());
        drop(lock);
        made.join().unwrap().unwrap();
        assert!(out.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_product_is_made_again_only_when_its_key_changes_or_its_making_failed() {
        let dir = std::env::temp_dir().join(format!("tandem-cache-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let out = dir.join("product");
        let make = |text: &'static str| move |p: &Path| Ok(std::fs::write(p, text)?);
        cached("one", &out, "k1", make("one")).unwrap();
        cached("two", &out, "k1", make("two")).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "one");
        assert!(cached("bad", &out, "k2", |_| anyhow::bail!("no")).is_err());
        cached("three", &out, "k1", make("three")).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "three", "a failed attempt forgets the old key");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
