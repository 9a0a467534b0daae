//! `twin-capture DRIVER`: takes, or finds in the cache, a snapshot of a live driver and says what is in it.

use std::path::PathBuf;
use std::process::ExitCode;
use twin_capture::{guest, live, snapshot::Snapshot, Result};

fn main() -> ExitCode {
    match capture() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("capture: {e}");
            ExitCode::FAILURE
        }
    }
}

fn capture() -> Result<()> {
    let driver = std::env::args().nth(1).ok_or("usage: capture DRIVER")?;
    let cache = std::env::var_os("TANDEM_CACHE").map_or_else(|| PathBuf::from("target/images"), PathBuf::from);
    let dir = guest::capture(&driver, &cache)?;
    let s = Snapshot::open(&dir)?;
    let types = live::types(&s)?;
    let dev = live::net_device(&s, &types, &s.netdev)?;
    println!("snapshot {}: kernel {}, {} symbols", dir.display(), s.release, s.symbols.len());
    for m in s.modules.values() {
        println!("module {} at {:#x}, {} bytes", m.name, m.base, m.len_bytes);
    }
    println!("{} net_device {:#x}, transmit {}", s.netdev, dev.address, s.describe(dev.start_xmit));
    for (napi, poll) in &dev.napi {
        println!("napi {napi:#x}, poll {}", s.describe(*poll));
    }
    for (irq, handler, argument) in &dev.irqs {
        println!("irq {irq}: {} ({argument:#x})", s.describe(*handler));
    }
    println!("capture {driver}: ready");
    Ok(())
}
