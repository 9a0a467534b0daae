//! Writes that a damaged driver has answered and its controller has refused.
//!
//! A kernel whose memory is damaged may give a command of AHCI a tag that another one has. QEMU does not take such a
//! command, and says so (`-d guest_errors`). When the other one is done its driver takes that for both, and a guest is
//! told that a write is done which nobody has done: no hypervisor can see that. It is never done, or late, from a page
//! that has the bytes of another write by then. So a block may hold another write than its last, if a command to write
//! to that very block was refused while a kernel lived that died of damaged memory. It may be so once for each such
//! command, and until somebody has asked for that block in another kernel's life: from then on it is known what it
//! holds. A read that was refused is seen by the hypervisor, as it leaves a page as it was.

use anyhow::{ensure, Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use testbed::machine::commands::{Command, Fate};

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
    /// Guests, and where on the medium their blocks begin.
    guests: Vec<(&'static str, u64)>,
    deaths: u64,
    /// What the hypervisor has said since the last death of a device that was stopped.
    stopped: Option<String>,
    /// Commands that were refused in lives that ended by [`DAMAGED`].
    refused: usize,
    /// Blocks of the medium that such commands were to write to, and by how many deaths those of another life asked for
    /// them.
    excused: BTreeMap<u64, Option<u64>>,
    /// Guest, block and write of what was not done.
    undone: BTreeSet<(String, u64, u64)>,
    /// What was first wrong.
    wrong: Option<String>,
}

impl Record {
    /// Of the machine whose QEMU's words are in this file, where these guests' blocks begin at these of the medium's.
    pub fn of(file: &Path, guests: Vec<(&'static str, u64)>) -> Self {
        Self {
            file: file.into(),
            read: 0,
            begun: String::new(),
            guests,
            deaths: 0,
            stopped: None,
            refused: 0,
            excused: BTreeMap::new(),
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
        self.deaths += 1;
        let said = self.said().unwrap_or_else(|why| {
            self.note(format!("{why:#}"));
            String::new()
        });
        // QEMU says of a command again that it does not take it when it is told of another one.
        let mut refused = BTreeSet::new();
        for fate in said.lines().filter_map(Fate::parse) {
            match fate {
                Fate::Refused(command) => _ = refused.insert(command),
                Fate::Taken(command) => self.asks_for(&command),
            }
        }
        // Guests may see what a block holds just after they were asked what they have seen, which is before this death
        // is told of, and say so after the next one.
        let deaths = self.deaths;
        self.excused.retain(|_, asked| asked.is_none_or(|then| deaths < then + 2));
        if cause == DAMAGED {
            self.refused += refused.len();
            let writes = refused.iter().flatten().filter(|command| command.is_write);
            self.excused.extend(writes.flat_map(Command::blocks).map(|block| (block, None)));
        } else if !refused.is_empty() {
            self.note(format!("before {cause} a controller refused commands with tags that are in use: {refused:?}"));
        }
        if let Some(line) = self.stopped.take().filter(|_| !ASTRAY.contains(&cause)) {
            self.note(format!("before {cause}: {line}"));
        }
    }

    /// The controller took this, for blocks of which some may have been excused in an earlier life.
    fn asks_for(&mut self, command: &Command) {
        for (_, asked) in self.excused.range_mut(command.blocks()) {
            asked.get_or_insert(self.deaths);
        }
    }

    fn misses(&mut self, guest: &str, block: &str, write: &str) {
        let first = self.guests.iter().find(|(name, _)| *name == guest).map(|(_, first)| *first);
        let (Some(first), Ok(block), Ok(write)) = (first, block.parse::<u64>(), write.parse::<u64>()) else {
            return self.note(format!("{guest} has said no block and write of its: {block} {write}"));
        };
        // A guest says it each time that it reads the block.
        let is_new = self.undone.insert((guest.into(), block, write));
        if is_new && self.excused.remove(&(first + block)).is_none() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use testbed::host;

    /// What is the verdict when all of this has happened? Lines that begin with `qemu ` are in QEMU's file.
    fn after(happened: &[&str]) -> Result<String> {
        let name = format!("refused.{}.{:?}", std::process::id(), std::thread::current().id());
        let file = host::target("logs").unwrap().join(name);
        let mut said = String::new();
        std::fs::write(&file, &said).unwrap();
        let mut record = Record::of(&file, vec![("u1", 0x100), ("u2", 0x1900)]);
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

    fn fails(happened: &[&str], words: &str) {
        let said = after(happened).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }

    // Block 0x20 of u1's: sectors from 0x900 on. Tag 18.
    const REFUSED: &str = "qemu refused: 0x00: 27 80 61 08 00 09 00 40 00 00 00 00 90 00 00 00";
    const OTHER_REFUSED: &str = "qemu refused: 0x00: 27 80 61 08 08 09 00 40 00 00 00 00 90 00 00 00";
    const READ_REFUSED: &str = "qemu refused: 0x00: 27 80 60 08 00 09 00 40 00 00 00 00 90 00 00 00";
    const TAKEN: &str = "qemu taken: 0x00: 27 80 60 08 00 09 00 40 00 00 00 00 08 00 00 00";
    const UNDONE: &str = "TANDEM: undone u1 32 4 holds 3 of 32";
    const MISSED: &str = "write 4 of block 32 of u1";
    const WILD: &str = "TANDEM: death 1 wild s=1";
    const PANIC: &str = "TANDEM: death 2 panic s=1";

    #[test]
    fn a_write_that_was_refused_may_be_missing() {
        let said = after(&["qemu other", REFUSED, REFUSED, WILD, UNDONE, UNDONE, "TANDEM: group x"]);
        assert_eq!(
            said.unwrap(),
            "of damaged drivers' commands the controller refused 1, 1 of them writes that were answered"
        );
        assert!(after(&[WILD, "TANDEM: death FAIL x", "TANDEM: group x"]).unwrap().contains("refused 0, 0"));
        // Two blocks by one command, of which the second is u1's 33.
        let both = REFUSED.replace(" 61 08 ", " 61 10 ");
        after(&[&both, WILD, UNDONE, "TANDEM: undone u1 33 4 holds 3 of 33"]).unwrap();
        // Block 0x1920 of the medium's is u2's 32.
        after(&[&REFUSED.replace(" 00 09 00 40 ", " 00 c9 00 40 "), WILD, "TANDEM: undone u2 32 4 holds 3 of 32"])
            .unwrap();
    }

    #[test]
    fn a_write_that_nobody_refused_may_not() {
        fails(&[WILD, UNDONE], MISSED);
        // It was refused later.
        fails(&[WILD, UNDONE, REFUSED, WILD], MISSED);
        fails(&[REFUSED, WILD, "TANDEM: undone u1 x 4 holds 3 of 1"], "no block");
        fails(&[REFUSED, WILD, "TANDEM: undone u3 32 4 holds 3 of 1"], "no block");
    }

    #[test]
    fn nothing_but_a_write_of_that_block_excuses_it() {
        fails(&[OTHER_REFUSED, WILD, UNDONE], MISSED);
        fails(&[READ_REFUSED, WILD, UNDONE], MISSED);
        fails(&["qemu refused: ", WILD, UNDONE], MISSED);
        fails(&[REFUSED, WILD, "TANDEM: undone u2 32 4 holds 3 of 32"], "of u2");
    }

    #[test]
    fn it_excuses_one_write() {
        const NEXT: &str = "TANDEM: undone u1 32 5 holds 3 of 32";
        fails(&[REFUSED, WILD, UNDONE, NEXT], "write 5 of block 32");
        fails(&[REFUSED, REFUSED, WILD, UNDONE, WILD, NEXT], "write 5 of block 32");
        after(&[REFUSED, WILD, UNDONE, REFUSED, WILD, NEXT]).unwrap();
    }

    #[test]
    fn it_excuses_nothing_that_is_seen_after_the_block_was_asked_for() {
        after(&[REFUSED, WILD, PANIC, PANIC, PANIC, UNDONE]).unwrap();
        after(&[REFUSED, WILD, TAKEN, PANIC, UNDONE]).unwrap();
        // The guest saw it after it had been asked.
        after(&[REFUSED, WILD, TAKEN, PANIC, PANIC, UNDONE]).unwrap();
        fails(&[REFUSED, WILD, TAKEN, PANIC, PANIC, PANIC, UNDONE], MISSED);
        fails(&[REFUSED, WILD, TAKEN, PANIC, TAKEN, PANIC, TAKEN, PANIC, UNDONE], MISSED);
        // In the same life it may have been taken late.
        after(&[REFUSED, TAKEN, WILD, PANIC, PANIC, PANIC, UNDONE]).unwrap();
        // Another block was asked for.
        let other = TAKEN.replace(" 60 08 00 ", " 60 08 08 ");
        after(&[REFUSED, WILD, &other, PANIC, PANIC, PANIC, UNDONE]).unwrap();
    }

    #[test]
    fn a_driver_that_is_not_damaged_asks_for_no_tag_twice_and_sends_no_device_astray() {
        fails(&[REFUSED, PANIC], "before panic");
        fails(&["qemu refused: ", PANIC], "before panic");
        fails(&[WILD, READ_REFUSED, "TANDEM: group x"], "before the end");
        const STOPPED: &str =
            "(TDM) Warning: IOMMU: d2's device 0000:00:02.0 was stopped reading address 0x1000: no entry";
        fails(&[STOPPED, "TANDEM: death 1 wedged s=1"], STOPPED);
        assert!(after(&[STOPPED, "TANDEM: death 1 dma s=1", PANIC]).is_ok());
    }
}
