//! What the user chooses about an image.

/// How driver-domain addresses are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By the software table.
    Stlb,
    /// By masking.
    Mirror,
}

impl Mode {
    /// As it is spelled on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stlb => "stlb",
            Self::Mirror => "mirror",
        }
    }
}

/// How far a translation is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// Never: one for each access.
    Access,
    /// In the same basic block.
    Block,
    /// Wherever all ways lead through it.
    Flow,
}

/// Options of a rewrite.
#[derive(Debug, Clone)]
pub struct Options {
    /// Translation mode.
    pub mode: Mode,
    /// Mirror: how many low bits of an address are kept.
    pub mask_bits: u32,
    /// BMI2 may be used.
    pub bmi: bool,
    /// Loops and functions are charged to the budget by code.
    pub counted: bool,
    /// How far translations are used again.
    pub reuse: Reuse,
}

impl Options {
    /// The usual options of a mode.
    pub fn new(mode: Mode) -> Self {
        Self { mode, mask_bits: 46, bmi: true, counted: false, reuse: Reuse::Flow }
    }
}
