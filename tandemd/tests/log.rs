//! The daemon says which it is. It goes on when its log cannot be written. This is its program: it says something and
//! ends as it would have.

use std::fs::File;
use std::process::Command;

#[test]
fn it_says_its_version() {
    let out = Command::new(env!("CARGO_BIN_EXE_tandemd")).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), concat!("tandemd ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let run = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tandemd"));
        program.args(arguments).stdout(full()).stderr(full()).status().unwrap().code()
    };
    // A panic's would be another one.
    assert_eq!(run(&["--check", "--config", "/nowhere/tandemd.toml"]), Some(1));
    assert_eq!(run(&["--help"]), Some(1), "it was to show something");
}
