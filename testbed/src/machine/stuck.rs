//! Where the CPUs of a machine are that does not come to an end.

use super::process::field;
use super::qmp::Monitor;
use crate::symbols;
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// Looks at a CPU, and time between two of them: who is in the same place each time hangs there.
const LOOKS: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(500);
/// How long QEMU may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks a few times; a line for each CPU and look. `image`: the hypervisor, whose functions are named.
pub fn places(monitor: &Monitor, image: Option<&Path>) -> Result<Vec<String>> {
    let functions = image.and_then(|path| std::fs::read(path).ok()).and_then(|image| symbols::names(&image).ok());
    let functions = functions.unwrap_or_default();
    let mut lines = Vec::new();
    for look in 1..=LOOKS {
        // As JSON has it, with its line ends.
        let said = monitor.ask("info registers -a", PATIENCE)?.replace("\\r\\n", "\n");
        for cpu in said.split("CPU#").skip(1) {
            lines.extend(place(cpu, &functions).map(|place| format!("look {look}: CPU {place}")));
        }
        std::thread::sleep(BETWEEN);
    }
    Ok(lines)
}

/// A CPU's number, mode, interrupts and function, of what QEMU says behind "CPU#".
fn place(said: &str, functions: &[(u64, String)]) -> Option<String> {
    let number = said.split_whitespace().next()?;
    let rip = u64::from_str_radix(field(said, "RIP")?, 16).ok()?;
    let flags = u64::from_str_radix(field(said, "RFL")?, 16).ok()?;
    let ring = field(said, "CPL")?;
    let interrupts = if flags & 1 << 9 == 0 { "off" } else { "on" };
    let halted = if field(said, "HLT") == Some("1") { ", halted" } else { "" };
    let known = functions.iter().take_while(|(start, _)| *start <= rip).last().filter(|_| ring == "0");
    let name = known.map(|(start, name)| format!(" {name}+{:#x}", rip - start)).unwrap_or_default();
    Some(format!("{number}: ring {ring}, interrupts {interrupts}{halted}, rip {rip:#x}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_named_by_the_function_it_is_in() {
        let functions = [(0xffff_82d0_8000_1000, "one".into()), (0xffff_82d0_8000_2000, "two".into())];
        let said = "3\nRAX=0 RIP=ffff82d080001010 RFL=00000046 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=0\n";
        let place = place(said, &functions);
        assert_eq!(place.as_deref(), Some("3: ring 0, interrupts off, rip 0xffff82d080001010 one+0x10"));
    }
}
