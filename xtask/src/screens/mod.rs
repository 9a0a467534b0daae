//! What a person sees who has no serial line: boots with a screen only, from a disc with GRUB, good and failing ones,
//! by BIOS and by UEFI. `./tandem screens` puts pictures of them, with stock Xen's beside them, into `docs/screens`.

mod picture;

use crate::iso::{self, Screen};
use crate::options::Options;
use crate::run::relative;
use anyhow::{anyhow, ensure, Result};
use picture::Picture;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testbed::host;
use testbed::images::{self, Images};
use testbed::machine::{Hypervisor, Machine, Monitor};
use testbed::progress::step;

/// What the firmware and the loader make of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// A BIOS, and its text mode.
    Bios,
    /// A BIOS, and a frame buffer that the loader sets up.
    BiosPixels,
    /// UEFI, and its frame buffer.
    Uefi,
}

impl Firmware {
    fn name(self) -> &'static str {
        match self {
            Self::Bios => "bios",
            Self::BiosPixels => "bios-pixels",
            Self::Uefi => "uefi",
        }
    }
}

/// How a boot goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// There is no kernel for domain 0.
    Fails,
    /// Domain 0 gets the screen.
    HandsOver,
    /// Domain 0 gets it, and the hypervisor keeps it (`vga=keep`).
    Keeps,
}

/// What the screen shows at the end of a boot that fails.
pub const FAILURE: &str = "PANIC on CPU 0: no kernel for domain 0";
/// What dom0's programs say, if the screen is their console.
pub const OF_PROGRAMS: &str = "TANDEM: up kernel=";
/// What dom0 writes to the screen at the end.
pub const OF_DOM0: &str = "words-of-dom0";
/// What dom0 says to the hypervisor's, a few columns to the right: its own cursor covers the first.
pub const TO_HYPERVISOR: &str = "words-by-way-of-the-hypervisor";
/// Machine address and size of a text mode's memory.
const TEXT_MEMORY: (u64, usize) = (0xb_8000, 32 << 10);
/// How long a boot may take, and how long a screen stays as it is if nothing happens any more.
const PATIENCE: Duration = Duration::from_secs(240);
const STILL: Duration = Duration::from_secs(20);

/// What is on a screen.
#[derive(PartialEq, Eq)]
pub struct Seen {
    /// The rows in the font of dom0's console, if dom0 has written its characters.
    pub dom0: Vec<String>,
    /// What the hypervisor wrote: in its own font, or in the whole memory of the text mode, where dom0's is as well.
    pub hypervisor: Vec<String>,
}

/// A boot whose screen is looked at.
pub struct Boot<'a> {
    pub images: &'a Images,
    pub hypervisor: &'a Hypervisor,
    pub firmware: Firmware,
    pub course: Course,
}

fn name(system: &str, firmware: Firmware, course: Course) -> String {
    let course = match course {
        Course::Fails => "failing",
        Course::HandsOver => "good",
        Course::Keeps => "kept",
    };
    format!("{system}-{}-{course}", firmware.name())
}

impl Boot<'_> {
    fn name(&self) -> String {
        name(if self.hypervisor.is_stock_xen() { "xen" } else { "tandem" }, self.firmware, self.course)
    }

    /// Boots until `is_there` says so of what is on the screen, or until nothing happens any more. `copy`: a PNG of the
    /// screen.
    pub fn look(&self, is_there: impl Fn(&Seen) -> bool + Send, copy: Option<&Path>) -> Result<Seen> {
        let machine = self.machine()?;
        let files = Files::new(&machine.name)?;
        let running = machine.start()?;
        let monitor = running.monitor();
        std::thread::scope(|scope| {
            let watching = scope.spawn(move || {
                let seen = watch(&monitor, &files, is_there);
                if let (Ok(_), Some(copy)) = (&seen, copy) {
                    monitor.dump(&format!("screendump {} -f png", copy.display()), copy)?;
                }
                monitor.send("quit")?;
                seen
            });
            running.finish(|_| false)?;
            watching.join().map_err(|_| anyhow!("looking at the screen panicked"))?
        })
    }

    fn machine(&self) -> Result<Machine> {
        let name = format!("screen-{}", self.name());
        let mut machine = Machine::new(&name, self.hypervisor, self.images, 1, "screen");
        machine.uefi = self.firmware == Firmware::Uefi;
        machine.devices = vec!["VGA"];
        machine.timeout_s = PATIENCE.as_secs() + 30;
        if self.course == Course::Fails {
            (machine.kernel, machine.initramfs) = (None, None);
        }
        let keep = if self.course == Course::Keeps { " vga=keep" } else { "" };
        machine.hypervisor_args = format!("console=vga{keep} noreboot loglvl=all dom0_mem=512M,max:512M");
        let screen = if self.firmware == Firmware::Bios { Screen::Text } else { Screen::Only };
        let disc = host::target("images")?.join(format!("{name}.iso"));
        iso::build(&disc, &machine, screen)?;
        machine.iso = Some(disc);
        Ok(machine)
    }
}

