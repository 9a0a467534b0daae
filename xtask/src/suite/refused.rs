//! Writes that a damaged driver has answered and its controller has refused.
//!
//! A kernel whose memory is damaged may give a command of AHCI a tag that another one has. QEMU does not take such a command, and says so
//! (`-d guest_errors`). When the other one is done its driver takes that for both, and a guest is told that a write is done which nobody has
//! done: no hypervisor can see that. It is never done, or late, from a page that has the bytes of another write by then. So a block may hold another write
//! than its last, but no more of them may than commands were refused by then, and those only while a kernel lived that died of damaged memory.

use anyhow::{ensure, Context, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Whose memory is damaged.
const DAMAGED: &str = "wild";
/// By these a device goes where it may not.
const ASTRAY: &[&str] = &[DAMAGED, "dma"];

/// What the machine's own QEMU and its console say, in the order in which it happened.
pub struct Record {
    file: PathBuf,
    read: u64,
    /// The end of what QEMU has said, if that is a part of a line.
    begun: String,
    /// Tags of commands that were refused since the last death.
    tags: BTreeSet<u32>,
    /// What the hypervisor has said since then of a device that was stopped.
    stopped: Option<String>,
    /// Commands refused in lives that ended by [`DAMAGED`]: one for each tag and life, as QEMU says it again when it is told of another command.
    refused: usize,
    /// Guest, block and write of what was not done.
    undone: BTreeSet<(String, u64, u64)>,
    /// What was first wrong.
    wrong: Option<String>,
}

impl Record {
    /// Of the machine whose QEMU writes to this file.
    pub fn of(file: &Path) -> Self {
        Self {
            file: file.into(),
            read: 0,
            begun: String::new(),
            tags: BTreeSet::new(),
            stopped: None,
            refused: 0,
            undone: BTreeSet::new(),
            wrong: None,
        }
    }

    /// A line of the console.
    pub fn hears(&mut self, line: &str) {
        if line.contains("(TDM) ") && line.contains("stopped") && line.contains("IOMMU") {
            self.stopped.get_or_insert_with(|| line.into());
        }
        let Some((_, report)) = line.split_once("TANDEM: ") else { return };
        let words: Vec<&str> = report.split_whitespace().collect();
        match words[..] {
            ["death", number, cause, ..] if number.parse::<u64>().is_ok() => self.ends(cause),
            ["undone", guest, block, write, ..] => self.misses(guest, block, write),
            ["group", ..] => self.ends("the end"),
            _ => {}
        }
    }

    /// A driver domain died of this, and all goes on.
    fn ends(&mut self, cause: &str) {
        match self.said() {
            Ok(said) => self.tags.extend(said.lines().filter_map(refused_tag)),
            Err(why) => self.note(format!("{why:#}")),
        }
        let tags = std::mem::take(&mut self.tags);
        if cause == DAMAGED {
            self.refused += tags.len();
        } else if !tags.is_empty() {
            self.note(format!("before {cause} a controller refused commands with tags that are in use: {tags:?}"));
        }
        if let Some(line) = self.stopped.take().filter(|_| !ASTRAY.contains(&cause)) {
            self.note(format!("before {cause}: {line}"));
        }
    }

    fn misses(&mut self, guest: &str, block: &str, write: &str) {
        match (block.parse(), write.parse()) {
            (Ok(block), Ok(write)) => self.undone.insert((guest.into(), block, write)),
            _ => return self.note(format!("{guest} has said no block and write: {block} {write}")),
        };
        if self.undone.len() > self.refused {
            self.note(format!(
                "write {write} of block {block} of {guest} was answered and not done, and no controller refused it"
            ));
        }
    }

    fn note(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// The whole lines that QEMU has added.
    fn said(&mut self) -> Result<String> {
        let mut file = File::open(&self.file).with_context(|| format!("no {}", self.file.display()))?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        self.read += file.read_to_end(&mut bytes)? as u64;
        let mut lines = std::mem::take(&mut self.begun) + &String::from_utf8_lossy(&bytes);
        self.begun = lines.split_off(lines.rfind('\n').map_or(0, |at| at + 1));
        Ok(lines)
    }

    /// What goes into the test's last line; an error if something was wrong for which there is no such reason.
    pub fn verdict(&self) -> Result<String> {
        ensure!(self.wrong.is_none(), "{}", self.wrong.as_deref().unwrap_or_default());
        Ok(self.to_string())
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (refused, undone) = (self.refused, self.undone.len());
        write!(
            f,
            "of damaged drivers' commands the controller refused {refused}, {undone} of them writes that were answered"
        )
    }
}

/// The tag of a command that QEMU's AHCI controller has not taken.
fn refused_tag(line: &str) -> Option<u32> {
    line.strip_prefix("process_ncq_command: tag ")?.strip_suffix(" already used")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testbed::host;

    /// What is the verdict when all of this has happened? Lines that begin with `qemu ` are QEMU's.
    fn after(happened: &[&str]) -> Result<String> {
        let name = format!("refused.{}.{:?}", std::process::id(), std::thread::current().id());
        let file = host::target("logs").unwrap().join(name);
        let mut said = String::new();
        std::fs::write(&file, &said).unwrap();
        let mut record = Record::of(&file);
        for line in happened {
            match line.strip_prefix("qemu ") {
                Some(line) => {
                    said += &format!("{line}\n");
                    std::fs::write(&file, &said).unwrap();
                }
                None => record.hears(line),
            }
        }
        std::fs::remove_file(&file).unwrap();
        record.verdict()
    }

    const REFUSED: &str = "qemu process_ncq_command: tag 18 already used";
    const UNDONE: &str = "TANDEM: undone u1 612 4 holds 3 of 612";

    #[test]
    fn a_write_that_was_refused_may_be_missing() {
        let said =
            after(&["qemu other", REFUSED, REFUSED, "TANDEM: death 2 wild s=1", UNDONE, UNDONE, "TANDEM: group x"]);
        assert_eq!(
            said.unwrap(),
            "of damaged drivers' commands the controller refused 1, 1 of them writes that were answered"
        );
        assert!(after(&["TANDEM: death 1 wild s=1", "TANDEM: death FAIL x", "TANDEM: group x"])
            .unwrap()
            .contains("refused 0, 0"));
    }

    #[test]
    fn a_write_that_nobody_refused_may_not() {
        let said = |happened: &[&str]| after(happened).unwrap_err().to_string();
        assert!(said(&["TANDEM: death 1 wild s=1", UNDONE]).contains("write 4 of block 612 of u1"));
        // One command was refused, two writes are not there.
        assert!(said(&[REFUSED, "TANDEM: death 1 wild s=1", UNDONE, "TANDEM: undone u2 7 9 holds 1 of 8"])
            .contains("write 9 of block 7"));
        // It was refused later.
        assert!(said(&["TANDEM: death 1 wild s=1", UNDONE, REFUSED, "TANDEM: death 2 wild s=1"]).contains("block 612"));
        assert!(said(&[REFUSED, "TANDEM: death 1 wild s=1", "TANDEM: undone u1 x 4 holds 3 of 1"]).contains("no block"));
    }

    #[test]
    fn a_driver_that_is_not_damaged_asks_for_no_tag_twice_and_sends_no_device_astray() {
        let said = |happened: &[&str]| after(happened).unwrap_err().to_string();
        assert!(said(&[REFUSED, "TANDEM: death 1 panic s=1"]).contains("before panic"));
        assert!(said(&["TANDEM: death 1 wild s=1", REFUSED, "TANDEM: group x"]).contains("before the end"));
        const STOPPED: &str =
            "(TDM) Warning: IOMMU: d2's device 0000:00:02.0 was stopped reading address 0x1000: no entry";
        assert!(said(&[STOPPED, "TANDEM: death 1 wedged s=1"]).contains(STOPPED));
        assert!(after(&[STOPPED, "TANDEM: death 1 dma s=1", "TANDEM: death 2 panic s=1"]).is_ok());
    }
}
