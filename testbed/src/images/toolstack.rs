//! dom0 with Debian's stock `xl`, `xenstored` and back ends, and the images of its guests, from Debian's packages.
//!
//! Only the programs that are used go in, and the libraries they want: the whole packages would be ten times the size,
//! and every byte is copied at each boot.

use super::cpio::Archive;
use super::initramfs::{self, add_modules, read, Base};
use super::kernel::Kernel;
use super::small::Small;
use super::{cached, elf, fingerprint, module, packages, programs};
use crate::{guests, host};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: &[&str] = &[
    "xen-utils-4.17",
    "xen-utils-common",
    "xenstore-utils",
    "bridge-utils",
    "iproute2",
    "util-linux",
    "mount",
    "ethtool",
    "bash",
];

/// Whole folders of those packages.
const FOLDERS: &[&str] = &["etc/xen", "usr/lib/xen-4.17/bin", "usr/lib/xen-common/bin"];

/// Not wanted out of [`FOLDERS`]: large, and nothing of ours runs them.
const LEFT_OUT: &[&str] = &["xen-kdd", "xenpaging", "xen-vmtrace", "xen-access", "test-xenstore"];

/// Programs by name; wherever the package has them they stay.
const PROGRAMS: &[&str] = &[
    "xl",
    "xentop",
    "xenstore",
    "xenstore-chmod",
    "xenstore-exists",
    "xenstore-list",
    "xenstore-ls",
    "xenstore-read",
    "xenstore-rm",
    "xenstore-watch",
    "xenstore-write",
    "brctl",
    "ip",
    "bridge",
    "losetup",
    "blkid",
    "flock",
    "ethtool",
    "bash",
];

/// Where programs are, in the order in which they are looked for.
const PROGRAM_FOLDERS: &[&str] = &["usr/bin", "bin", "usr/sbin", "sbin"];

const LIBRARY_FOLDERS: &[&str] = &["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64"];

/// Of dom0, and of a driver domain, besides the NICs' and disks'.
const BACK_END_MODULES: &[&str] = &["xen-netback", "xen-blkback", "bridge", "loop", "brd"];

const DOM0_MODULES: &[&str] = &["xen-pciback", "ext4", "crc32c_generic"];

/// GRUB as a guest's kernel: the package, and the file in it.
const GRUB: &str = "grub-xen-host";
const GRUB_IMAGE: &str = "usr/lib/grub-xen/grub-x86_64-xen.bin";

const DRIVER_MODULES: &[&str] =
    &["igb", "xen-pcifront", "xen-netfront", "xen-blkfront", "8021q", "macvlan", "netconsole", "nbd"];

/// What gives a driver domain's drivers twins.
const TWIN_DAEMON: &str = "twind";
/// What gives them faulty ones.
const TWIN_FAULTS: &str = "twin-faults";

/// Asks both daemons.
const TOOL: &str = "twinctl";

const GUEST_MODULES: &[&str] =
    &["xen-netfront", "8021q", "xen-blkfront", "ext4", "crc32c_generic", "xenfs", "xen-privcmd"];

/// The daemon of the hypervisor's switches, in dom0.
const DAEMON: &str = "tandemd";

/// The test kernel that is no dom0.
const HOSTILE: &str = "hostile-domain";

