//! Commands that QEMU's AHCI controller did not take, out of all that it was given.
//!
//! QEMU says that a tag was in use already (`-d guest_errors`), and not what the command was. So it shows each command
//! as it comes (`-trace handle_cmd_fis_dump`), half a kilobyte each, thousands in a second. Of these only the first row
//! is kept, and only of what was refused, and of what is asked for the same blocks from then on.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::thread::JoinHandle;

/// The event by which QEMU shows commands; each begins with its name.
pub(super) const EVENT: &str = "handle_cmd_fis_dump";
/// Sectors of a block, by which commands are told apart.
const BLOCK: u64 = 8;

/// A native command (NCQ), of sectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Command {
    /// By which its end is told, of 32 at a time.
    pub tag: u8,
    /// Else it reads.
    pub is_write: bool,
    /// The first of its blocks, of eight sectors each, and the one behind the last.
    first: u64,
    end: u64,
}

impl Command {
    /// Of eight sectors each.
    pub fn blocks(&self) -> Range<u64> {
        self.first..self.end
    }

    /// What the first 16 bytes of its FIS say, in the row that QEMU shows. `None` if that is no row, or no command that
    /// reads or writes with a tag.
    /// Source: Serial ATA 3.2, 10.5.5.4 and 13.6.4.
    fn shown(row: &str) -> Option<Self> {
        const READ: u8 = 0x60;
        const WRITE: u8 = 0x61;
        let bytes = row.strip_prefix("0x00: ")?.split_whitespace().map(|byte| u8::from_str_radix(byte, 16));
        let fis: [u8; 16] = bytes.collect::<Result<Vec<_>, _>>().ok()?.try_into().ok()?;
        let is_write = match fis[2] {
            READ => false,
            WRITE => true,
            _ => return None,
        };
        let sector = u64::from_le_bytes([fis[4], fis[5], fis[6], fis[8], fis[9], fis[10], 0, 0]);
        let sectors = match u16::from_le_bytes([fis[3], fis[11]]) {
            0 => 0x10000,
            sectors => u64::from(sectors),
        };
        Some(Self { tag: fis[12] >> 3, is_write, first: sector / BLOCK, end: (sector + sectors).div_ceil(BLOCK) })
    }
}

/// What is known of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has not been taken, as its tag was in use. `None`: what it was is not known.
    Refused(Option<Command>),
    /// It was taken, and is for blocks that one before it was refused for.
    Taken(Command),
}

impl Fate {
    /// From the file that [`keep`] writes.
    pub fn parse(line: &str) -> Option<Self> {
        match line.split_once(": ")? {
            ("refused", row) => Some(Self::Refused(Command::shown(row))),
            ("taken", row) => Command::shown(row).map(Self::Taken),
            _ => None,
        }
    }
}

/// Whether QEMU says by this line that it did not take the command that it has shown last.
fn refuses(line: &str) -> bool {
    line.starts_with("process_ncq_command: tag ") && line.ends_with(" already used")
}

/// What goes from QEMU's words into the file.
#[derive(Default)]
struct Sieve {
    /// The first row of the command that was shown last, until it is known what became of it.
    row: Option<String>,
    /// QEMU is at showing one.
    is_shown: bool,
    refused: BTreeSet<u64>,
}

impl Sieve {
    /// Lines that are to be written when this one has come.
    fn kept(&mut self, line: &str) -> Vec<String> {
        if line.starts_with(EVENT) {
            self.is_shown = true;
            return self.taken();
        }
        if self.is_shown && (line.is_empty() || line.starts_with("0x")) {
            self.is_shown = !line.is_empty();
            if line.starts_with("0x00: ") {
                self.row = Some(line.into());
            }
            return Vec::new();
        }
        if refuses(line) {
            let row = self.row.take().unwrap_or_default();
            self.refused.extend(Command::shown(&row).into_iter().filter(|c| c.is_write).flat_map(|c| c.blocks()));
            return vec![line.into(), format!("refused: {row}")];
        }
        vec![line.into()]
    }

