//! The screen, for messages until domain 0 gets it: a BIOS's text mode, or the frame buffer that the loader set up.
//! What stands where is decided in `hv_core::screen`.

use crate::sync::Mutex;
use hv_core::screen::{Cells, Format, Glyphs, Terminal};

/// Machine address of the text mode's memory.
const TEXT_BASE: u64 = 0xb_8000;
const TEXT_COLUMNS: usize = 80;
const TEXT_ROWS: usize = 25;
/// Light grey on black.
const TEXT_COLOUR: u16 = 0x0700;

/// A kind of screen.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The text mode in which a BIOS leaves it, 80 by 25.
    Text,
    /// A linear frame buffer.
    Pixels(Format),
}

impl Kind {
    /// Where its memory is and how many bytes it has; `None` if it cannot be used.
    pub fn memory(&self) -> Option<(u64, u64)> {
        match self {
            Self::Text => Some((TEXT_BASE, (TEXT_COLUMNS * TEXT_ROWS * 2) as u64)),
            Self::Pixels(format) => Some((format.base, format.bytes()?)),
        }
    }
}

/// How characters get there.
enum Surface {
    /// Not at all.
    None,
    Text(*mut u8),
    Pixels(*mut u8, Glyphs),
}

struct Screen {
    terminal: Terminal,
    surface: Surface,
}

// SAFETY: the pointers are to device memory that stays mapped; the lock around makes one CPU at a time use it.
unsafe impl Send for Screen {}

static SCREEN: Mutex<Screen> = Mutex::new(Screen { terminal: Terminal::new(0, 0), surface: Surface::None });

impl Cells for Surface {
    fn draw(&mut self, column: usize, row: usize, character: u8) {
        match self {
            Self::None => {}
            Self::Text(base) => {
                let cell = base.wrapping_add(2 * (row * TEXT_COLUMNS + column)).cast::<u16>();
                // SAFETY: the terminal stays inside 80 by 25 cells, which `start` was promised.
                unsafe { cell.write_volatile(TEXT_COLOUR | u16::from(character)) };
            }
            Self::Pixels(base, glyphs) => {
                let base = *base;
                let pixel = glyphs.pixel_bytes();
                glyphs.draw(column, row, character, |at, value| {
                    let to = base.wrapping_add(at);
                    // SAFETY: `Glyphs` stays inside the buffer, which `start` was promised.
                    unsafe {
                        match pixel {
                            4 => to.cast::<u32>().write_volatile(value),
                            2 => to.cast::<u16>().write_volatile(value as u16),
                            _ => (0..pixel).for_each(|n| to.add(n).write_volatile((value >> (8 * n)) as u8)),
                        }
                    }
                });
            }
        }
    }
}

/// Clears the screen and writes to it from now on.
///
/// # Safety
/// 1. `memory` maps what [`Kind::memory`] says until [`moved`] or [`release`].
pub unsafe fn start(kind: Kind, memory: *mut u8) {
    let mut screen = SCREEN.lock();
    let (columns, rows) = match kind {
        Kind::Text => {
            screen.surface = Surface::Text(memory);
            (TEXT_COLUMNS, TEXT_ROWS)
        }
        Kind::Pixels(format) => {
            let Some(glyphs) = Glyphs::new(format) else { return };
            screen.surface = Surface::Pixels(memory, glyphs);
            glyphs.size()
        }
    };
    screen.terminal = Terminal::new(columns, rows);
    for row in 0..rows {
        for column in 0..columns {
            screen.surface.draw(column, row, b' ');
        }
    }
}

/// The screen's memory is mapped at another address now.
///
/// # Safety
/// 1. As for [`start`].
pub unsafe fn moved(memory: *mut u8) {
    match &mut SCREEN.lock().surface {
        Surface::None => {}
        Surface::Text(base) | Surface::Pixels(base, _) => *base = memory,
    }
}

/// Writes to it no more. Whether it was in use.
pub fn release() -> bool {
    !matches!(core::mem::replace(&mut SCREEN.lock().surface, Surface::None), Surface::None)
}

/// Where the next character goes: column and row.
pub fn cursor() -> (usize, usize) {
    SCREEN.lock().terminal.cursor()
}

impl Screen {
    fn write(&mut self, text: &[u8]) {
        if !matches!(self.surface, Surface::None) {
            self.terminal.write(text, &mut self.surface);
        }
    }
}

/// Shows a text, if there is a screen.
pub fn write(text: &[u8]) {
    SCREEN.lock().write(text);
}

/// The same, unless somebody is writing: what this CPU has interrupted may be that.
pub fn try_write(text: &[u8]) {
    if let Some(mut screen) = SCREEN.try_lock() {
        screen.write(text);
    }
}

/// The same in a panic, when the lock may be held by a CPU that was stopped, or by this one.
pub fn write_unlocked(text: &[u8]) {
    if SCREEN.is_locked() {
        // SAFETY: all other CPUs were stopped, so whoever holds it goes on never. What it left half done is text.
        unsafe { SCREEN.force_unlock() };
    }
    write(text);
}