/// The toolstack's dom0, as an initramfs. In it, under `/guest`: `vmlinuz` as Debian has it, `vmlinux` unpacked (the
/// domain builder is then done sooner), GRUB as a kernel, `guest.cpio`, `driver.cpio`, and the small driver domains of
/// `small`.
pub fn build(kernel: &Kernel) -> Result<PathBuf> {
    let base = Base::gather()?;
    let tree = packages::closure("toolstack", PACKAGES)?;
    let grub = packages::unpacked(GRUB)?.join(GRUB_IMAGE);
    let scripts = host::root().join("images/xen");
    let mut inputs = base.inputs()?;
    inputs.extend(all_files(&scripts)?);
    inputs.extend(all_files(&host::root().join("guests"))?);
    let hostile = guests::named(HOSTILE)?;
    let daemon = programs::build(DAEMON)?;
    inputs.push(daemon.clone());
    let tool = programs::build(TOOL)?;
    let small = Small::gather(kernel)?;
    let ours = Ours {
        module: module::build(kernel)?,
        bad: module::build_bad(kernel)?,
        daemon: programs::build(TWIN_DAEMON)?,
        tool: tool.clone(),
        faults: programs::build(TWIN_FAULTS)?,
        plug: small.plug().into(),
    };
    inputs.extend([&ours.module, &ours.daemon, &ours.tool, &ours.faults].map(Clone::clone));
    inputs.extend(ours.bad.iter().cloned());
    inputs.extend(small.inputs()?);
    let made_by = fingerprint(&[host::root().join("testbed/src/images/toolstack.rs")])?;
    let key = format!(
        "{} {} {made_by} {} {}",
        kernel.version,
        packages::versions(&[PACKAGES, &[GRUB]].concat()),
        initramfs::MODULES.join(" "),
        fingerprint(&inputs)?
    );
    let out = host::target("images")?.join("toolstack.cpio");
    cached("building dom0's image with xl", &out, &key, |path| {
        let mut dom0 = Archive::default();
        base.add(&mut dom0)?;
        userland(&mut dom0, &tree, &base)?;
        add_scripts(&mut dom0, &scripts)?;
        add_modules(&mut dom0, kernel, &[initramfs::MODULES, BACK_END_MODULES, DOM0_MODULES].concat())?;
        dom0.file(&format!("usr/sbin/{DAEMON}"), read(&daemon)?, 0o755);
        dom0.file(&format!("usr/sbin/{TOOL}"), read(&tool)?, 0o755);
        dom0.file("guest/vmlinuz", read(&kernel.vmlinuz)?, 0o644);
        dom0.file("guest/vmlinux", elf::unpack_bzimage(&kernel.vmlinuz)?, 0o644);
        dom0.file("guest/grub-x86_64-xen.bin", read(&grub)?, 0o644);
        dom0.file("guest/guest.cpio", guest(&base, &scripts, kernel)?, 0o644);
        dom0.file(&format!("guest/{HOSTILE}"), read(&hostile.build()?)?, 0o644);
        dom0.file("guest/driver.cpio", driver(&base, &tree, &scripts, kernel, &ours)?, 0o644);
        for (name, image) in small.images(kernel)? {
            dom0.file(&format!("guest/small-{name}.cpio"), image, 0o644);
        }
        Ok(std::fs::write(path, dom0.bytes())?)
    })?;
    Ok(out)
}

/// A guest: the small initramfs with front ends instead of drivers.
fn guest(base: &Base, scripts: &Path, kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    base.add(&mut archive)?;
    archive.file("guest.sh", read(&scripts.join("guest.sh"))?, 0o755);
    add_modules(&mut archive, kernel, GUEST_MODULES)?;
    Ok(archive.bytes())
}

/// What is ours in a driver domain.
struct Ours {
    module: PathBuf,
    /// Modules that are bad for it.
    bad: Vec<PathBuf>,
    daemon: PathBuf,
    tool: PathBuf,
    faults: PathBuf,
    plug: PathBuf,
}

