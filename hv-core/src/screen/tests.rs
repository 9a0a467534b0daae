//! Text in cells, and pixels that are read back.

#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::*;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// What is shown.
struct Fake {
    cells: Vec<Vec<u8>>,
    drawn: usize,
}

impl Fake {
    fn new(columns: usize, rows: usize) -> Self {
        Self { cells: vec![vec![b' '; columns]; rows], drawn: 0 }
    }
    fn row(&self, row: usize) -> String {
        String::from_utf8(self.cells[row].clone()).unwrap().trim_end().into()
    }
}

impl Cells for Fake {
    fn draw(&mut self, column: usize, row: usize, character: u8) {
        self.cells[row][column] = character;
        self.drawn += 1;
    }
}

#[test]
fn lines_wrap_and_odd_bytes_are_marked() {
    let (mut screen, mut terminal) = (Fake::new(10, 4), Terminal::new(10, 4));
    terminal.write("abc\n0123456789x\ty\u{fc}".as_bytes(), &mut screen);
    assert_eq!([0, 1, 2].map(|row| screen.row(row)), ["abc", "0123456789", "x       y?"]);
    terminal.write(b"\n\n", &mut screen);
    assert_eq!(screen.row(0), "abc", "an empty line at the end does not move anything yet");
}

#[test]
fn the_last_lines_stay() {
    let (mut screen, mut terminal) = (Fake::new(20, 8), Terminal::new(20, 8));
    for n in 0..100 {
        terminal.write(alloc::format!("line {n}\n").as_bytes(), &mut screen);
        let shown: Vec<String> = (0..8).map(|row| screen.row(row)).collect();
        let last = shown.iter().rposition(|row| !row.is_empty()).unwrap();
        assert_eq!(shown[last], alloc::format!("line {n}"));
        for (before, row) in shown[..last].iter().rev().enumerate() {
            assert_eq!(*row, alloc::format!("line {}", n - 1 - before));
        }
        assert!(n < 8 || last >= 5, "hardly anything is left of what was there");
    }
    assert!(screen.drawn < 100 * 20, "{} cells were drawn", screen.drawn);
}

#[test]
fn many_line_ends_at_once() {
    let (mut screen, mut terminal) = (Fake::new(5, 4), Terminal::new(5, 4));
    terminal.write(b"a\n\n\n\n\n\n\n\n\nb", &mut screen);
    assert!((0..4).any(|row| screen.row(row) == "b") && (0..4).all(|row| screen.row(row) != "a"));
    Terminal::new(0, 0).write(b"nothing", &mut screen);
    assert_eq!(Terminal::new(1000, 1000).size(), (MAX_COLUMNS, MAX_ROWS));
}

fn format(width: u32, height: u32, bits: u8) -> Format {
    let colours = if bits == 16 { [(11, 5), (5, 6), (0, 5)] } else { [(16, 8), (8, 8), (0, 8)] };
    Format { base: 0x8000_0000, pitch: width * u32::from(bits / 8) + 64, width, height, bits, colours }
}

#[test]
fn what_was_drawn_is_recognised() {
    for (width, height, bits) in [(640, 480, 32), (1280, 800, 24), (801, 601, 16), (3840, 2160, 32)] {
        let format = format(width, height, bits);
        let glyphs = Glyphs::new(format).unwrap();
        let mut memory = vec![0u8; usize::try_from(format.bytes().unwrap()).unwrap()];
        let (columns, rows) = glyphs.size();
        for c in b' '..=b'~' {
            let n = usize::from(c);
            let (column, row) = (n * 7 % columns, (n * 3) % rows);
            let pixel = format.pixel_bytes();
            glyphs.draw(column, row, c, |at, value| {
                memory[at..at + pixel].copy_from_slice(&value.to_le_bytes()[..pixel])
            });
            let lit = |x: usize, y: usize| memory[y * format.pitch as usize + x * pixel] != 0;
            assert_eq!(glyphs.recognise(column, row, lit), Some(c), "{width}x{height}x{bits}");
        }
        glyphs.draw(columns, rows, b'x', |_, _| panic!("outside the screen"));
    }
}

#[test]
fn nothing_is_drawn_outside_the_buffer() {
    let format = format(100, 50, 32);
    let glyphs = Glyphs::new(format).unwrap();
    let (columns, rows) = glyphs.size();
    for (column, row) in [(0, 0), (columns - 1, rows - 1)] {
        glyphs.draw(column, row, b'#', |at, _| assert!(at + 4 <= format.bytes().unwrap() as usize));
    }
}

#[test]
fn formats_that_make_no_sense() {
    let good = format(640, 480, 32);
    assert_eq!(good.bytes(), Some(480 * 2624));
    for bad in [
        Format { bits: 8, ..good },
        Format { pitch: 100, ..good },
        Format { width: 0, ..good },
        Format { height: 0, ..good },
        Format { base: u64::MAX, ..good },
        Format { colours: [(31, 8), (8, 8), (0, 8)], ..good },
        Format { width: u32::MAX, height: u32::MAX, ..good },
    ] {
        assert!(Glyphs::new(bad).is_none(), "{bad:?}");
    }
}
