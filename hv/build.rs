//! Hands the linker script to the linker and names what the assembly files and the image depend on.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=link.ld");
    for arg in ["--script", &format!("{dir}/link.ld"), "--no-pie", "--build-id=none", "-znorelro"] {
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