    /// The last one was not refused.
    fn taken(&mut self) -> Vec<String> {
        let row = self.row.take();
        let of_refused = |row: &String| {
            Command::shown(row).is_some_and(|command| self.refused.range(command.blocks()).next().is_some())
        };
        row.filter(of_refused).map(|row| format!("taken: {row}")).into_iter().collect()
    }
}

/// Writes what of `said` is worth it to `file`, a whole line at a time, in a thread that ends with QEMU.
pub(super) fn keep(said: impl Read + Send + 'static, mut file: File) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut sieve = Sieve::default();
        for line in BufReader::new(said).split(b'\n').map_while(Result::ok) {
            for kept in sieve.kept(String::from_utf8_lossy(&line).trim_end()) {
                let _ = file.write_all(format!("{kept}\n").as_bytes());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of these sectors with this tag, as QEMU shows it.
    fn write(tag: u8, sector: u32, sectors: u16) -> String {
        let ([s0, s1, s2, s3], [n0, n1]) = (sector.to_le_bytes(), sectors.to_le_bytes());
        format!(
            "0x00: 27 80 61 {n0:02x} {s0:02x} {s1:02x} {s2:02x} 40 {s3:02x} 00 00 {n1:02x} {:02x} 00 00 00 ",
            tag << 3
        )
    }

    #[test]
    fn a_command_is_what_its_first_row_says() {
        let command =
            |tag, is_write, blocks: Range<u64>| Some(Command { tag, is_write, first: blocks.start, end: blocks.end });
        assert_eq!(Command::shown(&write(18, 0x0102_0308, 8)), command(18, true, 0x20_4061..0x20_4062));
        assert_eq!(Command::shown(&write(18, 9, 8)), command(18, true, 1..3));
        assert_eq!(Command::shown(&write(0, 0, 0)), command(0, true, 0..8192));
        assert_eq!(Command::shown(&write(31, 16, 8).replace(" 61 ", " 60 ")), command(31, false, 2..3));
        // To flush has no tag.
        assert_eq!(Command::shown(&write(31, 16, 8).replace(" 61 ", " ea ")), None);
        assert_eq!(Command::shown("0x00: 27 80 61"), None);
        assert_eq!(Command::shown(&write(1, 2, 3)[1..]), None);
    }

    #[test]
    fn of_all_commands_those_are_kept_that_were_refused_and_those_for_the_same_blocks() {
        const REST: &str = "0x70: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ";
        let mut sieve = Sieve::default();
        let mut fates = |row: &str, more: &[&str]| {
            let shown = ["handle_cmd_fis_dump ahci(0x55)[0]: FIS:", row, REST, ""];
            let kept = shown.iter().chain(more).flat_map(|line| sieve.kept(line)).collect::<Vec<_>>();
            (kept.iter().filter_map(|line| Fate::parse(line)).collect::<Vec<_>>(), kept.len())
        };
        let (first, other, again) = (write(3, 80, 8), write(4, 88, 8), write(5, 80, 16));
        let command = |row: &str| Command::shown(row).unwrap();
        const REFUSED: &str = "process_ncq_command: tag 3 already used";
        assert_eq!(fates(&first, &[]), (vec![], 0), "nothing was refused yet");
        assert_eq!(fates(&other, &["0x is nothing of a command's"]), (vec![], 1));
        assert_eq!(
            fates(&first, &[REFUSED, REFUSED]),
            (vec![Fate::Refused(Some(command(&first))), Fate::Refused(None)], 4)
        );
        assert_eq!(fates(&other, &[]), (vec![], 0), "it was refused, and so not taken");
        assert_eq!(fates(&again, &[]), (vec![], 0), "another block");
        assert_eq!(fates(&other, &["other"]), (vec![Fate::Taken(command(&again))], 2));
    }
}
