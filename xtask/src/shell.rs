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
    if options.toolstack {
        println!("Try: xl info; xl create -c /etc/xen/guest.cfg. `poweroff -f` ends.");
    } else {
        println!("Try: modprobe e1000; ifconfig eth0 10.9.0.2; ping 10.9.0.1. `poweroff -f` ends.");
    }
    // Keys go to the guest one by one, unseen by our terminal.
    let raw = Command::new("stty").args(["raw", "-echo", "isig"]).stderr(Stdio::null()).status();
    let mut running = machine.start()?;
    if let Some(mut keys) = running.input() {
        std::thread::spawn(move || {
            let mut buffer = [0; 256];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut buffer) {
                if keys.write_all(&buffer[..n]).and_then(|()| keys.flush()).is_err() {
                    return;
                }
            }
        });
    }
    let log = testbed::host::target("logs")?.join("shell.log");
    let watching = std::thread::spawn(move || follow(&log));
    let outcome = running.finish(|_| false)?;
    drop(watching);
    if raw.is_ok() {
        let _ = Command::new("stty").arg("sane").stderr(Stdio::null()).status();
    }
    println!("\nended: {:?}", outcome.ending);
    Ok(())
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
