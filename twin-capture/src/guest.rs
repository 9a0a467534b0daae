//! Runs the guest until it says that it is ready, stops it, and keeps memory and index.

use crate::initramfs::{self, FAILED, READY};
use crate::snapshot::Snapshot;
use crate::{words, Result, DEVICES};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testbed::host;
use testbed::images::kernel;

const RAM_MIB: u32 = 256;
/// How much of a window of the device is kept.
const WINDOW_BYTES: u64 = 0x1_0000;
const TIMEOUT: Duration = Duration::from_secs(240);

/// The program that capturing needs and this machine does not have.
pub fn missing() -> Option<&'static str> {
    const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "apt-get", "dpkg-deb", "depmod"];
    PROGRAMS.into_iter().find(|program| host::find_program(program).is_none())
}

/// Boots, captures and stores a snapshot of `driver` under `cache`; returns its directory.
pub fn capture(driver: &str, cache: &Path) -> Result<PathBuf> {
    let device = DEVICES.iter().find(|(name, _)| *name == driver).map(|(_, device)| *device).ok_or_else(|| {
        let known: Vec<&str> = DEVICES.iter().map(|(name, _)| *name).collect();
        format!("no emulated device for driver {driver}; there are devices for {}", known.join(", "))
    })?;
    let cache = &std::path::absolute(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let dir = cache.join("snapshots").join(driver);
    if dir.join("index").exists() {
        return Ok(dir);
    }
    let kernel = kernel::debian().map_err(words)?;
    let scratch = cache.join("snapshots").join(format!("{driver}.partial"));
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).map_err(|e| e.to_string())?;
    let also: &[&str] = if device.starts_with("virtio") { &["virtio_pci"] } else { &[] };
    initramfs::build(&kernel, driver, also, &scratch.join("initrd"))?;
    eprintln!("booting {} with {device}", kernel.version);
    let said = boot(&kernel.vmlinuz, driver, device, &scratch)?;
    let facts = unpacked(&scratch.join("index.gz"))?;
    let index = format!(
        "tandem-snapshot 1\nram_bytes {}\ncr3 {:#x}\n{}{facts}",
        u64::from(RAM_MIB) << 20,
        cr3(&said)?,
        registers(&said)
    );
    std::fs::copy(kernel.module(driver).map_err(words)?, scratch.join("module.ko")).map_err(|e| e.to_string())?;
    std::fs::write(scratch.join("index"), index).map_err(|e| e.to_string())?;
    for leftover in ["initrd", "index.gz"] {
        let _ = std::fs::remove_file(scratch.join(leftover));
    }
    Snapshot::open(&scratch)?;
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::rename(&scratch, &dir).map_err(|e| e.to_string())?;
    Ok(dir)
}

/// Runs the machine until it is ready; returns what the monitor says about its registers.
fn boot(vmlinuz: &Path, driver: &str, device: &str, scratch: &Path) -> Result<String> {
    let console = scratch.join("console");
    let ram = scratch.join("ram");
    let mut qemu = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-smp", "2", "-display", "none", "-no-reboot", "-nodefaults", "-monitor", "stdio"])
        .args(["-m", &format!("{RAM_MIB}M"), "-machine", "pc,memory-backend=ram"])
        .arg("-object")
        .arg(format!("memory-backend-file,id=ram,size={RAM_MIB}M,share=on,mem-path={}", ram.display()))
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-serial")
        .arg(format!("file:{}", scratch.join("index.gz").display()))
        .args(["-netdev", "user,id=net0", "-device", &format!("{device},netdev=net0")])
        .arg("-kernel")
        .arg(vmlinuz)
        .arg("-initrd")
        .arg(scratch.join("initrd"))
        .args(["-append", &format!("console=ttyS0 quiet nokaslr panic=-1 driver={driver}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|e| format!("qemu-system-x86_64: {e}"))?;
    let waited = wait_for_ready(&console, || qemu.try_wait().ok().flatten().is_some());
    let mut said = String::new();
    let mut commands = String::from("stop\ninfo registers\n");
    for (first, last) in memory_windows(&scratch.join("index.gz")) {
        let words = (last - first + 1).min(WINDOW_BYTES) / 4;
        commands += &format!("xp /{words}xw {first:#x}\n");
    }
    commands += "quit\n";
    if let Some(monitor) = qemu.stdin.as_mut() {
        let _ = monitor.write_all(commands.as_bytes());
    }
    if waited.is_err() {
        let _ = qemu.kill();
    }
    if let Some(mut out) = qemu.stdout.take() {
        let _ = out.read_to_string(&mut said);
    }
    let _ = qemu.wait();
    waited.map(|()| said)
}

/// The text in a gzip file.
fn unpacked(file: &Path) -> Result<String> {
    host::output(Command::new("gzip").arg("-dc").arg(file)).map_err(words)
}

/// The device's memory windows, from the packed index.
fn memory_windows(packed: &Path) -> Vec<(u64, u64)> {
    const IORESOURCE_MEM: u64 = 0x200;
    let Ok(index) = unpacked(packed) else { return Vec::new() };
    let hex = |w: &str| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok();
    let window = |line: &str| {
        let words: Vec<u64> = line.strip_prefix("window ")?.split(' ').filter_map(hex).collect();
        (words.len() == 3 && words[2] & IORESOURCE_MEM != 0).then(|| (words[0], words[1]))
    };
    index.lines().filter_map(window).collect()
}

/// The device's registers among what the monitor printed: address and value of each word that is not zero.
fn registers(said: &str) -> String {
    let mut out = String::new();
    for line in said.lines() {
        let Some((address, words)) = line.trim().split_once(": 0x") else { continue };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        for (n, word) in (0u64..).zip(words.split_whitespace()) {
            if let Ok(value @ 1..) = u32::from_str_radix(word.trim_start_matches("0x"), 16) {
                out += &format!("register {:#x} {value:#x}\n", address + 4 * n);
            }
        }
    }
    out
}

fn wait_for_ready(console: &Path, ended: impl FnMut() -> bool) -> Result<()> {
    let mut ended = ended;
    let start = Instant::now();
    loop {
        let text = String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned();
        let tail = || text.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
        if let Some(line) = text.lines().find(|l| l.contains(FAILED)) {
            return Err(format!("the guest says: {line}"));
        }
        if text.contains(READY) {
            return Ok(());
        }
        if ended() {
            return Err(format!("the guest ended early: {}", tail()));
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!("the guest was not ready in {} s: {}", TIMEOUT.as_secs(), tail()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The page-table root among the registers that the monitor printed.
fn cr3(registers: &str) -> Result<u64> {
    let at = registers.find("CR3=").ok_or("the monitor shows no CR3")?;
    let digits: String = registers[at + 4..].chars().take_while(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&digits, 16).map(|v| v & 0x000f_ffff_ffff_f000).map_err(|e| format!("CR3: {e}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_root_is_read_from_the_monitor() {
        assert_eq!(super::cr3("CR0=80050033 CR2=0 CR3=0000000002a10003 CR4=6f0"), Ok(0x2a10000));
        assert!(super::cr3("nothing").is_err());
    }

    #[test]
    fn device_registers_are_read_from_the_monitor() {
        let said = "(qemu) xp\n00000000feb80000: 0x00140240 0x00000000 0x80080783 0x00000000\r\n(qemu)";
        assert_eq!(super::registers(said), "register 0xfeb80000 0x140240\nregister 0xfeb80008 0x80080783\n");
    }
}
