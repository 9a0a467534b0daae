//! The contents of the areas around the code of one instance (`twin_abi::layout`). The embedder maps them.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use core::fmt;
use core::ops::Range;

use twin_abi::image::Mode;
use twin_abi::layout::{
    constant, ctx, gate, CALL_TABLE_ENTRIES, CODE_OFFSET, ENTRY_AREA, MAX_IMPORTS, MAX_STACK_ARGS, STACK_GUARD,
    STACK_SIZE, STLB_ENTRIES, STLB_NO_TAG,
};
use twin_verify::Verified;

use crate::addresses::Addresses;

/// What the embedder decides for one instance.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Virtual address of the instance base.
    pub base: u64,
    /// Lowest address of the twin's stack.
    pub stack: u64,
    /// Lowest address of the unsafe area, as the twin's own pointers name it.
    pub unsafe_area: u64,
    /// Domain address of the per-CPU area (what a gs base would be).
    pub percpu: u64,
    /// A value for stack canaries.
    pub canary: u64,
    /// Address of the stub for the gate `STLB_MISS`.
    pub stlb_miss: u64,
    /// Address of the stub for the gate `ICALL`.
    pub icall: u64,
    /// Address of the stub for the gate `WARN`.
    pub warn: u64,
    /// Addresses of the import stubs, in the order of the imports.
    pub imports: Vec<u64>,
    /// Stlb: address of two unmapped pages.
    pub hole: u64,
}

impl Config {
    /// Whether an address lies in the stack or the unsafe area: such a pointer means nothing outside of the twin.
    #[must_use]
    pub fn is_twin_stack(&self, address: u64) -> bool {
        [self.stack, self.unsafe_area].iter().any(|start| address.wrapping_sub(*start) < STACK_SIZE)
    }

    /// Where the stack pointer is at an entry, before the return address is pushed. Above are the words of the entry
    /// area.
    #[must_use]
    pub fn entry_stack(&self) -> u64 {
        self.stack.wrapping_add(STACK_SIZE - ENTRY_AREA)
    }

    /// The addresses of the stack arguments of a call that came to a gate with this stack pointer (at its return
    /// address): at most as many as a call has, and none beyond the stack's end. All of them hold what the twin wrote,
    /// or zero.
    #[must_use]
    pub fn stack_arguments(&self, rsp: u64) -> Range<u64> {
        let end = self.stack.wrapping_add(STACK_SIZE);
        let first = rsp.wrapping_add(8);
        if !(self.stack..end).contains(&first) {
            return end..end;
        }
        first..end.min(first.saturating_add(8 * u64::from(MAX_STACK_ARGS)))
    }

    /// Whether an address lies in a guard of the stack or of the unsafe area: a fault there means that the stack is
    /// used up.
    #[must_use]
    pub fn is_guard(&self, address: u64) -> bool {
        let beside = |start: u64| {
            let from_below = address.wrapping_sub(start.wrapping_sub(STACK_GUARD));
            from_below < STACK_GUARD || address.wrapping_sub(start.wrapping_add(STACK_SIZE)) < STACK_GUARD
        };
        beside(self.stack) || beside(self.unsafe_area)
    }
}

/// The areas as bytes.
#[derive(Clone, Debug)]
pub struct Areas {
    /// The context page as it is at first: `MISS_RESULT` names the hole, for code that reads it before any miss.
    pub context: Vec<u8>,
    /// The constant page.
    pub constants: Vec<u8>,
    /// The import slots.
    pub imports: Vec<u8>,
    /// The call table.
    pub call_table: Vec<u8>,
    /// The empty stlb; no bytes in mirror mode.
    pub stlb: Vec<u8>,
}

/// Why there are no areas for an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// So many stubs for so many imports.
    Stubs(usize, usize),
    /// The import with this number has no stub of its own: none, or one of the gates'. At a gate other rules hold than
    /// at an import: `ICALL` may enter a function that writes stack arguments, for which a call of an import makes no
    /// room.
    Import(usize),
    /// A gate has no stub, or two have the same.
    Gate,
    /// There is no memory for them.
    Memory(TryReserveError),
}

