//! `cargo xtask build`: the hypervisor's ELF image, `target/tandem.elf`.
//!
//! With rustup's bare-metal target the prebuilt `core` is used; without it, Debian's `rustc-web`, `cargo-web` and
//! `rust-web-src` build `core` along with the image. After linking, the names of functions are put into the image for
//! its backtraces, and its layout is checked against what the boot loaders expect.

use crate::symbols;
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-none";
const PROFILE: &str = "image";

/// The workspace's directory.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Builds the image and returns its path.
pub fn build() -> Result<PathBuf> {
    let root = workspace();
    let is_prebuilt = has_target();
    let compile = |lto: &str| -> Result<bool> {
        let mut cargo = on_hypervisor("build", is_prebuilt);
        cargo.args(["--profile", PROFILE]);
        cargo.arg("--config").arg(format!("profile.{PROFILE}.lto={lto}"));
        Ok(cargo.status().context("cannot start cargo")?.success())
    };
    // Some prebuilt `core` cannot take part in link-time optimisation; the image is then a little slower.
    let mut is_built = compile("\"fat\"")?;
    if !is_built && is_prebuilt {
        println!("warning: building again without link-time optimisation");
        is_built = compile("\"off\"")?;
    }
    ensure!(is_built, "the hypervisor does not build");

    let linked = root.join("target").join(TARGET).join(PROFILE).join("tandem");
    let mut image = std::fs::read(&linked).with_context(|| format!("no {}", linked.display()))?;
    check_layout(&image)?;
    symbols::embed(&mut image)?;
    let path = root.join("target/tandem.elf");
    std::fs::write(&path, image)?;
    Ok(path)
}

/// Clippy's look at the hypervisor, to which any remark is a failure. Nothing of the image is built, nor built anew
/// afterwards.
pub fn lint() -> Command {
    let mut cargo = on_hypervisor("clippy", has_target());
    cargo.args(["--", "-D", "warnings"]);
    cargo
}

/// Whether rustup has the bare-metal target, and so `core` for it.
pub fn has_target() -> bool {
    Command::new("rustup")
        .args(["target", "list", "--installed"])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).lines().any(|line| line == TARGET))
}

/// Cargo's `subcommand` on the hypervisor, with a toolchain that can build for the bare machine.
fn on_hypervisor(subcommand: &str, is_prebuilt: bool) -> Command {
    let mut cargo;
    if is_prebuilt {
        cargo = Command::new("cargo");
        cargo.arg(subcommand);
    } else {
        // A subcommand that is a program of its own Debian's cargo would look for among rustup's first.
        cargo = Command::new(if subcommand == "clippy" { "/usr/bin/cargo-clippy" } else { "/usr/bin/cargo" });
        // What a rustup cargo that started us left behind would mislead Debian's.
        cargo.env_remove("RUSTUP_TOOLCHAIN").env("CARGO", "/usr/bin/cargo").env("RUSTC", "/usr/bin/rustc");
        cargo.env("RUSTC_BOOTSTRAP", "1");
        cargo.args([subcommand, "-Zbuild-std=core,alloc", "-Zbuild-std-features=compiler-builtins-mem"]);
    }
    cargo.current_dir(workspace()).args(["--quiet", "--package", "hv", "--target", TARGET]);
    cargo
}

/// Every loaded byte must be as far into the file as into memory, because Multiboot-1 loaders copy the raw file.
fn check_layout(image: &[u8]) -> Result<()> {
    let segments: Vec<symbols::Segment> = symbols::segments(image)?.into_iter().filter(|s| s.file_bytes != 0).collect();
    let first = segments.first().context("the image has no segments")?;
    ensure!(first.offset < 8192, "the Multiboot header is too far into the file");
    for segment in &segments {
        ensure!(
            segment.offset.wrapping_sub(first.offset) == segment.physical.wrapping_sub(first.physical),
            "segment at {:#x} is not where the file says",
            segment.physical
        );
    }
    Ok(())
}
