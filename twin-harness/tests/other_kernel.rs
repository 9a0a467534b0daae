//! A snapshot and a module of different kernels do not go together. Needs the snapshot of e1000.

mod common;

use std::path::{Path, PathBuf};
use twin_harness::rig::Rig;
use twin_rewrite::ko;

/// The snapshot in `dir` with the lines of its index changed.
fn changed(dir: &Path, name: &str, change: impl Fn(&str) -> String) -> PathBuf {
    let out = std::env::temp_dir().join(format!("tandem-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&out).expect("a directory");
    for file in ["ram", "module.ko"] {
        std::os::unix::fs::symlink(dir.join(file).canonicalize().expect("there"), out.join(file)).expect("linked");
    }
    let index = std::fs::read_to_string(dir.join("index")).expect("an index");
    let lines: Vec<String> = index.lines().map(change).collect();
    std::fs::write(out.join("index"), lines.join("\n")).expect("written");
    out
}

#[test]
fn a_snapshot_of_another_kernel_is_refused() {
    let Some(rig) = common::rig("a_snapshot_of_another_kernel_is_refused") else { return };
    let dir = rig.snapshot.dir.clone();
    let release = rig.snapshot.release.clone();
    drop(rig);
    let other = changed(&dir, "other", |line| match line.split_once(' ') {
        Some(("release", _)) => "release 6.1.0-9-amd64".into(),
        _ => line.into(),
    });
    let said = Rig::from_dir(&other).err().expect("refused");
    assert_eq!(said, format!("the module is for kernel {release}, the snapshot is of kernel 6.1.0-9-amd64"));
    let later = changed(&dir, "later", |line| line.replace("tandem-snapshot 1", "tandem-snapshot 2"));
    let said = Rig::from_dir(&later).err().expect("refused");
    assert!(said.contains("of another version"), "{said}");
    for made in [other, later] {
        std::fs::remove_dir_all(made).expect("removed");
    }
    let file = std::fs::read(dir.join("module.ko")).expect("there");
    assert_eq!(ko::check_release(&file, &release), Ok(()));
    assert_eq!(ko::release(b"no module"), None);
}
