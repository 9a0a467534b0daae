//! What a domain said on its console last: why its kernel has panicked.
//!
//! The ring keeps what was read long ago, so this needs nobody who writes consoles down, as xenconsoled does only if it
//! is told to. It holds 2048 bytes: a panic's line, most often, and behind it the functions that had called. Of a panic
//! within a system call that is not enough, as the registers come twice; then the log that xenconsoled may have written
//! is looked at. Before each line there may be a time, and what programs write comes in between, also in the middle of
//! a line. Any domain may say anything here, and what is found decides no more than by which name its end is counted.

use super::{candidate_of, standby_of};
use crate::hypercall::foreign::WORDS;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Where the ring of what it has said lies in the page, in words, and its bytes; and the count of bytes that were ever
/// written (public/io/console.h).
const OUT: usize = 256;
const OUT_BYTES: usize = 2048;
const OUT_PROD: usize = 771;

/// Where xenconsoled writes logs, if it is told to (`XENCONSOLED_TRACE=guest` in `/etc/default/xen`), by the names that
/// domains had at their beginning.
pub const LOGS: &str = "/var/log/xen/console";
/// So much of a log's end is looked at, if something was written so short a time ago: else it is another domain's.
const LOG_BYTES: u64 = 8192;
const FRESH: Duration = Duration::from_secs(60);

/// Begins what a kernel says of a panic.
const PANIC: &[u8] = b"Kernel panic - not syncing: ";
/// What it says when it is out of memory: that it was told to panic then, that there is no process it could kill, in
/// older and in newer words.
const SAYS: [&[u8]; 2] = [b"Out of memory", b"System is deadlocked on memory"];
/// The function that does so. It is in the list of those that had called when the line is not in the ring any more, or
/// is torn.
const CALLED: &[u8] = b"out_of_memory";

/// All that the ring has, in order. Of one that has said less the rest is zeros, which come first.
pub fn read(page: &[AtomicU32; WORDS]) -> Vec<u8> {
    let bytes: Vec<u8> =
        page[OUT..OUT + OUT_BYTES / 4].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    let next = page[OUT_PROD].load(Ordering::Acquire) as usize % OUT_BYTES;
    [&bytes[next..], &bytes[..next]].concat()
}

/// The end of the log of a driver domain that has just died, or nothing. It may have been made to wait, or to be tried.
pub fn of_log(folder: &Path, driver: &str) -> Vec<u8> {
    let modified = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
    let named = [driver.to_string(), standby_of(driver), candidate_of(driver)];
    let logs = named.map(|name| folder.join(format!("guest-{name}.log")));
    let newest = logs.iter().filter_map(|path| Some((modified(path)?, path))).max();
    let is_fresh = |at: SystemTime| at.elapsed().is_ok_and(|past| past < FRESH);
    let read = |path: &Path| -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(LOG_BYTES)))?;
        let mut end = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut end)?;
        Ok(end)
    };
    newest.filter(|(at, _)| is_fresh(*at)).and_then(|(_, path)| read(path).ok()).unwrap_or_default()
}

/// Whether it says when the kernel panicked: what comes before is not of that.
pub fn has_panic(said: &[u8]) -> bool {
    last(said, PANIC).is_some()
}

/// Whether a kernel that has panicked was out of memory. That it had killed a process for that before says nothing of
/// its panic.
pub fn is_out_of_memory(said: &[u8]) -> bool {
    let behind = last(said, PANIC).map_or(said, |at| &said[at + PANIC.len()..]);
    let line = behind.split(|byte| *byte == b'\n').next().unwrap_or(behind);
    let is_said = behind.len() < said.len() && SAYS.iter().any(|words| last(line, words).is_some());
    is_said || last(behind, CALLED).is_some()
}

