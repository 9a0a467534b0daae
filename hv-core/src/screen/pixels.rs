//! Characters in a linear frame buffer. The font is the public-domain one of 8 by 8 pixels in the crate `font8x8`; each
//! of its lines is drawn twice, so that a character has the shape of a text mode's.

use font8x8::legacy::BASIC_LEGACY;

/// Pixels of a glyph across, and lines of it in the font.
const GLYPH: usize = 8;
/// How often a line of the font is drawn.
const LINES: usize = 2;
/// Screens from this many pixels across get characters twice as large.
const LARGE_SCREEN: u32 = 2560;
/// Brightness of text out of 255: light grey, as in a text mode.
const GREY: u32 = 0xaa;

/// Where pixels are and what they look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// Machine address of the first pixel.
    pub base: u64,
    /// Bytes from line to line.
    pub pitch: u32,
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
    /// Bits of a pixel: 16, 24 or 32 can be drawn (15 has 16).
    pub bits: u8,
    /// Lowest bit and number of bits of red, green and blue.
    pub colours: [(u8, u8); 3],
}

impl Format {
    /// Bytes of the frame buffer; `None` if the description makes no sense, or is of a kind that cannot be drawn.
    pub fn bytes(&self) -> Option<u64> {
        let is_known = matches!(self.bits, 15 | 16 | 24 | 32);
        let needed = u64::from(self.width) * self.pixel_bytes() as u64;
        let is_sound = is_known && self.width != 0 && self.height != 0 && needed <= self.pitch.into();
        let colours = self.colours.iter().all(|&(low, bits)| bits != 0 && u32::from(low) + u32::from(bits) <= 32);
        let bytes = u64::from(self.pitch) * u64::from(self.height);
        (is_sound && colours && self.base.checked_add(bytes).is_some()).then_some(bytes)
    }

    /// Bytes of a pixel.
    pub const fn pixel_bytes(&self) -> usize {
        (self.bits as usize).div_ceil(8)
    }

    /// The value of a light grey pixel.
    fn grey(&self) -> u32 {
        self.colours.iter().fold(0, |pixel, &(low, bits)| pixel | (GREY >> (8 - bits.min(8))) << low)
    }
}

/// Characters on such a screen.
#[derive(Clone, Copy, Debug)]
pub struct Glyphs {
    format: Format,
    scale: usize,
}

impl Glyphs {
    /// For a screen whose format makes sense.
    pub fn new(format: Format) -> Option<Self> {
        format.bytes()?;
        Some(Self { format, scale: if format.width >= LARGE_SCREEN { 2 } else { 1 } })
    }

    /// Bytes of a pixel.
    pub const fn pixel_bytes(&self) -> usize {
        self.format.pixel_bytes()
    }

    /// Columns and rows of characters that fit.
    pub const fn size(&self) -> (usize, usize) {
        (self.format.width as usize / (GLYPH * self.scale), self.format.height as usize / (GLYPH * LINES * self.scale))
    }

    /// Calls `put` with the offset and value of each pixel of `character` in a cell that fits.
    pub fn draw(&self, column: usize, row: usize, character: u8, mut put: impl FnMut(usize, u32)) {
        let (columns, rows) = self.size();
        if column >= columns || row >= rows {
            return;
        }
        let glyph = BASIC_LEGACY.get(usize::from(character)).copied().unwrap_or_default();
        let (grey, pixel) = (self.format.grey(), self.format.pixel_bytes());
        let height = GLYPH * LINES * self.scale;
        for y in 0..height {
            let line = glyph[y / (LINES * self.scale)];
            let start = (row * height + y) * self.format.pitch as usize + column * GLYPH * self.scale * pixel;
            for x in 0..GLYPH * self.scale {
                let is_set = line >> (x / self.scale) & 1 != 0;
                put(start + x * pixel, if is_set { grey } else { 0 });
            }
        }
    }

    /// The character that `lit` (x, y in pixels) shows in a cell; `None` if it is none of the font's.
    pub fn recognise(&self, column: usize, row: usize, lit: impl Fn(usize, usize) -> bool) -> Option<u8> {
        let step = LINES * self.scale;
        let line = |y: usize| {
            (0..GLYPH).fold(0u8, |line, x| {
                let at = ((column * GLYPH + x) * self.scale, (row * GLYPH + y) * step);
                line | u8::from(lit(at.0, at.1)) << x
            })
        };
        let seen: [u8; GLYPH] = core::array::from_fn(line);
        (b' '..=b'~').find(|&c| BASIC_LEGACY[usize::from(c)] == seen)
    }
}
