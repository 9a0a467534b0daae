//! A picture of a machine's screen, and the text that it shows.

use anyhow::{ensure, Context, Result};
use hv_core::screen::{Format, Glyphs};
use std::collections::HashMap;

/// Width of QEMU's picture of a text mode.
const TEXT_MODE: usize = 720;
/// Pixels of dom0's characters across and down: in a text mode, on a screen, on a large one.
const SIZES: [(usize, usize); 3] = [(9, 16), (8, 16), (16, 32)];

/// What dom0 writes into a row, for the font to be learnt from: `images/init/init.sh` has the same.
const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:-/=";

/// What QEMU's `screendump` gives (PPM).
pub struct Picture {
    width: usize,
    height: usize,
    /// Red, green, blue of each.
    pixels: Vec<u8>,
}

impl Picture {
    pub fn parse(file: &[u8]) -> Result<Self> {
        let mut words = file.splitn(5, |b| b.is_ascii_whitespace());
        ensure!(words.next() == Some(b"P6"), "the picture is no PPM");
        let mut number = || {
            let word = words.next().and_then(|word| std::str::from_utf8(word).ok()).context("the picture is cut")?;
            word.parse::<usize>().context("the picture has no size")
        };
        let (width, height, _) = (number()?, number()?, number()?);
        let pixels = words.next().context("the picture is cut")?.to_vec();
        ensure!(pixels.len() == width * height * 3, "the picture is cut");
        Ok(Self { width, height, pixels })
    }

    /// Whether it is one of a text mode.
    pub fn is_text_mode(&self) -> bool {
        self.width == TEXT_MODE
    }

    fn lit(&self, x: usize, y: usize) -> bool {
        let at = 3 * (y * self.width + x);
        self.pixels.get(at..at + 3).is_some_and(|colours| colours.iter().any(|&colour| colour > 64))
    }

    /// The rows that have something in the hypervisor's own font, which it uses in a frame buffer. What is in another
    /// is `?`.
    pub fn in_own_font(&self) -> Result<Vec<String>> {
        let (width, height) = (u32::try_from(self.width)?, u32::try_from(self.height)?);
        let format = Format { base: 0, pitch: width * 4, width, height, bits: 32, colours: [(16, 8), (8, 8), (0, 8)] };
        let glyphs = Glyphs::new(format).context("the picture is of no screen")?;
        let (columns, rows) = glyphs.size();
        let character = |column, row| glyphs.recognise(column, row, |x, y| self.lit(x, y)).map_or('?', char::from);
        Ok((0..rows).map(|row| (0..columns).map(|column| character(column, row)).collect()).filter_map(told).collect())
    }

    /// The rows that have something in the font in which one of them has the [`ALPHABET`]; none if none has.
    pub fn in_dom0s_font(&self) -> Vec<String> {
        let cells = |(across, down): (usize, usize)| -> Vec<Vec<Cell>> {
            let row = |row| (0..self.width / across).map(|column| self.cell(column, row, across, down)).collect();
            (0..self.height / down).map(row).collect()
        };
        let known = SIZES.iter().find_map(|&size| {
            let rows = cells(size);
            let font = rows.iter().find_map(|row| font(row))?;
            Some((rows, font))
        });
        let Some((rows, font)) = known else { return Vec::new() };
        let character = |cell: &Cell| font.get(cell).copied().unwrap_or('?');
        rows.iter().map(|row| row.iter().map(character).collect()).filter_map(told).collect()
    }

    fn cell(&self, column: usize, row: usize, across: usize, down: usize) -> Cell {
        let line =
            |y| (0..across).fold(0, |line, x| line | u32::from(self.lit(column * across + x, row * down + y)) << x);
        (0..down).map(line).collect()
    }
}

/// Which pixels of a character's cell are lit, line by line.
type Cell = Vec<u32>;

/// The row without blanks at its end, if it is not all blank.
fn told(row: String) -> Option<String> {
    Some(row.trim_end().to_string()).filter(|row| !row.is_empty())
}

/// What each character looks like, if this row shows the alphabet and nothing else.
fn font(row: &[Cell]) -> Option<HashMap<Cell, char>> {
    let is_blank = |cell: &Cell| cell.iter().all(|line| *line == 0);
    let (shown, rest) = row.split_at_checked(ALPHABET.len())?;
    let mut font: HashMap<_, _> = shown.iter().cloned().zip(ALPHABET.chars()).collect();
    let is_whole = font.len() == ALPHABET.len() && !shown.iter().any(is_blank) && rest.iter().all(is_blank);
    font.insert(vec![0; shown.first()?.len()], ' ');
    is_whole.then_some(font)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture with `rows` in the hypervisor's font, in cells of `step` pixels, `scale` times as large.
    fn picture(width: usize, step: usize, scale: usize, rows: &[&str]) -> Picture {
        let height = 400;
        let mut pixels = vec![0; width * height * 3];
        let (w, h) = (u32::try_from(width).unwrap(), u32::try_from(height).unwrap());
        let colours = [(16, 8), (8, 8), (0, 8)];
        let glyphs = Glyphs::new(Format { base: 0, pitch: 4 * w, width: w, height: h, bits: 32, colours }).unwrap();
        for (row, text) in rows.iter().enumerate() {
            for (column, character) in text.bytes().enumerate() {
                glyphs.draw(0, 0, character, |at, colour| {
                    let (x, y) = (at / 4 % width, at / 4 / width);
                    for (right, down) in (0..scale * scale).map(|n| (n % scale, n / scale)) {
                        let (x, y) = (column * step + x * scale + right, (row * 16 + y) * scale + down);
                        let to = 3 * (y * width + x);
                        pixels[to..to + 3].fill(colour.to_le_bytes()[0]);
                    }
                });
            }
        }
        let mut file = format!("P6\n{width} {height}\n255\n").into_bytes();
        file.extend(pixels);
        Picture::parse(&file).unwrap()
    }

    #[test]
    fn a_font_is_learnt_from_the_row_with_the_alphabet() {
        for (width, step, scale) in [(720, 9, 1), (1280, 8, 1), (2048, 16, 2)] {
            let seen = picture(width, step, scale, &["", ALPHABET, "", "  Here: a/b=1.", "what!"]);
            assert_eq!(seen.in_dom0s_font(), [ALPHABET, "  Here: a/b=1.", "what?"]);
            assert_eq!(seen.is_text_mode(), step == 9);
        }
        let other = ALPHABET.replace('B', "A");
        assert!(picture(720, 9, 1, &[&other, "text"]).in_dom0s_font().is_empty());
    }

    #[test]
    fn the_own_font_is_read_without_one() {
        assert_eq!(picture(1280, 8, 1, &["(TDM) one", "", "two!"]).in_own_font().unwrap(), ["(TDM) one", "two!"]);
    }

    #[test]
    fn what_is_cut_is_no_picture() {
        assert!(Picture::parse(b"P6\n1 2\n255\n123456").is_ok());
        assert!(Picture::parse(b"P6\n1 2\n255\n12345").is_err());
        assert!(Picture::parse(b"P5\n1 2\n255\n12").is_err());
    }
}
