//! Hands the linker script to the linker, names what the assembly files and the image depend on, and says when, where
//! and by which compiler the image is built.

use std::process::Command;

fn main() {
    say_how_it_is_built();
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=link.ld");
    for arg in ["--script", &format!("{dir}/link.ld"), "--no-pie", "--build-id=sha1", "-znorelro"] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
    for arg in [
        "-zmax-page-size=0x1000",
        "--no-warn-rwx-segments",
        "--no-eh-frame-hdr",
        "--no-dynamic-linker",
        "--gc-sections",
    ] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
}

/// `TANDEM_COMPILER`, `TANDEM_BUILD_DATE`, `TANDEM_BUILD_BY` and `TANDEM_BUILD_DOMAIN`, as the variables that Xen's
/// build knows say it, or as it is.
fn say_how_it_is_built() {
    for folder in ["src", "../hv-core/src", "../kernel-image/src", "../x86/src", "../xen-abi/src", "../Cargo.lock"] {
        println!("cargo:rerun-if-changed={folder}");
    }
    let compiler = std::env::var("RUSTC").expect("cargo sets it");
    say("TANDEM_COMPILER", None, &[&compiler, "--version"]);
    let date = match said("SOURCE_DATE_EPOCH") {
        Some(seconds) => format!("@{seconds}"),
        None => "now".into(),
    };
    say("TANDEM_BUILD_DATE", said("XEN_BUILD_DATE"), &["date", "-u", "-d", &date]);
    say("TANDEM_BUILD_BY", said("XEN_WHOAMI"), &["id", "-un"]);
    say("TANDEM_BUILD_DOMAIN", said("XEN_DOMAIN"), &["hostname", "-d"]);
}

fn said(variable: &str) -> Option<String> {
    println!("cargo:rerun-if-env-changed={variable}");
    std::env::var(variable).ok()
}

/// Sets `variable` to `value`, or to the line that `command` prints.
fn say(variable: &str, value: Option<String>, command: &[&str]) {
    let printed = || {
        let output = Command::new(command[0]).args(&command[1..]).env("LC_ALL", "C").output().ok()?;
        let line = String::from_utf8(output.stdout).ok()?.trim().to_string();
        (output.status.success() && !line.is_empty()).then_some(line)
    };
    println!("cargo:rustc-env={variable}={}", value.or_else(printed).unwrap_or_else(|| "[unknown]".into()));
}