/// Where this is found last.
fn last(text: &[u8], words: &[u8]) -> Option<usize> {
    text.windows(words.len()).rposition(|window| window == words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page whose domain has said this.
    fn page(said: &[u8]) -> Box<[AtomicU32; WORDS]> {
        let page = Box::new([const { AtomicU32::new(0) }; WORDS]);
        for (at, byte) in said.iter().enumerate() {
            let (at, shift) = (at % OUT_BYTES, at % 4 * 8);
            let word = &page[OUT + at / 4];
            let rest = word.load(Ordering::Relaxed) & !(0xff << shift);
            word.store(rest | u32::from(*byte) << shift, Ordering::Relaxed);
        }
        page[OUT_PROD].store(u32::try_from(said.len()).unwrap(), Ordering::Relaxed);
        page
    }

    fn judged(said: &str) -> bool {
        is_out_of_memory(&read(&page(said.as_bytes())))
    }

    const TRACE: &str =
        "[   35.120001] CPU: 0 PID: 211 Comm: tail Not tainted 6.1.0-40-amd64 #1\r\n[   35.120100] Call Trace:\r\n\
        [   35.120200]  <TASK>\r\n[   35.120300]  panic+0x118/0x2ed\r\n";

    #[test]
    fn what_was_said_is_read_in_order_however_often_the_ring_was_full() {
        let text: Vec<u8> = (0..10_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        for len in [0, 1, 5, 2047, 2048, 2049, 4096, 9999] {
            let said = read(&page(&text[..len]));
            assert_eq!(said.len(), OUT_BYTES);
            let kept = len.min(OUT_BYTES);
            assert_eq!(said[OUT_BYTES - kept..], text[len - kept..len], "{len}");
            assert!(said[..OUT_BYTES - kept].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_kernel_that_is_out_of_memory_is_known_by_its_words() {
        for why in [
            "Out of memory: system-wide panic_on_oom is enabled",
            "Out of memory: compulsory panic_on_oom is enabled",
            "Out of memory and no killable processes...",
            "System is deadlocked on memory",
        ] {
            for before in ["", "[   35.119999] "] {
                let panic = format!("{before}Kernel panic - not syncing: {why}\r\n{TRACE}");
                assert!(judged(&panic), "{panic}");
                assert!(judged(&format!("{}{panic}", "a line of the boot\r\n".repeat(500))), "{panic}");
            }
        }
    }

    #[test]
    fn or_by_who_had_called_when_the_line_is_torn_or_gone() {
        let trace = format!(
            "{TRACE}[   35.120400]  out_of_memory.cold+0x67/0x7d\r\n[   35.120500]  __alloc_pages+0x305/0x330\r\n"
        );
        assert!(judged(&format!("Kernel panic - not syncing: Out of me\r\nlogin: mory: panic_on_oom\r\n{trace}")));
        let long = "[   35.120600]  handle_mm_fault+0xdb/0x2d0\r\n".repeat(40);
        let said = format!("Kernel panic - not syncing: Out of memory\r\n{trace}{long}");
        assert_eq!(last(&read(&page(said.as_bytes())), PANIC), None, "it is gone");
        assert!(judged(&said));
    }

    #[test]
    fn what_is_longer_than_the_ring_is_found_in_the_log_of_who_has_just_died() {
        let folder = std::env::temp_dir().join(format!("tandemd-consoles-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(of_log(&folder, "dd").is_empty(), "nobody writes consoles down");
        let write = |name: &str, said: &str, ago_s: u64| {
            let path = folder.join(format!("guest-{name}.log"));
            std::fs::write(&path, said).unwrap();
            let at = SystemTime::now() - Duration::from_secs(ago_s);
            File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
        };
        let registers = "[   35.2] R13: 000000001114f3a0 R14: 0000000000000000\r\n".repeat(60);
        let panic = format!("Kernel panic - not syncing: Out of memory: panic_on_oom\r\n{TRACE}{registers}");
        let ring = read(&page(panic.as_bytes()));
        assert!(!has_panic(&ring) && !is_out_of_memory(&ring));
        write("dd", &format!("{}{panic}", "a line of the boot\n".repeat(9000)), 90);
        assert!(of_log(&folder, "dd").is_empty(), "that was an earlier one's end");
        write("dd", &format!("{}{panic}", "a line of the boot\n".repeat(9000)), 1);
        let end = of_log(&folder, "dd");
        assert!(has_panic(&end) && is_out_of_memory(&end));
        assert!(u64::try_from(end.len()).unwrap() <= LOG_BYTES);
        // Who waited before has the log of that name.
        write("dd-standby", "Kernel panic - not syncing: Fatal exception\n", 0);
        assert!(!is_out_of_memory(&of_log(&folder, "dd")));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_panics_are_others_also_of_one_that_had_killed_for_memory() {
        let killed = "[   30.0]  out_of_memory+0x1f2/0x530\r\n[   30.1] Out of memory: Killed process 77 (tail)\r\n";
        for panic in
            ["sysrq triggered crash", "Fatal exception in interrupt", "Attempted to kill init! exitcode=0x00000009"]
        {
            assert!(!judged(&format!("{killed}[   35.1] Kernel panic - not syncing: {panic}\r\n{TRACE}")), "{panic}");
        }
        assert!(!judged("") && !judged("[   30.1] Out of memory: Killed process 77 (tail)\r\n"));
        // The last one counts: what was said before may be of an earlier kernel, as after a roll back.
        assert!(!judged(
            "Kernel panic - not syncing: Out of memory\nbooted\nKernel panic - not syncing: Fatal exception\n"
        ));
    }
}
