//! What is known about a register's value, and the state that is carried along the code.

use twin_abi::image::Mode;
use twin_abi::kind::{Frame, Kind, State as Declared, CALLEE_SAVED};
use twin_abi::layout::{CALL_INDEX_MASK, STLB_INDEX_MASK};

use crate::{Policy, Rule};

/// The hardware number of rsp.
pub const RSP: usize = 4;
/// The hardware number of rcx.
pub const RCX: usize = 1;

/// What is known about a 64-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Any,
    /// Below `2^mask_bits`.
    Masked,
    /// At most this.
    AtMost(u32),
    /// At most this, and a multiple of 16.
    Step16(u32),
    /// A constant of the instance, or the address of one of its tables.
    Is(Kind),
    /// In the first page of a pair mapped for the twin.
    Window,
}

impl Value {
    /// The value of a known constant.
    pub fn constant(value: u64, policy: &Policy) -> Self {
        match u32::try_from(value) {
            Ok(value) => Self::AtMost(value),
            Err(_) if policy.mode == Mode::Mirror && value >> policy.mask_bits == 0 => Self::Masked,
            Err(_) => Self::Any,
        }
    }

    /// What a declared kind says.
    pub fn of_kind(kind: Kind) -> Self {
        match kind {
            Kind::Any => Self::Any,
            Kind::Masked => Self::Masked,
            Kind::U32 => Self::AtMost(u32::MAX),
            Kind::PageOffset => Self::AtMost(4095),
            Kind::StlbIndex => Self::Step16(STLB_INDEX_MASK),
            Kind::CallIndex => Self::Step16(CALL_INDEX_MASK),
            Kind::Window => Self::Window,
            Kind::Bits | Kind::Mask | Kind::Delta | Kind::StlbBase | Kind::CallBase => Self::Is(kind),
        }
    }

    /// The known upper bound, if there is one.
    pub fn bound(self) -> Option<u32> {
        match self {
            Self::AtMost(max) | Self::Step16(max) => Some(max),
            _ => None,
        }
    }

    /// Whether a register with this value fits where `kind` is required.
    pub fn implies(self, kind: Kind) -> bool {
        match kind {
            Kind::Any => true,
            Kind::Masked => self == Self::Masked || self.bound().is_some(),
            Kind::U32 => self.bound().is_some(),
            Kind::PageOffset => self.bound().is_some_and(|max| max < 4096),
            Kind::StlbIndex => matches!(self, Self::Step16(max) if max <= STLB_INDEX_MASK),
            Kind::CallIndex => matches!(self, Self::Step16(max) if max <= CALL_INDEX_MASK),
            Kind::Window => self == Self::Window,
            Kind::Bits | Kind::Mask | Kind::Delta | Kind::StlbBase | Kind::CallBase => self == Self::Is(kind),
        }
    }
}

/// Everything known at one point of the code.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// By hardware register number.
    pub regs: [Value; 16],
    /// The frame.
    pub frame: Frame,
    /// Whether the budget was charged since the last label.
    pub charged: bool,
    /// The register and bound of a comparison in the instruction before.
    pub compared: Option<(usize, u32)>,
    /// Mirror: the bound of rcx by a comparison and branch in the two instructions before. It is no [`Value`]: where
    /// the processor guessed the branch wrong it does not hold.
    pub counted: Option<u32>,
}

impl State {
    /// The state declared at a label. Undefined kind codes (refused earlier) say nothing.
    pub fn declared(declared: &Declared) -> Self {
        let mut regs = [Value::Any; 16];
        for (n, value) in (0u8..).zip(regs.iter_mut()) {
            *value = Value::of_kind(declared.kind(n).unwrap_or(Kind::Any));
        }
        Self { regs, frame: declared.frame, charged: false, compared: None, counted: None }
    }

    /// What is known of register `reg`.
    pub fn get(&self, reg: usize) -> Value {
        self.regs.get(reg).copied().unwrap_or(Value::Any)
    }

    /// Sets what is known without asking whether it may be written.
    pub fn set(&mut self, reg: usize, value: Value) {
        if let Some(slot) = self.regs.get_mut(reg) {
            *slot = value;
        }
    }

    /// The instruction writes `reg`: rules S1 and S4.
    pub fn write(&mut self, reg: usize, value: Value) -> Result<(), (Rule, &'static str, i64)> {
        if reg == RSP {
            return Err((Rule::S1, "rsp is written", 4));
        }
        if let Some(n) = callee_saved(reg) {
            if self.frame.saved.get(n) == Some(&0) {
                return Err((Rule::S4, "register still holds the caller's value", number(reg)));
            }
        }
        self.set(reg, value);
        Ok(())
    }

    /// After a call: the caller-saved registers hold anything.
    pub fn forget_caller_saved(&mut self) {
        for (n, value) in self.regs.iter_mut().enumerate() {
            if callee_saved(n).is_none() {
                *value = Value::Any;
            }
        }
    }

    /// The first register that does not fit what the label declares.
    pub fn misfit(&self, declared: &Declared) -> Option<u8> {
        (0u8..16).find(|n| !declared.kind(*n).is_some_and(|kind| self.get(usize::from(*n)).implies(kind)))
    }

    /// Whether nothing is on the stack and all callee-saved registers are the caller's.
    pub fn frame_is_empty(&self) -> bool {
        self.frame == Frame::default()
    }
}

/// The index of `reg` among the callee-saved registers.
pub fn callee_saved(reg: usize) -> Option<usize> {
    CALLEE_SAVED.iter().position(|r| usize::from(*r) == reg)
}

/// A register number as the value of a refusal.
pub fn number(reg: usize) -> i64 {
    i64::try_from(reg).unwrap_or(-1)
}
