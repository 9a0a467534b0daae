//! `twinctl top` at a terminal, with a daemon that never answers.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, Pid, Signal};
use rustix::pty::{grantpt, ioctl_tiocgptpeer, openpt, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, LocalModes};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// The terminal, where others type and see; and the end that programs have.
fn terminal() -> (File, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
    (File::from(master), slave)
}

/// Waits until this is to be seen.
fn until_seen(terminal: &mut File, what: &str) {
    let (mut seen, end) = (Vec::new(), Instant::now() + LONG);
    while !String::from_utf8_lossy(&seen).contains(what) {
        assert!(Instant::now() < end, "{:?}", String::from_utf8_lossy(&seen));
        let mut ready = [PollFd::new(terminal, PollFlags::IN)];
        let limit = Timespec::try_from(Duration::from_millis(100)).unwrap();
        if poll(&mut ready, Some(&limit)).unwrap() == 0 {
            continue;
        }
        let mut bytes = [0; 1024];
        let count = terminal.read(&mut bytes).unwrap();
        seen.extend_from_slice(&bytes[..count]);
    }
}

/// What it has ended with.
fn end_of(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn top_ends_by_a_key_though_nobody_answers() {
    let folder = std::env::temp_dir().join(format!("twinctl-top-pty-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("one.sock");
    // Who connects there is connected, and that is all.
    let _listener = UnixListener::bind(&path).unwrap();
    let (mut terminal, slave) = terminal();
    let modes = || tcgetattr(&slave).unwrap().local_modes;
    let before = modes();
    assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
    type End = fn(&mut File, &Child);
    let ends: [(End, i32); 3] = [
        (|terminal, _| terminal.write_all(b"xq").unwrap(), 0),
        (|terminal, _| terminal.write_all(b"\x03").unwrap(), 0),
        (|_, child| kill_process(Pid::from_child(child), Signal::TERM).unwrap(), 143),
    ];
    for (end, status) in ends {
        let mut top = Command::new(env!("CARGO_BIN_EXE_twinctl"));
        top.arg("--socket").arg(&path).arg("top").stderr(Stdio::null());
        top.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap());
        let mut child = top.spawn().unwrap();
        until_seen(&mut terminal, "\x1b[?1049h");
        assert!(!modes().intersects(LocalModes::ICANON | LocalModes::ECHO));
        end(&mut terminal, &child);
        until_seen(&mut terminal, "\x1b[?1049l");
        assert_eq!((end_of(&mut child), modes()), (Some(status), before));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