/// A driver domain: drivers and back ends, `xl devd` with what its hotplug scripts need, and what gives its drivers
/// twins.
fn driver(base: &Base, tree: &Path, scripts: &Path, kernel: &Kernel, ours: &Ours) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    base.add(&mut archive)?;
    userland(&mut archive, tree, base)?;
    add_scripts(&mut archive, scripts)?;
    add_modules(&mut archive, kernel, &[initramfs::MODULES, BACK_END_MODULES, DRIVER_MODULES].concat())?;
    archive.file(&format!("lib/modules/{}/updates/tandem.ko", kernel.version), read(&ours.module)?, 0o644);
    for bad in &ours.bad {
        let name = bad.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("lib/modules/{}/updates/{name}", kernel.version), read(bad)?, 0o644);
    }
    archive.file(&format!("usr/sbin/{TWIN_DAEMON}"), read(&ours.daemon)?, 0o755);
    archive.file(&format!("usr/sbin/{TOOL}"), read(&ours.tool)?, 0o755);
    archive.file(&format!("usr/sbin/{TWIN_FAULTS}"), read(&ours.faults)?, 0o755);
    archive.file("usr/sbin/plug", read(&ours.plug)?, 0o755);
    Ok(archive.bytes())
}

/// The toolstack's programs with their libraries and configuration, and links to busybox for all others.
fn userland(archive: &mut Archive, tree: &Path, base: &Base) -> Result<()> {
    let mut programs = Vec::new();
    for folder in FOLDERS {
        for file in all_files(&tree.join(folder))? {
            let path = file.strip_prefix(tree)?.to_string_lossy().into_owned();
            if !LEFT_OUT.iter().any(|name| path.ends_with(&format!("/{name}"))) {
                archive.copy(tree, &path)?;
                programs.push(path);
            }
        }
    }
    for name in PROGRAMS {
        let path = find(tree, PROGRAM_FOLDERS, name).with_context(|| format!("no package has the program {name}"))?;
        archive.copy(tree, &path)?;
        programs.push(path);
    }
    add_libraries(archive, tree, programs)?;
    let applets = host::output(Command::new(&base.busybox).arg("--list"))?;
    for applet in applets.lines() {
        if !PROGRAM_FOLDERS.iter().any(|folder| archive.has(&format!("{folder}/{applet}"))) {
            archive.link(&format!("bin/{applet}"), "busybox");
        }
    }
    for dir in ["var/run/xen", "var/lock", "var/lib/xen", "var/lib/xenstored", "var/log/xen/console", "run/xen"] {
        archive.dir(dir);
    }
    Ok(())
}

/// Adds what `programs` are linked with, and what that is linked with, and so on.
fn add_libraries(archive: &mut Archive, tree: &Path, mut programs: Vec<String>) -> Result<()> {
    archive.copy_through(tree, "lib64/ld-linux-x86-64.so.2")?;
    // libc loads this one by itself when a thread is cancelled.
    archive.copy_through(tree, "lib/x86_64-linux-gnu/libgcc_s.so.1")?;
    while let Some(path) = programs.pop() {
        let data = read(&tree.join(&path))?;
        if !data.starts_with(b"\x7fELF") {
            continue;
        }
        for name in elf::needed(&data).with_context(|| format!("{path} cannot be read"))? {
            let found = find(tree, LIBRARY_FOLDERS, &name).with_context(|| format!("{path} wants {name}"))?;
            if !archive.has(&found) {
                archive.copy_through(tree, &found)?;
                programs.push(found);
            }
        }
    }
    Ok(())
}

fn find(tree: &Path, folders: &[&str], name: &str) -> Option<String> {
    folders.iter().map(|folder| format!("{folder}/{name}")).find(|path| tree.join(path).exists())
}

/// Our own scripts: `*.cfg` are example configurations, `scripts/` is for `xl` to run, all others are dom0's.
fn add_scripts(archive: &mut Archive, scripts: &Path) -> Result<()> {
    for file in all_files(scripts)? {
        let name = file.strip_prefix(scripts)?.to_string_lossy().into_owned();
        let is_xls = name.ends_with(".cfg") || name.starts_with("scripts/");
        let place = if is_xls { format!("etc/xen/{name}") } else { format!("xen/{name}") };
        archive.file(&place, read(&file)?, 0o755);
    }
    Ok(())
}

/// Every file below a folder (links too), sorted.
fn all_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(all_files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
