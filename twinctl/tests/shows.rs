//! Who has seen enough of what the tool shows may go.

use control::socket::{listen, serve};
use control::{Answer, Told};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

#[test]
fn what_nobody_reads_to_the_end_is_no_error_and_what_cannot_be_written_is_one() {
    let path = std::env::temp_dir().join(format!("twinctl-shows-{}/one.sock", std::process::id()));
    serve(listen(&path).unwrap(), |_| Answer::Ok(Told::Tandemd { services: Vec::new() }));
    let run = |arguments: &[&str], to: Stdio| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_twinctl"));
        program.arg("--socket").arg(&path).args(arguments).stdout(to).status().unwrap().code()
    };
    for arguments in [&["status"][..], &["top", "--count", "3", "--every", "0.1"]] {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        assert_eq!(run(arguments, OwnedFd::from(writer).into()), Some(0), "{arguments:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(run(arguments, full.into()), Some(1), "{arguments:?}");
    }
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}