/// Where QEMU puts what it is asked for.
struct Files {
    picture: PathBuf,
    memory: PathBuf,
}

impl Files {
    fn new(name: &str) -> Result<Self> {
        let dir = host::target("logs")?;
        Ok(Self { picture: dir.join(format!("{name}.ppm")), memory: dir.join(format!("{name}.memory")) })
    }

    fn look(&self, monitor: &Monitor) -> Result<Seen> {
        let file = monitor.dump(&format!("screendump {}", self.picture.display()), &self.picture)?;
        let picture = Picture::parse(&file)?;
        let hypervisor = if picture.is_text_mode() {
            let (start, bytes) = TEXT_MEMORY;
            let save = format!("pmemsave {start:#x} {bytes} \"{}\"", self.memory.display());
            in_text_memory(&monitor.dump(&save, &self.memory)?)
        } else {
            picture.in_own_font()?
        };
        Ok(Seen { dom0: picture.in_dom0s_font(), hypervisor })
    }
}

/// The rows of a text mode's memory: characters, each with its colours behind it.
fn in_text_memory(memory: &[u8]) -> Vec<String> {
    let row = |row: &[u8]| row.chunks(2).map(|cell| char::from(cell[0])).collect::<String>().trim_end().to_string();
    memory.chunks(160).map(row).filter(|row| !row.trim_matches('\0').is_empty()).collect()
}

/// Looks once a second. Blinking cursors are no change.
fn watch(monitor: &Monitor, files: &Files, is_there: impl Fn(&Seen) -> bool) -> Result<Seen> {
    let start = Instant::now();
    let mut last: Option<(Seen, Instant)> = None;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        // QEMU may not have a picture, or not be there, yet.
        let looked = files.look(monitor);
        let time = start.elapsed();
        match looked {
            Ok(seen) if is_there(&seen) => return Ok(seen),
            Ok(seen) => {
                let since = last.filter(|(before, _)| *before == seen).map_or_else(Instant::now, |(_, since)| since);
                let is_still = time > 3 * STILL && since.elapsed() > STILL;
                if time > PATIENCE || is_still && !seen.hypervisor.is_empty() {
                    return Ok(seen);
                }
                last = Some((seen, since));
            }
            Err(error) if time > STILL => return Err(error),
            Err(_) => {}
        }
    }
}

/// Whether a row has `text`.
pub fn has(rows: &[String], text: &str) -> bool {
    rows.iter().any(|row| row.contains(text))
}

/// `./tandem screens [NAME]`: the pictures of `docs/screens`, or those that have the word in their names.
pub fn run(options: &Options) -> Result<()> {
    let wanted = options.words.first();
    let chosen: Vec<_> = PICTURES
        .into_iter()
        .filter(|(system, firmware, course)| {
            wanted.is_none_or(|word| name(system, *firmware, *course).contains(word.as_str()))
        })
        .collect();
    ensure!(!chosen.is_empty(), "no picture has that name; ./tandem screens --list names them");
    if options.list {
        chosen.iter().for_each(|(system, firmware, course)| println!("{}", name(system, *firmware, *course)));
        return Ok(());
    }
    let images = images::basic()?;
    let ours = Hypervisor::choose(options.hypervisor.as_deref())?;
    let xen = Hypervisor::choose(Some("xen"))?;
    let dir = host::root().join("docs/screens");
    std::fs::create_dir_all(&dir)?;
    for (system, firmware, course) in chosen {
        let hypervisor = if system == "xen" { &xen } else { &ours };
        let boot = Boot { images: &images, hypervisor, firmware, course };
        let copy = dir.join(format!("{}.png", boot.name()));
        let is_there = |seen: &Seen| match course {
            Course::Fails => has(&seen.hypervisor, FAILURE),
            _ => has(&seen.dom0, OF_DOM0),
        };
        let seen = step(&boot.name(), || boot.look(is_there, Some(&copy)))?;
        // Of stock Xen there is a picture, whatever it shows.
        let is_as_it_should_be = hypervisor == &xen || is_there(&seen);
        ensure!(is_as_it_should_be, "this is not what should be on the screen: {}", relative(&copy));
    }
    Ok(())
}

/// What there are pictures of: the system, what the loader makes of the screen, and how the boot goes on.
const PICTURES: [(&str, Firmware, Course); 8] = {
    use {Course::*, Firmware::*};
    [
        ("tandem", Bios, HandsOver),
        ("tandem", Bios, Fails),
        ("tandem", Uefi, HandsOver),
        ("tandem", Uefi, Fails),
        ("xen", Bios, HandsOver),
        ("xen", Bios, Fails),
        ("xen", Uefi, HandsOver),
        ("xen", Uefi, Fails),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_text_mode_have_a_character_in_every_other_byte() {
        let mut memory = vec![0; 480];
        for (at, character) in b"(TDM) one  ".iter().enumerate() {
            memory[160 + 2 * at..162 + 2 * at].copy_from_slice(&[*character, 7]);
        }
        let rows = in_text_memory(&memory);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].starts_with("(TDM) one"));
    }
}
