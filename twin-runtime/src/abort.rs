//! Why an invocation ended early, and where.

use core::fmt;

use twin_abi::image::Image;

use crate::memory::Fault;

/// What ended the invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The twin, or a support routine on its behalf, accessed memory that it may not.
    Memory(Fault),
    /// The CPU raised this exception in the twin's code (`#UD` at a `ud2`: see `Bug` and `Budget`).
    Exception {
        /// Vector.
        vector: u8,
        /// Faulting address of a `#PF`, else 0.
        address: u64,
    },
    /// A `BUG` site of the driver, or an unknown place reached by it.
    Bug,
    /// The budget is used up.
    Budget,
    /// The embedder's timer ended it.
    TimeOut,
    /// An indirect call to an address that is no function of the twin and no known import.
    IndirectCall(u64),
    /// An import that is neither native nor allowed as an upcall here.
    Import(u32),
    /// Another invocation of the same instance is under way.
    Busy,
    /// A stack address would have been handed to the driver domain.
    StackPointer(u64),
    /// A lock stayed taken.
    Lock(u64),
    /// A support routine found a structure in a state that the driver must not produce.
    Structure {
        /// What is wrong.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// The stack is used up (fault in its guard pages).
    Stack(u64),
}

impl From<Fault> for Reason {
    fn from(fault: Fault) -> Self {
        Self::Memory(fault)
    }
}

/// Bytes of a symbol's name that an abort keeps.
const NAME_BYTES: usize = 62;

/// The name of a function, in place: an abort allocates nothing. What is longer is cut off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    bytes: [u8; NAME_BYTES],
    len: u8,
}

impl Symbol {
    fn new(name: &str) -> Self {
        let mut symbol = Self { bytes: [0; NAME_BYTES], len: 0 };
        // Names are ASCII (rule F6), so any cut is between characters.
        for (to, from) in symbol.bytes.iter_mut().zip(name.bytes()) {
            *to = from;
            symbol.len += 1;
        }
        symbol
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.len)).unwrap_or(&[]);
        core::str::from_utf8(name).unwrap_or("?")
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An ended invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Why.
    pub reason: Reason,
    /// Code offset of the instruction, or of the return address in the twin when a gate found it.
    pub offset: u32,
    /// Name of the function of the driver.
    pub symbol: Symbol,
    /// Offset in the original function of the instruction that this one stems from.
    pub original: u64,
    /// The domain's address of that instruction.
    pub address: u64,
}

impl Abort {
    /// Names the place of a code offset in the words of the driver domain.
    #[must_use]
    pub fn at(image: &Image<'_>, offset: u32, reason: Reason) -> Self {
        let function = image.function_at(offset);
        let start = function.map_or(image.text, |f| f.domain);
        // An image that does not say which instruction it is says which function.
        let origin = image.origin_of(offset).map_or(start, |o| image.text.wrapping_add(u64::from(o)));
        let symbol = function.map_or("?", |f| image.name(f.name, f.name_len));
        let original = origin.wrapping_sub(start);
        Self { reason, offset, symbol: Symbol::new(symbol), original, address: origin }
    }

    /// The abort for an exception at a code offset: `ud2` is told apart by the budget, and the stack by its guards.
    #[must_use]
    pub fn exception(image: &Image<'_>, offset: u32, vector: u8, address: u64, budget: i64, in_guard: bool) -> Self {
        let reason = match vector {
            6 if budget < 0 => Reason::Budget,
            6 => Reason::Bug,
            14 | 12 | 8 if in_guard => Reason::Stack(address),
            _ => Reason::Exception { vector, address },
        };
        Self::at(image, offset, reason)
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x?} at {}+{:#x} (twin {:#x})", self.reason, self.symbol, self.original, self.offset)
    }
}
