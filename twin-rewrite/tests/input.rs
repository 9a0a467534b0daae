//! Files that are no module the rewriter can use: a clear refusal each.

use twin_rewrite::ko::{load, DEFAULT_BASE};
use twin_rewrite::module::Module;

fn refusal(bytes: &[u8]) -> String {
    load(bytes, "x", DEFAULT_BASE, &|_| None).unwrap_err()
}

/// A file header of the ELF format: 64 bits, little-endian, of this type and machine.
fn elf(kind: u16, machine: u16) -> Vec<u8> {
    let mut b = vec![0; 64];
    b[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    b[16..18].copy_from_slice(&kind.to_le_bytes());
    b[18..20].copy_from_slice(&machine.to_le_bytes());
    b[20] = 1;
    b[52] = 64;
    b[58] = 64;
    b
}

#[test]
fn not_an_object_file() {
    assert!(refusal(b"#!/bin/sh\n").contains("not a module"));
    assert!(refusal(&[]).contains("not a module"));
}

#[test]
fn another_architecture() {
    let said = refusal(&elf(1, 183));
    assert!(said.contains("another architecture"), "{said}");
}

#[test]
fn a_program_is_no_module() {
    let said = refusal(&elf(2, 62));
    assert!(said.contains("not a module"), "{said}");
}

#[test]
fn without_symbols() {
    let said = refusal(&elf(1, 62));
    assert!(said.contains("stripped"), "{said}");
}

#[test]
fn cut_short() {
    let whole = elf(1, 62);
    for len in 0..whole.len() {
        assert!(load(&whole[..len], "x", DEFAULT_BASE, &|_| None).is_err());
    }
}

#[test]
fn an_empty_module_has_no_text() {
    assert!(Module::default().check().unwrap_err().contains("no text"));
}

/// Rewriter and verifier know no driver: nothing in their sources names one.
#[test]
fn no_driver_is_named_in_rewriter_or_verifier() {
    let names = ["e1000", "8139", "vmxnet", "virtio", "igb", "r8169", "ixgbe", "nvme", "tg3", "bnx2", "ahci"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for dir in [root.join("src"), root.join("../twin-verify/src")] {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            if entry.path().extension().is_none_or(|x| x != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).unwrap().to_lowercase();
            files += 1;
            for name in names {
                assert!(!text.contains(name), "{} names {name}", entry.path().display());
            }
        }
    }
    assert!(files > 15);
}
