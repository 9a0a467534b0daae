//! The contents of the areas around the code of one instance (`twin_abi::layout`). The embedder maps them.

use alloc::vec;
use alloc::vec::Vec;

use twin_abi::image::Mode;
use twin_abi::layout::{
    constant, ctx, gate, CALL_TABLE_ENTRIES, CODE_OFFSET, STACK_GUARD, STACK_SIZE, STLB_ENTRIES, STLB_NO_TAG,
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

    /// Whether an address lies in a guard of the stack or of the unsafe area: a fault there means that the stack is used up.
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

impl Areas {
    /// Computes the areas. Import slots without a stub lead to the gate `ICALL`, which refuses what it does not know.
    #[must_use]
    pub fn new(verified: &Verified<'_>, addresses: &Addresses, config: &Config) -> Self {
        let mirror = verified.policy().mode == Mode::Mirror;
        let bits = verified.policy().mask_bits;
        let mask = if mirror { (1u64 << bits) - 1 } else { 0 };
        let mut constants = vec![0; 4096];
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
        let slots = verified.image().imports().len();
        let mut imports = vec![0; 8192];
        for n in 0..slots {
            put(&mut imports, n * 8, config.imports.get(n).copied().unwrap_or(config.icall));
        }
        let mut stlb = Vec::new();
        if !mirror {
            stlb.resize(STLB_ENTRIES as usize * 16, 0);
            for n in 0..STLB_ENTRIES as usize {
                put(&mut stlb, n * 16, STLB_NO_TAG);
                put(&mut stlb, n * 16 + 8, config.hole);
            }
        }
        let mut context = vec![0; 4096];
        put(&mut context, ctx::MISS_RESULT as usize, config.hole);
        Self { context, constants, imports, call_table: call_table(addresses, config), stlb }
    }
}

/// The call table: each function at the entry of its address; where two share one, the higher address has it, and the
/// other goes by the gate. Entries without a function lead to the gate.
fn call_table(addresses: &Addresses, config: &Config) -> Vec<u8> {
    let mut table = vec![0; CALL_TABLE_ENTRIES as usize * 16];
    for n in 0..CALL_TABLE_ENTRIES as usize {
        put(&mut table, n * 16 + 8, config.icall);
    }
    for (domain, offset) in addresses.functions() {
        let at = usize::try_from(domain & 0xff0).unwrap_or(0);
        put(&mut table, at, domain);
        put(&mut table, at + 8, config.base.wrapping_add(u64::from(CODE_OFFSET) + u64::from(offset)));
    }
    table
}

fn put(area: &mut [u8], at: usize, word: u64) {
    if let Some(to) = area.get_mut(at..at + 8) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}
