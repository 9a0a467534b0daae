//! The machine we run on: where the workspace is, which packages are missing, running programs.

use anyhow::{bail, Context, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// `target/` or a place below it, made if it is not there.
pub fn target(sub: &str) -> Result<PathBuf> {
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join(sub);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// A program or file we need, and the Debian package that has it.
struct Need {
    what: &'static str,
    package: &'static str,
}

/// Needs of everything that boots something.
const BOOT: &[Need] = &[
    Need { what: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { what: "gcc", package: "gcc" },
    Need { what: "/usr/lib/x86_64-linux-gnu/libc.a", package: "libc6-dev" },
    Need { what: "gcc-12", package: "gcc-12" },
    Need { what: "make", package: "make" },
    Need { what: "/usr/lib/x86_64-linux-gnu/libelf.so.1", package: "libelf1" },
    Need { what: "depmod", package: "kmod" },
    Need { what: "xz", package: "xz-utils" },
    Need { what: "mke2fs", package: "e2fsprogs" },
    Need { what: "/usr/share/seabios/bios-256k.bin", package: "seabios" },
];

/// Needs of a build for the bare machine when rustup has no target for it.
const DEBIAN_RUST: &[Need] = &[
    Need { what: "/usr/bin/rustc", package: "rustc-web" },
    Need { what: "/usr/bin/cargo", package: "cargo-web" },
    Need { what: "/usr/share/doc/rust-web-src", package: "rust-web-src" },
    Need { what: "ld", package: "binutils" },
];

/// Needs of `./tandem test --lint`. Where there is a rustup these are its own, which say what to do if they lack
/// something.
const LINT: &[Need] =
    &[Need { what: "cargo-fmt", package: "rustfmt-web" }, Need { what: "cargo-clippy", package: "rust-web-clippy" }];

/// The same when rustup has no target for the bare machine: clippy has to be of the compiler that builds for it.
const DEBIAN_LINT: &[Need] = &[
    Need { what: "cargo-fmt", package: "rustfmt-web" },
    Need { what: "/usr/share/doc/rust-web-clippy", package: "rust-web-clippy" },
];

/// Needs of `./tandem iso`, whose disc a BIOS and UEFI boot, and of machines with UEFI.
const ISO: &[Need] = &[
    Need { what: "grub-mkrescue", package: "grub-common" },
    Need { what: "/usr/lib/grub/i386-pc/moddep.lst", package: "grub-pc-bin" },
    Need { what: "/usr/lib/grub/x86_64-efi/moddep.lst", package: "grub-efi-amd64-bin" },
    Need { what: "/usr/share/OVMF/OVMF_CODE_4M.fd", package: "ovmf" },
    Need { what: "xorriso", package: "xorriso" },
    Need { what: "mformat", package: "mtools" },
];

/// What a command needs from the machine.
#[derive(Clone, Copy)]
pub enum For {
    /// Boot a machine.
    Boot,
    /// Build the hypervisor.
    Hypervisor,
    /// Look at all sources, the hypervisor's too, with the formatter and clippy.
    Linting,
    /// Build fuzz targets.
    Fuzzing,
    /// Make a bootable disc.
    Iso,
}

/// Installs what is missing if we are root; else says the one line that does.
pub fn provide(purpose: For) -> Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let needs = match purpose {
        For::Boot => BOOT,
        For::Hypervisor if crate::build::has_target() => return Ok(()),
        For::Hypervisor => DEBIAN_RUST,
        For::Linting if crate::build::has_target() => LINT,
        For::Linting => DEBIAN_LINT,
        For::Fuzzing => &[Need { what: "g++", package: "g++" }],
        For::Iso => ISO,
    };
    let missing: Vec<&str> = needs.iter().filter(|n| !present(n.what)).map(|n| n.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        bail!("missing packages; run: sudo apt-get install --no-install-recommends {}", missing.join(" "));
    }
    crate::progress::step(&format!("installing {}", missing.join(" ")), || {
        apt_update()?;
        run(Command::new("apt-get")
            .args(["install", "-y", "-q", "--no-install-recommends"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive"))
    })?;
    match needs.iter().find(|n| !present(n.what)) {
        Some(need) => bail!("{} is still missing after installing {}", need.what, need.package),
        None => Ok(()),
    }
}

fn present(what: &str) -> bool {
    if what.starts_with('/') {
        return Path::new(what).exists();
    }
    find_program(what).is_some()
}

/// A program in `PATH`, or where Debian keeps those for root.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut places = path.split(':').chain(["/usr/sbin", "/sbin"]).map(|dir| Path::new(dir).join(name));
    places.find(|p| p.is_file())
}

/// Whether the user may install packages.
pub fn is_root() -> bool {
    // The owner of our own /proc entry is the effective user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Refreshes the package lists when they are missing or older than a day.
pub fn apt_update() -> Result<()> {
    static UPDATING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = UPDATING.lock().unwrap_or_else(PoisonError::into_inner);
    let lists = Path::new("/var/lib/apt/lists");
    let fresh = std::fs::read_dir(lists).is_ok_and(|entries| {
        entries.flatten().any(|e| {
            e.file_name().to_string_lossy().ends_with("_Packages")
                || e.file_name().to_string_lossy().contains("_Packages.")
        })
    });
    let age = std::fs::metadata(lists).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    if fresh && age.is_some_and(|a| a.as_secs() < 86_400) {
        return Ok(());
    }
    if !is_root() {
        return if fresh { Ok(()) } else { bail!("no package lists; run: sudo apt-get update") };
    }
    run(Command::new("apt-get").args(["update", "-q"]))
}

/// Runs a program quietly; its output is shown only if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(|_| ())
}

/// Runs a program and gives what it printed. It speaks English, whatever the user's language: what it prints is read.
pub fn output(command: &mut Command) -> Result<String> {
    let name = describe(command);
    // `LANGUAGE` counts with any other locale, that named C.UTF-8 too.
    let done =
        command.env("LC_ALL", "C").stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !done.status.success() {
        // Some say why where others print what they have found.
        let is_silent = done.stderr.trim_ascii().is_empty();
        let said = String::from_utf8_lossy(if is_silent { &done.stdout } else { &done.stderr });
        let tail: Vec<&str> = said.lines().rev().take(15).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{name} failed ({})\n{}", done.status, tail.join("\n"));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn describe(command: &Command) -> String {
    let words: Vec<_> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_print_is_english_whatever_the_users_language() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $LC_ALL"]).env("LC_ALL", "de_DE.UTF-8").env("LANGUAGE", "de");
        assert_eq!(output(&mut shell).unwrap(), "C\n");
    }

    #[test]
    fn what_a_program_says_of_its_failure_is_shown_wherever_it_says_it() {
        let said = |script| output(Command::new("sh").args(["-c", script])).unwrap_err().to_string();
        assert!(said("echo found; echo why >&2; exit 1").ends_with("(exit status: 1)\nwhy"));
        assert!(said("echo why; exit 1").ends_with("(exit status: 1)\nwhy"));
    }
}