impl From<TryReserveError> for Incomplete {
    fn from(error: TryReserveError) -> Self {
        Self::Memory(error)
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stubs(stubs, imports) => write!(f, "{stubs} stubs for {imports} imports"),
            Self::Import(number) => write!(f, "import {number} has no stub of its own"),
            Self::Gate => write!(f, "a gate has no stub of its own"),
            Self::Memory(error) => write!(f, "{error}"),
        }
    }
}

impl Config {
    /// Every slot that the code can call through leads to a stub of its own.
    fn check(&self, imports: usize, mirror: bool) -> Result<(), Incomplete> {
        let gates = [self.icall, self.warn, self.stlb_miss];
        let missing = self.icall == 0 || self.warn == 0 || (self.stlb_miss == 0 && !mirror);
        if missing || self.icall == self.warn || gates.iter().take(2).any(|gate| *gate == self.stlb_miss) {
            return Err(Incomplete::Gate);
        }
        if self.imports.len() != imports {
            return Err(Incomplete::Stubs(self.imports.len(), imports));
        }
        match self.imports.iter().position(|stub| *stub == 0 || gates.contains(stub)) {
            Some(number) => Err(Incomplete::Import(number)),
            None => Ok(()),
        }
    }
}

impl Areas {
    /// Computes the areas.
    ///
    /// # Errors
    /// If a stub is missing, or memory.
    pub fn new(verified: &Verified<'_>, addresses: &Addresses<'_>, config: &Config) -> Result<Self, Incomplete> {
        let mirror = verified.policy().mode == Mode::Mirror;
        config.check(verified.image().imports().len(), mirror)?;
        let bits = verified.policy().mask_bits;
        let mask = if mirror { (1u64 << bits) - 1 } else { 0 };
        let mut constants = zeroes(4096)?;
        let words = [
            (constant::MASK, mask),
            (constant::BITS, u64::from(bits)),
            (constant::DELTA, config.unsafe_area.wrapping_sub(config.stack)),
            (constant::PERCPU, if mirror { config.percpu & mask } else { config.percpu }),
            (constant::PERCPU_ADDRESS, config.percpu),
            (constant::CANARY, config.canary),
            (gate::STLB_MISS, config.stlb_miss),
            (gate::ICALL, config.icall),
            (gate::WARN, config.warn),
        ];
        for (offset, word) in words {
            put(&mut constants, offset as usize, word);
        }
        let mut imports = zeroes(8 * MAX_IMPORTS as usize)?;
        for (n, stub) in config.imports.iter().enumerate() {
            put(&mut imports, n * 8, *stub);
        }
        let mut stlb = Vec::new();
        if !mirror {
            stlb = zeroes(STLB_ENTRIES as usize * 16)?;
            for n in 0..STLB_ENTRIES as usize {
                put(&mut stlb, n * 16, STLB_NO_TAG);
                put(&mut stlb, n * 16 + 8, config.hole);
            }
        }
        let mut context = zeroes(4096)?;
        put(&mut context, ctx::MISS_RESULT as usize, config.hole);
        Ok(Self { context, constants, imports, call_table: call_table(addresses, config)?, stlb })
    }
}

fn zeroes(count: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)?;
    all.resize(count, 0);
    Ok(all)
}

/// The call table: each function at the entry of its address; where two share one, the higher address has it, and the
/// other goes by the gate. Entries without a function lead to the gate.
fn call_table(addresses: &Addresses<'_>, config: &Config) -> Result<Vec<u8>, TryReserveError> {
    let mut table = zeroes(CALL_TABLE_ENTRIES as usize * 16)?;
    for n in 0..CALL_TABLE_ENTRIES as usize {
        put(&mut table, n * 16 + 8, config.icall);
    }
    for (domain, offset) in addresses.functions() {
        let at = usize::try_from(domain & 0xff0).unwrap_or(0);
        put(&mut table, at, domain);
        put(&mut table, at + 8, config.base.wrapping_add(u64::from(CODE_OFFSET) + u64::from(offset)));
    }
    Ok(table)
}

fn put(area: &mut [u8], at: usize, word: u64) {
    if let Some(to) = area.get_mut(at..at + 8) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}
