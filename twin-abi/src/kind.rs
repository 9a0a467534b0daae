//! What can be known about registers and the frame at a point of the code.
//!
//! The verifier goes through the code once, in order, and carries the [`Kind`] of each register and the [`Frame`]. It
//! never computes a fixed point: at each label the image *declares* a [`State`], every edge to the label must imply it,
//! and the code after the label is checked under the declared state alone.

/// What is known about the value of a register. The numbers are the four-bit codes in [`State::regs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing.
    Any = 0,
    /// Mirror: in `[0, 2^mask_bits)`.
    Masked = 1,
    /// Below `2^32`.
    U32 = 2,
    /// The constant `BITS`.
    Bits = 3,
    /// The constant `MASK`.
    Mask = 4,
    /// The constant `DELTA`.
    Delta = 5,
    /// Address of the stlb.
    StlbBase = 6,
    /// A multiple of 16 up to `STLB_INDEX_MASK`.
    StlbIndex = 7,
    /// Below 4096.
    PageOffset = 8,
    /// Stlb: an address in the first page of a mapped pair.
    Window = 9,
    /// Address of the call table.
    CallBase = 10,
    /// A multiple of 16 up to `CALL_INDEX_MASK`.
    CallIndex = 11,
}

impl Kind {
    /// The kind with this four-bit code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Any,
            1 => Self::Masked,
            2 => Self::U32,
            3 => Self::Bits,
            4 => Self::Mask,
            5 => Self::Delta,
            6 => Self::StlbBase,
            7 => Self::StlbIndex,
            8 => Self::PageOffset,
            9 => Self::Window,
            10 => Self::CallBase,
            11 => Self::CallIndex,
            _ => return None,
        })
    }
}

/// The callee-saved registers in the order of [`Frame::saved`], as hardware register numbers: rbx, rbp, r12..r15.
pub const CALLEE_SAVED: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// The frame of the running function. Slot `n` (1 is the first) is the eight bytes at `entry_rsp - 8 * n`, where
/// `entry_rsp` points to the return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Slots in use: `rsp == entry_rsp - 8 * depth`.
    pub depth: u16,
    /// For each register of [`CALLEE_SAVED`]: the slot that holds the caller's value, or 0 if the register itself still
    /// does.
    pub saved: [u8; 6],
}

/// The state that is declared at a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Four bits per register, register `n` (hardware number) in bits `4n..4n+4`; rsp's are zero.
    pub regs: u64,
    /// The frame.
    pub frame: Frame,
}

impl State {
    /// The kind of register `reg` (0..16), if its code is valid.
    #[must_use]
    pub fn kind(&self, reg: u8) -> Option<Kind> {
        Kind::from_code(((self.regs >> (u32::from(reg & 15) * 4)) & 15) as u8)
    }

    /// Sets the kind of register `reg` (0..16).
    pub fn set_kind(&mut self, reg: u8, kind: Kind) {
        let shift = u32::from(reg & 15) * 4;
        self.regs = self.regs & !(15 << shift) | (kind as u64) << shift;
    }
}
