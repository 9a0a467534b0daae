//! The archive format of an initramfs ("newc"), always with the same bytes for the same files.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// One entry of the archive.
enum Node {
    Dir,
    File { data: Vec<u8>, mode: u32 },
    Link(String),
    CharDevice { major: u32, minor: u32 },
}

/// Files to be, by path without a leading slash.
#[derive(Default)]
pub struct Archive(BTreeMap<String, Node>);

impl Archive {
    /// A folder and those above it, unless they are there.
    pub fn dir(&mut self, path: &str) {
        if !path.is_empty() && !self.0.contains_key(path) {
            self.parents(path);
            self.0.insert(path.into(), Node::Dir);
        }
    }

    /// A file with these contents and access rights.
    pub fn file(&mut self, path: &str, data: Vec<u8>, mode: u32) {
        self.parents(path);
        self.0.insert(path.into(), Node::File { data, mode });
    }

    /// A symbolic link to `target`.
    pub fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.0.insert(path.into(), Node::Link(target.into()));
    }

    /// A node of a character device.
    pub fn char_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.0.insert(path.into(), Node::CharDevice { major, minor });
    }

    /// What is at `path` below `root`, as it is: a file, a link, or a folder with all that is in it.
    pub fn copy(&mut self, root: &Path, path: &str) -> Result<()> {
        let from = root.join(path);
        let meta = from.symlink_metadata().with_context(|| format!("cannot read {}", from.display()))?;
        if meta.is_symlink() {
            self.link(path, &std::fs::read_link(&from)?.to_string_lossy());
        } else if meta.is_dir() {
            self.dir(path);
            for entry in std::fs::read_dir(&from)? {
                self.copy(root, &format!("{path}/{}", entry?.file_name().to_string_lossy()))?;
            }
        } else {
            let data = std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            self.file(path, data, meta.permissions().mode() & 0o777);
        }
        Ok(())
    }

    /// The file at `path` below `root`, as a file also when it is a link there.
    pub fn copy_through(&mut self, root: &Path, path: &str) -> Result<()> {
        let from = root.join(path);
        let data = std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        self.file(path, data, 0o755);
        Ok(())
    }

    /// Whether something was put at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent);
        }
    }

    /// The archive's bytes, uncompressed: unpacking then costs the same under every hypervisor and no more than a copy.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, (path, node)) in (1..).zip(&self.0) {
            let (mode, data, device): (u32, &[u8], (u32, u32)) = match node {
                Node::Dir => (0o040_755, &[], (0, 0)),
                Node::File { data, mode } => (0o100_000 | mode, data, (0, 0)),
                Node::Link(target) => (0o120_777, target.as_bytes(), (0, 0)),
                Node::CharDevice { major, minor } => (0o020_600, &[], (*major, *minor)),
            };
            entry(&mut out, inode, path, mode, data, device);
        }
        entry(&mut out, 0, "TRAILER!!!", 0, &[], (0, 0));
        pad(&mut out, 512);
        out
    }
}

fn entry(out: &mut Vec<u8>, inode: u32, path: &str, mode: u32, data: &[u8], device: (u32, u32)) {
    let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
    let fields = [inode, mode, 0, 0, links, 0, size(data.len()), 0, 0, device.0, device.1, size(path.len() + 1), 0];
    out.extend(b"070701");
    for field in fields {
        out.extend(format!("{field:08x}").bytes());
    }
    out.extend(path.bytes());
    out.push(0);
    pad(out, 4);
    out.extend(data);
    pad(out, 4);
}

fn size(len: usize) -> u32 {
    u32::try_from(len).expect("a file of an initramfs is below 4 GiB")
}

fn pad(out: &mut Vec<u8>, align: usize) {
    out.resize(out.len().next_multiple_of(align), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_cpio_reads() {
        let mut a = Archive::default();
        a.file("a/b/hello", b"hello\n".to_vec(), 0o755);
        a.link("bin/sh", "busybox");
        a.char_device("dev/console", 5, 1);
        let bytes = a.bytes();
        assert_eq!(bytes.len() % 512, 0);
        assert_eq!(a.bytes(), bytes);
        let text = String::from_utf8_lossy(&bytes);
        let order: Vec<_> = ["a\0", "a/b\0", "a/b/hello\0", "dev/console\0", "TRAILER!!!\0"]
            .iter()
            .map(|name| text.find(name).expect(name))
            .collect();
        assert!(order.is_sorted(), "a folder comes before what is in it");
        // The fields of the file, at fixed places after its header's start.
        let at = text.find("a/b/hello\0").unwrap() - 110;
        assert_eq!(&text[at..at + 6], "070701");
        assert_eq!(&text[at + 14..at + 22], format!("{:08x}", 0o100_755));
        assert_eq!(&text[at + 54..at + 62], "00000006");
    }
}
