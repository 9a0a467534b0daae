//! `./tandem shell`: a console in dom0, for a person.

use crate::options::Options;
use anyhow::Result;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use testbed::images;
use testbed::machine::{Hypervisor, Machine};
use testbed::peer::Peer;

pub fn run(options: &Options) -> Result<()> {
    let images = if options.toolstack { images::toolstack()? } else { images::basic()? };
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    let peer = Peer::start("shell")?;
    let cpus = options.cpus.unwrap_or(2);
    let mut machine = if options.toolstack {
        Machine::with_guests("shell", &hypervisor, &images, cpus, "toolstack+bridge:e1000+xlshell")
    } else {
        Machine::new("shell", &hypervisor, &images, cpus, "shell")
    };
    machine.nic = Some(("e1000", peer.socket().to_path_buf()));
    machine.timeout_s = 24 * 3600;
    let example = if options.toolstack {
        "xl info; xl create -c /etc/xen/guest.cfg"
    } else {
        "modprobe e1000; ifconfig eth0 10.9.0.2; ping 10.9.0.1"
    };
    println!("Try: {example}. `poweroff -f` ends, and Ctrl-\\ at once.");
    if options.gdb {
        crate::run::wait_for_gdb(&mut machine);
    }
    let raw = Raw::begin();
    let mut running = machine.start()?;
    let monitor = running.monitor();
    if let Some(mut keys) = running.input() {
        std::thread::spawn(move || {
            let mut buffer = [0; 256];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut buffer) {
                let typed = &buffer[..n];
                let is_end = typed.contains(&END);
                if is_end && monitor.send("quit").is_ok() || keys.write_all(typed).and_then(|()| keys.flush()).is_err()
                {
                    return;
                }
            }
        });
    }
    let log = testbed::host::target("logs")?.join("shell.log");
    let watching = std::thread::spawn(move || follow(&log));
    let outcome = running.finish(|_| false)?;
    drop(watching);
    drop(raw);
    println!("\nended: {:?}", outcome.ending);
    Ok(())
}

/// Ctrl-\. It is the one key that is not dom0's.
const END: u8 = 0x1c;

/// Our terminal passes keys on one by one and shows none, those that would end us included: they are for who runs in
/// dom0. Dropped, it is what it was, however we end.
struct Raw {
    /// As `stty -g` tells it; `None`: this is no terminal.
    before: Option<String>,
}

impl Raw {
    fn begin() -> Self {
        let before = stty(&["-g"]);
        if before.is_some() {
            stty(&["raw", "-echo"]);
        }
        Self { before }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            stty(&[before]);
        }
    }
}

/// What it says, if it succeeds.
fn stty(words: &[&str]) -> Option<String> {
    let done = Command::new("stty").args(words).stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
}

/// Copies the log to the screen as it grows: prompts have no line end, so lines would come too late.
fn follow(log: &std::path::Path) {
    let Ok(mut file) = std::fs::File::open(log) else { return };
    let mut buffer = [0; 4096];
    let mut out = std::io::stdout();
    while let Ok(n) = file.read(&mut buffer) {
        if n == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        } else if out.write_all(&buffer[..n]).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testbed::host;

    #[test]
    fn a_terminal_is_what_it_was_when_the_shell_ends_by_an_error() {
        let own = std::env::current_exe().unwrap();
        let script =
            format!("stty -g; {} --exact shell::tests::in_a_terminal --ignored --nocapture; stty -g", own.display());
        let said =
            host::output(Command::new("script").args(["--quiet", "--return", "--command", &script, "/dev/null"]))
                .unwrap();
        let said: Vec<&str> = said.lines().map(str::trim).collect();
        assert!(said.len() > 2 && said.first() == said.last(), "{said:?}");
        let flags = said.iter().find_map(|line| line.split_once("meanwhile: ")).unwrap().1;
        assert!(["-isig", "-icanon", "-echo"].iter().all(|flag| flags.split(' ').any(|word| word == *flag)), "{flags}");
    }

    #[test]
    #[ignore = "it is run in a terminal, by the other test"]
    fn in_a_terminal() {
        let _raw = Raw::begin();
        println!("meanwhile: {}", stty(&["-a"]).unwrap().replace(['\n', ';'], " "));
        panic!("the machine does not start");
    }
}
