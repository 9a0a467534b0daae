//! A screen for messages: what stands where, and how a character becomes pixels.
//!
//! The text is kept here and never read back from the screen, whose memory is slow. A character is drawn only where
//! another stood before. When the last row is full everything moves up by several rows, because redrawing is what costs
//! time.

pub mod pixels;

pub use pixels::{Format, Glyphs};

/// Most columns and rows; a larger screen is used in part.
pub const MAX_COLUMNS: usize = 160;
/// The second.
pub const MAX_ROWS: usize = 64;
const BLANK: u8 = b' ';
/// Which part of the rows makes room when the screen is full.
const SCROLL_PART: usize = 4;
const TAB: usize = 8;

/// Something that shows characters in cells.
pub trait Cells {
    /// Shows `character` (printable ASCII) in a cell.
    fn draw(&mut self, column: usize, row: usize, character: u8);
}

/// The text on a screen and where it goes on.
pub struct Terminal {
    text: [[u8; MAX_COLUMNS]; MAX_ROWS],
    columns: usize,
    rows: usize,
    column: usize,
    row: usize,
}

impl Terminal {
    /// A blank screen of `columns` and `rows`, or as much of them as can be used.
    pub const fn new(columns: usize, rows: usize) -> Self {
        let columns = if columns < MAX_COLUMNS { columns } else { MAX_COLUMNS };
        let rows = if rows < MAX_ROWS { rows } else { MAX_ROWS };
        Self { text: [[BLANK; MAX_COLUMNS]; MAX_ROWS], columns, rows, column: 0, row: 0 }
    }

    /// Columns and rows in use.
    pub const fn size(&self) -> (usize, usize) {
        (self.columns, self.rows)
    }

    /// Where the next character goes.
    pub const fn cursor(&self) -> (usize, usize) {
        (self.column, self.row)
    }

    /// Shows a text; what is no printable ASCII is a question mark, but for line ends and tabs.
    pub fn write(&mut self, text: &[u8], cells: &mut impl Cells) {
        if self.columns == 0 || self.rows == 0 {
            return;
        }
        for &byte in text {
            match byte {
                b'\n' => {
                    self.column = 0;
                    self.row += 1;
                }
                b'\r' => self.column = 0,
                b'\t' => self.column = (self.column / TAB + 1) * TAB,
                b' '..=b'~' => self.put(byte, cells),
                _ => self.put(b'?', cells),
            }
        }
    }

    fn put(&mut self, character: u8, cells: &mut impl Cells) {
        if self.column >= self.columns {
            self.column = 0;
            self.row += 1;
        }
        if self.row >= self.rows {
            self.scroll(cells);
        }
        self.set(self.column, self.row, character, cells);
        self.column += 1;
    }

    fn set(&mut self, column: usize, row: usize, character: u8, cells: &mut impl Cells) {
        if self.text[row][column] != character {
            self.text[row][column] = character;
            cells.draw(column, row, character);
        }
    }

    /// Moves everything up so that the present row, which is beyond the last, comes to the screen.
    fn scroll(&mut self, cells: &mut impl Cells) {
        let up = (self.row + 1 - self.rows).max(self.rows / SCROLL_PART).clamp(1, self.row);
        for row in 0..self.rows {
            for column in 0..self.columns {
                let below = row.checked_add(up).filter(|&from| from < self.rows);
                let character = below.map_or(BLANK, |from| self.text[from][column]);
                self.set(column, row, character, cells);
            }
        }
        self.row = (self.row - up).min(self.rows - 1);
    }
}

#[cfg(test)]
mod tests;
